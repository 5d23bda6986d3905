"""The standalone runner: what users call. Each method hands on to one of the runner's parts, a call at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import gymnasium as gym

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import EnvToModule
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import RunnerStoppedError
from fastmarl.core.exits import exits_as_errors
from fastmarl.core.html_table import html_table
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.public import public
from fastmarl.core.runner.building import spaces_of
from fastmarl.core.runner.checkpointable import Checkpointable
from fastmarl.core.runner.config_changes import change_config, of_worker
from fastmarl.core.runner.evaluation import Evaluator
from fastmarl.core.runner.listeners import Listeners
from fastmarl.core.runner.metrics import Increment
from fastmarl.core.runner.metrics_logger import MetricsLogger
from fastmarl.core.runner.output import make_output
from fastmarl.core.runner.policy_changes import ChangesPolicies, PolicyChanges
from fastmarl.core.runner.resources import Resources
from fastmarl.core.runner.sampling import Sampling
from fastmarl.core.runner.state import RunnerState


@public("fastmarl")
class MultiAgentEnvRunner(Checkpointable, ChangesPolicies):
    """Samples episodes of many agents in several envs. The API is that of RLlib's class of the same name.

    ```python
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="mpe2.simple_spread_v3"))
    episodes = runner.sample(num_timesteps=1000)
    ```

    At the end of a `with` block the runner is stopped.

    Args:
        config: the options.
        worker_index, num_workers: which of how many runners this is: they come before `worker_index` and
            `num_env_runners` of the config.
        recreated_worker: whether it takes the place of a runner that was lost: its `incarnation` is one more.
        spaces, tune_trial_id: are kept as attributes, and not used.
        kwargs: other arguments of RLlib's class have no effect there, either. Unknown ones are a warning.
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

    # What a runner has.

    @property
    def config(self) -> EnvRunnerConfig:
        """The options. To change some, put a changed copy in its place:

        ```python
        runner.config = dataclasses.replace(runner.config, env_config={"size": 9}, explore=False)
        runner.make_env()
        ```

        They are checked at once. Those that envs are made of are in force from the next `make_env()` on, those of the
        modules from the next `make_module()`, and others from the next call of `sample()`; docs/options.md has a table.
        `add_module()` and its like replace the config, too.

        Raises:
            ConfigError: something can't be right, or can't change in a runner that is made. Nothing was changed.
            EnvCheckError: `env` is no environment. Nothing was changed.
        """
        return self._resources.wanted

    @config.setter
    def config(self, config: EnvRunnerConfig) -> None:
        self._check_changeable("a change of runner.config")
        change_config(self._resources, self._listeners, config)

    @property
    def num_envs(self) -> int:
        return self._resources.num_envs

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Env steps of all calls of `sample()` that are over."""
        return self._resources.counts.lifetime.env_steps

    @property
    def env(self) -> Any:
        """The vector of envs; `env.envs` lists them (or the batches of them: one, or `worker_num_splits`)."""
        return self._sampling.rollout.env

    @property
    def module(self) -> MultiRLModule:
        """All modules; train them in place, or copies and `set_weights()`."""
        return self._resources.module

    @property
    def env_to_module(self) -> EnvToModule:
        """The connectors by module id, and their state, see docs/connectors.md."""
        return self._resources.env_to_module

    @property
    def module_to_env(self) -> EnvToModule:
        """All connectors by module id, and the state of those that change outputs and actions."""
        return self._resources.env_to_module.sides()["module_to_env_connector"]

    @property
    def running_episodes(self) -> set[str]:
        """Ids of the episodes that are running: `sample()` goes on with them. Others have ended, or were dropped."""
        return self._sampling.running_episodes()

    @property
    def metrics(self) -> MetricsLogger:
        """Takes values of callbacks (`log_value`), and knows the runner's own counts (`peek`)."""
        return self._resources.counts.logger

    @property
    def episodes_to_numpy(self) -> bool:
        """The option of this name, which is always True."""
        return self.config.episodes_to_numpy

    @property
    def inference_backends(self) -> dict[str, str]:
        """Module id -> what runs it: "lean", "cuda graph" and for how many batch sizes, or "torch" (or "torch.compile")
        and why not by these; see docs/inference.md."""
        policies = self._sampling.rollout.policies
        return {module_id: policies.backend(module_id) for module_id in self.module}

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """(observation space, action space) of every module by its id, and of one env (Dict spaces by agent id) under
        "__env__" and "__env_single__"."""
        envs = self._resources.envs
        agents = {agent: envs.spaces(0, agent) for agent in envs.named_agents}
        of_env = (
            gym.spaces.Dict({agent: spaces[0] for agent, spaces in agents.items()}),
            gym.spaces.Dict({agent: spaces[1] for agent, spaces in agents.items()}),
        )
        of_modules = {module_id: spaces_of(module) for module_id, module in self.module.items()}
        return {"__env__": of_env, "__env_single__": of_env, **of_modules}

    def get_metrics(self) -> dict[str, Any]:
        """Nested dict of plain numbers under RLlib's keys: counts and times since the last call, and statistics of the
        last `metrics_num_episodes_for_smoothing` episodes (see docs/metrics.md)."""
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
        """Step all envs, and return what happened.

        Args:
            num_timesteps: env steps (or agent steps, by `count_steps_by`) to make at least, over all envs; running
                episodes are cut and go on in the next call.
            num_episodes: exactly so many whole episodes, those that begin first, however long they take; running ones
                are dropped before. An env that can't begin one more is not stepped until the others are done. With
                neither number: `rollout_fragment_length` steps of each env, or (`batch_mode="complete_episodes"`) a
                whole episode of each.
            explore: sample actions, or take the most likely ones. None: as configured.
            random_actions: act uniformly at random, without the modules.
            force_reset: drop running episodes first.

        Returns:
            Chunks of episodes: those that finished in order of finishing, then running ones in env order.

        Raises:
            MultiAgentEnvError, ModuleOutputError, or whatever an env raises: running episodes are then dropped;
                episodes that had finished are returned by the next call. So it is after an interrupt, too.
            OfflineError: with `output`: files could not be written. The next call tries it again, and returns the
                episodes.
            RunnerBusyError: another call is under way; it goes on.
        """
        self.assert_healthy()
        arguments = {
            "num_timesteps": num_timesteps,
            "num_episodes": num_episodes,
            "explore": self.config.explore if explore is None else explore,
            "random_actions": random_actions,
            "force_reset": force_reset,
        }
        self._calls.run("sample()", self._sampling.sample, arguments)
        # No call from here on: so no signal is handled before the caller has the episodes.
        episodes, self._sampling.unreturned = self._sampling.unreturned, []
        return episodes

    def sample_get_state_and_metrics(self) -> tuple[list[MultiAgentEpisode], dict[str, Any], dict[str, Any]]:
        """Sample, and return (the episodes, the state without weights, the metrics)."""
        episodes = self.sample()
        return episodes, self.get_state(not_components="rl_module"), self.get_metrics()

    def run(self) -> Iterator[list[MultiAgentEpisode]]:
        """`sample()` for ever, with the configured amounts."""
        while True:
            yield self.sample()

    def evaluate(
        self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False
    ) -> list[MultiAgentEpisode]:
        """Sample whole episodes to evaluate the modules.

        Episode k of n is made by env k % num_envs, so that env i makes n // num_envs of them, and one more if
        i < n % num_envs; none is chosen by its length. What connectors know is used and stays as it is; counters,
        metrics other than failures, and random streams stay, too, and callbacks are not called. Running episodes are
        dropped, and the next `sample()` begins others.

        Args:
            num_episodes: n.
            seeds: n integers, for the resets. None: in a runner with a seed, others than those of training, the same
                in each call; else none.
            explore: sample actions, or take the most likely ones.

        Returns:
            The episodes, in the order of `seeds`; one in which an agent has respawned is in several chunks. If the last
            call has failed, those that had finished in it come before.

        Raises:
            ConfigError: the numbers are none, or the batch that steps in arrays can't be seeded for each episode.
            Else what `sample()` raises. Episodes that had finished are returned by the next call of `evaluate()`.
        """
        self.assert_healthy()
        arguments = {"num_episodes": num_episodes, "seeds": seeds, "explore": explore}
        self._calls.run("evaluate()", self._evaluation.evaluate, arguments)
        episodes, self._evaluation.unreturned = self._evaluation.unreturned, []  # as in `sample()`
        return episodes

    # Envs and modules.

    def make_env(self) -> None:
        """Close the envs and create them again, as `config` has them now; running episodes are dropped.

        An old env that fails to close is a warning. Should the rest fail, there are no envs, and this must be called
        again before the next `sample()`. Where new envs have other spaces than the old ones, `make_module()` is next.
        """
        self._check_not_stopped()
        self._calls.run("make_env()", self._sampling.make_env, {})

    def make_module(self) -> None:
        """Create the modules as `config` has them now, with fresh weights unless given as instances; running episodes
        are dropped.

        Connectors keep what they have learned, unless their option or what they see has changed.
        """
        self._check_not_stopped()
        self._calls.run("make_module()", self._sampling.make_module, {})

    # From afar.

    def ping(self) -> str:
        """Return "pong", a sign of life."""
        return "pong"

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `func(runner, ...)`. Its errors come through; RLlib's runner ends its process then."""
        return func(self, *args, **kwargs)

    # The end.

    def assert_healthy(self) -> None:
        """Raises RunnerStoppedError after stop(), and after a `make_env()` that failed, which has left no envs."""
        self._check_not_stopped()
        self._resources.check_envs()

    def _check_changeable(self, method: str) -> None:
        """Modules are changed between calls, or in callbacks of the one under way."""
        self._check_not_stopped()
        self._calls.check(method, or_within=True)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise RunnerStoppedError("this runner was stopped and its envs are closed; make a new one")
        self._resources.finish()

    @exits_as_errors()
    def stop(self) -> None:
        """Close the envs and files; sampling is over. Stopping twice is fine, and finishes what an interrupt cut short.

        Raises:
            RunnerBusyError: a call is under way, which needs them.
            OfflineError: with `output`: files could not be written.
        """
        self._calls.check("stop()")
        self._stopped = True
        try:
            self._resources.close()
        finally:
            if self._sampling.output is not None:
                self._sampling.output.close()

    def __enter__(self) -> Self:
        """Raises RunnerStoppedError after stop()."""
        self._check_not_stopped()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def begin_increments(runner: MultiAgentEnvRunner) -> None:
    """Begin to count for `take_increment()`, once the runner is made: the first increment has what its callbacks have
    logged when envs were made."""
    runner._resources.counts.logger.begin_journal()


def take_increment(runner: MultiAgentEnvRunner) -> Increment:
    """Return what was counted since the last call, for the metrics of several runners; see `RunnerMetrics`."""
    return runner._resources.counts.take_increment()
