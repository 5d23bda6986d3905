"""What a learner pays for its batch: 6,400 env steps of simple_spread, 19,200 agent steps in 256 chunks.

pytest benchmarks/bench_batches.py --benchmark-group-by=group --benchmark-columns=median

`agent_steps_per_s` and `us_per_agent_step` are in the saved results (`--benchmark-json`).
"""

import numpy as np
import pytest
from rates import timed

import fastmarl
from fastmarl.batches import add_aligned_gae, add_gae, aligned, columns, sequences

ENVS, STEPS, AGENTS = 32, 200, 3
AGENT_STEPS = ENVS * STEPS * AGENTS


@pytest.fixture(scope="module")
def episodes():
    config = fastmarl.EnvRunnerConfig(
        env="mpe2.simple_spread_v3",
        num_envs_per_env_runner=ENVS,
        model_config={"fcnet_hiddens": [64, 64]},
        record_env_state=True,
        seed=0,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    return runner.sample(num_timesteps=ENVS * STEPS)


def by_getters(episodes):
    """The same columns the plain way: agent by agent, then joined."""
    columns_of = {}
    for episode in episodes:
        for part in episode.agent_episodes.values():
            part._columns.clear()  # as if it had not been asked before
            asked = {
                "obs": part.get_observations(slice(None, -1)),
                "actions": part.get_actions(),
                "rewards": part.get_rewards(),
                **{key: part.get_extra_model_outputs(key) for key in part.extra_model_output_keys},
            }
            for name, column in asked.items():
                columns_of.setdefault(name, []).append(column)
    return {"default_policy": {name: np.concatenate(pieces) for name, pieces in columns_of.items()}}


BATCHES = {
    "by getters": by_getters,
    "columns": columns,
    "sequences of 20": lambda episodes: sequences(episodes, max_seq_len=20, burn_in=5),
    "aligned": aligned,
}


@pytest.mark.benchmark(group="a batch of 19,200 agent steps")
@pytest.mark.parametrize("name", BATCHES)
def bench_batch(benchmark, episodes, name):
    batch = timed(benchmark, lambda: BATCHES[name](episodes), AGENT_STEPS)["default_policy"]
    mask = batch.get("loss_mask", batch.get("active"))
    assert (len(batch["rewards"]) if mask is None else mask.sum()) == AGENT_STEPS
    paid = batch["rewards"] if mask is None else batch["rewards"][mask]
    assert paid.sum() == pytest.approx(sum(episode.get_return() for episode in episodes))


@pytest.mark.benchmark(group="GAE of 19,200 agent steps")
def bench_gae(benchmark, episodes):
    (batch,) = columns(episodes).values()
    last_values = np.zeros(len(batch["seq_lens"]))
    options = {"gamma": 0.99, "lambda_": 0.95, "last_values": last_values}
    benchmark.pedantic(add_gae, args=(batch,), kwargs=options, rounds=20, warmup_rounds=2)
    assert np.isfinite(batch["advantages"]).all() and batch["advantages"].any()


@pytest.mark.benchmark(group="GAE of 19,200 agent steps")
def bench_aligned_gae(benchmark, episodes):
    (batch,) = aligned(episodes).values()
    values = np.zeros(batch["env_state"].shape[:2])
    benchmark.pedantic(
        add_aligned_gae, args=(batch, values), kwargs={"gamma": 0.99, "lambda_": 0.95}, rounds=20, warmup_rounds=2
    )
    assert batch["advantages"][batch["active"]].any()
