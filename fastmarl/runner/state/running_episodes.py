"""Running episodes as plain data, which another runner can continue.

Agents are identified by their index among the agents of all these episodes, in episode order. Their ids are stored in
the form returned by `_stored_ids()`.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.checkpoint.folder import is_key, stored_key
from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, check_mapping, column_of, whole_number
from fastmarl.core.inference.actors import MappingFn, Policies
from fastmarl.core.inference.row_states import ModuleRowsState, rows_state
from fastmarl.core.store.store import INACTIVE

OF_AGENTS = {"t_started": ("t_started_L", np.int64), "return": ("return_L", np.float64), "steps": ("steps_L", np.int64)}
COUNTS = ("env_t_started", "lookback", "env_states_from")
BY_AGENT = {"early_rewards": float, "agent_returns": float, "agent_steps": int}
OF_EPISODES = (
    "id_", "env_index", "env_t", *COUNTS, "duration_s", "reset_seed", "agent_ids", "acting", "finished", *BY_AGENT,
    "module_of", "module_returns", "custom_data", "infos", "env_states",
)  # fmt: skip
IDS = ("agent_ids", "finished", *BY_AGENT, "module_of")  # lists of agent ids, and dicts keyed by agent id
MOST_STEPS = 2**31 - 2


def episodes_state(log: EpisodeLog, policies: Policies, env_indices: Sequence[int]) -> dict[str, Any]:
    """Return the running episodes of these envs at the end of a call; its arrays may share memory with the store."""
    store, table = log.store, log.store.table
    known = table.known_agents
    lanes = np.array([lane for env_index in env_indices for lane in table.record(env_index).lanes], np.int32)
    numbers = np.full(len(table.row_L), -1, np.int64)
    numbers[lanes] = np.arange(len(lanes))
    modules = {
        store.module_ids[module]: rows_state(
            policies.at(module), store.blocks[module], store.acting_from[module], lanes, numbers
        )
        for module in store.active
    }
    return {
        "episodes": [_with_ids(_episode_state(log, index), _stored_ids(known[index])) for index in env_indices],
        "agents": {name: getattr(table, array)[lanes] for name, (array, _) in OF_AGENTS.items()},
        "modules": {module_id: state for module_id, state in modules.items() if len(state["agent"])},
    }


def no_episodes() -> dict[str, Any]:
    """Return the state that means "no running episodes"."""
    return {
        "episodes": [],
        "agents": {name: np.zeros(0, dtype) for name, (_, dtype) in OF_AGENTS.items()},
        "modules": {},
    }


def _episode_state(log: EpisodeLog, env_index: int) -> dict[str, Any]:
    table, ids = log.store.table, log.store.module_ids
    record, env = table.record(env_index), table.envs[env_index]
    indices = {lane: index for index, lane in enumerate(record.lanes)} | {-1: -1}
    return {
        "id_": record.id_,
        "env_index": env_index,
        "env_t": env.env_t,
        **{name: getattr(record, name) for name in COUNTS},
        "duration_s": log.clock.now() - record.started_at,
        "reset_seed": None if record.reset_seed < 0 else record.reset_seed,
        "agent_ids": [table.agent_ids[lane] for lane in record.lanes],
        "acting": [indices[lane] for lane in env.acting()],
        "finished": list(record.finished),
        **{name: dict(getattr(record, name)) for name in BY_AGENT},
        "module_of": {agent: ids[module] for agent, module in record.module_of.items()},
        "module_returns": {ids[module]: total for module, total in record.module_returns.items()},
        "custom_data": record.custom_data,
        "infos": [[env_t, indices[lane], info] for env_t, lane, info in env.infos],
        "env_states": log.kept_states(env_index),
    }


def fits_checkpoint(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint can store all agent ids of these episodes, at least as text."""
    return all(is_key(agent_id) for episode in state["episodes"] for name in IDS for agent_id in episode[name])


def _stored_ids(known: Collection[Hashable]) -> dict[Hashable, Hashable]:
    """Return agent id -> the form in which a state stores it.

    Args:
        known: `possible_agents` of the env, in which a restored runner looks up the ids.

    Returns:
        The dict, empty if two ids would be stored in the same form.
    """
    stored = {agent_id: stored_key(agent_id) for agent_id in known}
    return stored if len(set(stored.values())) == len(stored) else {}


def _with_ids(episode: Mapping[str, Any], ids: Mapping[Hashable, Hashable]) -> dict[str, Any]:
    """Replace the agent ids in an episode state according to `ids`, keeping all others."""
    changed: dict[str, Any] = dict(episode)
    for name in IDS:
        if isinstance(values := episode[name], dict):
            changed[name] = {ids.get(agent_id, agent_id): value for agent_id, value in values.items()}
        else:
            changed[name] = [ids.get(agent_id, agent_id) for agent_id in values]
    return changed


class EpisodesState:
    """The validated result of `episodes_state()`.

    Args:
        state: Result of `episodes_state()`.
        log, policies: Log and policies of the runner that will continue the episodes.
        in_arrays: True if the envs are array-based batches.

    Attributes:
        env_indices: Ascending env indices of the episodes.
        fits_agents: False if the episodes cannot continue because an id is not in `possible_agents` of its env.

    Raises:
        ConfigError: If the state is damaged or does not match this log and these policies.
    """

    def __init__(self, state: Mapping[str, Any], log: EpisodeLog, policies: Policies, *, in_arrays: bool):
        if not isinstance(state["episodes"], list):
            raise ConfigError(f"the running episodes must be a list, got {type(state['episodes']).__name__}")
        self._log, self._policies = log, policies
        self._modules = policies.indices()
        self._episodes = [self._checked_episode(episode) for episode in state["episodes"]]
        self.env_indices: list[int] = [episode["env_index"] for episode in self._episodes]
        known = log.store.table.known_agents
        n_envs = len(known)
        if sorted(set(self.env_indices)) != self.env_indices or (self.env_indices and self.env_indices[-1] >= n_envs):
            raise ConfigError(f"running episodes need ascending env indices below {n_envs}, got {self.env_indices}")
        own = [{stored: id_ for id_, stored in _stored_ids(known[index]).items()} for index in self.env_indices]
        self._episodes = [_with_ids(episode, ids) for episode, ids in zip(self._episodes, own, strict=True)]
        self.fits_agents = all(
            not known[episode["env_index"]] or known[episode["env_index"]].issuperset(episode[name])
            for episode in self._episodes
            for name in IDS
        )
        for episode in self._episodes:
            log.check_states(episode["env_index"], episode["env_states"])
        self._ends = np.cumsum([len(episode["agent_ids"]) for episode in self._episodes], dtype=np.int64)
        n = int(self._ends[-1]) if self._episodes else 0
        check_keys("the agents of running episodes", state["agents"], OF_AGENTS)
        self._of_agents = {
            array: column_of(f"{name} of agents", state["agents"][name], n, dtype)
            for name, (array, dtype) in OF_AGENTS.items()
        }
        check_mapping("the rows of running episodes", state["modules"])
        rows_of = {self._index_of(module_id): rows for module_id, rows in state["modules"].items()}
        self._rows = {module: ModuleRowsState(policies.at(module), rows, n) for module, rows in rows_of.items()}
        self._module_of_agents = self._checked_agents(n, in_arrays)

    def put(self, mapping_fn: MappingFn | None) -> None:
        """Add the episodes to the log, which must be empty, so that they continue."""
        log, store, table = self._log, self._log.store, self._log.store.table
        lanes = table.take_lanes([agent for episode in self._episodes for agent in episode["agent_ids"]])
        table.module_L[lanes] = self._module_of_agents
        for array, values in self._of_agents.items():
            getattr(table, array)[lanes] = values
        for module, rows in self._rows.items():
            if store.blocks[module] is INACTIVE:
                store.activate(module)
            rows.put(store.blocks[module], table, lanes)
            store.acting_from[module] = rows.n_acted
        log.open_episodes(self.env_indices)
        self._policies.begin_episodes(self.env_indices, mapping_fn)
        for episode, of_episode in self._by_episode(lanes):
            self._put_episode(episode, of_episode.tolist())
        store.begin_actions()
        self._policies.end_evaluation()  # restored modules are in evaluation mode

    def _by_episode(self, values: np.ndarray) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yield each episode with the entries of `values` for its agents."""
        return zip(self._episodes, np.split(values, self._ends)[:-1], strict=True)

    def _put_episode(self, episode: dict[str, Any], lanes: list[int]) -> None:
        log, table, env_index = self._log, self._log.store.table, episode["env_index"]
        table.env_L[lanes] = env_index
        record, env = table.record(env_index), table.envs[env_index]
        record.id_ = episode["id_"]
        record.started_at = log.clock.now() - episode["duration_s"]
        record.reset_seed = -1 if episode["reset_seed"] is None else episode["reset_seed"]
        for name in COUNTS:
            setattr(record, name, episode[name])
        record.lanes += lanes
        record.finished.update(dict.fromkeys(episode["finished"], -1))
        for name in BY_AGENT:
            getattr(record, name).update(episode[name])
        record.module_of.update({agent: self._modules[id_] for agent, id_ in episode["module_of"].items()})
        record.module_returns.update({self._modules[id_]: total for id_, total in episode["module_returns"].items()})
        record.custom_data = episode["custom_data"]
        infos = [(env_t, lanes[index] if index >= 0 else -1, info) for env_t, index, info in episode["infos"]]
        acting = [lanes[index] for index in episode["acting"]]
        table.place_L[acting] = np.arange(len(acting))
        env.resume(episode["env_t"], table.agent_ids, lanes, acting, infos)
        for agent_id in episode["agent_ids"]:
            if agent_id not in table.spaces[env_index]:
                table.on_new_agent(env_index, agent_id)
        log.put_states(env_index, episode["env_states"], episode["env_t"])

    # Checks.

    def _index_of(self, module_id: Any) -> int:
        if not isinstance(module_id, str) or module_id not in self._modules:
            raise ConfigError(f"running episodes use the unknown module {module_id!r}; the modules are "
                              f"{list(self._modules)}")  # fmt: skip
        return self._modules[module_id]

    def _checked_episode(self, episode: Any) -> dict[str, Any]:
        check_keys("a running episode", episode, OF_EPISODES)
        if not isinstance(episode["id_"], str) or not isinstance(episode["custom_data"], dict):
            raise ConfigError("a running episode must have a string as id_ and a dict as custom_data")
        for name in ("env_index", "env_t", *COUNTS):
            if whole_number(f"{name} of an episode", episode[name]) > MOST_STEPS:
                raise ConfigError(f"{name} of an episode must be at most {MOST_STEPS}, got {episode[name]}")
        if max(episode[name] for name in COUNTS) > episode["env_t"]:
            raise ConfigError(f"an episode of {episode['env_t']} env steps can't have a chunk that starts later")
        if episode["reset_seed"] is not None:
            whole_number("reset_seed of an episode", episode["reset_seed"])
        _check_number("duration_s of an episode", episode["duration_s"], float)
        for name in (*BY_AGENT, "module_of", "module_returns"):
            check_mapping(f"{name} of an episode", episode[name])
        for name, kind in {**BY_AGENT, "module_returns": float}.items():
            for number in episode[name].values():
                _check_number(f"{name} of an episode", number, kind)
        for module_id in (*episode["module_of"].values(), *episode["module_returns"]):
            self._index_of(module_id)
        for name in ("agent_ids", "finished", "acting"):
            _check_ids(name, episode[name])
        n_agents = len(episode["agent_ids"])
        for index in episode["acting"]:
            _check_index("acting", index, n_agents)
        if min(episode["acting"], default=0) < 0:
            raise ConfigError(f"acting of an episode must be non-negative indices, got {episode['acting']}")
        _check_infos(episode["infos"], n_agents)
        return dict(episode)

    def _checked_agents(self, n: int, in_arrays: bool) -> np.ndarray:
        """Return the module index of each agent, int32 of shape (n,).

        Raises:
            ConfigError: If an agent does not have rows of exactly one module, or if the agents about to act are not
                those whose last row waits for an action.
        """
        module_of = np.full(n, -1, np.int32)
        waits = np.zeros(n, np.bool_)
        for module, rows in self._rows.items():
            if (module_of[rows.agents] >= 0).any():
                raise ConfigError("an agent of a running episode has rows of more than one module")
            module_of[rows.agents] = module
            waits[rows.agents] = rows.last_rows >= rows.n_acted
        if (module_of < 0).any():
            raise ConfigError("an agent of a running episode has no rows")
        for episode, of_episode in self._by_episode(waits):
            expected = [] if in_arrays else np.flatnonzero(of_episode).tolist()
            if sorted(episode["acting"]) != expected:
                raise ConfigError(f"'acting' of env {episode['env_index']} must list the agents whose last rows have "
                                  f"no action yet: expected {expected}, got {episode['acting']}")  # fmt: skip
        return module_of


def _check_number(what: str, value: Any, kind: type) -> None:
    """Raise ConfigError unless `value` is a non-negative int or a float, depending on `kind`."""
    if kind is int:
        whole_number(what, value)
    elif not isinstance(value, float):
        raise ConfigError(f"{what} must be a float, got {value!r:.200}")


def _check_ids(name: str, values: Any) -> None:
    try:
        are_fit = isinstance(values, list) and len(set(values)) == len(values)
    except TypeError:
        are_fit = False
    if not are_fit:
        raise ConfigError(f"{name} of an episode must be a list of distinct ids, got {values!r:.200}")


def _check_index(name: str, value: Any, n: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < n:
        raise ConfigError(f"{name} of an episode must be indices of its {n} agents, got {value!r:.200}")


def _check_infos(infos: Any, n_agents: int) -> None:
    if not isinstance(infos, list):
        raise ConfigError(f"infos of an episode must be a list, got {type(infos).__name__}")
    for entry in infos:
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], dict):
            raise ConfigError(f"infos of an episode must be [env step, agent index, dict], got {entry!r:.200}")
        whole_number("the env step of an info", entry[0])
        _check_index("infos", entry[1], n_agents)
