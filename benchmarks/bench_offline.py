"""What recording to Parquet files costs: sampling with and without `output`, the writer's thread, disk and memory.

python benchmarks/bench_offline.py                           (the slowdown of sampling, in turn with and without output)
python benchmarks/bench_offline.py --memory --steps 10000000 (memory over many agent steps)

CPU time is that of the whole process, so it has the writer's thread in it: that is the slowdown with no core to spare.
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

ENVS = {"mpe2.simple_spread_v3": 16, "fastmarl.simple_spread": 128}
FRAGMENT, AGENTS = 25, 3
WARM_UP = 2 * 65_536  # steps before the measured ones: two row groups, for which memory is got from the system


def make_runner(env: str, **options) -> fastmarl.MultiAgentEnvRunner:
    config = fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=ENVS[env],
        rollout_fragment_length=FRAGMENT,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
        seed=0,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def cpu_seconds(runner: fastmarl.MultiAgentEnvRunner, calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        runner.sample()
    return time.process_time() - begun


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def pyarrow_microseconds(folder: Path, compression: str) -> float:
    """CPU time per row in which pyarrow alone writes rows that were recorded again: the least that the thread takes."""
    table = parquet.read_table(next(folder.glob("data/*/*.parquet"))).slice(0, 65_536)
    level = 1 if compression == "zstd" else None
    seconds = []
    options = {
        "compression": compression,
        "use_dictionary": ["eps_id", "agent_id", "module_id"],
        "write_statistics": False,
    }
    again = folder / "again"
    with parquet.ParquetWriter(again, table.schema, compression_level=level, **options) as file:
        for _ in range(5):
            begun = time.thread_time()
            file.write_table(table, row_group_size=len(table))
            seconds.append(time.thread_time() - begun)
    again.unlink()
    return median(seconds) / len(table) * 1e6


def slowdown(env: str, rounds: int, calls: int, compression: str) -> None:
    folder = Path(tempfile.mkdtemp())
    plain = make_runner(env)
    recording = make_runner(env, output=folder, output_config={"compression": compression})
    steps_of_call = ENVS[env] * FRAGMENT * AGENTS
    cpu_seconds(plain, 2), cpu_seconds(recording, WARM_UP // steps_of_call + 1)
    writer = recording._output
    assert writer is not None
    writer.flush()
    first = writer.writer_seconds
    bytes_before, seconds_before, ratios = folder_bytes(folder), writer.writer_seconds, []
    for i in range(rounds):
        both = {}
        for runner in (plain, recording) if i % 2 else (recording, plain):
            both[runner] = cpu_seconds(runner, calls)
        ratios.append(both[recording] / both[plain])
    writer.flush()
    of_pyarrow = pyarrow_microseconds(folder, compression)
    steps = rounds * calls * steps_of_call
    of_thread = (writer.writer_seconds - seconds_before) / steps * 1e6
    on_disk = (folder_bytes(folder) - bytes_before) / steps
    ratios.sort()
    print(
        f"{env}, {compression}: CPU time with output / without {median(ratios):.3f} ({ratios[0]:.3f} to "
        f"{ratios[-1]:.3f}); writer's thread {of_thread:.2f} us (pyarrow alone {of_pyarrow:.2f}), {on_disk:.0f} bytes "
        f"per agent step ({steps:,} steps; before them {first * 1e3:.0f} ms for the first {WARM_UP:,})"
    )
    recording.stop()
    shutil.rmtree(folder)


def memory(env: str, steps: int, compression: str) -> None:
    """Prints resident memory after each tenth of the steps; old files are removed as they come."""
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
    parser.add_argument("--calls", type=int, default=20, help="of a round")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        memory("fastmarl.simple_spread", args.steps, args.compression[0])
        return
    for env in args.envs:
        for compression in args.compression:
            slowdown(env, args.rounds, args.calls, compression)


if __name__ == "__main__":
    main()
