"""RLlib's own multi-agent examples: their configs, without their training.

Each example runs as a script in a process of its own, in which `run_rllib_example_script_experiment` does not train: a
runner of RLlib's class and one of ours are made of the script's config, sample a little, and are compared. The process
is forked from this one, which has imported what takes long.

    python -m rllib.typical.shipped [PATH ...]

prints a table of the results.
"""

import itertools
import json
import multiprocessing
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray.rllib.examples
import torch
from gymnasium.utils import seeding
from ray import tune
from ray.rllib.connectors import connector_v2
from ray.rllib.examples import utils
from rllib.differential.known import unexpected
from rllib.differential.runs import GetMetrics, Sample, play
from rllib.typical.mappings import Hashes
from support.light_stack import LIGHT_INSPECT

from fastmarl.rllib import MultiAgentEnvRunner

np_random = seeding.np_random
FOLDER = Path(ray.rllib.examples.__path__[0])
TWO = ("--num-agents=2",)
EXAMPLES: dict[str, tuple[str, ...]] = {
    "multi_agent/custom_heuristic_policy.py": (),
    "multi_agent/different_spaces_for_agents.py": (),
    "multi_agent/multi_agent_cartpole.py": TWO,
    "multi_agent/multi_agent_pendulum.py": TWO,
    "multi_agent/rock_paper_scissors_heuristic_vs_learned.py": TWO,
    "multi_agent/rock_paper_scissors_learned_vs_learned.py": TWO,
    "multi_agent/self_play_league_based_with_open_spiel.py": (),
    "multi_agent/self_play_with_open_spiel.py": (),
    "multi_agent/shared_encoder_cartpole.py": (),
    "multi_agent/two_step_game_with_grouped_agents.py": TWO,
    "envs/agents_act_in_sequence.py": (),
    "envs/agents_act_simultaneously.py": (),
    "connectors/flatten_observations_dict_space.py": TWO,
    "connectors/mean_std_filtering.py": TWO,
    "connectors/multi_agent_observation_preprocessor.py": (),
    "connectors/prev_actions_prev_rewards.py": TWO,
    "ray_tune/custom_progress_reporter.py": (),
}
"""Path below RLlib's examples -> the arguments that make it a multi-agent one."""
NOT_TRIED = {
    "multi_agent/pettingzoo_independent_learning.py": "PettingZoo 1.27 no longer has its env",
    "multi_agent/pettingzoo_parameter_sharing.py": "PettingZoo 1.27 no longer has its env",
    "multi_agent/self_play_footsies.py": "Ray's wheel lacks its config",
    "envs/custom_env_render_method.py": "needs OpenCV",
    "connectors/frame_stacking.py": "needs Atari",
    "rl_modules/pretraining_single_agent_training_multi_agent.py": "needs a trained checkpoint",
    "offline_rl/pretrain_bc_single_agent_evaluate_as_multi_agent.py": "needs recorded data",
}
"""Why others are not."""
DRAWS = ("multi_agent/rock_paper_scissors_heuristic_vs_learned.py",)
"""Their mapping functions say something else each time they are asked."""
MOST_LINES = 5
SECONDS = 120  # for one example


@dataclass
class Finding:
    """The result of an example.

    Attributes:
        error: the reason why its config or a runner can't be made here.
        is_accelerated: true if fastmarl samples; else `reasons` say why not.
        differences: between RLlib's class and ours; some at most.
    """

    example: str
    error: str | None = None
    is_accelerated: bool | None = None
    reasons: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """Can be played like a Case of the differential tests."""

    config: Any
    calls: tuple[Any, ...] = (Sample(num_timesteps=16), GetMetrics(), Sample(num_timesteps=9), GetMetrics())
    worker_index: int | None = 1
    mixes_columns: bool = True
    drops_episodes: bool = False

    def make_config(self) -> Any:
        """The example's, with few envs and seeds: of the runner, of spaces, and of what hashes of random ids decide."""
        config = self.config.copy(copy_frozen=False)
        seeds = itertools.count()
        seeding.np_random = lambda seed=None: np_random(next(seeds) if seed is None else seed)
        config.policy_mapping_fn.__globals__["hash"] = Hashes().__getitem__
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=min(2, config.num_envs_per_env_runner))
        return config.debugging(seed=5)


class Stop(BaseException):
    """Ends the script; examples catch no such thing."""

    def __init__(self, config: Any):
        self.config = config


def find_out(example: str) -> Finding:
    """Run the example's script up to its training. To be called in a process of its own."""
    finding = Finding(example)
    try:
        config = config_of(example)
        if not config.is_multi_agent:
            finding.error = "a single agent"
            return finding
        played = Example(config)
        want, got = play(played), play(played, MultiAgentEnvRunner)
        if want.error is not None:
            raise want.error
        finding.is_accelerated, finding.reasons = got.is_accelerated, [*got.slow_path_reasons]
        lines = unexpected(played, want, got)
        finding.differences = [line for line in lines if example not in DRAWS or not _asks_again(line)][:MOST_LINES]
    except Exception as error:
        traceback.print_exc()
        finding.error = f"{type(error).__name__}: {error}".splitlines()[0]
    return finding


def _asks_again(line: str) -> bool:
    """Return true if a difference is a call of the mapping function for agents that are not there."""
    return "module_for(" in line or "mapping function[" in line


def config_of(example: str) -> Any:
    """The config that the script would train with."""

    def stop(base_config: Any = None, *args: Any, param_space: Any = None, **kwargs: Any) -> None:
        raise Stop(base_config or param_space)

    utils.run_rllib_example_script_experiment = stop
    tune.Tuner = lambda trainable, *, param_space, **kwargs: stop(param_space)
    sys.argv = [example, *EXAMPLES[example]]
    try:
        runpy.run_path(str(FOLDER / example), run_name="__main__")
    except Stop as stopped:
        return stopped.config
    raise AssertionError(f"{example} trains in a way of its own")


def findings(examples: list[str]) -> Iterator[Finding]:
    """One after the other, each in a process forked from this one."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())  # imports what takes 2 s
    connector_v2.inspect = LIGHT_INSPECT
    forks = multiprocessing.get_context("fork")
    for example in examples:
        mine, theirs = forks.Pipe(duplex=False)
        process = forks.Process(target=_send, args=(example, theirs))
        process.start()
        theirs.close()
        try:
            said = json.loads(mine.recv_bytes()) if mine.poll(SECONDS) else {"error": f"took over {SECONDS} s"}
        except EOFError:
            said = {"error": "its process died"}
        process.kill()
        process.join()
        yield Finding(**{"example": example, **said})


def _send(example: str, pipe: Any) -> None:
    log = os.open(os.environ.get("EXAMPLES_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe.send_bytes(json.dumps(asdict(find_out(example))).encode())


def table(found: list[Finding]) -> str:
    """In Markdown, with those that are not tried."""
    lines = ["| example | accelerated | equal |", "|---|---|---|"]
    for one in found:
        accelerated = (
            f"error: {one.error}" if one.error else ("yes" if one.is_accelerated else "no: " + "; ".join(one.reasons))
        )
        equal = "" if one.error else "no" if one.differences else "yes"
        lines.append(f"| `{one.example}` | {accelerated} | {equal} |")
    lines += [f"| `{example}` | not tried: {reason} | |" for example, reason in NOT_TRIED.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    everything = [*findings(sys.argv[1:] or [*EXAMPLES])]
    lines = [table(everything), *(f"{one.example}: {line}" for one in everything for line in one.differences)]
    sys.stdout.write("\n".join(lines) + "\n")
