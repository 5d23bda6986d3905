"""Keys of metrics and of states, and what callbacks are given: the same run on both faces."""

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from ray.rllib.env import multi_agent_env_runner
from ray.rllib.utils import metrics as names_of_metrics
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger as RLlibLogger

from support.api_tables import Rows
from support.rllib_api.pairs import MAKERS
from support.rllib_walk import Walk

TIMES = ("sample", "time_between_sampling", "episode_duration_sec_mean")
NUM_ENVS = 3
MISPLACED = "connector_pipeline_timer"  # of resets: RLlib has it here by a mistyped argument, `fastmarl` in its place
NAMES = {"a": "(agent id)", "b": "(agent id)", "p_a": "(module id)", "p_b": "(module id)"}
FAILURES = "num_env_step_failures"
EVENTS = ("environment_created", "episode_created", "episode_start", "episode_step", "episode_end", "sample_end")


def rows() -> Rows:
    for key in [*metric_keys(), *others()]:
        yield f"Metrics: {key}", partial(check_failures if key == FAILURES else check_metric, key)
    for key in state_keys("theirs"):
        yield f"State: {key}", partial(check_state, key)
    for event, arguments in calls("theirs").items():
        yield f"Callbacks: {event}", partial(check_event, event)
        for name in arguments:
            yield f"Callbacks: {event}({name})", partial(check_callback, event, name)


# Metrics.


def paths_of(report: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a report by path."""
    if not isinstance(report, Mapping):
        return {prefix[:-1]: report}
    return {path: leaf for name, each in report.items() for path, leaf in paths_of(each, f"{prefix}{name}/").items()}


def of_algorithm(*reports: Any) -> dict[str, Any]:
    """Return the report that RLlib's Algorithm would give."""
    root = RLlibLogger(root=True)
    for report in reports:
        root.aggregate([report])
    return root.reduce(compile=True)


@cache
def report_of(face: str) -> dict[str, Any]:
    """Return the leaves of the report of three calls, by path."""
    runner = MAKERS[face](num_envs_per_env_runner=NUM_ENVS)
    for n in (12, 9, 8):
        runner.sample(num_timesteps=n * NUM_ENVS)
    report = runner.get_metrics()
    runner.stop()
    return paths_of(report if face == "ours" else of_algorithm(report))


def key_of(path: str) -> str:
    """Name a path with the kind of its ids, and connector pieces' timers as one."""
    before, timers, _ = path.partition("timers/")
    return before + "timers/(piece)" if timers else "/".join(NAMES.get(part, part) for part in path.split("/"))


def metric_keys() -> list[str]:
    return sorted({key_of(path) for path in report_of("theirs")})


def others() -> list[str]:
    """Return keys that RLlib's runner logs only at times: constants that it imports, and that are in no report yet."""
    constants = {name for name in vars(multi_agent_env_runner).keys() & vars(names_of_metrics).keys() if name.isupper()}
    known = {path.split("/")[0] for path in report_of("theirs")}
    return [*sorted({getattr(names_of_metrics, name) for name in constants} - known), FAILURES]


def check_metric(key: str) -> None:
    """Raise unless both report the same number; times are above 0."""
    ours, theirs = report_of("ours"), report_of("theirs")
    paths = [path for path in theirs if key_of(path) == key]
    assert paths
    for path in paths:
        if path == MISPLACED:
            assert ours[f"env_to_module_connector/{path}"] > 0
        elif path in TIMES or path.endswith("timer"):
            assert ours[path] > 0 and theirs[path] > 0
        else:
            assert math.isclose(ours[path], theirs[path]), path


def check_failures(key: str) -> None:
    found = []
    for face, make in MAKERS.items():
        runner = make(restart_failed_sub_environments=True)
        Walk.failures = 1
        runner.sample(num_timesteps=10)
        report = runner.get_metrics()
        runner.stop()
        found.append((report if face == "ours" else of_algorithm(report))[key])
    assert found == [1, 1]


# States.


@cache
def state_keys(face: str) -> tuple[str, ...]:
    runner = MAKERS[face]()
    state = runner.get_state()
    runner.stop()
    modules = {f"rl_module/{NAMES[module_id]}": None for module_id in state["rl_module"]}
    return *state, *modules


def check_state(key: str) -> None:
    """Raise unless the key is in the state, and `set_state()` takes what is there."""
    assert key in state_keys("ours")
    runner = MAKERS["ours"]()
    runner.set_state({name: value for name, value in runner.get_state().items() if name == key.split("/")[0]})
    runner.stop()


# Callbacks.


@cache
def calls(face: str) -> dict[str, dict[str, Any]]:
    """Return what the callbacks of a run were given in their last call: event -> argument -> what it was."""
    given: dict[str, dict[str, Any]] = {}

    def note(event: str, **arguments: Any) -> None:
        runner = arguments["env_runner"]
        given[event] = {name: described(name, value, runner) for name, value in arguments.items()}

    functions = {f"callbacks_on_{event}": partial(note, f"on_{event}") for event in EVENTS}
    runner = MAKERS[face](**functions)
    for n in (3, 12):
        runner.sample(num_timesteps=n)
    runner.stop()
    return given


def described(name: str, value: Any, runner: Any) -> Any:
    """Say what an argument is, in a form in which both faces' can be compared."""
    if name in ("samples", "prev_episode_chunks"):
        return [(len(episode), episode.env_t) for episode in value]
    if name == "episode":
        parts = sorted((agent, len(part), part.is_done) for agent, part in value.agent_episodes.items())
        return len(value), value.is_terminated, value.is_truncated, parts, sorted(value.get_agents_to_act())
    if name == "env":
        return value.num_envs, [env.unwrapped.length for env in value.envs]
    if name == "env_context":
        return dict(value), value.worker_index, value.vector_index
    if name == "rl_module":
        return sorted(value.keys())
    if name == "env_runner":
        return runner.worker_index
    return value is runner.metrics if name == "metrics_logger" else value


def check_event(event: str) -> None:
    assert event in calls("ours")


def check_callback(event: str, name: str) -> None:
    assert calls("ours")[event][name] == calls("theirs")[event][name]
