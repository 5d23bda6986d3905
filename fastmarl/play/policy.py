"""`Policy`: observations in, actions out, without a runner."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn, Self

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.checkpoint import load_state
from fastmarl.core.config import EnvRunnerConfig, is_integer
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
from fastmarl.core.exits import as_error
from fastmarl.core.public import public
from fastmarl.core.runner.saved_policy import SAVED, VERSION, ModuleParts, PolicyOptions, copied_parts, parts_from
from fastmarl.core.states import check_mapping
from fastmarl.play.agents import Guest, ModuleAgents


@public("fastmarl.play")
class Policy:
    """Trained modules that act as they did in their runner: through the same connectors, masks and action spaces.

    ```python
    policy = fastmarl.Policy.from_checkpoint("checkpoint")
    action = policy.act(observation, agent_id="agent_0")
    ```

    Made by `from_checkpoint()` or `from_runner()`; needs no envs. Connectors use their statistics without updating
    them. For each agent the policy keeps what the next action depends on: recurrent state, earlier observations,
    actions and rewards, as far as the module or its connectors look at them. Call `reset()` when an episode begins, to
    forget that. A policy works on the CPU, for one thread at a time; make one for each thread.

    Args:
        options: the runner's options.
        parts: module id -> the module and its connectors.
        policy_mapping_fn: see `from_checkpoint()`.
        seed: see `from_checkpoint()`.

    Attributes:
        options: the argument of that name.
        parts: the argument of that name.
        policy_mapping_fn: the argument of that name.
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
            raise ConfigError(f"seed must be None or an integer of at least 0, got {shown(seed)}")
        if policy_mapping_fn is not None and (reason := misfit(policy_mapping_fn, "agent_id", None)):
            raise ConfigError(f"policy_mapping_fn is called as f(agent_id, episode): {reason}")
        sequence = np.random.SeedSequence(seed)
        generator = torch.Generator().manual_seed(int(sequence.generate_state(1)[0]))
        rng = np.random.default_rng(sequence)
        self.options, self.parts = options, dict(parts)
        self.policy_mapping_fn = policy_mapping_fn
        self._module_of: dict[Hashable, ModuleAgents] = {}  # as the mapping function has said
        self._is_busy = False
        self._agents: dict[str, ModuleAgents] = {}
        for module_id, part in parts.items():
            part.module.eval()
            self._agents[module_id] = ModuleAgents(module_id, part.module, part.connectors, options, generator, rng)
        self._only = next(iter(self._agents.values())) if len(self._agents) == 1 else None

    @classmethod
    def from_runner(cls, runner: Any, *, seed: int | None = None) -> Self:
        """A policy with copies of a runner's modules and connectors, as they are now: later training does not change
        it. It also takes over the runner's `policy_mapping_fn`.

        Args:
            runner: a `MultiAgentEnvRunner`.
            seed: for `explore=True`; at least 0.

        Raises:
            ConfigError: it is no runner, or a seed is impossible.
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
        connectors: Mapping[str, Sequence[ConnectorPiece]] | None = None,
        policy_mapping_fn: Callable[..., str] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Restore the modules that a runner had when `save_to_path()` wrote a folder.

        Default nets and fastmarl's own connectors are made from what the checkpoint says. Objects of other classes
        must be given; the policy works with copies of them.

        Args:
            path: the folder.
            modules: module id -> an object of the module's class, which takes over the saved weights.
            connectors: module id -> all of the module's connectors, in order.
            policy_mapping_fn: `(agent_id, episode) -> module id`, called with None as the episode and once for each
                agent until it is reset. None: with several modules, `act()` needs a `module_id`.
            seed: seed of the draws with `explore=True`, at least 0; None: other draws each time.

        Raises:
            CheckpointError: the folder is missing, damaged, or was written by another version; a module or connector
                that is not fastmarl's own was not given, or another one.
            ConfigError: the mapping function or the seed is impossible.
        """
        state = load_state(path)
        saved = state.get(SAVED) if isinstance(state, dict) else None
        if saved is None:
            raise CheckpointError(f"{path} was written by a fastmarl that saved no policies, or by no runner; restore "
                                  f"it into a runner and take Policy.from_runner()")  # fmt: skip
        version = saved.get("version") if isinstance(saved, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(f"{path} was written by a newer fastmarl (version {version} of policies, this one "
                                  f"reads up to {VERSION}); upgrade fastmarl")  # fmt: skip
        try:
            weights = state["rl_module"]
            learned = {option: state.get(option, {}) for option in CONNECTOR_OPTIONS}
            options, parts = parts_from(saved, weights, learned, modules or {}, connectors or {})
        except (ConfigError, KeyError) as error:
            raise CheckpointError(f"no policy can be made from {path}: {error}") from error
        return cls(options, parts, policy_mapping_fn, seed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with the modules {list(self._agents)}>"

    def __reduce__(self) -> NoReturn:
        """Raises ConfigError: copies and pickles would need copies of what compiled code holds for agents."""
        raise ConfigError("a Policy can't be copied or pickled; make one for each thread or process, with "
                          "Policy.from_checkpoint() or Policy.from_runner()")  # fmt: skip

    @property
    def module_ids(self) -> list[str]:
        """Ids of the modules."""
        return list(self._agents)

    @property
    def inference_backends(self) -> dict[str, str]:
        """Module id -> what runs it: "lean", or "torch" and why; see docs/inference.md."""
        return {module_id: agents.backend for module_id, agents in self._agents.items()}

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Module id -> (observation space, action space): of what `act()` takes, and of what it returns."""
        return {
            module_id: (agents.observation_space, agents.action_space) for module_id, agents in self._agents.items()
        }

    def export_onnx(
        self, path: str | os.PathLike[str], module_id: str | None = None, *, action_mask: bool = False
    ) -> str:
        """Write a module's greedy policy to a file as one ONNX graph, see docs/deploy.md; returns its path.

        Inputs are "obs" [n, ...] (or "obs.key" for each leaf of a nested space), with memory "state_in.name", and
        "action_mask" bool [n, choices] if wanted. Outputs are "action" (or "action.key"), as `act()` returns it, and
        "state_out.name". `MeanStdFilter` and `FlattenObservations` are part of the graph.

        Args:
            module_id: None: the only one.
            action_mask: whether masks are an input of their own, for agents whose masks are not in observations.

        Raises:
            ConfigError: the module or a connector of it can't be part of a graph, or it is not clear which module.
            ImportError: the extra `onnx` is not installed.
        """
        from fastmarl.play.onnx_graph import GreedyGraph, save_graph

        if module_id is None and len(self.parts) > 1:
            raise ConfigError(f"export_onnx() needs a module_id, one of {list(self.parts)}")
        chosen = next(iter(self.parts)) if module_id is None else module_id
        if chosen not in self.parts:
            raise ConfigError(f"module_id={module_id!r} is none of the modules {list(self.parts)}")
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
        """The action for one observation, as the env is sent it: an int for Discrete (`start` added), an array of the
        caller's own for array spaces, dicts and tuples of these.

        Args:
            obs: as the env sends it; see `get_spaces()`.
            agent_id: the agent; histories are kept by it.
            module_id: which one acts; None: the only one, or what the mapping function says.
            reward: the agent's reward since its last observation, for connectors that show it to the module.
            action_mask: numbers, 0 rules a choice out, for agents whose masks are not in observations.
            state: None: the policy keeps what belongs to the agent. A dict: the caller does; {} stands before the first
                observation, and with each action comes the next state, which `checkpoint.save_state()` can hold.
            explore: draw the action; else it is the most likely one.

        Returns:
            The action; with `state`, the pair (action, next state).

        Raises:
            ObservationError, ActionMaskError, RewardError: what is given does not fit.
            ModuleOutputError: the module has answered with NaN, as to NaN in observations.
            ConfigError, UnknownModuleError: no such module, it is not clear which one acts, or `state` is not its own.
            PolicyBusyError: another call is under way. After any error agents are as they were before.
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
        """Agent id -> action, of all agents that are observed: one forward pass for each module.

        In large batches sums are added in another order than for one row, so numbers may differ from those of `act()`
        in their last digits.

        Args:
            obs: by agent id, as `reset()` and `step()` of an env return them.
            module_id: which module acts for all; None: the only one, or what the mapping function says.
            rewards: by agent id, likewise; others than those of the observed agents are left out.
            infos: by agent id, likewise; they may have masks.
            explore: draw actions; else they are the most likely ones.

        Raises:
            FastmarlError: as in `act()`. Agents of modules before the one that failed have acted.
        """
        if self._is_busy:
            raise _busy("act_batch()")
        for name, given in (("obs", obs), ("rewards", rewards or {}), ("infos", infos or {})):
            check_mapping(f"{name} of act_batch(), by agent id,", given)
        try:
            self._is_busy = True
            of_module: dict[ModuleAgents, dict[Hashable, Any]] = {}
            for agent_id, each in obs.items():
                of_module.setdefault(self._find(agent_id, module_id), {})[agent_id] = each
            rewards, infos, actions = rewards or {}, infos or {}, {}
            for agents, of_agents in of_module.items():
                their_rewards = {agent_id: rewards[agent_id] for agent_id in of_agents if agent_id in rewards}
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
        """Forget the history and the module of the agent `agent_id`; None: those of all agents."""
        if self._is_busy:
            raise _busy("reset()")
        for agents in self._agents.values():
            agents.forget(None if agent_id is None else [agent_id])
        if agent_id is None:
            self._module_of.clear()
        else:
            self._module_of.pop(agent_id, None)

    def _find(self, agent_id: Hashable, module_id: str | None) -> ModuleAgents:
        """Return the agents of the module that acts for this agent."""
        if module_id is not None:
            if module_id not in self._agents:
                raise ConfigError(f"module_id={module_id!r} is none of the modules {list(self._agents)}")
            return self._agents[module_id]
        if self._only is not None:
            return self._only
        found = self._module_of.get(agent_id)
        if found is None:
            if self.policy_mapping_fn is None:
                raise ConfigError(f"which of the modules {list(self._agents)} acts for agent {agent_id!r}? pass "
                                  f"module_id, or make the policy with a policy_mapping_fn")  # fmt: skip
            named = self.policy_mapping_fn(agent_id, None)
            if not isinstance(named, str) or named not in self._agents:
                raise UnknownModuleError(named, agent_id, list(self._agents))
            found = self._module_of[agent_id] = self._agents[named]
        return found


def _busy(method: str) -> PolicyBusyError:
    return PolicyBusyError(f"{method} was called while another call is under way; make a Policy for each thread")


def _without_env(error: MultiAgentEnvError) -> MultiAgentEnvError:
    """Return the error without the number of an env."""
    _, agent_id, env_t, problem = error.args
    return type(error)(None, agent_id.agent_id if isinstance(agent_id, Guest) else agent_id, env_t, problem)
