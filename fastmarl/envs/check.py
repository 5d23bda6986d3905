"""What an environment says of itself and what it returns, looked at closely.

`check_spaces`, `check_reset_result` and `check_step_result` are the runner's: they raise at the first mistake.
`check_env` is for who writes an environment: it plays some episodes and reports everything at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.envs.arrays import ArrayEnv
from fastmarl.envs.base import ADAPTERS, as_multi_agent_env, env_spaces
from fastmarl.envs.context import EnvContext
from fastmarl.envs.registry import env_creator
from fastmarl.envs.report import Findings, Report, place_of
from fastmarl.envs.values import action_mask, arrays_in, misfits, random_action, reward_problem, same
from fastmarl.errors import EnvCheckError, MultiAgentEnvError

RESET_PARTS = ("observations", "infos")
STEP_PARTS = ("observations", "rewards", "terminateds", "truncateds", "infos")
REPLAYED_STEPS = 100
IDLE_STEPS = 100  # without anybody acting, until that is noted


def check_spaces(env: Any, env_index: int) -> None:
    """Check what can be checked without reset() and step().

    Raises:
        EnvCheckError: `possible_agents` is no list of different hashables, or an agent lacks a space.
    """
    try:
        for agent in _possible_agents(env):
            env_spaces(env, agent)
    except EnvCheckError as error:
        raise EnvCheckError(f"env {env_index} ({_name(env)}): {error}") from error


def check_reset_result(result: Any, env_index: int) -> None:
    """Check the form of what reset() returned.

    Raises:
        MultiAgentEnvError: it is no pair (observations, infos) of dicts.
    """
    if isinstance(result, dict):
        got = "observations alone, as in old Gym; return infos, too, if only {}"
        raise _form_error(env_index, 0, "reset", RESET_PARTS, got)
    _check_dicts(result, RESET_PARTS, env_index, 0, "reset")


def check_step_result(result: Any, env_index: int, env_t: int) -> None:
    """Check the form of what step() returned.

    Raises:
        MultiAgentEnvError: it is no tuple of five dicts, `__all__` is missing, or a flag is no bool.
    """
    _check_step_form(result, env_index, env_t)
    for _, agent, problem in _flag_problems(result[2], result[3]):
        raise MultiAgentEnvError(env_index, agent, env_t, problem)


def _possible_agents(env: Any) -> list[Any]:
    agents = getattr(env, "possible_agents", None)
    if agents is None:
        return []
    if isinstance(agents, str | dict) or not hasattr(agents, "__iter__"):
        raise EnvCheckError(f"expected a list of agent ids as possible_agents, got {agents!r:.200}")
    agents = list(agents)
    for agent in agents:
        try:
            hash(agent)
        except TypeError:
            raise EnvCheckError(f"agent ids must be hashable, got {agent!r:.200} in possible_agents") from None
    if len(set(agents)) < len(agents):
        twice = next(agent for agent in agents if agents.count(agent) > 1)
        raise EnvCheckError(f"possible_agents names {twice!r} more than once; every agent needs an id of its own")
    return agents


def _check_step_form(result: Any, env_index: int, env_t: int) -> None:
    if isinstance(result, tuple) and len(result) == 4:
        got = "four values, as in old Gym; split dones into terminateds and truncateds"
        raise _form_error(env_index, env_t, "step", STEP_PARTS, got)
    _check_dicts(result, STEP_PARTS, env_index, env_t, "step")


def _check_dicts(result: Any, parts: tuple[str, ...], env_index: int, env_t: int, call: str) -> None:
    if not isinstance(result, tuple) or len(result) != len(parts):
        got = f"{len(result)} values" if isinstance(result, tuple) else f"{type(result).__name__} {result!r:.200}"
        raise _form_error(env_index, env_t, call, parts, got)
    for name, part in zip(parts, result, strict=True):
        if not isinstance(part, dict):
            problem = f"expected a dict by agent id as {name} from {call}(), got {type(part).__name__} {part!r:.200}"
            raise MultiAgentEnvError(env_index, None, env_t, problem)


def _form_error(env_index: int, env_t: int, call: str, parts: tuple[str, ...], got: str) -> MultiAgentEnvError:
    return MultiAgentEnvError(env_index, None, env_t, f"expected ({', '.join(parts)}) from {call}(), got {got}")


def _flag_problems(terminateds: dict, truncateds: dict) -> Iterator[tuple[str, Any, str]]:
    """(kind, agent, problem) of each flag that is no bool, and of a missing `__all__`."""
    for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
        for agent, flag in flags.items():
            if not isinstance(flag, bool | np.bool_):
                yield "flag", agent, f"expected True or False in {name}, got {type(flag).__name__} {flag!r:.200}"
    if "__all__" not in terminateds:
        yield (
            "__all__",
            None,
            "expected the key '__all__' in terminateds, which says whether the episode is over; got the keys "
            f"{list(terminateds)!r:.200}",
        )


def check_env(env: Any, env_config: dict | None = None, *, steps: int = 500, seed: int = 0,
              post_death: str = "error", respawn: bool = False) -> Report:  # fmt: skip
    """Play an env with seeded random actions and report all that is wrong or odd about it.

    Args:
        env: what `EnvRunnerConfig(env=...)` takes, or an env that nobody else uses. It is closed in the end.
        env_config: given to what makes the env.
        steps: env steps to make. The first REPLAYED_STEPS are then made again with the same seed and actions.
        seed: of the first reset() and of the actions. Discrete actions obey `action_mask` in an observation or info.
        post_death, respawn: as in `EnvRunnerConfig`: what agents may get after they have finished.

    Raises:
        EnvCheckError: this is no multi-agent environment at all. What its constructor raises comes through, too.
    """
    is_object = not isinstance(env, str) and not inspect.isclass(env)
    is_instance = is_object and (hasattr(env, "step") or any(adapter.adapts(env) for adapter in ADAPTERS))
    env = as_multi_agent_env(env if is_instance else env_creator(env)(EnvContext(env_config or {}, 0, 0)))
    if isinstance(env, ArrayEnv):
        raise EnvCheckError(f"{_name(env)} is a batch of envs, which steps in arrays; check_env plays single ones")
    findings = Findings()
    play = _Play(env, findings, seed, post_death != "error", respawn)
    try:
        play.prepare()
        play.play(steps)
        play.replay()
    except _UnplayableError:
        pass
    if hasattr(env, "close"):
        findings.env_t = None
        try:
            env.close()
        except Exception as error:
            findings.problem("close", f"close() raised {error!r}")
    return Report(
        env=_name(env),
        problems=findings.problems,
        notes=findings.notes,
        agents=tuple(play.observed),
        env_steps=play.env_steps,
        agent_steps=play.agent_steps,
        episodes=play.episodes,
    )


class _UnplayableError(Exception):
    """The env can't be played on; why is in the findings."""


class _Play:
    """An env that is played."""

    def __init__(self, env: Any, findings: Findings, seed: int, late_rewards: bool, respawn: bool):
        self._env = env
        self._findings = findings
        self._seed = seed
        self._late_rewards = late_rewards
        self._respawn = respawn
        self._known: list[Any] = []
        self._spaces: dict[Any, tuple[gym.Space, gym.Space]] = {}
        self._acting: dict[Any, Any] = {}  # agent -> the mask of its next action, or None
        self._seen: set[Any] = set()  # in this episode; the next two, too
        self._finished: dict[Any, int] = {}  # agent -> env_t
        self._paid_unseen: set[Any] = set()
        self._idle_steps = 0
        self._env_t = 0
        self._trace: list[tuple[dict | None, tuple]] = []  # (actions, or None for the reset; what came), copied
        self.observed: dict[Any, None] = {}
        self.env_steps = self.agent_steps = self.episodes = 0

    def prepare(self) -> None:
        """Look at possible_agents and their spaces."""
        try:
            self._known = _possible_agents(self._env)
        except EnvCheckError as error:
            self._findings.problem("possible_agents", str(error))
        if not self._known and not self._findings.problems:
            self._findings.note("possible_agents", "possible_agents is empty, so any id may appear; modules then need "
                                                   "spaces of their own")  # fmt: skip
        for agent in self._known:
            self._find_spaces(agent)
        if self._findings.problems:
            raise _UnplayableError

    def _find_spaces(self, agent: Any) -> bool:
        if agent not in self._spaces:
            try:
                observation_space, action_space = env_spaces(self._env, agent)
            except EnvCheckError as error:
                self._findings.problem("space", str(error), agent)
                return False
            action_space = deepcopy(action_space)  # its generator is the env's own business
            action_space.seed(self._seed + len(self._spaces))
            self._spaces[agent] = observation_space, action_space
        return True

    def play(self, steps: int) -> None:
        """Play episodes until so many steps are made."""
        self._reset(seed=self._seed)
        while True:
            is_over = self._step()
            if is_over:
                self.episodes += 1
                self._look_back_at_episode()
            if self.env_steps >= steps:
                break
            if is_over:
                self._findings.episode += 1
                self._reset(seed=None)
        self._findings.env_t = None
        if not self.episodes:
            self._findings.note("endless", f"no episode came to an end in {steps} env steps; set '__all__' in "
                                           f"terminateds or truncateds if one should")  # fmt: skip
        self._look_back_at_agents()

    def _look_back_at_episode(self) -> None:
        for agent in self._paid_unseen - self._seen:
            text = "was paid but not observed in the whole episode, so no action is rewarded"
            self._findings.note("never observed", text, agent)

    def _look_back_at_agents(self) -> None:
        try:
            now = _possible_agents(self._env)
        except EnvCheckError as error:
            self._findings.problem("possible_agents", str(error))
            return
        if now != self._known:
            text = f"possible_agents changed from {self._known!r:.200} to {now!r:.200}; let `agents` change instead"
            self._findings.problem("possible_agents", text)

    def _reset(self, seed: int | None) -> None:
        self._env_t = self._findings.env_t = 0
        self._seen, self._finished, self._paid_unseen, self._idle_steps = set(), {}, set(), 0
        obs, infos = self._called("reset", seed=seed)
        if self._findings.episode == 0:
            self._trace.append((None, deepcopy((obs,))))
        self._last_obs = obs, deepcopy(obs)
        self._look_at_observations(obs, infos, (), is_over=False)
        self._look_at_infos(infos)

    def _step(self) -> bool:
        """Make one step; returns whether the episode is over."""
        actions = {agent: random_action(self._spaces[agent][1], mask) for agent, mask in self._acting.items()}
        private = deepcopy(actions)
        self._env_t += 1
        self._findings.env_t = self._env_t
        self.env_steps += 1
        self.agent_steps += len(actions)
        obs, rewards, terminateds, truncateds, infos = parts = self._called("step", actions)
        self._look_for_shared_memory(actions, private)
        if self._findings.episode == 0 and len(self._trace) <= REPLAYED_STEPS:
            self._trace.append((private, deepcopy(parts[:4])))
        self._last_obs = obs, deepcopy(obs)
        for kind, agent, text in _flag_problems(terminateds, truncateds):
            self._findings.problem(kind, text, agent)
        is_over = _is_true(terminateds.get("__all__")) or _is_true(truncateds.get("__all__"))
        finishing = [agent for flags in (terminateds, truncateds) for agent in flags if _is_true(flags[agent])]
        self._look_at_rewards(rewards)
        self._look_at_observations(obs, infos, finishing, is_over)
        self._look_at_infos(infos)
        self._look_at_ends(terminateds, truncateds, finishing, is_over)
        return is_over

    def _called(self, call: str, *args: Any, **kwargs: Any) -> tuple[dict, ...]:
        """What reset() or step() returned, in the right form."""
        try:
            result = getattr(self._env, call)(*args, **kwargs)
        except Exception as error:
            self._findings.problem("raised", f"{call}() raised {error!r} in {place_of(error)}")
            raise _UnplayableError from error
        try:
            if call == "reset":
                check_reset_result(result, 0)
            else:
                _check_step_form(result, 0, self._env_t)
        except MultiAgentEnvError as error:
            self._findings.problem("form", error.args[3])
            raise _UnplayableError from error
        return result

    def _look_for_shared_memory(self, actions: dict, private: dict) -> None:
        if not same(actions, private):
            self._findings.note("changed actions", "step() changed the actions it was given; take a copy")
        returned, copied = (list(arrays_in(obs)) for obs in self._last_obs)
        if not all(map(same, returned, copied)):
            self._findings.note("reused arrays", "step() wrote into arrays that were returned before; fastmarl copies "
                                                 "them at once, others may not")  # fmt: skip

    def _is_known(self, agent: Any, part: str) -> bool:
        if not self._known or agent in self._spaces:
            return self._find_spaces(agent)
        text = f"is in the {part}, but not in possible_agents {self._known!r:.200}; add it there or drop it"
        self._findings.problem("unknown agent", text, agent, part)
        return False

    def _look_at_observations(self, obs: dict, infos: dict, finishing: Any, is_over: bool) -> None:
        self._acting = {}
        for agent, value in obs.items():
            if not self._is_known(agent, "observations"):
                continue
            for kind, path, text in misfits(self._spaces[agent][0], value):
                where = "observation" + "".join(f"[{key!r}]" for key in path)
                report = self._findings.note if kind == "dtype" else self._findings.problem
                report(kind, f"{where} {text}" if kind != "observation" else f"{where}: {text}", agent, path)
            if agent in self._finished:
                if not self._respawn:
                    text = (f"was observed again after it had finished in env step {self._finished[agent]}; drop it "
                            f"from step(), or set respawn=True")  # fmt: skip
                    self._findings.problem("after the end", text, agent, "observations")
                del self._finished[agent]
            self._seen.add(agent)
            self.observed[agent] = None
            if not is_over and agent not in finishing:
                self._acting[agent] = action_mask(value, infos.get(agent))

    def _look_at_rewards(self, rewards: dict) -> None:
        for agent, reward in rewards.items():
            if not self._is_known(agent, "rewards"):
                continue
            problem = reward_problem(reward)
            if problem:
                self._findings.problem("reward", f"reward: {problem}", agent)
            if agent in self._finished and not self._late_rewards:
                text = (f"was paid {reward} after it had finished in env step {self._finished[agent]}; drop it from "
                        f'step(), or set post_death="accumulate" or "drop"')  # fmt: skip
                self._findings.problem("after the end", text, agent, "rewards")
            if agent not in self._seen:
                self._paid_unseen.add(agent)

    def _look_at_infos(self, infos: dict) -> None:
        for agent, info in infos.items():
            if agent != "__common__" and not self._is_known(agent, "infos"):
                continue
            if info is not None and not isinstance(info, dict):
                self._findings.problem(
                    "info", f"expected a dict as info, got {type(info).__name__} {info!r:.200}", agent
                )

    def _look_at_ends(self, terminateds: dict, truncateds: dict, finishing: list, is_over: bool) -> None:
        for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
            for agent in flags:
                if agent != "__all__":
                    self._is_known(agent, name)
        for agent in finishing:
            if agent in self._seen:
                self._finished.setdefault(agent, self._env_t)
        if is_over:
            return
        if self._seen and self._seen <= self._finished.keys():
            self._findings.note("nobody left", "every agent has finished, but no '__all__' flag is True: the episode "
                                               "goes on")  # fmt: skip
        self._idle_steps = 0 if self._acting else self._idle_steps + 1
        if self._idle_steps == IDLE_STEPS:
            self._findings.note("idle", f"nobody had an observation to act upon in {IDLE_STEPS} env steps in a row")

    def replay(self) -> None:
        """Make the first steps again: the same seed and the same actions must bring the same."""
        self._findings.episode = 0
        for env_t, (actions, before) in enumerate(self._trace):
            self._env_t = self._findings.env_t = env_t
            if actions is None:
                parts = self._called("reset", seed=self._seed)[:1]
            else:
                parts = self._called("step", deepcopy(actions))[:4]
            for name, one, other in zip(STEP_PARTS, before, parts, strict=False):
                if not same(one, other):
                    differing = [agent for agent in one | other if not same(one.get(agent), other.get(agent))]
                    text = (f"other {name} came after the same reset(seed={self._seed}) and the same actions; draw all "
                            f"randomness from a generator that reset() makes from its seed")  # fmt: skip
                    self._findings.problem("seed", text, differing[0] if differing else None)
                    return


def _name(env: Any) -> str:
    """PettingZoo's envs have a name; the others' is that of their class."""
    bare = getattr(env, "unwrapped", env)
    metadata = getattr(bare, "metadata", None)
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(name or type(bare).__name__)


def _is_true(flag: Any) -> bool:
    return isinstance(flag, bool | np.bool_ | int) and bool(flag)
