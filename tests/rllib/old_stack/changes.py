"""Changes that users make to a worker of the old stack between two calls."""

from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector import ActionConnector, AgentConnector, ConnectorContext
from ray.rllib.connectors.registry import register_connector
from ray.rllib.utils.typing import ActionConnectorDataType, AgentConnectorDataType
from rllib.differential import tape
from rllib.differential.tape import freeze
from rllib.old_stack.callbacks import AllCalls
from rllib.old_stack.policies import NotingExploration


class Halved(AgentConnector):
    """Halves observations on their way to the policy."""

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        tape.note("pieces", "halved", ac_data.env_id, repr(ac_data.agent_id), freeze(sorted(ac_data.data)))
        ac_data.data["new_obs"] = np.asarray(ac_data.data["new_obs"], np.float32) / 2
        return ac_data

    def reset(self, env_id: Any) -> None:
        tape.note("pieces", "reset", env_id)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        tape.note("pieces", "output", output.env_id, repr(output.agent_id), freeze(output.output))

    def to_state(self) -> tuple[str, Any]:
        return "Halved", None

    @staticmethod
    def from_state(ctx: ConnectorContext, params: Any) -> "Halved":
        return Halved(ctx)


class Watched(ActionConnector):
    """Writes actions down on their way to the env."""

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        tape.note("pieces", "action", ac_data.env_id, repr(ac_data.agent_id), freeze(ac_data.output))
        return ac_data

    def to_state(self) -> tuple[str, Any]:
        return "Watched", None

    @staticmethod
    def from_state(ctx: ConnectorContext, params: Any) -> "Watched":
        return Watched(ctx)


register_connector("Halved", Halved)
register_connector("Watched", Watched)


def _each(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Does this with all policies, in the order of their names."""

    def on(worker: Any) -> None:
        for name in sorted(worker.policy_map.keys()):
            change(worker.policy_map[name])

    return on


def _set_mode(mode: str) -> Callable[[Any], None]:
    def change(policy: Any) -> None:
        getattr(policy.agent_connectors, mode)()
        getattr(policy.action_connectors, mode)()

    return _each(change)


def _set_explore(explore: bool) -> Callable[[Any], None]:
    return _each(lambda policy: policy.config.update(explore=explore))


def _learn(policy: Any) -> None:
    policy.num_grad_updates += 3


def _view_more(policy: Any) -> None:
    policy.view_requirements["t"].used_for_training = False
    policy.view_requirements["infos"].used_for_training = False


def _move_weights(policy: Any) -> None:
    parameters = policy.model.parameters() if isinstance(policy.model, torch.nn.Module) else ()
    with torch.no_grad():
        for weight in parameters:
            weight.add_(0.1)


def _hook(policy: Any) -> None:
    policy.model.register_forward_hook(lambda model, args, out: tape.note("forward", "hook", freeze(out[0])))


def _patch(policy: Any) -> None:
    """Another way to actions on the object itself."""

    def compute(self: Any, input_dict: Any, *args: Any, **kwargs: Any) -> Any:
        tape.note("forward", "patched", freeze(dict(input_dict)))
        return type(self).compute_actions_from_input_dict(self, input_dict, *args, **kwargs)

    policy.compute_actions_from_input_dict = MethodType(compute, policy)


def _explore_otherwise(policy: Any) -> None:
    policy.exploration = NotingExploration(
        policy.action_space, framework="torch", policy_config=policy.config, model=policy.model, num_workers=1,
        worker_index=1,
    )  # fmt: skip


def _explore_at_random(policy: Any) -> None:
    policy.exploration.random_timesteps = policy.global_timestep + 10


def _add_agent_connector(policy: Any) -> None:
    context = ConnectorContext.from_policy(policy)
    policy.agent_connectors.insert_before("StateBufferConnector", Halved(context))


def _add_action_connector(policy: Any) -> None:
    policy.action_connectors.append(Watched(ConnectorContext.from_policy(policy)))


def _same_policy(worker: Any) -> Any:
    """One policy under two names."""
    names = ["p0", "p8"]

    def by_length(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        return names[(len(str(agent_id)) + episode.env_id) % 2]

    return type(worker.add_policy("p8", policy=worker.policy_map["p0"], policy_mapping_fn=by_length)).__name__


def _other_worlds(worker: Any) -> Any:
    """A curriculum: agents now join late, and episodes are short."""

    def change(env: Any) -> int:
        env.rules = replace(env.rules, joins=0.2, at_reset=0.2, max_steps=3)
        return env.number

    return worker.foreach_env(change)


def _each_env(worker: Any) -> Any:
    return worker.foreach_env_with_context(lambda env, context: (type(env).__name__, context.vector_index))


def _other_callbacks(worker: Any) -> None:
    worker.callbacks = AllCalls()


def _config(worker: Any) -> None:
    """RLlib read these when it made the worker, if not the frozen ones of policies."""
    worker.config._is_frozen = False
    worker.config.batch_mode, worker.config.count_steps_by = "complete_episodes", "agent_steps"


CHANGES: dict[str, Callable[[Any], Any]] = {
    "policies in evaluation": _set_mode("in_eval"),
    "policies in training": _set_mode("in_training"),
    "exploration": _set_explore(True),
    "no exploration": _set_explore(False),
    "gradient updates": _each(_learn),
    "connectors reset": _each(lambda policy: policy.agent_connectors.reset(0)),
    "an action connector less": _each(lambda policy: policy.action_connectors.remove("ImmutableActionsConnector")),
    "an agent connector more": _each(_add_agent_connector),
    "an action connector more": _each(_add_action_connector),
    "other columns": _each(_view_more),
    "weights in place": _each(_move_weights),
    "a hook": _each(_hook),
    "patched policies": _each(_patch),
    "another exploration": _each(_explore_otherwise),
    "random again": _each(_explore_at_random),
    "one policy twice": _same_policy,
    "other worlds": _other_worlds,
    "other callbacks": _other_callbacks,
    "another config": _config,
    "each env": _each_env,
}
