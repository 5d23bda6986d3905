"""Members of Ray 2.40 to 2.47 that 2.60 does not have, as read from their source; run on the standalone face."""

from collections.abc import Callable
from typing import Any

import numpy as np

import fastmarl
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode
from support.api_tables import Rows, plain
from support.rllib_api.calls import by_agent, make, make_open
from support.rllib_api.pairs import MAKERS

GROUP = "Ray 2.40 to 2.47"


def rows() -> Rows:
    for name, check in OLDER.items():
        yield f"{GROUP}: {name}", check


def check_finalize(cls: Any) -> None:
    episode = make(cls)
    assert episode.finalize() is episode and episode.is_finalized
    observations = episode.get_observations()
    assert isinstance(observations["a"] if isinstance(observations, dict) else observations, np.ndarray)


def check_dropping() -> None:
    """An agent without a step goes."""
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations=by_agent(np.zeros(2)))
    episode.add_env_step({"a": np.ones(2)}, by_agent(0), {"a": 1.0})
    assert set(episode.agent_episodes) == {"a", "b"}
    assert set(episode.finalize(drop_zero_len_single_agent_episodes=True).agent_episodes) == {"a"}


def check_cut(cls: Any) -> None:
    """A chunk that is cut is finalized, and the next one looks back to it."""
    episode = make_open(cls)
    following = episode.cut(len_lookback_buffer=2)
    assert len(episode.finalize()) == 4 and len(following) == 0
    indices = {"indices": slice(-2, 0), "neg_index_as_lookback": True}
    assert plain(following.get_rewards(**indices)) == plain(episode.get_rewards(slice(-2, None)))


def check_temporary_data(cls: Any) -> None:
    episode = make(cls)
    for data in (1, 2):
        episode.add_temporary_timestep_data("x", data)
    assert episode.get_temporary_timestep_data(key="x") == [1, 2]
    try:
        episode.get_temporary_timestep_data("y")
    except KeyError:
        return
    raise AssertionError("no KeyError")


def check_trial_id() -> None:
    runner = MAKERS["ours"]()
    other = fastmarl.MultiAgentEnvRunner(runner.config, tune_trial_id="trial")
    assert (runner.tune_trial_id, other.tune_trial_id) == (None, "trial")
    for each in (runner, other):
        each.stop()


def check_mapping_in_the_state() -> None:
    runner = MAKERS["ours"]()
    runner.stop()
    assert "agent_to_module_mapping_fn" in runner.get_state()


def check_callback() -> None:
    """Its arguments are those of that time: `prev_episode_chunks` came with 2.45."""
    ends = []

    class Callbacks:
        def on_episode_end(self, *, episode: Any, env_runner: Any, metrics_logger: Any, env: Any, env_index: int,
                           rl_module: Any, **kwargs: Any) -> None:  # fmt: skip
            ends.append((len(episode), env_index))

    runner = MAKERS["ours"](callbacks_class=Callbacks)
    runner.sample(num_timesteps=6)
    runner.stop()
    assert ends == [(5, 0)]


OLDER: dict[str, Callable[[], None]] = {
    "`MultiAgentEpisode.finalize()`, to 2.45": lambda: check_finalize(MultiAgentEpisode),
    "`MultiAgentEpisode.finalize(drop_zero_len_single_agent_episodes)`, 2.40": check_dropping,
    "`MultiAgentEpisode.is_finalized`, to 2.45": lambda: check_finalize(MultiAgentEpisode),
    "`MultiAgentEpisode.cut(len_lookback_buffer)`": lambda: check_cut(MultiAgentEpisode),
    "`MultiAgentEpisode.add_temporary_timestep_data(key, data)`, to 2.45": lambda: check_temporary_data(
        MultiAgentEpisode
    ),
    "`MultiAgentEpisode.get_temporary_timestep_data(key)`, to 2.45": lambda: check_temporary_data(MultiAgentEpisode),
    "`SingleAgentEpisode.finalize()`, to 2.45": lambda: check_finalize(SingleAgentEpisode),
    "`SingleAgentEpisode.is_finalized`, to 2.45": lambda: check_finalize(SingleAgentEpisode),
    "`SingleAgentEpisode.cut(len_lookback_buffer)`": lambda: check_cut(SingleAgentEpisode),
    "`SingleAgentEpisode.add_temporary_timestep_data(key, data)`, to 2.45": lambda: check_temporary_data(
        SingleAgentEpisode
    ),
    "`SingleAgentEpisode.get_temporary_timestep_data(key)`, to 2.45": lambda: check_temporary_data(SingleAgentEpisode),
    "`MultiAgentEnvRunner.tune_trial_id`": check_trial_id,
    "`agent_to_module_mapping_fn` in the state, to 2.42": check_mapping_in_the_state,
    "`on_episode_end()` without `prev_episode_chunks`, to 2.44": check_callback,
}
