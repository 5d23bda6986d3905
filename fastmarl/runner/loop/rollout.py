"""The sampling loop over all envs: agents act, envs step, episodes start and end."""

from collections.abc import Hashable
from time import perf_counter
from typing import Any

from fastmarl.core.connectors.base import Surroundings
from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.connectors.rewards import make_reward_connector
from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.inference.actors import Actor, Policies
from fastmarl.core.inference.inference import ModuleInference
from fastmarl.core.inference.masks import ActionMasks
from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._records import note_reset_seeds
from fastmarl.core.objects.weakly import weakly
from fastmarl.core.spaces.columns import Recorded
from fastmarl.core.store.agent_spaces import AgentSpaces
from fastmarl.core.store.block import own_key
from fastmarl.core.store.lanes import FAILED, LaneTable
from fastmarl.core.store.store import RowStore
from fastmarl.core.vector.wiring import VectorParts
from fastmarl.runner.loop.building import make_inference_options, spaces_of, warn_of_objects
from fastmarl.runner.loop.envs import make_env_states, make_vector
from fastmarl.runner.loop.goals import Goal
from fastmarl.runner.loop.listeners import Listeners
from fastmarl.runner.loop.resources import Resources


class Rollout:
    """Runs modules in envs. It is rebuilt when envs or modules are replaced, and after a failed call.

    Attributes:
        log, store, table: Store the episodes, their rows, and their agents.
        policies: Modules with their connectors and masks.
        env: The vector of envs.
        to_reset: Indices of envs without an episode.
        goal: Goal of the current or last call.
    """

    def __init__(self, resources: Resources, listeners: Listeners):
        config, envs = resources.config, resources.envs
        self._resources = resources
        self._listeners = listeners
        self._counts = resources.counts
        self.inference_options = make_inference_options(config, resources.transfer.device, resources.generator)
        known_agents = [frozenset(agents) for agents in envs.possible_agents]
        self.table = LaneTable(
            known_agents, weakly(self._module_for), late_rewards=config.late_rewards, respawn=config.respawn
        )
        connectors = resources.env_to_module
        policies = [self.make_policy(*item, connectors.get(item[0])) for item in resources.module.items()]
        states = make_env_states(envs.all) if config.record_env_state else []
        self.store = RowStore(
            [policy.connectors.recorded_layout for policy in policies],
            [policy.module_id for policy in policies],
            self.table,
            config.episode_lookback_horizon,
            connectors=[policy.connectors for policy in policies],
            rewards=make_reward_connector(config.reward_scale, config.clip_rewards),
            n_agents=list(map(len, envs.possible_agents)),
        )
        self.log = EpisodeLog(self.store, env_states=states, max_summaries=config.metrics_num_episodes_for_smoothing)
        self.policies = Policies(self.log, policies)
        resources.failures.bind(self.store)
        parts = VectorParts(
            seeds=resources.seeds,
            store=self.store,
            agent_spaces=AgentSpaces(self.table, envs.spaces),
            env_actions=self.policies.env_actions,
            seconds=self._counts.seconds,
            check=not config.disable_env_checking,
            env_states=states,
            failures=resources.failures,
            num_splits=config.worker_num_splits,
            batch_size=config.env_batch_size,
        )
        self.env = make_vector(envs.workers or envs.all, parts, envs.remake)
        self.to_reset = set(range(resources.num_envs))
        self.goal = Goal()

    def make_policy(self, module_id: str, module: RLModule, connectors: ModuleConnectors | None) -> Actor:
        """Wrap a module with everything it needs to act in these envs."""
        resources, config = self._resources, self._resources.config
        observation_space, action_space = spaces_of(module)
        connectors = connectors or ModuleConnectors(
            module_id, (), observation_space, action_space, keep_float64=config.keep_float64
        )
        shown = weakly(self._shown_to_connectors)
        connectors.bind(self.table, Surroundings(shown, resources.module, resources.metrics))
        warn_of_objects(module_id, connectors.recorded_layout)
        options = {"normalize": config.normalize_actions, "clip": config.clip_actions}
        return Actor(
            module_id,
            module,
            connectors,
            ModuleInference(
                module_id,
                module,
                resources.transfer,
                resources.generator,
                resources.rng,
                self.table,
                connectors,
                self.inference_options,
            ),
            ActionMasks(connectors, action_space, self.table),
            EnvActions(module_id, action_space, connectors.outputs, **options, as_arrays=resources.envs.is_batch),
        )

    def _shown_to_connectors(self, env_index: int) -> MultiAgentEpisode:
        self.stamp_actions()
        return self.log.shown_chunk(env_index, is_private=True)

    def _module_for(self, agent_id: Hashable, env_index: int) -> int:
        return self.policies.module_for(agent_id, env_index)

    # Ticks.

    def play(self, goal: Goal, begin: list[int], explore: bool) -> list[MultiAgentEpisode]:
        """Start an episode in each idle env of `begin`, then sample until the goal is reached.

        Returns:
            The requested chunks of the call.
        """
        self.goal = goal
        self.log.clock.start()
        with self.policies.sampling(), self.inference_options.threads:
            self.reset(sorted(self.to_reset.intersection(begin)))
            self.run(goal, explore)
        self.stamp_actions()
        self.log.clock.stop()
        return goal.wanted(self.log.end_chunks())

    def run(self, goal: Goal, explore: bool) -> None:
        """Tick until the goal is reached."""
        store, vector, seconds = self.store, self.env, self._counts.seconds
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
        """Receive and record the next steps; end finished episodes and start new ones."""
        begun = perf_counter()
        resting = self.to_reset.copy()
        self.env.recv(self._after_step, after_each=bool(self._listeners.by_event["on_episode_step"]))
        if self.table.respawned:
            self.log.split_respawned()
        self._counts.seconds["vector"] += perf_counter() - begun
        if ended := self.to_reset - resting:  # other resting envs may be in a split that is still stepping
            self.reset(goal.begin(sorted(ended)))

    def _act(self, goal: Goal, explore: bool) -> None:
        """Run each module on the rows of its agents; record its outputs and prepare the env actions."""
        store, policies, seconds = self.store, self.policies.by_index, self._counts.seconds
        num_env_runners, rng = self._resources.config.num_env_runners, self._resources.rng
        t, before = (self._counts.lifetime.env_steps + goal.env_steps) * num_env_runners, self._resources.steps_before
        if self.policies.may_differ:
            self.policies.renew()
        if store.connects:
            begun = perf_counter()
            store.connect()
            seconds["connect"] += perf_counter() - begun
        if self.inference_options.graphs is not None and not goal.random_actions:
            self.policies.launch(self.inference_options.graphs, explore, seconds)
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
            batch = {} if goal.random_actions else inference.batch(block, first, end, explore=explore)
            batched = perf_counter()
            if goal.random_actions:
                outputs = env_actions.random(n, rng, legal)
                inference.begin_state(lanes)
            else:
                begun_at = before.get(policy.module_id, 0) if before else 0
                outputs = inference.act(batch, lanes, explore=explore, t=begun_at + t, legal=legal)
                inference.keep_state(lanes, outputs)
            if legal is not None and not masks.on_record:
                outputs[own_key(Recorded.ACTION_MASK, outputs, columns=block.outputs)] = legal
            acted = perf_counter()
            env_actions.set(first, n, outputs, None if goal.random_actions else inference.rows)
            store.record(module, outputs)
            seconds["record"] += perf_counter() - acted
            seconds["forward"] += acted - batched
            seconds["connect"] += batched - begun

    def stamp_actions(self) -> None:
        """Record the weights sequence number for the actions since the last stamp; -1 for random actions."""
        self.store.stamp(-1 if self.goal.random_actions else self._resources.weights_seq_no)

    # Starting episodes.

    def reset(self, env_indices: list[int]) -> None:
        """Start episodes in these envs; other envs without an episode stay idle."""
        begun = perf_counter()
        listeners, policies = self._listeners.by_event, self.policies
        self.to_reset.difference_update(env_indices)
        if self.to_reset:
            self.env.rest(self.to_reset)
        for together in [[i] for i in env_indices] if listeners["on_episode_created"] else [env_indices]:
            self.log.open_episodes(together)
            policies.begin_episodes(together, self._resources.config.policy_mapping_fn)
            if listeners["on_episode_created"]:
                (env_index,) = together
                episode = self.log.shown_chunk(env_index)
                self._call("on_episode_created", env_index, episode)
                self.log.take_over(env_index, episode)
        self.env.reset(env_indices)
        note_reset_seeds(self.table.records, self._resources.seeds.last, env_indices)
        if listeners["on_episode_start"]:
            for env_index in env_indices:
                self._call("on_episode_start", env_index, self.log.shown_chunk(env_index))
        self._counts.seconds["reset"] += perf_counter() - begun

    def is_outdated(self, env_index: int) -> bool:
        """Return whether the episode of the env would use different policies if it started now."""
        return self.policies.is_outdated(env_index, self._resources.config.policy_mapping_fn)

    def drop_begun(self, env_indices: set[int]) -> None:
        """Drop running episodes that have been stepped, are outdated, or belong to envs not used by the new call.

        Args:
            env_indices: Envs used by the new call.
        """
        for env_index, lanes in enumerate(self.table.envs):
            if self.table.records[env_index] is None:
                continue
            if lanes.env_t or env_index not in env_indices or self.is_outdated(env_index):
                self.store.drop_episode(env_index)
                self.to_reset.add(env_index)
        self.log.renew()

    # Ending episodes.

    def _after_step(self, env_indices: list[int], flags: list[int]) -> None:
        """Call listeners after the steps of these envs were recorded or failed, and close finished episodes."""
        begun = perf_counter()
        listeners = self._listeners.by_event
        if len(env_indices) == 1 or listeners["on_episode_step"] or listeners["on_episode_end"]:
            for env_index, all_done in zip(env_indices, flags, strict=True):
                self._after_env_step(env_index, all_done)
        else:
            self._end_episodes(env_indices, flags)
        self._counts.seconds["after_step"] += perf_counter() - begun

    def _after_env_step(self, env_index: int, all_done: int) -> None:
        if all_done & FAILED:
            self.goal.take_back(env_index, *self.store.taken_back)
        elif self._listeners.by_event["on_episode_step"]:
            self._call("on_episode_step", env_index, self.log.shown_chunk(env_index, all_done))
        if all_done == FAILED:
            self.store.drop_episode(env_index)
            self.to_reset.add(env_index)
            self.goal.begin_another(env_index)
        elif all_done:
            self._end_episodes([env_index], [all_done])

    def _end_episodes(self, env_indices: list[int], flags: list[int]) -> None:
        ids = self.log.finish_episodes(env_indices, flags)
        self.goal.finished_ids.update(zip(ids, env_indices, strict=True))
        self.to_reset.update(env_indices)
        if self._listeners.by_event["on_episode_end"]:
            for env_index, chunk in zip(env_indices, self.log.ended_chunks()[-len(env_indices) :], strict=True):
                earlier = self._listeners.take_earlier_chunks(chunk.id_)
                self._call("on_episode_end", env_index, chunk, prev_episode_chunks=earlier)

    def rescued(self, known: list[MultiAgentEpisode]) -> list[MultiAgentEpisode]:
        """Return the chunks of episodes that finished in a failed call, except chunks in `known`.

        An episode has finished once its env reports it, no matter where the call failed, unless connectors failed to
        process its last observations.
        """
        self.policies.leave_modes()
        self.stamp_actions()
        if not self.store.is_connecting:
            self.log.finish_episodes(*self.log.ended_envs())
        ids = set(map(id, known))
        finished = self.log.finished_chunks()
        for id_, env_index in self.log.finished_ids():
            self.goal.finished_ids.setdefault(id_, env_index)
        return [chunk for chunk in finished if id(chunk) not in ids]

    def _call(self, event: str, env_index: int, episode: MultiAgentEpisode, **arguments: Any) -> None:
        self.stamp_actions()
        module = self._resources.module
        self._listeners.call(event, episode=episode, env=self.env, env_index=env_index, rl_module=module, **arguments)
        self.policies.may_differ = True
