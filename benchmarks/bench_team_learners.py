"""CPU time of learning in VDN, QMIX and MAPPO: compiled, by autograd, and by others, in turn in one process.

python benchmarks/bench_team_learners.py [--epymarl FOLDER] [--on-policy FOLDER]

The folders are clones of EPyMARL at commit cbc38c0 and of on-policy at commit de66d7a. VDN and QMIX learn from the same
batches of the compiled simple_spread, with networks of 64-64 or a GRU of 64 behind a layer of 64, and take a step of
Adam and one of the target network. MAPPO learns from 25 steps in 128 environments, four epochs of four minibatches.
on-policy's networks normalise their inputs and layers, and its critic learns from a row for each agent.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from bench_recurrent import least
from learner_backends import make_learner

import fastmarl
from fastmarl.batches import aligned
from fastmarl.learning import QLearner, QMixer, TeamReplay
from fastmarl.modules import EpsilonGreedyRLModule

AGENTS = ["agent_0", "agent_1", "agent_2"]
N_OBS, N_ACTIONS, SIZE, TAU = 18, 5, 64, 0.01
# name -> use a GRU, function of a replay that draws the batch
BATCHES: dict[str, tuple[bool, Callable[[TeamReplay], Any]]] = {
    "256 decisions": (False, lambda replay: replay.sample(256)),
    "32 episodes": (False, lambda replay: replay.sample_episodes(32)),
    "32 episodes, GRU": (True, lambda replay: replay.sample_episodes(32)),
}


def sampled(use_gru: bool) -> tuple[Any, TeamReplay]:
    """Return a module, and a replay of what it has done."""
    memory = {"use_gru": True, "gru_cell_size": SIZE, "fcnet_hiddens": [SIZE]} if use_gru else {}
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        num_envs_per_env_runner=32,
        rollout_fragment_length=25,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=EpsilonGreedyRLModule, inference_only=True),
        model_config={"fcnet_hiddens": [SIZE, SIZE], "fcnet_activation": "relu", **memory},
        seed=0,
    )
    replay = TeamReplay(10_000, 0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for _ in range(6):
            for batch in aligned(runner.sample(), groups={"team": AGENTS}, outputs=[]).values():
                replay.add(batch)
        return runner.module["default_policy"], replay


def our_update(module: Any, batch: dict[str, Any], mixes: bool, compiled: bool) -> Callable[[], Any]:
    mixer = QMixer(len(AGENTS), len(AGENTS) * N_OBS) if mixes else None
    learner = QLearner(copy.deepcopy(module), mixer, gamma=0.9, tau=TAU, td_error_loss_fn="mse", compiled=compiled)
    return lambda: learner.update(batch)


def epymarl_update(folder: Path, batch: dict[str, Any], mixes: bool, use_gru: bool) -> Callable[[], Any]:
    """Return EPyMARL's update on the same batch, without its agent indicators and standardised rewards."""
    sys.path.insert(0, str(folder / "src"))
    from components.episode_buffer import EpisodeBatch
    from controllers.basic_controller import BasicMAC
    from learners.q_learner import QLearner as Learner

    n, length = batch["rewards"].shape
    args = SimpleNamespace(
        **{"n_agents": len(AGENTS), "n_actions": N_ACTIONS, "state_shape": len(AGENTS) * N_OBS, "agent": "rnn"},
        **{"obs_last_action": False, "obs_agent_id": False, "use_rnn": use_gru, "hidden_dim": SIZE},
        **{"agent_output_type": "q", "action_selector": "epsilon_greedy", "epsilon_start": 1.0},
        **{"epsilon_finish": 0.05, "epsilon_anneal_time": 1, "mixer": "qmix" if mixes else "vdn"},
        **{"mixing_embed_dim": 32, "hypernet_layers": 2, "hypernet_embed": 64, "common_reward": True, "lr": 5e-4},
        **{"use_cuda": False, "standardise_rewards": False, "standardise_returns": False, "double_q": True},
        **{"gamma": 0.9, "grad_norm_clip": 10, "target_update_interval_or_tau": TAU, "learner_log_interval": 10**9},
    )
    scheme = {
        "state": {"vshape": len(AGENTS) * N_OBS},
        "obs": {"vshape": N_OBS, "group": "agents"},
        "actions": {"vshape": (1,), "group": "agents", "dtype": torch.long},
        "avail_actions": {"vshape": (N_ACTIONS,), "group": "agents", "dtype": torch.int},
        "reward": {"vshape": (1,)},
        "terminated": {"vshape": (1,), "dtype": torch.uint8},
    }
    episodes = EpisodeBatch(scheme, {"agents": len(AGENTS)}, n, length + 1)
    obs = torch.as_tensor(batch["obs"])
    columns = {
        "state": obs.flatten(2),
        "obs": obs,
        "actions": torch.nn.functional.pad(torch.as_tensor(batch["actions"]), (0, 0, 0, 1))[..., None],
        "avail_actions": torch.ones((*obs.shape[:3], N_ACTIONS)),
        "reward": torch.nn.functional.pad(torch.as_tensor(batch["rewards"]), (0, 1))[..., None],
        "terminated": torch.nn.functional.pad(torch.as_tensor(batch["terminateds"]), (0, 1))[..., None],
    }
    episodes.update(columns)
    learner = Learner(BasicMAC(episodes.scheme, None, args), episodes.scheme, None, args)
    learner.log_stats_t = 0
    return lambda: learner.train(episodes, 0, 0)


def our_mappo(compiled: bool) -> Callable[[], Any]:
    runner, learner = make_learner("mappo", compiled)
    episodes = runner.sample()
    return lambda: learner.learn(episodes)


def on_policy_mappo(folder: Path) -> Callable[[], Any]:
    """Return the training of on-policy's MAPPO, from random numbers."""
    sys.path.insert(0, str(folder))
    sys.modules["wandb"] = ModuleType("wandb")  # it is imported, but not used
    from onpolicy.algorithms.r_mappo.algorithm.rMAPPOPolicy import R_MAPPOPolicy
    from onpolicy.algorithms.r_mappo.r_mappo import R_MAPPO
    from onpolicy.config import get_config
    from onpolicy.utils.shared_buffer import SharedReplayBuffer

    settings = {"n_rollout_threads": 128, "episode_length": 25, "num_mini_batch": 4, "ppo_epoch": 4}
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    args = get_config().parse_args(["--algorithm_name", "mappo", "--env_name", "MPE", *options])
    args.use_recurrent_policy = False
    obs, states = (gym.spaces.Box(-9, 9, (size,), np.float32) for size in (N_OBS, len(AGENTS) * N_OBS))
    actions = gym.spaces.Discrete(N_ACTIONS)
    trainer = R_MAPPO(args, R_MAPPOPolicy(args, obs, states, actions))
    buffer, rng = SharedReplayBuffer(args, len(AGENTS), obs, states, actions), np.random.default_rng(0)
    for column in (buffer.obs, buffer.share_obs, buffer.returns, buffer.value_preds):
        column[:] = rng.normal(size=column.shape)
    buffer.actions[:] = rng.integers(N_ACTIONS, size=buffer.actions.shape)
    buffer.action_log_probs[:] = -np.log(N_ACTIONS)
    return lambda: trainer.train(buffer)


def show(title: str, ways: dict[str, Callable[[], Any]], rounds: int) -> None:
    figures = ", ".join(f"{label} {1000 * seconds:.2f}" for label, seconds in least(ways, rounds).items())
    print(f"{title}: ms of CPU: {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--epymarl", type=Path)
    parser.add_argument("--on-policy", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, (use_gru, draw) in BATCHES.items():
        module, replay = sampled(use_gru)
        for mixes in (False, True):
            batch = draw(replay)
            ways = {label: our_update(module, batch, mixes, label == "compiled") for label in ("compiled", "autograd")}
            if args.epymarl:
                ways["EPyMARL"] = epymarl_update(args.epymarl, batch, mixes, use_gru)
            show(f"{'QMIX' if mixes else 'VDN'}, {name}", ways, args.rounds)
    ways = {label: our_mappo(label == "compiled") for label in ("compiled", "autograd")}
    if args.on_policy:
        ways["on-policy"] = on_policy_mappo(args.on_policy)
    show("MAPPO, 9,600 rows", ways, max(1, args.rounds // 10))


if __name__ == "__main__":
    main()
