"""All connectors at once over random worlds, against lists: agents join, wait, die and come again, in any fragments."""

import numpy as np
import pytest
from support.connected import side_by_side
from support.connected_runs import SEEDS, Connected, assert_equals_oracle, seeds_of_lone_agents
from support.exhaustive import params


@pytest.mark.slow
@pytest.mark.parametrize("group", params(range(6), (1, 4)))
def test_records_batches_and_counts_equal_the_oracle(group):
    for seed in SEEDS[group::6]:
        assert_equals_oracle(Connected(seed))


def test_so_do_those_of_a_batch():
    """With one env of one agent, since several observations in a step are counted and normalised in another order."""
    for seed in seeds_of_lone_agents():
        assert_equals_oracle(Connected(seed, batched=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", params(SEEDS[:8], SEEDS[:3]))
def test_reading_an_episode_shows_the_record_and_does_not_change_it(seed):
    """A callback is given rows in the middle of a tick; they are counted in the same order."""
    seen = {}

    def look(*, episode, **kwargs):
        for agent, part in episode.agent_episodes.items():
            seen[episode.id_, agent, int(part.env_ts()[-1])] = side_by_side(part.get_observations())[-1]

    pairs = [Connected(seed), Connected(seed, callbacks_on_episode_step=look)]
    n_compared = 0
    for call in pairs[0].world.calls:
        for one, other in zip(*(both.runner.sample(**call.kwargs) for both in pairs), strict=True):
            for agent, part in one.agent_episodes.items():
                own, others = (side_by_side(each.get_observations()) for each in (part, other.agent_episodes[agent]))
                np.testing.assert_array_equal(own, others)
                for env_t, row in zip(part.env_ts()[part.lookback :].tolist(), own, strict=True):
                    if (other.id_, agent, env_t) in seen:
                        np.testing.assert_array_equal(seen[other.id_, agent, env_t], row)
                        n_compared += 1
    assert n_compared
