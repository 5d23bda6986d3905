"""Adapters of PettingZoo's envs invent no end, miss none, and lose nothing: against PettingZoo's own loop."""

import pytest
from support.ledgers import of_aec_loop, of_parallel_loop, of_protocol
from support.optional import needed

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.errors import EnvCheckError
from fastmarl.testing import check_env

needed("pettingzoo")
from support.hostile_envs import PARALLEL, TURN_BASED, Frame, Framed, Turns  # noqa: E402

pytestmark = pytest.mark.needs("pettingzoo")

STEPS = 12

# Where PettingZoo's own loop has another ledger, why, and what is right: agent -> (reward, how and when it ended).
NAMED = {
    "keeps agents, terminated": (
        "PettingZoo's loop never ends",
        {"a": (27.25, "terminated", 2), "b": (27.5, "terminated", 2)},
    ),
    "keeps agents, truncated": (
        "PettingZoo's loop never ends",
        {"a": (27.25, "truncated", 2), "b": (27.5, "truncated", 2)},
    ),
    "keeps agents that end one by one": (
        "PettingZoo's loop never ends",
        {"a": (13.125, "terminated", 1), "b": (42.75, "truncated", 3)},
    ),
    "keeps agents, flags again and again": (
        "PettingZoo's loop never ends",
        {"a": (13.125, "terminated", 1), "b": (42.75, "truncated", 3)},
    ),
    "__all__ in terminateds": (
        "PettingZoo does not know __all__",
        {"a": (27.25, "terminated", 2), "b": (27.5, "terminated", 2)},
    ),
    "__all__ in truncateds": (
        "PettingZoo does not know __all__",
        {"a": (27.25, "truncated", 2), "b": (27.5, "truncated", 2)},
    ),
    "empties agents without flags": (
        "an end has flags in RLlib's protocol",
        {"a": (27.25, "terminated", 2), "b": (27.5, "terminated", 2)},
    ),
    "an agent that vanishes": (
        "all agents have the flags of the episode's end in RLlib's protocol",
        {"a": (13.125, "terminated", 3), "b": (42.75, "terminated", 3)},
    ),
    "turns, agents stay listed": (
        "PettingZoo's loop never ends",
        {"a": (65.5, "terminated", 7), "b": (44.75, "terminated", 4), "c": (62.5, "terminated", 7)},
    ),
    "turns, tidies agents": (
        "PettingZoo's loop ends without the last turns",
        {"a": (64.5, "terminated", 7), "b": (82.25, "terminated", 7), "c": (80.875, "terminated", 7)},
    ),
    "turns, tidies truncated agents": (
        "PettingZoo's loop ends without the last turns",
        {"a": (64.5, "truncated", 7), "b": (82.25, "truncated", 7), "c": (80.875, "truncated", 7)},
    ),
    "turns, tidies all": (
        "PettingZoo's loop ends without the last turns; what the last action paid is nowhere any more",
        {"a": (64.5, "terminated", 7), "b": (63.0, "terminated", 7), "c": (61.5, "terminated", 7)},
    ),
    "turns, removes an agent": (
        "PettingZoo's loop gives the agent no last turn",
        {"a": (65.5, "terminated", 7), "b": (44.75, "terminated", 4), "c": (62.5, "terminated", 7)},
    ),
    "turns, removes all of an agent": (
        "PettingZoo's loop gives the agent no last turn, and its flag is nowhere",
        {"a": (65.5, "terminated", 7), "b": (28.5, "terminated", 7), "c": (62.5, "terminated", 7)},
    ),
    "turns, dead at reset": (
        "who never acts is left out",
        {"b": (48.75, "terminated", 7), "c": (65.5, "terminated", 7)},
    ),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_envs_issue_the_same_as_pettingzoos_loop(name):
    env = PARALLEL[name]()
    ours, theirs = of_protocol(as_multi_agent_env(env), env, STEPS), of_parallel_loop(PARALLEL[name](), STEPS)
    assert ours.is_over
    _compare(name, ours, theirs)


@pytest.mark.parametrize("name", TURN_BASED)
def test_turn_based_envs_issue_the_same_as_pettingzoos_loop(name):
    env = TURN_BASED[name]()
    ours, theirs = of_protocol(as_multi_agent_env(env), env, STEPS), of_aec_loop(TURN_BASED[name](), STEPS)
    assert ours.is_over
    _compare(name, ours, theirs)


def _compare(name, ours, theirs):
    differences = ours.differences(theirs)
    if name not in NAMED:
        assert not differences
        return
    reason, expected = NAMED[name]
    assert differences, f"drop it from NAMED: {reason}"
    assert {agent: (entry.reward, entry.end, entry.ended_at) for agent, entry in ours.agents.items()} == expected


@pytest.mark.parametrize("make", [*PARALLEL.values(), *TURN_BASED.values()], ids=[*PARALLEL, *TURN_BASED])
def test_a_runner_records_all_issued_values(make):
    env = make()
    issued = of_protocol(as_multi_agent_env(env), env, STEPS)
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: make(), late_rewards="drop", model_config={"fcnet_hiddens": []}, policies={"p": None}
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        episode, *_ = runner.sample(num_timesteps=issued.steps)
    assert (len(episode), episode.is_done) == (issued.steps, True)
    for agent, entry in issued.agents.items():
        if not entry.actions:  # it never acted, so it has no trajectory
            assert agent not in episode.agent_episodes
            continue
        recorded = episode.agent_episodes[agent]
        assert (len(recorded), recorded.get_return()) == (entry.actions, entry.reward)
        assert recorded.get_observations(-1).tolist() == entry.observation.tolist()
        assert (recorded.is_terminated, recorded.is_truncated) == (entry.end == "terminated", entry.end == "truncated")


def test_an_agent_that_is_observed_after_its_flag_takes_part_again():
    """Else its end would count as one of the two that end the episode."""
    again, over = Frame("ab"), Frame("ab", "", "ab")
    env = as_multi_agent_env(Framed(Frame("ab"), Frame("ab", "a"), again, Frame("ab", "b", obs="ab"), again, over))
    env.reset()
    ends = [env.step({})[2:4] for _ in range(5)]
    assert [(terminateds["__all__"], truncateds.get("__all__", False)) for terminateds, truncateds in ends] == [
        *[(False, False)] * 4,
        (False, True),
    ]


def test_an_env_that_says_it_goes_on_does_so_without_living_agents():
    """As RLlib's envs do between two generations."""
    frames = Frame("ab"), Frame("ab", "ab", end=(False, False)), Frame("ab", end=(True, False))
    env = as_multi_agent_env(Framed(*frames))
    env.reset()
    assert [env.step({})[2]["__all__"] for _ in range(2)] == [False, True]


def test_the_state_has_the_agents_that_have_ended():
    class Saved(Framed):
        supports_checkpoint = True

        def get_state(self):
            return {"t": self.t, "agents": list(self.agents)}

        def set_state(self, state):
            self.t, self.agents = state["t"], list(state["agents"])

    frames = Frame("ab"), Frame("ab", "a"), Frame("ab", "", "b", obs="b")
    first, second = (as_multi_agent_env(Saved(*frames)) for _ in range(2))
    first.reset()
    first.step({})
    second.reset()
    second.set_state(first.get_state())
    assert second.step({})[2:4] == (
        {"a": False, "b": False, "__all__": False},
        {"a": False, "b": True, "__all__": True},
    )


def test_turns_of_the_dead_alone_are_an_error():
    class Stuck(Turns):
        """Has a turn of a, which has ended, again and again."""

        def after_turn(self):
            self.agent_selection = "a"
            self.terminations["a"] = True

        def take_dead_turn(self, action):
            pass

    env = as_multi_agent_env(Stuck())
    env.reset()
    with pytest.raises(EnvCheckError, match=r"turns only to finished agents, \['a'\] of \['a', 'b', 'c'\]; set"):
        env.step({"a": 0})


def test_a_reset_without_an_agent_to_act_is_an_error():
    class Over(Turns):
        length = 0

        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.end()

    with pytest.raises(EnvCheckError, match=r"expected at least one agent that can act after reset\(\) of turns"):
        as_multi_agent_env(Over()).reset()


REMOVED, LISTED = "was removed from `agents` before its last turn", "is still in `agents` after its flag was True"
NOTES = {
    "keeps agents, terminated": LISTED,
    "keeps agents, truncated": LISTED,
    "keeps agents that end one by one": LISTED,
    "keeps agents, flags again and again": LISTED,
    "__all__ in terminateds": "'__all__' ended the episode",
    "__all__ in truncateds": "'__all__' ended the episode",
    "empties agents without flags": "was removed from `agents` without a flag",
    "an agent that vanishes": "was removed from `agents` without a flag",
    "turns, agents stay listed": LISTED,
    "turns, tidies agents": REMOVED,
    "turns, tidies truncated agents": REMOVED,
    "turns, tidies all": REMOVED,
    "turns, removes an agent": REMOVED,
    "turns, removes all of an agent": REMOVED,
}


@pytest.mark.parametrize("make", [*PARALLEL.values(), *TURN_BASED.values()], ids=[*PARALLEL, *TURN_BASED])
def test_check_env_notes_ends_that_pettingzoos_loop_does_not_see(request, make):
    text = NOTES.get(request.node.callspec.id, "")
    report = check_env(make(), steps=30, late_rewards="drop")
    notes = [note.text for note in report.notes if note.kind == "agents"]
    assert bool(notes) == bool(text), str(report)
    assert all(note.startswith(text) for note in notes), str(report)
