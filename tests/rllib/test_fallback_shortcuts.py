"""Shortcuts of our episodes while RLlib's loop records them, compared with the long way."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from rllib.differential.cases import CALLS, DEATHS, LATE, TURNS, WAITING, WILD, case, world
from rllib.differential.known import CorrectedLoop
from rllib.differential.runs import play

from fastmarl.rllib.episodes.extras import completed
from fastmarl.rllib.episodes.steps import is_consistent


class AsksTwice(CorrectedLoop):
    """Compares the answers of every episode in every env step."""

    asked = 0

    def _increase_sampled_metrics(self, num_steps: int, next_obs: dict, episode: Any) -> int:
        observed = list(episode.get_observations(-1))
        assert list(episode.get_agents_that_stepped()) == list(set(observed))
        to_act = {agent for agent in observed if not episode.agent_episodes[agent].is_done}
        assert list(episode.get_agents_to_act()) == list(to_act)
        AsksTwice.asked += 1
        return super()._increase_sampled_metrics(num_steps, next_obs, episode)


RULES = {"late": LATE, "waiting": WAITING, "turns": TURNS, "deaths": DEATHS, "wild": WILD}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fixes", [(), ("14",)])
@pytest.mark.parametrize("lookback", [1, 3])
@pytest.mark.parametrize("rules", RULES)
def test_shortcuts_give_the_same_observed_agents(rules: str, lookback: int, fixes: tuple[str, ...]) -> None:
    AsksTwice.asked = 0
    chosen = case(world(5, **{"max_steps": 15, **RULES[rules]}), CALLS, lookback=lookback, expects_fast=False)
    run = play(chosen, AsksTwice.options(fixes=fixes) if fixes else AsksTwice)
    if run.error is not None:
        raise run.error
    assert AsksTwice.asked > 50


def make_agent_episode() -> SingleAgentEpisode:
    """Make an agent episode of two steps, with an output."""
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(2))
    for _ in range(2):
        episode.add_env_step(np.ones(2), 1, 0.5, {}, extra_model_outputs={"logp": -1.0})
    return episode


SPOILT: dict[str, Callable[[SingleAgentEpisode], Any]] = {
    "nothing": lambda episode: None,
    "an observation more": lambda episode: episode.observations.append(np.ones(2)),
    "an info less": lambda episode: episode.infos.pop(),
    "an action more": lambda episode: episode.actions.append(1),
    "a reward less": lambda episode: episode.rewards.pop(),
    "an output less": lambda episode: episode.extra_model_outputs["logp"].pop(),
    "lookback of one column": lambda episode: setattr(episode.actions, "lookback", 1),
}


@pytest.mark.parametrize("name", SPOILT)
def test_columns_go_together_where_rllib_says_so(name: str) -> None:
    episode = make_agent_episode()
    SPOILT[name](episode)
    if is_consistent(episode):
        episode.validate()
    else:
        with pytest.raises(AssertionError):
            episode.validate()


def test_arrays_and_new_episodes_are_left_to_rllib() -> None:
    assert not is_consistent(make_agent_episode().to_numpy())
    assert not is_consistent(SingleAgentEpisode())


def test_outputs_of_more_axes_are_seen() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(2))
    episode.add_env_step(np.ones(2), 1, 0.5, {}, extra_model_outputs={"logp": np.ones(2)})
    alike = np.full(2, 3.0)
    assert completed(episode, {"logp": alike})["logp"] is alike
    np.testing.assert_array_equal(completed(episode, {"logp": np.ones((2, 3))})["logp"], [3.0, 3.0])
