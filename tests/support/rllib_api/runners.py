"""Members and arguments of the runner, each used in the same way on both faces."""

import importlib.util
import pathlib
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.fs
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

import fastmarl
from support.api_tables import Rows, parameters_of
from support.rllib_api.members import check_parameter, constructor_arguments, members_of
from support.rllib_api.pairs import MAKERS, module_of

GROUP = "MultiAgentEnvRunner"
OURS = fastmarl.MultiAgentEnvRunner
OF_STATE = {
    "rl_module",
    "weights_seq_no",
    "env_to_module_connector",
    "module_to_env_connector",
    "num_env_steps_sampled_lifetime",
}
UNUSED = ("env_creator", "validate_env", "default_policy_class", "log_dir", "dataset_shards")
LOCAL = pyarrow.fs.LocalFileSystem()
Use = Callable[[Any], Any]


def rows() -> Rows:
    """Methods with their arguments, then attributes of a runner that is made."""
    for name in members_of(RLlibEnvRunner):
        member = getattr(RLlibEnvRunner, name)
        yield f"{GROUP}: {name}", partial(check, name)
        arguments = constructor_arguments() if name == "__init__" else ()
        for argument in arguments or (parameters_of(member) if callable(member) else ()):
            yield f"{GROUP}: {name}({argument})", partial(check, name, argument)
    for name in attributes():
        yield f"{GROUP}: {name}", partial(check, name)


def attributes() -> list[str]:
    """Return the public attributes that RLlib's runner has of its own."""
    runner = MAKERS["theirs"]()
    runner.stop()
    return sorted(name for name in vars(runner) if not name.startswith("_"))


def check(name: str, argument: str | None = None) -> None:
    """Raise unless a use of the member, with the argument, has the same outcome on both faces."""
    if argument is not None and name != "__init__" and argument != "filesystem":  # ours is taken by keyword
        check_parameter(getattr(RLlibEnvRunner, name), getattr(OURS, name), argument)
    use = USES[name if argument is None else f"{name}({argument})"]
    found = []
    for make in MAKERS.values():
        runner = make()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder):  # for checkpoints
            try:
                found.append(use(runner))
            finally:
                runner.stop()
    assert found[0] == found[1], found


# Ways to use them, each with an outcome that can be compared.


def value_of(name: str) -> Use:
    return lambda runner: getattr(runner, name)


def lengths(**arguments: Any) -> Use:
    return lambda runner: [len(episode) for episode in runner.sample(**arguments)]


def is_greedy(runner: Any) -> bool:
    (episode, *_) = runner.sample(num_timesteps=5, explore=False)
    steps = episode.agent_episodes["a"]
    return bool((steps.get_extra_model_outputs("action_dist_inputs").argmax(-1) == steps.get_actions()).all())


def starts_after_a_reset(runner: Any) -> list[int]:
    runner.sample(num_timesteps=3)
    return [episode.env_t_started for episode in runner.sample(num_timesteps=3, force_reset=True)]


def filled(runner: Any, number: float) -> dict[str, Any]:
    """Return weights that are all the same number."""
    weights = runner.get_state("rl_module")["rl_module"]
    return {
        module_id: {name: np.full_like(np.asarray(each), number) for name, each in of_module.items()}
        for module_id, of_module in weights.items()
    }


def fill(runner: Any, number: float) -> None:
    runner.set_state({"rl_module": filled(runner, number)})


def numbers(runner: Any) -> dict[str, float]:
    """Return the number that `fill()` has put into the weights, by module."""
    weights = runner.get_state("rl_module")["rl_module"]
    return {module_id: float(np.asarray(next(iter(each.values()))).flat[0]) for module_id, each in weights.items()}


def saved(runner: Any, **options: Any) -> str:
    """Save a runner whose weights are 3, and make them 4."""
    fill(runner, 3)
    path = str(runner.save_to_path(tempfile.mkdtemp(), **options))
    fill(runner, 4)
    return path


def saved_with(**options: Any) -> Use:
    def use(runner: Any) -> dict[str, float]:
        runner.restore_from_path(saved(runner, **options))
        return numbers(runner)

    return use


def saved_state(runner: Any) -> dict[str, float]:
    fill(runner, 5)
    state = runner.get_state("rl_module")
    runner.restore_from_path(f"{saved(runner, state=state)}/rl_module", component="rl_module")
    return numbers(runner)


def saved_somewhere(runner: Any) -> bool:
    return pathlib.Path(runner.save_to_path()).is_dir()


def saved_by_msgpack(runner: Any) -> dict[str, float]:
    has_msgpack = importlib.util.find_spec("msgpack_numpy") is not None  # ours does not need it
    return saved_with(**{"use_msgpack": True} if has_msgpack or isinstance(runner, OURS) else {})(runner)


def component_restored(runner: Any) -> dict[str, float]:
    runner.restore_from_path(f"{saved(runner)}/rl_module/p_b", component="rl_module/p_b")
    return numbers(runner)


def restored(**options: Any) -> Use:
    def use(runner: Any) -> dict[str, float]:
        runner.restore_from_path(saved(runner), **options)
        return numbers(runner)

    return use


def remade(**options: Any) -> Use:
    def use(runner: Any) -> dict[str, float]:
        # Ours has to be given functions again.
        other = type(runner).from_checkpoint(saved(runner), policy_mapping_fn=module_of, **options)
        other.stop()
        return numbers(other)

    return use


def weights_set(**options: Any) -> Use:
    def use(runner: Any) -> dict[str, float]:
        runner.set_weights(filled(runner, 7), **options)
        runner.set_weights(filled(runner, 8), **options)  # with a number: not newer, so they are left
        return numbers(runner)

    return use


def state_set(runner: Any) -> tuple[Any, int]:
    runner.set_state({"rl_module": filled(runner, 7), "num_env_steps_sampled_lifetime": 70})
    return numbers(runner), runner.num_env_steps_sampled_lifetime


def components(*names: Any, **options: Any) -> Use:
    return lambda runner: sorted(runner.get_state(*names, **options).keys() & OF_STATE)


def made_again(method: str, name: str) -> Use:
    def use(runner: Any) -> tuple[bool, list[int]]:
        before = getattr(runner, name)
        getattr(runner, method)()
        return getattr(runner, name) is before, lengths(num_timesteps=7)(runner)

    return use


def sampled_at_once(runner: Any) -> tuple[bool, ...]:
    with mock.patch("ray.put", lambda value: value):  # it would start Ray
        episodes, state, metrics = runner.sample_get_state_and_metrics()
    return len(episodes) > 0, "rl_module" in state, "num_env_steps_sampled" in metrics


def made_with(name: str, value: Any) -> Use:
    def use(runner: Any) -> Any:
        other = type(runner)(runner.config, **{name: value})
        other.stop()
        is_kept = name in ("worker_index", "num_workers", "spaces")  # RLlib's takes the others, and forgets them
        return getattr(other, name) if is_kept else None

    return use


USES: dict[str, Use] = {
    **{name: value_of(name) for name in ("num_envs", "worker_index", "spaces", "episodes_to_numpy")},
    **{name: value_of(name) for name in ("STATE_FILE_NAME", "METADATA_FILE_NAME", "CLASS_AND_CTOR_ARGS_FILE_NAME")},
    "__init__": lambda runner: lengths(num_timesteps=7)(type(runner)(runner.config)),
    "__init__(config)": lambda runner: lengths(num_timesteps=7)(type(runner)(config=runner.config)),
    "__init__(worker_index)": made_with("worker_index", 2),
    "__init__(num_workers)": made_with("num_workers", 4),
    "__init__(spaces)": made_with("spaces", {"p_a": ()}),
    **{f"__init__({name})": made_with(name, None) for name in UNUSED},
    "__init__(recreated_worker)": made_with("recreated_worker", True),
    "__init__(tune_trial_id)": made_with("tune_trial_id", "trial"),
    "apply": lambda runner: runner.apply(lambda it, n, *, m: (it is runner, n, m), 1, m=2),
    "apply(func)": lambda runner: runner.apply(func=lambda it: it.num_envs),
    "assert_healthy": lambda runner: runner.assert_healthy(),
    "config": lambda runner: (runner.config.explore, runner.config.num_envs_per_env_runner, runner.config.seed),
    "env": lambda runner: (runner.env.num_envs, [env.unwrapped.length for env in runner.env.envs]),
    "from_checkpoint": remade(),
    "from_checkpoint(path)": remade(),
    "from_checkpoint(filesystem)": remade(filesystem=LOCAL),
    "get_checkpointable_components": lambda runner: [name for name, _ in runner.get_checkpointable_components()],
    "get_ctor_args_and_kwargs": lambda runner: [list(each) for each in runner.get_ctor_args_and_kwargs()],
    "get_metadata": lambda runner: isinstance(runner.get_metadata()["state_file"], str),
    "get_metrics": lambda runner: (runner.sample(num_timesteps=7), "episode_return_mean" in runner.get_metrics())[1:],
    "get_spaces": lambda runner: sorted(runner.get_spaces()),
    "get_state": components(),
    "get_state(components)": components(["rl_module"]),
    "get_state(not_components)": components(not_components=["rl_module"]),
    "get_weights": lambda runner: sorted(runner.get_weights()),
    "get_weights(modules)": lambda runner: "p_a" in runner.get_weights(modules=["p_a"]),
    "make_env": made_again("make_env", "env"),
    "make_module": made_again("make_module", "module"),
    "metrics": lambda runner: runner.metrics.peek("unknown", default=7),
    "module": lambda runner: sorted(runner.module.keys()),
    "num_workers": made_with("num_workers", 2),
    "num_env_steps_sampled_lifetime": lambda runner: state_set(runner)[1],
    "ping": lambda runner: runner.ping(),
    "restore_from_path": restored(),
    "restore_from_path(path)": restored(),
    "restore_from_path(component)": component_restored,
    "restore_from_path(filesystem)": restored(filesystem=LOCAL),
    "sample": lambda runner: sum(lengths()(runner)),
    "sample(num_timesteps)": lengths(num_timesteps=7),
    "sample(num_episodes)": lengths(num_episodes=2),
    "sample(explore)": is_greedy,
    "sample(random_actions)": lengths(num_timesteps=7, random_actions=True),
    "sample(force_reset)": starts_after_a_reset,
    "sample_get_state_and_metrics": sampled_at_once,
    "save_to_path": saved_somewhere,
    "save_to_path(path)": saved_with(),
    "save_to_path(state)": saved_state,
    "save_to_path(filesystem)": saved_with(filesystem=LOCAL),
    "save_to_path(use_msgpack)": saved_by_msgpack,
    "set_state": state_set,
    "set_state(state)": state_set,
    "set_weights": weights_set(),
    "set_weights(weights)": weights_set(),
    "set_weights(global_vars)": weights_set(global_vars=None),
    "set_weights(weights_seq_no)": weights_set(weights_seq_no=3),
    "stop": lambda runner: runner.stop(),
}
