"""EPyMARL's IPPO, run by its own main.py with two functions wrapped.

    python with_epymarl.py UPDATES SOURCE_FOLDER [NAME=VALUE ...]

Sampling is the runner's `run()` with its worker processes; learning is all between two of those calls, which includes
the replay buffer.
"""

import os
import runpy
import sys
import types
from pathlib import Path

import meter

updates, source = meter.updates(), Path(sys.argv[2]).resolve() / "src"
sys.path.insert(0, str(source))
sys.modules["smaclite"] = types.ModuleType("smaclite")  # which LBF does not need
from runners.parallel_runner import ParallelRunner  # noqa: E402 - from the path above

run, clock = ParallelRunner.run, None


def timed(self, test_mode=False):
    global clock
    if test_mode:
        return run(self, test_mode)
    if clock is None:
        clock = meter.Meter(updates, [process.pid for process in self.ps])
    else:
        clock.learned()
        if clock.is_over:
            clock.report()
            for process in self.ps:
                process.kill()
            os._exit(0)  # Sacred's threads would go on
    before = self.t_env
    batch = run(self, test_mode)
    clock.sampled(self.t_env - before)
    return batch


ParallelRunner.run = timed
settings = {
    "env_args.time_limit": meter.LIMIT, "env_args.key": f"lbforaging:{meter.TASK}", "t_max": 10**9, "use_cuda": False,
    "test_nepisode": 1, "test_interval": 10**9, "common_reward": True,
}  # fmt: skip
given = [f"{name}={value}" for name, value in settings.items()]
main = str(source / "main.py")
sys.argv = [main, "--config=ippo", "--env-config=gymma", "--capture=no", "with", *given, *sys.argv[3:]]
runpy.run_path(main, run_name="__main__")
