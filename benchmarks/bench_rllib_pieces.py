"""The speed of fastmarl.rllib's runner with callbacks, connectors, other nets and actions, relative to RLlib's class.

    python -m benchmarks.bench_rllib_pieces [--rounds 5] [--kinds lstm mean_std]

RLlib's class and ours, with sampler="exact" and "fast", are in one process, with the same config and seeds, and take
turns: in each round, one call of `sample()` for 1,000 env steps and one of `get_metrics()`. The figures are CPU times
per agent step. The environment is MultiAgentCartPole with 8 agents in 8 environments, two policies of 256-256.
"""

import argparse
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from benchmarks.rllib.pair import measuring, seed_everything
from fastmarl.rllib.runner import MultiAgentEnvRunner

SEED = 1
ENV_STEPS = 1000
N_OBS = 4
RUNNERS = (RLlibEnvRunner, MultiAgentEnvRunner, MultiAgentEnvRunner.options(sampler="fast"))


class Images(MultiAgentCartPole):
    """Observations as images of 4 x 1 pixels."""

    def __init__(self, config: dict[str, Any]):
        super().__init__(config)
        space = gym.spaces.Box(-np.inf, np.inf, (N_OBS, 1, 1), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)

    def reset(self, **options: Any) -> tuple:
        obs, infos = super().reset(**options)
        return self._images(obs), infos

    def step(self, actions: dict) -> tuple:
        obs, *rest = super().step(actions)
        return self._images(obs), *rest

    def _images(self, obs: dict) -> dict:
        return {agent: values.reshape(N_OBS, 1, 1) for agent, values in obs.items()}


class BoxActions(MultiAgentCartPole):
    """Moves right if the action is positive."""

    action_space_of_agent: gym.Space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, config: dict[str, Any]):
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.action_space_of_agent)

    def step(self, actions: dict) -> tuple:
        return super().step({agent: self.direction(action) for agent, action in actions.items()})

    def direction(self, action: Any) -> int:
        return int(action[0] > 0)


class DictActions(BoxActions):
    """Moves in the direction of one part of the action."""

    action_space_of_agent = gym.spaces.Dict(force=gym.spaces.Box(-1, 1, (1,), np.float32), way=gym.spaces.Discrete(2))

    def direction(self, action: Any) -> int:
        return int(action["way"])


class LogsReturns(RLlibCallback):
    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("return", episode.get_return())


class ReadsColumns(RLlibCallback):
    """Reads rewards, actions and infos."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        total = sum(sum(rewards) for rewards in episode.get_rewards(env_steps=False).values())
        metrics_logger.log_value(
            "columns", total + len(episode.get_actions(env_steps=False)) + len(episode.get_infos(-1))
        )


class ReadsAgents(RLlibCallback):
    """Reads rewards, actions and infos by agent."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        total = 0.0
        for agent in episode.agent_episodes.values():
            total += sum(agent.get_rewards()) + len(agent.get_actions()) + len(agent.get_infos(-1))
        metrics_logger.log_value("columns", total)


class CountsInfos(RLlibCallback):
    """Reads infos and writes custom data in each step."""

    def on_episode_created(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["n"] = 0

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["n"] += len(episode.get_infos(-1))


class Halves(SingleAgentObservationPreprocessor):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation * np.float32(0.5)


class HalvesTogether(MultiAgentObservationPreprocessor):
    def preprocess(self, observations: dict, episode: Any) -> dict:
        return {agent: obs * np.float32(0.5) for agent, obs in observations.items()}


class AppendsReward(SingleAgentObservationPreprocessor):
    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        space = gym.spaces.Box(-np.inf, np.inf, (N_OBS + 1,), np.float32)
        return gym.spaces.Dict(dict.fromkeys(input_observation_space.spaces, space))

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return np.append(observation, np.float32(episode.get_rewards(-1) if len(episode) else 0.0))


class Sticky(ConnectorV2):
    """Agents repeat their last action with a probability of 0.25."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rng = np.random.default_rng(SEED)

    def __call__(self, *, batch: dict, episodes: list, **kwargs: Any) -> dict:
        by_id = {episode.id_: episode for episode in episodes}
        for (episode_id, agent_id, _), items in batch[Columns.ACTIONS].items():
            agent = by_id[episode_id].agent_episodes[agent_id]
            if len(agent) and self.rng.random() < 0.25:
                items[0] = agent.get_actions(-1)
        return batch


class Epsilon(Sticky):
    """Agents act randomly with a probability of 0.1; their actions are int64."""

    def __call__(self, *, batch: dict, **kwargs: Any) -> dict:
        for items in batch[Columns.ACTIONS].values():
            if self.rng.random() < 0.1:
                items[0] = self.rng.integers(2)
        return batch


class NoisyLogits(Sticky):
    """Adds noise before all of RLlib's pieces."""

    def __call__(self, *, batch: dict, **kwargs: Any) -> dict:
        for outputs in batch.values():
            logits = outputs[Columns.ACTION_DIST_INPUTS]
            logits += torch.from_numpy(self.rng.normal(0, 0.1, logits.shape).astype(np.float32))
        return batch


class StopsForEnv(ConnectorV2):
    """Gives envs 0 in place of agent 0's action, which is recorded unchanged."""

    def __call__(self, *, batch: dict, **kwargs: Any) -> dict:
        batch[Columns.ACTIONS_FOR_ENV] = [
            of_env | ({0: 0} if 0 in of_env else {}) for of_env in batch[Columns.ACTIONS_FOR_ENV]
        ]
        return batch


class AddsAge(ConnectorV2):
    """Adds a column that the module reads."""

    def __call__(self, *, batch: dict, episodes: list, **kwargs: Any) -> dict:
        for agent in self.single_agent_episode_iterator(episodes):
            self.add_n_batch_items(batch, "age", [np.array([agent.t / 100], np.float32)], 1, agent)
        return batch


class AddsAgeLast(ConnectorV2):
    """Adds the column after all of RLlib's pieces, from the observations."""

    def __call__(self, *, batch: dict, **kwargs: Any) -> dict:
        for columns in batch.values():
            columns["age"] = columns[Columns.OBS][:, :1] / 100
        return batch


class ReadsAge(DefaultPPOTorchRLModule):
    """Adds the column to the logits."""

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        outputs = super()._forward(batch, **kwargs)
        outputs[Columns.ACTION_DIST_INPUTS] = outputs[Columns.ACTION_DIST_INPUTS] + batch["age"]
        return outputs


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Differences of a config from the defaults."""

    env: type[MultiAgentCartPole] = MultiAgentCartPole
    callbacks: type | None = None
    pieces: Callable[[], list[Any]] | None = None
    to_env: type | None = None
    to_env_at: Mapping[str, type] = field(default_factory=dict)
    """Name of a method of the module-to-env pipeline -> the piece that it inserts."""
    last: type | None = None
    """A piece after RLlib's env-to-module pieces."""
    module: type | None = None
    model: Mapping[str, Any] = field(default_factory=dict)


def multi_agent(*pieces: Any, **options: Any) -> Callable[[], list[Any]]:
    return lambda: [piece(multi_agent=True, **options) for piece in pieces]


KINDS = {
    "plain": Kind(),
    "return at the end": Kind(callbacks=LogsReturns),
    "columns at the end": Kind(callbacks=ReadsColumns),
    "columns by agent": Kind(callbacks=ReadsAgents),
    "infos in each step": Kind(callbacks=CountsInfos),
    "FlattenObservations": Kind(pieces=multi_agent(FlattenObservations)),
    "PrevActionsPrevRewards": Kind(pieces=multi_agent(PrevActionsPrevRewards, FlattenObservations)),
    "MeanStdFilter": Kind(pieces=multi_agent(MeanStdFilter)),
    "FrameStacking, CNN": Kind(
        env=Images,
        pieces=multi_agent(FrameStacking, num_frames=4),
        model={"conv_filters": [[4, [1, 1], 1]], "head_fcnet_hiddens": [256, 256]},
    ),
    "own piece": Kind(pieces=lambda: [Halves()]),
    "own piece, rewards": Kind(pieces=lambda: [AppendsReward()]),
    "own piece, all agents": Kind(pieces=lambda: [HalvesTogether()]),
    "LSTM of 256": Kind(model={"use_lstm": True, "lstm_cell_size": 256}),
    "LSTM of 256, shared": Kind(model={"use_lstm": True, "lstm_cell_size": 256, "vf_share_layers": True}),
    "LSTM of 64": Kind(model={"use_lstm": True, "lstm_cell_size": 64}),
    "Box actions": Kind(env=BoxActions),
    "Dict actions": Kind(env=DictActions),
    "sticky actions": Kind(to_env=Sticky),
    "random actions": Kind(to_env=Epsilon),
    "noise on logits": Kind(to_env_at={"prepend": NoisyLogits}),
    "actions for envs, last": Kind(to_env_at={"append": StopsForEnv}),
    "a column": Kind(pieces=lambda: [AddsAge()], module=ReadsAge),
    "a column, last": Kind(last=AddsAgeLast, module=ReadsAge),
    "a column, sticky actions, MeanStdFilter": Kind(
        pieces=lambda: [AddsAge(), MeanStdFilter(multi_agent=True)], module=ReadsAge, to_env=Sticky
    ),
}


def make_config(kind: Kind) -> PPOConfig:
    model = {"fcnet_hiddens": [256, 256], "vf_share_layers": False, **kind.model}
    pipelines: dict[str, Any] = {}
    if kind.pieces is not None:
        make = kind.pieces
        pipelines["env_to_module_connector"] = lambda env, spaces, device: make()
    if kind.to_env is not None:
        to_env = kind.to_env
        pipelines["module_to_env_connector"] = lambda env, spaces: to_env()
    config_of_model = DefaultModelConfig(**model)
    module: dict[str, Any] = {"model_config": config_of_model}
    if kind.module is not None:
        module["rl_module_spec"] = MultiRLModuleSpec(
            rl_module_specs={
                name: RLModuleSpec(kind.module, model_config=config_of_model, catalog_class=PPOCatalog)
                for name in ("p0", "p1")
            }
        )
    config = (
        PPOConfig()
        .environment(kind.env, env_config={"num_agents": 8})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id % 2}")
        .rl_module(**module)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8, **pipelines)
        .debugging(seed=SEED)
    )
    return config.callbacks(kind.callbacks) if kind.callbacks else config


def make_runner(runner_class: type, kind: Kind) -> Any:
    runner = runner_class(config=make_config(kind))
    for method, piece in kind.to_env_at.items():
        getattr(runner._module_to_env, method)(piece())
    if kind.last is not None:
        runner._env_to_module.append(kind.last())
    return runner


class Contest:
    """RLlib's class, and ours with both samplers, with the same config.

    Args:
        kind: Kind of config.
        env_steps: Env steps per round.
    """

    def __init__(self, kind: Kind, env_steps: int):
        self.env_steps = env_steps
        self.runners: list[Any] = []
        for runner_class in RUNNERS:
            seed_everything(SEED)
            self.runners.append(make_runner(runner_class, kind))
        for i in range(2):
            self.round(i)
        gc.collect()
        gc.freeze()  # so that collections don't scan the objects of torch and Ray

    def round(self, i: int) -> list[float]:
        """Return each runner's microseconds per agent step, after a check that the first two did the same work."""
        times, done = [], []
        for runner in self.runners:
            seed_everything(i)
            gc.collect()
            begun = process_time()
            episodes = runner.sample(num_timesteps=self.env_steps)
            runner.get_metrics()
            seconds = process_time() - begun
            n_steps = sum(episode.agent_steps() for episode in episodes)
            done.append((n_steps, sum(episode.get_return() for episode in episodes)))
            times.append(1e6 * seconds / n_steps)
        assert done[0] == done[1], f"RLlib's episodes and ours differ: {done}"
        return times

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()
        gc.unfreeze()


def measure(kind: str, rounds: int) -> list[list[float]]:
    """Return the three times of each round."""
    with measuring():
        contest = Contest(KINDS[kind], ENV_STEPS)
        times = [contest.round(i) for i in range(rounds)]
        assert contest.runners[1].is_accelerated, contest.runners[1].slow_path_reasons
        contest.stop()
    return times


@pytest.mark.benchmark(group="RLlib's pieces in our loop")
@pytest.mark.parametrize(
    "kind",
    [
        "columns by agent",
        "MeanStdFilter",
        "own piece, rewards",
        "LSTM of 64",
        "Dict actions",
        "sticky actions",
        "a column",
    ],
)
def bench_pieces(benchmark: Any, kind: str) -> None:
    with measuring():
        contest = Contest(KINDS[kind], ENV_STEPS // 20)
        benchmark.extra_info["times"] = benchmark.pedantic(contest.round, args=(1,), rounds=1)
        contest.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    args = parser.parse_args()
    print("| config | RLlib, us an agent step | exact | fast |\n|---|---|---|---|")
    for kind in args.kinds:
        times = measure(kind, args.rounds)
        exact, fast = (median(each[0] / each[which] for each in times) for which in (1, 2))
        print(f"| {kind} | {median(each[0] for each in times):.0f} | {exact:.1f} | {fast:.1f} |", flush=True)


if __name__ == "__main__":
    main()
