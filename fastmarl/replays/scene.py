"""Replay of recorded actions in an env, comparing the results with the record."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace as replaced
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.form import check_reset_result, check_step_result, possible_agents_of
from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import FastmarlError, RecordingError, ReplayError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.native._records import note_reset_seeds
from fastmarl.core.objects.public import public
from fastmarl.core.objects.weakly import weakly
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.store.agent_spaces import AgentSpaces, Spaces
from fastmarl.core.store.block import Key
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED, LaneTable
from fastmarl.core.store.store import RowStore
from fastmarl.replays.fragment import fragment_of
from fastmarl.replays.meta import changed_versions
from fastmarl.replays.recording import EpisodeActions, RecordedEpisode, add_part

NOT_THE_SAME = "replays need envs that are determined by their seed, see check_env(); was the env changed?"


@public("fastmarl.replays")
class ReplayStep(NamedTuple):
    """An env step of a replayed episode.

    Attributes:
        env_t: Number of env steps since the reset.
        actions: Agent id -> action that the env received; empty for the reset.
        observations: Agent id -> observation, as returned by the env, like all results.
        rewards: Agent id -> reward.
        terminateds: Agent id or "__all__" -> termination flag.
        truncateds: Agent id or "__all__" -> truncation flag.
        infos: Agent id -> info.
    """

    env_t: int
    actions: dict[Any, Any]
    observations: dict[Any, Any]
    rewards: dict[Any, float]
    terminateds: dict[Any, bool]
    truncateds: dict[Any, bool]
    infos: dict[Any, Any]


class _ActionForm:
    """Converts actions between the formats of env and store.

    Attributes:
        keys: Keys of the leaves, as in module outputs.
    """

    def __init__(self, space: gym.Space):
        self._layout = RowLayout(space)
        self._is_discrete = [isinstance(leaf, gym.spaces.Discrete) for leaf in leaf_spaces(space)]
        self.keys: list[Key] = [
            (Columns.ACTIONS, *leaf.path) if leaf.path else Columns.ACTIONS for leaf in self._layout.leaves
        ]

    def fits(self, leaves: list[np.ndarray]) -> bool:
        """Return whether arrays [1, ...] have the shapes and dtype kinds of this space."""
        own = [(leaf.shape, leaf.dtype.kind) for leaf in self._layout.leaves]
        return [(leaf.shape[1:], leaf.dtype.kind) for leaf in leaves] == own

    def nested(self, leaves: list[np.ndarray]) -> Any:
        """Convert arrays [1, ...] to an action with the Python types that the env receives."""
        values = zip(leaves, self._is_discrete, strict=True)
        return self._layout.nest([int(leaf[0]) if is_discrete else leaf[0].copy() for leaf, is_discrete in values])


class Scene:
    """A store with a single env that records the replayed steps."""

    def __init__(self, recorded: RecordedEpisode, actions: EpisodeActions, env: Any):
        self._recorded, self._actions = recorded, actions
        meta = recorded.meta
        self.chunks: list[MultiAgentEpisode] | None = None
        self._late_rewards = meta["late_rewards"] == "accumulate"
        self._module_ids = list(actions.modules)
        known = [frozenset(possible_agents_of(env))]
        self._table = LaneTable(
            known, weakly(self._module_for), late_rewards=meta["late_rewards"], respawn=meta["respawn"]
        )
        self._spaces: dict[Hashable, Spaces] = {}
        self._env = env
        self._made = -1  # number of complete env steps
        self._forms: dict[Hashable, _ActionForm] = {}
        AgentSpaces(self._table, weakly(self._spaces_of))
        for agent in known[0]:
            self._spaces_of(0, agent)
        self._store = RowStore(self._make_layouts(), self._module_ids, self._table, 1)
        self._log = EpisodeLog(self._store)
        self._log.clock.start()

    def _spaces_of(self, env_index: int, agent_id: Hashable) -> Spaces:
        if agent_id not in self._spaces:
            self._spaces[agent_id] = env_spaces(self._env, agent_id)
        return self._spaces[agent_id]

    def _module_for(self, agent_id: Hashable, env_index: int) -> int:
        name = repr(agent_id)
        if name not in self._actions.module_of:
            raise self._differs(self._env_t, f"agent {name} is observed, but is not in the record")
        return self._module_ids.index(self._actions.module_of[name])

    def _make_layouts(self) -> list[RowLayout]:
        """Return the layouts that the modules had during recording."""
        layouts = []
        for module_id, form in self._actions.modules.items():
            spaces = [s for agent, s in self._spaces.items() if self._actions.module_of.get(repr(agent)) == module_id]
            space = spaces[0][0] if spaces else getattr(self._env, "observation_space", None)
            if not isinstance(space, gym.Space):
                raise RecordingError(f"the record has module {module_id!r}, but the env has none of its agents, only "
                                     f"{list(self._spaces)!r:.200}; was a different env passed?")  # fmt: skip
            layouts.append(_layout_as(RowLayout(space), form["obs"], module_id))
        return layouts

    @property
    def _env_t(self) -> int:
        return int(self._table.envs[0].env_t)

    def play(self, env: Any) -> Iterator[ReplayStep]:
        """Replay all steps, comparing fingerprints at the end or after an error."""
        flags = 0
        try:
            self._log.open_episodes([0])
            note_reset_seeds(self._table.records, [self._recorded.reset_seed], [0])
            with exits_as_errors():
                obs, infos = result = env.reset(seed=self._recorded.reset_seed)
            check_reset_result(result, 0)
            self._store.scatter.write_reset(0, obs, infos)
            self._made = 0
            yield ReplayStep(0, {}, obs, {}, {}, {}, infos)
            while not flags and self._env_t < self._recorded.length:
                actions = self._act()
                with exits_as_errors():
                    result = env.step(actions)
                check_step_result(result, 0, self._env_t + 1)
                flags = self._store.scatter.write_step(0, *result)
                if self._table.respawned:
                    self._log.split_respawned()
                self._made += 1
                yield ReplayStep(self._env_t, actions, *result)
        except GeneratorExit:
            raise
        except Exception as error:
            self._look_for_differences(is_over=False)
            if isinstance(error, FastmarlError):
                raise
            raise self._differs(self._made + 1, f"the env raised {error!r:.200}") from error
        if flags:
            self._log.finish_episodes([0], [flags])
        self._log.end_chunks()
        self._look_for_differences(is_over=True)
        self._check_end(flags)
        self.chunks = self._log.ended_chunks()

    def _act(self) -> dict[Any, Any]:
        """Write the recorded actions of this step to the store, and return them in the order of the observations."""
        env_t, table, store = self._env_t, self._table, self._store
        recorded = self._actions.actions.get(env_t, {})
        acting = {table.agent_ids[lane]: lane for lane in table.envs[0].acting()}
        if {repr(agent) for agent in acting} != set(recorded):
            self._look_for_differences(is_over=False)
            raise self._differs(env_t, f"the acting agents are {sorted(map(repr, acting))}, but the record has "
                                       f"{sorted(recorded)}")  # fmt: skip
        by_agent = {agent: recorded[repr(agent)][1] for agent in acting}
        for agent, action in by_agent.items():
            if not self._form(agent).fits(action):
                form = [(leaf.dtype.str, leaf.shape[1:]) for leaf in action]
                raise RecordingError(f"the action space of agent {agent!r}, {self._spaces_of(0, agent)[1]}, does not "
                                     f"match the recorded actions, {form!r:.300}; was the env changed, or another "
                                     f"env_config passed?")  # fmt: skip
        for module in store.active:
            first, end = store.acting_from[module], store.rows[module].n
            if first < end:
                agents = [table.agent_ids[lane] for lane in store.blocks[module].lane_R[first:end].tolist()]
                leaves = zip(*(by_agent[agent] for agent in agents), strict=True)
                store.record(module, dict(zip(self._form(agents[0]).keys, map(np.concatenate, leaves), strict=True)))
        store.advance()
        return {agent: self._form(agent).nested(leaves) for agent, leaves in by_agent.items()}

    def _form(self, agent: Hashable) -> _ActionForm:
        if agent not in self._forms:
            self._forms[agent] = _ActionForm(self._spaces_of(0, agent)[1])
        return self._forms[agent]

    def _look_for_differences(self, *, is_over: bool) -> None:
        """Raise ReplayError for the first replayed step whose fingerprint differs."""
        notes = list(self._log.sealed)
        if not is_over:
            if self._table.records[0] is None:
                return
            notes.append(self._log.notes_of([0]))
        made = EpisodeActions()
        fragment = fragment_of(self._store, notes, None, late_rewards=self._late_rewards)
        if fragment is None:
            return
        for chunk in range(len(fragment.arrays["env"])):
            add_part(made, fragment.arrays, fragment.words, chunk)
        # After a failure of the env, agents ended with a copy of their last observations.
        last = min(self._made, self._recorded.length - self._recorded.is_failed)
        differing = [
            (env_t, name)
            for env_t, name in self._actions.prints.keys() | made.prints.keys()
            if env_t <= last and self._actions.prints.get((env_t, name)) != made.prints.get((env_t, name))
        ]
        if differing:
            env_t, name = min(differing)
            what = "observation, or the reward with it," if env_t else "first observation"
            raise self._differs(env_t, f"agent {name}: its {what} differs from the record; {NOT_THE_SAME}")

    def _check_end(self, flags: int) -> None:
        recorded = self._recorded
        if flags and self._env_t < recorded.length:
            raise self._differs(self._env_t, f"the episode ended, but the record has {recorded.length} env steps")
        if recorded.is_failed or (not flags and not recorded.is_done):
            return
        if (bool(flags & TERMINATED), bool(flags & TRUNCATED)) != (recorded.is_terminated, recorded.is_truncated):
            raise self._differs(self._env_t, f"the end of the episode differs from the recorded one, {recorded.end}")

    def _differs(self, env_t: int, problem: str) -> ReplayError:
        if changed := changed_versions(self._recorded.meta):
            problem += f"; it was recorded with {changed}"
        return ReplayError(self._recorded.env_index, self._recorded.number, env_t, problem)


def _layout_as(layout: RowLayout, form: list[Any], module_id: str) -> RowLayout:
    """Change the dtypes of a layout to the recorded ones and return it.

    Raises:
        RecordingError: If the leaves differ from the record.
    """
    recorded = {path: (np.dtype(dtype), tuple(shape)) for path, dtype, shape in form}
    here = {repr(leaf.path): leaf.shape for leaf in layout.leaves}
    if {path: shape for path, (_, shape) in recorded.items()} != here:
        raise RecordingError(f"the agents of module {module_id!r} observe {layout.space}, which does not match the "
                             f"record: {form!r:.300}; was the env changed, or another env_config passed?")  # fmt: skip
    layout.leaves = tuple(replaced(leaf, dtype=recorded[repr(leaf.path)][0]) for leaf in layout.leaves)
    return layout
