"""Bare loops that step environments with ready-made actions: a lower bound on the runner's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.core.envs.values import random_action
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.spaces.masks import action_mask
from fastmarl.core.spaces.structs import map_struct

TICKS_PER_CALL = 128  # steps of each env per call of sample()
MAX_CALLS = 64
READY_ACTIONS = 16  # number of distinct actions per agent of a batch


def bare_envs(envs: list[Any], seed: int, seconds: float, most_calls: int = MAX_CALLS) -> BareEnvs | BareBatch:
    """Return a bare loop over the environments of a runner."""
    if isinstance(envs[0], ArrayEnv):
        return BareBatch(envs[0], seed, seconds, most_calls)
    return BareEnvs(envs, seed, seconds, most_calls=most_calls)


class BareEnvs:
    """Steps environments in a bare loop. Legal random actions are recorded once; `run()` replays and times them.

    Args:
        envs: Environments of a runner; adapters are removed.
        seed: Seed of the first reset. As in a runner, every reset is seeded, so all runs are identical.
        seconds: Approximate duration of the recorded steps, rounded up to a multiple of TICKS_PER_CALL ticks.
        given: Function that converts a legal action (an int for Discrete) to the action that a runner would pass to an
            env.
        most_calls: Maximum number of recorded steps per env, in units of TICKS_PER_CALL.
    """

    def __init__(
        self,
        envs: list[Any],
        seed: int,
        seconds: float,
        given: Callable[[Any], Any] = lambda action: action,
        most_calls: int = MAX_CALLS,
    ):
        self._envs = envs
        self._seed = seed
        self._steps: list[tuple[int, dict | None]] = []  # (env index, actions or None for a reset), in order
        self._schedule: list[Callable[[], Any]] = []  # the same steps as calls without adapters
        self.calls = 0
        self._record(seconds, given, most_calls)
        self._check_repeats()
        self.env_steps = self.calls * TICKS_PER_CALL * len(envs)
        self.agent_steps = sum(len(actions) for _, actions in self._steps if actions)
        _check_acted(self)

    def run(self) -> float:
        """Replay all steps once; return the microseconds per agent step, including resets."""
        begun = perf_counter()
        for call in self._schedule:
            call()
        return 1e6 * (perf_counter() - begun) / self.agent_steps

    def _record(self, seconds: float, given: Callable[[Any], Any], most_calls: int) -> None:
        spaces = [{agent: env_spaces(env, agent)[1] for agent in env.possible_agents} for env in self._envs]
        for i, of_agent in enumerate(spaces):
            for j, space in enumerate(of_agent.values()):
                space.seed(1000 * i + j)
        acting = [_who_acts(self._add(i, None)) for i in range(len(self._envs))]
        begun = perf_counter()
        while self.calls < most_calls and (not self.calls or perf_counter() - begun < seconds):
            self.calls += 1
            for _ in range(TICKS_PER_CALL):
                for i, of_agent in enumerate(spaces):
                    actions = {agent: given(random_action(of_agent[agent], mask)) for agent, mask in acting[i].items()}
                    came = self._add(i, actions)
                    acting[i] = _who_acts(self._add(i, None) if _is_over(came) else came)

    def _add(self, i: int, actions: dict | None) -> tuple:
        """Step or reset an env, record the call, and return its result."""
        index = len(self._steps)
        self._steps.append((i, actions))
        came = self._play(index)
        self._schedule += _bare_calls(self._envs[i], actions, self._seed + index, came)
        return came

    def _play(self, index: int) -> tuple:
        """Execute the recorded step or reset at this index and return its result."""
        i, actions = self._steps[index]
        env = self._envs[i]
        return env.reset(seed=self._seed + index) if actions is None else env.step(actions)

    def _check_repeats(self) -> None:
        acting: dict[int, dict] = {}
        for index, (i, actions) in enumerate(self._steps):
            if actions is not None and list(acting[i]) != list(actions):
                raise EnvCheckError(
                    f"{type(_without_adapter(self._envs[i])).__name__}: different agents act after the same "
                    "reset(seed) and actions, so it can't be stepped with ready-made actions; derive all randomness "
                    "from that seed"
                )
            acting[i] = _who_acts(self._play(index))


class BareBatch:
    """Steps a batch of environments in a bare loop. Random actions are sampled once; `run()` replays and times them.

    Times include the copies made by adapters.

    Args:
        env: Env batch of a runner.
        seed: Env i is first reset with `seed + i`; later resets are seeded if a runner would seed them.
        seconds: Approximate duration of a run, rounded up to a multiple of TICKS_PER_CALL ticks.
        most_calls: Maximum number of steps per env, in units of TICKS_PER_CALL.
    """

    def __init__(self, env: ArrayEnv, seed: int, seconds: float, most_calls: int):
        self._env = env
        self._all = np.arange(env.num_envs)
        self._seeds = [seed + i for i in range(env.num_envs)]
        self._actions = [self._draw(seed + i) for i in range(READY_ACTIONS)]
        self._out = env.new_arrays()
        self.calls = 0
        self.agent_steps = 0
        begun = perf_counter()
        self._reset()
        while self.calls < most_calls and (not self.calls or perf_counter() - begun < seconds):
            self.calls += 1
            for tick in range(TICKS_PER_CALL):
                self.agent_steps += int(sum(acting.sum() for acting in self._acting.values()))
                self._watch(self._step(tick))
        self.env_steps = self.calls * TICKS_PER_CALL * env.num_envs
        _check_acted(self)

    def run(self) -> float:
        """Replay all steps once; return the microseconds per agent step, including resets."""
        begun = perf_counter()
        self._reset()
        for _ in range(self.calls):
            for tick in range(TICKS_PER_CALL):
                self._step(tick)
        return 1e6 * (perf_counter() - begun) / self.agent_steps

    def _draw(self, seed: int) -> dict[str, Any]:
        env, drawn = self._env, {}
        for name, agents in env.groups.items():
            space = env.action_spaces[agents[0]]
            space.seed(seed)
            shape = env.num_envs, len(agents)
            samples = [space.sample() for _ in range(env.num_envs * len(agents))]
            stacked = concatenate(space, samples, create_empty_array(space, len(samples)))
            drawn[name] = map_struct(lambda leaf, shape=shape: leaf.reshape(*shape, *leaf.shape[1:]), stacked)
        return drawn

    def _reset(self) -> None:
        self._n_steps = self._seeds[-1]
        out = self._cleared()
        self._env.reset(self._all, out, seeds=self._seeds)
        self._going_on = {name: np.ones_like(group.present) for name, group in out.groups.items()}
        self._acting = {name: group.present.copy() for name, group in out.groups.items()}

    def _step(self, tick: int) -> np.ndarray:
        """Step all envs, reset the finished ones, and return which have finished, bool [E]."""
        actions = map_struct(np.copy, self._actions[tick % READY_ACTIONS])
        out = self._cleared()
        self._env.step(actions, out)
        self._n_steps += 1
        over = out.terminated | out.truncated
        if over.any():
            envs = np.flatnonzero(over)
            seeds = [self._n_steps + i for i in envs.tolist()] if self._env.seeds_each_episode else None
            self._env.reset(envs, out, seeds=seeds)
        return over

    def _cleared(self) -> StepArrays:
        """Return the output arrays, cleared as an env expects them."""
        out = self._out
        for group in out.groups.values():
            group.rewards[...] = 0.0
            group.terminated[...] = group.truncated[...] = False
            group.present[...] = True
        out.terminated[...] = out.truncated[...] = False
        out.infos.clear()
        return out

    def _watch(self, over: np.ndarray) -> None:
        """Record which agents act next."""
        for name, group in self._out.groups.items():
            going_on = self._going_on[name] & ~group.terminated & ~group.truncated
            self._going_on[name] = going_on | over[:, None]
            self._acting[name] = self._going_on[name] & group.present


def _check_acted(loop: BareEnvs | BareBatch) -> None:
    """Check that at least one agent has acted: times are divided by the number of agent steps.

    Raises:
        EnvCheckError: If no agent has acted.
    """
    if not loop.agent_steps:
        raise EnvCheckError(
            f"no agent has acted in {loop.env_steps:,} env steps, so the time per agent step is undefined"
        )


def _without_adapter(env: Any) -> Any:
    return env.env if isinstance(env, ParallelPettingZooEnv) else env


def _bare_calls(env: Any, actions: dict | None, seed: int, came: tuple) -> list[Callable[[], Any]]:
    """Return the calls that a plain loop makes for this step, or for a reset if `actions` is None.

    With an AECEnv, the loop includes the turns of finished agents.
    """
    if not isinstance(env, AECPettingZooEnv):
        bare = _without_adapter(env)
        return [partial(bare.reset, seed=seed) if actions is None else partial(bare.step, actions)]
    if actions is None:
        return [partial(env.env.reset, seed=seed), env.env.last]
    (action,) = actions.values()
    n_ended = len(came[2]) - 1  # without "__all__"
    turns_of_ended = [env.env.last, partial(env.env.step, None)] * n_ended
    return [partial(env.env.step, action), *turns_of_ended, *([] if _is_over(came) else [env.env.last])]


def _who_acts(came: tuple) -> dict[Any, Any]:
    """Return agent id -> action mask (or None) of the agents that act next, given a result of reset() or step()."""
    obs, infos = came[0], came[-1]
    ended = {agent for flags in came[2:4] for agent, has_ended in flags.items() if has_ended}
    return {agent: action_mask(value, infos.get(agent)) for agent, value in obs.items() if agent not in ended}


def _is_over(step: tuple) -> bool:
    """Return whether this result of step() ends the episode."""
    _, _, terminateds, truncateds, _ = step
    return terminateds["__all__"] or truncateds.get("__all__", False)
