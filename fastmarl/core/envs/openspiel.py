"""Adapter for OpenSpiel games."""

from __future__ import annotations

import difflib
import operator
import sys
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.objects.public import public

TENSORS = ("observation_tensor", "information_state_tensor")  # the first one that a game provides is used
CHANCE, SIMULTANEOUS, TERMINAL = -1, -2, -4  # pyspiel.PlayerId: values of current_player() that are not players
NO_ACTION = 0  # pyspiel expects this for a player without legal actions at a simultaneous node


@public("fastmarl.envs")
class OpenSpielEnv(MultiAgentEnv):
    """Adapts an OpenSpiel game; each step is one move. The player to move is observed and acts in the next step.

    At a simultaneous node, all players with a legal action move. The adapter samples chance events. At the end, every
    player is observed once more, with no legal actions.

    Agents are 0, ..., n - 1 and have equal spaces. An observation is a dict of "observation", float32 [tensor size],
    and "action_mask", int8 [game.num_distinct_actions()], which is 1 for legal actions. An action is an index.

    The reward of a player is the change in its return due to a move and the chance events that follow it. Waiting
    players also receive rewards; if no return changes, rewards are {}. In games that score only at the end, rewards
    equal the returns exactly.

    `reset(seed=)` seeds the chance events that the adapter samples. It does not affect games that sample internally
    (chance mode SAMPLED_STOCHASTIC); most of these accept a parameter rng_seed.

    Args:
        game: A pyspiel.Game; see `load`.
        observation: "observation_tensor" or "information_state_tensor"; None for the first one that the game provides.

    Attributes:
        game: The pyspiel.Game.
        game_state: The current pyspiel.State; None before the first reset().

    Raises:
        EnvCheckError: If the game is a mean field game, does not number its actions, or does not provide the requested
            tensor.
    """

    def __init__(self, game: Any, observation: str | None = None):
        _check_is_playable(game)
        self.game = game
        self.game_state: Any = None
        self.metadata = {"name": str(game)}
        self.possible_agents: list[int] = list(range(game.num_players()))
        self.agents = self.possible_agents
        self._observer = _make_observer(game, observation)
        self._is_python = hasattr(game, "make_py_observer")
        self._n_actions = n_actions = game.num_distinct_actions()
        tensor_space = gym.spaces.Box(-np.inf, np.inf, (self._observer.tensor.size,), np.float32)
        mask_space = gym.spaces.Box(0, 1, (n_actions,), np.int8)
        space = gym.spaces.Dict({"observation": tensor_space, "action_mask": mask_space})
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = {agent: gym.spaces.Discrete(n_actions) for agent in self.possible_agents}
        self._former_returns: list[float] = []  # returns [n_players] already converted to rewards
        self._legal: dict[int, list[int]] = {}  # legal actions of the players who act next
        self._rng: np.random.Generator | None = None

    @classmethod
    def load(cls, name: str, *, observation: str | None = None, **parameters: Any) -> OpenSpielEnv:
        """Create an env from the name of a game: `load("goofspiel", players=3)` or `load("goofspiel(players=3)")`.

        Args:
            name: Name of the game; may include parameters if none are passed separately.
            observation: See the class.
            parameters: Parameters of the game: bool, int, float or str, or a dict with a "name" for a nested game.

        Raises:
            EnvCheckError: If OpenSpiel is not installed or does not know the name or a parameter; see also the class.
        """
        try:
            pyspiel = import_module("pyspiel")
        except ImportError as error:
            raise EnvCheckError(f"the game {name!r} needs OpenSpiel: pip install open-spiel ({error})") from error
        names, without_parameters = pyspiel.registered_names(), name.partition("(")[0]
        if without_parameters not in names:  # the error raised by OpenSpiel would list all of them
            close = difflib.get_close_matches(without_parameters, names)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise EnvCheckError(f"OpenSpiel cannot load the game {name!r}: Unknown game '{name}'.{hint}")
        try:
            game = pyspiel.load_game(name, parameters) if parameters else pyspiel.load_game(name)
        except pyspiel.SpielError as error:
            raise EnvCheckError(f"OpenSpiel cannot load the game {name!r}: {error}") from error
        return cls(game, observation)

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` is an OpenSpiel game; False if pyspiel has not been imported."""
        pyspiel = sys.modules.get("pyspiel")
        return pyspiel is not None and isinstance(env, pyspiel.Game)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.game})"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if self._rng is None or seed is not None:
            self._rng = np.random.default_rng(seed)
        self.game_state = self.game.new_initial_state()
        self._former_returns = [0.0] * len(self.possible_agents)
        return self._observations(self._next_player()), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Make the move of the players observed last; see MultiAgentEnv.

        Args:
            actions: Player -> index of a legal action; actions of other players are ignored.

        Raises:
            ValueError: If an action is missing or illegal, or the episode is over; the game is then unchanged.
        """
        self._check(actions)
        if self.game_state.current_player() == SIMULTANEOUS:
            legal = self._legal
            self.game_state.apply_actions([actions[p] if p in legal else NO_ACTION for p in self.possible_agents])
        else:
            (player,) = self._legal
            self.game_state.apply_action(actions[player])
        player = self._next_player()
        return self._observations(player), self._rewards(), {"__all__": player == TERMINAL}, {}, {}

    def _check(self, actions: dict) -> None:
        if not self._legal:
            raise ValueError("no player can move: the episode is over or has not started; call reset()")
        for player, legal in self._legal.items():
            if actions.get(player) not in legal:
                raise ValueError(f"expected a legal action of player {player}, one of {legal!s:.200}, got "
                                 f"{actions.get(player)!r:.200}; see action_mask in its observation")  # fmt: skip

    def _next_player(self) -> int:
        """Play out chance events; return the next player to move, SIMULTANEOUS or TERMINAL."""
        state = self.game_state
        while (player := state.current_player()) == CHANCE:
            state.apply_action(self._draw(state.chance_outcomes()))
        return player

    def _draw(self, outcomes: list[tuple[int, float]]) -> int:
        """Sample an outcome from pairs (outcome, probability > 0) whose probabilities sum to 1 up to rounding."""
        assert self._rng is not None
        left = self._rng.random()
        for outcome, probability in outcomes:
            left -= probability
            if left < 0:
                return outcome
        return outcomes[-1][0]

    def _rewards(self) -> dict[int, float]:
        """Return the reward of each player since the last call; {} if no return changed.

        State.rewards() only covers the last transition, so it would miss the reward of a move followed by a chance
        event.
        """
        returns = self.game_state.returns()
        if returns == self._former_returns:
            return {}
        rewards = dict(enumerate(map(operator.sub, returns, self._former_returns)))
        self._former_returns = returns
        return rewards

    def _observations(self, player: int) -> dict[int, dict[str, np.ndarray]]:
        """Observe the players to move and store their legal actions; at the end, observe all players."""
        state = self.game_state
        if player >= 0:
            legal = state.legal_actions()
            self._legal = {player: legal}
            return {player: self._observation(player, legal)}
        if player == TERMINAL:
            self._legal = {}
            return {p: self._observation(p, []) for p in self.possible_agents}
        self._legal = {p: legal for p in self.possible_agents if (legal := state.legal_actions(p))}
        return {p: self._observation(p, legal) for p, legal in self._legal.items()}

    def _observation(self, player: int, legal: list[int]) -> dict[str, np.ndarray]:
        if self._is_python:  # some observers of Python games leave old values in parts of the tensor
            self._observer.tensor.fill(0)
        self._observer.set_from(self.game_state, player)
        mask = bytearray(self._n_actions)  # several times faster than an array or pyspiel's list
        for action in legal:
            mask[action] = 1
        return {"observation": self._observer.tensor.copy(), "action_mask": np.frombuffer(mask, np.int8)}

    def render(self) -> str:
        """Return the state as text."""
        return str(self.game_state)


def _check_is_playable(game: Any) -> None:
    game_type = game.get_type()
    if game_type.dynamics.name == "MEAN_FIELD":
        raise EnvCheckError(f"{game} is a mean field game, whose distribution of players cannot be sampled by acting; "
                            f"use a sequential or simultaneous game")  # fmt: skip
    if getattr(game_type, "action_structs_only", False) or game.num_distinct_actions() < 1:
        raise EnvCheckError(f"{game} does not number its actions, so they have no Discrete space; use a game with "
                            f"num_distinct_actions() > 0")  # fmt: skip


def _make_observer(game: Any, name: str | None) -> Any:
    """Return an observer whose `set_from(state, player)` fills its `tensor`, float32 [size], in place.

    This is several times faster than the tensor methods of State, which return lists.
    """
    provided = [tensor for tensor in TENSORS if getattr(game.get_type(), f"provides_{tensor}")]
    if not provided:
        raise EnvCheckError(f"{game} provides neither an observation tensor nor an information state tensor, so it "
                            f"cannot be observed")  # fmt: skip
    name = provided[0] if name is None else name
    if name not in provided:
        raise EnvCheckError(f"observation of {game} must be one of {provided}, got {name!r}")
    observation = import_module("open_spiel.python.observation")
    is_information_state = name == "information_state_tensor"
    observer = observation.make_observation(game, observation.INFO_STATE_OBS_TYPE if is_information_state else None)
    tensor = getattr(observer, "tensor", None)
    if tensor is None or (tensor.ndim, tensor.dtype) != (1, np.float32):
        raise EnvCheckError(f"the observer of {game} has no flat float32 {name}; choose another observation")
    return observer
