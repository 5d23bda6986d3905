"""Real environments through the runner: its episodes are exactly what they returned, complete and in order."""

import itertools
import os

import numpy as np
import pytest
from support.batched import Batched
from support.compare import join
from support.differences import assert_same
from support.real_envs import KINDS, params, steps_of
from support.real_envs import pytestmark as pytestmark
from support.watched import Watched

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator

ENV_STEPS = "FASTMARL_REAL_STEPS"  # if set, the number of env steps for every kind, even slow ones
FRAGMENTS = (1, 2, 7, 40, 250)  # env steps per call, in a cycle
NUM_ENVS = 2


class Watching:
    """A runner over watched envs of one kind, single or as a batch; agents with equal spaces share a small net."""

    def __init__(self, kind, steps, *, batched=False):
        creator, env_config = KINDS[kind]
        self.envs: list[Watched] = []
        self.steps = int(os.environ.get(ENV_STEPS, steps_of(kind, steps)))
        self.ids = [[] for _ in range(NUM_ENVS)]  # of the episodes, by env

        def make(config):
            self.envs.append(Watched(as_multi_agent_env(env_creator(creator)(env_config))))
            return self.envs[-1]

        def make_batch(config):
            return Batched([make(config) for _ in range(NUM_ENVS)], list(self.policy_of))

        def note(*, episode, env_index, **kwargs):
            self.ids[env_index].append(episode.id_)

        probe = make(None)
        groups = []
        self.policy_of = {}
        for agent, spaces in probe.spaces.items():
            if spaces not in groups:
                groups.append(spaces)
            self.policy_of[agent] = f"p{groups.index(spaces)}"
        self.envs.remove(probe)
        probe.close()
        config = fastmarl.EnvRunnerConfig(
            env=make_batch if batched else make,
            policies=sorted(set(self.policy_of.values())),
            policy_mapping_fn=lambda agent, episode: self.policy_of[agent],
            num_envs_per_env_runner=NUM_ENVS,
            model_config={"fcnet_hiddens": [8]},
            callbacks_on_episode_created=note,
            seed=0,
        )
        self.runner = fastmarl.MultiAgentEnvRunner(config)

    def sample(self, **options):
        """Sample this number of env steps and return all chunks."""
        chunks, fragments = [], itertools.cycle(FRAGMENTS)
        while sum(len(chunk) for chunk in chunks) < self.steps:
            chunks += self.runner.sample(num_timesteps=next(fragments), **options)
        return chunks

    def logs(self):
        """Return the logs of all episodes that were stepped, by episode id."""
        return {
            id_: (env, log)
            for env, ids in zip(self.envs, self.ids, strict=True)
            for id_, log in zip(ids, env.episodes, strict=True)
            if log.env_t
        }


def assert_as_logged(env, log, chunks):
    """The joined chunks of an episode hold what the env has said and got."""
    episode = join(chunks)
    assert (episode.env_t_started, episode.env_t) == (0, log.env_t)
    assert (episode.is_terminated, episode.is_truncated) == (log.terminated, log.truncated)
    stepped = {agent: of_agent for agent, of_agent in log.agents.items() if len(of_agent.observations) > 1}
    assert episode.agent_episodes.keys() == stepped.keys()
    for agent, of_agent in stepped.items():
        part, n = episode.agent_episodes[agent], len(of_agent.observations) - 1
        assert len(part) == n
        assert [env.digest(agent, part.get_observations(i)) for i in range(n + 1)] == of_agent.observations
        assert part.get_rewards().tolist() == of_agent.rewards[:n]
        assert (part.is_terminated, part.is_truncated) == (of_agent.terminated, of_agent.truncated)
        start = getattr(env.spaces[agent][1], "start", None)
        if start is not None:  # of other spaces the env gets another form than the record has
            assert_same((np.asarray(part.get_actions()) + start).tolist(), np.array(of_agent.actions[:n]).tolist())
    hanging = sum(of_agent.rewards[len(of_agent.observations) - 1] for of_agent in log.agents.values())
    total = sum(sum(of_agent.rewards) for of_agent in log.agents.values())
    assert episode.get_return() == pytest.approx(total - hanging)


# Random actions come by another way. From there on all is the same, so fewer steps do, and one env for each kind of
# space and mask.
RANDOM = {"random_actions": True}
RANDOM_KINDS = ("turn based", "multiwalker", "leduc_holdem", "hanabi", "mamujoco")


def with_options(kinds, random_kinds):
    """Parameters of each kind: options of sample(), and for how many steps."""
    found = []
    for param in params(kinds):
        (kind,) = param.values
        found.append(pytest.param(kind, {}, 200, id=f"{kind}-modules", marks=param.marks))
        marks = param.marks if kind in random_kinds else (*param.marks, pytest.mark.exhaustive)
        found.append(pytest.param(kind, RANDOM, 80, id=f"{kind}-random", marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "steps"), with_options(KINDS, RANDOM_KINDS))
def test_episodes_match_the_data_of_the_env(kind, options, steps):
    assert_episodes_are_what_was_said(Watching(kind, steps), options)


BATCHED = ["simple_tag", "multiwalker", "battle", "connect_four", "hanabi", "rware"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "steps"), with_options(BATCHED, ("simple_tag", "hanabi")))
def test_episodes_of_a_batch_match_the_data_of_its_envs(kind, options, steps):
    assert_episodes_are_what_was_said(Watching(kind, steps, batched=True), options)


def assert_episodes_are_what_was_said(watching, options):
    """Compared after all of it was sampled, so what was returned has not changed since."""
    chunks = watching.sample(**options)
    logs = watching.logs()
    of_episode = {id_: [chunk for chunk in chunks if chunk.id_ == id_] for id_ in logs}
    assert sum(map(len, of_episode.values())) == len(chunks)
    for id_, (env, log) in logs.items():
        assert_as_logged(env, log, of_episode[id_])
    metrics = watching.runner.get_metrics()
    assert metrics["num_env_steps_sampled_lifetime"] == sum(log.env_t for _, log in logs.values())
    n_actions = sum(len(of_agent.actions) for _, log in logs.values() for of_agent in log.agents.values())
    assert sum(metrics["num_agent_steps_sampled_lifetime"].values()) == n_actions
    watching.runner.stop()
