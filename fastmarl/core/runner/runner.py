"""The standalone runner: what users call. Each method hands on to one of the runner's parts, a call at a time."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import gymnasium as gym

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import EnvToModule
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.exits import exits_as_errors
from fastmarl.core.inference.actors import MappingFn
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.public import public
from fastmarl.core.runner.building import spaces_of
from fastmarl.core.runner.checkpointable import Checkpointable
from fastmarl.core.runner.evaluation import Evaluator
from fastmarl.core.runner.listeners import Listeners
from fastmarl.core.runner.metrics import Increment, MetricsLogger
from fastmarl.core.runner.output import make_output
from fastmarl.core.runner.policy_changes import PolicyChanges, ToTrain
from fastmarl.core.runner.resources import Resources
from fastmarl.core.runner.sampling import Sampling
from fastmarl.core.runner.state import RunnerState


@public("fastmarl")
class MultiAgentEnvRunner(Checkpointable):
    """Samples episodes of many agents in several envs. The API is that of RLlib's class of the same name.

    ```python
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="mpe2.simple_spread_v3"))
    episodes = runner.sample(num_timesteps=1000)
    ```

    At the end of a `with` block the runner is stopped.
    """

    @exits_as_errors()
    def __init__(self, config: EnvRunnerConfig):
        if not isinstance(config, EnvRunnerConfig):
            raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
        self.worker_index = config.worker_index
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

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike, config: EnvRunnerConfig) -> Self:
        """A new runner with `config` and the state in the folder `path`."""
        runner = cls(config)
        try:
            runner.restore_from_path(path)
        except BaseException:
            runner.stop()
            raise
        return runner

    def __repr__(self) -> str:
        name = type(self).__name__
        if "_state" not in vars(self):
            return f"<{name}, not made>"
        env, steps = self.config.env, self._resources.counts.lifetime.env_steps
        of_env = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        envs = f"{self.num_envs} env{'s' * (self.num_envs > 1)}"
        device = next((parameter.device for parameter in self.module.parameters()), self.config.device)
        return (f"<{name} of {of_env}: {envs}, modules {list(self.module)} on {device}, {steps:,} env steps sampled"
                f"{', stopped' * self._stopped}>")  # fmt: skip

    # What a runner has.

    @property
    def config(self) -> EnvRunnerConfig:
        """What is in force: changes of policies replace it."""
        return self._resources.config

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
    def running_episodes(self) -> set[str]:
        """Ids of the episodes that are running: `sample()` goes on with them. Others have ended, or were dropped."""
        return self._sampling.running_episodes()

    @property
    def metrics(self) -> MetricsLogger:
        """Takes custom values from callbacks (`log_value`)."""
        return self._resources.counts.logger

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
        """Close the envs and create them again; running episodes are dropped. Should it fail, it must be called again
        before the next `sample()`."""
        self.assert_healthy()
        self._calls.run("make_env()", self._sampling.make_env, {})

    def make_module(self) -> None:
        """Create the modules, with fresh weights unless given as instances; running episodes are dropped."""
        self.assert_healthy()
        self._calls.run("make_module()", self._sampling.make_module, {})

    def add_module(
        self,
        module_id: str,
        module_spec: Any = None,
        *,
        new_agent_to_module_mapping_fn: MappingFn | None = None,
        new_should_module_be_updated: ToTrain | None = None,
        env_to_module_connector: Any = None,
        override: bool = False,
    ) -> RLModule:
        """Add a module, without a change to running episodes; give it weights with `set_weights({module_id: ...})`.

        Args:
            module_spec: RLModuleSpec, torch.nn.Module, or None for the default net, as in the option `policies`.
            new_agent_to_module_mapping_fn: the `policy_mapping_fn` of episodes that begin from now on.
            new_should_module_be_updated: `policies_to_train` from now on.
            env_to_module_connector: the module's connectors, as in the option of that name; None: what the option has
                for it. Connectors keep what they have learned: give a snapshot those of the original with
                `runner.env_to_module.set_state({module_id: runner.env_to_module.get_state()[original]})`.
            override: take the place of a module of that id, as if it had been removed first.

        Returns:
            The module.

        Raises:
            ConfigError: the id is taken, the module has no spaces, or a second module has no mapping function to choose
                among them. Nothing was changed.
        """
        self._check_changeable("add_module()")
        return self._policy_changes.add(
            module_id,
            module_spec,
            new_agent_to_module_mapping_fn,
            new_should_module_be_updated,
            env_to_module_connector,
            override,
        )

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: MappingFn | None = None,
        new_should_module_be_updated: ToTrain | None = None,
    ) -> RLModule:
        """Remove a module. It acts on in the episodes that are running, and is freed when the last of them has ended.

        Args:
            new_agent_to_module_mapping_fn: the `policy_mapping_fn` of episodes that begin from now on.
            new_should_module_be_updated: `policies_to_train` from now on.

        Returns:
            The module.

        Raises:
            ConfigError: there is no such module, or no other. Nothing was changed.
        """
        self._check_changeable("remove_module()")
        return self._policy_changes.remove(module_id, new_agent_to_module_mapping_fn, new_should_module_be_updated)

    def set_policy_mapping_fn(self, policy_mapping_fn: MappingFn) -> None:
        """Map the agents of episodes that begin from now on by another function."""
        self._check_changeable("set_policy_mapping_fn()")
        self._policy_changes.map_by(policy_mapping_fn)

    def should_module_be_updated(self, module_id: str, multi_agent_batch: Any = None) -> bool:
        """Whether a module learns, by `policies_to_train`."""
        return self.config.is_policy_to_train(module_id, multi_agent_batch)

    def _check_changeable(self, method: str) -> None:
        """Modules are changed between calls, or in callbacks of the one under way."""
        self.assert_healthy()
        self._calls.check(method, or_within=True)

    # The end.

    def assert_healthy(self) -> None:
        """Raises RunnerStoppedError after stop()."""
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
        self.assert_healthy()
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
