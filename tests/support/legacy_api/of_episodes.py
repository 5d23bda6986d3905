"""Checks of episodes, metrics and callbacks: member -> its answer on a face; those `ALONE` are true on ours."""

from typing import Any

import numpy as np

from support.legacy_api.faces import by_agent


def _counted(name: str) -> Any:
    return lambda f: f.episodes(lambda episode: getattr(episode, name))


def _kept(name: str) -> Any:
    """Return a check that a dict of an episode keeps values from step to step."""

    def step(episode: Any) -> Any:
        kept = getattr(episode, name)
        kept["n"] = kept.get("n", 0) + 1
        return dict(kept)

    return lambda f: f.episodes(step)


def _ids(f: Any) -> Any:
    found = f.episodes(lambda episode: episode.episode_id)
    return [type(each) for each in found], [found.index(each) for each in found]


OF_EPISODES = {
    "active_agent_steps": _counted("active_agent_steps"),
    "active_env_steps": _counted("active_env_steps"),
    "agent_index": lambda f: f.episodes(lambda episode: [episode.agent_index(agent) for agent in "ab"]),
    "agent_rewards": lambda f: f.episodes(lambda episode: dict(episode.agent_rewards)),
    "callbacks": lambda f: f.episodes(lambda episode: type(episode.callbacks).__name__),
    "custom_metrics": _kept("custom_metrics"),
    "env_id": _counted("env_id"),
    "episode_id": _ids,
    "get_agents": lambda f: f.episodes(lambda episode: episode.get_agents()),
    "has_init_obs": lambda f: f.episodes(lambda episode: [episode.has_init_obs(each) for each in (None, "a", "c")]),
    "hist_data": _kept("hist_data"),
    "is_done": lambda f: f.episodes(lambda episode: [bool(episode.is_done(agent)) for agent in "ab"]),
    "is_terminated": lambda f: f.episodes(lambda episode: [bool(episode.is_terminated(agent)) for agent in "ab"]),
    "is_truncated": lambda f: f.episodes(lambda episode: [bool(episode.is_truncated(agent)) for agent in "ab"]),
    "last_info_for": lambda f: f.episodes(lambda episode: [episode.last_info_for(agent)["t"] for agent in "ab"]),
    "length": _counted("length"),
    "media": _kept("media"),
    "policy_for": lambda f: f.episodes(lambda episode: [episode.policy_for(agent) for agent in "ab"]),
    "policy_map": lambda f: f.episodes(lambda episode: sorted(episode.policy_map.keys())),
    "policy_mapping_fn": lambda f: f.episodes(lambda episode: episode.policy_mapping_fn is by_agent),
    "total_agent_steps": _counted("total_agent_steps"),
    "total_env_steps": _counted("total_env_steps"),
    "total_reward": _counted("total_reward"),
    "user_data": _kept("user_data"),
    "worker": lambda f: f.episodes(lambda episode: type(episode.worker).__name__),
}  # fmt: skip


def _metric(name: str) -> Any:
    def look(f: Any) -> Any:
        worker = f.fresh()
        worker.sample()
        return [getattr(each, name) for each in worker.get_metrics()]

    return look


OF_METRICS = {
    **{
        name: _metric(name)
        for name in ("agent_rewards", "custom_metrics", "episode_faulty", "episode_length", "episode_reward",
                     "hist_data", "media")
    },
    "perf_stats": lambda f: (f.RolloutMetrics().perf_stats, [each.keys() for each in _metric("perf_stats")(f)]),
}  # fmt: skip
METRICS_ALONE = {"connector_metrics": lambda f: _metric("connector_metrics")(f) == [{}, {}]}


def _of_episode(arguments: dict) -> Any:
    return (
        sorted({"worker", "base_env", "policies", "episode", "env_index"} & arguments.keys()),
        arguments["env_index"],
        sorted(arguments["policies"].keys()),
        len(arguments["base_env"].get_sub_environments()),
    )


def _learnt(f: Any) -> Any:
    def look(arguments: dict) -> Any:
        arguments["result"]["mine"] = 1
        return arguments["train_batch"].count

    found = []
    calls = f.called(
        "on_learn_on_batch", look, lambda worker: found.append(worker.learn_on_batch(worker.sample())["p0"])
    )
    return calls, [each["custom_metrics"] for each in found]


OF_CALLBACKS = {
    "on_create_policy": lambda f: sorted(f.called("on_create_policy", lambda given: given["policy_id"])),
    **{
        event: lambda f, event=event: f.called(event, _of_episode)
        for event in ("on_episode_created", "on_episode_end", "on_episode_start", "on_episode_step")
    },
    "on_learn_on_batch": _learnt,
    "on_postprocess_trajectory": lambda f: f.called("on_postprocess_trajectory", lambda given: (
        given["agent_id"], given["policy_id"], given["postprocessed_batch"].count, sorted(given["original_batches"]),
        np.shape(given["postprocessed_batch"]["advantages"]))),
    "on_sample_end": lambda f: f.called("on_sample_end", lambda given: (
        type(given["worker"]).__name__, type(given["samples"]).__name__, given["samples"].count)),
    "on_sub_environment_created": lambda f: f.called("on_sub_environment_created", lambda given: (
        type(given["sub_environment"]).__name__, given["env_context"].vector_index)),
}  # fmt: skip
