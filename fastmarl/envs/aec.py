"""PettingZoo's AECEnv, whose agents move one at a time, in the multi-agent protocol."""

from __future__ import annotations

from typing import Any

from fastmarl.envs.pettingzoo import PettingZooAdapter


class AECPettingZooEnv(PettingZooAdapter):
    """One step is one turn: the agent whose turn it is is observed, and acts in the next step.

    An agent is paid when its turn comes, with what `last()` says: all since its last action. Turns of agents that have
    ended, in which PettingZoo wants None as the action, are taken here and are no steps: such an agent is observed for
    the last time and gets its flags. The episode is over when the env has no agents left, or gives a turn to one that
    has ended before; it is then truncated if some agent was truncated in that last step, else terminated.

    Args:
        env: a PettingZoo AECEnv; `unwrapped` is it without its wrappers.
    """

    def __init__(self, env: Any):
        super().__init__(env)
        self._turn: Any = None  # the agent that acts next

    @staticmethod
    def adapts(env: Any) -> bool:
        """Whether this is such an env."""
        return hasattr(env, "agent_iter") and hasattr(env, "last")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.env.reset(seed=seed, options=options)
        obs, _, _, _, infos = self._next_turn()
        return obs, infos

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Take the action of the agent whose turn it is; see MultiAgentEnv.

        Raises:
            ValueError: there is none.
        """
        if self._turn not in actions:
            raise ValueError(f"expected the action of {self._turn!r}, whose turn it is, got actions of {list(actions)}")
        self.env.step(actions[self._turn])
        return self._next_turn()

    def get_state(self) -> Any:
        """The env's, and whose turn it is."""
        return {"env": self.env.get_state(), "turn": self._turn}

    def set_state(self, state: Any) -> None:
        self.env.set_state(state["env"])
        self._turn = state["turn"]

    def _next_turn(self) -> tuple[dict, dict, dict, dict, dict]:
        """Go on to an agent that can act. It is observed, as are those that have ended on the way there."""
        env = self.env
        obs: dict[Any, Any] = {}
        rewards: dict[Any, float] = {}
        terminateds: dict[Any, bool] = {}
        truncateds: dict[Any, bool] = {}
        infos: dict[Any, dict] = {}
        while env.agents and (agent := env.agent_selection) not in obs:
            obs[agent], rewards[agent], terminated, truncated, infos[agent] = env.last()
            if not (terminated or truncated):
                self._turn = agent
                terminateds["__all__"] = False
                return obs, rewards, terminateds, truncateds, infos
            terminateds[agent], truncateds[agent] = bool(terminated), bool(truncated)
            env.step(None)
        is_truncated = any(truncateds.values())
        terminateds["__all__"], truncateds["__all__"] = not is_truncated, is_truncated
        return obs, rewards, terminateds, truncateds, infos
