"""Known pitfalls of multi-agent samplers: turns, deaths, respawns, late rewards, mixed clocks, odd ticks."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support.compare import env_ts_of, join
from support.scenario_envs import BOTH, CLOCK, MIXED_CLOCKS, RESPAWN, TURNS, Echo, StepCounter, runner_of
from support.scripted import BOX, Step, scripted

import fastmarl
from fastmarl.errors import FinishedAgentError


def _clock(episode: Any) -> list[float]:
    return episode.get_observations()[:, 0].tolist()


@pytest.mark.slow
def test_turns_lose_no_reward_at_any_fragment_length():
    runner = runner_of(TURNS)
    chunks = defaultdict(list)
    for call in range(200):
        for chunk in runner.sample(num_timesteps=(1, 2, 3, 6, 7, 21)[call % 6]):
            chunks[chunk.id_].append(chunk)
    assert len(chunks) == 63, "200 calls are 1323 steps, 63 whole episodes"
    for parts in chunks.values():
        whole = join(parts)
        assert _clock(whole.agent_episodes["a0"]) == [*range(0, 21, 2), 21]
        assert _clock(whole.agent_episodes["a1"]) == [*range(1, 21, 2), 21]
        assert whole.agent_episodes["a0"].get_rewards().tolist() == [*(t - 0.5 for t in range(1, 21, 2)), 21.0]
        first, *rest = whole.agent_episodes["a1"].get_rewards().tolist()
        assert first == 2 - 0.5 - 0.5, "what came before its first observation is on its first transition"
        assert rest == [t - 0.5 for t in range(4, 21, 2)]
    metrics = runner.get_metrics()
    assert metrics["unattributed_reward"] == 0
    assert metrics["agent_episode_returns_mean"] == {"a0": 116.0, "a1": 104.5}


LATE_REWARD = [  # a1 ends at 3; at 6 the episode ends, and both receive 5
    BOTH, *[Step(BOTH, 1)] * 2, Step(BOTH, 1, terminated=["a1"]), *[Step(["a0"], 1)] * 2,
    Step(["a0"], {"a0": 5, "a1": 5}, terminated=True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("late_rewards", "rewards", "unattributed"), [("accumulate", [1, 1, 6], 0), ("drop", [1, 1, 1], 5)]
)
def test_a_reward_after_death(late_rewards, rewards, unattributed):
    runner = runner_of(LATE_REWARD, late_rewards=late_rewards)
    (episode,) = runner.sample(num_episodes=1)
    alive, dead = episode.agent_episodes["a0"], episode.agent_episodes["a1"]
    assert alive.get_rewards().tolist() == [1, 1, 1, 1, 1, 5]
    assert dead.get_rewards().tolist() == rewards
    assert dead.is_terminated and not dead.is_truncated
    assert runner.get_metrics()["unattributed_reward"] == unattributed


def test_a_reward_after_death_does_not_reach_a_returned_chunk():
    runner = runner_of(LATE_REWARD, late_rewards="accumulate")
    (early,) = runner.sample(num_timesteps=4)
    (late,) = runner.sample(num_timesteps=2)
    assert early.agent_episodes["a1"].get_return() == 3
    assert set(late.agent_episodes) == {"a0"}
    assert runner.get_metrics()["unattributed_reward"] == 5


def test_a_reward_after_death_is_an_error_unless_asked_for():
    runner = runner_of(LATE_REWARD)
    with pytest.raises(FinishedAgentError, match=r"env 0, agent 'a1', env step 6.*late_rewards") as caught:
        runner.sample(num_episodes=1)
    assert caught.value.args[:3] == (0, "a1", 6)


def test_advice_on_observations_of_the_dead_has_none_of_them_act():
    alive = [BOTH, *[Step(BOTH, 1)] * 2, Step(BOTH, 1, terminated=["a1"])]
    shown = [*alive, *[Step(BOTH, {"a0": 1, "a1": 0.0})] * 2, Step(BOTH, {"a0": 1, "a1": 0.0}, terminated=True)]
    with pytest.raises(FinishedAgentError, match=r'env step 4: sent the reward 0.0 .*late_rewards="accumulate"'):
        runner_of(shown).sample(num_episodes=1)
    with pytest.raises(FinishedAgentError, match=r"env step 4: sent an observation .*leave it out") as caught:
        runner_of(shown, late_rewards="accumulate").sample(num_episodes=1)
    assert "respawn=" not in str(caught.value), "with it, a1 would act"
    left_out = [*alive, *(Step(["a0"], step.rewards, step.terminated) for step in shown[4:])]
    (episode,) = runner_of(left_out, late_rewards="accumulate").sample(num_episodes=1)
    assert episode.agent_episodes["a1"].get_rewards().tolist() == [1, 1, 1]


def test_a_respawn_begins_a_new_trajectory_in_a_chunk_of_its_own():
    first, second = runner_of(RESPAWN, respawn=True).sample(num_episodes=1)
    assert first.id_ == second.id_
    assert [(c.env_t_started, c.env_t, c.is_done) for c in (first, second)] == [(0, 6, False), (6, 10, True)]
    assert _clock(first.agent_episodes["a0"]) == [0, 1, 2, 3, 4, 5, 6]
    assert _clock(second.agent_episodes["a0"]) == [6, 7, 8, 9, 10]
    assert _clock(first.agent_episodes["a1"]) == [0, 1, 2, 3]
    assert _clock(second.agent_episodes["a1"]) == [6, 7, 8, 9, 10]
    assert [c.agent_episodes["a1"].is_terminated for c in (first, second)] == [True, True]
    assert [c.agent_episodes["a1"].t_started for c in (first, second)] == [0, 0]
    assert first.get_agents_to_act() == first.get_agents_that_stepped() == {"a0", "a1"}, (
        "a1 has ended, and begins again"
    )
    assert fastmarl.MultiAgentEpisode.from_state(first.get_state()).get_agents_to_act() == {"a0", "a1"}
    assert first[2:].get_agents_to_act() == {"a0", "a1"} and first[2:5].get_agents_to_act() == {"a0"}
    for part in (*first.agent_episodes.values(), *second.agent_episodes.values()):
        assert part.get_infos() == [{"t": t} for t in _clock(part)]


def test_a_respawn_after_a_cut_needs_no_chunk_of_its_own():
    runner = runner_of(RESPAWN, respawn=True)
    before, after = [chunk for _ in range(2) for chunk in runner.sample(num_timesteps=5)]
    assert (before.env_t, after.env_t_started) == (5, 5)
    assert _clock(after.agent_episodes["a1"]) == [6, 7, 8, 9, 10]


def test_a_respawn_is_an_error_unless_asked_for():
    with pytest.raises(FinishedAgentError, match=r"env 0, agent 'a1', env step 6.*respawn"):
        runner_of(RESPAWN).sample(num_episodes=1)


@pytest.mark.parametrize("fragment", [1, 2, 3, 5])
def test_a_death_without_an_observation_repeats_the_last_one(fragment):
    runner = runner_of([BOTH, BOTH, BOTH, Step(["a0"], terminated=["a1"]), ["a0"], Step(["a0"], terminated=True)])
    chunks = [chunk for _ in range(6) for chunk in runner.sample(num_timesteps=fragment)]
    whole = join([chunk for chunk in chunks if chunk.id_ == chunks[0].id_])
    dead = whole.agent_episodes["a1"]
    assert _clock(dead) == [0, 1, 2, 2]
    assert env_ts_of(dead) == [0, 1, 2, 3]
    assert dead.is_terminated


@pytest.mark.parametrize("script", [MIXED_CLOCKS, TURNS, RESPAWN], ids=["mixed clocks", "turns", "respawn"])
def test_memory_goes_by_the_agents_own_steps(script):
    runner = runner_of(script, policies={"memory": StepCounter()}, num_envs_per_env_runner=4, respawn=True)
    seen = 0
    for _ in range(60):
        for chunk in runner.sample(num_timesteps=7):
            for agent, part in chunk.agent_episodes.items():
                count = part.get_extra_model_outputs("count").tolist()
                assert count == [[n, n] for n in range(part.t_started, part.t)], (agent, chunk.env_t_started)
                assert part.get_extra_model_outputs("state_in")["h"][:, 0].tolist() == [n for n, _ in count]
                assert part.get_extra_model_outputs("state_out")["h"][:, 0].tolist() == [n + 1 for n, _ in count]
                seen += len(part)
    assert seen >= 400


def test_memory_after_random_steps_is_not_that_of_an_earlier_episode():
    runner = runner_of(CLOCK, policies={"memory": StepCounter()})
    runner.sample(num_timesteps=15)
    runner.sample(num_timesteps=3, random_actions=True, force_reset=True)
    (chunk,) = runner.sample(num_timesteps=2)
    for part in chunk.agent_episodes.values():
        assert part.t_started == 3
        assert part.get_extra_model_outputs("count").tolist() == [[0, 0], [1, 1]]


SOMETIMES_EMPTY = [  # no agent is observed at odd steps
    Step(agents, infos={"a0": {"t": t}, "__common__": {"t": t}}, terminated=t == 4)
    for t, agents in enumerate([["a0"], [], ["a0"], [], ["a0"]])
]


def test_a_step_without_observations_still_steps_the_env():
    echo = Echo()
    runner = runner_of(SOMETIMES_EMPTY, policies={"echo": echo})
    (episode,) = runner.sample(num_episodes=1)
    assert [sorted(actions) for actions in runner.env.envs[0].actions] == [["a0"], [], ["a0"], []]
    assert episode.env_t == 4
    assert _clock(episode.agent_episodes["a0"]) == [0, 2, 4]
    assert 0 not in echo.batch_sizes
    assert episode.get_common_infos() == {t: {"t": t} for t in range(5)}


def test_an_agent_that_never_comes_has_no_key_anywhere():
    runner = runner_of(env=scripted(SOMETIMES_EMPTY, agents=["a0", "never"]))
    (episode,) = runner.sample(num_episodes=1)
    assert set(episode.agent_episodes) == {"a0"}
    metrics = runner.get_metrics()
    for name in ("num_agent_steps_sampled", "agent_episode_returns_mean", "agent_steps"):
        assert set(metrics[name]) == {"a0"}, name


def test_a_policy_without_agents_is_never_called():
    idle = Echo()
    policies = {"busy": Echo(), "idle": idle}
    runner = runner_of(TURNS, policies=policies, policy_mapping_fn=lambda agent_id, episode: "busy")
    runner.sample(num_timesteps=30)
    assert idle.batch_sizes == []
    assert runner.get_metrics()["num_module_steps_sampled"] == {"busy": 30, "idle": 0}


def test_ids_that_read_the_same_are_different_agents_but_share_a_counter():
    step = Step([1, "1"], {1: 1, "1": 2})
    runner = runner_of([[1, "1"], step, step, replace(step, terminated=True)])
    (episode,) = runner.sample(num_episodes=1)
    assert {agent: part.get_return() for agent, part in episode.agent_episodes.items()} == {1: 3.0, "1": 6.0}
    assert runner.get_metrics()["num_agent_steps_sampled"] == {"1": 6}


def test_odd_ids_and_types_of_rewards_and_observations():
    """Rewards of shape (1,), 0-d and of NumPy types; observations in float64 for a float32 space."""
    rewards = {("team", 0): np.array([1.5]), 7: np.array(2), frozenset({1}): np.float32(0.25)}
    script = [Step(dict.fromkeys(rewards, np.full(4, t + 0.1)), rewards, terminated=t == 3) for t in range(4)]
    runner = runner_of(script)
    (episode,) = runner.sample(num_episodes=1)
    returns = {agent: part.get_return() for agent, part in episode.agent_episodes.items()}
    assert returns == {("team", 0): 4.5, 7: 6.0, frozenset({1}): 0.75}
    expected = (np.arange(4) + 0.1).astype(np.float32)
    for part in episode.agent_episodes.values():
        assert part.get_observations().dtype == np.float32
        np.testing.assert_array_equal(part.get_observations()[:, 0], expected)
    assert {type(action) for actions in runner.env.envs[0].actions for action in actions.values()} == {int}


class EverNewAgentsEnv(fastmarl.MultiAgentEnv):
    """One endless episode; in each step ten agents end and ten new ones come."""

    observation_space = BOX
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.n_ids = 20
        return self.seen(range(20)), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        oldest, self.n_ids = self.n_ids - 20, self.n_ids + 10
        ends = {**dict.fromkeys(range(oldest, oldest + 10), True), "__all__": False}
        return self.seen(range(oldest, self.n_ids)), dict.fromkeys(actions, 1.0), ends, {}, {}

    def seen(self, agents: range) -> dict[int, np.ndarray]:
        return dict.fromkeys(agents, np.zeros(BOX.shape, np.float32))


def containers(thing: Any, seen: set[int], path: str = "runner") -> Iterator[tuple[int, str]]:
    """(length, path) of every dict, list, set and deque that hangs on our own objects."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict | list | tuple | set | deque):
        yield len(thing), path
        for i, part in enumerate(list(thing.values()) if isinstance(thing, dict) else list(thing)):
            yield from containers(part, seen, f"{path}[{i}]")
    elif type(thing).__module__.startswith("fastmarl"):
        for name, part in vars(thing).items() if hasattr(thing, "__dict__") else ():
            yield from containers(part, seen, f"{path}.{name}")


@pytest.mark.slow
def test_ever_new_agents_leave_little_behind() -> None:
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: EverNewAgentsEnv(), seed=0))
    for calls in range(1, 7):
        runner.sample(num_timesteps=200)
        if calls % 2:
            runner.get_metrics()
    assert runner.env.envs[0].n_ids > 12_000
    assert max(containers(runner, set())) < (5_000, "")
