"""Rates beside the times in saved results (`--benchmark-json`)."""


def timed(benchmark, function, agent_steps, rounds=20):
    """What the function returns; it makes so many agent steps, whose rates are noted."""
    result = benchmark.pedantic(function, rounds=rounds, warmup_rounds=2)
    note_rates(benchmark, agent_steps)
    return result


def note_rates(benchmark, agent_steps):
    """Add `agent_steps_per_s` and `us_per_agent_step` of rounds of so many; nothing where times are not measured."""
    if benchmark.enabled:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info["agent_steps_per_s"] = round(agent_steps / seconds)
        benchmark.extra_info["us_per_agent_step"] = round(1e6 * seconds / agent_steps, 4)
