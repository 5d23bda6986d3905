"""Real environments of every kind that is accepted."""

import importlib
import importlib.util
import pkgutil
import re

import gymnasium as gym
import pytest

from fastmarl.core.envs.openspiel import OpenSpielEnv
from fastmarl.testing import CountingEnv, TurnBasedEnv
from support import optional

# Box2D's wheels and PettingZoo's change of registries warn on import, a poker table when made, pong when reset.
pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*calling render method without:UserWarning"),
]


STEPS = 300


def vmas_balance(env_config):
    """One of the worlds that vmas simulates by the batch."""
    import vmas

    options = {"wrapper": "gymnasium", "terminated_truncated": True, "max_steps": 20, "seed": 0}
    return vmas.make_env("balance", num_envs=1, **options)


def newest(name):
    """The newest version that is installed: PettingZoo's releases have one version of an env, and not all the same."""
    package, _, stem = name.rpartition(".")
    if importlib.util.find_spec(package.split(".")[0]) is None:
        return f"{name}_v0"
    modules = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    versions = [int(found[1]) for module in modules if (found := re.fullmatch(rf"{stem}_v(\d+)", module))]
    return f"{name}_v{max(versions)}"


KINDS = {
    "counting": (lambda env_config: CountingEnv(3, 25), {}),
    "turn based": (lambda env_config: TurnBasedEnv(3, 25), {}),
    "simple_spread": ("mpe2.simple_spread_v3", {}),
    "simple_spread, continuous": ("mpe2.simple_spread_v3", {"continuous_actions": True}),
    "simple_speaker_listener": ("mpe2.simple_speaker_listener_v4", {}),
    "simple_tag": ("mpe2.simple_tag_v3", {}),
    "simple_crypto": ("mpe2.simple_crypto_v3", {}),
    "pistonball": ("pettingzoo.butterfly.pistonball_v6", {"n_pistons": 5}),
    "cooperative_pong": (newest("pettingzoo.butterfly.cooperative_pong"), {}),
    "pursuit": (newest("pettingzoo.sisl.pursuit"), {"x_size": 8, "y_size": 8, "n_pursuers": 4, "n_evaders": 3}),
    "multiwalker": ("pettingzoo.sisl.multiwalker_v9", {"terminate_on_fall": False, "remove_on_fall": True}),
    "knights_archers_zombies": (newest("pettingzoo.butterfly.knights_archers_zombies"), {}),
    "battle": ("magent2.battle_v4", {"map_size": 20, "max_cycles": 60}),
    "gather": ("magent2.gather_v5", {"max_cycles": 20}),
    "combined_arms": ("magent2.combined_arms_v6", {"map_size": 16, "max_cycles": 60}),
    "adversarial_pursuit": ("magent2.adversarial_pursuit_v4", {"map_size": 20, "max_cycles": 60}),
    "tictactoe": ("pettingzoo.classic.tictactoe_v3", {}),
    "connect_four": ("pettingzoo.classic.connect_four_v3", {}),
    "chess": ("pettingzoo.classic.chess_v6", {}),
    "go": ("pettingzoo.classic.go_v5", {"board_size": 5}),
    "leduc_holdem": ("pettingzoo.classic.leduc_holdem_v4", {}),
    "texas_holdem_no_limit": ("pettingzoo.classic.texas_holdem_no_limit_v6", {}),
    "hanabi": ("pettingzoo.classic.hanabi_v5", {}),
    "kuhn_poker": (lambda env_config: OpenSpielEnv.load("kuhn_poker", players=3), {}),
    "goofspiel": (lambda env_config: OpenSpielEnv.load("goofspiel", num_cards=5), {}),
    "tic_tac_toe": (lambda env_config: OpenSpielEnv.load("tic_tac_toe"), {}),
    "liars_dice": (lambda env_config: OpenSpielEnv.load("liars_dice"), {}),
    "markov_soccer": (lambda env_config: OpenSpielEnv.load("markov_soccer"), {}),
    "vmas": (vmas_balance, {}),
    "lbforaging": ("lbforaging:Foraging-8x8-2p-3f-v3", {}),
    "rware": ("rware:rware-tiny-2ag-v2", {"max_steps": 100}),
    "multigrid": ("multigrid.envs:MultiGrid-Empty-8x8-v0", {"agents": 2, "max_steps": 50}),
    "rps": ("pettingzoo.classic.rps_v2", {}),
}


if tuple(map(int, gym.__version__.split(".")[:2])) >= (1, 2):  # gymnasium-robotics that knows it asks for this
    options = {"scenario": "Ant", "agent_conf": "2x4", "max_episode_steps": 60}
    KINDS["mamujoco"] = ("gymnasium_robotics.mamujoco_v1", options)

# These take long.
FEWER_STEPS = {"gather": 40, "pistonball": 150, "cooperative_pong": 150, "vmas": 60, "multigrid": 150}
# Others of their package, of the same protocol, take less.
EXHAUSTIVE = {
    "pistonball", "cooperative_pong", "pursuit", "gather", "combined_arms", "adversarial_pursuit", "simple_crypto",
    "simple_speaker_listener", "chess", "go", "texas_holdem_no_limit", "tic_tac_toe", "liars_dice",
}  # fmt: skip
MORE_STEPS = dict.fromkeys(EXHAUSTIVE, 800)  # a random game of chess takes hundreds of moves


def steps_of(kind, steps):
    """How long to play an env of that kind."""
    return min(steps, FEWER_STEPS.get(kind, steps))


def package_of(kind):
    """The optional package that an env of that kind comes from; None: it is our own."""
    env = KINDS[kind][0]
    if kind == "multiwalker":
        return "Box2D"  # of PettingZoo's extra sisl, without a wheel for Python 3.14
    if isinstance(env, str):
        return re.split("[.:]", env)[0]
    return {"counting": None, "turn based": None, "vmas": "vmas"}.get(kind, "pyspiel")


def params(kinds):
    return optional.params(kinds, package_of, EXHAUSTIVE)
