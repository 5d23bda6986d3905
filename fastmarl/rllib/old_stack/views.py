"""What batches of a policy hold: columns as they were recorded, or one step later."""

from collections.abc import Mapping
from typing import NamedTuple

from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement

OBS, INFOS = SampleBatch.OBS, SampleBatch.INFOS
WITH_NEXT = (OBS, INFOS)
"""What is recorded at the end of a step, too."""


class View(NamedTuple):
    """A column of a batch.

    Attributes:
        name: of the column.
        source: what of the record it is.
        is_next: whether it is that of the step's end.
    """

    name: str
    source: str
    is_next: bool


class Views:
    """A policy's view requirements.

    Args:
        requirements: the policy's, by column.

    Attributes:
        columns: of batches for training, in order; those that nobody records are left out of batches.
        problem: why these batches have to be built by RLlib's collector; None: they don't.
    """

    def __init__(self, requirements: Mapping[str, ViewRequirement]):
        self.look_at(requirements)

    def look_at(self, requirements: Mapping[str, ViewRequirement]) -> None:
        """They may have changed."""
        self.columns = [View(name, one.data_col or name, bool(one.shift_arr[0])) for name, one in requirements.items()]
        self.problem = _problem(requirements)


def _problem(requirements: Mapping[str, ViewRequirement]) -> str | None:
    if OBS not in requirements:
        return "it asks for no observations"
    for name, one in requirements.items():
        source = one.data_col or name
        shifts = (0, 1) if source in WITH_NEXT else (0,)
        if len(one.shift_arr) != 1 or one.shift_arr[0] not in shifts or one.batch_repeat_value != 1:
            return f"it asks for {name!r} of other steps"
        if source.startswith("state_"):
            return f"it asks for {name!r}"
        if one.used_for_compute_actions and (name, source, int(one.shift_arr[0])) != (OBS, OBS, 0):
            return f"it asks for {name!r} to act"
    return None
