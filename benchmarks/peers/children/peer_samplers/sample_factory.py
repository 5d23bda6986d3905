"""Sample Factory: its own sampler without a learner; batched sampling, as its documentation recommends for speed."""

import logging
import tempfile
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import EnvInfo, extract_env_info
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.algo.utils.model_sharing import ParameterServer
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sample_factory.algo.utils.shared_buffers import BufferMgr
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.utils.gpu_utils import set_global_cuda_envvars
from sample_factory.utils.utils import log

from peer_samplers.work import AGENTS, HIDDENS, TICKS, Sampler, Setting, make_env

DISTRIBUTION = "sample-factory"


class ListEnv(gym.Env):
    """Indexes agents by position, as Sample Factory requires; such envs reset themselves."""

    is_multiagent = True
    num_agents = AGENTS

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self._env = make_env(kind)
        self._ids = self._env.possible_agents
        self.observation_space = self._env.observation_space(self._ids[0])
        self.action_space = self._env.action_space(self._ids[0])
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        observations, _ = self._env.reset(seed=seed)
        return self._by_position(observations), [{} for _ in self._ids]

    def step(self, actions: Any) -> Any:
        results = self._env.step(dict(zip(self._ids, map(int, actions), strict=True)))
        observations, rewards, terminated, truncated = map(self._by_position, results[:4])
        if not self._env.agents:
            observations = self._by_position(self._env.reset()[0])
        return observations, rewards, terminated, truncated, [{} for _ in self._ids]

    def render(self) -> None:
        pass

    def _by_position(self, of_agent: dict) -> list:
        return [of_agent[agent] for agent in self._ids]


def list_env(kind: str, name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> ListEnv:
    return ListEnv(kind, render_mode)


def build(setting: Setting) -> Sampler:
    log.setLevel(logging.ERROR)
    register_env("work", partial(list_env, setting.env))
    folder = tempfile.TemporaryDirectory()
    options = _options(setting)
    args = ["--env=work", "--experiment=peers", f"--train_dir={folder.name}"]
    args += [f"--{name}={value}" for name, value in options.items()]
    args += ["--encoder_mlp_layers", *map(str, HIDDENS)]
    parser, _ = parse_sf_args(args)
    cfg = parse_full_cfg(parser, args)
    set_global_cuda_envvars(cfg)
    env_info = extract_env_info(make_env_func_batched(cfg, env_config=None), cfg)
    shared = (None, None) if setting.num_workers else _model(cfg, env_info)
    sampler = SyncSamplingAPI(cfg, env_info, *shared)
    sampler.start()

    def collect() -> int:
        steps = 0
        while steps < TICKS * AGENTS * setting.num_envs:
            steps += samples_per_trajectory(sampler.get_trajectories_sync())
        return steps

    def close() -> None:
        sampler.stop()
        folder.cleanup()

    return Sampler(collect, {"sampler": "SyncSamplingAPI", **options, "encoder_mlp_layers": [*HIDDENS]}, close)


def _options(setting: Setting) -> dict[str, Any]:
    has_workers = setting.num_workers > 0
    splits = 2 if has_workers and setting.envs_per_worker % 2 == 0 else 1
    return {
        "device": "cpu",
        "serial_mode": not has_workers,
        "async_rl": has_workers,
        "num_workers": max(1, setting.num_workers),
        "num_envs_per_worker": setting.envs_per_worker,
        "worker_num_splits": splits,
        "policy_workers_per_policy": 1,
        "batched_sampling": True,
        "rollout": TICKS,
        "batch_size": TICKS * AGENTS * setting.num_envs,
        "num_batches_per_epoch": 1,
        "use_rnn": False,
        "recurrence": 1,
        "nonlinearity": "tanh",
        "normalize_input": False,
        "normalize_returns": False,
        "decorrelate_envs_on_one_worker": False,
        "decorrelate_experience_max_seconds": 0,
        "actor_critic_share_weights": True,
        "set_workers_cpu_affinity": False,
        "train_for_env_steps": 10**12,
    }


def _model(cfg: Any, env_info: EnvInfo) -> tuple[BufferMgr, dict[int, ParameterServer]]:
    """Create the model, which a learner would provide in serial mode."""
    buffers = BufferMgr(cfg, env_info)
    device = torch.device("cpu")
    model = create_actor_critic(cfg, env_info.obs_space, env_info.action_space)
    model.model_to_device(device)
    server = ParameterServer(0, buffers.policy_versions, True)
    server.init(model, 0, device)
    return buffers, {0: server}
