"""PufferLib's native envs, which write into arrays of rows, as a batch that steps in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.public import public

AGENTS = "agents"  # the one group
HAS = ("single_observation_space", "single_action_space", "num_agents", "observations", "terminals", "masks")


@public("fastmarl.envs")
class PufferLibEnv(EnvAdapter, ArrayEnv):
    """A native `pufferlib.PufferEnv`: of its `num_agents` rows, every `num_agents / num_envs` that follow one another
    are an env, with the agents 0, 1, ...

    An env's episode is over when all its rows have their flags set. A row whose flag is set before has ended; when its
    flag is False again it rejoins, which takes the config's `respawn=True`, and what it was paid in between is not
    recorded. Taken as envs of their own (`num_envs=env.num_agents`), as PufferLib does, such rows lose no step.

    These envs start over in the step that ends an episode, and don't return the last observation: in the record, the
    observation before that stands in for it. Nor can they start over one by one: where the episode of one env is
    dropped, nobody in it is observed until it is over. Only the first seed counts, for all.

    Args:
        env: C code keeps pointers to its buffers, so these stay its own, and each step is copied from them once.
        num_envs: how many envs the rows make up; None: each row is one.
        autoreset_mode: NEXT_STEP for an env that returns the last observation together with the flags, and starts over
            in the step after that; nobody acts in it.

    Attributes:
        infos: what the last step returned: in PufferLib, statistics of all envs together. They are not recorded.

    Raises:
        EnvCheckError: rows and `num_envs` don't fit, the env is an emulated one, or `autoreset_mode` is another.
    """

    may_take_turns = False  # all envs of PufferLib 3.0.0 draw from C's rand()

    def __init__(
        self, env: Any, num_envs: int | None = None, *, autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP
    ):
        if getattr(env, "emulated", False):
            raise EnvCheckError("expected a native PufferEnv, got one that emulates another environment; give that one")
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise EnvCheckError(f"autoreset_mode must be SAME_STEP or NEXT_STEP, got {autoreset_mode}")
        n_rows = env.num_agents
        num_envs = n_rows if num_envs is None else num_envs
        if num_envs < 1 or n_rows % num_envs:
            raise EnvCheckError(f"{type(env).__name__} has {n_rows} rows, which can't be divided among {num_envs} envs")
        self.env = env
        self.infos: list[dict] = []
        self._has_last = autoreset_mode is AutoresetMode.NEXT_STEP
        self._shape = num_envs, n_rows // num_envs
        self._away = np.zeros(self._shape, np.bool_)  # rows that have ended and not joined again
        self._over = np.zeros(num_envs, np.bool_)  # by the last step, in which they have started over
        self._waits = np.zeros(num_envs, np.bool_)  # for the end of an episode that was dropped
        self._rng = np.random.default_rng()
        observations, actions = env.single_observation_space, env.single_action_space
        super().__init__(num_envs, {AGENTS: range(self._shape[1])}, {AGENTS: observations}, {AGENTS: actions})

    @staticmethod
    def adapts(env: Any) -> bool:
        """Whether this is such an env."""
        return all(hasattr(env, name) for name in HAS)

    @property
    def unwrapped(self) -> Any:
        """The PufferEnv."""
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
            if self._has_last:  # the next step begins them, and nobody is observed until then
                agents.present[begin] = False
                return
        self._away[begin] = False
        agents.obs[begin] = self._by_env(self.env.observations)[begin]
        agents.present[begin] = self._by_env(self.env.masks)[begin]

    def _reset_all(self, seeds: Sequence[int] | None) -> None:
        if seeds is not None:
            self._rng = np.random.default_rng(seeds[0])
        # They seed each env with this times their number plus its index, as a C int.
        _, self.infos = self.env.reset(seed=int(self._rng.integers(2**31 // self.env.num_agents)))
        self._waits[:] = False

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        agents, acted = out.groups[AGENTS], actions[AGENTS]
        self._over[:] = False  # should this step fail, the envs stand in the middle of something
        results = self.env.step(acted.reshape(self.env.num_agents, *acted.shape[2:]))
        agents.obs[...], agents.rewards[...], terminated, truncated = map(self._by_env, results[:4])
        agents.present[...] = self._by_env(self.env.masks)
        self.infos = results[4]
        flags = terminated.astype(np.bool_, copy=False) | truncated.astype(np.bool_, copy=False)
        if flags.any() or self._away.any():
            self._end(flags, terminated, out)

    def _end(self, flags: np.ndarray, terminated: np.ndarray, out: StepArrays) -> None:
        """Who has ended, who stays away and who joins again, by the flags of a step, bool [E, A]."""
        agents = out.groups[AGENTS]
        all_flagged = (flags | ~agents.present).all(1)
        agents.rewards[self._away] = 0.0  # for what is not recorded
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
        """[num_agents, ...] -> [E, A, ...]."""
        rows = np.asarray(rows)
        return rows.reshape(*self._shape, *rows.shape[1:])
