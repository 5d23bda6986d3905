"""TorchRL: a PettingZooWrapper in its collectors; each worker has its own envs and policy."""

from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector, MultiAsyncCollector
from torchrl.envs import SerialEnv
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import ExplorationType, MarlGroupMapType
from torchrl.modules import ProbabilisticActor

from peer_samplers.work import AGENTS, TICKS, Net, Sampler, Setting, make_env

DISTRIBUTION = "torchrl"


class TorchRLNet(Net):
    """The network with an additional last dimension of the values."""

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, values = super().forward(observations)
        return logits, values.unsqueeze(-1)


def torchrl_env(kind: str) -> PettingZooWrapper:
    return PettingZooWrapper(
        make_env(kind), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP, categorical_actions=True, use_mask=False
    )


def torchrl_envs(kind: str, num_envs: int) -> Any:
    return torchrl_env(kind) if num_envs == 1 else SerialEnv(num_envs, partial(torchrl_env, kind))


def build(setting: Setting) -> Sampler:
    make = partial(torchrl_envs, setting.env, setting.envs_per_worker)
    frames = TICKS * setting.num_envs
    if setting.num_workers:
        collector = MultiAsyncCollector(
            [make] * setting.num_workers,
            _policy(),
            frames_per_batch=frames // setting.num_workers,
            total_frames=-1,
            num_threads=1,
            num_sub_threads=1,
        )
        setup: dict[str, Any] = {"collector": "MultiAsyncCollector", "envs": f"{setting.num_workers} x SerialEnv"}
    else:
        collector = Collector(make, _policy(), frames_per_batch=frames, total_frames=-1)
        setup = {"collector": "Collector", "envs": "SerialEnv" if setting.num_envs > 1 else "PettingZooWrapper"}
    torch.set_num_threads(1)  # collectors change it
    batches = iter(collector)

    def collect() -> int:
        return next(batches).numel() * AGENTS

    setup |= {"group_map": "ALL_IN_ONE_GROUP", "frames_per_batch": frames, "actor": "ProbabilisticActor, Categorical"}
    return Sampler(collect, setup, collector.shutdown)


def _policy() -> ProbabilisticActor:
    net = TensorDictModule(
        TorchRLNet(),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "logits"), ("agents", "state_value")],
    )
    return ProbabilisticActor(
        module=net,
        in_keys=[("agents", "logits")],
        out_keys=[("agents", "action")],
        distribution_class=Categorical,
        return_log_prob=True,
        log_prob_key=("agents", "action_log_prob"),
        default_interaction_type=ExplorationType.RANDOM,
    )
