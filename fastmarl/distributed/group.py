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
            ...  # train group.module on part.batch
            group.set_weights()
    ```

    Runner i, counting from 0, has `worker_index` i + `config.worker_index` + 1, which determines its seeds.
    `make_batch` creates batches in the runner processes. Each call of a runner carries the latest weights.

    A runner whose process exits or times out is replaced while the others continue. Its replacement has the latest
    weights, the connector state after its last batch, and a new `incarnation`, and thus unused seeds. Errors of an env,
    a module or `make_batch` are raised by the next sampling call; the results of other runners are kept for later
    calls.

    Args:
        config: Config of the runners.
        num_env_runners: Number of runners; 0 means one runner in this process, without Ray.
        make_batch: Function (episodes, modules of the runner) -> nested dict of arrays.
        placement_strategy: "SPREAD" over the nodes of the Ray cluster, or "DEFAULT", which fills one node after
            another.
        max_restarts: How many times in a row a runner is replaced without delivering a batch; -1 means no limit.
        sample_timeout_s: Time limit of a call in seconds, measured from the end of the previous call of the runner.
        start_timeout_s: Time limit in seconds for placing and creating a runner.
        actor_options: Options of Ray actors, such as `num_cpus` (default 1), `resources` or `runtime_env`.

    Attributes:
        module: The modules, for training in this process.

    Raises:
        ConfigError: If an option is invalid, or an object required by the runners cannot be sent to them. Errors of
            runner constructors are raised unchanged.
        EnvRunnerLostError: If a runner was not ready in time, or its process has exited.
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
        """Number of runners in other processes, including runners being replaced."""
        return 0 if self._is_here else len(self._fleet.runners)

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners not known to be lost or being replaced."""
        return self._fleet.num_ready

    @property
    def weights_seq_no(self) -> int:
        """Sequence number of the latest weights: the number of `set_weights()` calls."""
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
        """Call `sample()` once in every runner, with the latest weights.

        For `num_timesteps`, `num_episodes`, `explore`, `random_actions` and `force_reset`, see
        `MultiAgentEnvRunner.sample()`.

        Returns:
            The parts, in runner order. A runner being replaced has no part; if no runner delivers one, the call waits
            for replacements. Results of earlier calls come first: unreturned parts of `sample_ready()` or, after an
            error, parts of the other runners.

        Raises:
            EnvRunnerLostError: If a runner was replaced `max_restarts` times in a row. The others continue.
            RunnerStoppedError: If the group was stopped.
            ConfigError: If both numbers are given, or one is negative or not an integer.
            Exception: Any error of an env, a module, a connector, a callback or `make_batch`. Its notes contain the
                traceback and the runner index.
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
        """Yield parts from any ready runner, indefinitely.

        When the next part is requested, the runner of the last one is called again, with the latest weights at that
        time.

        You can leave the loop at any time: running calls continue, and the next `sample_ready()` or `sample()` returns
        their results. Other methods may be called within the loop.

        `num_timesteps`, `num_episodes`, `explore`, `random_actions` and `force_reset` are passed to each call; see
        `MultiAgentEnvRunner.sample()`.

        Args:
            in_flight: Number of calls queued at each runner, at least 1, so that no runner waits for the learner. The
                weights of a result are up to this number of runner calls old. A runner in this process always has 1.

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
            module: All modules, the only module, or a dict of module id -> weights as returned by `get_state()`; None
                uses `group.module`. All modules must be included.

        Returns:
            The sequence number of the weights, which is the `weights_seq_no` of parts and rows sampled with them.

        Raises:
            ConfigError: If the weights belong to other modules; nothing is changed.
            RunnerBusyError: If a signal handler calls this method while it is running; the running call continues.
            RunnerStoppedError: If the group was stopped.
        """
        self._check_open()
        weights = weights_by_module(self.module, self.module if module is None else module)
        check_all(self.module, weights)
        return self._fleet.weights.publish(weights)

    def get_weights(self) -> dict[str, Any]:
        """Return a copy of the latest weights: module id -> parameter name -> array."""
        self._check_open()
        return self._fleet.weights.fetch()[0]

    # All runners.

    def foreach(self, function: Callable[..., Any], *args: Any) -> dict[int, Any]:
        """Call `function(runner, *args)` in the runner processes, after their earlier calls.

        Args:
            function: The function to call.
            args: Other arguments of the function.

        Returns:
            Dict of runner index -> result, without runners that are being replaced or were lost during the call.

        Raises:
            Exception: The first error of the function, with the runner index as a note.
        """
        self._begin("foreach()")
        return self._fleet.ask(self._fleet.ready(), "apply", function, args)

    def sync_connectors(self) -> None:
        """Merge the connector states of all runners and send the result to all of them.

        The call waits until the runners have finished their earlier calls. If a runner is being replaced, its state
        after its last batch is included.
        """
        self._begin("sync_connectors()")
        connectors.synchronise(self._fleet)

    def evaluate(self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False) -> Evaluation:
        """Play complete episodes with the latest weights in all runners and summarise their returns.

        See `fastmarl.evaluate()`. Training episodes continue afterwards as if there had been no evaluation.

        The episodes are divided evenly among the runners, and each runner has `sample_timeout_s` for its share. If a
        runner is lost, the others play its share. Connector states may differ between runners unless you call
        `sync_connectors()` first.

        Args:
            num_episodes: Number of episodes, at least 1.
            seeds: Reset seeds, one integer per episode. If None, a seeded group uses the same seeds in each call, for
                any number of runners, and an unseeded group uses none.
            explore: True to sample actions, False for the most likely actions.

        Returns:
            The evaluation of all episodes.

        Raises:
            ConfigError: If a number is invalid.
            Exception: Any error of `evaluate()` in a runner.
        """
        self._begin("evaluate()")
        return evaluate_in(self._fleet, self._config, num_episodes, seeds, explore)

    def get_metrics(self) -> dict[str, Any]:
        """Return the combined metrics of all runners, in the format of `MultiAgentEnvRunner.get_metrics()`.

        Only returned parts count. "weights_seq_no" belongs to the last part. Counts and sums are added over runners.
        Means cover everything counted, except means over episodes, which cover the last
        `metrics_num_episodes_for_smoothing` episodes of all runners.

        The report also contains "num_samples_dropped" (calls of lost runners), "num_env_runner_restarts" and
        "seconds_waited" (in `sample()` and `sample_ready()`), all since the last report, and the current
        "num_healthy_env_runners".
        """
        return self._metrics.report(self._fleet, self.module)

    # Changing the number of runners.

    def resize(self, num_env_runners: int) -> None:
        """Change the number of runners and replace lost ones.

        Connectors are synchronised, also in new runners. If the number decreases, the last runners close
        their envs and exit; their samples are still returned. The call waits for new runners.

        Exploration schedules use `config.num_env_runners`, which does not change in existing runners.

        Args:
            num_env_runners: New number of runners, at least 1. A group with its runner in this process cannot be
                resized.

        Raises:
            ConfigError: If the number is invalid.
            Exception: The first error from closing envs, or an error listed for `EnvRunnerGroup`. The group then has no
                new runners, and lost runners remain lost.
        """
        self._begin("resize()")
        check_integer("num_env_runners", num_env_runners, least=1)
        if self._is_here:
            raise ConfigError("a group with num_env_runners=0 has a single runner, in this process, and can't be "
                              "resized; create a group with num_env_runners >= 1")  # fmt: skip
        sizes.resize(self._fleet, num_env_runners)

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the state of the group: the latest weights, the counters, and the state of each runner.

        See `MultiAgentEnvRunner.get_state()`. `fastmarl.checkpoint.save_state()` writes it to a directory.

        The call waits until the runners have finished their earlier calls. Unreturned parts are not included. For a
        runner being replaced, the state after its last batch is included.
        """
        self._begin("get_state()")
        return self._state.get()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `get_state()`. Parts in flight or not yet returned are dropped.

        If the number of runners is the same, each runner continues from the state saved for its index, and is replaced
        if its incarnation differs. Otherwise all runners start with the merged connector states. The weights get the
        saved sequence number, or one more than the current number of the group if that is higher. They are also loaded
        into `group.module`.

        Args:
            state: Result of `get_state()`.

        Raises:
            ConfigError: If the state is invalid or belongs to other modules. Nothing is changed.
        """
        self._begin("set_state()")
        self._state.set(state)

    # Stopping.

    def stop(self) -> None:
        """Stop all runners and raise the first error from closing envs. Stopping twice is allowed.

        A sampling runner gets a short time to finish before it is killed.
        """
        if not self._is_over:
            self._fleet.check_idle("stop()")
            self._close("stop()")

    def _close(self, method: str) -> None:
        if self._is_here or not self._fleet.actors.is_running:  # closes envs in this process; those in Ray are gone
            self._end()
        else:
            super()._close(method)

    def _begin(self, method: str) -> None:
        """Prepare a method that calls runners; see `_check_usable()`."""
        self._check_usable(method)
        self._fleet.recover()

    def _check_usable(self, method: str) -> None:
        """Check that the group is open and that no other call is running.

        Raises:
            RunnerStoppedError: If the group was stopped.
            RunnerBusyError: If another call is running.
        """
        self._check_open()
        self._fleet.check_idle(method)

    def _check_open(self) -> None:
        if self._is_over:
            raise RunnerStoppedError("this group was stopped; create a new one")
        if not self._fleet.actors.is_running:
            raise RunnerStoppedError("Ray was shut down along with the runners of this group; create a new group")
