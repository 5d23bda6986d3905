"""Half of the limit, not a sampler: the bare environments with ready-made actions, in one process."""

import numpy as np

from peer_samplers.work import ACTIONS, AGENTS, TICKS, Sampler, Setting, make_env

DISTRIBUTION = "mpe2"

READY_ACTIONS = 1000


def build(setting: Setting) -> Sampler:
    envs = [make_env(setting.env) for _ in range(setting.num_envs)]
    drawn = np.random.default_rng(0).integers(0, ACTIONS, (READY_ACTIONS, AGENTS)).tolist()
    ready = [dict(zip(envs[0].possible_agents, actions, strict=True)) for actions in drawn]
    for i, env in enumerate(envs):
        env.reset(seed=i)

    def collect() -> int:
        for t in range(TICKS):
            actions = ready[t]
            for env in envs:
                env.step(actions)
                if not env.agents:
                    env.reset()
        return TICKS * len(envs) * AGENTS

    return Sampler(collect, {"envs": "stepped one after the other", "recorded": "nothing"})
