"""PufferLib: its PettingZoo emulation and vector envs, in a loop like its trainer's evaluate()."""

from functools import partial
from typing import Any

import numpy as np
import torch
from pufferlib import emulation, vector
from pufferlib.pytorch import sample_logits

from peer_samplers.work import AGENTS, TICKS, Net, Record, Sampler, Setting, make_env

DISTRIBUTION = "pufferlib-core"


def puffer_env(kind: str, buf: Any = None, seed: int = 0) -> emulation.PettingZooPufferEnv:
    return emulation.PettingZooPufferEnv(env_creator=partial(make_env, kind), buf=buf, seed=seed)


def build(setting: Setting) -> Sampler:
    envs, setup = _vector(setting)
    rows = setting.num_envs * AGENTS
    net, record = Net(), Record(rows)
    envs.async_reset(42)

    def collect() -> int:
        time_R = np.zeros(rows, np.int64)
        resets = steps = 0
        while steps < TICKS * rows:
            # Some versions also send a teacher's actions.
            observations, rewards, terminated, truncated, *_, ids, _ = envs.recv()
            batch = slice(int(ids[0]), int(ids[-1]) + 1)
            t = time_R[batch.start]
            seen = torch.as_tensor(observations)
            with torch.no_grad():
                logits, values = net(seen)
                actions, logp, _ = sample_logits(logits)
            if t < TICKS:  # faster envs wait until the records of the others are full
                record.observations[t, batch], record.actions[t, batch] = seen, actions
                record.logp[t, batch], record.values[t, batch] = logp, values
                record.rewards[t, batch] = torch.as_tensor(rewards)
                record.terminated[t, batch] = torch.as_tensor(terminated)
                record.truncated[t, batch] = torch.as_tensor(truncated)
                steps += batch.stop - batch.start
                # An action sent to an env whose episode has just ended resets it and is not a step.
                resets += int(np.count_nonzero(terminated | truncated))
            time_R[batch] += 1
            envs.send(actions.numpy())
        return steps - resets

    return Sampler(collect, setup, envs.close)


def _vector(setting: Setting) -> tuple[Any, dict[str, Any]]:
    make = partial(puffer_env, setting.env)
    loop = "torch.no_grad, pufferlib.pytorch.sample_logits, preallocated tensors"
    if not setting.num_workers:
        envs = vector.make(make, backend=vector.Serial, num_envs=setting.num_envs)
        return envs, {"backend": "Serial", "num_envs": setting.num_envs, "loop": loop}
    # Half of the envs step while the network computes actions for the others.
    options = {
        "num_envs": setting.num_envs,
        "num_workers": setting.num_workers,
        "batch_size": setting.num_envs // 2,
        "zero_copy": True,
        "overwork": True,  # otherwise it refuses more workers than physical cores
    }
    envs = vector.make(make, backend=vector.Multiprocessing, **options)
    return envs, {"backend": "Multiprocessing", **options, "loop": loop}
