"""Random histories of one episode, in lists and dicts, and the chunks and answers that they should give."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from fastmarl.core.episodes.sources import ArraySource
from fastmarl.core.spaces.structs import map_struct
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode

AGENTS = ("ann", 1, "cy")
OBS_SPACES = {
    "ann": gym.spaces.Discrete(40),
    1: gym.spaces.Box(-100, 100, (2,), np.float32),
    "cy": gym.spaces.Dict({"m": gym.spaces.MultiDiscrete([20, 30]), "t": gym.spaces.Tuple([gym.spaces.Discrete(40)])}),
}
ACTION_SPACES = {
    "ann": gym.spaces.Discrete(20),
    1: gym.spaces.Box(-100, 100, (2,), np.float32),
    "cy": gym.spaces.MultiDiscrete([20, 20]),
}


@dataclass
class AgentHistory:
    env_ts: list[int]  # of the observations
    rewards: dict[int, float]  # env step -> reward
    terminated: bool = False
    truncated: bool = False

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def reward(self, i: int) -> float:
        """Return the reward of the transition from observation i to the next, or to the end of history."""
        end = self.env_ts[i + 1] if i + 1 < len(self.env_ts) else max(self.rewards, default=0)
        return sum(self.rewards.get(t, 0.0) for t in range(self.env_ts[i] + 1, end + 1))


@dataclass
class History:
    env_t: int
    agents: dict[Any, AgentHistory]
    terminated: bool = False
    truncated: bool = False
    infos_at: set[tuple] = field(default_factory=set)

    def observation(self, agent: Any, t: int) -> Any:
        if agent == "ann":
            return np.int64(t)
        if agent == 1:
            return np.array([t, t / 2], np.float32)
        return {"m": np.array([t, t + 1]), "t": (np.int64(2 * t),)}

    def action(self, agent: Any, t: int) -> Any:
        return {"ann": np.int64(t + 1), 1: np.array([t, -t], np.float32), "cy": np.array([t, 19 - t])}[agent]

    def extras(self, agent: Any, t: int) -> dict[str, Any]:
        return {"x": np.float32(t * 1.5), "y": np.array([t, 1.0], np.float32)}

    def info(self, agent: Any, t: int) -> dict:
        return {"t": t} if (agent, t) in self.infos_at else {}


@st.composite
def histories(draw, max_env_t: int = 9, always: bool = False, done: bool = True, stays: bool = False) -> History:
    """Args:
    always: every agent observes every step from 0 on.
    done: agents and the episode may end.
    stays: one agent is there from 0 to the end, and who ends with the episode has the episode's flags.
    """
    env_t = draw(st.integers(1, max_env_t))
    ends = draw(st.sampled_from(["", "", "terminated", "truncated"])) if done else ""
    history = History(env_t, {}, ends == "terminated", ends == "truncated")
    for agent in draw(st.lists(st.sampled_from(AGENTS), min_size=1, unique=True)):
        staying = stays and not history.agents
        joins = 0 if always or staying else draw(st.integers(0, env_t - 1))
        steps = range(joins, env_t + 1)
        env_ts = [t for t in steps if always or t == joins or draw(st.booleans())]
        dies = done and not staying and len(env_ts) > 1 and draw(st.booleans())
        dies = dies and not (stays and ends and env_ts[-1] == env_t)
        if ends and not dies and env_ts[-1] != env_t:
            env_ts.append(env_t)
        last = env_ts[-1] if dies else env_t
        rewards = {t: draw(st.integers(-4, 4)) / 2 for t in range(env_ts[0] + 1, last + 1)}
        flag = draw(st.booleans()) if dies else False
        one = AgentHistory(env_ts, rewards, dies and flag, dies and not flag)
        if ends and not dies:
            one.terminated, one.truncated = history.terminated, history.truncated
        history.agents[agent] = one
        history.infos_at |= {(agent, t) for t in env_ts if draw(st.booleans())}
    if all(one.done for one in history.agents.values()) and not ends:
        first = next(iter(history.agents.values()))
        first.terminated = first.truncated = False
        first.rewards |= dict.fromkeys(range(first.env_ts[-1] + 1, env_t + 1), 0.5)
    return history


def stack(items: list[Any]) -> Any:
    if isinstance(items[0], dict):
        return {key: stack([item[key] for item in items]) for key in items[0]}
    if isinstance(items[0], tuple):
        return tuple(stack(list(parts)) for parts in zip(*items, strict=True))
    return np.array(items)


def make_part(history: History, agent: Any, first: int, last: int, lookback: int) -> SingleAgentEpisode:
    """Observations `first` to `last` of an agent."""
    one = history.agents[agent]
    env_ts = one.env_ts[first : last + 1]
    extras = [history.extras(agent, t) for t in env_ts[:-1]]
    at_end = last == len(one.env_ts) - 1
    return SingleAgentEpisode.of(
        agent_id=agent,
        module_id="p0",
        multi_agent_episode_id="e",
        observation_space=OBS_SPACES[agent],
        action_space=ACTION_SPACES[agent],
        source=ArraySource(
            observations=stack([history.observation(agent, t) for t in env_ts]),
            env_ts=np.array(env_ts, np.int64),
            infos=[history.info(agent, t) for t in env_ts],
            actions=stack([history.action(agent, t) for t in env_ts[:-1]]),
            rewards=np.array([one.reward(i) for i in range(first, last)], np.float64),
            extras={key: stack([extra[key] for extra in extras]) for key in ("x", "y")},
        ),
        lookback=lookback,
        t_started=first + lookback,
        is_terminated=one.terminated and at_end,
        is_truncated=one.truncated and at_end,
    )


def make_chunk(history: History, begin: int = 0, end: int | None = None, lookback: int = 0) -> MultiAgentEpisode:
    """The chunk from env step `begin` to `end` of an episode that is cut at both."""
    end = history.env_t if end is None else end
    parts, known, hanging = {}, [], {}
    for agent, one in history.agents.items():
        seen = [i for i, t in enumerate(one.env_ts) if t <= end]
        ends_here = [i for i in seen if i and one.env_ts[i] > begin]
        if not seen or (one.done and one.env_ts[-1] <= begin):
            continue
        known.append(agent)
        if ends_here:
            first = ends_here[0] - 1
            before = [i for i in range(first) if one.env_ts[i] >= begin - lookback]
            parts[agent] = make_part(history, agent, first - len(before), seen[-1], len(before))
        if one.env_ts[seen[-1]] < end and not (one.done and seen[-1] == len(one.env_ts) - 1):
            hanging[agent] = sum(one.rewards.get(t, 0.0) for t in range(one.env_ts[seen[-1]] + 1, end + 1))
    return MultiAgentEpisode.of_agents(
        id_="e",
        agent_episodes=parts,
        env_t_started=begin,
        env_t=end,
        lookback=min(lookback, begin),
        is_terminated=history.terminated and end == history.env_t,
        is_truncated=history.truncated and end == history.env_t,
        hanging_rewards=hanging,
        agent_ids=known,
        common_infos={t: {"common": t} for t in range(max(begin - lookback, 0), end + 1)},
    )


@st.composite
def chunks(draw) -> tuple[History, MultiAgentEpisode]:
    """A history, and a chunk of its episode."""
    history = draw(histories())
    begin = draw(st.integers(0, history.env_t - 1))
    return history, make_chunk(history, begin, draw(st.integers(begin + 1, history.env_t)), draw(st.integers(0, 4)))


def same(got: Any, want: Any) -> bool:
    """Equal values in the same nesting; arrays with the same shape."""
    if isinstance(want, dict):
        return isinstance(got, dict) and list(got) == list(want) and all(same(got[key], want[key]) for key in want)
    if isinstance(want, (list, tuple)) and not isinstance(got, np.ndarray):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    return np.shape(got) == np.shape(want) and bool(np.all(np.asarray(got) == np.asarray(want)))


def everything(episode: MultiAgentEpisode) -> dict[str, Any]:
    """All that an episode says, to compare it with another."""
    return {
        "env_t": (episode.id_, episode.env_t_started, episode.env_t, episode.lookback),
        "flags": [sorted(map(str, flags.items())) for flags in (episode.get_terminateds(), episode.get_truncateds())],
        "agents": sorted(map(str, episode.agent_ids)),
        "to_act": sorted(map(str, episode.get_agents_to_act())),
        "stepped": sorted(map(str, episode.get_agents_that_stepped())),
        "infos": episode.get_common_infos(),
        "parts": {
            str(agent): {
                "t": (part.t_started, part.t, part.lookback, part.id_, part.module_id),
                "flags": (part.is_terminated, part.is_truncated),
                "env_ts": part.env_ts(),
                **{name: part.column(name).data for name in ("observations", "infos", "actions", "rewards")},
                "extras": part.column("extra_model_outputs").data,
            }
            for agent, part in sorted(episode.agent_episodes.items(), key=lambda pair: str(pair[0]))
        },
    }


def leaves(struct: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    map_struct(found.append, struct)
    return found
