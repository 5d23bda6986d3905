"""The speed of fastmarl.rllib's runner relative to RLlib's own class where it falls back to RLlib's loop.

    python -m benchmarks.bench_rllib_fallback [--rounds 15] [--kinds piece lists] [--sims cartpole-2x1]

Both runners are in one process, with the same config and seeds, and take turns: in each round, eight calls of
`sample()` and one of `get_metrics()`. The figures are ratios of CPU times; above 1, ours is faster.
"""

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from benchmarks.rllib.pair import measuring, seed_everything
from fastmarl.rllib.runner import MultiAgentEnvRunner

SEED = 1
TURNS = 8  # per round, so that other load on the machine slows down both alike


class Foragers(MultiAgentEnv):
    """Agents on fields of their own that observe their position and surroundings, for 60 steps.

    Args:
        config: "num_agents": the number of agents.
    """

    side, sight, length = 12, 2, 60

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        self.agents = self.possible_agents = [f"forager_{i}" for i in range(config["num_agents"])]
        width = 2 * self.sight + 1
        space = gym.spaces.Dict(
            position=gym.spaces.Box(0, 1, (2,), np.float32), around=gym.spaces.Box(0, 1, (width, width), np.float32)
        )
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = {agent: gym.spaces.Discrete(4) for agent in self.agents}
        self.moves = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        size = self.side + 2 * self.sight
        self.t, self.food = 0, (self.rng.random((size, size)) < 0.3).astype(np.float32)
        self.at = dict.fromkeys(self.agents, np.full(2, size // 2))
        return self.observations(), {agent: {"eaten": 0.0} for agent in self.agents}

    def step(self, action_dict: dict) -> tuple:
        self.t += 1
        rewards, infos = {}, {}
        for agent, action in action_dict.items():
            self.at[agent] = at = (self.at[agent] + self.moves[action]).clip(self.sight, self.side + self.sight - 1)
            rewards[agent] = float(self.food[*at])
            infos[agent] = {"eaten": rewards[agent]}
            self.food[*at] = 0.0
        return self.observations(), rewards, {"__all__": False}, {"__all__": self.t == self.length}, infos

    def observations(self) -> dict:
        far = self.sight + 1
        return {
            agent: {
                "position": (at / self.food.shape).astype(np.float32),
                "around": self.food[at[0] - self.sight : at[0] + far, at[1] - self.sight : at[1] + far].copy(),
            }
            for agent, at in self.at.items()
        }


class LooksAtArguments(ConnectorV2):
    """A piece that changes nothing, but reads arguments that only RLlib's loop has."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        assert "data" in kwargs
        return batch


class Flatten(FlattenObservations.func):  # type: ignore[misc]
    """RLlib's piece as a user's subclass."""


class ReadsEpisodes(RLlibCallback):
    """Reads attributes that only RLlib's loop has."""

    def on_episode_end(self, *, env_runner: Any, metrics_logger: Any, env_index: int, **kwargs: Any) -> None:
        metrics_logger.log_value("ended_at", len(env_runner._ongoing_episodes[env_index]), window=1)


class OwnVectorEnv(SyncVectorMultiAgentEnv):
    """A vector env of another class than RLlib's."""


def with_own_vector_env(base: type) -> type:
    def make_env(self: Any) -> None:
        base.make_env(self)  # type: ignore[attr-defined]
        self.env.__class__ = OwnVectorEnv

    return type(base.__name__, (base,), {"make_env": make_env})


def with_own_internals(base: type) -> type:
    def _increase_sampled_metrics(self: Any, *arguments: Any) -> int:
        return base._increase_sampled_metrics(self, *arguments)  # type: ignore[attr-defined]

    return type(base.__name__, (base,), {"_increase_sampled_metrics": _increase_sampled_metrics})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A reason to fall back."""

    to_module: tuple[Callable[[], Any], ...] = ()
    to_env: tuple[Callable[[], Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    callbacks: type | None = None
    is_recurrent: bool = False
    runner_class: Callable[[type], type] = lambda base: base


def rllibs_flatten() -> Any:
    return FlattenObservations(multi_agent=True)


def own_flatten() -> Any:
    return Flatten(multi_agent=True)


KINDS = {
    "callback": Kind(callbacks=ReadsEpisodes),
    "piece": Kind(to_module=(LooksAtArguments,)),
    "flatten": Kind(to_module=(rllibs_flatten, LooksAtArguments)),
    "vector_env": Kind(runner_class=with_own_vector_env),
    "lists": Kind(options=(("episodes_to_numpy", False),)),
    "subclass": Kind(runner_class=with_own_internals),
    "to_env": Kind(to_env=(LooksAtArguments,)),
    "recurrent": Kind(to_module=(LooksAtArguments,), is_recurrent=True),
}


@dataclass(frozen=True, kw_only=True)
class Sim:
    """The environment to sample, and the size of a call."""

    env: type[MultiAgentEnv]
    agents: int
    envs: int
    steps: int
    """Env steps per call of sample(), over all envs; a round has TURNS calls."""


SIMS = {
    "cartpole-2x1": Sim(env=MultiAgentCartPole, agents=2, envs=1, steps=15),
    "cartpole-8x8": Sim(env=MultiAgentCartPole, agents=8, envs=8, steps=32),
    "foragers-4x2": Sim(env=Foragers, agents=4, envs=2, steps=16),
}


def make_config(kind: Kind, sim: Sim) -> PPOConfig:
    to_module, to_env = kind.to_module, kind.to_env
    if sim.env is Foragers and kind.to_module != KINDS["flatten"].to_module:
        to_module = (own_flatten, *to_module)
    pipelines: dict[str, Any] = {}
    if to_module:
        pipelines["env_to_module_connector"] = lambda env, spaces, device: [make() for make in to_module]
    if to_env:
        pipelines["module_to_env_connector"] = lambda env, spaces: [make() for make in to_env]
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], use_lstm=kind.is_recurrent, lstm_cell_size=64)
    config = (
        PPOConfig()
        .environment(sim.env, env_config={"num_agents": sim.agents})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p0")
        .rl_module(model_config=model)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=sim.envs, **pipelines, **dict(kind.options))
        .debugging(seed=SEED)
    )
    return config.callbacks(kind.callbacks) if kind.callbacks else config


class Contest:
    """RLlib's class and ours with the same config."""

    def __init__(self, kind: Kind, sim: Sim):
        self.steps = sim.steps
        self.runners = []
        for base in (RLlibEnvRunner, MultiAgentEnvRunner):
            seed_everything(SEED)
            self.runners.append(kind.runner_class(base)(config=make_config(kind, sim)))
        self.round(0)
        gc.collect()
        gc.freeze()  # so that collections don't scan the objects of torch and Ray

    def round(self, i: int) -> float:
        """Return RLlib's time / ours, after a check that both did the same work."""
        seconds, done = [0.0, 0.0], [0.0, 0.0]
        gc.collect()
        for turn in range(TURNS):
            for which in (0, 1) if (i + turn) % 2 else (1, 0):
                seed_everything(TURNS * i + turn)
                begun = process_time()
                episodes = self.runners[which].sample(num_timesteps=self.steps)
                if turn == TURNS - 1:
                    self.runners[which].get_metrics()
                seconds[which] += process_time() - begun
                done[which] += sum(episode.agent_steps() + episode.get_return() for episode in episodes)
        assert done[0] == done[1], f"RLlib's episodes and ours differ: {done}"
        return seconds[0] / seconds[1]

    @property
    def reasons(self) -> list[str]:
        return self.runners[1].slow_path_reasons

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()
        gc.unfreeze()


def measure(kind: str, sim: str, rounds: int) -> tuple[list[float], list[str]]:
    """Return the sorted ratios of the rounds, and the reasons to fall back."""
    with measuring():
        contest = Contest(KINDS[kind], SIMS[sim])
        ratios = sorted(contest.round(i) for i in range(1, 1 + rounds))
        contest.stop()
    return ratios, contest.reasons


@pytest.mark.benchmark(group="RLlib's loop in our runner")
@pytest.mark.parametrize("kind", KINDS)
def bench_fallback(benchmark: Any, kind: str) -> None:
    with measuring():
        contest = Contest(KINDS[kind], SIMS["cartpole-2x1"])
        benchmark.extra_info["ratio"] = benchmark.pedantic(contest.round, args=(1,), rounds=1)
        contest.stop()
    assert contest.reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="default %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--sims", nargs="+", choices=SIMS, default=[*SIMS])
    args = parser.parse_args()
    print(f"| {'falls back for':14} | {'sim':14} | median | least | most |\n|---|---|---|---|---|")
    for kind in args.kinds:
        for sim in args.sims:
            ratios, reasons = measure(kind, sim, args.rounds)
            assert reasons, f"{kind} does not fall back"
            row = median(ratios), ratios[0], ratios[-1]
            print(f"| {kind:14} | {sim:14} | {row[0]:6.3f} | {row[1]:5.3f} | {row[2]:5.3f} |", flush=True)


if __name__ == "__main__":
    main()
