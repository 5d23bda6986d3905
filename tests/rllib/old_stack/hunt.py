"""Compare many random cases: python -m rllib.old_stack.hunt FIRST COUNT. Prints the seeds that differ, and how."""

import sys
import time
from collections import Counter

import torch
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from rllib.old_stack.fuzz import random_case
from rllib.old_stack.runs import differences, play
from rllib.old_stack.subject import SUBJECT

MOST_LINES = 6


def main(first: int, count: int) -> int:
    torch.set_num_threads(1)
    differing, errors, paths = 0, Counter[str](), Counter[str]()
    seconds = [0.0, 0.0]
    for seed in range(first, first + count):
        case = random_case(seed)
        runs = []
        for i, worker_class in enumerate((RLlibWorker, SUBJECT)):
            begin = time.process_time()
            runs.append(play(case, worker_class))
            seconds[i] += time.process_time() - begin
        errors.update({f"{type(error).__name__}: {str(error)[:100]}" for error in runs[0].errors})
        paths[f"accelerated: {runs[1].is_accelerated}"] += 1
        lines = [*differences(*runs)]
        if lines:
            differing += 1
            _say(f"seed {seed}: {len(lines)} lines", *(f"    {line}" for line in lines[:MOST_LINES]))
    _say(f"{differing} of {count} differ; CPU seconds {seconds[0]:.1f} / {seconds[1]:.1f}", repr(dict(paths)))
    _say("RLlib's own errors, by cases:", *(f"    {times} {error}" for error, times in errors.most_common()))
    return differing


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
