"""Runners that are wrong in one way each: the comparison has to see all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics.stats import MaxStats


def spoiling(base: Any, method: str, spoil: Callable[[Any, Any], Any]) -> type:
    """A subclass that does this with itself and with what a method returns."""

    class Broken(base):
        pass

    def spoilt(self: Any, **kwargs: Any) -> Any:
        returned = getattr(base, method)(self, **kwargs)
        spoil(self, returned)
        return returned

    setattr(Broken, method, spoilt)
    return Broken


def _after_sample(spoil: Callable[[Any, list[MultiAgentEpisode]], Any]) -> type:
    return spoiling(RLlibEnvRunner, "sample", spoil)


def _episode(spoil: Callable[[MultiAgentEpisode], Any]) -> type:
    return _after_sample(lambda runner, episodes: spoil(episodes[-1]))


def _part(spoil: Callable[[SingleAgentEpisode], Any]) -> type:
    """Spoils what is of the last agent in the last episode."""
    return _episode(lambda episode: spoil([*episode.agent_episodes.values()][-1]))


def _data(column: str, change: Callable[[Any], Any]) -> type:
    """Changes the data of one column."""

    def spoil(part: SingleAgentEpisode) -> None:
        buffer = part.extra_model_outputs[column] if column in part.extra_model_outputs else getattr(part, column)
        buffer.data = change(buffer.data)

    return _part(spoil)


def _metrics(spoil: Callable[[dict[str, Any]], Any]) -> type:
    return spoiling(RLlibEnvRunner, "get_metrics", lambda runner, metrics: spoil(metrics))


def _env_actions(change: Callable[[Any], Any]) -> type:
    """Change the actions that envs get, but not the recorded ones."""

    class Broken(RLlibEnvRunner):
        def _try_env_step(self, actions: Any) -> Any:
            return super()._try_env_step([change(of_env) for of_env in actions])

    return Broken


def one_ulp(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data.flat[-1] = np.nextafter(data.flat[-1], np.inf, dtype=data.dtype)
    return data


def _minus_zero(data: np.ndarray) -> np.ndarray:
    return np.where(data == 0.0, -data, data)


def read_only(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data.flags.writeable = False
    return data


def swap_first(items: dict) -> None:
    """The first key of the dict becomes the last."""
    key = next(iter(items))
    items[key] = items.pop(key)


def _share(episode: MultiAgentEpisode) -> None:
    first, *_, last = episode.agent_episodes.values()
    block = np.concatenate([first.rewards.data, last.rewards.data])
    n = len(first.rewards.data)
    first.rewards.data, last.rewards.data = block[:n], block[n:]
    last.extra_model_outputs["action_logp"].data = first.extra_model_outputs["action_logp"].data


def _pay_hanging(episode: Any) -> None:
    for agent in episode._hanging_actions_end:
        episode._hanging_rewards_end[agent] += 1.0


def _plain_dict(episode: MultiAgentEpisode) -> None:
    episode._hanging_rewards_end = dict(episode._hanging_rewards_end)


def _own_id(runner: Any, episodes: list[MultiAgentEpisode]) -> None:
    """A continued chunk that does not know whom it continues."""
    episodes[-1].id_ = f"{episodes[-1].id_}x{len(episodes)}{episodes[-1].env_t}"


def _one_id(runner: Any, episodes: list[MultiAgentEpisode]) -> None:
    """Two episodes with one id."""
    episodes[-1].id_ = episodes[0].id_


def _count_nothing(value: Any) -> type:
    """Says this where no episode has ended since the last report (19)."""

    def spoil(metrics: dict[str, Any]) -> None:
        if np.isnan(metrics["num_episodes"].peek()):
            metrics["num_episodes"].values = [value]

    return _metrics(spoil)


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


BROKEN: dict[str, type] = {
    "a bit of a reward": _data("rewards", one_ulp),
    "a bit of an observation": _data("observations", one_ulp),
    "minus zero": _data("rewards", _minus_zero),
    "float32 rewards": _data("rewards", lambda data: data.astype(np.float32)),
    "int64 actions": _data("actions", lambda data: data.astype(np.int64)),
    "actions as a list": _data("actions", list),
    "shape of log probabilities": _data("action_logp", lambda data: data[:, None]),
    "read-only": _data("observations", read_only),
    "an info too few": _data("infos", lambda data: data[:-1]),
    "an info's content": _data("infos", lambda data: [*data[:-1], {"t": -1}]),
    "dtype of the sequence number": _data("weights_seq_no", lambda data: data.astype(np.int32)),
    "lookback": _part(lambda part: _set("lookback", part.rewards.lookback + 1)(part.rewards)),
    "finalized": _part(lambda part: _set("finalized", False)(part.rewards)),
    "space": _part(lambda part: _set("space", None)(part.observations)),
    "a column less": _part(lambda part: part.extra_model_outputs.pop("action_logp")),
    "agent time": _part(lambda part: _set("t_started", part.t_started + 1)(part)),
    "module": _part(_set("module_id", "p9")),
    "type of a flag": _part(lambda part: _set("is_terminated", np.bool_(part.is_terminated))(part)),
    "no time": _part(_set("_last_step_time", None)),
    "order of agents": _episode(lambda episode: swap_first(episode.agent_episodes)),
    "time map": _episode(lambda episode: next(iter(episode.env_t_to_agent_t.values())).data.append("S")),
    "time map as a tuple": _episode(
        lambda episode: [_set("data", tuple(buffer.data))(buffer) for buffer in episode.env_t_to_agent_t.values()]
    ),
    "hanging rewards": _episode(_pay_hanging),
    "a plain dict": _episode(_plain_dict),
    "custom data": _episode(lambda episode: episode.custom_data.update(x=1)),
    "terminated": _episode(lambda episode: _set("is_terminated", not episode.is_terminated)(episode)),
    "begin of the chunk": _episode(lambda episode: _set("env_t_started", episode.env_t_started + 1)(episode)),
    "new ids": _after_sample(_own_id),
    "one id": _after_sample(_one_id),
    "order of episodes": _after_sample(lambda runner, episodes: episodes.reverse()),
    "an episode less": _after_sample(lambda runner, episodes: episodes.pop()),
    "shared memory": _episode(_share),
    "torch's generator": _after_sample(lambda runner, episodes: torch.rand(1)),
    "NumPy's generator": _after_sample(lambda runner, episodes: np.random.random()),  # noqa: NPY002
    "a needless question": _after_sample(lambda runner, episodes: runner.config.policy_mapping_fn(0, None)),
    "lifetime": _after_sample(lambda runner, episodes: _set("num_env_steps_sampled_lifetime", 99)(runner)),
    "order of sent actions": _env_actions(lambda actions: dict(reversed(actions.items()))),
    "type of sent actions": _env_actions(lambda actions: {agent: int(action) for agent, action in actions.items()}),
    "a sent action": _env_actions(lambda actions: {agent: action * 0 for agent, action in actions.items()}),
    "a metric less": _metrics(lambda metrics: metrics.pop("episode_len_mean")),
    "a timer less": _metrics(lambda metrics: metrics["env_to_module_connector"].pop("connector_pipeline_timer")),
    "a metric's value": _metrics(lambda metrics: metrics["num_env_steps_sampled"].push(1)),
    "an episode that was none": _count_nothing(1),
    "a zero of another type": _count_nothing(0.0),
    "a metric's type": _metrics(lambda metrics: metrics.update(num_env_steps_sampled=MaxStats(window=None))),
    "a metric's window": _metrics(lambda metrics: _set("_window", 99)(metrics["episode_len_mean"])),
    "a timer's settings": _metrics(lambda metrics: _set("_ema_coeff", 0.5)(metrics["sample"])),
}
