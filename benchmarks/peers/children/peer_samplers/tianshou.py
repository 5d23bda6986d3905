"""Tianshou: its turn-based PettingZooEnv, MultiAgentPolicy and Collector.

Log-probabilities and values are not recorded, since its learners compute them later. The network computes both anyway.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv, SubprocVectorEnv
from tianshou.utils.net.common import AbstractDiscreteActor
from torch.distributions import Categorical

from peer_samplers.work import ACTIONS, AGENTS, TICKS, Net, Sampler, Setting, make_aec_env

DISTRIBUTION = "tianshou"


class Actor(AbstractDiscreteActor):
    def __init__(self) -> None:
        super().__init__(ACTIONS)
        self.net = Net()

    def get_preprocess_net(self) -> torch.nn.Module:
        return self.net.trunk

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        rows = obs.obs if hasattr(obs, "obs") else obs
        logits, _ = self.net(torch.as_tensor(np.asarray(rows), dtype=torch.float32))
        return logits, state


def tianshou_env(kind: str) -> PettingZooEnv:
    return PettingZooEnv(make_aec_env(kind))


def build(setting: Setting) -> Sampler:
    make = partial(tianshou_env, setting.env)
    # Its other multiprocess vector env can't handle dict observations, which PettingZooEnv has.
    vector = SubprocVectorEnv if setting.num_workers else DummyVectorEnv
    steps = TICKS * AGENTS * setting.num_envs  # a step is one agent's
    buffer = VectorReplayBuffer(steps, setting.num_envs)
    envs = vector([make] * setting.num_envs)
    collector = Collector(_policy(make()), envs, buffer)
    collector.reset()

    def collect() -> int:
        return int(collector.collect(n_step=steps).n_collected_steps)

    setup = {
        "envs": f"{vector.__name__}, {'a process for each env' if setting.num_workers else 'one process'}",
        "policy": "MultiAgentPolicy of one ProbabilisticActorPolicy",
        "recorded": "no log-probabilities, no values",
    }
    return Sampler(collect, setup, envs.close)


def _policy(env: PettingZooEnv) -> MultiAgentPolicy:
    shared = ProbabilisticActorPolicy(
        actor=Actor(),
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=env.action_space,
        observation_space=env.observation_space,
        action_scaling=False,
        action_bound_method=None,
    )
    policy = MultiAgentPolicy(dict.fromkeys(env.agents, shared))
    policy.agent_idx = env.agent_idx
    return policy
