"""RLlib's default connectors, applied to all agents of an env in a single call."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.connectors.action.clip import ClipActionsConnector
from ray.rllib.connectors.action.immutable import ImmutableActionsConnector
from ray.rllib.connectors.action.lambdas import ConvertToNumpyConnector
from ray.rllib.connectors.action.normalize import NormalizeActionsConnector
from ray.rllib.connectors.action.pipeline import ActionConnectorPipeline
from ray.rllib.connectors.agent.clip_reward import ClipRewardAgentConnector
from ray.rllib.connectors.agent.mean_std_filter import (
    ConcurrentMeanStdObservationFilterAgentConnector,
    MeanStdObservationFilterAgentConnector,
)
from ray.rllib.connectors.agent.obs_preproc import ObsPreprocessorConnector
from ray.rllib.connectors.agent.pipeline import AgentConnectorPipeline
from ray.rllib.connectors.agent.state_buffer import StateBufferConnector
from ray.rllib.connectors.agent.view_requirement import ViewRequirementAgentConnector
from ray.rllib.models.preprocessors import OBS_VALIDATION_INTERVAL, NoPreprocessor
from ray.rllib.policy.policy import Policy
from ray.rllib.utils.spaces.space_utils import clip_action, get_base_struct_from_space, unbatch, unsquash_action
from ray.rllib.utils.typing import ActionConnectorDataType

Observe = Callable[[list[Any]], list[Any]]
FILTERS = (MeanStdObservationFilterAgentConnector, ConcurrentMeanStdObservationFilterAgentConnector)
BEFORE_STATES = (ClipRewardAgentConnector, ObsPreprocessorConnector, *FILTERS)
CHANGES = {NormalizeActionsConnector: unsquash_action, ClipActionsConnector: clip_action}


class AgentPieces:
    """Agent connectors of a policy.

    Attributes:
        clip_reward: Function that clips a reward, or None if rewards are not clipped.
        states: RLlib buffer of the policy outputs.
        problem: Reason why the RLlib pipeline must be called, or None.
    """

    def __init__(self, policy: Policy):
        pipeline = policy.agent_connectors
        self._pipeline = pipeline
        self._observe: list[Observe] = []
        self.clip_reward: Callable[[Any], Any] | None = None
        self.problem = _problem_of_agent_pieces(pipeline)
        if self.problem is not None:
            return
        *pieces, self.states, _ = pipeline.connectors
        for piece in pieces:
            if type(piece) is ClipRewardAgentConnector:
                self.clip_reward = _clip_function(piece)
            else:
                self._observe.append(_observe_function(piece))

    def observed(self, observations: list[Any]) -> list[Any]:
        """Preprocess observations for the policy."""
        if not self._pipeline.timers:
            _show_in_metrics(self._pipeline)
        for function in self._observe:
            observations = function(observations)
        return observations


def _problem_of_agent_pieces(pipeline: Any) -> str | None:
    if type(pipeline) is not AgentConnectorPipeline or _has_own_methods(pipeline):
        return f"its agent connector pipeline is a {type(pipeline).__name__}"
    kinds = [type(piece) for piece in pipeline.connectors]
    for piece in pipeline.connectors:
        if _has_own_methods(piece):
            return f"its connector {type(piece).__name__} has replaced methods"
    if kinds[-2:] != [StateBufferConnector, ViewRequirementAgentConnector] or not {*kinds[:-2]} <= {*BEFORE_STATES}:
        return f"its agent connectors are {[kind.__name__ for kind in kinds]}"
    return None


def _has_own_methods(thing: Any) -> bool:
    return any(callable(value) and hasattr(type(thing), name) for name, value in vars(thing).items())


def _clip_function(piece: ClipRewardAgentConnector) -> Callable[[Any], Any] | None:
    if piece.sign:
        return np.sign
    limit = piece.limit
    return (lambda reward: np.clip(reward, a_min=-limit, a_max=limit)) if limit else None


def _observe_function(piece: Any) -> Observe:
    if type(piece) in FILTERS:
        return lambda observations: [piece.filter(obs, update=piece._is_training) for obs in observations]
    preprocessor = piece._preprocessor
    if type(preprocessor) is NoPreprocessor:
        return _check_function(preprocessor)
    return lambda observations: [preprocessor.transform(obs) for obs in observations]


def _check_function(preprocessor: NoPreprocessor) -> Observe:
    """Return a function that checks every 100th observation, as in RLlib, without changing any."""

    def check(observations: list[Any]) -> list[Any]:
        seen = preprocessor._i
        for i in range(-seen % OBS_VALIDATION_INTERVAL, len(observations), OBS_VALIDATION_INTERVAL):
            preprocessor._i = seen + i
            preprocessor.check_shape(observations[i])
        preprocessor._i = seen + len(observations)
        return observations

    return check


class ActionPieces:
    """Action connectors of a policy.

    Attributes:
        problem: Reason why the RLlib pipeline must be called, or None.
    """

    def __init__(self, policy: Policy):
        pipeline = policy.action_connectors
        self._pipeline = pipeline
        self.problem = _problem_of_action_pieces(pipeline)
        if self.problem is not None:
            return
        self._space = struct = get_base_struct_from_space(policy.action_space)
        is_box = isinstance(struct, gym.spaces.Box)
        kinds = [type(piece) for piece in pipeline.connectors]
        self._changes = [CHANGES[kind] for kind in kinds if kind in CHANGES] if is_box else []

    def for_envs(self, actions: Any) -> tuple[list[Any], list[bool]]:
        """Convert actions to the form passed to envs, with read-only arrays.

        Returns:
            (actions, one per agent; flags, one per action leaf: True if RLlib would send the arrays that it stores)
        """
        if not isinstance(self._space, gym.Space):
            return self._nested_for_envs(actions)
        if not self._pipeline.timers:
            _show_in_metrics(self._pipeline)
        if self._changes and actions.shape[1:] != self._space.shape:
            return _read_only([self._changed(action) for action in actions]), [False]
        changed = self._changed(actions)
        are_kept = changed is actions and actions.dtype.kind != "f"  # RLlib copies floats
        sent = _read_only([np.array(row) for row in changed]) if changed.ndim > 1 else list(changed)
        return sent, [are_kept]

    def _nested_for_envs(self, actions: Any) -> tuple[list[Any], list[bool]]:
        rows = unbatch(actions)
        sent = [self._pipeline(ActionConnectorDataType(None, None, {}, (row, [], {}))).output[0] for row in rows]
        return sent, [not leaf.flags.writeable for leaf in tree.flatten(rows[0])]

    def _changed(self, actions: np.ndarray) -> Any:
        for change in self._changes:
            actions = change(actions, self._space)
        return actions


def _problem_of_action_pieces(pipeline: Any) -> str | None:
    if type(pipeline) is not ActionConnectorPipeline or _has_own_methods(pipeline):
        return f"its action connector pipeline is a {type(pipeline).__name__}"
    kinds = [type(piece) for piece in pipeline.connectors]
    if any(_has_own_methods(piece) for piece in pipeline.connectors):
        return "its action connectors have replaced methods"
    inner = kinds[1:-1]
    if (
        kinds[:1] != [ConvertToNumpyConnector]
        or kinds[-1:] != [ImmutableActionsConnector]
        or not {*inner} <= {*CHANGES}
    ):
        return f"its action connectors are {[kind.__name__ for kind in kinds]}"
    return None


def _read_only(actions: list[Any]) -> list[Any]:
    for action in actions:
        if isinstance(action, np.ndarray):
            action.setflags(write=False)
    return actions


def _show_in_metrics(pipeline: Any) -> None:
    """Create a timer for each connector, so that RLlib metrics contain it although the connector never runs."""
    for piece in pipeline.connectors:
        pipeline.timers[str(piece)]  # creates a timer
