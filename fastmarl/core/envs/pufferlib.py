"""Adapter from native PufferLib envs, which write to arrays with one row per agent, to the array protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.objects.public import public

AGENTS = "agents"  # name of the only group
HAS = ("single_observation_space", "single_action_space", "num_agents", "observations", "terminals", "masks")


@public("fastmarl.envs")
class PufferLibEnv(EnvAdapter, ArrayEnv):
    """Adapts a native `pufferlib.PufferEnv`.

    Its `num_agents` rows are split into `num_envs` envs of consecutive rows; the agents of each env are 0, 1, ...

    An episode is over when the flags of all rows of the env are set. A row whose flag is set earlier has finished. It
    rejoins once its flag is False again, which requires the option `respawn=True`; rewards in between are not recorded.
    With one env per row (`num_envs=env.num_agents`), as in PufferLib, no steps of such rows are lost.

    These envs restart in the same step that ends an episode and do not return the last observation, so the observation
    before it is recorded in its place. They cannot be reset individually: if the episode of an env is dropped, its
    agents are not observed until that episode is over. Only the first seed is used, for all envs.

    Args:
        env: The env to adapt. Its C code keeps pointers to its buffers, so the data of each step is copied.
        num_envs: Number of envs to split the rows into; None for one env per row.
        autoreset_mode: NEXT_STEP if the env returns the last observation together with the flags and restarts in the
            following step, in which no agent acts.

    Attributes:
        infos: Infos from the last step; in PufferLib, statistics over all envs. They are not recorded.

    Raises:
        EnvCheckError: If `num_envs` does not divide the number of rows, `env` is not a native PufferEnv, or
            `autoreset_mode` is invalid.
    """

    may_take_turns = False  # all envs of PufferLib 3.0.0 share C's rand()

    def __init__(
        self, env: Any, num_envs: int | None = None, *, autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP
    ):
        if getattr(env, "emulated", False):
            raise EnvCheckError("expected a native PufferEnv, got one that emulates another environment; pass that one")
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise EnvCheckError(f"autoreset_mode must be SAME_STEP or NEXT_STEP, got {autoreset_mode}")
        n_rows = env.num_agents
        num_envs = n_rows if num_envs is None else num_envs
        if num_envs < 1 or n_rows % num_envs:
            raise EnvCheckError(f"{type(env).__name__} has {n_rows} rows, not divisible by num_envs={num_envs}")
        self.env = env
        self.infos: list[dict] = []
        self._has_last = autoreset_mode is AutoresetMode.NEXT_STEP
        self._shape = num_envs, n_rows // num_envs
        self._away = np.zeros(self._shape, np.bool_)  # finished rows that have not rejoined
        self._over = np.zeros(num_envs, np.bool_)  # envs whose episode ended in the last step; they have restarted
        self._waits = np.zeros(num_envs, np.bool_)  # envs whose dropped episode is still running
        self._rng = np.random.default_rng()
        observations, actions = env.single_observation_space, env.single_action_space
        super().__init__(num_envs, {AGENTS: range(self._shape[1])}, {AGENTS: observations}, {AGENTS: actions})

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` has the attributes of a PufferEnv."""
        return all(hasattr(env, name) for name in HAS)

    @property
    def unwrapped(self) -> Any:
        """The adapted PufferEnv itself."""
        return self.env

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        agents, over = out.groups[AGENTS], self._over[env_indices]
        if len(env_indices) == self.num_envs and not over.all():
            self._reset_all(seeds)
            begin = env_indices
        else:
            dropped, begin = env_indices[~over], env_indices[over]
            self._waits[dropped] = self._away[dropped] = True
            agents.present[dropped] = False
            if self._has_last:  # the next step restarts these envs; until then their agents are not observed
                agents.present[begin] = False
                return
        self._away[begin] = False
        agents.obs[begin] = self._by_env(self.env.observations)[begin]
        agents.present[begin] = self._by_env(self.env.masks)[begin]

    def _reset_all(self, seeds: Sequence[int] | None) -> None:
        if seeds is not None:
            self._rng = np.random.default_rng(seeds[0])
        # PufferLib seeds each env with `seed * number of envs + env index`, which must fit in a C int.
        _, self.infos = self.env.reset(seed=int(self._rng.integers(2**31 // self.env.num_agents)))
        self._waits[:] = False

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        agents, acted = out.groups[AGENTS], actions[AGENTS]
        self._over[:] = False  # stays False if this step fails, which leaves the envs in an undefined state
        results = self.env.step(acted.reshape(self.env.num_agents, *acted.shape[2:]))
        agents.obs[...], agents.rewards[...], terminated, truncated = map(self._by_env, results[:4])
        agents.present[...] = self._by_env(self.env.masks)
        self.infos = results[4]
        flags = terminated.astype(np.bool_, copy=False) | truncated.astype(np.bool_, copy=False)
        if flags.any() or self._away.any():
            self._end(flags, terminated, out)

    def _end(self, flags: np.ndarray, terminated: np.ndarray, out: StepArrays) -> None:
        """Update finished, absent and returning rows from the flags of a step, bool [E, A]."""
        agents = out.groups[AGENTS]
        all_flagged = (flags | ~agents.present).all(1)
        agents.rewards[self._away] = 0.0  # rewards of absent rows are not recorded
        if self._waits.any():
            flags = np.where(self._waits[:, None], ~all_flagged[:, None] | self._has_last, flags)
            self._waits &= ~all_flagged
        ends = flags & ~self._away
        np.logical_and(ends, terminated, out=agents.terminated)
        np.greater(ends, agents.terminated, out=agents.truncated)
        self._over = all_flagged & ends.any(1)
        np.logical_and(self._over, agents.terminated.any(1), out=out.terminated)
        np.greater(self._over, out.terminated, out=out.truncated)
        agents.present[flags & self._away if self._has_last else flags] = False
        self._away = flags

    def _by_env(self, rows: Any) -> np.ndarray:
        """Reshape [num_agents, ...] to [E, A, ...]."""
        rows = np.asarray(rows)
        return rows.reshape(*self._shape, *rows.shape[1:])
