"""Chunks that are changed after they were sampled: get_metrics() reports what they are then, as RLlib's does."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from support.exhaustive import further
from support.rllib_walk import RLlibClock

from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
REPORTED = ("episode_return_mean", "episode_len_mean", "agent_episode_returns_mean", "module_episode_returns_mean",
            "agent_steps", "episode_return_max", "episode_len_min")  # fmt: skip


class Trio(RLlibClock):
    """Three agents; an episode has 6 steps."""

    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    length = 6

    def pays(self, t: int) -> dict:
        return {"a": 1.0, "b": 0.1, "c": 0.3}


def module_of(agent: str, *_: Any, **__: Any) -> str:
    return "p" if agent == "a" else "q"


def make_runner(runner_class: type, **callbacks: Any) -> Any:
    config = (
        PPOConfig()
        .environment(Trio)
        .multi_agent(policies=["p", "q"], policy_mapping_fn=module_of)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .callbacks(**callbacks)
        .debugging(seed=1)
    )
    return runner_class(config=config)


def report(runner: Any) -> dict[str, Any]:
    """Return the numbers of the episodes in the metrics; nothing where there are none."""
    metrics = runner.get_metrics()
    return {
        name: {key: value.peek() for key, value in metrics[name].items()}
        if isinstance(metrics[name], dict)
        else metrics[name].peek()
        for name in REPORTED
        if name in metrics
    }


def scale(part: Any) -> None:
    part.set_rewards(new_data=np.asarray(part.get_rewards()) * 10)


def of_agents(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change_all(episode: Any) -> None:
        for part in episode.agent_episodes.values():
            change(part)

    return change_all


CHANGES: dict[str, Callable[[Any], Any]] = {
    "rewards": of_agents(scale),
    "rewards in place": of_agents(lambda part: part.rewards.data.__imul__(0.7)),
    "rewards of another dtype": of_agents(lambda part: setattr(part.rewards, "data", part.rewards.data.astype("f4"))),
    "rewards of ints": of_agents(lambda part: setattr(part.rewards, "data", np.arange(len(part.rewards.data)))),
    "rewards of minus zero": of_agents(lambda part: part.rewards.data.fill(-0.0)),
    "rewards in a list": of_agents(lambda part: setattr(part, "rewards", copy.copy(part.rewards))),
    "length": lambda episode: setattr(episode, "env_t", episode.env_t + 2),
    "start": lambda episode: setattr(episode, "env_t_started", episode.env_t_started - 1),
    "lengths of agents": of_agents(lambda part: setattr(part, "t", part.t + 3)),
    "no agent": lambda episode: episode.agent_episodes.clear(),
    "an agent less": lambda episode: episode.agent_episodes.pop("b"),
    "other agents": lambda episode: setattr(episode, "agent_episodes", dict([*episode.agent_episodes.items()][:1])),
    "module": of_agents(lambda part: setattr(part, "module_id", "r")),
    "name of an agent": of_agents(lambda part: setattr(part, "agent_id", f"{part.agent_id} 2")),
    "nothing that counts": lambda episode: episode.custom_data.update(note=1),
}


def changed_at_the_end_of_sample(runner_class: type, change: Callable[[Any], Any]) -> list[Any]:
    runner = make_runner(runner_class, on_sample_end=lambda *, samples, **kwargs: [*map(change, samples)])
    reports = []
    for n in (8, 8, 30, 8):
        runner.sample(num_timesteps=n)
        reports.append(report(runner))
    return reports


def changed_by_a_subclass(runner_class: type, change: Callable[[Any], Any]) -> list[Any]:
    class Changing(runner_class):  # type: ignore[misc,valid-type]
        def sample(self, **arguments: Any) -> list[Any]:
            episodes = []
            for n in (5, 9, 2):
                episodes += super().sample(num_timesteps=n)
            for episode in episodes:
                change(episode)
            return episodes

    runner = make_runner(Changing)
    return [(runner.sample() and None, report(runner)) for _ in range(2)]


def changed_by_the_user(runner_class: type, change: Callable[[Any], Any]) -> list[Any]:
    """Later than the calls and reports that follow, while episodes go on."""
    runner = make_runner(runner_class)
    early = runner.sample(num_timesteps=8)
    reports = [report(runner)]
    later = runner.sample(num_timesteps=4)
    for episode in (*early, *later):
        change(episode)
    del early, later, episode
    runner.sample(num_timesteps=1)
    reports.append(report(runner))
    for episode in runner.sample(num_episodes=3):
        change(episode)
    return [*reports, report(runner)]


def changed_at_its_end(runner_class: type, change: Callable[[Any], Any]) -> list[Any]:
    """The earlier chunks of the episode, which are in no report yet."""
    runner = make_runner(
        runner_class, on_episode_end=lambda *, prev_episode_chunks, **kwargs: [*map(change, prev_episode_chunks)]
    )
    return [(runner.sample(num_timesteps=4) and None, report(runner)) for _ in range(6)]


CASES = [*product((changed_by_a_subclass, changed_by_the_user, changed_at_its_end), CHANGES)]
FEW = {"rewards", "length", "an agent less"}


@pytest.mark.parametrize(
    ("where", "change"),
    [
        *((changed_at_the_end_of_sample, change) for change in CHANGES),
        *(each for each in CASES if each[1] in FEW),
        *further(each for each in CASES if each[1] not in FEW),
    ],
)
def test_changes_count(where: Callable[[type, Any], list[Any]], change: str) -> None:
    theirs, ours = (where(runner_class, CHANGES[change]) for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner))
    assert repr(ours) == repr(theirs)
    assert any(name in repr(theirs) for name in REPORTED)


def test_copies_do_not_count() -> None:
    runner = make_runner(MultiAgentEnvRunner)
    for episode in runner.sample(num_timesteps=12):
        for built in (False, True):
            if built:
                of_agents(scale)(episode)
            for copied in (copy.copy(episode), copy.deepcopy(episode), pickle.loads(pickle.dumps(episode))):
                copied.agent_episodes = {}
        of_agents(lambda part: part.rewards.data.__imul__(0.1))(episode)
    del episode, copied
    assert report(runner)["agent_episode_returns_mean"]["a"] == pytest.approx(6)


def test_26_steps_that_learners_append_do_not_count() -> None:
    runner = make_runner(MultiAgentEnvRunner)
    for _ in range(4):
        episodes = runner.sample(num_timesteps=8)
        of_agents(scale)(episodes[0])
        AddOneTsToEpisodesAndTruncate()(rl_module=None, batch={}, episodes=episodes, shared_data={})
    assert report(runner)["agent_steps"] == {"a": 6, "b": 6, "c": 6}


def test_the_runner_keeps_no_chunk_alive() -> None:
    """Chunks that were changed neither."""
    runner, chunks = make_runner(MultiAgentEnvRunner), []
    for i in range(3):
        for episode in runner.sample(num_timesteps=8):
            if i == 1:
                of_agents(scale)(episode)
            chunks.append(weakref.ref(episode))
    del episode
    gc.collect()
    assert len(chunks) > 6 and not any(chunk() for chunk in chunks)
    assert report(runner)["episode_len_mean"] == 6
