"""Callbacks that write down when they are called and what they see."""

import math
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from rllib.differential import tape
from rllib.differential.rewriting import rewriter


def _outline(episode: Any) -> tuple:
    """Return the basic attributes of a running episode."""
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


def _numbers(episode: Any) -> tuple:
    """Return the numbers that users read most."""
    return (
        (len(episode), episode.env_t, episode.env_t_started, episode.is_done, episode.is_terminated),
        tape.freeze(episode.get_return()),
        tuple((repr(agent), episode.module_for(agent)) for agent in episode.agent_ids),
        tape.freeze(episode.get_infos(-1)) if len(episode) else None,
        tape.freeze(episode.custom_data),
        episode.get_duration_s() >= 0,
    )


def _answer(getter: Any, **options: Any) -> Any:
    """Return a getter's result or error; RLlib's getters raise for some chunks (54, 57)."""
    try:
        return tape.freeze(getter(**options))
    except (IndexError, KeyError) as error:
        return type(error).__name__


def _hanging(episode: Any) -> tuple[dict, dict]:
    """Return the rewards of agents that belong to no completed step of this chunk."""
    return episode._hanging_rewards_begin, episode._hanging_rewards_end


def _outputs(agent_episode: Any) -> dict[str, Any]:
    """Return a module's outputs other than actions by name, with the lookback."""
    return {name: agent_episode.extra_model_outputs[name].data for name in sorted(agent_episode.extra_model_outputs)}


def _everything(episode: Any) -> tuple:
    """All data of a running episode, as lists."""
    getters = (episode.get_observations, episode.get_infos, episode.get_actions, episode.get_rewards)
    return (
        _numbers(episode),
        tuple(_answer(getter) for getter in getters),
        tuple(_answer(getter, env_steps=False) for getter in getters),
        tuple(
            (repr(agent), each.module_id, len(each), each.is_done, tape.freeze(each.get_observations(-1)))
            for agent, each in episode.agent_episodes.items()
        ),
        # Sorted: columns come in the order of a module's own outputs, in RLlib in that of the first module of a batch
        # (docs/differences.md).
        tape.freeze({agent: _outputs(each) for agent, each in episode.agent_episodes.items()}),
        # In which order hanging rewards are added changes the last bits of the sum, but not what is added.
        round(float(np.sum(episode.get_return(include_hanging_rewards=True))), 3),
        math.fsum(float(np.sum(reward)) for rewards in _hanging(episode) for reward in rewards.values()),
        tuple(map(repr, episode.get_agents_to_act())),
        (episode.is_reset, len(episode.agent_episodes), tuple(map(repr, episode.get_agents_that_stepped()))),
    )


class Numbers(RLlibCallback):
    """Asks for little, at every event."""

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.custom_data["returns"] = []
        tape.note("callback", "created", env_index, tape.freeze(episode.get_return()))

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "start", env_index, _numbers(episode))

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.custom_data["returns"].append(episode.get_return())
        tape.note("callback", "step", env_index, *_numbers(episode))

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "end", env_index, _numbers(episode), [each.custom_data for each in prev_episode_chunks])


class Everything(RLlibCallback):
    """Reads all there is, at every event."""

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "start", env_index, _everything(episode))

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "step", env_index, _everything(episode))

    def on_episode_end(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "end", env_index, _everything(episode))


class EverythingAtEnd(RLlibCallback):
    """Reads all there is of an episode that is over."""

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, env_index: int, **kwargs: Any) -> None:
        chunks = tuple((len(chunk), _answer(chunk.get_rewards)) for chunk in prev_episode_chunks)
        tape.note("callback", "end", env_index, _everything(episode), chunks)


class RewardsAndActions(RLlibCallback):
    """Reads these before anything else, of all agents and of each."""

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        if episode.env_t % 3 == 1:
            tape.note("callback", "step", env_index, _rewards_and_actions(episode))

    def on_episode_end(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        tape.note("callback", "end", env_index, _rewards_and_actions(episode))


def _rewards_and_actions(episode: Any) -> tuple:
    return (
        *(_answer(episode.get_rewards, env_steps=env_steps) for env_steps in (False, True)),
        *(_answer(episode.get_actions, env_steps=env_steps) for env_steps in (True, False)),
        tuple(
            (repr(agent), _answer(each.get_rewards), _answer(each.get_actions), tape.freeze(each.get_return()))
            for agent, each in episode.agent_episodes.items()
        ),
        _numbers(episode),
    )


class Writer(Numbers):
    """Writes into the episode now and then: into infos, rewards, the newest observations, and what is its own."""

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        super().on_episode_start(episode=episode, env_index=env_index, **kwargs)
        self._halve_newest(episode)

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        super().on_episode_step(episode=episode, env_index=env_index, **kwargs)
        for info in episode.get_infos(-1).values():
            info["seen"] = episode.env_t
        if episode.env_t % 5 != 3:
            return
        for agent_episode in episode.agent_episodes.values():
            agent_episode.custom_data["steps"] = len(agent_episode)
            if len(agent_episode):
                agent_episode.rewards.data[-1] += 0.25
        self._halve_newest(episode)

    def _halve_newest(self, episode: Any) -> None:
        for agent_episode in episode.agent_episodes.values():
            newest = agent_episode.observations.data[-1]
            if isinstance(newest, np.ndarray) and newest.dtype == np.float32:
                agent_episode.observations.data[-1] = newest * np.float32(0.5)


class Counters(RLlibCallback):
    """Reads the runner's counters in the middle of a call."""

    def on_episode_start(self, **kwargs: Any) -> None:
        self._note("start", **kwargs)

    def on_episode_step(self, **kwargs: Any) -> None:
        self._note("step", **kwargs)

    def on_episode_end(self, **kwargs: Any) -> None:
        self._note("end", **kwargs)

    def _note(self, event: str, *, env_index: int, metrics_logger: Any, **kwargs: Any) -> None:
        names = ("num_env_steps_sampled", "num_agent_steps_sampled", "num_module_steps_sampled_lifetime")
        for name in names:
            found = metrics_logger.peek(name, default=0)
            found = sorted(found.items()) if isinstance(found, dict) else found
            tape.note("callback", event, env_index, tape.freeze(found))


class Renumberer(RLlibCallback):
    """Changes the number of the weights in the middle of a call."""

    def on_episode_step(self, *, episode: Any, env_runner: Any, **kwargs: Any) -> None:
        env_runner._weights_seq_no += episode.env_t % 3 == 1


class Renamer(EndsOnly):
    """Has each episode's id begin with its env, so that mapping functions and files go by it."""

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.id_ = f"env={env_index}|{episode.id_}"

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, metrics_logger: Any, **kwargs: Any) -> None:
        tape.note("callback", "id", episode.id_.partition("|")[0], len(prev_episode_chunks))
        super().on_episode_end(
            episode=episode, prev_episode_chunks=prev_episode_chunks, metrics_logger=metrics_logger, **kwargs
        )


class Remapper(EndsOnly):
    """Gives each episode a mapping function of its own."""

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        given = episode.agent_to_module_mapping_fn

        def of_env(agent_id: Any, episode: Any, **kwargs: Any) -> str:
            tape.note("mapping", "of env", env_index, repr(agent_id))
            return given(agent_id, episode, **kwargs)

        episode.agent_to_module_mapping_fn = of_env


CALLBACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "all": {"callbacks_class": AllCalls},
    "sample": {"callbacks_class": SamplesOnly},
    "ends": {"callbacks_class": EndsOnly},
    "numbers": {"callbacks_class": Numbers},
    "everything": {"callbacks_class": Everything},
    "everything at end": {"callbacks_class": EverythingAtEnd},
    "rewards and actions": {"callbacks_class": RewardsAndActions},
    "writer": {"callbacks_class": Writer},
    "counters": {"callbacks_class": Counters},
    "renumberer": {"callbacks_class": Renumberer},
    "renamer": {"callbacks_class": Renamer},
    "remapper": {"callbacks_class": Remapper},
    "functions": {"callbacks_class": [EndsOnly, AllCalls], "on_episode_end": [_end], "on_episode_start": _end},
}


def callbacks(kind: str) -> dict[str, Any]:
    """Return the arguments of config.callbacks() for one of CALLBACKS, or for a "rewriter" with its seed."""
    if kind.startswith("rewriter "):
        return {"callbacks_class": rewriter(int(kind.removeprefix("rewriter ")))}
    return CALLBACKS[kind]


READERS = tuple(kind for kind in CALLBACKS if kind not in ("none", "writer", "renumberer"))
"""Those that write nothing into what was recorded."""
