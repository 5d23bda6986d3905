"""RLlib's MultiAgentEpisode with its defects corrected.

Data and methods are inherited from RLlib; only methods that fail, lose data or return wrong results are overridden.
Numbers in comments identify RLlib defects; docs/differences.md lists the ones visible to users.
"""

import copy
import time
from collections.abc import Collection, Hashable
from functools import cache
from typing import Any, ClassVar

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils import force_list

from fastmarl.core.native._rllib_episodes import read_numbers
from fastmarl.rllib.episodes import chunks, shipping
from fastmarl.rllib.episodes.chunks import slice_of
from fastmarl.rllib.episodes.lists import unite_dtypes
from fastmarl.rllib.episodes.sample_block import SampleBlock, is_set
from fastmarl.rllib.episodes.steps import COMMON, Step, is_consistent, keep_common_info, private_info, private_infos

EPISODE_FIXES = frozenset(("01", "14", "21", "45"))  # optional corrections of an episode class
OF_OBSERVATIONS = ("observations", "infos")  # these also have an entry for the last env step
LATE = ("agent_episodes", "env_t_to_agent_t")  # set by SampleBlock.late_attributes()
AgentIDs = Hashable | Collection[Hashable] | None


class MultiAgentEpisode(RLlibEpisode):
    """A multi-agent episode or chunk with the interface of RLlib's class of the same name."""

    # _origin: for a sampled episode while it is unchanged, (SampleBlock, index of the chunk); for a running one,
    # (EpisodeInView or EpisodeInTheMaking, 0). _numbers: the runner's ChunkNumbers, if returned by sample().
    __slots__ = ("__weakref__", "_numbers", "_origin")

    fixes: ClassVar[frozenset[str]] = frozenset()

    def __getattr__(self, name: str) -> Any:
        # Agent episodes of a sampled episode are built on first access; until then their slots are empty.
        if name not in RLlibEpisode.__slots__ or not hasattr(self, "_origin"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        source, i = self._origin
        for slot, value in source.late_attributes(i).items():
            if not is_set(self, slot):
                setattr(self, slot, value)
        return object.__getattribute__(self, name)

    __del__ = read_numbers  # compiled: Ctrl-C in a Python method would be lost

    # Recording.

    def add_env_reset(self, *, observations: dict, infos: dict | None = None) -> None:
        super().add_env_reset(observations=observations, infos=private_infos(infos))  # 31
        if "21" in self.fixes and infos and COMMON in infos:
            keep_common_info(self, private_info(infos[COMMON]))

    def add_env_step(
        self,
        observations: dict,
        actions: dict,
        rewards: dict,
        infos: dict | None = None,
        *,
        terminateds: dict | None = None,
        truncateds: dict | None = None,
        extra_model_outputs: dict | None = None,
    ) -> None:
        step = Step(
            self, observations, actions, rewards, infos, terminateds, truncateds, extra_model_outputs, self.fixes
        )
        if not self.is_done:
            step.prepare()  # 02, 08, 31, 32, 33, 39, 44
        super().add_env_step(
            step.observations,
            step.actions,
            step.rewards,
            step.infos,
            terminateds=step.terminateds,
            truncateds=step.truncateds,
            extra_model_outputs=step.extras,
        )
        step.finish()  # 01, 14, 21, 32, 44, 45

    def validate(self) -> None:
        for each in self.agent_episodes.values():
            if not is_consistent(each):
                each.validate()

    def resume_clock(self) -> None:
        """Start the clock of a continued chunk now; the RLlib clock starts only with the first step (43)."""
        if self.env_t_started and self._last_step_time is None:
            self._start_time = time.perf_counter()  # type: ignore[misc]  # it is a slot of RLlib's class

    def to_numpy(self) -> "MultiAgentEpisode":
        # The RLlib runner calls this for all finished episodes in each env step (11).
        for each in self.agent_episodes.values():
            if not each.observations.finalized or (len(each) and not each.rewards.finalized):
                for agent_episode in self.agent_episodes.values():
                    unite_dtypes(agent_episode)
                super().to_numpy()
                break
        return self

    # Chunks.

    def cut(self, len_lookback_buffer: int = 0) -> "MultiAgentEpisode":
        if len_lookback_buffer == 0 and self._hanging_actions_end:
            len_lookback_buffer = 1  # 16: waiting agents need at least one step
        idle = chunks.idle_agents(self)
        after = chunks.as_kind(type(self), chunks.rllibs_view(self, idle).cut(len_lookback_buffer))
        chunks.move_back(after, idle)  # 44
        chunks.keep_last_observations(self, after)  # 08
        chunks.keep_last_states(self, after)  # 47
        after._hanging_rewards_begin.clear()  # 58
        if "21" in self.fixes:
            after.custom_data.pop(COMMON, None)
        return after

    def concat_episode(self, other: Any) -> None:
        times = chunks.joined_times(self, other)
        common = {**self.custom_data.get(COMMON, {}), **other.custom_data.get(COMMON, {})}
        chunks.adopt_observations(self, other)  # 44
        super().concat_episode(chunks.appendable(self, other))  # 02, 39
        chunks.set_times(self, times)  # 48
        chunks.hang_as(self, other)
        chunks.add_early_rewards(self, other)  # 15, 58
        for agent, module_id in other._agent_to_module_mapping.items():
            self._agent_to_module_mapping.setdefault(agent, module_id)
        if common:
            self.custom_data[COMMON] = common
        chunks.prepare_for_replay(self)

    def _copy_hanging(self, agent_id: Hashable, other: RLlibEpisode) -> None:
        """Do nothing, because concat_episode() copies hanging data of all agents.

        RLlib would treat an agent with a reward as having acted (15).
        """

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Any:
        # 13, 55
        if slice_.step not in (1, None):
            raise NotImplementedError(f"slices of env steps must have a step of 1, got {slice_.step}")
        start, stop, _ = slice_.indices(len(self))
        return slice_of(self, start, stop, len_lookback_buffer)

    def __deepcopy__(self, memo: dict) -> "MultiAgentEpisode":
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        for name in RLlibEpisode.__slots__:
            setattr(copied, name, copy.deepcopy(getattr(self, name), memo))
        chunks.prepare_for_replay(copied)  # 17: replay buffers keep deep copies
        return copied

    # State.

    def __reduce_ex__(self, protocol: Any) -> Any:
        origin = getattr(self, "_origin", None)
        if origin is not None and isinstance(origin[0], SampleBlock):
            was_looked_at = any(is_set(self, slot) for slot in LATE)
            if (arguments := shipping.reduced(self, origin[0], origin[1], was_looked_at)) is not None:
                return arguments
            self.agent_episodes  # noqa: B018  builds it, if necessary
            del self._origin
        reduced: Any = super().__reduce_ex__(protocol)
        reduced[2][1].pop("_numbers", None)  # from the slots: copies are not counted in metrics
        return reduced

    def get_state(self) -> dict[str, Any]:
        state = super().get_state()
        for _, agent_episode in state["agent_episodes"]:
            extras = agent_episode["extra_model_outputs"] or {}
            for key, column in extras.items():
                if isinstance(column, InfiniteLookbackBuffer):  # 56: RLlib treats it as empty
                    extras[key] = column.get_state()
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "MultiAgentEpisode":
        episode = chunks.as_kind(cls, RLlibEpisode.from_state(state))
        lookbacks = [times.lookback for times in episode.env_t_to_agent_t.values()]
        episode._len_lookback_buffers = max(lookbacks, default=0)
        return episode

    # Queries.

    @property
    def is_numpy(self) -> bool:
        # 30: RLlib keeps agent episodes without a step as lists, and an episode may have no agent episodes.
        with_steps = [agent_episode.is_numpy for agent_episode in self.agent_episodes.values() if len(agent_episode)]
        if len(set(with_steps)) > 1:
            raise RuntimeError(f"{self} has some agents' data as arrays and others' as lists; call to_numpy() first")
        return any(with_steps or (each.observations.finalized for each in self.agent_episodes.values()))

    def get_agents_that_stepped(self) -> set[Hashable]:
        # Called by each pipeline piece for each episode in each env step, so it avoids reading observations.
        return set(chunks.last_observed(self))

    def get_agents_to_act(self) -> set[Hashable]:
        return {agent for agent in chunks.last_observed(self) if not self.agent_episodes[agent].is_done}

    def get_truncateds(self) -> dict[Hashable, bool]:
        return {**super().get_truncateds(), "__all__": self.is_truncated}  # 12

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Any = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        # 53
        options = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill}
        if return_list or (key is None and env_steps and isinstance(indices, int)):
            return super().get_extra_model_outputs(
                key, indices, agent_ids, env_steps=env_steps, return_list=return_list, **options
            )
        wanted = set(force_list(agent_ids)) or self.agent_ids
        columns = {agent: each.extra_model_outputs for agent, each in self.agent_episodes.items() if agent in wanted}
        if key is None:
            found: dict[Hashable, dict] = {agent: {} for agent in columns}
            for name in dict.fromkeys(name for of_agent in columns.values() for name in of_agent):
                outputs = self.get_extra_model_outputs(name, indices, list(columns), env_steps=env_steps, **options)
                for agent, values in outputs.items():
                    found[agent][name] = values
            return {agent: values for agent, values in found.items() if values}
        having = [agent for agent, of_agent in columns.items() if key in of_agent]
        if columns and not having:
            raise KeyError(key)
        if env_steps:
            return super().get_extra_model_outputs(key, indices, having, **options) if having else {}
        hanging = {agent: (self._hanging_extra_model_outputs_end.get(agent) or {}).get(key) for agent in having}
        return {
            agent: columns[agent][key].get(indices, _add_last_ts_value=hanging[agent], **options) for agent in having
        }

    def print(self) -> None:
        """Print a table of the env steps in which each agent was observed."""
        lookback = max((times.lookback for times in self.env_t_to_agent_t.values()), default=0)
        n = max((len(times.data) for times in self.env_t_to_agent_t.values()), default=0)
        width = max((len(str(agent)) for agent in self.env_t_to_agent_t), default=0)  # 38: ids of any type
        lines = ["ts" + " " * width + "   ".join(str(t) for t in range(-lookback, n - lookback))]
        for agent, times in self.env_t_to_agent_t.items():
            marks = "".join("    " if step == self.SKIP_ENV_TS_TAG else " x  " for step in times.data)
            lines.append(f"{agent!s:{width}}  {marks}".rstrip())
        print("\n".join(lines))  # noqa: T201

    # Internals of the getters.

    def _get_hanging_value(self, what: str, agent_id: Hashable) -> Any:
        # 61: RLlib keeps rewards of 0 for agents that are not waiting.
        return super()._get_hanging_value(what, agent_id) if agent_id in self._hanging_actions_end else None

    def _get(self, **options: Any) -> Any:
        # 54, 57: RLlib getters need an entry per env step for each agent with any entry.
        view = chunks.aligned_view(self)
        return super()._get(**options) if view is self else view._get(**options)

    def _get_data_by_env_steps(
        self,
        *,
        what: str,
        indices: Any,
        agent_ids: Collection[Hashable],
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: Any,
        extra_model_outputs_key: str | None,
    ) -> dict[Hashable, Any]:
        # 57: RLlib compares steps counted from the beginning of the episode with chunk lengths, and loses steps.
        found = {}
        for agent in [agent for agent in self.agent_episodes if agent in agent_ids]:
            hanging = self._get_hanging_value(what, agent)
            steps = self.env_t_to_agent_t[agent].get(
                indices,
                neg_index_as_lookback=neg_index_as_lookback,
                fill=self.SKIP_ENV_TS_TAG if fill is not None else None,
                _ignore_last_ts=what not in OF_OBSERVATIONS,
            )
            rows = self._rows(agent, steps, None if what in OF_OBSERVATIONS else hanging is not None)
            asked: dict[str, Any] = {
                "what": what,
                "agent_id": agent,
                "fill": fill,
                "one_hot_discrete": one_hot_discrete,
                "extra_model_outputs_key": extra_model_outputs_key,
                "hanging_val": hanging,
            }
            values = self._values(agent, rows, asked)
            if values is not None:
                found[agent] = values
        return found

    def _values(self, agent: Hashable, rows: Any, asked: dict[str, Any]) -> Any:
        """Return the values in the buffers of an agent at `rows`, or None if there are none."""
        column = getattr(self.agent_episodes[agent], asked["what"])
        if isinstance(rows, list):
            values: Any = self._get_single_agent_data_by_env_step_indices(indices_incl_lookback=rows, **asked)
            return values if len(values) > 0 else None
        if asked["what"] == "extra_model_outputs" and not column and not asked["hanging_val"]:
            return None
        return self._get_single_agent_data_by_index(inf_lookback_buffer=column, index_incl_lookback=rows, **asked)

    def _rows(self, agent: Hashable, steps: Any, hangs: bool | None) -> Any:
        """Convert agent steps to indices into the agent episode buffers, or to "S" where there is no value.

        Args:
            agent: Agent id.
            steps: An agent step, "S", or a list of them.
            hangs: True if the agent has a hanging action beyond the buffer, or None if observations are requested.
        """
        agent_episode, skipped = self.agent_episodes[agent], self.SKIP_ENV_TS_TAG
        if isinstance(steps, list):
            return [self._rows(agent, step, hangs) for step in steps]
        if steps == skipped:
            return skipped
        row = steps - self.agent_t_started[agent] + agent_episode.observations.lookback
        unanswered = hangs is not None and row == agent_episode.actions.len_incl_lookback() + hangs
        return skipped if unanswered else row


def episode_class(fixes: frozenset[str]) -> type[MultiAgentEpisode]:
    """Return the episode class with these corrections, cached and importable by name, so that it can be pickled.

    Args:
        fixes: Numbers of corrections; those that do not concern episodes are ignored.
    """
    own = fixes & EPISODE_FIXES
    return _with_fixes(own) if own else MultiAgentEpisode


def __getattr__(name: str) -> Any:
    """Return classes with corrections by name: `MultiAgentEpisode__01_45` has the corrections 01 and 45."""
    fixes = frozenset(name.partition("__")[2].split("_"))
    if not fixes <= EPISODE_FIXES or name != _name_with(fixes):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _with_fixes(fixes)


def _name_with(fixes: frozenset[str]) -> str:
    return f"{MultiAgentEpisode.__name__}__{'_'.join(sorted(fixes))}"


@cache
def _with_fixes(fixes: frozenset[str]) -> type[MultiAgentEpisode]:
    members = {"__module__": __name__, "__slots__": (), "__doc__": MultiAgentEpisode.__doc__, "fixes": fixes}
    return type(_name_with(fixes), (MultiAgentEpisode,), members)
