"""The sampler's own cost: a policy without computation, envs that return ready-made dicts.

    pytest benchmarks/bench_sampler.py --benchmark-group-by=group --benchmark-columns=median

The saved results (`--benchmark-json`) have `agent_steps_per_s` and `us_per_agent_step`.
"""

import pytest
from policies import NoPolicy
from rates import timed

import fastmarl
from fastmarl.bench.relative_speed_table import ReadyDicts

TICKS = 128


def make_runner(agents, envs, **options):
    return fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env=ReadyDicts,
            env_config={"agents": agents},
            num_envs_per_env_runner=envs,
            policies={"default_policy": NoPolicy()},
            **options,
        )
    )


def steps_in(episodes):
    return sum(episode.agent_steps() for episode in episodes)


@pytest.mark.benchmark(group="own cost, 32 agents x 16 envs")
def bench_sample_without_policy(benchmark):
    runner = make_runner(32, 16)
    agent_steps = TICKS * 32 * 16
    episodes = timed(benchmark, lambda: runner.sample(num_timesteps=TICKS * 16), agent_steps)
    assert steps_in(episodes) == agent_steps


@pytest.mark.benchmark(group="own cost, 32 agents x 16 envs")
def bench_plain_for_over_the_same_dicts(benchmark):
    """Only look at every entry, in Python: no store, no lanes, no checks."""
    envs = [ReadyDicts({"agents": 32}) for _ in range(16)]
    for env in envs:
        env.reset()
    seen = 0

    def loop():
        nonlocal seen
        for _ in range(TICKS):
            for env in envs:
                actions = dict.fromkeys(env.possible_agents, 0)
                obs, rewards, terminateds, truncateds, _infos = env.step(actions)
                for agent, _observation in obs.items():  # noqa: PERF102  (observations are looked at, too)
                    _reward = rewards[agent]
                    _done = terminateds[agent] or truncateds[agent]
                    seen += 1
                if truncateds["__all__"]:
                    env.reset()

    timed(benchmark, loop, TICKS * 32 * 16)
    assert seen >= TICKS * 32 * 16


@pytest.mark.benchmark(group="flat: env steps a call (8 agents x 8 envs)")
@pytest.mark.parametrize("steps", [500, 32_000])
def bench_steps_per_call(benchmark, steps):
    runner = make_runner(8, 8)
    agent_steps = steps * 8
    timed(benchmark, lambda: runner.sample(num_timesteps=steps), agent_steps, rounds=7)


@pytest.mark.benchmark(group="flat: agents (one env)")
@pytest.mark.parametrize("agents", [8, 1000])
def bench_agents(benchmark, agents):
    runner = make_runner(agents, 1)
    timed(benchmark, lambda: runner.sample(num_timesteps=TICKS), TICKS * agents)


@pytest.mark.benchmark(group="flat: envs (8 agents)")
@pytest.mark.parametrize("envs", [8, 1024])
def bench_envs(benchmark, envs):
    runner = make_runner(8, envs)
    timed(benchmark, lambda: runner.sample(num_timesteps=TICKS * envs), TICKS * envs * 8, rounds=5)


@pytest.mark.benchmark(group="reading every column")
@pytest.mark.parametrize(("agents", "envs"), [(8, 8), (128, 8)])
def bench_read_all_columns(benchmark, agents, envs):
    """Read every column of every agent, as a learner might."""
    runner = make_runner(agents, envs)

    def sampled():
        return (runner.sample(num_timesteps=TICKS * envs),), {}

    def read(episodes):
        rows = 0
        for episode in episodes:
            for agent in episode.agent_episodes.values():
                rows += len(agent.get_observations()) - 1
                assert len(agent.get_actions()) == len(agent.get_rewards())
        return rows

    rows = benchmark.pedantic(read, setup=sampled, rounds=10)
    assert rows == TICKS * agents * envs
