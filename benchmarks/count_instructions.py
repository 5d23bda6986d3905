"""Count instructions per agent step with valgrind, and compare them with the recorded figures.

python benchmarks/count_instructions.py [--record] [CASE ...]     # `make count`

Clocks are too noisy for a drift of a few per cent; counts repeat to 0.5 %. The exit status is 1 if a case takes 2 %
more instructions than in the last record of benchmarks/results/instructions.json. A commit that means to raise a figure
appends new ones (`--record`, `make count RECORD=1`) and says why.

All cases run in one process under valgrind, which takes a minute or two for its imports alone. A forked child samples
while the parent waits, and valgrind counts for each process: what a child that does nothing takes is what came before.
Networks are small, because valgrind emulates fused multiply-add in hundreds of its own instructions.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastmarl
from fastmarl.bench.relative_speed_table import ReadyDicts
from fastmarl.report.records import RecordFile, Row, provenance

RESULTS = Path(__file__).parent / "results/instructions.json"
TOLERANCE = 0.02
CALLS = 2
ENV_STEPS = 200  # per call, over all environments
HIDDENS = [8]
SEED = 1
TIMEOUT_S = 1800
LSTM = {"use_lstm": True, "lstm_cell_size": 8}
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
COUNT = re.compile(r"==(\d+)== I\s+refs:\s+([\d,]+)")
ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # valgrind emulates another CPU than this one; without this, numba would compile under valgrind, for minutes
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
}

Sample = Callable[[], int]  # samples once and returns the number of agent steps


def standalone(env: str | type, num_envs: int, env_config: dict[str, Any] | None = None, **model: Any) -> Sample:
    config = fastmarl.EnvRunnerConfig(
        env=env,
        env_config=env_config or {},
        num_envs_per_env_runner=num_envs,
        model_config={"fcnet_hiddens": HIDDENS, **model},
        seed=SEED,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    return partial(_sample_and_report, runner)


def drop_in(agents: int, num_envs: int, callbacks: bool = False, **model: Any) -> Sample:
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    from benchmarks.rllib.cases import cartpole
    from fastmarl.rllib import MultiAgentEnvRunner

    class Rewards(RLlibCallback):
        def on_episode_step(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
            self.last_rewards = episode.get_rewards(-1)

        def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
            metrics_logger.log_value("return", episode.get_return())

    config = cartpole(agents=agents, envs=num_envs).config()
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=HIDDENS, **model))
    if callbacks:
        config.callbacks(Rewards)
    return partial(_sample_and_report, MultiAgentEnvRunner(config=config))


def old_stack(agents: int, num_envs: int) -> Sample:
    from benchmarks.bench_rllib_old_stack import make_worker
    from fastmarl.rllib import RolloutWorker

    worker = make_worker(RolloutWorker, f"CartPole {agents}x{num_envs}", ENV_STEPS // num_envs, hiddens=HIDDENS)

    def sample() -> int:
        batch = worker.sample()
        worker.get_metrics()
        return batch.agent_steps()

    return sample


def _sample_and_report(runner: Any) -> int:
    episodes = runner.sample(num_timesteps=ENV_STEPS)
    runner.get_metrics()
    return sum(episode.agent_steps() for episode in episodes)


CASES: dict[str, Callable[[], Sample]] = {
    "standalone: simple_spread in Python": partial(standalone, "mpe2.simple_spread_v3", 8),
    "standalone: simple_spread, compiled": partial(standalone, "fastmarl.simple_spread", 8),
    "standalone: LSTM": partial(standalone, "fastmarl.simple_spread", 8, **LSTM),
    "standalone: 162 agents": partial(standalone, ReadyDicts, 1, {"agents": 162}),
    "drop-in: CartPole 2x1": partial(drop_in, 2, 1),
    "drop-in: CartPole 8x8": partial(drop_in, 8, 8),
    "drop-in: callbacks": partial(drop_in, 8, 8, callbacks=True),
    "drop-in: LSTM": partial(drop_in, 8, 8, **LSTM),
    "old stack: CartPole 8x8": partial(old_stack, 8, 8),
}


def run_cases(names: list[str]) -> None:
    """Print the process ids and agent steps of two children of this process for each case, as JSON."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    for name in names:
        random.seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002 - environments without a seed take it from there
        torch.manual_seed(SEED)
        sample = CASES[name]()
        for _ in range(2):
            sample()
        gc.collect()
        gc.freeze()  # a collection of all that Ray has imported would hide what a step takes
        children = [_sample_in_child(sample, calls) for calls in (0, CALLS)]
        print(json.dumps({"case": name, "children": children}), flush=True)


def _sample_in_child(sample: Sample, calls: int) -> tuple[int, int]:
    """Return (process id, agent steps)."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(sum(sample() for _ in range(calls))).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # without a number if it failed
    os.close(writing)
    with open(reading, "rb") as pipe:
        agent_steps = pipe.read()
    os.waitpid(child, 0)
    if not agent_steps:
        raise SystemExit("sample() failed, see above")
    return child, int(agent_steps)


def count(names: list[str]) -> list[Row]:
    """Return {"case", "instructions" per agent step, "agent_steps"} of each case."""
    command = [sys.executable, __file__, "--run", *names]
    environ = {**os.environ, **ENVIRON, "PYTHONPATH": str(RESULTS.parents[2])}
    run = partial(subprocess.run, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    for under in ([], ["setarch", "--addr-no-randomize", *VALGRIND]):  # the first run lets numba compile
        done = run([*under, *command])
        if done.returncode:
            raise SystemExit(done.stderr[-4000:])
    counts = {int(process): int(number.replace(",", "")) for process, number in COUNT.findall(done.stderr)}
    rows: list[Row] = []
    for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
        measured = json.loads(line)
        (idle, _), (busy, agent_steps) = measured["children"]
        per_step = (counts[busy] - counts[idle]) / agent_steps
        rows.append({"case": measured["case"], "instructions": round(per_step, 1), "agent_steps": agent_steps})
    return rows


def compare(rows: list[Row], record: dict[str, Any]) -> bool:
    """Print each case beside its recorded figure; return false if one has none, or has risen by more than TOLERANCE.

    On another CPU, where NumPy and torch may run other code, nothing is too much.
    """
    recorded = {row["case"]: row["instructions"] for row in record["instructions"]}
    is_good = True
    for row in rows:
        change = row["instructions"] / recorded[row["case"]] - 1 if row["case"] in recorded else math.inf
        is_good &= change <= TOLERANCE
        print(
            f"{row['case']:36} {row['instructions']:10,.0f} {change:+7.2%}{' too many' if change > TOLERANCE else ''}"
        )
    here = provenance()
    if (cpu := record["machine"]["cpu"]) != here["machine"]["cpu"]:
        print(f"The figures were recorded on {cpu}, and this is {here['machine']['cpu']}: not a failure.")
        return True
    if not is_good:
        print(f"recorded with {record['versions']}, counted with {here['versions']}")
        print("Find what costs more, or record new figures (make count RECORD=1) and say why in the commit.")
    return is_good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--record", action="store_true", help="append the figures to the file instead of comparing them"
    )
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"unknown cases {sorted(unknown)}; there are {[*CASES]}")
    if arguments.run:
        run_cases(arguments.cases)
        return
    rows = count(arguments.cases)
    if arguments.record:
        RecordFile(RESULTS, "count").write({"instructions": rows}, is_final=True)
        print(*(f"{row['case']:36} {row['instructions']:10,.0f}" for row in rows), sep="\n")
    elif not compare(rows, json.loads(RESULTS.read_text().splitlines()[-1])):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
