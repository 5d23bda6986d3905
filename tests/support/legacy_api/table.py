"""All rows of the table, and why some members are not there."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from support.api_tables import parameters_of, plain
from support.legacy_api import of_batches, of_episodes, of_files, of_policies, of_workers
from support.legacy_api.faces import Ours, Theirs
from support.legacy_api.names import CLASSES, CONSTRUCTED, all_names

BOTH: dict[str, dict[str, Callable[[Any], Any]]] = {
    "RolloutWorker": of_workers.OF_WORKERS,
    "EnvRunnerV2": of_workers.OF_RUNNERS,
    "EpisodeV2": of_episodes.OF_EPISODES,
    "RolloutMetrics": of_episodes.OF_METRICS,
    "SampleBatch": of_batches.OF_SAMPLE_BATCHES,
    "MultiAgentBatch": of_batches.OF_MULTI_AGENT_BATCHES,
    "Policy": of_policies.OF_POLICIES,
    "PolicyMap": of_policies.OF_POLICY_MAPS,
    "PolicySpec": of_batches.OF_SPECS,
    "EnvContext": of_batches.OF_CONTEXTS,
    "MeanStdFilter": of_batches.OF_FILTERS,
    "IOContext": of_files.OF_IO_CONTEXTS,
    "JsonReader": of_files.OF_READERS,
    "JsonWriter": of_files.OF_WRITERS,
    "MixedInput": of_files.OF_MIXED_INPUTS,
    "ShuffledInput": of_files.OF_SHUFFLED_INPUTS,
    "RLlibCallback": of_episodes.OF_CALLBACKS,
}
"""Class -> member -> its answer on a face, which is the same on both."""
ALONE: dict[str, dict[str, Callable[[Any], bool]]] = {
    "RolloutWorker": of_workers.WORKERS_ALONE,
    "RolloutMetrics": of_episodes.METRICS_ALONE,
    "Policy": of_policies.POLICIES_ALONE,
    "PolicyMap": of_policies.POLICY_MAPS_ALONE,
    "MeanStdFilter": of_batches.FILTERS_ALONE,
    "JsonReader": of_files.READERS_ALONE,
}
"""Class -> member -> true if it holds; RLlib's raises, or answers otherwise for the reason in `NOTES`."""

BY_THE_RUNNER = "the runner begins, steps and ends episodes itself; callbacks see them"
VIEWS = "modules have no view requirements: recurrent states and connectors stand for earlier steps"
CONNECTORS = "connectors are part of the runner, and its state, not of policies: [connectors](connectors.md)"
WITHOUT_EXPLORATION = ("without `connector_configs` and `_exploration_state`, which policies lack here; `policy_spec` "
                       "is a `PolicySpec`")  # fmt: skip
NOT_THERE = {
    "EnvRunnerV2.create_episode": BY_THE_RUNNER,
    "EnvRunnerV2.end_episode": BY_THE_RUNNER,
    "EpisodeV2.add_action_reward_done_next_obs": BY_THE_RUNNER,
    "EpisodeV2.add_init_obs": BY_THE_RUNNER,
    "EpisodeV2.postprocess_episode": BY_THE_RUNNER,
    "EpisodeV2.set_last_info": BY_THE_RUNNER,
    "EpisodeV2.step": BY_THE_RUNNER,
    "SampleBatch.get_single_step_input_dict": VIEWS,
    "Policy.init_view_requirements": VIEWS,
    "Policy.view_requirements": VIEWS,
    "Policy.action_connectors": CONNECTORS,
    "Policy.agent_connectors": CONNECTORS,
    "Policy.restore_connectors": CONNECTORS,
    "Policy.learn_on_batch_from_replay_buffer": "it calls an actor of Ray; pass a batch to `learn_on_batch()`",
}
NOTES = {
    "RolloutWorker.make_env": "RLlib's raises; here it makes the environments again",
    "RolloutWorker.sample_get_state_and_metrics": "RLlib's raises; here (batch, state, metrics)",
    "RolloutWorker.preprocessing_enabled": "False: modules take observations as they are, or by connectors",
    "RolloutWorker.preprocessors": "None for each policy",
    "RolloutWorker.foreach_env": 'for environments in this process (`gym_env_vectorize_mode="sync"`)',
    "RolloutWorker.sample": "a column `weights_seq_no` is added; discrete actions are int64, RLlib's int32",
    "RolloutWorker.get_metrics": "`connector_metrics` are empty",
    "RolloutWorker.get_state": WITHOUT_EXPLORATION,
    "Policy.get_state": WITHOUT_EXPLORATION,
    "RolloutWorker.set_state": "after an error, nothing has changed",
    "RolloutWorker.config": "a `RolloutWorkerConfig`",
    "RolloutWorker.default_policy_class": "`(module, config) -> Policy`",
    "RolloutWorker.remove_policy": "in running episodes the policy acts on",
    "RolloutWorker.seed": "RLlib's sum; random streams derive from its parts",
    "EpisodeV2.has_init_obs": "true already in `on_episode_start`",
    "EpisodeV2.policy_for": "`refresh=True` asks the mapping function, but the agent keeps its policy",
    "EpisodeV2.is_done": "without an agent id, a flag of the episode; likewise the other two",
    "RolloutMetrics.custom_metrics": "and what callbacks log with `metrics_logger.log_value()`",
    "RolloutMetrics.connector_metrics": "empty; `perf_stats` has the connectors' times",
    "Policy.callbacks": "only for `on_learn_on_batch()`",
    "Policy.maybe_remove_time_dimension": "RLlib's raises; here the argument itself",
    "Policy.reset_connectors": "the runner resets them with each episode",
    "Policy.get_connector_metrics": "empty; `perf_stats` has the connectors' times",
    "Policy.get_exploration_state": "empty: distributions explore, without state",
    "Policy.export_model": "no ONNX, which [`fastmarl.Policy`](deploy.md) writes",
    "PolicyMap.capacity": "infinite: all policies stay in memory",
    "MeanStdFilter.running_stats": "a list with an entry for each Box of the space; `buffer` as well",
    "MeanStdFilter.shape": "a list with an entry for each Box of the space",
    "MeanStdFilter.no_preprocessor": "True: each Box of a nested space has its own statistics",
    "JsonReader.next": "one line; `worker.sample()` concatenates",
    "JsonReader.cur_file": "the path",
}


@cache
def faces() -> tuple[Theirs, Ours]:
    """Return both faces, whose workers all checks share."""
    return Theirs(), Ours()


@cache
def all_rows() -> dict[str, dict[str, Callable[[], Any]]]:
    """Return the rows by class, in the order of the page."""
    return {cls: {f"{cls}.{name}": partial(check, cls, name) for name in names} for cls, names in all_names().items()}


def check(cls: str, name: str) -> None:
    """Raise unless a member of one of RLlib's classes answers the same on both faces, and takes its arguments."""
    if name in ALONE.get(cls, {}):
        assert ALONE[cls][name](faces()[1]) is True
    else:
        want, got = (plain(BOTH[cls][name](face)) for face in faces())
        assert got == want
    if cls in CLASSES and (name != "__init__" or cls in CONSTRUCTED):
        theirs, ours = (getattr(each, name, None) for each in (CLASSES[cls], our_class(cls)))
        if inspect.isroutine(theirs) and inspect.isroutine(ours) and cls != "PolicyMap":  # dict's own
            missing = parameters_of(theirs).keys() - parameters_of(ours).keys()
            assert not missing, missing


def our_class(cls: str) -> Any:
    ours = faces()[1]
    return type(ours.policy) if cls == "Policy" else getattr(ours, cls)
