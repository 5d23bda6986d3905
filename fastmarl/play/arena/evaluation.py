"""`fastmarl.evaluate`, which computes returns of complete episodes and the precision of their mean."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import is_integer
from fastmarl.core.objects.public import public
from fastmarl.play.arena.players import roles_by_id, runner_of
from fastmarl.play.policy import Policy
from fastmarl.report.tables import Table
from fastmarl.runner.runner import MultiAgentEnvRunner

METHODS = ("t", "bootstrap")
MOST_ENVS = 16  # maximum number of environments by default
COLUMNS = {"who": ("", ""), "episodes": ("episodes", ",d"), "mean": ("mean return", ",.4g"),
           "error": ("standard error", ".3g")}  # fmt: skip


@public("fastmarl.play")
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Returns:
    """Returns of several episodes, assumed to be independent.

    Episodes with equal seeds, and episodes of greedy policies in a deterministic environment, are not independent.

    Attributes:
        returns: float64 [N], with N at least 1.
    """

    returns: np.ndarray

    def __repr__(self) -> str:
        n = len(self.returns)
        return (f"<{type(self).__name__} of {n} episode{'s' * (n != 1)}: mean {self.mean:,.4g}, standard error "
                f"{self.standard_error:.3g}>")  # fmt: skip

    @property
    def mean(self) -> float:
        """Mean of the returns."""
        return float(self.returns.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of the mean: sample standard deviation (N - 1) / sqrt(N), or NaN for a single episode."""
        return math.nan if len(self.returns) < 2 else float(self.returns.std(ddof=1)) / math.sqrt(len(self.returns))

    def confidence_interval(self, level: float = 0.95, *, method: str = "t") -> tuple[float, float]:
        """Return bounds that contain the true mean in a fraction `level` of all experiments. Requires scipy.

        Args:
            level: Confidence level, between 0 and 1.
            method: "t": mean ± t * standard error, where t is a quantile of Student's distribution with N - 1 degrees
                of freedom (Student, "The probable error of a mean", Biometrika 6, 1908). It is exact for normally
                distributed returns. "bootstrap": the BCa interval of 9,999 resamples (Efron, "Better bootstrap
                confidence intervals", Journal of the American Statistical Association 82, 1987). It is asymmetric for
                skewed returns, and identical in every call.

        Returns:
            (low, high), both NaN for a single episode, and both the mean if all returns are equal.

        Raises:
            ConfigError: If `level` is not between 0 and 1, or `method` is unknown.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level must be between 0 and 1, got {level!r}")
        if method not in METHODS:
            raise ConfigError(f"method must be one of {list(METHODS)}, got {method!r}")
        from scipy import stats

        if len(self.returns) < 2:
            return math.nan, math.nan
        if self.returns.min() == self.returns.max():
            return self.mean, self.mean
        if method == "bootstrap":
            interval = stats.bootstrap(
                (self.returns,), np.mean, confidence_level=level, batch=100, rng=np.random.default_rng(0)
            ).confidence_interval
            return float(interval.low), float(interval.high)
        half = float(stats.t.ppf((1 + level) / 2, len(self.returns) - 1)) * self.standard_error
        return self.mean - half, self.mean + half


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PartialReturns(Returns):
    """Returns of a single agent or module, in the episodes in which it took part.

    Attributes:
        by_episode: float64 [N], the return in each episode; NaN for episodes in which it did not take part.
    """

    by_episode: np.ndarray


@public("fastmarl.play")
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Evaluation(Returns):
    """Result of `evaluate()`, with the summed rewards of all agents in each episode as `returns`.

    Attributes:
        lengths: int64 [N], number of env steps of each episode.
        reset_seeds: Reset seed of each episode, or None if its environment received none.
        by_agent: Agent id -> returns, in the episodes in which the agent had a transition.
        by_module: Module id -> summed returns of its agents, in the episodes in which it had agents.
    """

    lengths: np.ndarray
    reset_seeds: tuple[int | None, ...]
    by_agent: dict[Hashable, PartialReturns]
    by_module: dict[str, PartialReturns]

    @property
    def num_episodes(self) -> int:
        """Number of episodes, N."""
        return len(self.returns)

    def __str__(self) -> str:
        """Return the table as plain text."""
        return self.table().as_text()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def table(self, title: str = "") -> Table:
        """Return a table titled `title`, with rows for all agents together, each agent, and each module."""
        rows = [("all", self), *((f"agent {agent}", found) for agent, found in self.by_agent.items())]
        rows += [(f"module {module_id}", found) for module_id, found in self.by_module.items()]
        figures = [
            {"who": who, "episodes": len(found.returns), "mean": found.mean, "error": found.standard_error}
            for who, found in rows
        ]
        return Table.of(title, COLUMNS, figures, [f"mean length: {self.lengths.mean():,.1f} env steps"])

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file to `path`, with one row per episode.

        Columns are the episode index, reset seed, length and return, and the return of each agent and module, which is
        empty if it did not take part.
        """
        columns = [(f"agent:{agent}", found.by_episode) for agent, found in self.by_agent.items()]  # 1 and "1" differ
        columns += [(f"module:{module_id}", found.by_episode) for module_id, found in self.by_module.items()]
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["episode", "reset_seed", "length", "return", *(name for name, _ in columns)])
            for k in range(self.num_episodes):
                parts = ["" if np.isnan(each[k]) else float(each[k]) for _, each in columns]
                writer.writerow([k, self.reset_seeds[k], int(self.lengths[k]), float(self.returns[k]), *parts])


def evaluate(
    players: Any,
    env: Any = None,
    *,
    episodes: int = 100,
    seeds: Sequence[int] | None = None,
    explore: bool = False,
    **options: Any,
) -> Evaluation:
    """Play complete episodes and return statistics of their returns.

    Returns sum the recorded rewards, so `reward_scale` and `clip_rewards` of a runner apply. Rewards outside of
    transitions, such as rewards of an agent that never acted, are not included.

    Args:
        players: A `MultiAgentEnvRunner`, whose training state is unchanged (see its `evaluate()`); a `Policy`, with its
            connectors and options; a dict of module id -> module; or a single module for all agents. Modules are not
            copied, and are moved to the device given by the option `device`.
        env: Environment for policies and modules, as in `EnvRunnerConfig(env=...)`. They play in a temporary runner.
        episodes: Number of episodes; at least 1.
        seeds: Reset seeds, one per episode. Equal seeds lead to equal resets.
        explore: True to sample actions, False for the most likely actions.
        options: Other options of `EnvRunnerConfig` for policies and modules, such as `policy_mapping_fn`, which is
            required for several modules, or `num_envs_per_env_runner` (by default at most 16). Connectors created by an
            option have no statistics yet; evaluate a runner or a policy to use trained connectors.

    Returns:
        The returns and their statistics. An episode in which agents respawn counts once.

    Raises:
        ConfigError: If an argument is out of range, or arguments contradict each other.
        Exception: Any error of `MultiAgentEnvRunner.evaluate()`.
    """
    if not is_integer(episodes) or episodes < 1:
        raise ConfigError(f"episodes must be an integer >= 1, got {episodes!r}")
    with _runner_for(players, env, options, min(episodes, MOST_ENVS)) as runner:
        chunks = runner.evaluate(int(episodes), seeds=seeds, explore=explore)
    ids = list(dict.fromkeys(chunk.id_ for chunk in chunks))[-episodes:]  # earlier episodes come from a failed call
    return _summed_up(chunks, {id_: number for number, id_ in enumerate(ids)})


def _runner_for(
    players: Any, env: Any, options: Mapping[str, Any], num_envs: int
) -> AbstractContextManager[MultiAgentEnvRunner]:
    """Return a context with the given runner, which remains open, or with a new one that is stopped on exit.

    Raises:
        ConfigError: If the arguments contradict each other.
    """
    if isinstance(players, MultiAgentEnvRunner):
        if given := [*(["env"] if env is not None else []), *options]:
            raise ConfigError(f"a runner already has a config; leave out {', '.join(given)}")
        return nullcontext(players)
    if env is None:
        raise ConfigError("policies and modules need an env to play in; pass env=, as in EnvRunnerConfig(env=...)")
    by_id = roles_by_id(players)
    defaults: dict[str, Any] = {"num_envs_per_env_runner": num_envs}
    if isinstance(players, Policy) and len(by_id) > 1:
        defaults["policy_mapping_fn"] = players.policy_mapping_fn
    return runner_of(by_id, env, {**defaults, **options})


def _summed_up(chunks: Sequence[MultiAgentEpisode], number_of: Mapping[str, int]) -> Evaluation:
    """Summarise the episodes in `number_of` (episode id -> index); an episode may have several chunks."""
    n = len(number_of)
    lengths, seeds = np.zeros(n, np.int64), list[int | None]([None] * n)
    by_agent, by_module = _by_episode(n), _by_episode(n)
    for chunk in chunks:
        if (number := number_of.get(chunk.id_)) is None:
            continue
        lengths[number] += len(chunk)
        seeds[number] = chunk.reset_seed
        for agent, part in chunk.agent_episodes.items():
            for returns in (by_agent[agent], by_module[part.module_id]):
                returns[number] = np.nan_to_num(returns[number]) + part.get_return()
    total = np.nansum([*by_agent.values(), np.zeros(n)], axis=0)
    return Evaluation(
        returns=total,
        lengths=lengths,
        reset_seeds=tuple(seeds),
        by_agent=_of_participants(by_agent),
        by_module=_of_participants(by_module),
    )


def _by_episode(n: int) -> defaultdict[Any, np.ndarray]:
    return defaultdict(lambda: np.full(n, np.nan))


def _of_participants(by_id: Mapping[Any, np.ndarray]) -> dict[Any, PartialReturns]:
    return {id_: PartialReturns(returns=each[~np.isnan(each)], by_episode=each) for id_, each in by_id.items()}
