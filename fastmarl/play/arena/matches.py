"""`fastmarl.tournament`, in which each pair of players plays both sides, in a single runner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.envs.form import possible_agents_of
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, shown
from fastmarl.core.errors.checks import is_integer
from fastmarl.play.arena.players import Role, roles_of, runner_of
from fastmarl.play.arena.ratings import check_prior
from fastmarl.play.arena.standings import Tournament
from fastmarl.runner.runner import MultiAgentEnvRunner

MOST_ENVS = 128  # maximum number of environments by default
GAMES_OF_ENV = 16  # per call of sample(), whose rows are all kept in memory
GAME = "fastmarl.tournament"  # key in the custom data of episodes
FIXED = {
    *CONNECTOR_OPTIONS,
    "policies",
    "policy_mapping_fn",
    "restart_failed_sub_environments",
    "return_only_policies_to_train",
}
BOTH = object()  # key of a seat whose module plays both sides
Seat = dict[Any, tuple[str, Role]]  # modules of a player: side -> (module id, role)


def tournament(
    players: Mapping[str, Any],
    env: Any,
    *,
    episodes: int = 100,
    sides: Mapping[Any, Hashable] | Callable[[Any], Hashable] | None = None,
    explore: bool = True,
    seed: int | None = 0,
    prior: float = 1.0,
    on_progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Tournament:
    """Play a round-robin tournament in which each pair plays half of its games on either side.

    All pairs play in a single runner, and the games of a pair are consecutive, so that in each tick a few modules act
    for many agents.

    Args:
        players: Name -> player. A player is a module for both sides (a torch.nn.Module or RLModuleSpec); a dict of side
            -> module if the sides need different modules; or a Policy or MultiAgentEnvRunner, whose current modules and
            connectors are copied. Modules passed directly are not copied, and are moved to the device given by the
            option `device`.
        env: Environment as in `EnvRunnerConfig(env=...)`; its episodes must end (see `time_limited`).
        episodes: Number of games per pair: even and at least 2. Run time grows with episodes * P (P - 1) / 2.
        sides: Dict or function from each agent id to one of two sides. Rewards are summed over the agents of a side.
            The side that occurs first is the first side. None means that there are two agents, each forming a side.
        explore: True to sample actions. False for the most likely actions; in a deterministic environment, all games of
            a pair on the same sides are then identical.
        seed: Seed of the environments and of sampled actions. Equal seeds lead to equal games, unless a module samples
            random numbers itself. With None, games differ each time.
        prior: Prior of the ratings; see `bradley_terry`.
        on_progress: Function called periodically with the number of games played since its last call.
        options: Other options of `EnvRunnerConfig`; `num_envs_per_env_runner` is at most 128 by default.

    Returns:
        The games, payoffs and ratings. An episode in which no agent acts counts as a draw with payoffs of 0.

    Raises:
        ConfigError: If there are fewer than two players, or not exactly two sides; an argument is out of range; the
            modules of a player do not match the sides; or `sides` is neither a dict nor a function.
        Exception: Any error of `MultiAgentEnvRunner.sample()`.
    """
    seats = _seats(players)
    _check(episodes, sides, prior, options)
    dealer = Dealer(schedule(len(seats), int(episodes)))
    defaults = {"num_envs_per_env_runner": min(MOST_ENVS, len(dealer.games)), "explore": explore, "seed": seed}
    roles = {module_id: role for seat in seats for module_id, role in seat.values()}
    with runner_of(roles, env, {**defaults, **options, "policy_mapping_fn": dealer.module_for}) as runner:
        dealer.take_seats(seats, sides if isinstance(sides, Mapping) else _sides_in(runner, sides))
        _freeze(runner)
        results = _play(runner, dealer, on_progress or (lambda n: None))
    return Tournament(names=tuple(players), sides=dealer.sides, players=dealer.games, prior=prior, **results)


def schedule(num_players: int, episodes: int) -> np.ndarray:
    """Return the players on both sides of each game, int64 [N, 2]: `episodes` games per pair, on alternating sides."""
    pairs = np.array(list(combinations(range(num_players), 2)), np.int64)
    return np.stack([pairs, pairs[:, ::-1]], axis=1)[:, np.arange(episodes) % 2].reshape(-1, 2)


class Dealer:
    """Assigns games to episodes, in order.

    Args:
        games: Result of `schedule()`.
    """

    def __init__(self, games: np.ndarray):
        self.games = games
        self.num_dealt = 0
        self.sides: tuple[Hashable, Hashable] = (0, 1)
        self.side_of: dict[Hashable, int] = {}
        self._module_ids: list[list[str]] = []  # ids per player and side

    def take_seats(self, seats: Sequence[Seat], sides: Mapping[Any, Hashable]) -> None:
        """Assign the modules of the players to the sides.

        Raises:
            ConfigError: If there are not exactly two sides, or a player has no module for a side or one for an unknown
                side.
        """
        try:
            found = tuple(dict.fromkeys(sides.values()))
        except TypeError:
            raise ConfigError(f"values of sides must be hashable, such as strings, got {shown(dict(sides))}") from None
        if len(found) != 2:
            raise ConfigError(f"a tournament needs two sides, got {len(found)}: {list(found)!r:.200}; pass `sides`, "
                              "agent id -> one of two sides")  # fmt: skip
        self.sides = (found[0], found[1])
        self.side_of = {agent: found.index(side) for agent, side in sides.items()}
        for seat in seats:
            if BOTH not in seat and seat.keys() != set(found):
                raise ConfigError(f"a player with several modules needs one for each of the sides {list(found)}, got "
                                  f"{list(seat)}")  # fmt: skip
            self._module_ids.append([seat[side if side in seat else BOTH][0] for side in found])

    def module_for(self, agent_id: Hashable, episode: MultiAgentEpisode | None, **kwargs: Any) -> str:
        """Return the module id of an agent; used as `policy_mapping_fn` of the runner.

        Raises:
            ConfigError: If it is called without an episode, or for an agent without a side.
        """
        if episode is None:
            raise ConfigError("if agents have different spaces, each module must have an observation_space and an "
                              "action_space: use an RLModule, or set them in an RLModuleSpec")  # fmt: skip
        if agent_id not in self.side_of:
            raise ConfigError(f"agent {agent_id!r} has no side; `sides` contains only {list(self.side_of)}")
        side = self.side_of[agent_id]
        return self._module_ids[self.games[self.game_of(episode), side]][side]

    def game_of(self, episode: MultiAgentEpisode) -> int:
        """Return the game index of the episode, assigning the next game if it has none."""
        game = episode.custom_data.get(GAME)
        if game is None:
            game = episode.custom_data[GAME] = self.num_dealt
            self.num_dealt += 1
        return game


def _check(episodes: Any, sides: Any, prior: float, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument is invalid."""
    if not is_integer(episodes) or episodes < 2 or episodes % 2:
        raise ConfigError(f"episodes must be an even integer >= 2, half of them on each side, got {episodes!r}")
    if not (sides is None or isinstance(sides, Mapping) or callable(sides)):
        raise ConfigError(f"sides must be a dict, agent id -> side, or a function, got {shown(sides)}")
    check_prior(prior)
    if fixed := sorted(FIXED & options.keys()):
        raise ConfigError(f"a tournament sets {', '.join(fixed)} itself (connectors come from players that are "
                          "runners); leave these out")  # fmt: skip


def _seats(players: Mapping[str, Any]) -> list[Seat]:
    """Return the modules of each player.

    Raises:
        ConfigError: If there are fewer than two players, an object is not a player, or two modules would have the same
            id.
    """
    if not isinstance(players, Mapping) or len(players) < 2:
        raise ConfigError(f"a tournament needs a dict, name -> player, of at least two players, got {shown(players)}")
    if wrong := [name for name in players if not isinstance(name, str)]:
        raise ConfigError(f"player names must be strings, got {wrong!r:.200}")
    seats: list[Seat] = []
    for name, player in players.items():
        roles = roles_of(player)
        if isinstance(roles, Role):
            seats.append({BOTH: (name, roles)})
        else:
            seats.append({side: (f"{name}/{side}", role) for side, role in roles.items()})
    ids = [id_ for seat in seats for id_, _ in seat.values()]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"names of players and their sides must be unique, got the module ids {ids!r:.200}")
    return seats


def _sides_in(runner: MultiAgentEnvRunner, side_of: Callable[[Any], Hashable] | None) -> dict[Any, Hashable]:
    """Return agent id -> side; if `side_of` is None, each agent is a side."""
    agents = possible_agents_of(runner.env.envs[0])
    return {agent: agent if side_of is None else side_of(agent) for agent in agents}


def _freeze(runner: MultiAgentEnvRunner) -> None:
    """Stop connectors from updating their statistics."""
    for module in runner.env_to_module.values():
        for connector in module.connectors:
            if hasattr(connector, "update_stats"):
                connector.update_stats = False


def _play(runner: MultiAgentEnvRunner, dealer: Dealer, on_progress: Callable[[int], None]) -> dict[str, Any]:
    """Play all games and return the fields of `Tournament` that have one entry per game."""
    n, per_call = len(dealer.games), GAMES_OF_ENV * runner.num_envs
    payoffs, lengths, seeds = np.zeros((n, 2)), np.zeros(n, np.int64), list[int | None]([None] * n)
    while left := n - dealer.num_dealt:
        chunks = runner.sample(num_episodes=min(left, per_call))
        for chunk in chunks:  # an episode has several chunks if agents respawned
            game = dealer.game_of(chunk)
            lengths[game] += len(chunk)
            seeds[game] = chunk.reset_seed
            for agent, part in chunk.agent_episodes.items():
                payoffs[game, dealer.side_of[agent]] += part.get_return()
        on_progress(min(left, per_call))
    if lost := runner.get_metrics()["unattributed_reward"]:
        warnings.warn(
            f"a total reward of {lost:g} belongs to no transition, because the agents never acted or had finished: no "
            "payoff includes it; let every agent act before its first reward",
            stacklevel=3,
        )
    return {"payoffs": payoffs, "lengths": lengths, "reset_seeds": tuple(seeds)}
