"""Rates beside the times in saved results (`--benchmark-json`)."""


def timed(benchmark, function, agent_steps, rounds=20):
    """Benchmark a function that makes `agent_steps` agent steps, note their rates and return its result."""
    result = benchmark.pedantic(function, rounds=rounds, warmup_rounds=2)
    note_rates(benchmark, agent_steps)
    return result


def note_rates(benchmark, agent_steps):
    """Add `agent_steps_per_s` and `us_per_agent_step` of one round to the results, if times are measured."""
    if benchmark.enabled:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info["agent_steps_per_s"] = round(agent_steps / seconds)
        benchmark.extra_info["us_per_agent_step"] = round(1e6 * seconds / agent_steps, 4)
