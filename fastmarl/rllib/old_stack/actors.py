"""Actors choose actions for the agents of a policy and store their steps, natively or with RLlib components."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.connectors.agent.obs_preproc import ObsPreprocessorConnector
from ray.rllib.policy.sample_batch import SampleBatch, concat_samples
from ray.rllib.utils.numpy import convert_to_numpy
from ray.rllib.utils.spaces.space_utils import get_original_space, unbatch
from ray.rllib.utils.typing import ActionConnectorDataType, AgentConnectorDataType, AgentConnectorsOutput

from fastmarl.core.native._trajectories import choose_rows, put_actions, take_steps
from fastmarl.rllib.old_stack.episode import OldStackEpisode
from fastmarl.rllib.old_stack.inputs import PolicyInputs
from fastmarl.rllib.old_stack.model_policy import ModelPolicy, problem_of_calls
from fastmarl.rllib.old_stack.output_rows import OutputRows, leaves_of
from fastmarl.rllib.old_stack.pieces import ActionPieces, AgentPieces
from fastmarl.rllib.old_stack.plain_policy import PlainPolicy, problem_of
from fastmarl.rllib.old_stack.trajectory import Trajectory
from fastmarl.rllib.old_stack.views import STATE_OUT, Views

SINGLE_ARRAYS = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)
OBS, NEXT_OBS, ACTIONS = SampleBatch.OBS, SampleBatch.NEXT_OBS, SampleBatch.ACTIONS
Actions = dict[Any, dict[Hashable, Any]]
"""Env id -> agent id -> action."""
Seen = tuple[Hashable, Any, Any, Any, Any, Any]
"""An env step of a single agent: (id, observation, reward, terminated, truncated, info)."""


class PolicyActor(Protocol):
    """Acts for a single policy. The type of the items in `acting` is private to the implementation."""

    policy: Any

    def observe(self, episode: OldStackEpisode, seen: list[Seen], is_over: bool) -> list[Any]:
        """Record an env step of these agents, and return an item for each agent that acts next."""

    def begin(self, episode: OldStackEpisode, first: list[tuple[Hashable, Any]], infos: Any) -> list[Any]:
        """Record the first observations after a reset, and return an item for each agent that acts next."""

    def act(self, acting: list[Any], episodes: dict[Any, OldStackEpisode]) -> Any:
        """Return the policy output for these agents."""

    def send(self, acting: list[Any], answer: Any, actions: Actions, off_policy: Actions) -> None:
        """Write the actions of a policy output to `actions`; `off_policy` has the actions that envs took instead."""


class RLlibActor:
    """Acts with RLlib's connectors and collectors, called as in the RLlib loop.

    Args:
        policy: The policy.
        is_unfit: True if the policy outputs cannot be stored in rows.
    """

    def __init__(self, policy: Any, is_unfit: bool = False):
        self.policy, self.is_unfit = policy, is_unfit

    def observe(self, episode: OldStackEpisode, seen: list[Seen], is_over: bool) -> list[Any]:
        acting = []
        steps = [AgentConnectorDataType(episode.env_id, one[0], _values(episode, one)) for one in seen]
        done = {agent_id for agent_id, _, _, terminated, truncated, _ in seen if terminated or truncated}
        for step in self.policy.agent_connectors(steps):
            agent_id, values = step.agent_id, step.data.raw_dict
            if episode.has_init_obs(agent_id):
                episode.add_action_reward_done_next_obs(agent_id, values)
            else:
                _add_first(episode, agent_id, values)
            if not (is_over or agent_id in done or episode.is_done(agent_id)):
                acting.append(AgentConnectorDataType(step.env_id, agent_id, step.data))
        return acting

    def begin(self, episode: OldStackEpisode, first: list[tuple[Hashable, Any]], infos: Any) -> list[Any]:
        steps = []
        for agent_id, obs in first:
            values = {
                NEXT_OBS: obs,
                SampleBatch.INFOS: infos,
                SampleBatch.T: episode.length,
                SampleBatch.AGENT_INDEX: episode.agent_index(agent_id),
            }
            steps.append(AgentConnectorDataType(episode.env_id, agent_id, values))
        acting = self.policy.agent_connectors(steps)
        for step in acting:
            _add_first(episode, step.agent_id, step.data.raw_dict)
        return acting

    def act(self, acting: list[Any], episodes: dict[Any, OldStackEpisode]) -> Any:
        batch = concat_samples([step.data.sample_batch for step in acting])
        if "state_in_0" in batch:
            batch[SampleBatch.SEQ_LENS] = np.ones(len(acting), np.int32)
        return self.policy.compute_actions_from_input_dict(
            batch, timestep=self.policy.global_timestep, episodes=[episodes[step.env_id] for step in acting]
        )

    def send(self, acting: list[Any], answer: Any, actions: Actions, off_policy: Actions) -> None:
        rows, states, outputs = convert_to_numpy(answer[0]), answer[1], answer[2]
        rows = unbatch(np.array(rows) if isinstance(rows, list) else rows)
        for i, (step, action) in enumerate(zip(acting, rows, strict=False)):
            env_id, agent_id, values = step.env_id, step.agent_id, step.data.raw_dict
            of_row = [tree.map_structure(lambda column, i=i: column[i], part) for part in (states, outputs)]
            changed = self.policy.action_connectors(
                ActionConnectorDataType(env_id, agent_id, values, (action, *of_row))
            ).output
            taken = off_policy.get(env_id, {}).get(agent_id, action)
            self.policy.agent_connectors.on_policy_output(
                ActionConnectorDataType(env_id, agent_id, values, (taken, *changed[1:]))
            )
            assert agent_id not in actions[env_id]
            actions[env_id][agent_id] = changed[0]


def _values(episode: OldStackEpisode, seen: Seen) -> dict[str, Any]:
    agent_id, obs, reward, terminated, truncated, info = seen
    return {
        SampleBatch.T: episode.length,
        SampleBatch.ENV_ID: episode.env_id,
        SampleBatch.AGENT_INDEX: episode.agent_index(agent_id),
        SampleBatch.REWARDS: reward,
        SampleBatch.TERMINATEDS: terminated,
        SampleBatch.TRUNCATEDS: truncated,
        SampleBatch.INFOS: info,
        NEXT_OBS: obs,
    }


def _add_first(episode: OldStackEpisode, agent_id: Hashable, values: dict[str, Any]) -> None:
    episode.add_init_obs(
        agent_id=agent_id,
        init_obs=values[NEXT_OBS],
        init_infos=values[SampleBatch.INFOS],
        t=values[SampleBatch.T],
    )


class FastActor:
    """Acts with trajectories and output rows instead of RLlib connectors and collectors.

    Args:
        policy: A policy for which `problems_of()` is empty.
        trajectories: Function that returns the current trajectories of all policies.

    Attributes:
        backend: "plain", or what is called to compute actions (the model or the policy), and why.
    """

    def __init__(self, policy: Any, trajectories: Callable[[], Iterable[Trajectory]]):
        self.policy = policy
        self.views = Views(policy)
        flattens = not policy.config.get("_disable_action_flattening", False)
        self.outputs = OutputRows(lambda: [one for one in trajectories() if one.outputs is self.outputs], flattens)
        self._plain: PlainPolicy | None = None
        self._by_model: ModelPolicy | None = None
        self.refresh()

    def refresh(self) -> None:
        """Re-read the parts of the policy before a call, because they may have been replaced."""
        policy = self.policy
        self.views.look_at(policy)
        self._agent_pieces = AgentPieces(policy)
        self._action_pieces = ActionPieces(policy)
        self._initial_states = self._agent_pieces.states._initial_states
        self._inputs = PolicyInputs(policy, self.views, self.outputs, self._initial_states)
        self._plain = None
        former, self._by_model = self._by_model, None
        problem = problem_of(policy)
        if not self.views.sees_observations_alone:
            problem = problem or "it needs more inputs than the current observations"
        if problem is None:
            self.backend = "plain"
            self._plain = PlainPolicy(policy)
        elif (problem_with_model := problem_of_calls(policy)) is None:
            self.backend = f"model call: {problem}"
            self._by_model = ModelPolicy(policy, former)
        else:
            self.backend = f"policy call: {problem_with_model}"
        self._spaces = tree.flatten(self._agent_pieces.states._action_space_struct)
        # (env id, agent id, value written to the state buffer after a call). Empty during a call and after an
        # interrupted one, because RLlib may have removed the entries of episodes that ended.
        self._kept: list[tuple[Any, Hashable, Any]] = []

    @property
    def quick_layers(self) -> Mapping[Any, Any]:
        """Replaced layers of the policy's model; see `quick_layers()`."""
        return {} if self._by_model is None else self._by_model.quick_layers

    def new_trajectory(self, episode: OldStackEpisode, agent_id: Hashable) -> Trajectory:
        """Create the trajectory of an agent observed for the first time."""
        index = episode.agent_index(agent_id)
        return Trajectory(agent_id, index, episode.env_id, episode.episode_id, self.policy, self.views, self.outputs)

    def observe(self, episode: OldStackEpisode, seen: list[Seen], is_over: bool) -> list[Any]:
        observations = [one[1] for one in seen]
        observations = self._agent_pieces.observed(observations)

        def first(agent_id: Hashable, obs: Any, info: Any) -> Trajectory:
            return self._first(episode, agent_id, obs, info)

        t, clip = episode.total_env_steps, self._agent_pieces.clip_reward
        return take_steps(episode, seen, observations, t, is_over, clip, first)

    def begin(self, episode: OldStackEpisode, first: list[tuple[Hashable, Any]], infos: Any) -> list[Any]:
        for agent_id, _ in first:
            episode.agent_index(agent_id)
        observations = [obs for _, obs in first]
        observations = self._agent_pieces.observed(observations)
        firsts = zip(first, observations, strict=True)
        return [self._first(episode, agent_id, obs, infos) for (agent_id, _), obs in firsts]

    def _first(self, episode: OldStackEpisode, agent_id: Hashable, obs: Any, infos: Any) -> Trajectory:
        pieces = self._agent_pieces
        for space in self._spaces:  # RLlib samples an action as a template for zeros
            space.sample()
        pieces.states._states[episode.env_id][agent_id]  # creates an entry
        episode.add_init_obs(agent_id=agent_id, init_obs=obs, init_infos=infos, t=episode.length)
        return episode._agent_collectors[agent_id]

    def act(self, acting: list[Any], episodes: dict[Any, OldStackEpisode]) -> Any:
        """Compute and return the actions, and store all outputs.

        Raises:
            UnfitAnswerError: If the policy outputs cannot be stored in rows.
        """
        if self._plain is not None:
            outputs = self._plain.act(self._inputs.observations(acting))
            if not self.outputs.fits(outputs, len(acting)):
                raise UnfitAnswerError(_answer_of(outputs))
        else:
            answer = self._answer(acting, episodes)
            outputs = _outputs_of(answer)
            if not (self._are_arrays(outputs) and self.outputs.fits(outputs, len(acting))):
                raise UnfitAnswerError(answer)
        choose_rows(acting, self.outputs.add(outputs, len(acting)))
        return outputs[ACTIONS]

    def _answer(self, acting: list[Any], episodes: dict[Any, OldStackEpisode]) -> tuple[Any, list[Any], dict[str, Any]]:
        batch = self._inputs.batch(acting)
        if self._by_model is not None:
            return self._by_model.act(batch)
        return self.policy.compute_actions_from_input_dict(
            batch,
            timestep=self.policy.global_timestep,
            episodes=[episodes[trajectory.env_id] for trajectory in acting],
        )

    def _are_arrays(self, outputs: dict[str, Any]) -> bool:
        """Return True if all outputs are arrays and include all requested states."""
        states = [name for name in outputs if name.startswith(STATE_OUT)]
        if (states and not self.policy.is_recurrent()) or not {*self.views.states} <= {*states}:
            return False
        if [np.shape(outputs[name])[1:] for name in states] != [np.shape(state) for state in self._initial_states]:
            return False
        return all(type(leaf) is np.ndarray and leaf.ndim for leaf in leaves_of(outputs).values())

    def send(self, acting: list[Any], answer: Any, actions: Actions, off_policy: Actions) -> None:
        sent, self.outputs.has_read_only_actions = self._action_pieces.for_envs(answer)
        put_actions(acting, sent, actions)

    def keep_states(self, trajectories: Iterable[Trajectory]) -> None:
        """Write the last outputs of agents to the RLlib state buffer, which is part of the policy state."""
        states = self._agent_pieces.states._states
        self._kept = []
        for one in trajectories:
            if one.outputs is self.outputs and one.pending >= 0:
                row = self.outputs.row(one.pending)
                kept: tuple = (row.pop(ACTIONS), [row.pop(name) for name in [*row] if name.startswith(STATE_OUT)], row)
                states[one.env_id][one.agent_id] = kept
                self._kept.append((one.env_id, one.agent_id, kept))

    def as_rllib_item(self, one: Trajectory) -> AgentConnectorDataType:
        """Convert a trajectory to the item that `RLlibActor` uses for an agent that acts next."""
        values = {
            SampleBatch.T: one.times[-1],
            SampleBatch.AGENT_INDEX: one.agent_index,
            SampleBatch.INFOS: one.infos[-1],
            NEXT_OBS: one.obs[-1],
        }
        return AgentConnectorDataType(
            one.env_id, one.agent_id, AgentConnectorsOutput(values, self._inputs.batch([one]))
        )

    def answer(self, acting: list[Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return the last policy output for these agents, in the format of RLlib policies."""
        return _answer_of(self.outputs.taken([one.pending for one in acting]))

    def keep_inputs(self, trajectories: Iterable[Trajectory]) -> None:
        """Write the inputs for the next actions to the RLlib connector that builds them."""
        if self.views.sees_observations_alone:
            return
        collectors = self.policy.agent_connectors.connectors[-1].agent_collectors
        for one in trajectories:
            if one.outputs is self.outputs:
                collectors[one.env_id][one.agent_id] = one.as_collector_for_inference(self._initial_states)

    def changed_views(self, views: Views) -> bool:
        """Return True if running trajectories may lack steps that `views`, the current views, require."""
        return (views.before, [*views.zeros]) != (self.views.before, [*self.views.zeros])

    def lost_states(self) -> bool:
        """Return True if the state buffer was replaced or modified since `keep_states()`."""
        states = self._agent_pieces.states
        if not any(piece is states for piece in self.policy.agent_connectors.connectors):
            return bool(self._kept)
        return any(states._states.get(env_id, {}).get(agent_id) is not kept for env_id, agent_id, kept in self._kept)


class UnfitAnswerError(Exception):
    """A policy output cannot be stored in rows: it is nested, has unexpected states, or its columns have changed.

    Args:
        answer: The policy output.
    """

    def __init__(self, answer: Any):
        super().__init__()
        self.answer = answer


def problems_of(policy: Any, views: Views) -> list[str]:
    """Return the reasons why a policy with these views needs RLlib connectors and collectors; empty if none."""
    problems = [views.problem]
    if policy.agent_connectors is None or policy.action_connectors is None:
        problems.append("it has no connectors")
    else:
        problems += [AgentPieces(policy).problem, ActionPieces(policy).problem]
        if not any(isinstance(piece, ObsPreprocessorConnector) for piece in policy.agent_connectors.connectors):
            space = get_original_space(policy.observation_space)
            if not isinstance(space, SINGLE_ARRAYS) and any(
                one.source == OBS and one.shift != 0 for one in views.inputs
            ):
                problems.append("it requests nested observations of other steps as an input")
    return [problem for problem in problems if problem is not None]


def _outputs_of(answer: tuple[Any, list[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return a policy output as a dict of column -> values.

    Raises:
        UnfitAnswerError: If another output has the same name as the actions or a state.
    """
    actions, states, extra = convert_to_numpy(answer[0]), answer[1], answer[2]
    outputs = {ACTIONS: np.array(actions) if isinstance(actions, list) else actions}
    outputs |= {f"{STATE_OUT}{i}": state for i, state in enumerate(states)}
    if any(name == ACTIONS or name.startswith(STATE_OUT) for name in extra):
        raise UnfitAnswerError(answer)
    return outputs | extra


def _answer_of(outputs: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """Convert outputs to the (actions, states, extra outputs) format of RLlib policies."""
    states = [values for name, values in outputs.items() if name.startswith(STATE_OUT)]
    extra = {name: values for name, values in outputs.items() if name != ACTIONS and not name.startswith(STATE_OUT)}
    return outputs[ACTIONS], states, extra
