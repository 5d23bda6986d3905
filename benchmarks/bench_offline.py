"""The cost of recording to Parquet files: sampling with and without `output`, the writer's thread, disk and memory.

python benchmarks/bench_offline.py                           (the slowdown of sampling, in turn with and without output)
python benchmarks/bench_offline.py --memory --steps 10000000 (memory over many agent steps)

Each round makes enough calls for one batch of the writer. CPU time is that of the whole process until the batch is
written, including the writer's thread: the slowdown without a core to spare. All figures are medians of rounds, without
the first two, in which the system allocates memory.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
import pyarrow.parquet as parquet
import torch

import fastmarl
from fastmarl.offline.parts import GrowingFile
from fastmarl.offline.writer_thread import MOST_ROWS

ENVS = {"mpe2.simple_spread_v3": 16, "fastmarl.simple_spread": 128}
FRAGMENT, AGENTS = 25, 3


def make_runner(env: str, **options) -> fastmarl.MultiAgentEnvRunner:
    config = fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=ENVS[env],
        rollout_fragment_length=FRAGMENT,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
        seed=0,
        num_threads=1,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def cpu_seconds(runner: fastmarl.MultiAgentEnvRunner, calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        runner.sample()
    return time.process_time() - begun


def cpu_seconds_of_batch(runner: fastmarl.MultiAgentEnvRunner, calls: int) -> tuple[float, float]:
    """Return the CPU seconds of the process, and of the writer's thread, until one batch of the writer is written."""
    writer = runner._sampling.output
    assert writer is not None
    before, begun = writer.writer_seconds, time.process_time()
    for _ in range(calls):
        runner.sample()
    while writer.writer_seconds == before:
        time.sleep(0.001)
    return time.process_time() - begun, writer.writer_seconds - before


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def pyarrow_microseconds(folder: Path, compression: str) -> float:
    """Return the CPU time per row in which pyarrow alone writes recorded rows: a lower bound for the thread."""
    largest = max(folder.glob("data/*/*.parquet"), key=lambda file: file.stat().st_size)
    table = parquet.read_table(largest).slice(0, MOST_ROWS)
    file = GrowingFile(folder / "again.parquet", table.schema, compression)
    seconds = []
    for _ in range(9):
        begun = time.thread_time()
        file.add(table)
        seconds.append(time.thread_time() - begun)
    file.abandon()
    return median(seconds) / len(table) * 1e6


def measure(env: str, rounds: int, compression: str) -> None:
    folder = Path(tempfile.mkdtemp())
    plain = make_runner(env)
    recording = make_runner(env, output=folder, output_config={"compression": compression})
    writer = recording._sampling.output
    assert writer is not None
    cpu_seconds(recording, 1), writer.flush()  # the size of rows is known afterwards
    steps_of_call = ENVS[env] * AGENTS * FRAGMENT
    calls = -(-MOST_ROWS // steps_of_call)
    for _ in range(2):
        cpu_seconds(plain, calls), cpu_seconds_of_batch(recording, calls)
    ratios, of_thread = [], []
    for number in range(rounds):
        if number % 2:
            without = cpu_seconds(plain, calls)
            both, thread = cpu_seconds_of_batch(recording, calls)
        else:
            both, thread = cpu_seconds_of_batch(recording, calls)
            without = cpu_seconds(plain, calls)
        ratios.append(both / without)
        of_thread.append(thread / (calls * steps_of_call) * 1e6)
    ratios.sort(), of_thread.sort()
    writer.flush()
    rows = sum(parquet.read_metadata(file).num_rows for file in folder.glob("data/*/*.parquet"))
    print(
        f"{env}, {compression}: CPU time with output / without {median(ratios):.3f} ({ratios[0]:.3f} to "
        f"{ratios[-1]:.3f}); writer's thread {median(of_thread):.2f} us per agent step ({of_thread[0]:.2f} to "
        f"{of_thread[-1]:.2f}; pyarrow alone {pyarrow_microseconds(folder, compression):.2f}), "
        f"{folder_bytes(folder) / rows:.0f} bytes"
    )
    recording.stop()
    shutil.rmtree(folder)


def memory(env: str, steps: int, compression: str) -> None:
    """Print resident memory after each tenth of the steps; old files are removed on the way."""
    folder, process, done = Path(tempfile.mkdtemp()), psutil.Process(), 0
    with make_runner(env, output=folder, output_config={"compression": compression}) as runner:
        for tenth in range(10):
            while done < steps * (tenth + 1) // 10:
                runner.sample()
                done += ENVS[env] * FRAGMENT * AGENTS
            for file in folder.glob("*/*/worker-*.parquet"):
                file.unlink()
            print(f"{done:>12,} agent steps: {process.memory_info().rss / 2**20:.0f} MiB")
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--compression", nargs="+", default=["zstd", "lz4"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        memory("fastmarl.simple_spread", args.steps, args.compression[0])
        return
    for env in args.envs:
        for compression in args.compression:
            measure(env, args.rounds, compression)


if __name__ == "__main__":
    main()
