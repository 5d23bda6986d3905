"""All differences of a case that nothing explains."""

from collections import Counter
from typing import Any

import numpy as np
from rllib.standalone.cases import Case
from rllib.standalone.compare import Chunks, Findings, different_values, is_nothing, sequences, unequal
from rllib.standalone.runs import Run
from rllib.standalone.streams import Streams

CHANNELS = ("callback", "env", "forward")


def differences(case: Case, want: Run, got: Run) -> Findings:
    if case.together:
        yield from _in_order(case, want, got)
    else:
        yield from Streams(want).compare(Streams(got))
    yield from _env_steps(case, want, got)
    yield from _states(case, want, got)


def _in_order(case: Case, want: Run, got: Run) -> Findings:
    """Call by call: both are at the same steps."""
    chunks = Chunks(case)
    reports = Reports(case, want)
    for i, call in enumerate(case.calls):
        path = f"call {i}, {call.method}{dict(call.arguments)}"
        theirs, ours = want.returned[i], got.returned[i]
        if call.method == "sample":
            yield from chunks.compare(theirs, ours, path)
        elif call.method == "get_metrics":
            yield from reports.compare(i, theirs, ours, path)
    yield from _callbacks(want, got)


def _env_steps(case: Case, want: Run, got: Run) -> Findings:
    """The actions that envs got in each step of each episode."""
    theirs, ours = ({entry[1:3]: entry[3] for entry in run.notes["env"] if entry[0] == "step"} for run in (want, got))
    if case.together:
        yield from unequal("env", "steps of envs", {*theirs}, {*ours})
    for step in sorted(theirs.keys() & ours.keys()):
        yield from unequal("env", f"step {step}", theirs[step], ours[step])


def _callbacks(want: Run, got: Run) -> Findings:
    """Each env's events in order; and in the order over all envs those that come at the same time in both.

    RLlib resets an env in the next step of the others, and ours at once: so an episode may begin in the call before. An
    episode without steps may have been begun by one of them only.
    """
    sides = [run.notes["callback"] for run in (want, got)]
    for env in sorted({entry[1] for side in sides for entry in side if entry[1] is not None}):
        yield from sequences("callbacks", *(_with_steps(side, env) for side in sides), f"events of env {env}")
    begins = ("created", "start")
    ordered = [[entry for entry in side if entry[0] not in begins] for side in sides]
    yield from sequences("callbacks", *ordered, "events")


def _with_steps(entries: list[tuple], env: int) -> list[tuple]:
    """An env's events without those of episodes that had no step."""
    found: list[tuple] = []
    begun: list[tuple] = []
    for entry in entries:
        if entry[1] != env:
            continue
        if entry[0] == "created" or (entry[0] == "start" and (not begun or begun[-1][0] == "start")):
            begun = [entry]
        elif entry[0] == "start":
            begun.append(entry)
        else:
            found += [*begun, entry]
            begun = []
    return found


def _states(case: Case, want: Run, got: Run) -> Findings:
    """Keys and numbers; RLlib's runner never counts its steps by itself (42)."""
    for i, call in enumerate(case.calls):
        if call.method != "get_state":
            continue
        theirs, ours = want.returned[i], got.returned[i]
        yield from unequal("state", f"call {i}, keys", {*theirs}, {*theirs} & {*ours})
        yield from different_values("state", f"call {i}", theirs["rl_module"], ours["rl_module"])
        yield from unequal("state", f"call {i}", theirs["weights_seq_no"], ours["weights_seq_no"])
        steps = sum(entry[0] == "step" for entry in got.notes["env"][: got.marks[i]["env"]])
        yield from unequal("state", f"call {i}, lifetime", steps, ours["num_env_steps_sampled_lifetime"])


ALONE = {
    "connector_pipeline_timer": "27: RLlib's timers of resets",
    "timers": "27: RLlib's timers of resets",
    "env_to_module_connector/timers": "there are no such pieces here",
    "module_to_env_connector/timers": "there are no such pieces here",
    "env_to_module_sum_episodes_length_in": "there are no such pieces here",
    "env_to_module_sum_episodes_length_out": "there are no such pieces here",
    "num_accelerated_env_runners": "of the drop-in, in which the corrected loop runs",
    "num_slow_path_env_runners": "of the drop-in, in which the corrected loop runs",
    "unattributed_reward": "of fastmarl alone",
    "num_env_step_failures": "RLlib's has it after the first one",
    "num_env_failures": "of fastmarl alone",
    "num_env_timeouts": "of fastmarl alone",
    "num_env_restarts": "of fastmarl alone",
    "num_env_steps_discarded": "of fastmarl alone",
    "stage_time_ms": "of fastmarl alone",
    "mean_env_wait_ms": "of RLlib's old stack",
    "mean_inference_ms": "of RLlib's old stack",
    "mean_raw_obs_processing_ms": "of RLlib's old stack",
    "mean_action_processing_ms": "of RLlib's old stack",
}
"""Keys of docs/metrics.md that only one report has -> why."""
TIMES = ("sample", "time_between_sampling", "episode_duration_sec_mean")
COUNTED = ("num_env_steps_sampled", "num_episodes")
BY_NAME = ("num_agent_steps_sampled", "num_module_steps_sampled")
MEANS = {"agent_episode_returns_mean": "agents", "agent_steps": "steps", "module_episode_returns_mean": "modules"}
"""Key -> what RLlib notes of an episode."""
OF_EPISODES = ("episode_len", "episode_return", *MEANS)


class Reports:
    """Compares reports. Where docs/metrics.md gives a key another meaning than RLlib's, what must be reported is
    computed from what RLlib's runner did: the actions that it sent, and what it noted of each finished episode."""

    def __init__(self, case: Case, want: Run):
        self._case, self._want = case, want
        self._last: dict[str, int] = {"env": 0, "forward": 0}
        self._n_reports = 0
        self._total: dict[str, Counter] = {name: Counter() for name in BY_NAME}

    def compare(self, i: int, want: Any, got: Any, path: str) -> Findings:
        theirs, ours = _flat(want), _flat(got)
        expected = {**self._steps(self._want.marks[i]), **self._statistics(self._want.marks[i]["episodes"])}
        for key in sorted(theirs.keys() | ours.keys()):
            top = key[0]
            if _is_alone(key) or top in (*TIMES, "weights_seq_no") or key[-1].endswith(("timer", "throughput")):
                continue
            if top.removesuffix("_lifetime") in BY_NAME or top.startswith(OF_EPISODES):
                continue
            value = theirs.get(key, 0.0)
            value = 0.0 if top.removesuffix("_lifetime") in COUNTED and is_nothing(value) else value
            yield from different_values("metrics", f"{path}, {key}", value, ours.get(key, "no such key"))
        computed = {
            key: value
            for key, value in ours.items()
            if (key[0].removesuffix("_lifetime") in BY_NAME and value) or key[0].startswith(OF_EPISODES)
        }
        yield from different_values("metrics", path, *(dict(sorted(keys.items())) for keys in (expected, computed)))
        newest = [dict(call.arguments)["seq_no"] for call in self._case.calls[:i] if call.method == "move_weights"]
        number = next((number for number in reversed(newest) if number > 0), 0)
        yield from unequal("metrics", f"{path}, weights_seq_no", number, ours["weights_seq_no",])

    def _steps(self, marks: dict[str, int]) -> dict[tuple, Any]:
        """Actions by agent and by module."""
        news = {name: self._want.notes[name][self._last[name] : marks[name]] for name in ("env", "forward")}
        self._last = {name: marks[name] for name in news}
        # Noted are the reprs of agents.
        names = {repr(agent): str(agent) for agent in self._case.rules.agents}
        modules = [*self._case.modules]
        agents = Counter(names[who] for entry in news["env"] if entry[0] == "step" for who, _ in entry[3])
        rows: Counter = Counter()
        for salt, n in news["forward"]:
            rows[modules[salt]] += n
        found: dict[tuple, Any] = {}
        for name, counts in zip(BY_NAME, (agents, rows), strict=True):
            self._total[name] += counts
            found |= {(name, key): n for key, n in counts.items() if n}
            found |= {(f"{name}_lifetime", key): n for key, n in self._total[name].items() if n}
        return found

    def _statistics(self, n_finished: int) -> dict[tuple, Any]:
        """Statistics of the last finished episodes."""
        last = self._want.episodes[:n_finished][-self._case.window :]
        found: dict[tuple, Any] = {}
        for name in ("len", "return"):
            values = [each[name] for each in last]
            for reduced, function in (("mean", np.mean), ("min", np.min), ("max", np.max)):
                found[f"episode_{name}_{reduced}",] = float(function(values)) if values else np.nan
        for top, name in MEANS.items():
            by_key: dict[str, list[float]] = {}
            for each in last:
                for key, value in each[name].items():
                    by_key.setdefault(key, []).append(value)
            found |= {(top, key): float(np.mean(values)) for key, values in by_key.items()}
        return found


def _flat(report: Any, path: tuple = ()) -> dict[tuple, Any]:
    if not isinstance(report, dict):
        return {path: report}
    return {key: value for name, part in report.items() for key, value in _flat(part, (*path, name)).items()}


def _is_alone(key: tuple) -> bool:
    name = "/".join(map(str, key))
    return any(name == each or name.startswith(f"{each}/") for each in ALONE)
