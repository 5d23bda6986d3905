"""Ctrl-C at every line of the package that runs in the drop-in's `sample()`, and calls within calls.

By default some lines are tried; `make test-interrupts` tries all of them, and a second one after every third.
"""

from functools import partial
from itertools import count

import numpy as np
import pytest
import ray.rllib.env.multi_agent_env_runner as rllib_file
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from support.interrupts import in_own_thread, interrupt_lines, interrupted, lines_of
from support.numbered_env import ENDS, HOOKS, JOINS, NumberedEnv, reward_of

from fastmarl.errors import RunnerBusyError, UserExitError
from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

N_LINES = 3


def make_config():
    return (
        PPOConfig()
        .environment(NumberedEnv, disable_env_checking=True)
        .multi_agent(policies=["p", "q"], policy_mapping_fn=mapping)
        .env_runners(num_envs_per_env_runner=3)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
        .debugging(seed=3)
    )


def make_runner(sampler):
    NumberedEnv.made = []
    runner = MultiAgentEnvRunner.options(sampler=sampler)(config=make_config(), worker_index=1)
    return runner, NumberedEnv.made[-3:]


def mapping(agent_id, *args, **kwargs):
    HOOKS.get("mapping", lambda: None)()
    return "q" if agent_id == "b" else "p"


def check(episodes, envs, seen, *, lost=False):
    """Check that each chunk has the data that its env sent and got; `seen`: (env, reset) -> end of its last chunk.

    Args:
        lost: true if earlier chunks may be missing.
    """
    numbers = [env.number for env in envs]
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            obs = part.get_observations(slice(-part.observations.lookback or 0, None), neg_index_as_lookback=True)
            env, reset = envs[numbers.index(int(obs[0, 0]))], int(obs[0, 1])
            ts = obs[:, 2].astype(int)
            assert (obs[:, :2] == obs[0, :2]).all() and (obs[:, 3] == ord(agent)).all()
            assert (np.diff(ts) == 1).all() and ts[-1] <= env.length(reset)
            assert part.module_id == mapping(agent)
            n, lookback = len(part), part.observations.lookback
            assert ts[lookback] == max(episode.env_t_started, JOINS[agent])
            rewards = [reward_of(reset, t, agent) for t in ts[lookback + 1 :]]
            assert part.get_rewards().tolist() == rewards
            assert part.get_actions().tolist() == [env.received[reset, t, agent] for t in ts[lookback : lookback + n]]
            ended = ts[-1] in (env.length(reset), ENDS[agent])
            assert part.is_terminated == ended and not part.is_truncated
        assert episode.is_terminated == (episode.env_t == env.length(reset))
        begin = episode.env_t_started if lost else 0
        at, id_ = seen.setdefault((env.number, reset), (begin, episode.id_))
        assert (episode.env_t_started, episode.id_) == (at, id_) and episode.env_t > at
        seen[env.number, reset] = episode.env_t, id_


CALLS = {"steps": {"num_timesteps": 31}, "episodes": {"num_episodes": 4}}


def try_line(sampler, call, interruption):
    """Interrupt the second call there, and look at the next two."""
    runner, envs = make_runner(sampler)
    seen = {}
    check(runner.sample(num_timesteps=10), envs, seen)
    episodes = interruption.run(lambda: runner.sample(**CALLS[call]))
    lost = interruption.line.text == "return episodes"  # that are the caller's by then
    if lost:
        seen.clear()
    check(episodes or [], envs, seen)
    for nth in range(2):
        episodes = runner.sample(num_timesteps=20)
        check(episodes, envs, seen, lost=lost and nth == 0)
        assert sum(map(len, episodes)) >= 20
    assert runner.is_accelerated
    metrics = runner.get_metrics()
    assert metrics["num_env_steps_sampled_lifetime"].peek() <= sum(env.resets * 11 + 11 for env in envs)
    runner.stop()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("twice", [False, True], ids=("once", "twice"))
@pytest.mark.parametrize(("sampler", "call"), [("exact", "steps"), ("fast", "steps"), ("exact", "episodes")])
@in_own_thread
def test_the_runner_samples_on(sampler, call, twice, rng):
    runner, _ = make_runner(sampler)
    runner.sample(num_timesteps=10)
    lines = lines_of(lambda: runner.sample(**CALLS[call]))
    runner.stop()
    interrupt_lines(partial(try_line, sampler, call), lines, rng, n_lines=N_LINES, twice=twice)


@pytest.mark.slow
@in_own_thread
def test_an_interrupt_of_rllibs_part_of_sample_loses_nothing():
    """At every line of it, before and after `_sample()`."""
    for at in count():
        runner, envs = make_runner("exact")
        seen = {}
        check(runner.sample(num_timesteps=10), envs, seen)
        is_interrupted = interrupted(lambda: runner.sample(num_timesteps=31), file=rllib_file.__file__, at=at)  # noqa: B023
        if not is_interrupted:
            break
        for _ in range(2):
            check(runner.sample(num_timesteps=20), envs, seen)
    assert at > 20


class FailsOnce(RLlibCallback):
    """Raises what `HOOKS` says, after it has seen the samples."""

    def on_sample_end(self, *, samples, **kwargs):
        if error := HOOKS.pop("on_sample_end", None):
            raise error


def callbacks_runner(callbacks, runner_class=MultiAgentEnvRunner):
    NumberedEnv.made = []
    config = make_config().callbacks(callbacks)
    return runner_class(config=config, worker_index=1), NumberedEnv.made[-3:]


class ReadsRunner(FailsOnce):
    """Only RLlib's own loop has what it reads."""

    def on_episode_step(self, *, env_runner, **kwargs):
        assert env_runner._ongoing_episodes


@pytest.mark.parametrize("callbacks", [FailsOnce, ReadsRunner])
@in_own_thread
def test_an_interrupt_of_on_sample_end_loses_nothing(callbacks):
    runner, envs = callbacks_runner(callbacks)
    seen = {}
    check(runner.sample(num_timesteps=10), envs, seen)
    assert runner.is_accelerated == (callbacks is FailsOnce)
    for _ in range(2):
        HOOKS["on_sample_end"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            runner.sample(num_timesteps=31)
    episodes = runner.sample(num_timesteps=20)
    assert sum(map(len, episodes)) >= 82
    check(episodes, envs, seen)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_of_on_sample_end_drops_its_episodes_as_in_rllib(error):
    """So that episodes for which it fails do not come again and again."""
    outlines = []
    for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner):
        runner, _ = callbacks_runner(FailsOnce, runner_class)
        HOOKS["on_sample_end"] = error("these")
        with pytest.raises((error, UserExitError)):
            runner.sample(num_timesteps=31)
        outlines.append([(each.env_t_started, each.env_t) for each in runner.sample(num_timesteps=20)])
    assert outlines[0] == outlines[1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("place", ["step", "mapping"])
@pytest.mark.parametrize("method", ["sample", "make_env", "make_module", "stop"])
@in_own_thread
def test_exclusive_methods_are_refused_within_a_call_and_nothing_is_lost(place, method):
    runner, envs = make_runner("exact")
    seen, errors = {}, []

    def within():
        HOOKS.clear()
        with pytest.raises(RunnerBusyError, match=rf"{method}\(\) was called within sample\(\)") as caught:
            getattr(runner, method)()
        errors.append(caught.value)

    check(runner.sample(num_timesteps=10), envs, seen)
    HOOKS[place] = within
    for _ in range(2):
        check(runner.sample(num_timesteps=20), envs, seen)
    assert len(errors) == 1
    getattr(runner, method)()
