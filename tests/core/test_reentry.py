"""Calls within calls: a runner's methods in its callbacks, envs, modules, mapping functions, and in other threads."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import Says, Scripted, Step

import fastmarl
from fastmarl.errors import RunnerBusyError

BOX = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
TWO = gym.spaces.Discrete(2)
EXCLUSIVE = {
    "sample": lambda runner: runner.sample(num_timesteps=3),
    "make_env": lambda runner: runner.make_env(),
    "make_module": lambda runner: runner.make_module(),
    "stop": lambda runner: runner.stop(),
    "set_state": lambda runner: runner.set_state(runner.get_state()),
}
CHANGES = {
    "add_module": lambda runner: runner.add_module("new", fastmarl.RLModuleSpec(None, BOX, TWO)),
    "replace_module": lambda runner: runner.add_module("main", fastmarl.RLModuleSpec(None, BOX, TWO), override=True),
    "set_policy_mapping_fn": lambda runner: runner.set_policy_mapping_fn(lambda agent_id, episode: "main"),
}
ALWAYS = {
    "set_weights": lambda runner: runner.set_weights(runner.get_weights(), weights_seq_no=7),
    "get_metrics": lambda runner: runner.get_metrics(),
    "get_state": lambda runner: runner.get_state(),
}
PLACES = (
    "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end", "on_sample_end",
    "reset", "step", "forward", "mapping",
)  # fmt: skip


class Hook:
    """Does something once, at one place, and keeps the error."""

    def __init__(self):
        self.place = self.action = self.runner = self.error = None

    def at(self, place):
        if place == self.place:
            self.place = None
            try:
                self.action(self.runner)
            except RunnerBusyError as error:
                self.error = error


class Counting(Scripted):
    """Observations are (number of the reset, env step); "b" joins after two steps; 5 steps."""

    def __init__(self, hook):
        script = [Step("ab" if t >= 2 else "a", {"a": t}, terminated=t == 5) for t in range(6)]
        see = lambda agent, t: np.float32([len(self.seeds), t])  # noqa: E731
        super().__init__(script, space=BOX, action_space=TWO, see=see)
        self.hook = hook

    def reset(self, **options):
        self.hook.at("reset")
        return super().reset(**options)

    def step(self, actions):
        self.hook.at("step")
        return super().step(actions)


def make_runner(hook):
    def act(obs):
        hook.at("forward")
        return obs[:, 1].long() % 2

    def mapping(agent_id, episode):
        hook.at("mapping")
        return "main"

    def listener(event):
        return lambda **arguments: hook.at(event)

    hook.runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env=lambda context: Counting(hook),
            num_envs_per_env_runner=2,
            policies={"main": Says(BOX, TWO, actions=act)},
            policy_mapping_fn=mapping,
            **{f"callbacks_{place}": listener(place) for place in PLACES if place.startswith("on_")},
        )
    )
    return hook.runner


def steps_of(chunks):
    """(env, reset, first step, last step, sum of rewards) of each chunk, after a look at its observations."""
    found = []
    for chunk in chunks:
        obs = chunk.agent_episodes["a"].get_observations()
        resets, ts = obs[:, 0], obs[:, 1]
        assert (resets == resets[0]).all() and (np.diff(ts) == 1).all()
        found.append((int(resets[0]), int(ts[0]), int(ts[-1]), chunk.agent_episodes["a"].get_return(), chunk.is_done))
    return found


def undisturbed(n_calls):
    runner = make_runner(Hook())
    return [steps_of(runner.sample(num_timesteps=13)) for _ in range(n_calls)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", EXCLUSIVE)
def test_exclusive_methods_are_refused_within_a_call_and_nothing_is_lost(place, method):
    hook = Hook()
    runner = make_runner(hook)
    got = [steps_of(runner.sample(num_timesteps=13))]
    hook.place, hook.action = place, EXCLUSIVE[method]
    got += [steps_of(runner.sample(num_timesteps=13)) for _ in range(2)]
    assert hook.place is None
    with pytest.raises(RunnerBusyError, match=rf"{method}\(\) was called within sample\(\)"):
        raise hook.error
    assert got == undisturbed(3)
    assert runner.get_metrics()["num_env_steps_sampled_lifetime"] == 42
    EXCLUSIVE[method](runner)


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", CHANGES | ALWAYS)
def test_methods_allowed_within_a_call_disturb_nothing(place, method):
    hook = Hook()
    runner = make_runner(hook)
    got = [steps_of(runner.sample(num_timesteps=13))]
    hook.place, hook.action = place, (CHANGES | ALWAYS)[method]
    got += [steps_of(runner.sample(num_timesteps=13)) for _ in range(2)]
    assert hook.place is None and hook.error is None
    assert got == undisturbed(3)


@pytest.mark.parametrize("place", PLACES)
def test_an_uncaught_error_of_a_refused_call_loses_no_finished_episodes(place):
    hook = Hook()
    runner = make_runner(hook)
    want = undisturbed(3)
    assert steps_of(runner.sample(num_timesteps=13)) == want[0]

    def once(_):
        hook.at = original  # else it would catch the error
        runner.sample()

    original = hook.at
    hook.at = lambda at: once(at) if at == place else None
    with pytest.raises(RunnerBusyError):
        runner.sample(num_timesteps=13)
    got = steps_of(runner.sample(num_timesteps=13))
    finished = [chunk for chunk in want[1] if chunk[-1]]
    kept = want[1] if place == "on_sample_end" else finished[: sum(chunk in finished for chunk in got)]
    assert got[: len(kept)] == kept
    assert len(set(got)) == len(got) or len(kept) < len(got)


@pytest.mark.parametrize("method", EXCLUSIVE | CHANGES)
def test_another_thread_is_refused(method):
    hook, errors = Hook(), []
    runner = make_runner(hook)

    def elsewhere(runner):
        def call():
            try:
                (EXCLUSIVE | CHANGES)[method](runner)
            except RunnerBusyError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    hook.place, hook.action = "step", elsewhere
    got = [steps_of(runner.sample(num_timesteps=13)) for _ in range(2)]
    assert got == undisturbed(2)
    with pytest.raises(RunnerBusyError, match=r"while sample\(\) is running in another thread"):
        raise errors[0]


@pytest.mark.parametrize("method", EXCLUSIVE)
def test_the_same_within_make_env(method):
    hook = Hook()
    runner = make_runner(hook)
    runner._listeners.by_event["on_environment_created"] = (lambda **arguments: hook.at("made"),)
    hook.place, hook.action = "made", EXCLUSIVE[method]
    runner.make_env()
    with pytest.raises(RunnerBusyError, match=r"within make_env\(\)"):
        raise hook.error
    assert runner.sample(num_timesteps=3)
