"""How each method of an episode is called: with what it needs, and with each of its arguments."""

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibMultiAgentEpisode

from fastmarl.episodes import MultiAgentEpisode

AGENTS = "ab"
OBSERVATION_SPACE, ACTION_SPACE = gym.spaces.Box(-9, 99, (2,), np.float32), gym.spaces.Discrete(3)
LOOKBACK, N_STEPS = 2, 6
NEEDED = ("id_", "observations", "infos", "actions", "rewards", "agent_episode_ids")  # by the constructors
ONE = np.full(2, 9, np.float32)
NEW = {"observations": [ONE, ONE], "actions": [1, 1], "rewards": [5.0, 6.0], "extra_model_outputs": [5.0, 6.0]}
TRIED: dict[str, dict[str, Any]] = {  # argument -> itself, and what goes with it
    "indices": {"indices": [0, -1]},
    "agent_ids": {"agent_ids": ["a"]},
    "env_steps": {"env_steps": False, "indices": -1},
    "neg_index_as_lookback": {"indices": slice(-2, 1), "neg_index_as_lookback": True},
    "fill": {"indices": [0, 9], "fill": 7.0},
    "one_hot_discrete": {"one_hot_discrete": True},
    "return_list": {"return_list": True, "indices": slice(1, 3)},
    "at_indices": {"at_indices": [0, -1]},
    "len_lookback_buffer": {"len_lookback_buffer": 1},
    "include_hanging_rewards": {"include_hanging_rewards": True},
}


def is_multi(episode: Any) -> bool:
    """Return whether it is an episode of many agents, or the class of such."""
    cls = episode if isinstance(episode, type) else type(episode)
    return issubclass(cls, MultiAgentEpisode | RLlibMultiAgentEpisode)


def by_agent(value: Any) -> dict[str, Any]:
    return dict.fromkeys(AGENTS, value)


def mapping_fn(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return f"p_{agent_id}"


def columns(many: bool) -> dict[str, Any]:
    """Six steps, of one agent or of each of two, under the names of the constructors' arguments."""
    steps = range(N_STEPS)
    one = {
        "observations": [np.full(2, t, np.float32) for t in (*steps, N_STEPS)],
        "infos": [{"t": t} for t in (*steps, N_STEPS)],
        "actions": [t % 3 for t in steps],
        "rewards": [0.5 * t for t in steps],
    }
    if not many:
        return one | {"extra_model_outputs": {"q": [2.0 * t for t in steps]}}
    one["extra_model_outputs"] = [{"q": 2.0 * t} for t in steps]
    return {name: [by_agent(item) for item in items] for name, items in one.items()}


def constructor_arguments(many: bool) -> dict[str, Any]:
    """All arguments of a constructor, for a chunk of four steps after a lookback of two."""
    made = {"id_": "e", "len_lookback_buffer": LOOKBACK, **columns(many)}
    if many:
        return made | {
            "observation_space": by_agent(OBSERVATION_SPACE),
            "action_space": by_agent(ACTION_SPACE),
            "env_t_started": LOOKBACK,
            "agent_t_started": by_agent(LOOKBACK),
            "agent_episode_ids": {agent: f"e_{agent}" for agent in AGENTS},
            "agent_module_ids": {agent: f"p_{agent}" for agent in AGENTS},
            "agent_to_module_mapping_fn": mapping_fn,
            "terminateds": {"a": False, "__all__": False},
            "truncateds": {"a": False, "__all__": False},
        }
    return made | {
        "observation_space": OBSERVATION_SPACE,
        "action_space": ACTION_SPACE,
        "t_started": LOOKBACK,
        "agent_id": "a",
        "module_id": "p_a",
        "multi_agent_episode_id": "m",
        "terminated": True,
        "truncated": True,
    }


def make(cls: Any, *names: str, **changed: Any) -> Any:
    """Make an episode with the arguments of these names; without names, with all."""
    arguments = constructor_arguments(is_multi(cls)) | changed
    return cls(**{name: value for name, value in arguments.items() if not names or name in names})


def make_open(cls: Any) -> Any:
    """Make an episode that goes on: RLlib's flags of one agent would end it."""
    return make(cls, **({} if is_multi(cls) else {"terminated": False, "truncated": False}))


def step(many: bool) -> dict[str, Any]:
    """Return what `add_env_step()` needs."""
    if many:
        return {"observations": by_agent(ONE), "actions": by_agent(1), "rewards": by_agent(3.0)}
    return {"observation": ONE, "action": 1, "reward": 3.0}


def outputs(many: bool) -> dict[str, Any]:
    return {"extra_model_outputs": by_agent({"q": 1.0}) if many else {"q": 1.0}}


def needed(episode: Any, name: str) -> dict[str, Any]:
    """Return the arguments that a call of this method needs."""
    many = is_multi(episode)
    if name == "add_env_reset":
        return {"observations" if many else "observation": by_agent(ONE) if many else ONE}
    if name == "add_env_step":
        return step(many) | outputs(many)
    if name == "concat_episode":
        other = episode.cut(1)
        other.add_env_step(**step(many), **outputs(many))
        return {"other": other}
    if name.startswith("set_"):
        new = NEW[name.removeprefix("set_")]
        key = {"key": "q"} if name == "set_extra_model_outputs" else {}
        # Without indices, all items are replaced.
        all_new = np.array(new[:1] * (N_STEPS - LOOKBACK + (name == "set_observations")))
        return {"new_data": by_agent(all_new) if many else all_new, **key}
    if name == "get_extra_model_outputs":
        return {"key": "q"}
    fixed = {"__getitem__": {"item": slice(1, 3)}, "slice": {"slice_": slice(1, 3)}, "module_for": {"agent_id": "b"}}
    return fixed.get(name, {})


def tried(episode: Any, name: str, argument: str) -> dict[str, Any]:
    """Return the arguments of a call of this method in which this one does something."""
    many = is_multi(episode)
    if name.startswith("set_") and argument in ("at_indices", "neg_index_as_lookback"):
        new = NEW[name.removeprefix("set_")]
        at = {"at_indices": [0, -1]} if argument == "at_indices" else {"at_indices": [-2, -1], argument: True}
        return {"new_data": by_agent(new) if many else new, **at}
    own: dict[str, Any] = {
        "infos": by_agent({"t": 9}) if many else {"t": 9},
        "terminated": True,
        "truncated": True,
        "terminateds": {"__all__": True},
        "truncateds": {"__all__": True},
    }
    if name == "get_infos" and argument == "fill":
        return {**TRIED["fill"], "fill": {"t": 7}}
    return {argument: own[argument]} if argument in own else TRIED.get(argument, {})
