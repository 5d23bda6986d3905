"""RLlib's EnvRunnerV2 with fastmarl's storage of steps."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ray.rllib.env.multi_agent_env import MultiAgentEnvWrapper
from ray.rllib.env.remote_base_env import RemoteBaseEnv
from ray.rllib.env.vector_env import VectorEnvWrapper
from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2
from ray.rllib.utils.spaces.space_utils import get_original_space

from fastmarl.core.native._trajectories import seen_by_policy
from fastmarl.rllib.old_stack.actors import (
    Actions,
    FastActor,
    PolicyActor,
    RLlibActor,
    Seen,
    UnfitAnswerError,
    problems_of,
)
from fastmarl.rllib.old_stack.episode import OldStackEpisode
from fastmarl.rllib.old_stack.trajectory import Trajectory
from fastmarl.rllib.old_stack.views import Views

BASE_ENVS = (MultiAgentEnvWrapper, VectorEnvWrapper, RemoteBaseEnv)
"""Vectorized env classes in which agents are known to take the actions of their policies."""
UNFIT = "its outputs are not arrays with one row per agent and constant dtypes and shapes"
ALL, COMMON = "__all__", "__common__"


class EnvRunner(EnvRunnerV2):
    """Replaces the RLlib class of the old API stack; returns the same batches.

    It overrides how the RLlib loop records env steps (`_process_observations`), calls policies (`_do_policy_eval`) and
    processes their outputs (`_process_policy_eval_results`). Environments, callbacks, batch cutting and metrics are
    left to RLlib.

    Attributes:
        slow_path_reasons: Policy id -> reasons for using RLlib connectors and collectors.
    """

    _active_episodes: dict[Any, OldStackEpisode]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._actors: dict[Hashable, PolicyActor] = {}
        self.slow_path_reasons: dict[Hashable, list[str]] = {}
        # The agents of this episode remain in the policy state buffers until the RLlib loop resets the connectors.
        self._ended: OldStackEpisode | None = None
        # For the current step: policy id -> acting agents, as items of the actor; policy id -> policy output.
        self._acting: dict[Hashable, list[Any]] = {}
        self._answers: dict[Hashable, Any] = {}

    @property
    def has_looked(self) -> bool:
        """True if the policy actors have been chosen."""
        return bool(self._actors)

    # Actors of policies.

    def refresh(self) -> None:
        """Choose the actors again before a call, because policies and their parts may have changed."""
        policies = self._worker.policy_map
        vars(policies)["_stash_least_used_policy"] = self._stash
        self._actors = {policy_id: actor for policy_id, actor in self._actors.items() if policy_id in policies}
        self.slow_path_reasons = {}
        for policy_id in [*policies]:
            policy = policies.cache.get(policy_id)
            if policy is not None:
                self._look_at(policy_id, policy)
            elif reasons := self._reasons_of_all():  # reading the policy from the map may stash another
                self.slow_path_reasons[policy_id] = reasons

    def _actor(self, policy_id: Hashable) -> PolicyActor:
        policies, actor = self._worker.policy_map, self._actors.get(policy_id)
        if len(policies._valid_keys) > policies.capacity:
            policy = policies[policy_id]  # as in the RLlib loop: the map stashes the least recently used policy
        else:
            policy = policies.cache.get(policy_id)
        if actor is not None and actor.policy is policy:
            return actor
        return self._look_at(policy_id, policies[policy_id] if policy is None else policy)

    def _look_at(self, policy_id: Hashable, policy: Any) -> PolicyActor:
        actor = self._actors.get(policy_id)
        reasons = self._reasons(policy_id, policy, actor)
        if reasons:
            self.slow_path_reasons[policy_id] = reasons
            if isinstance(actor, RLlibActor) and actor.policy is policy:
                return actor
            return self._give_to_rllib(policy_id, policy)
        if isinstance(actor, FastActor) and actor.policy is policy:
            actor.refresh()
            return actor
        self._actors[policy_id] = actor = FastActor(policy, self._trajectories)
        return actor

    def _reasons_of_all(self) -> list[str]:
        """Return the reasons that apply to all policies."""
        if type(self._base_env) not in BASE_ENVS:
            return [f"the base env is a {type(self._base_env).__name__}"]
        return []

    def _reasons(self, policy_id: Hashable, policy: Any, actor: PolicyActor | None) -> list[str]:
        if reasons := self._reasons_of_all():
            return reasons
        views = Views(policy)
        if reasons := problems_of(policy, views):
            return reasons
        is_known = actor is not None and actor.policy is policy
        if is_known and isinstance(actor, RLlibActor) and actor.is_unfit:
            return [UNFIT]
        if is_known and isinstance(actor, FastActor):
            if actor.changed_views(views) and any(self._running(policy_id)):
                return ["its view requirements were changed while episodes were running"]
            return ["its state buffer was changed while episodes were running"] if actor.lost_states() else []
        return ["it was added or replaced while episodes were running"] if any(self._running(policy_id)) else []

    def _running(self, policy_id: Hashable) -> Iterator[tuple[OldStackEpisode, Hashable]]:
        """Yield (episode, agent id) for the agents of the policy in running episodes."""
        for episode in self._active_episodes.values():
            for agent_id in episode._agent_collectors:
                if episode._agent_to_policy[agent_id] == policy_id:
                    yield episode, agent_id

    def _trajectories(self) -> Iterator[Trajectory]:
        for episode in self._active_episodes.values():
            yield from episode.trajectories
        if self._ended is not None:
            yield from self._ended.trajectories

    def _give_to_rllib(self, policy_id: Hashable, policy: Any, is_unfit: bool = False) -> PolicyActor:
        """Hand a policy and its running episodes over to RLlib's connectors and collectors."""
        former = self._actors.get(policy_id)
        if isinstance(former, FastActor):
            if former.policy is policy and not former.lost_states():
                former.keep_states(self._trajectories())
                former.keep_inputs(self._trajectories())
            if acting := self._acting.get(policy_id):
                if policy_id in self._answers:
                    self._answers[policy_id] = former.answer(acting)
                acting[:] = map(former.as_rllib_item, acting)
            for episode, agent_id in [*self._running(policy_id)]:
                trajectory = episode._agent_collectors[agent_id]
                if type(trajectory) is Trajectory:
                    episode._agent_collectors[agent_id] = trajectory.as_collector()
        actor = self._actors[policy_id] = RLlibActor(policy, is_unfit)
        return actor

    def _stash(self) -> Any:
        """Stash the least recently used policy, first completing its state; replaces a method of the policy map."""
        policies = self._worker.policy_map
        policy_id = policies._deque[0]
        actor = self._actors.get(policy_id)
        if isinstance(actor, FastActor) and actor.policy is policies.cache.get(policy_id):
            self._give_to_rllib(policy_id, actor.policy)
        return type(policies)._stash_least_used_policy(policies)

    def keep_states(self) -> None:
        """Write the last outputs of agents, which are part of policy states, to RLlib connectors after a call."""
        for actor in self._actors.values():
            if isinstance(actor, FastActor):
                actor.keep_states(self._trajectories())

    def backends(self) -> dict[str, str]:
        """Return the inference backend of each policy."""
        return {
            str(policy_id): actor.backend if isinstance(actor, FastActor) else "RLlib connectors and policy call"
            for policy_id, actor in self._actors.items()
        }

    # Episodes.

    def create_episode(self, env_id: Any) -> OldStackEpisode:
        """Like the RLlib method, but create an episode of the fastmarl class."""
        assert env_id not in self._active_episodes
        worker = self._worker
        episode = OldStackEpisode(
            env_id,
            worker.policy_map,
            worker.policy_mapping_fn,
            worker=worker,
            callbacks=self._callbacks,
            new_trajectory=self._new_trajectory,
            quick_layers_of=self._quick_layers_of,
        )
        self._callbacks.on_episode_created(
            worker=worker, base_env=self._base_env, policies=worker.policy_map, env_index=env_id, episode=episode
        )
        return episode

    def _new_trajectory(self, episode: OldStackEpisode, agent_id: Hashable) -> Trajectory | None:
        actor = self._actor(episode.policy_for(agent_id))
        return actor.new_trajectory(episode, agent_id) if isinstance(actor, FastActor) else None

    def _quick_layers_of(self, policy_id: Hashable) -> Mapping[Any, Any]:
        actor = self._actors.get(policy_id)
        return actor.quick_layers if isinstance(actor, FastActor) else {}

    def end_episode(self, env_id: Any, episode_or_exception: Any) -> None:
        """Finish an episode like the RLlib method."""
        self._ended = self._active_episodes.get(env_id)
        super().end_episode(env_id, episode_or_exception)

    def _handle_done_episode(self, *args: Any) -> None:
        super()._handle_done_episode(*args)
        self._ended = None

    def _call_on_episode_start(self, episode: Any, env_id: Any) -> None:
        self._ended = None
        super()._call_on_episode_start(episode, env_id)

    # A tick.

    def _process_observations(
        self, unfiltered_obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict
    ) -> tuple[set[Any], dict[Hashable, list[Any]], list[Any]]:
        active: set[Any] = set()
        acting: dict[Hashable, list[Any]] = defaultdict(list)
        self._acting, self._answers = acting, {}
        outputs: list[Any] = []
        for env_id, obs in unfiltered_obs.items():
            if isinstance(obs, Exception):
                assert terminateds[env_id][ALL] is True, (
                    f"ERROR: When a sub-environment (env-id {env_id}) returns an error as observation, the "
                    "terminateds[__all__] flag must also be set to True!"
                )
                self._handle_done_episode(env_id, obs, True, active, acting, outputs)
            else:
                flags = terminateds[env_id], truncateds[env_id]
                self._take_step(env_id, obs, rewards[env_id], flags, infos[env_id], active, acting, outputs)
        return active, acting, outputs

    def _take_step(
        self,
        env_id: Any,
        obs: dict,
        rewards: dict,
        flags: tuple[dict, dict],
        infos: dict,
        active: set[Any],
        acting: dict[Hashable, list[Any]],
        outputs: list[Any],
    ) -> None:
        """Record a step of an env, or its very first reset."""
        terminateds, truncateds = flags
        if env_id not in self._active_episodes:
            self._active_episodes[env_id] = self.create_episode(env_id)
        episode = self._active_episodes[env_id]
        if not episode.has_init_obs():
            self._call_on_episode_start(episode, env_id)
        over = terminateds[ALL] or truncateds[ALL]
        if not over:
            active.add(env_id)
        episode.set_last_info(COMMON, infos.get(COMMON, {}))
        for policy_id, seen in self._seen(episode, obs, rewards, terminateds, truncateds, infos).items():
            if will_act := self._actor(policy_id).observe(episode, seen, bool(over)):
                acting[policy_id] += will_act  # policies act in the order of their first agents
        episode.step()
        if episode.length > 0:  # 0: this was the reset
            self._callbacks.on_episode_step(
                worker=self._worker,
                base_env=self._base_env,
                policies=self._worker.policy_map,
                episode=episode,
                env_index=env_id,
            )
        if over:
            self._handle_done_episode(env_id, obs, over, active, acting, outputs)
        if self._multiple_episodes_in_batch:
            batch = self._try_build_truncated_episode_multi_agent_batch(self._batch_builders[env_id], episode)
            if batch:
                outputs.append(batch)
                del self._batch_builders[env_id]

    def _seen(
        self, episode: OldStackEpisode, obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict
    ) -> dict[Hashable, list[Seen]]:
        """Group the agents of a step by policy, with policies in the order of their first agents."""
        policies = self._worker.policy_map.cache
        seen, done = seen_by_policy(episode, policies, obs, rewards, terminateds, truncateds, infos)
        if terminateds[ALL] or truncateds[ALL]:
            for agent_id in episode.get_agents():
                if not done.get(agent_id) and not episode.is_done(agent_id):
                    policy_id = episode.policy_for(agent_id)
                    one = self._last_words(policy_id, agent_id, rewards, truncateds, infos)
                    seen.setdefault(policy_id, []).append(one)
        return seen

    def _last_words(
        self, policy_id: Hashable, agent_id: Hashable, rewards: dict, truncateds: dict, infos: dict
    ) -> Seen:
        """Return the last step of an agent unobserved when its episode ends, with a sampled observation as in RLlib."""
        space = get_original_space(self._worker.policy_map[policy_id].observation_space)
        reward, info = rewards.get(agent_id, 0.0), infos.get(agent_id, {})
        return agent_id, space.sample(), reward, True, truncateds.get(agent_id, False), info

    def _EnvRunnerV2__process_resetted_obs_for_eval(
        self, env_id: Any, obs: dict, infos: dict, episode: OldStackEpisode, to_eval: dict[Hashable, list[Any]]
    ) -> None:
        """Record a reset of an env; overrides a private RLlib method by its mangled name."""
        by_policy: dict[Hashable, list[tuple[Hashable, Any]]] = {}
        for agent_id, observation in obs[env_id].items():
            by_policy.setdefault(episode.policy_for(agent_id), []).append((agent_id, observation))
        for policy_id, first in by_policy.items():
            if will_act := self._actor(policy_id).begin(episode, first, infos):
                to_eval[policy_id] += will_act

    def _do_policy_eval(self, to_eval: dict[Hashable, list[Any]]) -> dict[Hashable, Any]:
        for policy_id, acting in to_eval.items():
            try:
                self._answers[policy_id] = self._actor(policy_id).act(acting, self._active_episodes)
            except UnfitAnswerError as unfit:
                self.slow_path_reasons[policy_id] = [UNFIT]
                self._give_to_rllib(policy_id, self._worker.policy_map[policy_id], is_unfit=True)
                self._answers[policy_id] = unfit.answer
        return self._answers

    def _process_policy_eval_results(
        self, active_envs: set[Any], to_eval: dict[Hashable, list[Any]], eval_results: dict, off_policy_actions: dict
    ) -> Actions:
        actions: Actions = defaultdict(dict)
        for env_id in active_envs:
            actions[env_id] = {}
        for policy_id, acting in to_eval.items():
            actor = self._actor(policy_id)  # may hand the policy over to RLlib, which changes the format of the output
            actor.send(acting, eval_results[policy_id], actions, off_policy_actions)
        return actions
