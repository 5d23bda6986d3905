"""Plays an environment with random actions for `check_env()` and inspects everything that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.form import check_dicts, flag_problems, possible_agents_of
from fastmarl.core.envs.values import arrays_in, misfits, random_action, reward_problem, same
from fastmarl.core.errors import ONLY_RESPAWNING, ConfigError, EnvCheckError, MultiAgentEnvError
from fastmarl.core.errors.exits import as_error
from fastmarl.core.spaces.masks import action_mask, mask_key
from fastmarl.testing.findings import MASK_KIND, MaskFindings, PettingZooRules, StateFindings
from fastmarl.testing.replay import look_at_another, look_for_differences
from fastmarl.testing.report import Findings, location_of

REPLAYED_STEPS = 100
IDLE_STEPS = 100  # number of steps without an acting agent before this is noted


class UnplayableError(Exception):
    """Raised if the env cannot be played any further; the findings say why."""


class AnyPlay:
    """Base class for players of envs and batches.

    Args:
        findings: Receives problems and notes.
        late_rewards, respawn: True if agents may receive rewards, or be observed, after they have finished.

    Attributes:
        observed: Ids of the observed agents.
    """

    def __init__(self, env: Any, findings: Findings, seed: int, late_rewards: bool, respawn: bool):
        self._env, self._findings, self._seed = env, findings, seed
        self._late_rewards, self._respawn = late_rewards, respawn
        self._states = StateFindings(env, findings)
        self._idle_steps = 0
        self.observed: dict[Any, None] = {}
        self.env_steps = self.agent_steps = self.episodes = 0

    def _answer(self, call: str, env_t: int, *args: Any, **kwargs: Any) -> Any:
        """Call `reset()` or `step()`, which leads to `env_t`, and return the result; an error becomes a finding."""
        try:
            return getattr(self._env, call)(*args, **kwargs)
        except (Exception, SystemExit) as raised:
            error = as_error(raised)
            self._findings.env_t = env_t
            self._findings.problem("raised", f"{call}() raised {raised!r} in {location_of(raised)}")
            raise UnplayableError from error

    def _look_at_idleness(self, is_idle: bool, text: str) -> None:
        """Note if no agent has acted in many consecutive steps."""
        self._idle_steps = self._idle_steps + 1 if is_idle else 0
        if self._idle_steps == IDLE_STEPS:
            self._findings.note("idle", f"no agent {text} in a row")


class Play(AnyPlay):
    """Plays a single env."""

    def __init__(self, env: Any, findings: Findings, seed: int, late_rewards: bool, respawn: bool):
        super().__init__(env, findings, seed, late_rewards, respawn)
        self._masks = MaskFindings(findings)
        self._rules = PettingZooRules(env, findings)
        self._known: list[Any] = []
        self._spaces: dict[Any, tuple[gym.Space, gym.Space]] = {}
        self._acting: dict[Any, Any] = {}  # agent -> the mask of its next action, or None
        self._seen: set[Any] = set()  # in this episode, like the next two attributes
        self._finished: dict[Any, int] = {}  # agent -> env_t
        self._rewarded_unseen: set[Any] = set()
        self._env_t = 0
        self._trace: list[tuple[dict | None, tuple]] = []  # (actions, or None for the reset; results)

    def _prepare(self) -> None:
        """Check possible_agents and their spaces."""
        try:
            self._known = possible_agents_of(self._env)
        except EnvCheckError as error:
            self._findings.problem("possible_agents", str(error))
        if not self._known and not self._findings.problems:
            self._findings.note("possible_agents", "possible_agents is empty, so any id may appear; modules then need "
                                                   "their own spaces")  # fmt: skip
        for agent in self._known:
            self._find_spaces(agent)
        if self._findings.problems:
            raise UnplayableError

    def _find_spaces(self, agent: Any) -> bool:
        if agent not in self._spaces:
            try:
                observation_space, action_space = env_spaces(self._env, agent)
                mask_key(observation_space, action_space)
            except (EnvCheckError, ConfigError) as error:
                kind = "space" if isinstance(error, EnvCheckError) else MASK_KIND
                self._findings.problem(kind, str(error), agent)
                return False
            action_space = deepcopy(action_space)  # so that the generator of the env's space is not used
            action_space.seed(self._seed + len(self._spaces))
            self._spaces[agent] = observation_space, action_space
        return True

    def play(self, steps: int) -> None:
        """Play episodes for a total of `steps` steps, then repeat the first steps."""
        self._prepare()
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
            self._findings.note("endless", f"no episode ended within {steps} env steps; set '__all__' in terminateds "
                                           f"or truncateds when one should end")  # fmt: skip
        self._look_back_at_agents()
        look_for_differences(self._env, self._findings, self._seed, self._trace)

    def compare(self, other: Any) -> None:
        """Repeat the first steps in another env created in the same way, if this env has repeated them correctly."""
        if self._trace and not any(finding.kind == "seed" for finding in self._findings.problems.values()):
            look_at_another(other, self._findings, self._seed, self._trace)

    def _look_back_at_episode(self) -> None:
        for agent in self._rewarded_unseen - self._seen:
            text = "received rewards but was never observed in the episode, so they reward no action"
            self._findings.note("never observed", text, agent)

    def _look_back_at_agents(self) -> None:
        try:
            now = possible_agents_of(self._env)
        except EnvCheckError as error:
            self._findings.problem("possible_agents", str(error))
            return
        if now != self._known:
            text = f"possible_agents changed from {self._known!r:.200} to {now!r:.200}; change only `agents`"
            self._findings.problem("possible_agents", text)
        for agent in self._spaces:
            self._look_back_at_spaces(agent)
        for agent in self._known:
            if self.episodes and agent not in self.observed:
                text = f"is in possible_agents, but was not observed in {self.env_steps} env steps"
                self._findings.note("never observed", text, agent)

    def _look_back_at_spaces(self, agent: Any) -> None:
        try:
            spaces = env_spaces(self._env, agent)
        except EnvCheckError as error:
            self._findings.problem("space", str(error), agent)
            return
        for kind, before, now in zip(("observation", "action"), self._spaces[agent], spaces, strict=True):
            if now != before:
                text = f"its {kind} space changed from {before!r:.200} to {now!r:.200}; spaces must stay the same"
                self._findings.problem("space", text, agent, kind)

    def _reset(self, seed: int | None) -> None:
        self._env_t = self._findings.env_t = 0
        self._seen, self._finished, self._rewarded_unseen, self._idle_steps = set(), {}, set(), 0
        obs, infos = self._called("reset", seed=seed)
        if self._findings.episode == 0:
            self._trace.append((None, deepcopy((obs,))))
        self._last_obs = obs, deepcopy(obs)
        self._states.look()
        self._look_at_observations(obs, infos, ())
        self._look_at_infos(infos)

    def _step(self) -> bool:
        """Take a step and return whether the episode is over."""
        actions = {agent: random_action(self._spaces[agent][1], mask) for agent, mask in self._acting.items()}
        private = deepcopy(actions)
        self._env_t += 1
        self._findings.env_t = self._env_t
        self.env_steps += 1
        self.agent_steps += len(actions)
        self._rules.begin_step()
        obs, rewards, terminateds, truncateds, infos = parts = self._called("step", actions)
        self._look_for_shared_memory(actions, private)
        if self._findings.episode == 0 and len(self._trace) <= REPLAYED_STEPS:
            self._trace.append((private, deepcopy(parts[:-1])))
        self._last_obs = obs, deepcopy(obs)
        self._states.look()
        for kind, agent, text in flag_problems(terminateds, truncateds):
            self._findings.problem(kind, text, agent)
        finishing = [agent for flags in (terminateds, truncateds) for agent in flags if _is_true(flags[agent])]
        self._look_at_rewards(rewards, obs if self._respawn else {})
        self._look_at_observations(obs, infos, finishing)
        self._look_at_infos(infos)
        self._look_at_ends(terminateds, truncateds, finishing)
        self._rules.look_at(terminateds, truncateds)
        return "__all__" in finishing

    def _called(self, call: str, *args: Any, **kwargs: Any) -> tuple[dict, ...]:
        """Call `reset()` or `step()` and check the form of the result."""
        result = self._answer(call, self._env_t, *args, **kwargs)
        try:
            check_dicts(call, result, 0, self._env_t)
        except MultiAgentEnvError as error:
            self._findings.problem("form", error.args[3])
            raise UnplayableError from error
        return result

    def _look_for_shared_memory(self, actions: dict, private: dict) -> None:
        if not same(actions, private):
            self._findings.note("changed actions", "step() modified the actions it received; copy them first")
        returned, copied = (list(arrays_in(obs)) for obs in self._last_obs)
        if not all(map(same, returned, copied)):
            self._findings.note("reused arrays", "step() overwrote arrays that were returned earlier; fastmarl copies "
                                                 "arrays immediately, others may not")  # fmt: skip

    def _is_known(self, agent: Any, part: str) -> bool:
        if not self._known or agent in self._spaces:
            return self._find_spaces(agent)
        text = f"is in the {part}, but not in possible_agents {self._known!r:.200}; add it there or drop it"
        self._findings.problem("unknown agent", text, agent, part)
        return False

    def _look_at_observations(self, obs: dict, infos: dict, finishing: Sequence[Any]) -> None:
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
                    text = (f"was observed again after it had finished in env step {self._finished[agent]}; omit it in "
                            f"step(); {ONLY_RESPAWNING}")  # fmt: skip
                    self._findings.problem("after the end", text, agent, "observations")
                del self._finished[agent]
            self._seen.add(agent)
            self.observed[agent] = None
            acts = "__all__" not in finishing and agent not in finishing
            self._masks.look_at(agent, self._spaces[agent][1], value, infos.get(agent), acts=acts)
            if acts:
                self._acting[agent] = action_mask(value, infos.get(agent))

    def _look_at_rewards(self, rewards: dict, returning: dict) -> None:
        for agent, reward in rewards.items():
            if not self._is_known(agent, "rewards"):
                continue
            problem = reward_problem(reward)
            if problem:
                self._findings.problem("reward", f"reward: {problem}", agent)
            if agent in self._finished and agent not in returning and not self._late_rewards:
                text = (f"received a reward of {reward} after it had finished in env step {self._finished[agent]}; "
                        f'omit it in step(), or set late_rewards="accumulate" or "drop"')  # fmt: skip
                self._findings.problem("after the end", text, agent, "rewards")
            if agent not in self._seen:
                self._rewarded_unseen.add(agent)

    def _look_at_infos(self, infos: dict) -> None:
        for agent, info in infos.items():
            if agent != "__common__" and not self._is_known(agent, "infos"):
                continue
            if info is not None and not isinstance(info, dict):
                text = f"expected a dict as info, got {type(info).__name__} {info!r:.200}"
                self._findings.problem("info", text, agent)

    def _look_at_ends(self, terminateds: dict, truncateds: dict, finishing: list) -> None:
        for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
            for agent in flags:
                if agent != "__all__":
                    self._is_known(agent, name)
        for agent in finishing:
            if agent in self._seen:
                self._finished.setdefault(agent, self._env_t)
        if "__all__" in finishing:
            return
        if self._seen and self._seen <= self._finished.keys():
            self._findings.note("nobody left", "every agent has finished, but no '__all__' flag is True: the episode "
                                               "continues")  # fmt: skip
        self._look_at_idleness(not self._acting, f"had an observation to act on in {IDLE_STEPS} env steps")


def _is_true(flag: Any) -> bool:
    return isinstance(flag, bool | np.bool_ | int) and bool(flag)
