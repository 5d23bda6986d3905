"""Members and arguments of both episode classes: the same calls of RLlib's class and of ours, with the same answers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibMultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibSingleAgentEpisode

from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode
from support.api_tables import Rows, parameters_of, plain
from support.rllib_api.calls import NEEDED, make, make_open, needed, tried
from support.rllib_api.members import check_added, check_parameter, members_of

CLASSES = {MultiAgentEpisode: RLlibMultiAgentEpisode, SingleAgentEpisode: RLlibSingleAgentEpisode}
# RLlib's episodes of arrays don't grow, and pack infos that are filled into arrays.
OF_LISTS = ("add_env_reset", "add_env_step", "cut", "concat_episode", "get_infos")
DEPRECATED = ("add_temporary_timestep_data", "get_temporary_timestep_data")  # in RLlib they do nothing but raise
LOST = ("infos", "agent_id", "module_id", "multi_agent_episode_id")
LOST_BY = ("slice", "__getitem__", "cut")  # RLlib's lose what `without_lost` takes away
RAISING = {  # where RLlib's raises -> the answer
    (RLlibMultiAgentEpisode, "get_extra_model_outputs(env_steps)"): {"a": 10.0, "b": 10.0},
    (RLlibMultiAgentEpisode, "get_extra_model_outputs(fill)"): {"a": [4.0, 7.0], "b": [4.0, 7.0]},
}
OWN_FORM = ("__repr__", "get_duration_s")  # texts and times are each class's own


def rows() -> Rows:
    """Members of RLlib's classes, each method followed by its arguments."""
    for ours, theirs in CLASSES.items():
        for name in members_of(theirs):
            yield f"{theirs.__name__}: {name}", partial(check_member, ours, theirs, name)
            member = getattr(theirs, name)
            for argument in parameters_of(member) if callable(member) else ():
                check = partial(check_argument, ours, theirs, name, argument)
                yield f"{theirs.__name__}: {name}({argument})", check


def check_member(ours: Any, theirs: Any, name: str) -> None:
    """Raise unless it is of the same kind, and answers alike."""
    want, got = getattr(theirs, name), getattr(ours, name)
    assert callable(got) == callable(want)
    if name in DEPRECATED:
        check_deprecated(ours, theirs, name)
    elif callable(want):
        check_added(want, got)
        compare(ours, theirs, name)
    else:
        # RLlib's are of lists, or of arrays as ours.
        one, other = make(ours), make(theirs).to_numpy()
        assert plain(getattr(one, name)) == plain(getattr(other, name))


def check_argument(ours: Any, theirs: Any, name: str, argument: str) -> None:
    """Raise unless it is taken, by the same default, and answers with it are alike."""
    check_parameter(getattr(theirs, name), getattr(ours, name), argument)
    expected = RAISING.get((theirs, f"{name}({argument})"))
    if expected is None:
        compare(ours, theirs, name, argument)
    else:
        assert raises(lambda: answer(make_open(theirs), name, argument))
        assert answer(make_open(ours), name, argument) == expected


def compare(ours: Any, theirs: Any, name: str, argument: str | None = None) -> None:
    """Raise AssertionError unless both classes answer a call alike, and are alike afterwards."""
    if name == "__init__":
        names = (*NEEDED, argument) if argument else NEEDED
        assert plain(make(ours, *names)) == plain(make(theirs, *names))
        return
    answers, episodes = [], []
    for cls in (ours, theirs):
        episode = cls("e") if name == "add_env_reset" else make_open(cls)
        if cls is theirs and name not in OF_LISTS:
            episode.to_numpy()
        answers.append(answer(episode, name, argument))
        episodes.append(plain(episode))
    assert answers[0] == answers[1]
    assert episodes[0] == episodes[1]


def answer(episode: Any, name: str, argument: str | None) -> Any:
    """Call a method, and return its answer in plain form."""
    if name in ("get_state", "from_state"):  # states have a form of their own, and tell the same
        return plain(type(episode).from_state(episode.get_state()))
    arguments = needed(episode, name) | (tried(episode, name, argument) if argument else {})
    assert argument is None or argument in arguments
    found = getattr(episode, name)(**arguments)
    if name in LOST_BY:
        return without_lost(plain(found))
    if name == "get_sample_batch":
        return without_ids(plain(found))
    return type(found) if name in OWN_FORM else plain(found)


def without_ids(batch: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is random in RLlib's batches."""
    batch.pop("eps_id", None)
    return {name: without_ids(part) if isinstance(part, dict) else part for name, part in batch.items()}


def without_lost(episode: dict[str, Any]) -> dict[str, Any]:
    """Leave out what RLlib loses when it slices or cuts: infos, whose steps they are, and empty columns."""
    if "agent_episodes" in episode:
        parts = {agent: without_lost(part) for agent, part in episode["agent_episodes"].items()}
        return {**episode, "agent_episodes": parts}
    kept = {name: value for name, value in episode.items() if name not in LOST}
    outputs = {key: column for key, column in kept["extra_model_outputs"].items() if column[0]}
    return {**kept, "extra_model_outputs": outputs}


def check_deprecated(ours: Any, theirs: Any, name: str) -> None:
    """Raise unless ours does as RLlib's did up to Ray 2.45, and RLlib's of today does nothing but raise."""
    episode = make(ours)
    episode.add_temporary_timestep_data("x", 1)
    assert episode.get_temporary_timestep_data("x") == [1]
    for arguments in (("x",), ("x", 1)):
        assert raises(lambda arguments=arguments: getattr(theirs(), name)(*arguments))


def raises(function: Callable[[], Any]) -> bool:
    """Return whether it raises an error: RLlib's does where ours answers."""
    try:
        function()
    except (AttributeError, TypeError, ValueError):
        return True
    return False
