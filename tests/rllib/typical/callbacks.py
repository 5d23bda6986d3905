"""Callbacks that do what projects' callbacks do; all they find out is logged, or kept in `custom_data`."""

from collections import Counter
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback


class ReturnsByRole(RLlibCallback):
    """Sums up rewards by what agents are called."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("whole_return", episode.get_return())
        for role in ("predator", "prey"):
            totals = [sum(rewards) for agent, rewards in episode.get_rewards().items() if role in agent]
            metrics_logger.log_value(f"{role}_return", sum(totals) / len(totals) if totals else 0.0)


class Arrivals(RLlibCallback):
    """Looks into the env and at rewards when an episode is over."""

    def on_episode_end(self, *, episode: Any, env: Any, env_index: int, metrics_logger: Any, **kwargs: Any) -> None:
        railway = env.envs[env_index].unwrapped
        total = sum(sum(rewards) for rewards in episode.get_rewards().values())
        metrics_logger.log_value("normalized_reward", total / (railway.max_steps * len(railway.trains)) + 1)
        for state in ("MOVING", "DONE"):
            metrics_logger.log_value(f"num_{state}", sum(train.state == state for train in railway.trains))
        metrics_logger.log_value("elapsed_steps_ratio", railway.t / railway.max_steps, window=4)


class Trajectories(Arrivals):
    """Logs the trains' positions in each step, and their actions, rewards and infos at the end."""

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["positions"] = []
        episode.custom_data["dones"] = {}

    def on_episode_step(self, *, episode: Any, env: Any, env_index: int, **kwargs: Any) -> None:
        railway = env.envs[env_index].unwrapped
        episode.custom_data["positions"].append([train.position for train in railway.trains])
        episode.custom_data["dones"][railway.t] = [train.state == "DONE" for train in railway.trains]

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        super().on_episode_end(episode=episode, metrics_logger=metrics_logger, **kwargs)
        actions, infos = episode.get_actions(), episode.get_infos()
        rows = [
            (agent, t, int(actions[agent][t]), reward, infos[agent][t + 1]["position"])
            for agent, rewards in episode.get_rewards().items()
            for t, reward in enumerate(rewards)
        ]
        episode.custom_data["rows"] = rows
        metrics_logger.log_value("n_rows", len(rows), reduce="sum")


class OfEachSatellite(RLlibCallback):
    """Logs under the agents' names, and the mean over them."""

    def on_environment_created(self, *, env: Any, env_runner: Any, **kwargs: Any) -> None:
        env_runner.names_of_agents = [*env.envs[0].unwrapped.possible_agents]

    def on_episode_end(self, *, episode: Any, env_runner: Any, metrics_logger: Any, **kwargs: Any) -> None:
        returns = {agent: episode.agent_episodes[agent].get_return() for agent in env_runner.names_of_agents}
        for agent, total in returns.items():
            metrics_logger.log_value((agent, "total"), total)
        metrics_logger.log_value(("mean", "total"), float(np.mean([*returns.values()])))


class Counting(RLlibCallback):
    """Counts calls of all events in the object itself, and checks chunks against them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lengths: Counter[str] = Counter()

    def on_episode_created(self, **kwargs: Any) -> None:
        self._counts["created"] += 1

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        self._counts["start"] += 1
        assert len(episode) == 0

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self._counts["step"] += 1
        self._lengths[episode.id_] += 1

    def on_episode_end(
        self, *, episode: Any, prev_episode_chunks: list[Any], metrics_logger: Any, **kwargs: Any
    ) -> None:
        self._counts["end"] += 1
        assert sum(map(len, [*prev_episode_chunks, episode])) == self._lengths[episode.id_]
        for event, count in self._counts.items():
            metrics_logger.log_value(f"count_{event}", count, reduce="max")
        whole = sum(chunk.get_return() for chunk in [*prev_episode_chunks, episode])
        metrics_logger.log_value("return_over_chunks", whole)


class Pictures(RLlibCallback):
    """Collects what it sees of the env in each step, and shows the best and the worst episode of a call."""

    def __init__(self) -> None:
        self._shown: list[tuple[float, int]] = []

    def on_episode_step(self, *, episode: Any, env: Any, env_index: int, **kwargs: Any) -> None:
        market = env.envs[env_index].unwrapped
        if "pictures" not in episode.custom_data:
            episode.custom_data["pictures"] = []
        episode.custom_data["pictures"].append(np.full((2, 2, 3), market.t, np.uint8))

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        self._shown.append((episode.get_return(), len(episode.custom_data["pictures"])))

    def on_sample_end(self, *, metrics_logger: Any, **kwargs: Any) -> None:
        if self._shown:
            metrics_logger.log_value("best", max(self._shown)[0], reduce="max", window=10)
            metrics_logger.log_value("worst", min(self._shown)[0], reduce="min", window=10)
            self._shown.clear()


class LastInfos(RLlibCallback):
    """Follows infos step by step, and asks at the end who was successful."""

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["farthest"] = 0

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        positions = [info["position"] for info in episode.get_infos(-1).values() if info]
        episode.custom_data["farthest"] = max([episode.custom_data["farthest"], *positions])

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        last = {agent: infos[-1] for agent, infos in episode.get_infos().items() if infos}
        metrics_logger.log_value("success", int(any(info.get("success") for info in last.values())), reduce="mean")
        metrics_logger.log_value("farthest", episode.custom_data["farthest"], window=1)
        metrics_logger.log_value("steps", len(episode))
        metrics_logger.log_value("num_agents", len(episode.agent_ids))


class WinRate(RLlibCallback):
    """Finds the learning player by its module, and logs whether it has won."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        players = [*episode.agent_ids]
        (main,) = [agent for agent in players if episode.module_for(agent) == "main"]
        rewards = episode.get_rewards()
        (other,) = [agent for agent in players if agent != main]
        has_won = sum(rewards[main]) > sum(rewards[other])
        metrics_logger.log_value("win_rate", float(has_won), window=100)


class Matches(RLlibCallback):
    """Counts who played whom, when a call of sample() is over."""

    def on_sample_end(self, *, samples: list[Any], metrics_logger: Any, **kwargs: Any) -> None:
        for episode in samples:
            if episode.is_done:
                modules = sorted(episode.module_for(agent) for agent in episode.get_rewards())
                metrics_logger.log_value(f"matches_{'_'.join(modules)}", 1, reduce="lifetime_sum")
