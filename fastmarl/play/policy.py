"""`Policy`, which maps observations to actions without a runner."""

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NoReturn, Self

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.checkpoint.folder import load_state
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.base import ConnectorPiece
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.errors import (
    CheckpointError,
    ConfigError,
    MultiAgentEnvError,
    PolicyBusyError,
    UnknownModuleError,
    misfit,
    shown,
)
from fastmarl.core.errors.checks import is_integer
from fastmarl.core.errors.exits import as_error
from fastmarl.core.errors.states import check_mapping
from fastmarl.core.objects.public import public
from fastmarl.core.store.lanes import Guest
from fastmarl.play.agents import ModuleAgents
from fastmarl.play.loaded_policy import parts_from
from fastmarl.runner.state.saved_policy import SAVED, VERSION, ModuleParts, PolicyOptions, copied_parts


@public("fastmarl.play")
class Policy:
    """Trained modules that act as they did in their runner, through the same connectors, masks and action spaces.

    ```python
    policy = fastmarl.Policy.from_checkpoint("checkpoint")
    action = policy.act(observation, agent_id="agent_0")
    ```

    Create a policy with `from_checkpoint()` or `from_runner()`; it needs no envs. Connectors use their statistics
    without updating them. For each agent, the policy keeps the history needed for the next action: recurrent state, and
    earlier observations, actions and rewards if the module or its connectors use them. Call `reset()` at the start of
    an episode to clear it. A policy runs on the CPU and in one thread at a time; create one per thread.

    Args:
        options: Options of the runner.
        parts: Module id -> module and its connectors.
        policy_mapping_fn: See `from_checkpoint()`.
        seed: See `from_checkpoint()`.

    Attributes:
        options: The argument `options`.
        parts: The argument `parts`.
        policy_mapping_fn: The argument `policy_mapping_fn`.
    """

    def __init__(
        self,
        options: PolicyOptions,
        parts: Mapping[str, ModuleParts],
        policy_mapping_fn: Callable[..., str] | None,
        seed: int | None,
    ):
        if not (policy_mapping_fn is None or callable(policy_mapping_fn)):
            raise ConfigError(f"policy_mapping_fn must be a function, (agent_id, episode) -> module id, got "
                              f"{shown(policy_mapping_fn)}")  # fmt: skip
        if not (seed is None or (is_integer(seed) and seed >= 0)):
            raise ConfigError(f"seed must be None or an integer >= 0, got {shown(seed)}")
        if policy_mapping_fn is not None and (reason := misfit(policy_mapping_fn, "agent_id", None)):
            raise ConfigError(f"policy_mapping_fn is called as f(agent_id, episode): {reason}")
        sequence = np.random.SeedSequence(seed)
        generator = torch.Generator().manual_seed(int(sequence.generate_state(1)[0]))
        rng = np.random.default_rng(sequence)
        self.options, self.parts = options, dict(parts)
        self.policy_mapping_fn = policy_mapping_fn
        self._module_of: dict[Hashable, ModuleAgents] = {}  # cache of the mapping function
        self._is_busy = False
        self._agents: dict[str, ModuleAgents] = {}
        for module_id, part in parts.items():
            part.module.eval()
            self._agents[module_id] = ModuleAgents(module_id, part.module, part.connectors, options, generator, rng)
        self._only = next(iter(self._agents.values())) if len(self._agents) == 1 else None

    @classmethod
    def from_runner(cls, runner: Any, *, seed: int | None = None) -> Self:
        """Create a policy from copies of the modules and connectors of a runner, and its `policy_mapping_fn`.

        Later training of the runner does not change the policy.

        Args:
            runner: A `MultiAgentEnvRunner`.
            seed: Seed for sampling with `explore=True`, at least 0; None for different samples each time.

        Raises:
            ConfigError: If `runner` is not a runner, or the seed is neither None nor an integer >= 0.
        """
        if not isinstance(getattr(runner, "config", None), EnvRunnerConfig):
            raise ConfigError(f"expected a fastmarl.MultiAgentEnvRunner, got {type(runner).__name__}")
        name = "num_env_steps_sampled_lifetime"
        options = PolicyOptions.of(runner.config, runner.get_state(name)[name])
        parts = copied_parts(options, runner.module, runner.env_to_module)
        return cls(options, parts, runner.config.policy_mapping_fn, seed)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        modules: Mapping[str, torch.nn.Module] | None = None,
        *,
        module_ids: Collection[str] | None = None,
        connectors: Mapping[str, Sequence[ConnectorPiece]] | None = None,
        policy_mapping_fn: Callable[..., str] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Create a policy from a directory written by `save_to_path()` of a runner.

        Default networks and fastmarl connectors are rebuilt from the checkpoint. Objects of other classes must be
        passed and are copied. The passed modules also receive the saved weights, so do not pass modules of a runner in
        training.

        Args:
            path: Directory of the checkpoint.
            modules: Module id -> an object of the module class, into which the saved weights are loaded. An object
                passed for several modules keeps the weights of the last one.
            module_ids: Ids of the modules to load, for example from a league; None for all. Others need no objects.
            connectors: Module id -> all connectors of the module, in order.
            policy_mapping_fn: Function (agent_id, episode) -> module id, called with None as the episode, once per
                agent until the agent is reset. Without it, `act()` needs a `module_id` if there are several modules.
            seed: Seed for sampling with `explore=True`, at least 0; None for different samples each time.

        Raises:
            CheckpointError: If the directory is missing, damaged, or was written by another version; or a custom module
                or connector was not passed or does not match the saved one.
            ConfigError: If the mapping function or the seed is invalid.
        """
        state = load_state(path)
        saved = state.get(SAVED) if isinstance(state, dict) else None
        if saved is None:
            raise CheckpointError(f"{path} was not written by a runner, or by a fastmarl version that saved no "
                                  f"policies; restore it into a runner and use Policy.from_runner()")  # fmt: skip
        version = saved.get("version") if isinstance(saved, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(f"{path} was written by a newer fastmarl (policy format {version}, but this version "
                                  f"reads up to {VERSION}); upgrade fastmarl")  # fmt: skip
        try:
            weights = state["rl_module"]
            learned = {option: state.get(option, {}) for option in CONNECTOR_OPTIONS}
            options, parts = parts_from(saved, weights, learned, modules or {}, connectors or {}, module_ids)
        except (ConfigError, KeyError) as error:
            raise CheckpointError(f"can't create a policy from {path}: {error}") from error
        return cls(options, parts, policy_mapping_fn, seed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with the modules {list(self._agents)}>"

    def __reduce__(self) -> NoReturn:
        """Raise ConfigError, because compiled code stores agent data, which cannot be copied."""
        raise ConfigError("a Policy can't be copied or pickled; create one per thread or process with "
                          "Policy.from_checkpoint() or Policy.from_runner()")  # fmt: skip

    @property
    def module_ids(self) -> list[str]:
        """Ids of the modules."""
        return list(self._agents)

    @property
    def inference_backends(self) -> dict[str, str]:
        """Module id -> inference backend: "native", or "torch" with the reason; see docs/inference.md."""
        return {module_id: agents.backend for module_id, agents in self._agents.items()}

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Return the spaces of each module.

        Returns:
            Module id -> (observation space, action space) of `act()`.
        """
        return {
            module_id: (agents.observation_space, agents.action_space) for module_id, agents in self._agents.items()
        }

    def export_onnx(
        self, path: str | os.PathLike[str], module_id: str | None = None, *, action_mask: bool = False
    ) -> str:
        """Write the greedy policy of a module to a file as an ONNX graph (see docs/deploy.md) and return the path.

        Inputs are "obs" [n, ...] (or "obs.key" for each leaf of a nested space), "state_in.name" for recurrent modules,
        and "action_mask" bool [n, choices] with `action_mask=True`. Outputs are "action" (or "action.key"), as in
        `act()`, and "state_out.name". `MeanStdFilter` and `FlattenObservations` are part of the graph.

        Args:
            path: File to write.
            module_id: Id of the module; None for the only module.
            action_mask: True to add an input for action masks, for agents whose masks are not in their observations.

        Raises:
            ConfigError: If the module or one of its connectors cannot be exported, or `module_id` is missing or
                unknown.
            ImportError: If the extra `onnx` is not installed.
        """
        from fastmarl.play.onnx_graph import GreedyGraph, save_graph

        if module_id is None and len(self.parts) > 1:
            raise ConfigError(f"export_onnx() needs a module_id, one of {list(self.parts)}")
        chosen = next(iter(self.parts)) if module_id is None else module_id
        if chosen not in self.parts:
            raise ConfigError(f"module_id={module_id!r} is not one of the modules {list(self.parts)}")
        save_graph(GreedyGraph(self.parts[chosen], self.options, takes_mask=action_mask), path)
        return os.fspath(path)

    def act(
        self,
        obs: Any,
        agent_id: Hashable = None,
        *,
        module_id: str | None = None,
        reward: float = 0.0,
        action_mask: Any = None,
        state: dict[str, Any] | None = None,
        explore: bool = False,
    ) -> Any:
        """Return the action for an observation, in the form that the env expects.

        The action is an int for Discrete spaces (with `start` added), a new array for array spaces, or dicts and tuples
        of these. If the call fails, the agents are unchanged.

        Args:
            obs: Observation as returned by the env; see `get_spaces()`.
            agent_id: Id of the agent, under which its history is kept.
            module_id: Id of the module that acts; None for the only module, or the result of the mapping function.
            reward: Reward since the last observation of the agent, for connectors that pass it to the module.
            action_mask: Array of numbers in which 0 excludes a choice, for agents whose masks are not in observations.
            state: None if the policy keeps the history of the agent. If the caller keeps it, {} for the first
                observation and the state returned with the last action for all others; `checkpoint.save_state()` can
                store it.
            explore: True to sample the action, False for the most likely action.

        Returns:
            The action, or the pair (action, next state) if `state` is given.

        Raises:
            ObservationError, ActionMaskError, RewardError: If the observation, mask or reward is invalid.
            ModuleOutputError: If the module returns NaN, for example because an observation contains NaN.
            ConfigError, UnknownModuleError: If the module is unknown or cannot be determined, or `state` is not one of
                its states.
            PolicyBusyError: If another call is running.
        """
        if self._is_busy:
            raise _busy("act()")
        try:
            self._is_busy = True
            agents = self._only if module_id is None and self._only is not None else self._find(agent_id, module_id)
            if agents.is_quick and not explore and action_mask is None and not state:
                action = agents.act_quickly(obs)
                if action is not None:
                    return action if state is None else (action, {})
            info = agents.info_of(agent_id, action_mask)
            if state is not None:
                return agents.act_from(state, obs, agent_id, reward, info, explore=explore)
            return agents.act({agent_id: obs}, {agent_id: reward}, {agent_id: info}, explore=explore)[agent_id]
        except MultiAgentEnvError as error:
            raise _without_env(error) from error
        except SystemExit as raised:
            raise as_error(raised) from raised
        finally:
            self._is_busy = False

    def act_batch(
        self,
        obs: Mapping[Hashable, Any],
        *,
        module_id: str | None = None,
        rewards: Mapping[Hashable, float] | None = None,
        infos: Mapping[Hashable, Any] | None = None,
        explore: bool = False,
    ) -> dict[Any, Any]:
        """Return agent id -> action for several agents, with one forward pass per module.

        Large batches sum numbers in a different order than a single row, so results may differ from `act()` in the last
        digits.

        Args:
            obs: Agent id -> observation, as returned by `reset()` and `step()` of an env.
            module_id: Id of the module that acts for all agents; None for the only module, or the results of the
                mapping function.
            rewards: Agent id -> reward, as returned by `step()`. Rewards of agents missing from `obs` are summed until
                they are observed again. If there are several modules, agents never observed are ignored.
            infos: Agent id -> info, which may contain an action mask.
            explore: True to sample actions, False for the most likely actions.

        Raises:
            FastmarlError: As in `act()`; agents of modules that ran before the error have already acted.
        """
        if self._is_busy:
            raise _busy("act_batch()")
        for name, given in (("obs", obs), ("rewards", rewards or {}), ("infos", infos or {})):
            check_mapping(f"{name} of act_batch(), by agent id,", given)
        try:
            self._is_busy = True
            of_module: dict[ModuleAgents, tuple[dict[Hashable, Any], dict[Hashable, Any]]] = {}  # observations, rewards
            for agent_id, each in obs.items():
                of_module.setdefault(self._find(agent_id, module_id), ({}, {}))[0][agent_id] = each
            for agent_id, reward in (rewards or {}).items():
                is_seen = agent_id in obs or agent_id in self._module_of
                if is_seen or module_id is not None or self._only is not None:
                    of_module.setdefault(self._find(agent_id, module_id), ({}, {}))[1][agent_id] = reward
            infos, actions = infos or {}, {}
            for agents, (of_agents, their_rewards) in of_module.items():
                their_infos = {agent_id: infos[agent_id] for agent_id in of_agents if agent_id in infos}
                actions.update(agents.act(of_agents, their_rewards, their_infos, explore=explore))
            return {agent_id: actions[agent_id] for agent_id in obs}
        except MultiAgentEnvError as error:
            raise _without_env(error) from error
        except SystemExit as raised:
            raise as_error(raised) from raised
        finally:
            self._is_busy = False

    def reset(self, agent_id: Hashable = None) -> None:
        """Clear the history and module of the agent `agent_id`, or of all agents if it is None."""
        if self._is_busy:
            raise _busy("reset()")
        for agents in self._agents.values():
            agents.forget(None if agent_id is None else [agent_id])
        if agent_id is None:
            self._module_of.clear()
        else:
            self._module_of.pop(agent_id, None)

    def _find(self, agent_id: Hashable, module_id: str | None) -> ModuleAgents:
        """Return the `ModuleAgents` of the module that acts for this agent."""
        if module_id is not None:
            if module_id not in self._agents:
                raise ConfigError(f"module_id={module_id!r} is not one of the modules {list(self._agents)}")
            return self._agents[module_id]
        if self._only is not None:
            return self._only
        found = self._module_of.get(agent_id)
        if found is None:
            if self.policy_mapping_fn is None:
                raise ConfigError(f"one of the modules {list(self._agents)} must act for agent {agent_id!r}: pass "
                                  f"module_id, or create the policy with a policy_mapping_fn")  # fmt: skip
            named = self.policy_mapping_fn(agent_id, None)
            if not isinstance(named, str) or named not in self._agents:
                raise UnknownModuleError(named, agent_id, list(self._agents))
            found = self._module_of[agent_id] = self._agents[named]
        return found


def _busy(method: str) -> PolicyBusyError:
    return PolicyBusyError(f"{method} was called during another call; create one Policy per thread")


def _without_env(error: MultiAgentEnvError) -> MultiAgentEnvError:
    """Return a copy of the error without the env index."""
    _, agent_id, env_t, problem = error.args
    return type(error)(None, agent_id.agent_id if isinstance(agent_id, Guest) else agent_id, env_t, problem)
