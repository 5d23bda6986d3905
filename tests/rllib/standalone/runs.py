"""One case, played by RLlib's runner or by the standalone one."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.env_to_module import FlattenObservations, PrevActionsPrevRewards
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from rllib.differential.configs import Setup, make_config
from rllib.differential.mappings import BY_AGENT
from rllib.differential.runs import moved
from rllib.recordings import Recording
from rllib.standalone import callbacks
from rllib.standalone.cases import FRAMES, Call, Case
from rllib.standalone.modules import OurModule, RLlibsModule
from rllib.standalone.worlds import ExactWorld

import fastmarl
from fastmarl import connectors

RLLIBS_CONNECTORS: dict[str, Callable[[], Any]] = {
    "flatten": lambda: FlattenObservations(multi_agent=True),
    "previous": lambda: PrevActionsPrevRewards(multi_agent=True),
    "frames": lambda: FrameStacking(num_frames=FRAMES, multi_agent=True),
}
OUR_CONNECTORS: dict[str, Callable[[], Any]] = {
    "flatten": connectors.FlattenObservations,
    "previous": connectors.PrevActionsPrevRewards,
    "frames": lambda: connectors.FrameStacking(num_frames=FRAMES),
}


@dataclass
class Run(Recording):
    """All that a runner handed out, call by call, and what happened."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    """The numbers of each finished episode that RLlib's runner takes into its metrics."""
    marks: list[dict[str, int]] = field(default_factory=list)
    """After each call, how many entries each channel of the tape has, and how many episodes."""


def play_rllib(case: Case, runner_class: type = RLlibEnvRunner) -> Run:
    run = Run()
    with run.taken_down(), _quietly():
        runner: Any = runner_class(config=_rllibs_config(case), worker_index=case.worker_index)
        runner._log_episode_metrics = partial(_log, run, runner._log_episode_metrics)
        root = MetricsLogger(root=True)

        def report() -> Any:
            root.aggregate([runner.get_metrics()])
            return root.reduce(compile=True)

        _play(case, runner, run, report)
    return run


def play_ours(case: Case) -> Run:
    run = Run()
    with run.taken_down(), fastmarl.MultiAgentEnvRunner(_our_config(case)) as runner:
        _play(case, runner, run, runner.get_metrics)
    return run


def _play(case: Case, runner: Any, run: Run, report: Callable[[], Any]) -> None:
    for call in case.calls:
        run.returned.append(report() if call.method == "get_metrics" else _make(call, runner))
        lengths = {channel: len(entries) for channel, entries in run.notes.items()}
        run.marks.append({**lengths, "episodes": len(run.episodes)})
    runner.stop()


def _make(call: Call, runner: Any) -> Any:
    arguments = dict(call.arguments)
    if call.method == "take_own_state":
        return runner.set_state(runner.get_state(["rl_module", "env_to_module_connector"]))
    if call.method != "move_weights":
        return getattr(runner, call.method)(**arguments)
    weights = runner.get_state("rl_module")["rl_module"]
    weights = tree.map_structure(np.asarray, weights)
    return runner.set_weights(moved(weights, 0.25), None, arguments["seq_no"])


def _log(run: Run, log: Any, length: int, ret: float, sec: float, agents: Any, modules: Any, steps: Any) -> None:
    own = {"len": length, "return": ret, "agents": agents, "modules": modules, "steps": steps}
    run.episodes.append(tree.map_structure(float, own))
    log(length, ret, sec, agents, modules, steps)


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's and Gymnasium's own
        yield


def mapping_fn(case: Case) -> Callable[..., str]:
    """The function of the name in `cases.MAPPINGS`."""
    names = [*case.modules]

    def by_agent(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        return BY_AGENT[case.mapping](names, case.rules, agent_id)

    def by_place(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        """By what a callback has put into the episode when it was created."""
        try:
            return names[episode.custom_data.get("place", 0) % len(names)]
        except AttributeError:  # at a cut RLlib asks for no reason (37), before there are any
            return names[0]

    return by_place if case.mapping == "place" else by_agent


SHARED = ("num_envs", "num_env_runners", "fragment", "batch", "batch_mode", "count_steps_by", "explore",
          "lookback", "normalize", "clip", "window")  # fmt: skip
"""Fields of a case that are those of a Setup."""


def _rllibs_config(case: Case) -> PPOConfig:
    env_config = {"rules": case.rules, "holds_back": True}
    shared = {name: getattr(case, name) for name in SHARED}
    config = make_config(Setup(env=ExactWorld, env_config=env_config, seed=None, model_config={}, **shared))
    specs = {name: RLModuleSpec(RLlibsModule, model_config=_model_config(case, name)) for name in case.modules}
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    config.multi_agent(policies=[*case.modules], policy_mapping_fn=mapping_fn(case))
    config.callbacks(**callbacks.options(case.callbacks, not case.connectors))
    if case.connectors:
        pieces = [RLLIBS_CONNECTORS[name] for name in case.connectors]
        config.env_runners(env_to_module_connector=lambda *args, **kwargs: [make() for make in pieces])
    return config


def _our_config(case: Case) -> fastmarl.EnvRunnerConfig:
    given = callbacks.options(case.callbacks, not case.connectors)
    batch = {"train_batch_size_per_learner": case.batch} if case.fragment == "auto" else {}
    named = {name if name == "callbacks_class" else f"callbacks_{name}": value for name, value in given.items()}
    specs = {name: fastmarl.RLModuleSpec(OurModule, model_config=_model_config(case, name)) for name in case.modules}
    return fastmarl.EnvRunnerConfig(
        env=ExactWorld,
        env_config={"rules": case.rules, "holds_back": False},
        policies=specs,
        policy_mapping_fn=mapping_fn(case),
        env_to_module_connector=[OUR_CONNECTORS[c]() for c in case.connectors] or None,
        num_envs_per_env_runner=case.num_envs,
        num_env_runners=max(1, case.num_env_runners),
        worker_index=case.worker_index,
        rollout_fragment_length=case.fragment,
        batch_mode=case.batch_mode,
        count_steps_by=case.count_steps_by,
        explore=case.explore,
        episode_lookback_horizon=case.lookback,
        normalize_actions=case.normalize,
        clip_actions=case.clip and not case.normalize,
        metrics_num_episodes_for_smoothing=case.window,
        keep_float64=case.keep_float64,
        **named,
        **batch,
    )


def _model_config(case: Case, name: str) -> dict[str, Any]:
    return {"kind": case.modules[name], "salt": [*case.modules].index(name)}
