"""SuperSuit: agents become rows of a vector env, in a plain PyTorch loop like CleanRL's."""

import supersuit
import torch
from torch.distributions import Categorical

from peer_samplers.work import AGENTS, TICKS, Net, Record, Sampler, Setting, make_env

DISTRIBUTION = "supersuit"


def build(setting: Setting) -> Sampler:
    rows_of_env = supersuit.pettingzoo_env_to_vec_env_v1(make_env(setting.env))
    envs = supersuit.concat_vec_envs_v1(
        rows_of_env, setting.num_envs, num_cpus=setting.num_workers, base_class="gymnasium"
    )
    rows = setting.num_envs * AGENTS
    net, record = Net(), Record(rows)
    observations = torch.as_tensor(envs.reset(seed=1)[0])
    terminated, truncated = torch.zeros(2, rows)

    def collect() -> int:
        nonlocal observations, terminated, truncated
        for t in range(TICKS):
            record.observations[t], record.terminated[t], record.truncated[t] = observations, terminated, truncated
            with torch.no_grad():
                logits, values = net(observations)
                chosen = Categorical(logits=logits)
                actions = chosen.sample()
                record.logp[t], record.values[t] = chosen.log_prob(actions), values
            record.actions[t] = actions
            seen, rewards, ended, cut, _ = envs.step(actions.numpy())
            record.rewards[t] = torch.as_tensor(rewards)
            observations = torch.as_tensor(seen)
            terminated, truncated = torch.as_tensor(ended), torch.as_tensor(cut)
        return TICKS * rows

    setup = {
        "envs": f"pettingzoo_env_to_vec_env_v1, concat_vec_envs_v1(num_cpus={setting.num_workers})",
        "loop": "torch.no_grad, torch.distributions.Categorical, preallocated tensors",
    }
    return Sampler(collect, setup, envs.close)
