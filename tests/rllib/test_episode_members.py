"""Every public member of RLlib's episodes is one of ours, with the same parameters."""

import inspect

import pytest
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibMultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibSingleAgentEpisode

from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode

CLASSES = {MultiAgentEpisode: RLlibMultiAgentEpisode, SingleAgentEpisode: RLlibSingleAgentEpisode}
OTHERWISE = {
    "add_temporary_timestep_data": "RLlib's raises with any arguments; ours has those that it had before",
    "get_temporary_timestep_data": "the same",
}


def members(cls):
    special = {"__getitem__", "__init__", "__len__", "__repr__"}
    return [name for name in dir(cls) if not name.startswith("_") or name in special]


CASES = [(ours, name) for ours, theirs in CLASSES.items() for name in members(theirs)]


@pytest.mark.parametrize(("cls", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_it_is_there_with_the_same_parameters(cls, name):
    theirs, ours = getattr(CLASSES[cls], name), getattr(cls, name)
    assert callable(ours) == callable(theirs)
    if callable(theirs) and name not in OTHERWISE:
        known = inspect.signature(ours).parameters
        for parameter in inspect.signature(theirs).parameters.values():
            own = known[parameter.name]
            assert own.kind == parameter.kind
            if parameter.default is not inspect.Parameter.empty:
                assert own.default == parameter.default
        added = [known[each] for each in known.keys() - inspect.signature(theirs).parameters.keys()]
        assert all(each.default is not inspect.Parameter.empty for each in added)


@pytest.mark.parametrize("name", OTHERWISE)
@pytest.mark.parametrize("theirs", CLASSES.values())
def test_the_exceptions_are_methods_that_raise_in_rllib(theirs, name):
    for arguments in (("x",), ("x", 1)):
        with pytest.raises((TypeError, ValueError)):
            getattr(theirs(), name)(*arguments)
