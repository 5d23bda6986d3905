"""Callbacks that write down when they are called and what they see."""

from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from rllib.differential import tape


def _outline(episode: Any) -> tuple:
    """What is there of a running episode."""
    return (
        len(episode),
        episode.env_t_started,
        episode.is_done,
        tuple((repr(agent), len(part), part.is_done) for agent, part in episode.agent_episodes.items()),
        tape.freeze(episode.get_return()),
    )


class AllCalls(RLlibCallback):
    """Every hook that a runner has; it leaves marks in the episode and in the metrics."""

    def on_environment_created(self, *, env_runner: Any, env: Any, **kwargs: Any) -> None:
        tape.note("callback", "environment_created", env.num_envs, tuple(sorted(kwargs)))

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "created", env_index, _outline(episode), tuple(sorted(kwargs)))
        episode.custom_data["steps_seen"] = []

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "start", env_index, _outline(episode), tuple(sorted(kwargs)))

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "step", env_index, _outline(episode), tuple(sorted(kwargs)))
        episode.custom_data["steps_seen"].append(episode.env_t)

    def on_episode_end(
        self, *, episode: Any, prev_episode_chunks: Any, env_index: int, metrics_logger: Any, **kwargs: Any
    ) -> None:
        before = tuple(map(_outline, prev_episode_chunks))
        tape.note("callback", "end", env_index, _outline(episode), before, tuple(sorted(kwargs)))
        metrics_logger.log_value("longest", episode.env_t, reduce="max", window=5)

    def on_sample_end(self, *, env_runner: Any, samples: list, **kwargs: Any) -> None:
        tape.note("callback", "sample_end", tuple(map(_outline, samples)), tuple(sorted(kwargs)))


class SamplesOnly(RLlibCallback):
    """Sees what is returned, before it is returned."""

    def on_sample_end(self, *, samples: list, **kwargs: Any) -> None:
        tape.note("callback", "sample_end", tuple(map(_outline, samples)))


class EndsOnly(SamplesOnly):
    """The hooks that most users have."""

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, metrics_logger: Any, **kwargs: Any) -> None:
        total = sum(chunk.get_return() for chunk in [*prev_episode_chunks, episode])
        tape.note("callback", "end", _outline(episode), tape.freeze(total))
        metrics_logger.log_value("total", total)


def _end(*, episode: Any, env_index: int, **kwargs: Any) -> None:
    tape.note("callback", "function", env_index, _outline(episode))


def note_step(*, episode: Any, env_index: int, **kwargs: Any) -> None:
    """A callback function for each step."""
    tape.note("callback", "step", env_index, _outline(episode))


CALLBACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "all": {"callbacks_class": AllCalls},
    "sample": {"callbacks_class": SamplesOnly},
    "ends": {"callbacks_class": EndsOnly},
    "functions": {"callbacks_class": [EndsOnly, AllCalls], "on_episode_end": [_end], "on_episode_start": _end},
}
