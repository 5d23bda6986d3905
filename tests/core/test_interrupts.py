"""Ctrl-C at every line of the package that runs in `sample()`: what is returned afterwards is what the envs have sent.

By default some lines are tried; `make test-interrupts` tries all of them, and a second one after every third.
"""

import dis
import random
from dataclasses import replace

import gymnasium as gym
import pytest
from support.compare import SideBySide, assert_same_chunk, by_first_serial, first_serial, outline
from support.interrupts import ALL_LINES, Interruption, in_own_thread, interrupt_lines, lines_of
from support.runner import ReferenceRunner
from support.sigints import make_runner
from support.stamped_env import StampedEnv, Witness
from support.worlds import Call, World, make_world

import fastmarl
from fastmarl.errors import RunnerStoppedError
from fastmarl.modules import RLModuleSpec

# An interrupt that comes while Python finalises an object is dropped, with this warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
N_LINES = 3
CALLS = (Call(num_timesteps=9), Call(num_timesteps=30), Call(num_timesteps=12), Call(num_timesteps=12))
KINDS = {
    "plain": {},
    "episodes": {"calls": (CALLS[0], Call(num_episodes=4), *CALLS[2:])},
    "in turn": {"num_splits": 2},
    "batch": {"batched": True},
    "batches in turn": {"batched": True, "num_splits": 2},
}


def worlds(kind: str) -> list[World]:
    """Return two worlds of this kind: one with respawning agents, and one without."""
    options = {name: value for name, value in KINDS[kind].items() if name != "batched"}
    found = {}
    for seed in range(10_000):
        world = make_world(random.Random(seed))
        if world.num_envs == 3 and len(world.obs_kinds) == 2 and world.keeps_everything:
            long_enough = max(len(script) for scripts in world.scripts for script in scripts) > 8
            if long_enough and world.count_steps_by == "env_steps" and (world.declared or "batched" not in KINDS[kind]):
                found.setdefault(world.respawn, replace(world, **{"calls": CALLS, **options}))
        if len(found) == 2:
            return list(found.values())
    raise AssertionError


def begin(world: World, kind: str) -> SideBySide:
    both = SideBySide(world, batched=KINDS[kind].get("batched", False))
    compare(world, both.sample(world.calls[0]))
    return both


def compare(world: World, pairs: list) -> None:
    for chunk, expected in pairs:
        assert_same_chunk(world, chunk, expected)


def try_line(world: World, kind: str, interruption: Interruption) -> str:
    """Interrupt the second call there, and look at the next two; returns how the runner went on."""
    both = begin(world, kind)
    runner, oracle, envs = both.runner, both.oracle, both.envs
    n_made = n_steps(envs)
    returned = interruption.run(lambda: runner.sample(**world.calls[1].kwargs))
    want = oracle.sample(world.calls[1]) if n_steps(envs) > n_made else []
    if returned is not None:
        match(world, returned, want)
        want = []
    before = [env.resets for env in envs]
    running = [env for env in envs if not env.over]
    got = runner.sample(**world.calls[2].kwargs)
    is_new = not running or any((env.index, before[env.index] + 1, 0) in env.actions for env in running)
    if is_new:
        oracle = ReferenceRunner(world, batched=oracle.batched)
        oracle.resets = before
    new = oracle.sample(world.calls[2])
    n_kept = len(got) - len(new)
    finished = {chunk.id_ for chunk in want if chunk.is_done}
    of_finished = [chunk for chunk in want if chunk.id_ in finished]
    kept = want if n_kept == len(want) else of_finished[:n_kept]
    match(world, got, kept + new)
    match(world, runner.sample(**world.calls[3].kwargs), oracle.sample(world.calls[3]))
    check_counts(runner.get_metrics(), envs)
    runner.stop()
    return "begins again" if is_new else "goes on"


def match(world: World, got: list, want: list) -> None:
    if world.respawn:
        got = by_first_serial(got, first_serial)
        want = by_first_serial(want, lambda chunk: chunk.first_serial)
    assert [outline(chunk)[:4] for chunk in got] == [
        (c.env_t_started, c.env_t, c.terminated, c.truncated) for c in want
    ]
    compare(world, list(zip(got, want, strict=True)))


def n_steps(envs: list) -> int:
    return sum(len(env.actions) for env in envs)


def check_counts(metrics: dict, envs: list) -> None:
    assert metrics["num_env_steps_sampled_lifetime"] <= n_steps(envs)
    assert metrics["num_episodes_lifetime"] <= sum(env.resets + 1 for env in envs)


def test_no_signal_is_handled_while_the_caller_gets_the_episodes():
    names = [(each.opname, each.argval) for each in dis.get_instructions(fastmarl.MultiAgentEnvRunner.sample)]
    first = names.index(("LOAD_ATTR", "unreturned"))
    assert not [name for name, _ in names[first:] if name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))]


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True], ids=("once", "twice"))
@pytest.mark.parametrize("kind", KINDS)
@in_own_thread
def test_the_runner_samples_on(kind, twice, rng):
    for world in worlds(kind):
        both = begin(world, kind)
        lines = lines_of(lambda: both.runner.sample(**world.calls[1].kwargs))  # noqa: B023
        both.runner.stop()
        outcomes = set()
        interrupt_lines(
            lambda interruption: outcomes.add(try_line(world, kind, interruption)),  # noqa: B023
            lines,
            rng,
            n_lines=N_LINES,
            twice=twice,
        )
        if ALL_LINES:
            assert outcomes == {"begins again", "goes on"}


WORKERS = {
    "workers": {},
    "workers in turn": {"worker_num_splits": 2, "env_config": {"long": 3}},
    "workers that fail": {"restart_failed_sub_environments": True, "env_config": {"crash": 60}, "max_restarts": 9},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
@in_own_thread
def test_the_runner_samples_on_with_worker_processes(kind, rng):
    """One runner is interrupted again and again."""
    runner, witness = make_runner(WORKERS[kind]), Witness()

    def try_line(interruption: Interruption) -> None:
        witness.check(runner.sample(num_timesteps=20), interrupted=True)
        witness.check(interruption.run(lambda: runner.sample(num_timesteps=60)) or [], interrupted=False)
        for call in range(2):
            witness.check(runner.sample(num_timesteps=40), interrupted=call == 0)

    lines = lines_of(lambda: runner.sample(num_timesteps=60))
    for twice in (False, True):
        # Which lines run depends on which worker is ready first.
        interrupt_lines(try_line, lines, rng, n_lines=N_LINES, twice=twice, may_miss=True)
    runner.stop()


METHODS = {
    "make_env": lambda runner: runner.make_env(),
    "make_module": lambda runner: runner.make_module(),
    "set_state": lambda runner: runner.set_state(runner.get_state()),
    "add_module": lambda runner: runner.add_module("new", spec_of(runner), new_agent_to_module_mapping_fn=to_new),
    "replace_module": lambda runner: runner.add_module("main", spec_of(runner), override=True),
    "remove_module": lambda runner: runner.remove_module("other", new_agent_to_module_mapping_fn=to_main),
}


def spec_of(runner):
    space = runner.get_spaces()["main"][0]
    return RLModuleSpec(None, space, gym.spaces.Discrete(1000), model_config={"fcnet_hiddens": [4]})


def to_main(agent_id, episode):
    return "main"


def to_new(agent_id, episode):
    return "new" if agent_id.endswith("1") else "main"


def to_other(agent_id, episode):
    return "other" if agent_id.endswith("1") else "main"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@in_own_thread
def test_other_methods_too(method, rng):
    def make() -> tuple[fastmarl.MultiAgentEnvRunner, Witness]:
        options = {"policies": {"main", "other"}, "policy_mapping_fn": to_other, "keep_float64": True}
        options["model_config"] = {"fcnet_hiddens": [4]}
        options["env_config"] = {"supports_checkpoint": True}
        runner = fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(env=StampedEnv, num_envs_per_env_runner=2, **options, seed=0)
        )
        witness = Witness()
        witness.check(runner.sample(num_timesteps=30), interrupted=False)
        return runner, witness

    def try_line(interruption: Interruption) -> None:
        runner, witness = make()
        interruption.run(lambda: METHODS[method](runner))
        witness.check(sample_on(runner), interrupted=True)
        witness.check(runner.sample(num_timesteps=40), interrupted=False)
        assert set(runner.module) == set(runner.config.module_specs) == set(runner.inference_backends)

    runner, _ = make()
    interrupt_lines(try_line, lines_of(lambda: METHODS[method](runner)), rng, n_lines=N_LINES)


def sample_on(runner: fastmarl.MultiAgentEnvRunner) -> list:
    try:
        return runner.sample(num_timesteps=40)
    except RunnerStoppedError as error:
        if "make_env() failed" not in str(error):
            raise
        runner.make_env()
        return runner.sample(num_timesteps=40)
