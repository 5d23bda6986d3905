"""Configs that are typical of public projects: equal to RLlib's class, and accelerated."""

from collections import Counter

import pytest
from rllib.differential.known import unexpected
from rllib.differential.runs import play
from rllib.typical.configs import CONFIGS
from support.exhaustive import params

from fastmarl.rllib import MultiAgentEnvRunner

MOST_LINES = 20
MOST_SLOW = 2
SHARES = {"plain": 13, "callbacks": 8, "flattened": 2, "mapping": 1}


# They reach each line and branch of fastmarl/rllib that all of them reach.
KEPT = (
    *("agents_in_a_cycle", "success_in_infos", "flattened_numbers", "win_rate", "action_masks", "mapped_by_crowd"),
    *("trajectories", "flattened_dicts", "pictures", "against_a_heuristic", "satellites", "recurrent"),
    *("each_its_own_policy", "parameter_sharing", "returns_by_species"),
)


@pytest.mark.parametrize("name", params(CONFIGS, KEPT))
def test_equal(name: str) -> None:
    config = CONFIGS[name]
    want, got = play(config), play(config, MultiAgentEnvRunner)
    if want.error or got.error:
        raise AssertionError(f"RLlib: {want.error!r}, fastmarl: {got.error!r}") from (want.error or got.error)
    lines = unexpected(config, want, got)
    if config.draws_policies:  # asking for agents that are not there draws once more
        lines = [line for line in lines if "module_for(" not in line and "mapping function[" not in line]
    assert not lines, "\n".join(lines[:MOST_LINES])
    assert any(episode.is_done for episode in want.episodes), "no episode has ended"
    assert any(not episode.is_done for episode in want.episodes) or config.drops_episodes, "no episode goes on"
    assert [*got.slow_path_reasons] == ([config.slow_path_reason] if config.slow_path_reason else [])
    assert got.is_accelerated == (config.slow_path_reason is None)


def test_shares_are_those_of_the_projects() -> None:
    assert Counter(config.kind for config in CONFIGS.values()) == SHARES
    assert all(config.source for config in CONFIGS.values())


def test_nearly_all_are_accelerated() -> None:
    """`test_equal` proves the reasons that are written down."""
    slow = [name for name, config in CONFIGS.items() if config.slow_path_reason]
    assert len(slow) <= MOST_SLOW, slow
