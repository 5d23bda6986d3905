"""What `with`, `repr()` and RLlib's class of checkpointable objects ask of a runner."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from fastmarl.checkpoint import STATE_FILE
from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors.env_to_module import EnvToModule
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.modules import MultiRLModule
from fastmarl.runner.metrics import RunnerMetrics
from fastmarl.version import __version__


class RunnerInterface:
    """Methods that need little of a runner."""

    config: EnvRunnerConfig
    module: MultiRLModule
    env_to_module: EnvToModule
    _counts: RunnerMetrics
    _stopped: bool

    def assert_healthy(self) -> None:
        raise NotImplementedError

    def sample(self) -> list[MultiAgentEpisode]:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def run(self) -> Iterator[list[MultiAgentEpisode]]:
        """`sample()` for ever, with the configured amounts."""
        while True:
            yield self.sample()

    def __enter__(self) -> Self:
        """For a `with` block, at whose end the runner is stopped.

        Raises:
            RunnerStoppedError: it was before.
        """
        self.assert_healthy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        name, values = type(self).__name__, vars(self)
        if not {"config", "module", "_counts", "_stopped"} <= values.keys():
            return f"<{name}, not made>"
        env, num_envs = self.config.env, self.config.num_envs_per_env_runner
        of_env = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        envs = f"{num_envs} env{'s' * (num_envs > 1)}"
        device = next((parameter.device for parameter in self.module.parameters()), self.config.device)
        steps = self._counts.lifetime["num_env_steps_sampled"]
        return (f"<{name} of {of_env}: {envs}, modules {list(self.module)} on {device}, {steps:,} env steps sampled"
                f"{', stopped' * self._stopped}>")  # fmt: skip

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments with which this class makes a runner like this one."""
        return (), {"config": self.config}

    def get_metadata(self) -> dict[str, str]:
        """What JSON can hold and nobody needs to restore a checkpoint: the version, and the name of its main file."""
        return {"fastmarl_version": __version__, "state_file": STATE_FILE}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Names of components of `get_state()` that have a `get_state()` and `set_state()` of their own, and these."""
        return [("rl_module", self.module), ("env_to_module_connector", self.env_to_module)]
