"""Which env-to-module connector pieces need not run in RLlib's own loop."""

import dis
from collections.abc import Iterator
from functools import cache
from types import FunctionType
from typing import Any

from ray.rllib.connectors import common, env_to_module
from ray.rllib.connectors.common.flatten_observations import FlattenObservations
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)

# What RLlib's pipeline ends with, and `sampling.acting` does.
DEFAULT_PIECES = [
    common.AddObservationsFromEpisodesToBatch,
    common.AddTimeDimToBatchAndZeroPad,
    common.AddStatesFromEpisodesToBatch,
    common.AgentToModuleMapping,
    common.BatchIndividualItems,
    common.NumpyToTensor,
]
REWRITERS = (FlattenObservations, env_to_module.MeanStdFilter, env_to_module.PrevActionsPrevRewards)
PREPROCESSORS = (SingleAgentObservationPreprocessor, MultiAgentObservationPreprocessor)
READ_NOWHERE = {"batch", "kwargs", "metrics", "shared_data"}
"""Arguments of a piece that the fast way lacks."""


def own_pieces(pieces: list[Any]) -> list[Any]:
    """Those of a pipeline beside RLlib's default ones."""
    return pieces[: -len(DEFAULT_PIECES)]


def after_rewriting(pieces: list[Any]) -> list[Any]:
    """The pieces of a pipeline that make a batch of the observations on record."""
    return [piece for piece in own_pieces(pieces) if type(piece) is FrameStacking] + pieces[-len(DEFAULT_PIECES) :]


def are_rewriting(pieces: list[Any]) -> bool:
    """Whether the record has other observations than the envs send."""
    return any(type(piece) is not FrameStacking for piece in pieces)


def problems(pieces: list[Any]) -> Iterator[tuple[str, str]]:
    """Why a pipeline's pieces need RLlib's own loop: (code, sentence part); none if they don't."""
    own = own_pieces(pieces)
    if [type(piece) for piece in pieces[-len(DEFAULT_PIECES) :]] != DEFAULT_PIECES:
        names = [type(piece).__name__ for piece in pieces]
        text = f"the env-to-module connector pipeline does not end with RLlib's default pieces: {names}"
        yield "connector_pipeline", text
        return
    for i, piece in enumerate(own):
        name = type(piece).__name__
        if type(piece) is FrameStacking:
            if i < len(own) - 1:
                yield "connector_piece", f"the connector piece {name} is followed by {type(own[i + 1]).__name__}"
        elif type(piece) not in REWRITERS and not _only_rewrites(piece):
            yield (
                "connector_piece",
                f"the connector piece {name} does more than put observations in the place of others",
            )
        if getattr(piece, "_as_learner_connector", False):
            yield "connector_piece", f"the connector piece {name} is one for learners"


def _only_rewrites(piece: Any) -> bool:
    """Whether a piece of the user's own works upon episodes alone, and leaves the batch as it is."""
    if not isinstance(piece, ConnectorV2) or "__call__" in vars(piece):
        return False
    call = type(piece).__call__
    if any(isinstance(piece, kind) and call is kind.__call__ for kind in PREPROCESSORS):
        return True
    return isinstance(call, FunctionType) and _returns_batch_untouched(call)


@cache
def _returns_batch_untouched(call: FunctionType) -> bool:
    """Whether a method only returns its argument `batch`, and does nothing with those that the fast way lacks."""
    code = call.__code__
    if READ_NOWHERE & {*code.co_cellvars, *code.co_freevars} or {"locals", "vars", "eval", "exec"} & {*code.co_names}:
        return False
    returned = False
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("NOP", "CACHE", "RESUME")]
    for i, instruction in enumerate(instructions):
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if "FAST" not in instruction.opname or not READ_NOWHERE & {name for name in names if isinstance(name, str)}:
            continue
        is_return = instruction.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") and instruction.argval == "batch"
        if not is_return or instructions[i + 1].opname != "RETURN_VALUE":
            return False
        returned = True
    return returned
