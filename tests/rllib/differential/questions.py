"""All that episodes can be asked: what two of them answer must be equal, errors included.

Three comparisons are made of RLlib's chunk and ours. RLlib's methods on both, and our methods on both, show that what
is stored differently answers the same. RLlib's methods on theirs against our methods on ours is for first chunks, in
which RLlib's getters are right (where they don't raise).
"""

import contextlib
import copy
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from fastmarl.rllib.episodes import MultiAgentEpisode as OurEpisode

Question = tuple[str, Callable[[Any], Any]]
"""What is asked, and how."""
COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")
OF_SPACES = ("observations", "actions")  # what can be had one-hot
MOST_PARTS = 2  # agents of a chunk that are asked
N_QUESTIONS = 8  # random ones about columns
CORRECTED = ("get_truncateds()",)  # 12
CLOCK_AND_IDS = ("_start_time", "_last_step_time", "id_", "multi_agent_episode_id", "eps_id")
RAISED = "raised"


def differences(
    want: MultiAgentEpisode, got: OurEpisode, compare: Callable[..., Iterator[str]], path: str
) -> Iterator[str]:
    """Yield the differences between the answers of RLlib's chunk and ours.

    Args:
        compare: called with two answers and their path.
    """
    rng = random.Random(repr((path, want.env_t_started, want.env_t, want.get_return())))
    agents = [*want.observation_space]
    asked = [*_of_episodes(rng, agents), *_of_columns(rng, agents)]
    answers: dict[str, list[tuple]] = {"RLlib's": [], "our": []}  # kind -> of each question, (theirs, ours)
    for kind, asked_class in (("RLlib's", MultiAgentEpisode), ("our", type(got))):
        for text, ask in asked:
            theirs, ours = (_answer(ask, _as_kind(asked_class, episode)) for episode in (want, got))
            yield from compare(theirs, ours, f"{path}, {kind} {text}")
            answers[kind].append((theirs, ours))
    if not want.env_t_started and type(want) is MultiAgentEpisode:
        for (text, _), (theirs, _), (_, ours) in zip(asked, answers["RLlib's"], answers["our"], strict=True):
            if theirs[0] != RAISED and text not in CORRECTED:
                yield from compare(theirs, ours, f"{path}.{text}")
    for agent in list(want.agent_episodes)[:MOST_PARTS]:
        if agent in got.agent_episodes:
            of_part = [*_of_parts(rng), *_of_columns(rng, None)]
            for text, ask in of_part:
                answers = [_answer(ask, _part(episode, agent)) for episode in (want, got)]
                yield from compare(*answers, f"{path}[{agent!r}].{text}")


def _answer(ask: Callable[[Any], Any], episode: Any) -> tuple:
    """Return the function's result, or the error that it raises."""
    try:
        return ("answered", ask(episode))
    except Exception as error:  # whatever it is, it must be the same
        return (RAISED, type(error).__name__, _text(error))


def _text(error: Exception) -> str:
    """An error may name an episode's column, whose own text RLlib can't make if it is nested."""
    try:
        return str(error)
    except Exception as again:
        return f"no text, as that raises {type(again).__name__}"


def _as_kind(kind: type, episode: Any) -> Any:
    """An episode of this class with the same data, which may be changed; the agents' parts are shared."""
    same: Any = object.__new__(kind)
    for name in MultiAgentEpisode.__slots__:
        value = getattr(episode, name)
        setattr(same, name, copy.copy(value) if isinstance(value, dict) else value)
    if kind is MultiAgentEpisode:  # 61; our own class is shown them
        for agent in same._hanging_rewards_end.keys() - same._hanging_actions_end.keys():
            del same._hanging_rewards_end[agent]
    return same


def _part(episode: Any, agent: Any) -> SingleAgentEpisode:
    return copy.copy(episode.agent_episodes[agent])


def _of_episodes(rng: random.Random, agents: list) -> Iterator[Question]:
    """Questions without columns to a MultiAgentEpisode."""
    for name in ("get_terminateds", "get_truncateds", "get_return", "get_agents_to_act", "get_agents_that_stepped"):
        yield f"{name}()", lambda episode, name=name: getattr(episode, name)()
    for name in ("env_steps", "agent_steps", "__len__", "validate"):
        yield f"{name}()", lambda episode, name=name: getattr(episode, name)()
    for name in ("is_reset", "is_numpy", "is_done", "agent_ids", "custom_data"):
        yield name, lambda episode, name=name: getattr(episode, name)
    yield "agent_episode_ids", lambda episode: [*episode.agent_episode_ids]
    yield "print()", _printed
    yield "get_sample_batch()", _batch
    for agent in [*agents, "nobody"]:
        yield f"module_for({agent!r})", lambda episode, agent=agent: episode.module_for(agent)
    yield "mapping function", lambda episode: [episode.agent_to_module_mapping_fn(agent, episode) for agent in agents]
    where = slice(*(rng.choice((None, *range(-4, 5))) for _ in range(2)))
    lookback = rng.choice((None, 0, 1, 3))
    yield f"slice({where}, {lookback})", lambda episode: episode.slice(where, len_lookback_buffer=lookback)
    back = rng.choice((0, 1, 2))
    slow: tuple[Question, ...] = (
        (f"cut({back})", lambda episode: copy.deepcopy(episode).cut(back)),
        ("deepcopy", copy.deepcopy),
        ("from_state(get_state())", lambda episode: type(episode).from_state(episode.get_state())),
    )
    yield rng.choice(slow)


def _of_parts(rng: random.Random) -> Iterator[Question]:
    """Questions without columns to a SingleAgentEpisode."""
    for name in ("get_return", "env_steps", "agent_steps", "__len__", "validate", "get_data_dict", "get_state"):
        yield f"{name}()", lambda part, name=name: _plain(getattr(part, name)())
    for name in ("is_reset", "is_numpy", "is_done", "custom_data", "observation_space", "action_space"):
        yield name, lambda part, name=name: getattr(part, name)
    yield "get_sample_batch()", lambda part: _plain(part.get_sample_batch())
    where = slice(*(rng.choice((None, *range(-4, 5))) for _ in range(2)))
    lookback = rng.choice((None, 0, 1, 3))
    yield f"slice({where}, {lookback})", lambda part: part.slice(where, len_lookback_buffer=lookback)
    back = rng.choice((0, 1, 2))
    yield f"cut({back})", lambda part: part.cut(back)
    yield "deepcopy", copy.deepcopy


def _of_columns(rng: random.Random, agents: list | None) -> Iterator[Question]:
    """Random questions about columns; without `agents` to a SingleAgentEpisode."""
    for _ in range(N_QUESTIONS):
        what = rng.choice(COLUMNS)
        arguments: dict[str, Any] = {"indices": _indices(rng)}
        if what == "extra_model_outputs":
            keys = ("action_logp", "action_dist_inputs", "weights_seq_no", "features", "state_out", "nothing")
            arguments["key"] = rng.choice((None, *keys) if agents is not None else keys)
        if rng.random() < 0.3:
            arguments["neg_index_as_lookback"] = True
        if rng.random() < 0.4:
            arguments["fill"] = rng.choice((0, 0.0, -1.5))
        if what in OF_SPACES and rng.random() < 0.3:
            arguments["one_hot_discrete"] = True
        if agents is not None:
            arguments["agent_ids"] = rng.choice((None, None, agents[0], agents[-1:], agents[:2], ["nobody"]))
            arguments["env_steps"] = rng.random() < 0.7
            arguments["return_list"] = rng.random() < 0.3
        text = f"get_{what}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
        yield text, lambda thing, what=what, arguments=arguments: getattr(thing, f"get_{what}")(**arguments)


def _indices(rng: random.Random) -> Any:
    bounds = (None, *range(-6, 7))
    return rng.choice(
        (
            None,
            rng.randint(-6, 6),
            [rng.randint(-6, 6) for _ in range(rng.randint(0, 3))],
            slice(rng.choice(bounds), rng.choice(bounds)),
            slice(rng.choice(bounds), rng.choice(bounds), rng.choice((1, 2, -1))),
        )
    )


def _printed(episode: Any) -> list[str]:
    """The lines, but for those of agents that ended before the chunk (54)."""
    out = io.StringIO()
    for agent in [agent for agent in episode.env_t_to_agent_t if agent not in episode.agent_episodes]:
        del episode.env_t_to_agent_t[agent]
    with contextlib.redirect_stdout(out):
        episode.print()
    return sorted(out.getvalue().splitlines())


def _batch(episode: Any) -> Any:
    batch = episode.get_sample_batch()
    return batch.env_steps(), {agent: _plain(part) for agent, part in batch.policy_batches.items()}


def _plain(answer: Any) -> Any:
    """A dict without clock and ids."""
    if isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name not in CLOCK_AND_IDS}
    return answer
