"""Copy the trained policies of the first seed of each task and algorithm to zoo/, without what only training needs.

python -m benchmarks.reproduce.zoo
"""

import shutil
from itertools import product
from pathlib import Path

from benchmarks.reproduce.tasks import ALGORITHMS, TASKS
from fastmarl.checkpoint import load_state, save_state
from fastmarl.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


def main() -> None:
    for task, algorithm in product(TASKS, ALGORITHMS):
        run, entry = ROOT / f"runs/reproduce/{task}-{algorithm}-seed0", ROOT / f"zoo/{task}-{algorithm}"
        if (run / "result.json").exists():
            newest = RunFolder(run).checkpoints()[0]
            shutil.rmtree(entry, ignore_errors=True)
            entry.mkdir(parents=True)
            shutil.copy(run / "run.json", entry)
            state = load_state(newest)
            state["lifetime_counters"]["last_episodes"], state["running_episodes"] = [], {}
            save_state(entry / newest.name, state)


if __name__ == "__main__":
    main()
