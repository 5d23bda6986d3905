"""The cost of making a learner's batch: 6,400 env steps of simple_spread, 19,200 agent steps in 256 chunks.

pytest benchmarks/bench_batches.py --benchmark-group-by=group --benchmark-columns=median

The saved results (`--benchmark-json`) have `agent_steps_per_s` and `us_per_agent_step`.

python benchmarks/bench_batches.py: CPU time of each function on fresh chunks from `sample()`, and of building the agent
episodes alone, in turn.
"""

import argparse
import time
from statistics import median

import numpy as np
import pytest
import torch
from rates import timed

import fastmarl
from fastmarl.batches import add_aligned_gae, add_gae, aligned, columns, sequences

ENVS, STEPS, AGENTS = 32, 200, 3
AGENT_STEPS = ENVS * STEPS * AGENTS


def make_runner(env="fastmarl.simple_spread", num_envs=ENVS, record_env_state=True):
    config = fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=num_envs,
        model_config={"fcnet_hiddens": [64, 64]},
        record_env_state=record_env_state,
        seed=0,
    )
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.fixture(scope="module")
def runner():
    return make_runner()


@pytest.fixture
def episodes(runner):
    return runner.sample(num_timesteps=ENVS * STEPS)  # agent episodes are not built yet


def by_getters(episodes):
    """Make these columns in the plain way: agent by agent, then joined."""
    columns_of = {}
    for episode in episodes:
        for part in episode.agent_episodes.values():
            part._columns.clear()  # forgets columns that were built before
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
    rewards = batch["rewards"] if mask is None else batch["rewards"][mask]
    assert rewards.sum() == pytest.approx(sum(episode.get_return() for episode in episodes))


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


OUTPUTS = ["action_logp", "vf_preds"]
GAE = {"gamma": 0.99, "lambda_": 0.95}


def with_gae(episodes):
    (batch,) = columns(episodes, outputs=OUTPUTS).values()
    add_gae(batch, last_values=np.zeros(len(batch["seq_lens"])), **GAE)


def with_aligned_gae(episodes):
    (batch,) = aligned(episodes, outputs=OUTPUTS).values()
    steps, n_chunks, _ = batch["active"].shape
    add_aligned_gae(batch, np.zeros((steps + 1, n_chunks)), **GAE)


def build(episodes):
    for episode in episodes:
        assert episode.agent_episodes


WAYS = {
    "columns": lambda episodes: columns(episodes, outputs=OUTPUTS),
    "columns, add_gae": with_gae,
    "sequences of 20": lambda episodes: sequences(episodes, max_seq_len=20, burn_in=5, outputs=OUTPUTS),
    "aligned": lambda episodes: aligned(episodes, outputs=OUTPUTS),
    "aligned, add_aligned_gae": with_aligned_gae,
    "agent episodes alone": build,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="fastmarl.simple_spread")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--steps", type=int, nargs="+", default=[25, 50])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for record_env_state in (False, True):
        runner = make_runner(args.env, args.num_envs, record_env_state)
        for steps in args.steps:
            agent_steps, times = 0, {name: [] for name in WAYS}
            for _ in range(args.rounds + 2):
                for name, way in WAYS.items():
                    episodes = runner.sample(num_timesteps=args.num_envs * steps)
                    begun = time.process_time()
                    way(episodes)
                    times[name].append(time.process_time() - begun)
                    agent_steps = sum(episode.agent_steps() for episode in episodes)
            states = " and env states" if record_env_state else ""
            print(f"{agent_steps} agent steps{states}, µs per agent step: median, least")
            for name, seconds in times.items():
                print(f"  {name:26} {median(seconds[2:]) * 1e6 / agent_steps:6.3f}"
                      f" {min(seconds[2:]) * 1e6 / agent_steps:6.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
