"""Adapter from PettingZoo AECEnvs, whose agents move one at a time, to the multi-agent protocol."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from fastmarl.core.envs.pettingzoo import PettingZooAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.errors.checks import plain_seed
from fastmarl.core.objects.public import public

MOST_IDLE_TURNS = 1000  # consecutive turns of finished agents, beyond one for each agent in `agents`


class StepDicts(NamedTuple):
    """The dicts returned by `step()`, keyed by agent id."""

    obs: dict[Any, Any]
    rewards: dict[Any, float]
    terminateds: dict[Any, bool]
    truncateds: dict[Any, bool]
    infos: dict[Any, dict]


@public("fastmarl.envs")
class AECPettingZooEnv(PettingZooAdapter):
    """Adapts a PettingZoo AECEnv; each step is one turn. An agent is observed at its turn and acts in the next step.

    An agent also receives its reward at its turn: the reward from `last()`, accumulated since its last action. The
    adapter plays the turns of finished agents, in which PettingZoo expects None as the action, and does not count them
    as steps; in its first such turn, an agent is observed for the last time and gets its flags. The episode is over
    when all agents in the env's `agents` have finished. It counts as truncated if any agent was truncated in that last
    step, otherwise as terminated.

    If an agent is removed from `agents` without such a turn, `step()` returns its reward, flags and info and, if
    available, its last observation. Without a flag, the agent stays unfinished until the episode ends.

    Args:
        env: A PettingZoo AECEnv; `unwrapped` is the env without its wrappers.

    Attributes:
        removed: Agents that the env removed in the last step without a final turn.
    """

    def __init__(self, env: Any):
        super().__init__(env)
        self._turn: Any = None  # the agent that acts next
        self._listed: list[Any] = []  # `agents` of the env at that turn
        self._accounts: Any = None  # the layer (env or wrapper) that holds `_cumulative_rewards`, if any
        self._pending: dict[Any, float] = {}  # rewards that agents were due before the last action
        self._unpaid: dict[Any, float] = {}  # rewards received before the first step
        self.removed: list[Any] = []

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` is a PettingZoo AECEnv."""
        return hasattr(env, "agent_iter") and hasattr(env, "last")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start an episode, passing `seed` and `options` to the env; see MultiAgentEnv.

        Raises:
            EnvCheckError: If no agent can act.
        """
        self.env.reset(seed=plain_seed(seed), options=options)
        self._ended, self._listed, self._pending = set(), list(self.env.agents), {}
        self._accounts = _layer_with("_cumulative_rewards", self.env)
        obs, rewards, _, _, infos = self._next_turn()
        if self._turn is None:
            raise EnvCheckError(f"expected at least one agent that can act after reset() of {self.env}, got "
                                f"agents={self._listed}, of which {list(self._ended)} have finished")  # fmt: skip
        self._unpaid = {agent: reward for agent, reward in rewards.items() if reward}
        return {self._turn: obs[self._turn]}, {self._turn: infos[self._turn]}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Apply the action of the agent whose turn it is, ignoring other entries of `actions`; see MultiAgentEnv.

        Raises:
            ValueError: If that agent's action is missing.
            EnvCheckError: If the env gives turns only to finished agents while others are still active.
        """
        if self._turn not in actions:
            raise ValueError(f"expected an action of agent {self._turn!r}, whose turn it is, got actions of "
                             f"{list(actions)}")  # fmt: skip
        self._pending = {**getattr(self._accounts, "_cumulative_rewards", {}), self._turn: 0.0}
        self.env.step(actions[self._turn])
        obs, rewards, terminateds, truncateds, infos = self._next_turn()
        if self._unpaid:
            unpaid, self._unpaid = self._unpaid, {}
            rewards.update({agent: reward + rewards.get(agent, 0.0) for agent, reward in unpaid.items()})
        terminateds["__all__"] = False
        if self._turn is None:
            is_truncated = any(truncateds.values())
            terminateds["__all__"], truncateds["__all__"] = not is_truncated, is_truncated
        return obs, rewards, terminateds, truncateds, infos

    def get_state(self) -> Any:
        """Return the state of the env, the finished agents, and whose turn it is."""
        return {**super().get_state(), "turn": self._turn, "unpaid": dict(self._unpaid)}

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._turn, self._unpaid = state["turn"], dict(state["unpaid"])
        self._listed = list(self.env.agents)
        self._accounts = _layer_with("_cumulative_rewards", self.env)

    def _next_turn(self) -> StepDicts:
        """Advance to an agent that can act, or to the end of the episode.

        That agent is observed, as are agents that finish before its turn.
        """
        env, ended = self.env, self._ended
        obs, rewards, terminateds, truncateds, infos = step = StepDicts({}, {}, {}, {}, {})
        self._turn, idle_turns = None, 0
        while (agents := env.agents) and not (ended and ended.issuperset(agents)):
            agent = env.agent_selection
            observation, reward, terminated, truncated, info = env.last()
            if not (terminated or truncated):
                self._turn = agent
                ended.discard(agent)  # a finished agent may take part again
                obs[agent], rewards[agent], infos[agent] = observation, reward, info
                break
            if agent in ended:
                idle_turns += 1
            else:
                idle_turns = 0
                ended.add(agent)
                if observation is not None:
                    obs[agent] = observation
                rewards[agent], infos[agent] = reward, info
                terminateds[agent], truncateds[agent] = bool(terminated), bool(truncated)
            if idle_turns > MOST_IDLE_TURNS + len(agents):
                raise EnvCheckError(f"{env} gives turns only to finished agents, {list(ended)} of {agents}; set "
                                    f"agent_selection to an unfinished agent, or finish all agents")  # fmt: skip
            env.step(None)
        self.removed = []
        if agents != self._listed:
            self.removed = [agent for agent in self._listed if agent not in agents and agent not in ended]
            for agent in self.removed:
                self._add_removed(agent, step)
            self._listed = list(agents)
            ended.intersection_update(agents)
        return step

    def _add_removed(self, agent: Any, step: StepDicts) -> None:
        """Add the final reward and flags of an agent that the env removed without a final turn."""
        env = self.env
        pending = self._pending.get(agent, 0.0)
        step.rewards[agent] = getattr(self._accounts, "_cumulative_rewards", {}).get(agent, pending)
        terminated, truncated = bool(env.terminations.get(agent)), bool(env.truncations.get(agent))
        if not (terminated or truncated or self._turn is None):
            return  # an observation would make the agent act
        if terminated or truncated:
            self._ended.add(agent)
        step.terminateds[agent], step.truncateds[agent] = terminated, truncated
        step.infos[agent] = env.infos.get(agent, {})
        with suppress(Exception):  # user code, called for an agent that the env removed
            observation = env.observe(agent)
            if observation is not None:
                step.obs[agent] = observation


def _layer_with(name: str, env: Any) -> Any:
    """Return the outermost layer (env or wrapper) whose `__dict__` contains the attribute `name`.

    PettingZoo's wrappers look up attributes layer by layer, which often takes longer than a turn.
    """
    layer = env
    while name not in (own := getattr(layer, "__dict__", {})):
        if "env" not in own:
            return env  # the attribute is missing, or not in a `__dict__`
        layer = layer.env
    return layer
