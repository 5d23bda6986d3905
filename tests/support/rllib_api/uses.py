"""Uses that classes derived from RLlib's `RLlibCallback` make of what they are given, on the standalone face."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback

from support.api_tables import Rows
from support.rllib_api.pairs import MAKERS

GROUP = "Uses of RLlibCallback"


def rows() -> Rows:
    for name, (event, use) in USES.items():
        yield f"{GROUP}: {name}", partial(check, event, use)


def check(event: str, use: Callable[..., Any]) -> None:
    """Raise what a callback raises that does this, or AssertionError if it was not called."""
    called = []

    def method(self: Any, **kwargs: Any) -> None:
        called.append(use(**kwargs))

    runner = MAKERS["ours"](callbacks_class=type("Callbacks", (RLlibCallback,), {event: method}))
    with runner:
        runner.sample(num_timesteps=12)
        runner.get_metrics()
    assert called


def log(value: Any = 1.0, **options: Any) -> tuple[str, Callable[..., Any]]:
    return "on_episode_end", lambda metrics_logger, **kwargs: metrics_logger.log_value("x", value, **options)


def in_step(use: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    return "on_episode_step", use


def at_end(use: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    return "on_sample_end", use


def timed(metrics_logger: Any, **kwargs: Any) -> None:
    with metrics_logger.log_time("x"):
        pass


USES: dict[str, tuple[str, Callable[..., Any]]] = {
    "log_value()": log(),
    "log_value(ema_coeff)": log(ema_coeff=0.1),
    'log_value(reduce="item")': log(reduce="item"),
    'log_value(reduce="item_series")': log(np.zeros((2, 2)), reduce="item_series"),
    'log_value(reduce="percentiles")': log(reduce="percentiles", window=10),
    "log_value(with_throughput)": log(reduce="lifetime_sum", with_throughput=True),
    "log_value(window=inf)": log(window=float("inf")),
    "log_time()": at_end(timed),
    "log_dict()": at_end(lambda metrics_logger, **kwargs: metrics_logger.log_dict({"x": {"y": 1}}, window=5)),
    "`peek()` of a counter": at_end(
        lambda metrics_logger, **kwargs: metrics_logger.peek("num_env_steps_sampled_lifetime") + 0
    ),
    "`peek()` of a nested key": at_end(lambda metrics_logger, **kwargs: metrics_logger.peek(("a", "b"), default=0)),
    "env.envs[i]": in_step(lambda env, env_index, **kwargs: env.envs[env_index]),
    "env.envs[i].unwrapped": in_step(lambda env, env_index, **kwargs: env.envs[env_index].unwrapped.t),
    "env.unwrapped.envs[i]": in_step(lambda env, env_index, **kwargs: env.unwrapped.envs[env_index].t),
    "env.num_envs": in_step(lambda env, **kwargs: env.num_envs),
    "env_runner.num_env_steps_sampled_lifetime": at_end(
        lambda env_runner, **kwargs: env_runner.num_env_steps_sampled_lifetime
    ),
    "`env_runner.metrics`, `.num_envs`": at_end(lambda env_runner, **kwargs: (env_runner.metrics, env_runner.num_envs)),
    "rl_module[id]": in_step(lambda rl_module, **kwargs: rl_module["p_a"]),
    "`episode.get_rewards()`, `.get_observations()`": in_step(
        lambda episode, **kwargs: (episode.get_rewards(-1), episode.get_observations(-1))
    ),
    "`episode.module_for()`, `.env_t`, `.id_`": in_step(
        lambda episode, **kwargs: (episode.module_for("a"), episode.env_t, episode.id_)
    ),
    "episode.custom_data": in_step(lambda episode, **kwargs: episode.custom_data.setdefault("x", 1)),
    "episode.add_temporary_timestep_data()": in_step(
        lambda episode, **kwargs: episode.add_temporary_timestep_data("x", 1)
    ),
    "episode.set_rewards()": in_step(lambda episode, **kwargs: episode.set_rewards(new_data={"a": 1.0}, at_indices=-1)),
}
