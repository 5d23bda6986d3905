"""A group of env runners in Ray actors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.registry import portable
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.errors.checks import check_integer, check_seconds
from fastmarl.core.objects.public import public
from fastmarl.core.store.request import Request
from fastmarl.distributed import connectors, sizes
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.evaluations import evaluate_in
from fastmarl.distributed.fleet import NO_LIMIT, Fleet
from fastmarl.distributed.host import MakeBatch, columns_of
from fastmarl.distributed.in_process import InProcess
from fastmarl.distributed.metrics import GroupMetrics
from fastmarl.distributed.owner import FleetOwner
from fastmarl.distributed.parts import SamplePart
from fastmarl.distributed.sampling import GroupSampling, checked
from fastmarl.distributed.state import GroupState
from fastmarl.distributed.weights import check_all, weights_by_module
from fastmarl.play.arena.evaluation import Evaluation

PLACEMENT_STRATEGIES = ("SPREAD", "DEFAULT")


@public("fastmarl.distributed")
class EnvRunnerGroup(FleetOwner):
    """Samples in many runners in parallel, each in a Ray actor.

    ```python
    with EnvRunnerGroup(config, num_env_runners=8) as group:
        for part in group.sample_ready(num_timesteps=1000):
            ...  # a step of training of group.module with part.batch
            group.set_weights()
    ```

    A runner's `worker_index` is its index, from 0, plus `config.worker_index` + 1; its seeds depend on it. `make_batch`
    creates batches in the runners' processes. Each call of a runner carries the newest weights.

    A runner whose process ends or times out is replaced while the others continue. Its replacement has the newest
    weights, the state of its connectors at its last batch, and another `incarnation`, and so unused seeds. The next
    call that samples raises the error of an env, a module or `make_batch`; the results of other runners are kept for
    the calls after it.

    Args:
        config: Config of the runners.
        num_env_runners: Number of runners; 0 means one runner in this process, without Ray.
        make_batch: `(episodes, module) -> nested dict of arrays`, with the runner's modules.
        placement_strategy: "SPREAD" over the nodes of Ray's cluster, or "DEFAULT", which fills one node after another.
        max_restarts: How often a runner is replaced before it delivers a batch; -1 means no limit.
        sample_timeout_s: Seconds that a runner has for a call, from the end of its previous call.
        start_timeout_s: Seconds that a runner has to be placed and created.
        actor_options: Options of Ray actors, such as `num_cpus` (default 1), `resources` or `runtime_env`.

    Attributes:
        module: The modules, for training in this process.

    Raises:
        ConfigError: If an option is invalid, or an object that the runners need can't be sent to them. Errors of a
            runner's constructor are raised unchanged.
        EnvRunnerLostError: If a runner's process has ended, or it was not ready in time.
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

    # Properties of the group.

    @property
    def config(self) -> EnvRunnerConfig:
        return self._config

    @property
    def num_env_runners(self) -> int:
        """The number of runners in other processes, including those that are being replaced."""
        return 0 if self._is_here else len(self._fleet.runners)

    @property
    def num_healthy_env_runners(self) -> int:
        """The number of runners that are neither being replaced nor lost, as far as is known."""
        return self._fleet.num_ready

    @property
    def weights_seq_no(self) -> int:
        """The number of the newest weights: how often `set_weights()` was called."""
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
        """Call `sample()` of every runner once, with the newest weights.

        `num_timesteps`, `num_episodes`, `explore`, `random_actions` and `force_reset` are those of
        `MultiAgentEnvRunner.sample()`.

        Returns:
            The parts, in the order of the runners. A runner that is being replaced has none; if no runner delivers, the
            call waits for replaced ones. Results of earlier calls come first: parts of `sample_ready()` that were not
            returned or, after an error, those of the other runners.

        Raises:
            EnvRunnerLostError: If a runner was replaced `max_restarts` times in a row. The others continue.
            RunnerStoppedError: If the group was stopped.
            ConfigError: If both numbers are given, or one is negative or not an integer.
            Exception: Any error of an env, a module, a connector, a callback or `make_batch`. Its notes have the
                traceback and the runner's index.
        """
        self._begin("sample()")
        request = Request(num_timesteps, num_episodes, explore, random_actions, force_reset)
        return self._sampling.sample(checked(request, self._config))

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
        """Yield parts of whichever runner is ready, without end.

        When the next part is requested, the runner of the last one is called again, with the newest weights at that
        time.

        You can leave the loop at any time: calls under way continue, and the next `sample_ready()` or `sample()`
        returns their results. Other methods may be called within the loop.

        `num_timesteps`, `num_episodes`, `explore`, `random_actions` and `force_reset` are passed to each call; see
        `MultiAgentEnvRunner.sample()`.

        Args:
            in_flight: Calls that are queued at a runner, so that it doesn't wait for the learner; at least 1. The
                weights of its results are up to this number of its own calls old. In this process it is always 1.

        Raises:
            Exception: See `sample()`. The next `sample_ready()` continues with the remaining parts.
        """
        self._check_usable("sample_ready()")
        check_integer("in_flight", in_flight, least=1)
        request = checked(Request(num_timesteps, num_episodes, explore, random_actions, force_reset), self._config)
        return self._sampling.parts(request, min(in_flight, self._fleet.actors.most_in_flight), self._check_usable)

    # Weights.

    def set_weights(self, module: torch.nn.Module | Mapping[str, Any] | None = None) -> int:
        """Use these weights in all runners from their next call on.

        The call does not wait, and any thread may call it at any time. All other methods are for one thread at a time.

        Args:
            module: All modules, or the only module, or weights by module id, as `get_state()` returns them; None uses
                `group.module`. All modules must be included.

        Returns:
            The number of the weights; parts and rows sampled with them have it as `weights_seq_no`.

        Raises:
            ConfigError: If the weights belong to other modules; nothing was changed.
            RunnerBusyError: If a signal handler has called this within itself; the call under way continues.
            RunnerStoppedError: If the group was stopped.
        """
        self._check_open()
        weights = weights_by_module(self.module, self.module if module is None else module)
        check_all(self.module, weights)
        return self._fleet.weights.publish(weights)

    def get_weights(self) -> dict[str, Any]:
        """Return a copy of the newest weights: module id -> parameter name -> array."""
        self._check_open()
        return self._fleet.weights.fetch()[0]

    # All runners.

    def foreach(self, function: Callable[..., Any], *args: Any) -> dict[int, Any]:
        """Call `function(runner, *args)` in the runners' processes, after their earlier calls.

        Args:
            function: The function to call.
            args: Further arguments of it.

        Returns:
            The results by the runners' indices, without runners that are being replaced or are lost meanwhile.

        Raises:
            Exception: The first error of the function, with the runner's index as a note.
        """
        self._begin("foreach()")
        return self._fleet.ask(self._fleet.ready(), "apply", function, args)

    def sync_connectors(self) -> None:
        """Merge the state of the connectors of all runners and give it to all of them.

        It waits until the runners have finished their earlier calls. If a runner is being replaced, its state at its
        last batch is included.
        """
        self._begin("sync_connectors()")
        connectors.synchronise(self._fleet)

    def evaluate(self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False) -> Evaluation:
        """Play whole episodes with the newest weights in all runners and summarise their returns.

        See `fastmarl.evaluate()`. Training episodes continue afterwards as if there had been no evaluation.

        The runners share the episodes evenly, and each has `sample_timeout_s` for its share. If a runner is lost, the
        others play its share. Each runner uses its own connectors' state: call `sync_connectors()` before.

        Args:
            num_episodes: At least 1.
            seeds: One integer per episode, for its reset. None: a group with a seed uses the same seeds in each call,
                for any number of runners; a group without one uses none.
            explore: Sample actions, instead of taking the most likely ones.

        Returns:
            The evaluation of all episodes.

        Raises:
            ConfigError: If a number is invalid.
            Exception: Any error of a runner's `evaluate()`.
        """
        self._begin("evaluate()")
        return evaluate_in(self._fleet, self._config, num_episodes, seeds, explore)

    def get_metrics(self) -> dict[str, Any]:
        """Return the metrics of all runners together, in the format of `MultiAgentEnvRunner.get_metrics()`.

        Only parts that were returned count. "weights_seq_no" belongs to the last part. Counts and sums are added; means
        cover everything that was counted, those of episodes the last `metrics_num_episodes_for_smoothing` of all
        runners.

        Since the last report, there are also "num_samples_dropped" (calls of lost runners), "num_env_runner_restarts"
        and "seconds_waited" (in `sample()` and `sample_ready()`). "num_healthy_env_runners" is the current number.
        """
        return self._metrics.report(self._fleet, self.module)

    # Changing the number of runners.

    def resize(self, num_env_runners: int) -> None:
        """Change the number of runners, and replace those that are lost.

        Connectors are synchronised, including those of new runners. If the number falls, the last runners close their
        envs and end; their samples are still returned. The call waits for new runners.

        Modules that explore by a schedule count with `config.num_env_runners`, which does not change in older runners.

        Args:
            num_env_runners: At least 1. A group with its runner in this process can't be resized.

        Raises:
            ConfigError: If the number is invalid.
            Exception: The first error of an env's close(), or an error of `EnvRunnerGroup`. The group then has no new
                runners, and lost ones stay lost.
        """
        self._begin("resize()")
        check_integer("num_env_runners", num_env_runners, least=1)
        if self._is_here:
            raise ConfigError("a group with num_env_runners=0 has its one runner in this process and can't be resized; "
                              "make a group with num_env_runners=1 or more")  # fmt: skip
        sizes.resize(self._fleet, num_env_runners)

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the state of the group: the newest weights, the counters, and each runner's state.

        See `MultiAgentEnvRunner.get_state()`. `fastmarl.checkpoint.save_state()` writes it to a folder.

        It waits until the runners have finished their earlier calls. Parts that were not returned are not included. A
        runner that is being replaced is included as of its last batch.
        """
        self._begin("get_state()")
        return self._state.get()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state()` returned. Parts in flight, or not yet returned, are dropped.

        If the number of runners is the same, each runner continues from the state of its index; a runner with another
        incarnation is replaced for that. Otherwise all start with the merged state of all connectors. The number of the
        weights is the saved one, or one above the group's if that is higher. `group.module` gets the weights, too.

        Args:
            state: The state.

        Raises:
            ConfigError: If the state is invalid or belongs to other modules. Nothing was changed.
        """
        self._begin("set_state()")
        self._state.set(state)

    # Stopping.

    def stop(self) -> None:
        """End all runners; raises the first error of an env's close(). Stopping twice is allowed.

        A runner that is sampling gets a short time to finish before it is killed.
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
        """Prepare a method that calls runners; see `_check_usable()`."""
        self._check_usable(method)
        self._fleet.recover()

    def _check_usable(self, method: str) -> None:
        """Check that the group is open and that no other call is under way.

        Raises:
            RunnerStoppedError: If the group was stopped.
            RunnerBusyError: If another call is under way.
        """
        self._check_open()
        self._fleet.check_idle(method)

    def _check_open(self) -> None:
        if self._is_over:
            raise RunnerStoppedError("this group was stopped; make a new one")
        if not self._fleet.actors.is_running:
            raise RunnerStoppedError("Ray was shut down, and the runners of this group with it; make a new one")
