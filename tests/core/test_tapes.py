"""The runner against tapes of what its envs sent and were sent: an oracle that knows the documentation only."""

import pytest
from support.random_cases import RandomCases
from support.tapes.chunks import noted
from support.tapes.play import Play
from support.tapes.worlds import World

CASES = RandomCases(usual=5)
GROUPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_chunks_and_metrics_match_the_tapes(group):
    for seed in CASES.batch(group, GROUPS):
        with noted(f"Play(World({seed})).run()"):
            Play(World(seed)).run()


@pytest.mark.parametrize("what", ["obs", "rewards", "actions", "infos"])
def test_a_difference_is_found(what):
    """The oracle is checked."""
    play = Play(World(37))
    play.run()
    found = 0
    for chunk, tape, returned_at in play.chunks:
        for agent, part in chunk.agent_episodes.items():
            tick = tape.ticks[part.env_ts()[part.lookback + (what == "rewards")]]
            by_agent = getattr(tick, what)
            kept = dict(by_agent)
            by_agent[agent] = {"another": 1} if what == "infos" else kept.get(agent, 0.0) + 1
            with pytest.raises(AssertionError):
                play.check(chunk, tape, returned_at)
            by_agent.clear()
            by_agent.update(kept)
            play.check(chunk, tape, returned_at)
            found += 1
    assert found > 10
