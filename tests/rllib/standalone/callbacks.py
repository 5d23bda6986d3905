"""Callbacks of RLlib's kind that write down when they are called, with which arguments, and what they see."""

from typing import Any

import numpy as np
import tree
from ray.rllib.callbacks.callbacks import RLlibCallback
from rllib.differential import tape

EVENTS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)


def plain(value: Any) -> Any:
    """A text of values, without their dtypes."""
    return repr(tree.map_structure(lambda leaf: np.asarray(leaf).tolist(), value))


def outline(episode: Any, with_observations: bool = True) -> tuple:
    """A running episode, or a chunk, in numbers and texts.

    Agents that had ended before a chunk began are not looked at: RLlib has some of them in the next one (54).
    """
    parts = {agent: part for agent, part in episode.agent_episodes.items() if len(part) or not part.is_done}
    return (
        (episode.env_t_started, episode.env_t, len(episode), bool(episode.is_done), float(episode.get_return())),
        tuple(sorted((repr(agent), *_part(part, with_observations)) for agent, part in parts.items())),
    )


def _part(part: Any, with_observations: bool) -> tuple:
    return (
        part.module_id,
        part.t_started,
        part.t,
        bool(part.is_done),
        plain(part.get_observations(-1)) if with_observations else None,
        None if part.is_done and (not with_observations or _stands_in(part)) else plain(part.get_infos(-1)),
        [float(reward) for reward in part.get_rewards()],
        plain(part.get_actions(-1)) if len(part) else None,
    )


def _stands_in(part: Any) -> bool:
    """True if the last observation may be a repetition, with which RLlib repeats the info, too."""
    return bool(len(part)) and plain(part.get_observations(-1)) == plain(part.get_observations(-2))


class AllEvents(RLlibCallback):
    """Every event; it leaves marks in episodes and metrics."""

    sees_observations = True

    def look(self, episode: Any) -> tuple:
        return outline(episode, self.sees_observations)

    def on_environment_created(self, *, env: Any, **kwargs: Any) -> None:
        tape.note("callback", "environment_created", None, env.num_envs, sorted(kwargs))

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.custom_data["place"] = env_index
        tape.note("callback", "created", env_index, self.look(episode), sorted(kwargs))

    def on_episode_start(self, *, episode: Any, env_index: int, env: Any, **kwargs: Any) -> None:
        episode.custom_data["who"] = who = env.envs[env_index].unwrapped.who
        episode.custom_data["starts"] = episode.custom_data.get("starts", 0) + 1
        tape.note("callback", "start", env_index, self.look(episode), who, sorted(kwargs))

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        to_act = sorted(map(repr, episode.get_agents_to_act()))
        stepped = sorted(map(repr, episode.get_agents_that_stepped()))
        tape.note("callback", "step", env_index, self.look(episode), to_act, stepped, sorted(kwargs))

    def on_episode_end(
        self, *, episode: Any, prev_episode_chunks: Any, env_index: int, metrics_logger: Any, **kwargs: Any
    ) -> None:
        before = [self.look(chunk)[0] for chunk in prev_episode_chunks]
        starts = episode.custom_data["starts"]
        tape.note("callback", "end", env_index, self.look(episode), before, starts, sorted(kwargs))
        metrics_logger.log_value("longest", episode.env_t, reduce="max", window=5)
        metrics_logger.log_value(("sums", "steps"), episode.env_t, reduce="sum")

    def on_sample_end(self, *, samples: list, **kwargs: Any) -> None:
        tape.note("callback", "sample_end", None, [self.look(chunk) for chunk in samples], sorted(kwargs))


class Writer(AllEvents):
    """Writes rewards now and then."""

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        super().on_episode_step(episode=episode, env_index=env_index, **kwargs)
        for part in episode.agent_episodes.values():
            if len(part) and episode.env_t % 3 == 1:
                part.set_rewards(new_data=part.get_rewards(-1) + 0.25, at_indices=-1)


KINDS = {"class": AllEvents, "functions": AllEvents, "writer": Writer}


class Ends(RLlibCallback):
    """The events that most users have."""

    sees_observations = True
    look = AllEvents.look
    on_episode_end = AllEvents.on_episode_end
    on_episode_start = AllEvents.on_episode_start
    on_sample_end = AllEvents.on_sample_end


def options(kind: str, sees_observations: bool) -> dict[str, Any]:
    """Options of RLlib's `config.callbacks()`.

    Args:
        kind: one of the names in `cases.CALLBACKS`.
        sees_observations: False where they are the inputs of connectors in RLlib, and outputs here (docs/metrics.md).
    """
    if kind == "none":
        return {}
    made = type("Sees", (KINDS.get(kind, Ends),), {"sees_observations": sees_observations})
    if kind != "functions":
        return {"callbacks_class": made}
    callbacks = made()
    return {event: getattr(callbacks, event) for event in EVENTS}
