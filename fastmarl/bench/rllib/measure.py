"""RLlib's runner and ours, timed in turn in one process, after both have returned equal episodes for equal seeds.

With `sampler="fast"`, whose draws are others, episodes with the same columns.
"""

import gc
import logging
import random
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import Any

import numpy as np
import torch
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from fastmarl.bench.bare_envs import BareEnvs
from fastmarl.bench.rllib.cases import CASES, SEED, Case
from fastmarl.errors import FastmarlError
from fastmarl.rllib.runner import MultiAgentEnvRunner
from fastmarl.spaces import flatten_struct

CHECKED_STEPS = 1000  # env steps in each of two calls that are compared before anything is timed
WATCHED_STEPS = 300  # env steps whose batches are noted for the bare modules
BARE_SECONDS = 0.2  # about how long the bare environments are timed in each round


class UnequalEpisodesError(FastmarlError):
    """The two runners returned different episodes, so comparing their speeds would say nothing."""

    def __init__(self, where: str, theirs: str, ours: str):
        super().__init__(where, theirs, ours)

    def __str__(self) -> str:
        where, theirs, ours = self.args
        return f"not equal to RLlib's episodes: {where}: {theirs} / {ours}"


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Medians of the rounds, of calls of sample() without the get_metrics() that follows each."""

    case: str
    agents: int
    envs: int
    steps: int
    """Env steps in one call."""
    rounds: int
    rllib_rounds: int
    rllib_env_steps_per_second: float
    rllib_agent_steps_per_second: float
    env_steps_per_second: float
    agent_steps_per_second: float
    ratio: float
    """RLlib's time / our time."""
    ratio_with_parts: float
    """The same, with the time that ours takes to make the agents' parts when they are first looked at; RLlib's has them
    ready, and an actor that sends its episodes away never makes them."""
    ratio_with_metrics: float
    """RLlib's time / our time, with the time of get_metrics() on both sides."""
    env_us: float
    """Stepping the bare environments, in microseconds per agent step."""
    network_us: float
    """The modules' layers, and sampling by the operations that give RLlib's bits, in microseconds per agent step."""
    plain_network_us: float
    """The modules' layers, and sampling by as few of torch's operations as do it; not RLlib's bits."""
    efficiency: float
    """(env_us + network_us) / our time."""
    plain_efficiency: float
    """(env_us + plain_network_us) / our time."""
    ratios: tuple[float, ...]
    """Of the rounds."""
    slow_path_reasons: tuple[str, ...]
    """Why our runner left the sampling to RLlib's loop; empty if it did not."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Timing:
    """One call of sample(), a first look at all agents' parts, and get_metrics(). Times in seconds."""

    sample: float
    look: float
    metrics: float
    env_steps: int
    agent_steps: int

    @property
    def us(self) -> float:
        """Microseconds of sample() per agent step."""
        return 1e6 * self.sample / self.agent_steps


class Pair:
    """RLlib's runner and ours, of the same case and from the same seed. Use it in a `with` statement."""

    def __init__(self, case: Case, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner):
        self._case = case
        self.theirs = self._make(RLlibEnvRunner)
        self.ours = self._make(ours)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *exception: object) -> None:
        self.theirs.stop()
        self.ours.stop()

    def check(self, steps: int) -> None:
        """Compare what two calls of sample() return, the second of which goes on with episodes. Also warms up.

        With `sampler="fast"`, actions differ, so what is compared is the form of the columns.

        Args:
            steps: env steps in each.

        Raises:
            UnequalEpisodesError: names the first difference.
        """
        compare = check_alike if getattr(self.ours, "sampler", "exact") == "fast" else check_equal
        for call in range(2):
            theirs, ours = (self.sample(runner, steps, seed=call)[0] for runner in (self.theirs, self.ours))
            compare(theirs, ours)
        for runner in (self.theirs, self.ours):
            runner.get_metrics()  # lets go of the episodes

    def sample(self, runner: RLlibEnvRunner, steps: int, seed: int) -> tuple[list[MultiAgentEpisode], float]:
        """(episodes, seconds) of one call."""
        seed_everything(seed)
        gc.collect()  # so that nobody pays for the other's garbage
        begun = perf_counter()
        episodes = runner.sample(num_timesteps=steps)
        return episodes, perf_counter() - begun

    def time(self, runner: RLlibEnvRunner, seed: int, steps: int | None = None) -> Timing:
        """One call of sample(). After the same seeds both runners do the same work."""
        episodes, seconds = self.sample(runner, steps or self._case.steps, seed)
        begun = perf_counter()
        look(episodes)
        looked = perf_counter()
        runner.get_metrics()
        reported = perf_counter()
        return Timing(
            sample=seconds,
            look=looked - begun,
            metrics=reported - looked,
            env_steps=sum(episode.env_steps() for episode in episodes),
            agent_steps=sum(episode.agent_steps() for episode in episodes),
        )

    def _make(self, runner_class: type[RLlibEnvRunner]) -> RLlibEnvRunner:
        seed_everything(SEED)
        return runner_class(config=self._case.config())


def look(episodes: list[MultiAgentEpisode]) -> None:
    """Make what ours makes late."""
    for episode in episodes:
        episode.agent_episodes  # noqa: B018


class BareModules:
    """The modules' layers on batches such as RLlib's runner makes, without runner and modules.

    One call of sample() is watched: each of its batches is one step of `run`, on a copy of the first of its size.

    Args:
        runner: RLlib's, with PPO's default modules and discrete actions.
        steps: env steps in that call.
    """

    def __init__(self, runner: RLlibEnvRunner, steps: int):
        self._observations: dict[tuple[str, int], torch.Tensor] = {}
        self._steps: list[tuple[str, int]] = []
        assert runner.module is not None
        modules: dict[str, Any] = dict(runner.module.items())
        for module_id, module in modules.items():
            module.forward_exploration = partial(self._note, module_id, module.forward_exploration)
        try:
            runner.sample(num_timesteps=steps)
        finally:
            for module in modules.values():
                del module.forward_exploration
        runner.get_metrics()
        self._layers = {
            module_id: torch.nn.Sequential(*module.encoder.actor_encoder.net.mlp, *module.pi.net.mlp)
            for module_id, module in modules.items()
        }

    def run(self, sample: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Microseconds per agent step of all batches once; `sample` makes actions and their logp from logits."""
        steps = [(self._layers[module_id], self._observations[module_id, n]) for module_id, n in self._steps]
        with torch.inference_mode():
            begun = perf_counter()
            for layers, observations in steps:
                for tensor in sample(layers(observations)):
                    tensor.numpy()
            seconds = perf_counter() - begun
        return 1e6 * seconds / sum(n for _, n in self._steps)

    def _note(self, module_id: str, forward: Any, batch: dict, **kwargs: Any) -> dict:
        observations = batch["obs"]
        self._steps.append((module_id, len(observations)))
        self._observations.setdefault((module_id, len(observations)), observations.clone())
        return forward(batch, **kwargs)


def sample_as_rllib(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left of TorchCategorical when only what goes into the result's bits is kept."""
    logp = logits - logits.logsumexp(-1, keepdim=True)
    actions = torch.multinomial(torch.softmax(logp, -1), 1, True)
    return actions, logp.gather(-1, actions)


def sample_plainly(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same distribution in torch's fewest operations."""
    logp = torch.log_softmax(logits, -1)
    actions = torch.multinomial(logp.exp(), 1, True)
    return actions, logp.gather(-1, actions)


def as_rllib_gives(action: Any) -> Any:
    """RLlib's connectors make int32 of a module's int64."""
    return np.int32(action) if isinstance(action, int) else action


def measure_case(name: str, *, rounds: int = 5, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> CaseResult:
    """Check that the runners are equal, then time RLlib's, ours, the bare environments and layers in turn.

    Args:
        name: of CASES.
        rounds: in each, everything is timed once.
        ours: the class to compare with RLlib's.

    Raises:
        UnequalEpisodesError: the runners are not equal.
    """
    case = CASES[name]
    rllib_rounds = min(rounds, case.rllib_rounds or rounds)
    with measuring(), Pair(case, ours) as pair, Pair(case, ours) as owner:
        pair.check(min(case.steps, CHECKED_STEPS))
        modules = BareModules(owner.theirs, min(case.steps, WATCHED_STEPS))
        envs = BareEnvs(bare_envs(owner.ours), seed=SEED, seconds=BARE_SECONDS, given=as_rllib_gives)
        limits: list[tuple[float, float, float]] = []
        their_times: list[Timing] = []
        our_times: list[Timing] = []
        for i in range(rounds):
            limits.append((envs.run(), modules.run(sample_as_rllib), modules.run(sample_plainly)))
            turns = [(pair.ours, our_times), (pair.theirs, their_times)]
            turns = turns if i < rllib_rounds else turns[:1]
            for runner, timings in turns if i % 2 else reversed(turns):  # nobody is always the first
                timings.append(pair.time(runner, seed=i))
        reasons = tuple(getattr(pair.ours, "slow_path_reasons", ()))
    return _case_result(name, case, limits, their_times, our_times, reasons)


def bare_envs(runner: RLlibEnvRunner) -> list[Any]:
    """The runner's environments without gymnasium's wrappers."""
    assert runner.env is not None and runner.env.envs is not None
    return [env.unwrapped for env in runner.env.envs]


def _case_result(
    name: str,
    case: Case,
    limits: list[tuple[float, float, float]],
    theirs: list[Timing],
    ours: list[Timing],
    slow_path_reasons: tuple[str, ...],
) -> CaseResult:
    both = list(zip(theirs, ours, strict=False))
    ratios = tuple(their.us / our.us for their, our in both)
    with_parts = [(their.sample + their.look) / (our.sample + our.look) for their, our in both]
    with_metrics = [(their.sample + their.metrics) / (our.sample + our.metrics) for their, our in both]
    return CaseResult(
        case=name,
        agents=case.agents,
        envs=case.envs,
        steps=case.steps,
        rounds=len(ours),
        rllib_rounds=len(theirs),
        rllib_env_steps_per_second=statistics.median(timing.env_steps / timing.sample for timing in theirs),
        rllib_agent_steps_per_second=statistics.median(timing.agent_steps / timing.sample for timing in theirs),
        env_steps_per_second=statistics.median(timing.env_steps / timing.sample for timing in ours),
        agent_steps_per_second=statistics.median(timing.agent_steps / timing.sample for timing in ours),
        ratio=statistics.median(ratios),
        ratio_with_parts=statistics.median(with_parts),
        ratio_with_metrics=statistics.median(with_metrics),
        env_us=statistics.median(env for env, _, _ in limits),
        network_us=statistics.median(network for _, network, _ in limits),
        plain_network_us=statistics.median(plain for _, _, plain in limits),
        efficiency=statistics.median((env + net) / our.us for (env, net, _), our in zip(limits, ours, strict=True)),
        plain_efficiency=statistics.median(
            (env + net) / our.us for (env, _, net), our in zip(limits, ours, strict=True)
        ),
        ratios=ratios,
        slow_path_reasons=slow_path_reasons,
    )


def check_equal(theirs: list[MultiAgentEpisode], ours: list[MultiAgentEpisode]) -> None:
    """Compare times, flags, all columns (dtype, shape, bytes, lookback) and infos; ids and clocks may differ.

    Raises:
        UnequalEpisodesError: names the first difference.
    """
    for number, (one, other) in enumerate(zip_longest(theirs, ours)):
        if one is None or other is None:
            raise UnequalEpisodesError("episodes", str(len(theirs)), str(len(ours)))
        for want, got in zip_longest(_content(one), _content(other), fillvalue=("nothing more", None)):
            if want != got:
                raise UnequalEpisodesError(f"episode {number}, {want[0]}", _short(want), _short(got))


def check_alike(theirs: list[MultiAgentEpisode], ours: list[MultiAgentEpisode]) -> None:
    """Compare which columns each module's agents have, with which dtypes and shapes of a row.

    Raises:
        UnequalEpisodesError: names the first difference.
    """
    want, got = _forms(theirs), _forms(ours)
    for key in want | got:
        if want.get(key) != got.get(key):
            raise UnequalEpisodesError(": ".join(key), f"{want.get(key)}", f"{got.get(key)}")


def _forms(episodes: list[MultiAgentEpisode]) -> dict[tuple[str, str], set]:
    """(module, column) -> its dtypes and shapes of a row."""
    forms: dict[tuple[str, str], set] = {}
    for part in (part for episode in episodes for part in episode.agent_episodes.values()):
        own = {name: getattr(part, name) for name in ("observations", "actions", "rewards")}
        for name, column in {**own, **part.extra_model_outputs}.items():
            for path, leaf in flatten_struct(column.data):
                form = (np.asarray(leaf).dtype.str, np.shape(leaf)[1:])
                forms.setdefault((str(part.module_id), "/".join(map(str, (name, *path)))), set()).add(form)
    return forms


def _content(episode: MultiAgentEpisode) -> Iterator[tuple[str, Any]]:
    """(name, comparable value) of everything that counts."""
    yield "time", (episode.env_t_started, episode.env_t)
    yield "flags", (episode.is_terminated, episode.is_truncated)
    for agent_id, part in episode.agent_episodes.items():
        at = f"agent {agent_id!r}: "
        yield at + "module", part.module_id
        yield at + "time", (part.t_started, part.t)
        yield at + "flags", (part.is_terminated, part.is_truncated)
        own = {name: getattr(part, name) for name in ("observations", "actions", "rewards", "infos")}
        for name, column in {**own, **part.extra_model_outputs}.items():
            yield at + name, (column.lookback, _comparable(column.data))


def _comparable(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return data.dtype.str, data.shape, data.tobytes()
    if isinstance(data, dict):
        return [(key, _comparable(value)) for key, value in data.items()]
    if isinstance(data, list | tuple):
        return [_comparable(value) for value in data]
    return type(data), repr(data)  # by repr, as nan is nan and 0.0 is not -0.0


def _short(named: tuple[str, Any]) -> str:
    return f"{named[1]!r:.80}"


def seed_everything(seed: int) -> None:
    """The global generators that environments, modules and distributions may draw from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (the one that RLlib seeds)
    torch.manual_seed(seed)


@contextmanager
def measuring() -> Iterator[None]:
    """One torch thread, no warnings and no log; afterwards torch's global settings are what they were."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    disabled = logging.root.manager.disable
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)  # a seeded runner of RLlib's switches them on
