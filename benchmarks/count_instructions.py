"""Count instructions per agent step with valgrind, which shows slow drifts that the noise of clocks would hide.

python benchmarks/count_instructions.py     # `make count`

Each case runs in a process of its own, once with few and once with many calls of `sample()`. The difference excludes
imports and the first calls. The figures are appended to benchmarks/results/instructions.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fastmarl.bench.relative_speed_table import ReadyDicts
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.report.records import RecordFile, Row

RESULTS = Path(__file__).parent / "results/instructions.json"
AGENTS, ENVS, ENV_STEPS = 8, 16, 512  # per call
FEW, MANY = 3, 13  # number of calls
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
COUNT = re.compile(r"I\s+refs:\s+([\d,]+)")
ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # valgrind emulates another CPU than this one; without this, numba would compile under valgrind, for minutes
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
}


def standalone(calls: int) -> int:
    """Sample ready-made dicts and return the number of agent steps."""
    import fastmarl

    config = EnvRunnerConfig(env=ReadyDicts, env_config={"agents": AGENTS}, num_envs_per_env_runner=ENVS, seed=1)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        episodes = [runner.sample(num_timesteps=ENV_STEPS) for _ in range(calls)]
    return sum(episode.agent_steps() for call in episodes for episode in call)


def drop_in(calls: int) -> int:
    """Sample as `standalone()` does, with RLlib's config and episodes; returns the number of agent steps."""
    from benchmarks.rllib.cases import CASES
    from fastmarl.rllib import MultiAgentEnvRunner

    runner = MultiAgentEnvRunner(config=CASES[f"ready-{AGENTS}x{ENVS}"].config())
    episodes = [runner.sample(num_timesteps=ENV_STEPS) for _ in range(calls)]
    runner.stop()
    return sum(episode.agent_steps() for call in episodes for episode in call)


CASES = {"standalone": standalone, "drop-in": drop_in}


def counted(case: str, calls: int) -> tuple[int, int]:
    """Return (instructions, agent steps) of a process that calls `sample()` `calls` times."""
    done = run(case, calls, ["setarch", "--addr-no-randomize", *VALGRIND])
    found = COUNT.search(done.stderr)
    assert found is not None, done.stderr[-2000:]
    return int(found[1].replace(",", "")), int(done.stdout.split()[-1])


def run(case: str, calls: int, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a case in a process, under a program such as valgrind, and exit with its error output if it fails."""
    environ = {**os.environ, **ENVIRON, "PYTHONPATH": str(RESULTS.parents[2])}
    command = [*under, sys.executable, __file__, case, str(calls)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case}, {calls} calls: {done.stderr[-2000:]}")
    return done


def main() -> None:
    """Count the instructions of each case, print them per agent step and add them to the file."""
    rows: list[Row] = []
    for case in CASES:
        run(case, FEW)  # lets numba compile
        (few, few_steps), (many, many_steps) = counted(case, FEW), counted(case, MANY)
        per_step = (many - few) / (many_steps - few_steps)
        rows.append({"case": case, "instructions": round(per_step, 1), "agent_steps": many_steps - few_steps})
        print(f"{case}: {per_step:,.1f} instructions per agent step", flush=True)
    RecordFile(RESULTS, "count").write({"instructions": rows}, is_final=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(CASES[sys.argv[1]](int(sys.argv[2])))
    else:
        main()
