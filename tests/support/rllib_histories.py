"""Random histories as RLlib's episodes, and how these are compared with ours."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode

from support.histories import ACTION_SPACES, OBS_SPACES, History, histories, make_chunk, same

COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")
BOUND = st.none() | st.integers(-12, 12)
SLICES = st.builds(slice, BOUND, BOUND, st.sampled_from([None, 1, 2]))
INDICES = st.none() | st.integers(-12, 12) | st.lists(st.integers(-12, 12), min_size=1, max_size=4) | SLICES
FILLS = st.sampled_from([None, None, 0, 7])


def play(history: History, cls: Any = RLlibEpisode) -> Any:
    """An episode of the whole history, of RLlib's class or ours, built as RLlib's runner builds it."""
    (episode,) = play_chunks(history, cls, {})
    return episode


def play_chunks(history: History, cls: Any, cuts: dict[int, int]) -> list[Any]:
    """Build it in chunks, cut at these env steps, with these lookbacks."""
    episode = cls(
        id_="e",
        observation_space=OBS_SPACES,
        action_space=ACTION_SPACES,
        agent_to_module_mapping_fn=lambda agent, episode: "p0",
    )
    agents, chunks = history.agents, []
    first = {agent: history.observation(agent, 0) for agent, one in agents.items() if 0 in one.env_ts}
    episode.add_env_reset(observations=first, infos={agent: history.info(agent, 0) for agent in first})
    for t in range(1, history.env_t + 1):
        seen = [agent for agent, one in agents.items() if t in one.env_ts]
        acted = [agent for agent, one in agents.items() if t - 1 in one.env_ts and not ends(one, t - 1)]
        over = t == history.env_t
        episode.add_env_step(
            observations={agent: history.observation(agent, t) for agent in seen},
            infos={agent: history.info(agent, t) for agent in seen},
            actions={agent: history.action(agent, t - 1) for agent in acted},
            extra_model_outputs={agent: history.extras(agent, t - 1) for agent in acted},
            rewards={agent: one.rewards[t] for agent, one in agents.items() if t in one.rewards},
            terminateds=flags(agents, seen, t, "terminated", over and history.terminated),
            truncateds=flags(agents, seen, t, "truncated", over and history.truncated),
        )
        if t in cuts:
            chunks.append(episode)
            episode = episode.cut(cuts[t])
    return [*chunks, episode]


def arguments(history: History, begin: int, lookback: int) -> dict[str, Any]:
    """Arguments of a constructor for a chunk of a history in which all act in all steps."""
    steps, agents = range(begin - lookback, history.env_t + 1), history.agents
    return {
        "id_": "e",
        "observations": [{agent: history.observation(agent, t) for agent in agents} for t in steps],
        "infos": [{agent: history.info(agent, t) for agent in agents} for t in steps],
        "actions": [{agent: history.action(agent, t) for agent in agents} for t in steps[:-1]],
        "rewards": [{agent: one.rewards[t + 1] for agent, one in agents.items()} for t in steps[:-1]],
        "extra_model_outputs": [{agent: history.extras(agent, t) for agent in agents} for t in steps[:-1]],
        "observation_space": OBS_SPACES,
        "action_space": ACTION_SPACES,
        "env_t_started": begin,
        "agent_t_started": dict.fromkeys(agents, begin),
        "len_lookback_buffer": lookback,
    }


def ends(one, t):
    return one.done and t == one.env_ts[-1]


def flags(agents, seen, t, name, everybody):
    own = {agent: True for agent in seen if ends(agents[agent], t) and getattr(agents[agent], name)}
    return {"__all__": True} if everybody else {**own, "__all__": False}


def as_returned(episode: RLlibEpisode) -> RLlibEpisode:
    """Without agents that have no transition, and without unanswered actions: ours are in the next chunk."""
    for agent, part in list(episode.agent_episodes.items()):
        if not len(part):
            del episode.agent_episodes[agent]
    episode._hanging_actions_end.clear()
    episode._hanging_extra_model_outputs_end.clear()
    episode._hanging_rewards_end.clear()
    return episode.to_numpy()


@st.composite
def pairs(draw, **options):
    """Draw a pair: RLlib's episode and ours."""
    # RLlib needs an agent at the reset, ends the episode as soon as all known agents have finished, and with
    # `__all__` mixes an agent's own flags with the env's: `stays` is without these.
    history = draw(histories(stays=True, **options))
    return as_returned(play(history)), make_chunk(history)


def equal(got, want):
    """Compare like `same`, but with RLlib's dicts in any order, and its scalars and lists of any type."""
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(equal(got[key], want[key]) for key in want)
    if isinstance(want, type) or isinstance(got, type):
        return got is want
    if isinstance(want, (list, tuple)) and not isinstance(got, np.ndarray):
        return len(got) == len(want) and all(map(equal, got, want))
    return same(got, want)


def answer(episode, what, *args, **kwargs):
    """Return the result of a getter, or the class of its error."""
    if what == "extra_model_outputs":
        args = ("x", *args)
    try:
        return getattr(episode, f"get_{what}")(*args, **kwargs)
    except Exception as error:
        return type(error)


def is_sane(indices, neg, fill, first, origin, end):
    """Return true if RLlib's result for these arguments is the one that it documents."""
    if isinstance(indices, slice):
        bounds = [b if b is None else b + (origin if b >= 0 or neg else end) for b in (indices.start, indices.stop)]
        start, stop = (origin if bounds[0] is None else bounds[0]), (end if bounds[1] is None else bounds[1])
        outside = [start < first, stop > end]
        if fill is None:
            return indices.step in (None, 1) or not any(outside)
        # It fills on one side only, fills where a slice is empty, and forgets the step.
        return start <= stop and not all(outside) and (indices.step in (None, 1) or not (any(outside) or stop < first))
    several = indices if isinstance(indices, list) else [indices]
    # An index before the lookback wraps around to the end.
    return not any(isinstance(index, int) and neg and index + origin < first for index in several)
