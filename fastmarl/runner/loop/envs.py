"""Environments of a runner: created in this process or in workers, checked for consistency, and stepped as a vector."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.base import env_spaces, named_agents
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.form import check_spaces, possible_agents_of
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.envs.states import state_space_of
from fastmarl.core.errors import ConfigError, EnvCheckError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.store.agent_spaces import MOST_AGENTS, Spaces
from fastmarl.core.store.env_states import EnvStates
from fastmarl.core.vector.arrays.vector import ArrayVector
from fastmarl.core.vector.inprocess import InProcessVector, SplitVector
from fastmarl.core.vector.seeds import Streams
from fastmarl.core.vector.wiring import VectorParts
from fastmarl.core.vector.workers.env_workers import EnvWorkers
from fastmarl.core.vector.workers.process import WorkerOptions
from fastmarl.core.vector.workers.vector import ProcessVector

SAME_IN_SPLITS = ("groups", "observation_spaces", "action_spaces")


class Envs:
    """The envs of a runner and the spaces of their agents."""

    def __init__(self, config: EnvRunnerConfig):
        n = config.num_envs_per_env_runner
        self.contexts = [_context(config, i, n) for i in range(n)]
        self.all: list[Any] = []
        self.workers: EnvWorkers | None = None
        self._to_close: list[Any] = []
        self._spaces: list[dict[Hashable, Spaces]] = [{} for _ in self.contexts]
        if config.gym_env_vectorize_mode == "async":
            self.workers = EnvWorkers(
                config.env,
                self.contexts,
                num_workers=config.num_env_workers,
                options=WorkerOptions(config.env_worker_start_method, config.step_timeout_s),
                records_states=config.record_env_state,
                entropy=Streams(config.seed, config.stream_index, config.incarnation).of_worker,
            )
            self.all = self.workers.envs
            self._to_close = [self.workers]
        else:
            self._make(config)
        agents = [possible_agents_of(env) for env in self.all]
        self.possible_agents = agents[:1] * n if self.is_batch else agents

    def _make(self, config: EnvRunnerConfig) -> None:
        self._create = env_creator(config.env)
        try:
            first = self._add(self.contexts[0])
            if self.is_batch:
                if config.restart_failed_sub_environments:
                    raise ConfigError(f"restart_failed_sub_environments is for single envs, but {type(first).__name__} "
                                      f"is a batch of envs; set it to False")  # fmt: skip
                _check_size(first, config.num_envs_per_env_runner)
                if config.worker_num_splits > 1:
                    self._split(config, config.worker_num_splits)
            else:
                for context in self.contexts[1:]:
                    self._add(context)
            for env_index, env in enumerate(self.all):
                check_spaces(env, env_index)
        except BaseException:
            self.close()
            raise

    def _add(self, context: EnvContext) -> Any:
        self.all.append(as_multi_agent_env(self._create(context)))
        self._to_close.append(self.all[-1])
        return self.all[-1]

    def _split(self, config: EnvRunnerConfig, n_splits: int) -> None:
        """Replace the batch with `n_splits` smaller ones; an env must be created to see that it is a batch."""
        whole, self.all = self.all[0], []
        if not whole.may_take_turns:
            name = type(whole).__name__
            raise ConfigError(f"worker_num_splits must be 1 for {name}, because its batches share random generators")
        self.close()
        for first in range(n_splits):
            size = len(self.contexts[first::n_splits])
            split = self._add(_context(config, first, size))
            _check_size(split, size)
            if any(getattr(whole, name) != getattr(split, name) for name in SAME_IN_SPLITS):
                raise EnvCheckError(f"{type(split).__name__} has different agents or spaces in a batch of {size} envs "
                                    f"than in one of {whole.num_envs}: {split.observation_spaces!r:.200}")  # fmt: skip

    def remake(self, env_index: int) -> None:
        """Replace an env with a new one and close the old one if possible.

        Raises:
            EnvCheckError: If the new env has different agents or spaces. Constructor errors propagate.
        """
        old, self._to_close[env_index] = self._to_close[env_index], None
        if old is not None:
            with suppress(Exception), exits_as_errors():
                old.close()
        new = as_multi_agent_env(self._create(self.contexts[env_index]))
        self.all[env_index] = self._to_close[env_index] = new
        before = self._spaces[env_index]
        self._spaces[env_index] = {}
        check_spaces(new, env_index)
        agents = possible_agents_of(new)
        if agents != self.possible_agents[env_index]:
            raise EnvCheckError(f"env {env_index} was recreated with different possible_agents: expected "
                                f"{self.possible_agents[env_index]!r:.200}, got {agents!r:.200}")  # fmt: skip
        for agent in before.keys() & set(agents):
            if self.spaces(env_index, agent) != before[agent]:
                raise EnvCheckError(f"env {env_index} was recreated with different spaces of agent {agent!r}: expected "
                                    f"{before[agent]}, got {self.spaces(env_index, agent)}")  # fmt: skip

    def remake_missing(self) -> None:
        """Rebuild the envs whose last `remake()` was interrupted or failed."""
        for env_index, env in enumerate(self._to_close):
            if env is None:
                self.remake(env_index)

    @property
    def is_batch(self) -> bool:
        """True if the envs are batches: objects that each step several envs at a time."""
        return isinstance(self.all[0], ArrayEnv)

    @property
    def named_agents(self) -> list[Any]:
        """Ids of the agents in the first env whose spaces are known in advance."""
        first = self.all[0]
        return self.possible_agents[0] or (first.named_agents if self.workers else named_agents(first))

    def spaces(self, env_index: int, agent_id: Hashable) -> Spaces:
        """Return the (observation space, action space) of an agent."""
        known = self._spaces[env_index]
        if agent_id not in known:
            if len(known) > MOST_AGENTS:
                known.clear()
            known[agent_id] = env_spaces(self.all[0 if self.is_batch else env_index], agent_id)
        return known[agent_id]

    def close(self) -> None:
        """Close all envs, then raise the first error."""
        errors = []
        while self._to_close:  # so that an interrupted call can be repeated
            try:
                if hasattr(self._to_close[0], "close"):
                    with exits_as_errors():
                        self._to_close[0].close()
            except Exception as error:
                errors.append(error)
            del self._to_close[0]
        if errors:
            raise errors[0]


def _context(config: EnvRunnerConfig, vector_index: int, num_envs: int) -> EnvContext:
    return EnvContext(
        config.env_config,
        config.worker_index,
        vector_index,
        remote=config.gym_env_vectorize_mode == "async",
        num_workers=config.num_env_runners,
        recreated_worker=config.incarnation > 0,
        num_envs=num_envs,
    )


def _check_size(batch: ArrayEnv, num_envs: int) -> None:
    if batch.num_envs != num_envs:
        raise ConfigError(f"expected a batch of {num_envs} envs (num_envs_per_env_runner / worker_num_splits), got "
                          f"{type(batch).__name__} with {batch.num_envs}; create env_config.num_envs envs in the "
                          f"function that makes the batch")  # fmt: skip


def make_env_states(envs: Sequence[Any]) -> list[EnvStates]:
    """Create a state recorder for each env.

    Raises:
        EnvCheckError: If an env has no `state()`, or its `state_space` does not consist of arrays.
    """
    if isinstance(envs[0], ArrayEnv):
        space = state_space_of(envs[0], 0)
        return [EnvStates(env_index, space) for env_index in range(sum(batch.num_envs for batch in envs))]
    return [EnvStates(env_index, state_space_of(env, env_index)) for env_index, env in enumerate(envs)]


def make_vector(
    envs: list[Any] | EnvWorkers, parts: VectorParts, remake: Callable[[int], None]
) -> InProcessVector | ArrayVector | ProcessVector:
    """Create the vector for single envs, batches, or envs in worker processes.

    Args:
        envs: Single envs, batches of them, or workers.
        parts: Objects used by the vector.
        remake: Replaces the env at an index of `envs` with a new one.
    """
    if not isinstance(envs, list):
        return ProcessVector(envs, parts)
    if isinstance(envs[0], ArrayEnv):
        return ArrayVector(envs, parts)
    if parts.num_splits > 1:
        return SplitVector(envs, parts, remake, parts.num_splits)
    return InProcessVector(envs, parts, remake)
