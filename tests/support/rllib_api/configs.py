"""Fields of the config that RLlib's runner reads: each changes what both faces do, in the same way."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations as RLlibFlatten
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig as RLlibModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec as RLlibSpec
from ray.tune.registry import register_env

import fastmarl
from fastmarl.connectors import FlattenObservations
from support.api_tables import Rows
from support.rllib_api.members import config_fields
from support.rllib_api.pairs import MAKERS
from support.rllib_walk import Walk

GROUP = "Config"
HIDDEN, MOST = 8, 0.01
READ_ONLY = ("framework_str", "is_multi_agent", "total_train_batch_size")
OF_BATCH = {"rollout_fragment_length": "auto", "train_batch_size_per_learner": 70}
OF_BOX = {"env_config": {"action_space": gym.spaces.Box(-MOST, MOST, (1,), np.float32)}}
AS_RECEIVED = {"normalize_actions": False, "clip_actions": False, **OF_BOX}


# What a runner does, in a form that is the same for both faces.


def lengths(runner: Any) -> list[int]:
    return [len(episode) for episode in runner.sample()]


def env_steps(runner: Any) -> int:
    return sum(len(episode) for episode in runner.sample(num_timesteps=6))


def lookbacks(runner: Any) -> list[int]:
    runner.sample(num_timesteps=4)
    return [part.observations.lookback for part in runner.sample(num_timesteps=1)[0].agent_episodes.values()]


def actions(runner: Any) -> list[Any]:
    return [episode.agent_episodes["a"].get_actions().tolist() for episode in runner.sample(num_timesteps=40)]


def explores(runner: Any) -> bool:
    return len({action for episode in actions(runner) for action in episode}) > 1


def exceeds(runner: Any) -> bool:
    """Return whether its envs got actions beyond their bounds."""
    runner.sample(num_timesteps=40)
    return any(abs(action) > MOST * 1.001 for env in runner.env.envs for action in env.unwrapped.received)


def has_small_layers(runner: Any) -> bool:
    parameters = [parameter for module_id in ("p_a", "p_b") for parameter in runner.module[module_id].parameters()]
    return any(HIDDEN in parameter.shape for parameter in parameters)


def shapes(runner: Any) -> list[Any]:
    return [part.get_observations().shape[1:] for part in runner.sample(num_timesteps=5)[0].agent_episodes.values()]


def smoothed(runner: Any) -> float:
    runner.sample(num_timesteps=30)
    found = runner.get_metrics()["episode_len_max"]
    return float(found.peek() if hasattr(found, "peek") else found)


def survives(runner: Any) -> bool:
    """Return whether it samples on when an env fails."""
    Walk.failures = 1
    try:
        return bool(runner.sample(num_timesteps=10))
    except (RuntimeError, ValueError):
        return False
    finally:
        Walk.failures = 0


def takes_wrong_observations(runner: Any) -> bool:
    return bool(runner.sample(num_timesteps=5))


def seeds(runner: Any) -> list[bool]:
    runner.sample(num_timesteps=1)
    return [env.unwrapped.seeds[-1] is None for env in runner.env.envs]


def has_other_seeds(runner: Any) -> bool:
    """Return whether its envs have seeds that they don't have without the field."""
    runner.sample(num_timesteps=1)
    other = MAKERS["ours" if isinstance(runner, fastmarl.MultiAgentEnvRunner) else "theirs"]()
    other.sample(num_timesteps=1)
    other.stop()
    return bool(runner.env.envs[0].unwrapped.seeds[-1] != other.env.envs[0].unwrapped.seeds[-1])


def modules_of_agents(runner: Any) -> dict[str, str]:
    (episode, *_) = runner.sample(num_timesteps=5)
    return {agent: part.module_id for agent, part in episode.agent_episodes.items()}


def devices(runner: Any) -> set[str]:
    return {str(parameter.device) for parameter in runner.module["p_a"].parameters()}


def trained(runner: Any) -> list[str]:
    config = runner.config
    if isinstance(config, fastmarl.EnvRunnerConfig):
        is_trained: Any = config.is_policy_to_train
    else:
        _, is_trained = config.get_multi_agent_setup(spaces=runner.get_spaces())
    return [module_id for module_id in ("p_a", "p_b") if (is_trained is None or is_trained(module_id, None))]


@dataclass
class Field:
    """A field of the config, and what it changes.

    Args:
        value: of RLlib's config; where the standalone face has classes of its own, `own` is its value.
        observe: what is compared between the faces, and differs from a config without the field, if it `changes`.
        options: other fields that go with it.
    """

    value: Any
    observe: Callable[[Any], Any]
    options: dict[str, Any] | None = None
    own: Any = None
    changes: bool = True

    def check(self, name: str) -> None:
        """Raise unless it does the same on both faces."""
        outcomes = [self.outcome(face, {} if name in READ_ONLY else {name: self.of(face)}) for face in MAKERS]
        assert outcomes[0] == outcomes[1], outcomes
        if self.changes:
            assert self.outcome("ours", {}) != outcomes[0]

    def of(self, face: str) -> Any:
        return self.own if face == "ours" and self.own is not None else self.value

    def outcome(self, face: str, changed: dict[str, Any]) -> Any:
        """Make a runner and look, or return the class of its error."""
        try:
            runner = MAKERS[face](**(self.options or {}) | changed)
            try:
                return self.observe(runner)
            finally:
                runner.stop()
        except Exception as error:
            return type(error)


def callback(name: str) -> Field:
    """A callback function under the name of its field: how often it is called."""
    calls: list[str] = []

    def observe(runner: Any) -> int:
        runner.sample(num_timesteps=7)
        n_calls = len(calls)
        calls.clear()
        return n_calls

    return Field(lambda **kwargs: calls.append(name), observe)


class Ones(ConnectorV2):
    """Has all agents choose action 1."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        self.foreach_batch_item_change_in_place(batch, "actions", lambda action, *who: np.int64(1))
        return batch


class Counting(fastmarl.Callbacks):
    """Counts its calls in an attribute of the runner."""

    def on_sample_end(self, *, env_runner: Any, **kwargs: Any) -> None:
        env_runner.n_calls = getattr(env_runner, "n_calls", 0) + 1


def calls_of_the_class(runner: Any) -> int:
    runner.sample(num_timesteps=3)
    return getattr(runner, "n_calls", 0)


def fragment(runner: Any) -> int:
    return runner.config.get_rollout_fragment_length(1)


def everybody(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "p_b"


register_env("walk_of_three_steps", lambda config: Walk({"length": 3}))
FIELDS = {
    "batch_mode": Field("complete_episodes", lengths, {"rollout_fragment_length": 10}),
    "callbacks_class": Field(Counting, calls_of_the_class),
    "clip_actions": Field(True, exceeds, AS_RECEIVED),
    "count_steps_by": Field("agent_steps", env_steps),
    "disable_env_checking": Field(True, takes_wrong_observations, {"env_config": {"is_wrong": True}}),
    "env": Field("walk_of_three_steps", smoothed),
    "env_config": Field({"length": 3}, smoothed),
    "env_to_module_connector": Field(
        lambda env, spaces, device: RLlibFlatten(multi_agent=True),
        shapes,
        {"env_config": {"shape": (2, 2)}, "model_config": {"fcnet_hiddens": [HIDDEN]}},
        own=FlattenObservations(),
    ),
    "episode_lookback_horizon": Field(3, lookbacks),
    "episodes_to_numpy": Field(False, lambda runner: runner.sample(num_timesteps=5)[0].is_numpy),
    "explore": Field(False, explores),
    "gym_env_vectorize_mode": Field("sync", lambda runner: len(runner.env.envs), changes=False),
    "module_to_env_connector": Field(lambda env, spaces: Ones(), actions),
    "metrics_num_episodes_for_smoothing": Field(1, smoothed, {"env_config": {"length": 9, "longer": -2}}),
    "model_config": Field(RLlibModelConfig(fcnet_hiddens=[HIDDEN]), has_small_layers, own={"fcnet_hiddens": [HIDDEN]}),
    "normalize_actions": Field(True, exceeds, AS_RECEIVED),
    "num_env_runners": Field(3, lambda runner: runner.num_workers),
    "num_envs_per_env_runner": Field(3, lambda runner: len(runner.env.envs)),
    "num_gpus_per_env_runner": Field(0, devices, changes=False),
    "policies": Field({"p_a", "p_b", "p_c"}, lambda runner: sorted(runner.module.keys())),
    "policies_to_train": Field(["p_b"], trained),
    "policy_mapping_fn": Field(everybody, modules_of_agents),
    "restart_failed_sub_environments": Field(True, survives),
    "rl_module_spec": Field(
        RLlibSpec(model_config=RLlibModelConfig(fcnet_hiddens=[HIDDEN])),
        has_small_layers,
        own=fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [HIDDEN]}),
    ),
    "rollout_fragment_length": Field(7, lengths),
    "seed": Field(None, seeds),
    "framework_str": Field("torch", lambda runner: runner.config.framework_str, changes=False),
    "in_evaluation": Field(True, has_other_seeds),
    "is_multi_agent": Field(None, lambda runner: runner.config.is_multi_agent, changes=False),
    "num_learners": Field(3, fragment, OF_BATCH),
    "total_train_batch_size": Field(
        None, lambda runner: runner.config.total_train_batch_size, OF_BATCH | {"num_learners": 3}, changes=False
    ),
    "train_batch_size_per_learner": Field(6, fragment, {"rollout_fragment_length": "auto"}),
}


def rows() -> Rows:
    for name in config_fields():
        field = callback(name) if name.startswith("callbacks_on") else FIELDS.get(name)
        yield f"{GROUP}: {name}", partial(field.check, name) if field else partial(check_is_there, name)


def check_is_there(name: str) -> None:
    """Raise AssertionError unless it is a field: it then gets a line in `FIELDS`."""
    assert name in {field.name for field in fields(fastmarl.EnvRunnerConfig)}
