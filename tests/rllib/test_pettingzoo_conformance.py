"""PettingZoo's own loop, our adapters and RLlib's wrappers over the same env and actions issue the same ledger.

`PYTHONPATH=tests python tests/rllib/test_pettingzoo_conformance.py` prints a table: env by env, equal, or the reason.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from support.ledgers import of_aec_loop, of_parallel_loop, of_protocol
from support.optional import needed, params
from support.real_envs import KINDS
from support.real_envs import pytestmark as pytestmark

from fastmarl.core.envs.adapters import as_multi_agent_env

needed("pettingzoo")
from support.hostile_envs import PARALLEL, TURN_BASED  # noqa: E402

STEPS = 80

ENDS_ARE_ALL = "RLlib's wrapper ends when all terminateds are True, or all truncateds"
MIXED = f"{ENDS_ARE_ALL}; it never ends where both kinds of flags are needed to end all agents"
PARTIAL = f"{ENDS_ARE_ALL}, whoever is in them: it ends when those have ended that are named, or nobody is"
# Where RLlib's wrapper differs from ours, and why. Ours is PettingZoo's own loop there, unless OURS names the env.
RLLIB = {
    "terminated and truncated at once": MIXED,
    "keeps agents that end one by one": MIXED,
    "keeps agents, flags again and again": MIXED,
    "flags of agents that have left": MIXED,
    "agents that come later": MIXED,
    "__all__ in terminateds": "RLlib's wrapper overwrites __all__",
    "__all__ in truncateds": "RLlib's wrapper overwrites __all__",
    "empties agents without flags": "RLlib's wrapper does not look at agents",
    "flags of those that end only": PARTIAL,
    "the next generation": PARTIAL,
    "steps of nobody": PARTIAL,
    "the same dicts of flags": "RLlib's wrapper writes __all__ into the env's dict, and counts its own False later",
    "turns, terminated and truncated": MIXED,
    "turns, agents stay listed": "RLlib's wrapper is in an endless loop of turns of agents that have ended",
    "turns, tidies agents": "RLlib's wrapper loses the last rewards, flags and observations",
    "turns, tidies truncated agents": "RLlib's wrapper loses the last rewards, flags and observations",
    "turns, tidies all": "RLlib's wrapper loses rewards that are pending",
    "turns, removes an agent": "RLlib's wrapper loses the agent's last reward, flag and observation",
    "turns, removes all of an agent": "RLlib's wrapper loses the agent's pending reward",
    "turns, dead at reset": "RLlib's wrapper has an agent act that has ended",
    "turns, rewards at reset": "RLlib's wrapper loses rewards before the first turn",
    "turns, blind after the end": "RLlib's wrapper hands on None as the last observation",
}
NEVER_ENDS = "PettingZoo's loop never ends, as agents stay listed"
NO_LAST_TURN = "PettingZoo's loop gives agents no last turn that are removed without one"
# Where ours differs from PettingZoo's own loop, and why.
OURS = {
    "keeps agents, terminated": NEVER_ENDS,
    "keeps agents, truncated": NEVER_ENDS,
    "keeps agents that end one by one": NEVER_ENDS,
    "keeps agents, flags again and again": NEVER_ENDS,
    "__all__ in terminateds": "PettingZoo's loop does not know __all__",
    "__all__ in truncateds": "PettingZoo's loop does not know __all__",
    "empties agents without flags": "an end has flags in RLlib's protocol",
    "an agent that vanishes": "all agents have the flags of the episode's end in RLlib's protocol",
    "turns, agents stay listed": NEVER_ENDS,
    "turns, tidies agents": NO_LAST_TURN,
    "turns, tidies truncated agents": NO_LAST_TURN,
    "turns, tidies all": NO_LAST_TURN,
    "turns, removes an agent": NO_LAST_TURN,
    "turns, removes all of an agent": NO_LAST_TURN,
    "turns, dead at reset": "who never acts is left out",
}

# Modules and the options of their functions `env` and `parallel_env`.
REAL = {
    **{f"mpe2.{name}": {"max_cycles": 10} for name in (
        "simple_v3", "simple_adversary_v3", "simple_crypto_v3", "simple_push_v3", "simple_reference_v3",
        "simple_speaker_listener_v4", "simple_spread_v3", "simple_tag_v3", "simple_world_comm_v3",
    )},
    **{KINDS[kind][0]: KINDS[kind][1] for kind in (
        "pursuit", "multiwalker", "knights_archers_zombies", "pistonball", "cooperative_pong", "battle", "gather",
        "combined_arms", "adversarial_pursuit", "tictactoe", "connect_four", "chess", "go", "leduc_holdem",
        "texas_holdem_no_limit", "hanabi", "rps",
    )},
    "pettingzoo.classic.texas_holdem_v4": {},
    "magent2.tiger_deer_v4": {"map_size": 20, "max_cycles": 20},
}  # fmt: skip
TURNS_ONLY = {name for name in REAL if ".classic." in name and "rps" not in name}  # without a parallel_env()


def makers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name -> what makes an env of this name, of all that are compared."""
    yield from {**PARALLEL, **TURN_BASED}.items()
    for name, options in REAL.items():
        for function in ("env",) if name in TURNS_ONLY else ("parallel_env", "env"):
            yield f"{name}:{function}", _maker(name, function, options)


def _maker(name: str, function: str, options: dict) -> Callable[[], Any]:
    def make() -> Any:
        module = importlib.import_module(name.replace("magent2.", "magent2.environments."))
        return getattr(module, function)(**options)

    return make


MAKERS = dict(makers())


def compare(make: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Differences between our ledger and that of PettingZoo's own loop, and between RLlib's wrapper's and ours."""
    env = make()
    is_turn_based = hasattr(env, "agent_iter")
    env.reset()  # as RLlib's wrappers do when they are made
    theirs = (of_aec_loop if is_turn_based else of_parallel_loop)(env, STEPS)
    env = make()
    env.reset()
    ours = of_protocol(as_multi_agent_env(env), env, STEPS)
    env = make()
    try:
        rllibs = of_protocol((PettingZooEnv if is_turn_based else ParallelPettingZooEnv)(env), env, STEPS)
    except (KeyError, RuntimeError, ValueError) as error:
        return ours.differences(theirs), [f"raises {error!r:.60}"]
    return ours.differences(theirs), rllibs.differences(ours)


def package_of(name: str) -> str | None:
    return name.partition(".")[0] if ":" in name else "pettingzoo"


# They take long; others of their package, of the same protocol, take less.
LONG = ("pistonball", "cooperative_pong", "pursuit_v", "gather", "chess", "simple_world_comm", "combined_arms")
EXHAUSTIVE = {name for name in MAKERS if any(part in name for part in LONG)}


@pytest.mark.slow
@pytest.mark.parametrize("name", params(MAKERS, package_of, EXHAUSTIVE))
def test_ledgers_are_equal_except_for_named_differences(name):
    from_pettingzoo, from_rllib = compare(MAKERS[name])
    assert bool(from_pettingzoo) == (name in OURS), from_pettingzoo
    assert bool(from_rllib) == (name in RLLIB), from_rllib


def print_table() -> None:
    for name, make in MAKERS.items():
        for label, found, reasons in zip(("PettingZoo", "RLlib"), compare(make), (OURS, RLLIB), strict=True):
            reason = reasons.get(name, "NOT NAMED")
            sys.stdout.write(f"{name:62} {label:10} {f'differs: {reason}' if found else 'equal'}\n")


if __name__ == "__main__":
    print_table()
