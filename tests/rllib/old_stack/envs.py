"""Envs as the old stack takes them: worlds that keep to its rules, and such that are no MultiAgentEnv."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.env.base_env import BaseEnv
from ray.rllib.env.multi_agent_env import MultiAgentEnvWrapper
from rllib.differential import spaces, tape
from rllib.differential.tape import freeze
from rllib.differential.worlds import World


class OldWorld(World):
    """A world with infos for none but the agents that are observed, which the old stack insists on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        for i, space in enumerate(self.observation_spaces.values()):
            space.seed(100 * self.number + 50 + i)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, infos = super().reset(seed=seed, options=options)
        return self._shown(obs), self._infos(obs, infos)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        return self._shown(obs), rewards, terminateds, truncateds, self._infos(obs, infos)

    def _shown(self, obs: dict) -> dict:
        return obs

    def _infos(self, obs: dict, infos: dict) -> dict:
        return {agent: info for agent, info in infos.items() if agent in obs or agent == "__common__"}


class UnheldWorld(OldWorld):
    """Infos of agents that are not observed remain in: RLlib raises."""

    def _infos(self, obs: dict, infos: dict) -> dict:
        return infos


class ListsWorld(OldWorld):
    """A world whose observations are lists."""

    def _shown(self, obs: dict) -> dict:
        return {agent: value.tolist() for agent, value in obs.items()}


class UntrainedWorld(OldWorld):
    """A world whose infos exclude an agent's steps from training at times."""

    def _infos(self, obs: dict, infos: dict) -> dict:
        infos = super()._infos(obs, infos)
        for i, agent in enumerate(obs):
            if (self.t + i) % 4 == 3:
                infos[agent] = {**infos.get(agent, {}), "training_enabled": False}
        return infos


class ClosingWorld(OldWorld):
    """Cannot be closed, as it must be when it is restarted."""

    def close(self) -> None:
        tape.note("env", "close", self.number)
        raise OSError("this world does not close")


class ForgetfulWorld(OldWorld):
    """Leaves out `__all__` at one step, which RLlib does not take."""

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        answer = super().step(actions)
        if self.t == 4:
            del answer[3]["__all__"]
        return answer


class LeavingWorld(OldWorld):
    """Observations leave their space after a while. RLlib looks at each hundredth that a policy gets."""

    def _shown(self, obs: dict) -> dict:
        late = tape.count("env", "step") > 20
        return {agent: value * np.float32(10) if late else value for agent, value in obs.items()}


class OddWorld(OldWorld):
    """Pays what is no plain number."""

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, *rest = super().step(actions)
        for i, (agent, reward) in enumerate(rewards.items()):
            rewards[agent] = [float("nan"), np.float16(reward), float("inf"), reward > 0][(i + self.t) % 4]
        return (obs, rewards, *rest)


class RowsWorld(OldWorld):
    """Pays arrays of one number."""

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, *rest = super().step(actions)
        return (obs, {agent: np.array([reward], np.float32) for agent, reward in rewards.items()}, *rest)


class StepEnv(gymnasium.Env):
    """For one agent, so that RLlib steps it in a VectorEnv."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.observation_space = spaces.OBSERVATIONS["f32"]()
        self.action_space = spaces.ACTIONS["discrete"]()
        self.number = tape.count("env", "made")
        self.observation_space.seed(self.number)
        self.action_space.seed(self.number)
        self.rng = np.random.default_rng(self.number)
        tape.note("env", "made", self.number)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        tape.note("env", "reset", self.number, seed, options)
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        tape.note("env", "step", self.number, freeze(action))
        self.t += 1
        return self._seen(), float(action) - 0.5, self.t == 5, False, {"t": self.t}

    def _seen(self) -> Any:
        return spaces.draw("f32", self.observation_space, self.rng)


class Overruled(MultiAgentEnvWrapper):
    """A BaseEnv in which agents at times act otherwise than their policy says, and tell so."""

    def poll(self) -> tuple:
        *polled, off_policy = super().poll()
        for env_id, obs in polled[0].items():
            if isinstance(obs, dict):
                off_policy[env_id] = {agent: np.int64(1) for i, agent in enumerate(obs) if i % 2}
        return (*polled, off_policy)


def _overruled(config: dict[str, Any]) -> BaseEnv:
    return Overruled(lambda index: OldWorld(config), [OldWorld(config)], num_envs=2)


def _in_an_actor(config: dict[str, Any]) -> OldWorld:
    tape.start()  # of the actor's process
    return OldWorld(config)


ENVS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "world": OldWorld,
    "unheld": UnheldWorld,
    "lists": ListsWorld,
    "untrained": UntrainedWorld,
    "closing": ClosingWorld,
    "forgetful": ForgetfulWorld,
    "leaving": LeavingWorld,
    "odd": OddWorld,
    "rows": RowsWorld,
    "one agent": StepEnv,
    "overruled": _overruled,
    "in an actor": _in_an_actor,
}
