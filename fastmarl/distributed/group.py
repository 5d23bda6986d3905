"""Many env runners as a learner uses them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig, check_integer, check_seconds
from fastmarl.core.envs.registry import portable
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.public import public
from fastmarl.distributed import connectors, sizes
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.evaluations import evaluate_in
from fastmarl.distributed.fleet import NO_LIMIT, Fleet
from fastmarl.distributed.host import MakeBatch, columns_of
from fastmarl.distributed.in_process import InProcess
from fastmarl.distributed.metrics import GroupMetrics
from fastmarl.distributed.owner import FleetOwner
from fastmarl.distributed.parts import SamplePart
from fastmarl.distributed.sampling import GroupSampling, call_arguments
from fastmarl.distributed.state import GroupState
from fastmarl.distributed.weights import check_all, weights_by_module
from fastmarl.play.arena.evaluation import Evaluation

PLACEMENT_STRATEGIES = ("SPREAD", "DEFAULT")


@public("fastmarl.distributed")
class EnvRunnerGroup(FleetOwner):
    """Samples in many runners at the same time, each in an actor of Ray.

    ```python
    with EnvRunnerGroup(config, num_env_runners=8) as group:
        for part in group.sample_ready(num_timesteps=1000):
            ...  # a step of training of group.module with part.batch
            group.set_weights()
    ```

    A runner's `worker_index` is its index, from 0, plus `config.worker_index` + 1; its seeds go by that. Batches are
    made where the runners are, by `make_batch`. Each call of a runner takes the newest weights along.

    A runner whose process ends, or that takes too long, is ended and replaced while the others go on. The new one has
    the newest weights, what its connectors knew with its last batch, and another `incarnation`, so its seeds were never
    used. What an env, a module or `make_batch` raises is an error of the next call that samples; what other runners
    deliver meanwhile is kept, and handed out by the calls after it.

    Args:
        config: of the runners.
        num_env_runners: how many; 0: one in this process, without Ray.
        make_batch: `(episodes, module) -> nested dict of arrays`, with the runner's modules.
        placement_strategy: "SPREAD" over the nodes of Ray's cluster, or "DEFAULT", which fills node by node.
        max_restarts: how often a runner is replaced until it delivers a batch; -1: as often as it takes.
        sample_timeout_s: seconds that a runner has for a call, from the end of its call before.
        start_timeout_s: seconds that a runner has to be placed and made.
        actor_options: of Ray's actors, such as `num_cpus` (1 unless given), `resources` or `runtime_env`.

    Attributes:
        module: the runners' modules, for this process to train.

    Raises:
        ConfigError: an option can't be right, or what the runners need can't be sent to them. What a runner's
            constructor raises there comes through.
        EnvRunnerLostError: a runner's process has ended, or it was not ready in time.
    """

    def __init__(
        self,
        config: EnvRunnerConfig,
        *,
        num_env_runners: int = 2,
        make_batch: MakeBatch = columns_of,
        placement_strategy: str = "SPREAD",
        max_restarts: int = 3,
        sample_timeout_s: float = 300.0,
        start_timeout_s: float = 300.0,
        actor_options: Mapping[str, Any] | None = None,
    ):
        if not isinstance(config, EnvRunnerConfig):
            raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
        check_integer("num_env_runners", num_env_runners, least=0)
        check_integer("max_restarts", max_restarts, least=NO_LIMIT)
        check_seconds("sample_timeout_s", sample_timeout_s)
        check_seconds("start_timeout_s", start_timeout_s)
        if not callable(make_batch):
            raise ConfigError(f"make_batch must be a function (episodes, module) -> batch, got {make_batch!r:.200}")
        if placement_strategy not in PLACEMENT_STRATEGIES:
            raise ConfigError(
                f"placement_strategy must be one of {list(PLACEMENT_STRATEGIES)}, got {placement_strategy!r}"
            )
        self._config = replace(config, env=portable(config.env))
        self._is_here = num_env_runners == 0
        options = {"num_gpus": config.num_gpus_per_env_runner, **(actor_options or {})}
        fleet = Fleet(
            self._make_actors(num_env_runners, placement_strategy, options),
            self._config,
            make_batch,
            max_restarts=int(max_restarts),
            sample_timeout_s=float(sample_timeout_s),
            start_timeout_s=float(start_timeout_s),
        )
        self._metrics = GroupMetrics(config.metrics_num_episodes_for_smoothing)
        self._sampling = GroupSampling(fleet, self._metrics)
        super().__init__(fleet, max(1, num_env_runners))
        self._state = GroupState(fleet, self.module, self._metrics)

    def _make_actors(self, num_env_runners: int, placement_strategy: str, options: Mapping[str, Any]) -> Actors:
        if num_env_runners == 0:
            return InProcess()
        from fastmarl.distributed.ray_actors import RayActors

        return RayActors(placement_strategy, options)

    def __repr__(self) -> str:
        env, where = self._config.env, "in this process" if self._is_here else "in Ray's actors"
        name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        n = len(self._fleet.runners)
        return (f"<{type(self).__name__} of {name}: {n} runner{'s' * (n != 1)} {where}"
                f"{', stopped' * self._is_over}>")  # fmt: skip

    # What a group has.

    @property
    def config(self) -> EnvRunnerConfig:
        return self._config

    @property
    def num_env_runners(self) -> int:
        """Runners in other processes, those that are being replaced included."""
        return 0 if self._is_here else len(self._fleet.runners)

    @property
    def num_healthy_env_runners(self) -> int:
        """Those that are neither being replaced nor lost for good, as far as is known."""
        return self._fleet.num_ready

    @property
    def weights_seq_no(self) -> int:
        """Of the newest weights: how often `set_weights()` was called."""
        return self._fleet.weights.newest[1]

    # Sampling.

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SamplePart]:
        """One call of every runner's `sample()`, with the newest weights; the arguments are those of each call.

        Returns:
            The parts, in order of the runners. A runner that is being replaced has none; if none delivers, replaced
            ones are waited for. What earlier calls have left behind comes first: parts of `sample_ready()` that were
            not handed out, or, after an error, those of the other runners.

        Raises:
            EnvRunnerLostError: a runner was replaced `max_restarts` times in a row. The others go on.
            RunnerStoppedError: the group was stopped.
            ConfigError: both numbers are given, or one is negative or no integer.
            Exception: what an env, a module, a connector, a callback or `make_batch` has raised, with its traceback and
                the runner's index as notes.
        """
        self._begin("sample()")
        arguments = call_arguments(self._config, num_timesteps, num_episodes, explore, random_actions, force_reset)
        return self._sampling.sample(arguments)

    def sample_ready(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        in_flight: int = 2,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> Iterator[SamplePart]:
        """Parts of whichever runner is ready, for ever. When the next one is asked for, the runner of the last one is
        called again, with the weights that are then the newest.

        End the loop when you like: calls that are under way go on, and the next `sample_ready()` or `sample()` hands
        out what comes of them. Other methods may be called within the loop.

        Args:
            num_timesteps, num_episodes, explore, random_actions, force_reset: of each call, see
                `MultiAgentEnvRunner.sample()`.
            in_flight: calls that a runner has before it, so that it doesn't wait for the learner; 1 or more. What it
                delivers was sampled with weights that are up to so many of its own calls old. In this process it is 1.

        Raises:
            See `sample()`; parts come on in the next `sample_ready()`.
        """
        self._check_usable("sample_ready()")
        check_integer("in_flight", in_flight, least=1)
        arguments = call_arguments(self._config, num_timesteps, num_episodes, explore, random_actions, force_reset)
        return self._sampling.parts(arguments, min(in_flight, self._fleet.actors.most_in_flight), self._check_usable)

    # Weights.

    def set_weights(self, module: torch.nn.Module | Mapping[str, Any] | None = None) -> int:
        """Have the runners sample with these weights from their next call on. This waits for nobody, and another thread
        may call it at any time; all other methods are for one thread at a time.

        Args:
            module: all modules, or the one module that there is, or weights by module id as `get_state()` returns them;
                None: `group.module`. All modules must be there.

        Returns:
            Their number; the parts, and the rows that were sampled with them, have it as `weights_seq_no`.

        Raises:
            ConfigError: they are those of other modules; nothing was changed.
            RunnerBusyError: a signal's handler calls this within itself; the call under way goes on.
            RunnerStoppedError: the group was stopped.
        """
        self._check_open()
        weights = weights_by_module(self.module, self.module if module is None else module)
        check_all(self.module, weights)
        return self._fleet.weights.publish(weights)

    def get_weights(self) -> dict[str, Any]:
        """Module id -> the newest weights, by parameter name, as arrays: a copy."""
        self._check_open()
        return self._fleet.weights.fetch()[0]

    # All runners.

    def foreach(self, function: Callable[..., Any], *args: Any) -> dict[int, Any]:
        """Call `function(runner, *args)` where the runners are, after what they were told before.

        Returns:
            By the runner's index, what it has returned; without runners that are being replaced, or are lost meanwhile.

        Raises:
            Exception: the first that it has raised, with the runner's index as a note.
        """
        self._begin("foreach()")
        return self._fleet.ask(self._fleet.ready(), "apply", function, args)

    def sync_connectors(self) -> None:
        """Add up what the connectors of all runners have counted, and give that to all. It waits until they have done
        what they were told before.

        What a runner has counted by its last batch takes part also if the runner is being replaced.
        """
        self._begin("sync_connectors()")
        connectors.synchronise(self._fleet)

    def evaluate(self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False) -> Evaluation:
        """Play whole episodes with the newest weights in all runners, and sum up what they return; see
        `fastmarl.evaluate()`. Training goes on as if nothing had happened.

        The runners share the episodes evenly; each has `sample_timeout_s` for its own. What a lost runner should have
        played is played by the others. Connectors have what their runner knows: call `sync_connectors()` before.

        Args:
            num_episodes: at least 1.
            seeds: as many integers, for the resets. None: in a group with a seed, the same in each call, and for each
                number of runners; else none.
            explore: sample actions, or take the most likely ones.

        Raises:
            ConfigError: a number is impossible. Else what a runner's `evaluate()` raises.
        """
        self._begin("evaluate()")
        return evaluate_in(self._fleet, self._config, num_episodes, seeds, explore)

    def get_metrics(self) -> dict[str, Any]:
        """What `MultiAgentEnvRunner.get_metrics()` reports, of all runners together, as far as their parts were handed
        out; "weights_seq_no" is of the last part. Counts and sums are added, means go over all that was counted, those
        of episodes over the last `metrics_num_episodes_for_smoothing` of all.

        Besides, since the last report: "num_samples_dropped" (calls of lost runners), "num_env_runner_restarts" and
        "seconds_waited" (in `sample()` and `sample_ready()`); and "num_healthy_env_runners".
        """
        return self._metrics.report(self._fleet, self.module)

    # Other runners.

    def resize(self, num_env_runners: int) -> None:
        """Have so many runners from now on, and others for those that are lost. Connectors are synchronised, and so are
        those of new runners; the last runners close their envs and go, and what they have sampled is handed out all the
        same. This waits for new runners.

        `config.num_env_runners`, by which modules that explore by a schedule count, stays as it is in older runners.

        Args:
            num_env_runners: at least 1. A runner in this process stays the one that it is.

        Raises:
            ConfigError: the number is impossible. Else the first error of an env's close(), or see `EnvRunnerGroup`:
                without the new runners then. One that is lost stays lost.
        """
        self._begin("resize()")
        check_integer("num_env_runners", num_env_runners, least=1)
        if self._is_here:
            raise ConfigError("a group with num_env_runners=0 has its one runner in this process and can't be resized; "
                              "make a group with num_env_runners=1 or more")  # fmt: skip
        sizes.resize(self._fleet, num_env_runners)

    # State.

    def get_state(self) -> dict[str, Any]:
        """What is needed to go on elsewhere: the newest weights, the counters, and each runner's state (see
        `MultiAgentEnvRunner.get_state()`). `fastmarl.checkpoint.save_state()` writes it to a folder.

        It waits until the runners have done what they were told before; parts that were not handed out are not in it.
        Of a runner that is being replaced there is what it had with its last batch.
        """
        self._begin("get_state()")
        return self._state.get()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state()` returned. What is in flight, or was not handed out, is dropped.

        With as many runners each goes on where that of its index was; one of another incarnation is replaced for that.
        With another number, all begin with what all connectors knew together. The number of the weights is the saved
        one, or one above the group's, if that is not below it. `group.module` gets the weights, too.

        Raises:
            ConfigError: it is no such state, or one of other modules. Nothing was changed.
        """
        self._begin("set_state()")
        self._state.set(state)

    # The end.

    def stop(self) -> None:
        """End all runners; the first error of an env's close() is raised. Stopping twice is fine.

        A runner that is sampling is waited for a little, and then ended.
        """
        if not self._is_over:
            self._fleet.check_idle("stop()")
            self._close("stop()")

    def _close(self, method: str) -> None:
        if self._is_here or not self._fleet.actors.is_running:  # ending it closes its envs, or there are none
            self._end()
        else:
            super()._close(method)

    def _begin(self, method: str) -> None:
        """Of each method that calls runners; see `_check_usable()`."""
        self._check_usable(method)
        self._fleet.recover()

    def _check_usable(self, method: str) -> None:
        """Raises RunnerStoppedError after the end, RunnerBusyError in the middle of another call."""
        self._check_open()
        self._fleet.check_idle(method)

    def _check_open(self) -> None:
        if self._is_over:
            raise RunnerStoppedError("this group was stopped; make a new one")
        if not self._fleet.actors.is_running:
            raise RunnerStoppedError("Ray was shut down, and the runners of this group with it; make a new one")
