"""Policies as users write them. They write down what they are given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.dqn.dqn_torch_policy import DQNTorchPolicy
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.algorithms.sac.sac_torch_policy import SACTorchPolicy
from ray.rllib.evaluation.rollout_worker import get_global_worker
from ray.rllib.policy.policy import Policy
from ray.rllib.policy.sample_batch import concat_samples
from ray.rllib.policy.torch_policy_v2 import TorchPolicyV2
from ray.rllib.utils.exploration.exploration import Exploration
from rllib.differential import tape
from rllib.differential.tape import freeze
from rllib.old_stack.notes import outline


class Noting(PPOTorchPolicy):
    """Its own way from inputs to actions, and all that it sees on the tape."""

    def compute_actions_from_input_dict(
        self, input_dict: Any, explore: Any = None, timestep: Any = None, **kwargs: Any
    ):
        episodes = tuple(map(outline, kwargs.get("episodes") or ()))
        tape.note("forward", "input", freeze(dict(input_dict)), freeze(explore), freeze(timestep), episodes)
        tape.note("forward", "batch", type(input_dict).__name__, freeze(_settings(input_dict)), tuple(sorted(kwargs)))
        return super().compute_actions_from_input_dict(input_dict, explore, timestep, **kwargs)

    def postprocess_trajectory(self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        others = other_agent_batches or {}
        shown = [*others][:3]
        seen = tuple((repr(agent), part[0], part[-1].count) for agent, part in others.items())
        seen = (seen, freeze({agent: dict(others[agent][-1]) for agent in shown}))
        tape.note("forward", "postprocess", freeze(dict(sample_batch)), freeze(_settings(sample_batch)), seen)
        if episode is not None:
            tape.note("forward", "episode", *outline(episode))
        return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)


def _settings(batch: Any) -> list:
    return [batch.count, batch.max_seq_len, batch.zero_padded, batch.time_major, batch.is_training]


class Peers(PPOTorchPolicy):
    """Trains on the rewards of the other agents, and leaves marks in the episode."""

    def postprocess_trajectory(self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        batch = super().postprocess_trajectory(sample_batch, other_agent_batches, episode)
        batches = [part[-1] for part in (other_agent_batches or {}).values()]
        mean = np.float32(np.mean([float(one["rewards"].sum()) for one in batches])) if batches else np.float32(0.0)
        batch["of_others"] = np.full(len(batch), mean)
        if episode is not None:
            episode.hist_data.setdefault("of_others", []).append(float(mean))
            episode.user_data["last"] = tuple(map(repr, episode.get_agents()))
        return batch


class Editing(PPOTorchPolicy):
    """Returns another batch than it was given: longer, or without its first row."""

    def postprocess_trajectory(self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        batch = super().postprocess_trajectory(sample_batch, other_agent_batches, episode)
        if episode is None or len(batch) < 2:
            return batch
        return batch[1:] if len(batch) % 2 else concat_samples([batch, batch])


class _More(PPOTorchPolicy):
    """Hands out more than actions."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        raise NotImplementedError

    def extra_action_out(self, input_dict: Any, state_batches: Any, model: Any, action_dist: Any) -> dict:
        usual = super().extra_action_out(input_dict, state_batches, model, action_dist)
        return {**usual, **self.more(input_dict["obs"])}


class Extras(_More):
    """Columns of several shapes and dtypes."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        obs = obs.flatten(1).float()
        return {"sum_of_obs": obs.sum(1), "wide": torch.stack([obs, -obs], 1), "count": torch.ones(len(obs)).long()}


class Retyped(_More):
    """An integer where it does not explore, and a fraction where it does."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        return {"kept": torch.full((len(obs), 2), 1.5) if self.config["explore"] else torch.ones(len(obs), 2).long()}


class Nested(_More):
    """A fetch that is a tree."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        ones = torch.ones(len(obs))
        return {"tree": {"b": ones, "a": (ones * 2, ones * 3)}}


class Overriding(_More):
    """Other actions to be recorded than those taken."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        return {"actions": torch.zeros(len(obs)).long()}


class Misnaming(_More):
    """A fetch with the name of a state, where there is none."""

    def more(self, obs: torch.Tensor) -> dict[str, Any]:
        return {"state_out_7": torch.ones(len(obs), 2)}


class Bare(TorchPolicyV2):
    """Nothing but a loss: neither values, nor anything to postprocess."""

    def loss(self, model: Any, dist_class: Any, train_batch: Any) -> Any:
        logits, _ = model(train_batch)
        return -dist_class(logits, model).logp(train_batch["actions"]).mean()


class Sampling(Bare):
    """Draws actions by itself."""

    def action_sampler_fn(self, model: Any, *, obs_batch: Any, state_batches: Any, **kwargs: Any):
        logits, state = model(obs_batch, state_batches, None)
        dist = self.dist_class(logits, model)
        actions = dist.sample() if kwargs["explore"] else dist.deterministic_sample()
        return actions, dist.sampled_action_logp(), logits, state


class Distributing(Bare):
    """Makes its distribution by itself, from the time step, too."""

    def action_distribution_fn(self, model: Any, *, obs_batch: Any, state_batches: Any, **kwargs: Any):
        tape.note("forward", "time", kwargs["timestep"], kwargs["explore"])
        logits, state = model(obs_batch, state_batches, kwargs.get("seq_lens"))
        return logits * (1 + kwargs["timestep"] % 7), self.dist_class, state


class Heuristic(Policy):
    """Without a network. Draws from NumPy's global generator, and hands out lists."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.calls = 0

    def compute_actions_from_input_dict(self, input_dict: Any, *args: Any, **kwargs: Any):
        tape.note("forward", "input", freeze(dict(input_dict)), freeze(_settings(input_dict)))
        return super().compute_actions_from_input_dict(input_dict, *args, **kwargs)

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any):
        self.calls += 1
        worker = get_global_worker()
        tape.note("forward", "heuristic", freeze(obs_batch), freeze(kwargs.get("timestep")), worker.worker_index)
        draws = np.random.randint(0, 3, len(obs_batch))  # noqa: NPY002
        return [int(draw) for draw in draws], [], {"calls": np.full(len(obs_batch), self.calls)}

    def learn_on_batch(self, samples: Any) -> dict:
        return {}

    def get_weights(self) -> dict:
        return {"calls": self.calls}

    def set_weights(self, weights: dict) -> None:
        self.calls = weights["calls"]


class Counting(Heuristic):
    """A state without a network: how often each agent was asked."""

    def is_recurrent(self) -> bool:
        return True

    def get_initial_state(self) -> list:
        return [np.zeros(2, np.float32)]

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any):
        actions, _, more = super().compute_actions(obs_batch, state_batches, **kwargs)
        return actions, [np.asarray(state_batches[0]) + 1], more


class Failing(PPOTorchPolicy):
    """Raises in its tenth forward pass."""

    def compute_actions_from_input_dict(self, input_dict: Any, *args: Any, **kwargs: Any):
        self.passes = getattr(self, "passes", 0) + 1
        if self.passes == 10:
            raise ArithmeticError("this policy fails")
        return super().compute_actions_from_input_dict(input_dict, *args, **kwargs)


class NotingExploration(Exploration):
    """Every hook that an exploration has."""

    def before_compute_actions(self, *, timestep: Any = None, explore: Any = None, tf_sess: Any = None, **kwargs: Any):
        tape.note("forward", "before", freeze(timestep), freeze(explore))

    def get_exploration_action(self, *, action_distribution: Any, timestep: Any, explore: Any = True):
        tape.note("forward", "explore", freeze(timestep), freeze(explore), freeze(action_distribution.inputs))
        return action_distribution.sample(), action_distribution.sampled_action_logp()

    def on_episode_start(
        self, policy: Any, *, environment: Any = None, episode: Any = None, tf_sess: Any = None
    ) -> None:
        tape.note("forward", "exploration starts", outline(episode))

    def on_episode_end(self, policy: Any, *, environment: Any = None, episode: Any = None, tf_sess: Any = None) -> None:
        tape.note("forward", "exploration ends", outline(episode))

    def postprocess_trajectory(self, policy: Any, sample_batch: Any, tf_sess: Any = None) -> Any:
        tape.note("forward", "exploration's trajectory", freeze(dict(sample_batch)))
        sample_batch["rewards"] = sample_batch["rewards"] + np.float32(0.25)
        return sample_batch


POLICIES: dict[str, Callable[..., Policy] | None] = {
    "default": None,
    "ppo": PPOTorchPolicy,
    "dqn": DQNTorchPolicy,
    "sac": SACTorchPolicy,
    "noting": Noting,
    "peers": Peers,
    "editing": Editing,
    "extras": Extras,
    "retyped": Retyped,
    "nested": Nested,
    "overriding": Overriding,
    "misnaming": Misnaming,
    "bare": Bare,
    "sampling": Sampling,
    "distributing": Distributing,
    "heuristic": Heuristic,
    "counting": Counting,
    "failing": Failing,
}

EXPLORATIONS: dict[str, dict[str, Any]] = {
    "stochastic": {"type": "StochasticSampling"},
    "random at first": {"type": "StochasticSampling", "random_timesteps": 25},
    "random": {"type": "Random"},
    "epsilon": {"type": "EpsilonGreedy", "initial_epsilon": 0.9, "final_epsilon": 0.2, "epsilon_timesteps": 40},
    "soft q": {"type": "SoftQ", "temperature": 0.7},
    "parameter noise": {"type": "ParameterNoise", "random_timesteps": 0},
    "gaussian": {"type": "GaussianNoise", "random_timesteps": 5, "scale_timesteps": 30},
    "curiosity": {
        "type": "Curiosity",
        "feature_dim": 4,
        "feature_net_config": {"fcnet_hiddens": []},
        "sub_exploration": {"type": "StochasticSampling"},
    },
    "noting": {"type": NotingExploration},
}
