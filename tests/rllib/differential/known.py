"""Differences that docs/differences.md explains: RLlib loses data there, and we do the right thing.

A case that meets such a defect differs from RLlib's run. It must then equal a run of RLlib's own loop over our
corrected episodes. That these equal RLlib's, defects aside, has tests of its own (test_rllib_episode_fixes.py).
"""

from collections.abc import Iterator

from rllib.differential.runs import Playable, Run, differences, play

from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.sampling.fast_path import Reason


class CorrectedLoop(MultiAgentEnvRunner):
    """RLlib's own loop, recording into our episodes."""

    def _choose_path(self, resets: bool, explore: bool) -> None:
        self._reasons = [Reason("framework", "asked for")]


def unexpected(case: Playable, want: Run, got: Run, loop: type = CorrectedLoop) -> list[str]:
    """Differences between RLlib's run and ours that nothing explains; `loop` is CorrectedLoop or a subclass."""
    lines = _unexplained(case, want, got)
    if want.error is not None:  # RLlib's may come a step earlier: we make episodes at the end of a call
        return [line for line in lines if not line.startswith("tape")]
    if next(lines, None) is None:
        return []
    corrected = play(case, loop)
    # When agents ended, RLlib asks the mapping function for remnants of them (54).
    return [line for line in _unexplained(case, corrected, got) if not line.startswith("tape of mapping")]


def _unexplained(case: Playable, want: Run, got: Run) -> Iterator[str]:
    return (line for line in differences(want, got) if not _is_explained(case, line))


def _is_explained(case: Playable, line: str) -> bool:
    """20: episodes that RLlib drops are not counted; `witness.py` counts. Errors of envs say what can be done."""
    path = line.partition(": ")[0]
    if "['num_episodes" in path:
        return case.drops_episodes or any(getattr(call, "num_episodes", None) is not None for call in case.calls)
    return line.startswith("error[1]") and "to recreate failed envs" in line
