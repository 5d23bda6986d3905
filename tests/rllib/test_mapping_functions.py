"""Which mapping functions are known to read no more of their episode than its id and its times."""

import functools
import sys

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from fastmarl.errors import RunningEpisodeError
from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.sampling.mapping_code import reads_times_only


def _helper(episode):
    return episode.agent_ids


class Mapper:
    def by_id(self, agent_id, episode):
        return f"p{hash(episode.id_) % 2}"

    def whole(self, agent_id, episode):
        return _helper(episode)

    def __call__(self, agent_id, episode):
        return "p"


def _rebinds(agent_id, episode, **kwargs):
    time = episode.env_t
    episode = [time]
    return episode.count(1)


def _closes_over(agent_id, episode):
    return (lambda: episode.id_)()


def _looks_around(agent_id, episode):
    return sys._getframe().f_locals["episode"].agent_ids


def _compares(agent_id, episode, **kwargs):
    if episode is None or episode is not None:
        return "p"
    return "q"


ENOUGH = {
    "the agent alone": lambda agent_id, episode: f"p{agent_id}",
    "variable arguments, unread": lambda agent_id, *args, **kwargs: f"p{agent_id}",
    "an underscore": lambda agent_id, _, **kw: f"p{agent_id}",
    "names within names": lambda agent_id, e, **kwargs: "e" + str(agent_id),
    "a constant that is a name": lambda agent_id, *a: agent_id.strip("a"),
    "a keyword's name in a text": lambda agent_id, episode, **kwargs: "kwargs episode",
    "an id if there are steps": lambda agent_id, episode: "q" if episode and hash(episode.id_) % 2 else "p",
    "times": lambda agent_id, episode, **kwargs: f"p{episode.env_t - episode.env_t_started}",
    "a method": Mapper().by_id,
    "comparisons with None": _compares,
}
TOO_MUCH = {
    "more of it": lambda agent_id, episode: episode.agent_ids,
    "handed on": lambda agent_id, episode: _helper(episode),
    "stored": lambda agent_id, episode: [episode],
    "in variable arguments": lambda agent_id, *args: args[0].agent_ids,
    "compared": lambda agent_id, episode: episode == agent_id,
    "a value": lambda agent_id, episode: episode or agent_id,
    "closed over": _closes_over,
    "through frames": _looks_around,
    "through locals": lambda agent_id, episode: locals(),
    "its name taken anew": _rebinds,
    "a method, handed on": Mapper().whole,
    "a callable object": Mapper(),
    "a partial": functools.partial(lambda agent_id, episode: "p"),
    "cached": functools.cache(lambda agent_id, episode: "p"),
    "built in": max,
}


@pytest.mark.parametrize("name", ENOUGH)
def test_id_and_times_are_enough(name):
    assert reads_times_only(ENOUGH[name])


@pytest.mark.parametrize("name", TOO_MUCH)
def test_they_are_not(name):
    assert not reads_times_only(TOO_MUCH[name])


def _peek():
    """Reads the episode of the function that calls this."""
    return len(sys._getframe(1).f_locals["episode"].agent_ids)


@pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
def test_reads_that_the_bytecode_does_not_show_are_errors():
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{_peek()}")
        .env_runners(num_env_runners=0)
    )
    with pytest.raises(RunningEpisodeError, match="reads its episode in a way that its bytecode does not show"):
        MultiAgentEnvRunner(config=config).sample(num_timesteps=2)


@pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
def test_an_episode_can_not_be_read_after_the_function_has_failed():
    """It holds what the function has read, which would be outdated."""
    kept = []

    def fails(agent_id, episode):
        kept.append(episode)
        raise LookupError(len(episode.agent_episodes))

    config = PPOConfig().environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies=["p0"], policy_mapping_fn=fails).env_runners(num_envs_per_env_runner=1)
    with pytest.raises(LookupError):
        MultiAgentEnvRunner(config=config).sample(num_timesteps=3)
    with pytest.raises(RuntimeError, match="can only be read during that call"):
        kept[0].agent_episodes  # noqa: B018
