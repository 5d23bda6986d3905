"""The standalone runner, which delegates each method to a component and allows one call at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import gymnasium as gym

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import EnvToModule
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import RunnerStoppedError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.objects.html_table import html_table
from fastmarl.core.objects.public import public
from fastmarl.core.store.request import Request
from fastmarl.runner.loop.building import spaces_of
from fastmarl.runner.loop.config_changes import change_config, of_worker
from fastmarl.runner.loop.evaluation import Evaluator
from fastmarl.runner.loop.listeners import Listeners
from fastmarl.runner.loop.output import make_output
from fastmarl.runner.loop.policy_changes import ChangesPolicies, PolicyChanges
from fastmarl.runner.loop.resources import Resources
from fastmarl.runner.loop.runner_metrics import Increment
from fastmarl.runner.loop.sampling import Sampling
from fastmarl.runner.metrics.metrics_logger import MetricsLogger
from fastmarl.runner.state.checkpointable import Checkpointable
from fastmarl.runner.state.state import RunnerState


@public("fastmarl")
class MultiAgentEnvRunner(Checkpointable, ChangesPolicies):
    """Samples multi-agent episodes from several envs, with the API of the RLlib class of the same name.

    ```python
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="mpe2.simple_spread_v3"))
    episodes = runner.sample(num_timesteps=1000)
    ```

    As a context manager, the runner is stopped at the end of the `with` block.

    Args:
        config: Options of the runner.
        worker_index: Index of this runner; overrides `worker_index` of the config.
        num_workers: Number of runners; overrides `num_env_runners` of the config.
        recreated_worker: True if this runner replaces a lost one; its `incarnation` is then increased by one.
        spaces: Stored as an attribute, otherwise unused.
        tune_trial_id: Stored as an attribute, otherwise unused.
        kwargs: Other arguments of the RLlib class, which have no effect there either. Unknown arguments cause a
            warning.
    """

    @exits_as_errors()
    def __init__(
        self,
        config: EnvRunnerConfig,
        *,
        worker_index: int | None = None,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        spaces: Mapping[str, Any] | None = None,
        tune_trial_id: str | None = None,
        **kwargs: Any,
    ):
        config = of_worker(config, worker_index, num_workers, recreated_worker, kwargs)
        self.worker_index = config.worker_index
        self.num_workers = config.num_env_runners if num_workers is None else num_workers
        self.spaces, self.tune_trial_id = spaces or {}, tune_trial_id
        self._stopped = False
        self._calls = CallGuard()
        self._listeners = Listeners(self, config)
        self._resources = Resources(config)
        try:
            self._sampling = Sampling(self._resources, self._listeners)
            self._evaluation = Evaluator(self._sampling)
            self._policy_changes = PolicyChanges(self._sampling)
            self._state = RunnerState(self._sampling, self._calls)
            self._sampling.announce_envs()
            self._sampling.output = make_output(config)
        except BaseException:
            self._resources.close()
            raise

    def __repr__(self) -> str:
        name = type(self).__name__
        if "_state" not in vars(self):
            return f"<{name}, not made>"
        envs = f"{self.num_envs} env{'s' * (self.num_envs > 1)}"
        steps = self.num_env_steps_sampled_lifetime
        return (f"<{name} of {self._env_name()}: {envs}, modules {list(self.module)} on {self._device()}, "
                f"{steps:,} env steps sampled{', stopped' * self._stopped}>")  # fmt: skip

    def _repr_html_(self) -> str:
        if "_state" not in vars(self):
            return html_table((), [(repr(self),)])
        counts = self._resources.counts.lifetime
        rows = [
            ("env", self._env_name()),
            ("envs", f"{self.num_envs:,}"),
            ("modules", ", ".join(self.module)),
            ("device", self._device()),
            ("env steps sampled", f"{counts.env_steps:,}"),
            ("episodes ended", f"{counts.episodes:,}"),
        ]
        return html_table((), rows, title=f"{type(self).__name__}{', stopped' * self._stopped}")

    def _env_name(self) -> str:
        env = self.config.env
        return env if isinstance(env, str) else getattr(env, "__name__", repr(env))

    def _device(self) -> str:
        return str(next((parameter.device for parameter in self.module.parameters()), self.config.device))

    # Properties.

    @property
    def config(self) -> EnvRunnerConfig:
        """The options. To change them, assign a modified copy:

        ```python
        runner.config = dataclasses.replace(runner.config, env_config={"size": 9}, explore=False)
        runner.make_env()
        ```

        The copy is validated immediately. Env options take effect with the next `make_env()`, module options with the
        next `make_module()`, and all others with the next call of `sample()`; see the table in docs/options.md.
        `add_module()` and similar methods also replace the config.

        Raises:
            ConfigError: If an option is invalid, or cannot change after the runner is created. Nothing is changed.
            EnvCheckError: If `env` is not an environment. Nothing is changed.
        """
        return self._resources.wanted

    @config.setter
    def config(self, config: EnvRunnerConfig) -> None:
        self._check_changeable("the setter of runner.config")
        change_config(self._resources, self._listeners, config)

    @property
    def num_envs(self) -> int:
        return self._resources.num_envs

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Env steps of all finished calls of `sample()`."""
        return self._resources.counts.lifetime.env_steps

    @property
    def env(self) -> Any:
        """The vector of envs; `env.envs` lists the envs or, for array-based envs, the batches."""
        return self._sampling.rollout.env

    @property
    def module(self) -> MultiRLModule:
        """All modules. Train them in place, or train copies and call `set_weights()`."""
        return self._resources.module

    @property
    def env_to_module(self) -> EnvToModule:
        """Module id -> connectors, with their state; see docs/connectors.md."""
        return self._resources.env_to_module

    @property
    def module_to_env(self) -> EnvToModule:
        """Module id -> connectors; the state covers only the connectors that change outputs and actions."""
        return self._resources.env_to_module.sides()["module_to_env_connector"]

    @property
    def running_episodes(self) -> set[str]:
        """Ids of the running episodes, which the next `sample()` continues."""
        return self._sampling.running_episodes()

    @property
    def metrics(self) -> MetricsLogger:
        """Logger for callbacks: `log_value` adds values, and `peek` also reads the counters of the runner."""
        return self._resources.metrics

    @property
    def episodes_to_numpy(self) -> bool:
        """The option `episodes_to_numpy`, always True."""
        return self.config.episodes_to_numpy

    @property
    def inference_backends(self) -> dict[str, str]:
        """Module id -> inference backend; see docs/inference.md.

        The backend is "native", "cuda graph" with the number of batch sizes, or "torch" (or "torch.compile") with the
        reason why the others cannot run the module.
        """
        policies = self._sampling.rollout.policies
        return {module_id: policies.backend(module_id) for module_id in self.module}

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Return the spaces of the modules and envs.

        Returns:
            Dict of module id -> (observation space, action space). The keys "__env__" and "__env_single__" contain the
            spaces of a single env, as Dict spaces keyed by agent id.
        """
        envs = self._resources.envs
        agents = {agent: envs.spaces(0, agent) for agent in envs.named_agents}
        of_env = (
            gym.spaces.Dict({agent: spaces[0] for agent, spaces in agents.items()}),
            gym.spaces.Dict({agent: spaces[1] for agent, spaces in agents.items()}),
        )
        of_modules = {module_id: spaces_of(module) for module_id, module in self.module.items()}
        return {"__env__": of_env, "__env_single__": of_env, **of_modules}

    def get_metrics(self) -> dict[str, Any]:
        """Return all metrics since the last call of this method and reset them.

        Returns:
            Nested dict of plain numbers with the keys used in RLlib: counts and times since the last call, and
            statistics of the last `metrics_num_episodes_for_smoothing` episodes (see docs/metrics.md).
        """
        return self._resources.counts.report(self._resources.weights_seq_no, self.module)

    # Sampling.

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[MultiAgentEpisode]:
        """Step all envs and return the sampled episodes.

        Args:
            num_timesteps: Minimum number of env steps (or agent steps, see `count_steps_by`) over all envs. Running
                episodes are cut and continued by the next call.
            num_episodes: Exact number of complete episodes: the first ones to start, regardless of their length.
                Running episodes are dropped first. Envs without another episode to start wait for the others to finish.
                If neither number is given, each env runs for `rollout_fragment_length` steps or, with
                `batch_mode="complete_episodes"`, for one complete episode.
            explore: True to sample actions, False for the most likely actions, None for the configured value.
            random_actions: Choose actions uniformly at random, without the modules.
            force_reset: Drop running episodes first.

        Returns:
            Chunks of episodes: finished episodes in the order in which they finished, then running episodes by env
            index.

        Raises:
            MultiAgentEnvError, ModuleOutputError: If an env or a module returns an invalid result. Running episodes are
                then dropped, and the next call returns the finished episodes. The same applies to errors of envs, which
                propagate, and to interrupts.
            OfflineError: If files of `output` could not be written. The next call tries again and returns the episodes.
            RunnerBusyError: If another call is running; that call continues.
        """
        self.assert_healthy()
        request = Request(num_timesteps, num_episodes, explore, random_actions, force_reset)
        self._calls.run("sample()", self._sampling.sample, {"request": request})
        # Nothing is called after this, so no signal is handled before the caller has the episodes.
        episodes, self._sampling.unreturned = self._sampling.unreturned, []
        return episodes

    def sample_get_state_and_metrics(self) -> tuple[list[MultiAgentEpisode], dict[str, Any], dict[str, Any]]:
        """Call `sample()` and return (episodes, state without weights, metrics)."""
        episodes = self.sample()
        return episodes, self.get_state(not_components="rl_module"), self.get_metrics()

    def run(self) -> Iterator[list[MultiAgentEpisode]]:
        """Yield the results of `sample()` indefinitely, with the configured amounts."""
        while True:
            yield self.sample()

    def evaluate(
        self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False
    ) -> list[MultiAgentEpisode]:
        """Sample complete episodes to evaluate the modules.

        Episode k of n runs in env k % num_envs, so env i runs n // num_envs episodes, plus one if i < n % num_envs; the
        selection does not depend on episode length. Connector state is used but not changed; counters, random streams
        and all metrics except failures are also unchanged. Callbacks are not called. Running episodes are dropped; the
        next `sample()` starts new episodes.

        Args:
            num_episodes: Number of episodes, n.
            seeds: Integer seeds of the n resets. If None, a seeded runner uses the same seeds in each call, which
                differ from the training seeds, and an unseeded runner uses none.
            explore: True to sample actions, False for the most likely actions.

        Returns:
            The episodes in the order of `seeds`; an episode in which an agent respawned is split into several chunks.
            Episodes that finished in a failed call come first.

        Raises:
            ConfigError: If a number is invalid, or an array-based batch cannot be seeded per episode.
            Exception: Any error of `sample()`. The next call of `evaluate()` returns the finished episodes.
        """
        self.assert_healthy()
        arguments = {"num_episodes": num_episodes, "seeds": seeds, "explore": explore}
        self._calls.run("evaluate()", self._evaluation.evaluate, arguments)
        episodes, self._evaluation.unreturned = self._evaluation.unreturned, []  # as in `sample()`
        return episodes

    # Envs and modules.

    def make_env(self) -> None:
        """Close the envs and create new ones from the current `config`; running episodes are dropped.

        An error while closing old envs only causes a warning. After any other error the runner has no envs, and this
        method must be called again before the next `sample()`. If the new envs have other spaces, call `make_module()`
        next.
        """
        self._check_not_stopped()
        self._calls.run("make_env()", self._sampling.make_env, {})

    def make_module(self) -> None:
        """Create new modules from the current `config`; running episodes are dropped.

        Modules have fresh weights unless passed as instances. Connectors keep their state unless their option or their
        spaces have changed.
        """
        self._check_not_stopped()
        self._calls.run("make_module()", self._sampling.make_module, {})

    # Remote control.

    def ping(self) -> str:
        """Return "pong", to show that the runner responds."""
        return "pong"

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `func(runner, ...)`. Errors propagate, whereas the RLlib runner exits its process."""
        return func(self, *args, **kwargs)

    # Stopping.

    def assert_healthy(self) -> None:
        """Raise RunnerStoppedError after `stop()`, or if a failed `make_env()` left no envs."""
        self._check_not_stopped()
        self._resources.check_envs()

    def _check_changeable(self, method: str) -> None:
        """Raise an error unless modules may change now: between calls, or in callbacks of the current call."""
        self._check_not_stopped()
        self._calls.check(method, or_within=True)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise RunnerStoppedError("this runner was stopped and its envs are closed; create a new one")
        self._resources.finish()

    @exits_as_errors()
    def stop(self) -> None:
        """Close the envs and files. Calling it again is allowed and completes an interrupted stop.

        Raises:
            RunnerBusyError: If a call that needs the envs is running.
            OfflineError: If files of `output` could not be written.
        """
        self._calls.check("stop()")
        self._stopped = True
        try:
            self._resources.close()
        finally:
            if self._sampling.output is not None:
                self._sampling.output.close()

    def __enter__(self) -> Self:
        """Return the runner; raise RunnerStoppedError after `stop()`."""
        self._check_not_stopped()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def begin_increments(runner: MultiAgentEnvRunner) -> None:
    """Start counting for `take_increment()`; must be called right after the runner is created.

    The first increment includes values logged by callbacks when the envs were created.
    """
    runner._resources.metrics.begin_journal()


def take_increment(runner: MultiAgentEnvRunner) -> Increment:
    """Return the counts since the last increment, for aggregation over several runners; see `RunnerMetrics`."""
    return runner._resources.counts.take_increment()


def begin_schedules(runner: MultiAgentEnvRunner, steps: Mapping[str, int]) -> None:
    """Continue the exploration schedule of each module from this number of env steps."""
    runner._resources.steps_before = dict(steps)
