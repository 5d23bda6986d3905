"""The standalone runner: puts the parts together, calls them in order, and keeps the state between calls."""

from collections.abc import Hashable
from time import perf_counter
from typing import Any

import gymnasium as gym

from fastmarl.acting.backends.transfer import make_transfer
from fastmarl.acting.policies import Policies
from fastmarl.callbacks import EVENTS, listeners
from fastmarl.columns import Recorded
from fastmarl.config import EnvRunnerConfig
from fastmarl.episodes.kept_chunks import KeptChunks
from fastmarl.episodes.log import EpisodeLog
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.episodes.selection import only_modules
from fastmarl.errors import ConfigError, RunnerStoppedError
from fastmarl.native._call_guard import CallGuard
from fastmarl.record.agent_spaces import AgentSpaces
from fastmarl.record.block import own_key
from fastmarl.record.lanes import LaneTable
from fastmarl.record.store import RowStore
from fastmarl.runner.building import (
    check_module_options,
    make_env_to_module,
    make_inference_options,
    make_modules,
    make_reward_connector,
    spaces_of,
)
from fastmarl.runner.devices import choose_device
from fastmarl.runner.envs import Envs, make_env_states, make_vector
from fastmarl.runner.episodes import RunnerEpisodes
from fastmarl.runner.evaluation import RunnerEvaluation
from fastmarl.runner.goals import Goal, make_goal
from fastmarl.runner.interface import RunnerInterface
from fastmarl.runner.metrics import RunnerMetrics
from fastmarl.runner.policies import RunnerPolicies
from fastmarl.runner.state import RunnerState
from fastmarl.seeds import ResetSeeds, Streams
from fastmarl.vector.failures import FailureOptions, Failures
from fastmarl.vector.wiring import VectorParts


class MultiAgentEnvRunner(RunnerInterface, RunnerPolicies, RunnerEpisodes, RunnerEvaluation, RunnerState):
    """Samples episodes of many agents in several envs. The API is that of RLlib's class of the same name.

    ```python
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="mpe2.simple_spread_v3"))
    episodes = runner.sample(num_timesteps=1000)
    ```

    Attributes:
        config: the EnvRunnerConfig.
        env: the vector of envs; `env.envs` lists them (or the batches of them: one, or `worker_num_splits`).
        module: the MultiRLModule; train it in place, or a copy and `set_weights()`.
        env_to_module: the connectors by module id, and their state, see docs/connectors.md.
        metrics: takes custom values from callbacks (`log_value`).
    """

    def __init__(self, config: EnvRunnerConfig):
        if not isinstance(config, EnvRunnerConfig):
            raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
        check_module_options(config)
        self.config = config
        self.worker_index = config.worker_index
        self._stopped = False
        self._calls = CallGuard()
        self._weights_seq_no = 0
        self._streams = Streams(config.seed, config.worker_index, config.incarnation)
        self._seeds = ResetSeeds(self._streams, self.num_envs)
        self._transfer = make_transfer(choose_device(config))
        self._generator = self._streams.torch_generator(self._transfer.device)
        self._rng = self._streams.numpy_generator()
        self._counts = RunnerMetrics(config.metrics_num_episodes_for_smoothing)
        self.metrics = self._counts.logger
        self._listeners = listeners(
            config.callbacks_class, {event: getattr(config, f"callbacks_{event}") for event in EVENTS}
        )
        self._kept = KeptChunks()
        self._rescued: list[MultiAgentEpisode] = []  # by a call that then failed, or before anything can fail no more
        self._evaluated: list[MultiAgentEpisode] = []  # likewise, by evaluate()
        self._earlier_chunks: dict[str, list[MultiAgentEpisode]] = {}  # of running episodes, for on_episode_end alone
        self._failures: Failures | None = None
        self._envs = Envs(config)
        self._has_envs = True
        try:
            self.env_to_module = make_env_to_module(config, self._envs)
            self.make_module()
            self._announce_envs()
        except BaseException:
            self._envs.close()
            raise

    # Building.

    def make_env(self) -> None:
        """Close the envs and create them anew; running episodes are dropped. Should it fail, it must be called again
        before the next `sample()`."""
        self._check_running()
        self._calls.run("make_env()", self._make_env, {})

    def _make_env(self) -> None:
        self._is_whole = self._has_envs = False
        self._envs.close()
        self._envs = Envs(self.config)
        self._failures = None
        self._has_envs = True
        self._connect_parts()
        self._is_whole = True
        self._announce_envs()

    def make_module(self) -> None:
        """Create the modules, with fresh weights unless given as instances; running episodes are dropped."""
        self._check_running()
        self._calls.run("make_module()", self._make_module, {})

    def _make_module(self) -> None:
        with self._streams.torch_seeded():
            module = make_modules(self.config, self._envs, self.env_to_module)
        module.to(self._transfer.device)
        self._is_whole = False
        self.module = module
        self._connect_parts()
        self._is_whole = True

    def _begin_anew(self) -> None:
        """The last call did not come to its end, so that nobody knows in which state its parts are: make them anew.

        Envs, modules, what connectors know, random streams and counters stay; all envs will be reset.
        """
        self.env.forget()
        self._policies.leave_modes()
        self._policies.end_evaluation()
        self._envs.remake_missing()
        self._earlier_chunks = {}
        self._connect_parts()

    def _connect_parts(self) -> None:
        """Make all parts between envs and modules."""
        config, envs = self.config, self._envs
        self._inference_options = make_inference_options(config, self._transfer.device, self._generator)
        known_agents = [frozenset(agents) for agents in envs.possible_agents]
        self._table = LaneTable(known_agents, self._module_for, post_death=config.post_death, respawn=config.respawn)
        policies = [self._make_policy(*item, self.env_to_module.get(item[0])) for item in self.module.items()]
        states = make_env_states(envs.all) if config.record_env_state else []
        self._store = RowStore(
            [policy.connectors.recorded_layout for policy in policies],
            [policy.module_id for policy in policies],
            self._table,
            config.episode_lookback_horizon,
            connectors=[policy.connectors for policy in policies],
            rewards=make_reward_connector(config),
            n_agents=list(map(len, envs.possible_agents)),
        )
        self._log = EpisodeLog(self._store, env_states=states, max_summaries=config.metrics_num_episodes_for_smoothing)
        self._policies = Policies(self._log, policies)
        parts = VectorParts(
            seeds=self._seeds,
            store=self._store,
            agent_spaces=AgentSpaces(self._table, envs.spaces),
            env_actions=self._policies.env_actions,
            seconds=self._counts.seconds,
            check=not config.disable_env_checking,
            env_states=states,
            failures=self._failures_of(self._store),
            num_splits=config.worker_num_splits,
            batch_size=config.env_batch_size,
        )
        self.env = make_vector(envs.workers or envs.all, parts, envs.remake)
        self._to_reset = set(range(self.num_envs))
        self._goal = make_goal(config, 0, None, self.num_envs)  # of the current call, or the last one

    def _failures_of(self, store: RowStore) -> Failures:
        """What is done about envs that fail, whose episodes are in this store; restarts are remembered."""
        if self._failures is None:
            config = self.config
            options = FailureOptions(
                config.restart_failed_sub_environments, config.max_restarts, config.failed_episodes == "truncate"
            )
            self._failures = Failures(options, store, self._counts.failures)
        self._failures.bind(store)
        return self._failures

    def _announce_envs(self) -> None:
        self._call("on_environment_created", env=self.env, env_context=self._envs.contexts[0])

    @property
    def num_envs(self) -> int:
        return self.config.num_envs_per_env_runner

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
            RunnerBusyError: another call is under way; it goes on.
        """
        self._check_running()
        arguments = {
            "num_timesteps": num_timesteps,
            "num_episodes": num_episodes,
            "explore": self.config.explore if explore is None else explore,
            "random_actions": random_actions,
            "force_reset": force_reset,
        }
        return self._calls.run("sample()", self._sample, arguments)

    def _sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
    ) -> list[MultiAgentEpisode]:
        if not self._has_envs:
            raise RunnerStoppedError("make_env() failed, and the envs are closed; call it again")
        goal = make_goal(self.config, num_timesteps, num_episodes, self.num_envs)
        goal.random_actions = random_actions
        begun = perf_counter()
        self._kept.compact()
        was_whole, self._is_whole = self._is_whole, False  # until this call has come to its end
        if not was_whole:
            self._begin_anew()
        self._goal = goal
        begin = goal.begin(range(self.num_envs))
        if force_reset or goal.counts_episodes:
            self._drop_begun(set(begin))
            self._log.renew()
        self._store.begin_call(goal.num_timesteps, of_agents=not goal.counts_env_steps)
        try:
            with self._policies.sampling():
                self._reset_envs(sorted(self._to_reset.intersection(begin)))
                self._run(goal, explore)
            self._stamp_actions()
            chunks = goal.wanted(self._log.end_chunks())
            self._rescued += chunks
        except BaseException:
            self._keep_finished(goal)
            raise
        self._counts.add_call(goal, self._log.sum_up())
        blocks = [self._store.blocks[module] for module in self._store.active]
        self._log.end_call()
        self._policies.tidy()
        self._remember(chunks)
        self._is_whole = True
        samples = self._rescued
        if self.config.return_only_policies_to_train:
            samples = [only_modules(chunk, self.should_module_be_updated) for chunk in samples]
        self._call("on_sample_end", samples=samples)
        self._kept.add(samples, blocks)
        self._rescued = []
        self._counts.sample_seconds += perf_counter() - begun
        return samples

    def _run(self, goal: Goal, explore: bool) -> None:
        """Tick until the goal is reached: agents act, envs step, episodes end."""
        store, vector, seconds = self._store, self.env, self._counts.seconds
        while (goes_on := not goal.reached()) or vector.n_stepping:
            if goes_on:
                self._act(goal, explore)
                begun = perf_counter()
                goal.add_tick(vector.send(), store.advance())
                seconds["vector"] += perf_counter() - begun
            self._receive(goal)
        if store.connects:
            store.connect()

    def _receive(self, goal: Goal) -> None:
        """Record the next steps; episodes end, and others begin."""
        begun = perf_counter()
        self.env.recv(self._after_step, after_each=bool(self._listeners["on_episode_step"]))
        if self._table.respawned:
            self._log.split_respawned()
        self._counts.seconds["vector"] += perf_counter() - begun
        if self._to_reset:
            self._begin_next(goal)

    def _act(self, goal: Goal, explore: bool) -> None:
        """Each module answers to the rows of its agents; what it says is recorded and made ready for the envs."""
        store, policies, seconds = self._store, self._policies.by_index, self._counts.seconds
        t = (self._counts.lifetime["num_env_steps_sampled"] + goal.env_steps) * self.config.num_env_runners
        if self._policies.may_differ:
            self._policies.renew()
        if store.connects:
            begun = perf_counter()
            store.connect()
            seconds["connect"] += perf_counter() - begun
        if self._inference_options.graphs is not None and not goal.random_actions:
            self._policies.launch(self._inference_options.graphs, explore, seconds)
        for module in store.active:
            first, end = store.acting_from[module], store.rows[module].n
            if first == end:
                continue
            policy: Any = policies[module]
            inference, env_actions, masks = policy.inference, policy.env_actions, policy.masks
            block, n = store.blocks[module], end - first
            lanes = block.lane_R[first:end]
            begun = perf_counter()
            legal = masks.legal(block, first, end)
            batch = {} if goal.random_actions else inference.batch(block, first, end)
            batched = perf_counter()
            if goal.random_actions:
                outputs = env_actions.random(n, self._rng, legal)
                inference.begin_state(lanes)
            else:
                outputs = inference.act(batch, lanes, explore=explore, t=t, legal=legal)
                inference.keep_state(lanes, outputs)
            if legal is not None and not masks.on_record:
                outputs[own_key(Recorded.ACTION_MASK, outputs, columns=block.outputs)] = legal
            acted = perf_counter()
            env_actions.set(first, n, outputs)
            store.record(module, outputs)
            seconds["record"] += perf_counter() - acted
            seconds["forward"] += acted - batched
            seconds["connect"] += batched - begun

    def _keep_finished(self, goal: Goal) -> None:
        """The call has failed: the episodes that have finished are returned by the next one, and it counts."""
        self._rescue_into(self._rescued)
        for env_index in range(self.num_envs):
            self._store.take_back(env_index, whole_chunk=False)
        goal.env_steps -= self.env.n_stepping  # nobody will hear of them
        self._counts.add_call(goal, self._log.sum_up())
        self.env.forget()

    def _module_for(self, agent_id: Hashable, env_index: int) -> int:
        return self._policies.module_for(agent_id, env_index)

    def _stamp_actions(self) -> None:
        """Record the weights' number with the actions since the last stamp; -1 where no weights chose them."""
        self._store.stamp(-1 if self._goal.random_actions else self._weights_seq_no)

    # Reports.

    def get_metrics(self) -> dict[str, Any]:
        """Nested dict of plain numbers under RLlib's keys: counts and times since the last call, and statistics of the
        last `metrics_num_episodes_for_smoothing` episodes (see docs/metrics.md)."""
        return self._counts.report(self._weights_seq_no, self.module)

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """(observation space, action space) of every module by its id, and of one env (Dict spaces by agent id) under
        "__env__" and "__env_single__"."""
        agents = {agent: self._envs.spaces(0, agent) for agent in self._envs.possible_agents[0]}
        of_env = (
            gym.spaces.Dict({agent: spaces[0] for agent, spaces in agents.items()}),
            gym.spaces.Dict({agent: spaces[1] for agent, spaces in agents.items()}),
        )
        of_modules = {module_id: spaces_of(module) for module_id, module in self.module.items()}
        return {"__env__": of_env, "__env_single__": of_env, **of_modules}

    def assert_healthy(self) -> None:
        """Raises RunnerStoppedError after stop()."""
        self._check_running()

    def stop(self) -> None:
        """Close the envs; sampling is over. Stopping twice is fine, and finishes what an interrupt has cut short.

        Raises:
            RunnerBusyError: a call is under way, which needs them.
        """
        self._calls.check("stop()")
        self._stopped = True
        self._envs.close()

    def _check_running(self) -> None:
        if self._stopped:
            raise RunnerStoppedError("this runner was stopped and its envs are closed; make a new one")
        self._finish_weights()
        self._finish_change()
