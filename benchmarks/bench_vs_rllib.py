"""RLlib's MultiAgentEnvRunner and ours on the same cases; needs the extra `rllib`.

    pytest benchmarks/bench_vs_rllib.py --benchmark-group-by=group --benchmark-columns=median

`fastmarl bench rllib` measures more, and in turn; here each runner has its own benchmark.
"""

import pytest

pytest.importorskip("ray.rllib")

from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

from fastmarl.bench.rllib.cases import CASES
from fastmarl.bench.rllib.measure import measuring, seed_everything
from fastmarl.rllib import MultiAgentEnvRunner

RUNNERS = {"RLlib": RLlibEnvRunner, "fastmarl": MultiAgentEnvRunner}
ROUNDS = 5


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=pytest.mark.benchmark(group=name))
        for name in ("cartpole-2x1", "cartpole-8x8", "ready-8x16")
    ],
)
def bench_sample(benchmark, case, runner):
    steps = CASES[case].steps if benchmark.enabled else 128  # a smoke test in CI
    with measuring():
        sampler = RUNNERS[runner](config=CASES[case].config())

        def setup():
            sampler.get_metrics()
            seed_everything(0)

        episodes = benchmark.pedantic(
            sampler.sample, kwargs={"num_timesteps": steps}, setup=setup, rounds=ROUNDS, warmup_rounds=1
        )
        sampler.stop()
    assert steps <= sum(episode.env_steps() for episode in episodes) < steps + CASES[case].envs
    if benchmark.enabled:
        agent_steps = sum(episode.agent_steps() for episode in episodes)
        benchmark.extra_info["agent_steps_per_s"] = round(agent_steps / benchmark.stats.stats.median)
