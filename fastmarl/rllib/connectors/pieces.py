"""Checks which connector pieces can run outside the RLlib loop."""

import dis
from collections.abc import Iterator
from functools import cache
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, NamedTuple

from ray.rllib.connectors import common, env_to_module, module_to_env
from ray.rllib.connectors.common.flatten_observations import FlattenObservations
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from ray.rllib.core.columns import Columns

# RLlib pieces that build batches; here, `sampling.acting` does this.
DEFAULT_PIECES = [
    common.AddObservationsFromEpisodesToBatch,
    common.AddTimeDimToBatchAndZeroPad,
    common.AddStatesFromEpisodesToBatch,
    common.AgentToModuleMapping,
    common.BatchIndividualItems,
    common.NumpyToTensor,
]
MODULE_TO_ENV = [
    module_to_env.GetActions,
    module_to_env.TensorToNumpy,
    module_to_env.UnBatchToIndividualItems,
    module_to_env.ModuleToAgentUnmapping,
    module_to_env.RemoveSingleTsTimeRankFromBatch,
    module_to_env.NormalizeAndClipActions,
    module_to_env.ListifyDataForVectorEnv,
]
REWRITERS = (FlattenObservations, env_to_module.MeanStdFilter, env_to_module.PrevActionsPrevRewards)
PREPROCESSORS = (SingleAgentObservationPreprocessor, MultiAgentObservationPreprocessor)
NOT_GIVEN = {
    "data", "metrics", "metrics_prefix_key",
    Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.TERMINATEDS, Columns.TRUNCATEDS,
}  # fmt: skip
"""Arguments passed to a piece by the RLlib loop but not by the fast path."""


class EnvToModuleParts(NamedTuple):
    """The pieces of an env-to-module pipeline.

    Attributes:
        own: Pieces before the default ones of RLlib.
        default: Default pieces of RLlib.
        last: Pieces after the default ones, which see the module batches.
    """

    own: list[Any]
    default: list[Any]
    last: list[Any]

    @classmethod
    def of(cls, pieces: list[Any]) -> "EnvToModuleParts":
        """Split a pipeline; all pieces are `own` unless the default pieces form an unbroken sequence."""
        first = next((i for i, piece in enumerate(pieces) if type(piece) is DEFAULT_PIECES[0]), len(pieces))
        end = first + len(DEFAULT_PIECES)
        if [type(piece) for piece in pieces[first:end]] != DEFAULT_PIECES:
            return cls(pieces, [], [])
        return cls(pieces[:first], pieces[first:end], pieces[end:])

    @property
    def shows_episodes(self) -> bool:
        """True if custom pieces receive episodes."""
        return bool(self.last) or not all(map(_is_known, self.own))

    @property
    def makes_batches(self) -> bool:
        """True if custom pieces may change batches or the data shared by pieces."""
        return bool(self.last) or any(not _is_known(piece) and not _only_rewrites(piece) for piece in self.own)


def are_rewriting(own: list[Any]) -> bool:
    """Return True if any piece rewrites observations, so that stored observations differ from the env output."""
    return any(type(piece) is not FrameStacking for piece in own)


def own_of_module_to_env(pieces: list[Any]) -> list[Any]:
    """Return the pieces of a module-to-env pipeline that are not RLlib defaults."""
    return [piece for piece in pieces if type(piece) not in MODULE_TO_ENV]


def normalizing_piece(pieces: list[Any]) -> Any:
    """Return the default RLlib piece that scales or clips actions, or None if it is missing from the pipeline."""
    return next((piece for piece in pieces if type(piece) is module_to_env.NormalizeAndClipActions), None)


def problems(pieces: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield (code, sentence fragment) for each reason why an env-to-module pipeline needs the RLlib loop."""
    own, default, last = parts = EnvToModuleParts.of(pieces)
    if not default:
        names = [type(piece).__name__ for piece in pieces]
        text = f"the env-to-module connector pipeline lacks RLlib's default pieces in direct succession: {names}"
        yield "connector_pipeline", text
        return
    for i, piece in enumerate(own):
        name = type(piece).__name__
        if type(piece) is FrameStacking and (i < len(own) - 1 or parts.makes_batches):
            others = [type(other).__name__ for other in [*own[i + 1 :], *own[:i], *last]]
            yield "connector_piece", f"the connector piece {name} is combined with {', '.join(others)}"
        if getattr(piece, "_as_learner_connector", False):
            yield "connector_piece", f"the connector piece {name} is a learner connector"
    for piece in [piece for piece in own if not _is_known(piece)] + last:
        yield from (("connector_piece", text) for text in _problems_of(piece))


def module_to_env_problems(pieces: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield (code, sentence fragment) for each reason why a module-to-env pipeline needs the RLlib loop."""
    if [type(piece) for piece in pieces if type(piece) in MODULE_TO_ENV] != MODULE_TO_ENV:
        names = [type(piece).__name__ for piece in pieces]
        yield "connector_pipeline", f"the module-to-env connector pipeline lacks RLlib's default pieces: {names}"
        return
    for piece in own_of_module_to_env(pieces):
        yield from (("module_to_env_piece", text) for text in _problems_of(piece))


def _is_known(piece: Any) -> bool:
    return type(piece) in (FrameStacking, *REWRITERS)


def _problems_of(piece: Any) -> Iterator[str]:
    name, call = type(piece).__name__, type(piece).__call__
    if not isinstance(piece, ConnectorV2) or "__call__" in vars(piece) or not isinstance(call, FunctionType):
        yield f"the connector piece {name} is not a ConnectorV2 with a plain __call__() method"
    elif read := _read_in_vain(call):
        yield f"the connector piece {name} reads values that only RLlib's loop provides: {', '.join(sorted(read))}"


def _only_rewrites(piece: Any) -> bool:
    """Return True if a custom piece only processes episodes and leaves the batch unchanged."""
    call = type(piece).__call__
    if any(isinstance(piece, kind) and call is kind.__call__ for kind in PREPROCESSORS):
        return True
    return isinstance(call, FunctionType) and _returns_batch_untouched(call)


@cache
def _read_in_vain(call: FunctionType) -> set[str]:
    """Return the arguments that a method reads or requires but the fast path does not pass."""
    code, missing = call.__code__, set()
    for each in signature(call, follow_wrapped=False).parameters.values():
        if each.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL) or each.name in NOT_GIVEN:
            missing.add(each.name)
            if each.name in NOT_GIVEN and each.default is Parameter.empty:
                return {each.name}
    read = missing & {*code.co_cellvars, *code.co_freevars} | {"locals", "vars", "eval", "exec"} & {*code.co_names}
    return read | missing & {name for names in map(_locals_in, _instructions(call)) for name in names}


@cache
def _returns_batch_untouched(call: FunctionType) -> bool:
    """Return True if a method only returns its argument `batch` and does not use `shared_data`."""
    read_nowhere, code = {"batch", "shared_data"}, call.__code__
    if _read_in_vain(call) or read_nowhere & {*code.co_cellvars, *code.co_freevars}:
        return False
    returned = False
    instructions = _instructions(call)
    for i, instruction in enumerate(instructions):
        if not read_nowhere & {*_locals_in(instruction)}:
            continue
        is_return = instruction.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") and instruction.argval == "batch"
        if not is_return or instructions[i + 1].opname != "RETURN_VALUE":
            return False
        returned = True
    return returned


def _instructions(call: FunctionType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(call) if each.opname not in ("NOP", "CACHE", "RESUME")]


def _locals_in(instruction: dis.Instruction) -> list[str]:
    """Return the names of the local variables read or written by an instruction."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names if isinstance(name, str)] if "FAST" in instruction.opname else []
