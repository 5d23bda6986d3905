"""RLlib's multi-agent env runner, sampling with the fastmarl core."""

import logging
from functools import cache
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_errors import StepFailedRecreateEnvError
from ray.rllib.env.env_runner import ENV_STEP_FAILURE, NUM_ENV_STEP_FAILURES_LIFETIME
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics import ENV_RESET_TIMER

from fastmarl.core.errors import ConfigError, RunningEpisodeError
from fastmarl.core.errors.exits import as_error, exits_as_errors
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.store.request import Request
from fastmarl.rllib.episodes.episode import MultiAgentEpisode, episode_class
from fastmarl.rllib.fixes import FIXES, VectorIndex, env_seeds, numbered, parse_fixes, seed_action_spaces
from fastmarl.rllib.metrics import RLlibMetrics, RunnerCounts, distinct_names
from fastmarl.rllib.sampling.fast_path import Reason, reads, slow_path_reasons
from fastmarl.rllib.sampling.hand_over import give_back, take_back
from fastmarl.rllib.sampling.internals import BATCH, DONE, EARLIER, EPISODES, SHARED, Attributes, Internals, of_loop
from fastmarl.rllib.sampling.sampler import FastSampler
from fastmarl.rllib.store.records import ChunkNumbers, summed_up

logger = logging.getLogger(__name__)
SAMPLERS = ("exact", "fast")
MOST_RESTARTS = 10  # consecutive, of the same env


class MultiAgentEnvRunner(RLlibEnvRunner):
    """Replaces the RLlib class of the same name; returns the same episodes.

    ```python
    config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)
    ```

    Args:
        config: RLlib's AlgorithmConfig.
        kwargs: Other arguments of the RLlib class.

    Attributes:
        fixes: Numbers of the enabled corrections; see docs/differences.md.
        sampler: "exact" or "fast".
        read_by_others: Names of loop attributes that code outside fastmarl has read while fastmarl sampled, in order.
    """

    fixes: ClassVar[frozenset[str]] = frozenset()
    sampler: ClassVar[str] = "exact"
    episode_class: ClassVar[type[MultiAgentEpisode]] = MultiAgentEpisode
    _fast: FastSampler | None = None
    _lends_earlier_chunks = False  # True if the RLlib method reads EARLIER next

    _ongoing_episodes = of_loop(EPISODES)
    _ongoing_episodes_for_metrics = of_loop(EARLIER)
    _done_episodes_for_metrics = of_loop(DONE)
    _cached_to_module = of_loop(BATCH)
    _shared_data = of_loop(SHARED)

    @classmethod
    def options(cls, *, fixes: Any = (), sampler: Literal["exact", "fast"] = "exact") -> type["MultiAgentEnvRunner"]:
        """Return a variant of this class with these options, which can be sent to remote runners.

        Args:
            fixes: "all", or names or numbers of corrections of data that RLlib records incorrectly.
            sampler: "exact": the same random numbers as RLlib; "fast": different samples from the same distributions.
        """
        return variant(cls, parse_fixes(fixes), sampler)

    def __init__(self, config: Any, **kwargs: Any):
        self._loop: dict[str, Any] = {}
        self.read_by_others: dict[str, None] = {}
        self.__dict__ = Attributes(self)
        self._internals = Internals(self)
        self._calls = CallGuard()
        self._is_intact = True  # True if the last call of `_sample()` completed
        self._kept: list[Any] = []  # episodes built but not returned by a failed call
        self._unreturned: list[Any] = []  # result of `_sample()`, until `sample()` returns it
        self._finished_numbers: list[list[ChunkNumbers]] = []  # episodes finished since get_metrics()
        self._reasons: list[Reason] = []
        self._was_seeded = False
        self._vector_index = VectorIndex()
        with exits_as_errors():
            super().__init__(config=config, **kwargs)
        self._draws = np.random.default_rng(self._seed) if self.sampler == "fast" else None
        has_names = "46" in self.fixes and self.env is not None
        self._bulk_metrics = RLlibMetrics(self._internals, distinct_names(self.env.envs) if has_names else None)
        self._runner_counts = RunnerCounts(self.worker_index or 0)

    # Sampling.

    def sample(self, **arguments: Any) -> list[Any]:
        """Sample episodes like the RLlib method.

        If a call fails, the next one also returns its finished episodes. After an interrupt in `on_sample_end`, the
        next call also returns everything that was sampled.

        Args:
            arguments: Arguments of the RLlib method.

        Raises:
            RunnerBusyError: If a call is running.
            UserExitError: If an env, a module or a callback called `sys.exit()`, which silently exits the program in
                RLlib.
        """
        self._calls.check("sample()")
        self.__dict__.update(_kept=[*self._unreturned, *self._kept], _unreturned=[])  # one atomic update
        try:
            with exits_as_errors():
                episodes = super().sample(**arguments)
        except Exception:
            self._unreturned = []  # on_sample_end failed: drop them as in RLlib, or it might fail again and again
            raise
        self._unreturned = []  # no call follows, so no signal handler runs before the caller has the episodes
        return episodes

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        request = Request(num_timesteps, num_episodes, explore, random_actions, force_reset)
        if not self._is_intact:  # the parts may be in any state, so rebuild them
            self._needs_initial_reset = True
            self._fast = None
        self._choose_path(self._needs_initial_reset or force_reset or num_episodes is not None, explore)
        fast = self._fast
        self._is_intact = fast is None  # the RLlib loop has no parts that need rebuilding
        if fast is None:
            self._kept += super()._sample(**request._asdict())
        else:
            try:
                self._calls.run("sample()", fast.sample, {"request": request, "kept": self._kept})
            finally:
                self._bulk_metrics.log_call(fast.parts.counts)
        self._is_intact = True
        self.__dict__.update(_unreturned=self._kept, _kept=[])
        return self._unreturned

    def _choose_path(self, resets: bool, explore: bool) -> None:
        """Use the fast path if it is provably equivalent to the RLlib loop, otherwise the RLlib loop.

        Args:
            resets: True if no running episode continues. Running episodes can move to the RLlib loop, but not back.
            explore: True if the next steps explore.
        """
        if self._fast is None and not resets:
            return
        reasons = slow_path_reasons(self._internals, MultiAgentEnvRunner)
        changes = [] if self._fast is None else self._fast.parts.changes()
        if not resets:
            reasons += [Reason("changed_while_running", change) for change in changes]
        if reasons and reasons != self._reasons:
            logger.warning("Sampling with RLlib's loop, which is slow: %s.", "; ".join(each.text for each in reasons))
        self._reasons = reasons
        fast = self._fast
        if reasons or changes:
            self._fast = None
        if reasons and fast is not None:
            give_back(self._internals) if resets else fast.hand_over(explore)
        if not reasons and self._fast is None:
            take_back(self._internals, self._finished_numbers)
            self._fast = FastSampler(self._internals, self._finished_numbers, self._draws)

    @property
    def slow_path_reasons(self) -> list[str]:
        """Reasons for falling back to the RLlib loop, as sentence fragments; empty if fastmarl samples."""
        return [reason.text for reason in self._reasons]

    @property
    def slow_path_codes(self) -> list[str]:
        """Codes of `slow_path_reasons`, without duplicates; docs/rllib.md lists them."""
        return [*dict.fromkeys(reason.code for reason in self._reasons)]

    @property
    def is_accelerated(self) -> bool | None:
        """True if fastmarl samples; None before the first call of sample()."""
        return None if self._fast is None and not self._reasons else self._fast is not None

    @property
    def inference_backends(self) -> dict[str, str]:
        """Backend of each module: "native" (compiled code), or "torch" with the reason; empty before the first call."""
        if self._fast is not None:
            return self._fast.parts.inference.backends
        if not self._reasons or self.module is None:
            return {}
        return dict.fromkeys(self.module.keys(), "torch: RLlib's own loop samples")

    def get_metrics(self) -> Any:
        """Reduce and return the metrics logged since the last call, like the RLlib method."""
        if self._fast is not None and self._loop["_done_episodes_for_metrics"]:  # the RLlib method logs all episodes
            give_back(self._internals)
        name_of = self._bulk_metrics.name_of
        self._bulk_metrics.log_episodes([summed_up(chunks, name_of) for chunks in self._finished_numbers])
        self._finished_numbers.clear()
        self._bulk_metrics.keep_counters_alive()
        if self.is_accelerated is not None:
            self._runner_counts.log(self.metrics, self.is_accelerated, set(self.slow_path_codes))
        fast, self._fast = self._fast, None  # the RLlib method reads the state of its loop
        try:
            return super().get_metrics()
        finally:
            self._fast = fast

    # Attributes of the RLlib loop.

    def _show(self, name: str, fast: FastSampler) -> Any:
        """Return the value that an attribute would have in RLlib, while fastmarl samples.

        Raises:
            RunningEpisodeError: If fastmarl cannot produce it now.
        """
        if name == EARLIER and self._lends_earlier_chunks:
            self._lends_earlier_chunks = False
            return self._loop[name]
        self.read_by_others[name] = None
        if name in (EARLIER, DONE):
            give_back(self._internals)
            fast.events.keep_chunks()
        elif self._calls.running is not None:
            return fast.events.shown(name)
        else:
            self._leave_fast_path(name, fast)
        return self._loop[name]

    def _leave_fast_path(self, name: str, fast: FastSampler) -> None:
        """Hand the running episodes over to the RLlib loop between two calls, because code uses attribute `name`."""
        self.read_by_others[name] = None
        if self._calls.running is not None:
            raise RunningEpisodeError(f"can't set the runner's {name} while sample() is running; set it between calls")
        if self._needs_initial_reset:
            raise RunningEpisodeError(
                f"the runner has no {name} after sample(num_episodes=...), because fastmarl drops unfinished episodes; "
                "from the next call on, RLlib's own loop samples and keeps them"
            )
        self._fast = None
        fast.hand_over()
        self._reasons = [*reads(self)]
        logger.warning("Sampling with RLlib's loop, which is slow: %s.", self._reasons[-1].text)

    # The RLlib loop.

    def _new_episode(self, env_index: int, episodes: list | None = None) -> None:
        """Create an episode of the fastmarl class for the RLlib loop."""
        env = self.env.envs[env_index].unwrapped
        episodes = self._ongoing_episodes if episodes is None else episodes
        episodes[env_index] = self.episode_class(
            observation_space={agent_id: env.get_observation_space(agent_id) for agent_id in env.possible_agents},
            action_space={agent_id: env.get_action_space(agent_id) for agent_id in env.possible_agents},
            agent_to_module_mapping_fn=self.config.policy_mapping_fn,
        )
        self._make_on_episode_callback("on_episode_created", env_index, episodes)

    def _increase_sampled_metrics(self, num_steps: int, next_obs: dict, episode: Any) -> int:
        """Log the metrics of an env step of the RLlib loop."""
        if num_steps != 1:
            return super()._increase_sampled_metrics(num_steps, next_obs, episode)
        self._bulk_metrics.log_step(next_obs, episode)
        return num_steps

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the state like the RLlib method, but without weights if there is no module.

        Args:
            components: Names of the components to return, or None for all.
            not_components: Names of components to leave out.
            kwargs: Passed to the RLlib method.
        """
        if self.module is None:
            not_components = [*force_list(not_components), COMPONENT_RL_MODULE]
        return super().get_state(components, not_components=not_components, **kwargs)

    # Envs.

    @exits_as_errors()
    def make_env(self) -> None:
        """Recreate all envs, dropping the running episodes."""
        self._calls.check("make_env()")
        self._make_env()

    @exits_as_errors()
    def make_module(self) -> None:
        """Create the module like the RLlib method."""
        self._calls.check("make_module()")
        super().make_module()

    @exits_as_errors()
    def stop(self) -> None:
        """Close the envs like the RLlib method."""
        self._calls.check("stop()")
        super().stop()

    def _make_env(self) -> None:
        self._fast = None
        configured = self.config.env
        self._vector_index.next = 0
        try:
            self.config.env = configured and numbered(configured, self._vector_index)
            super().make_env()
        finally:
            self.config.env = configured
        if "50" in self.fixes and self._seed is not None:
            seed_action_spaces(self)

    def _try_env_reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[list, list]:
        """Reset all envs; on failure, recreate and reset them if `restart_failed_sub_environments` is set."""
        seeds = env_seeds(self, seed, configured=self._seed, is_first=not self._was_seeded)
        self._was_seeded = True
        for attempt in range(MOST_RESTARTS):
            try:
                with self.metrics.log_time(ENV_RESET_TIMER), exits_as_errors():
                    return self.env.reset(seed=seeds, options=options)
            except Exception as error:
                if not self.config.restart_failed_sub_environments or attempt == MOST_RESTARTS - 1:
                    raise
                logger.error("Resetting the envs failed; recreating them.", exc_info=error)
                self._remake_env()
        raise AssertionError

    def _try_env_step(self, actions: Any) -> Any:
        """Step the envs like the RLlib method, but treat an env that calls `sys.exit()` as failed."""
        try:
            return super()._try_env_step(actions)
        except SystemExit as raised:
            error = as_error(raised)
            self.metrics.log_value(NUM_ENV_STEP_FAILURES_LIFETIME, 1, reduce="lifetime_sum")
            if not self.config.restart_failed_sub_environments:
                raise error from raised
            logger.error("Stepping the environments failed; restarting them.", exc_info=error)
            self.make_env()
            return ENV_STEP_FAILURE

    def restart_env(self, env_index: int, error: Exception) -> None:
        """Recreate the env `env_index`, which failed with `error`.

        Raises:
            RuntimeError: If `restart_failed_sub_environments` is not set.
        """
        if not self.config.restart_failed_sub_environments:
            option = "config.fault_tolerance(restart_failed_sub_environments=True)"
            raise RuntimeError(f"env {env_index} failed; use {option} to recreate failed envs") from error
        if not isinstance(error, StepFailedRecreateEnvError):
            logger.error("Env %d failed; recreating it and dropping its episode.", env_index, exc_info=error)
        if self.num_envs == 1:
            self._remake_env()
            self._needs_initial_reset = False
            return
        envs = self.env.unwrapped.envs
        try:
            with exits_as_errors():
                envs[env_index].close()
        except Exception as closing_error:
            logger.warning("Closing the failed env %d also failed: %r", env_index, closing_error)
        self._vector_index.next = env_index
        envs[env_index] = gym.make(envs[env_index].unwrapped.spec)

    def _remake_env(self) -> None:
        """Recreate the envs without leaving the fast path or checking them: a flaky env might fail a second check."""
        fast, checks = self._fast, self.config.disable_env_checking
        self.config.disable_env_checking = True
        try:
            self._make_env()
        finally:
            self._fast, self.config.disable_env_checking = fast, checks

    def reset_env(self, env_index: int) -> tuple[dict, dict]:
        """Reset the recreated env `env_index` with its first seed, and return (observations, infos)."""
        seed = None if self._seed is None else self._seed + env_index
        for attempt in range(MOST_RESTARTS):
            try:
                with exits_as_errors():
                    return self.env.envs[env_index].reset(seed=seed, options=None)
            except Exception as error:
                if attempt == MOST_RESTARTS - 1:
                    raise
                self.restart_env(env_index, error)
        raise AssertionError


def variant(cls: type, fixes: frozenset[str], sampler: str) -> type:
    """Return the variant of a runner class with these options, cached.

    Variants of the fastmarl class are pickled by reference. A subclass may be defined in a notebook, so cloudpickle
    pickles its variants by value, and their base classes from importable modules by reference.

    Args:
        cls: The fastmarl runner class, a subclass of it, or a variant of either, whose options are replaced.
        fixes: Numbers of corrections, from `parse_fixes()`.
        sampler: "exact" or "fast".

    Raises:
        ConfigError: If the sampler is unknown.
    """
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler must be one of {list(SAMPLERS)}, got {sampler!r}")
    return _variant(vars(cls).get("variant_of", cls), fixes, sampler)


def __getattr__(name: str) -> Any:
    """Return variants by name, for unpickling: `MultiAgentEnvRunner__exact__01_45` has the corrections 01 and 45."""
    _, sampler, numbers, *_ = [*name.split("__"), "", ""]
    fixes = frozenset(numbers.split("_")) - {"none"}
    if sampler not in SAMPLERS or not fixes <= FIXES.keys() or name != _name_with(fixes, sampler):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _variant(MultiAgentEnvRunner, fixes, sampler)


def _name_with(fixes: frozenset[str], sampler: str) -> str:
    return f"{MultiAgentEnvRunner.__name__}__{sampler}__{'_'.join(sorted(fixes)) or 'none'}"


@cache
def _variant(origin: type, fixes: frozenset[str], sampler: str) -> type:
    name = _name_with(fixes, sampler)
    if origin is not MultiAgentEnvRunner:
        name = f"{origin.__name__}[{name}]"
    members = {
        "__module__": origin.__module__,
        "__qualname__": name,
        "__doc__": origin.__doc__,
        "fixes": fixes,
        "sampler": sampler,
        "episode_class": episode_class(fixes),
        "variant_of": origin,
    }
    return type(name, (origin,), members)
