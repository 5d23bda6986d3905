"""Proximal Policy Optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms")."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.errors.checks import is_number
from fastmarl.core.kernels.returns import gae
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning.compiled_gradient import CompiledGradients
from fastmarl.learning.compiled_rows import LossOptions
from fastmarl.legacy.policies.policy_model import PolicyModel
from fastmarl.legacy.policies.torch_policy import TorchPolicy

VALUES_BOOTSTRAPPED = "values_bootstrapped"
LEAST_VARIANCE = 1e-6  # as in RLlib
LEARNED_FROM = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.ACTION_MASK,
                Columns.ADVANTAGES, Columns.VALUE_TARGETS)  # fmt: skip


def add_advantages(
    columns: dict[str, Any], length_S: np.ndarray, last_value_S: np.ndarray, config: Mapping[str, Any]
) -> None:
    """Add the columns "advantages", "value_targets" and, with a critic, "values_bootstrapped", each float32 [n].

    Args:
        columns: "rewards" [n] and, with `use_critic`, "vf_preds" [n] of s concatenated trajectories.
        length_S: int64 [s], the lengths of the trajectories.
        last_value_S: float64 [s], the value after the last step of each trajectory, or 0 if it terminated.
        config: "gamma", "lambda", "use_gae" and "use_critic". As in RLlib, advantages without GAE are discounted
            returns, minus the values if there is a critic.

    Raises:
        BatchError: If GAE is used without a critic, or values are missing.
    """
    if config["use_gae"] and not config["use_critic"]:
        raise BatchError("use_gae=True needs values; set use_critic=True, or use_gae=False, in policy_config")
    rewards = columns[Columns.REWARDS]
    values = _values(columns) if config["use_critic"] else np.zeros(len(rewards))
    is_gae, gamma = config["use_gae"], float(config["gamma"])
    advantages = np.empty(len(rewards))
    baseline, lambda_ = (values, float(config["lambda"])) if is_gae else (np.zeros(len(rewards)), 1.0)
    gae(rewards, baseline, last_value_S, length_S, gamma, lambda_, advantages)
    if is_gae:
        targets = advantages + values
    else:
        targets = advantages if config["use_critic"] else np.zeros(len(rewards))
        advantages = advantages - values
    columns[Columns.ADVANTAGES] = advantages.astype(np.float32)
    columns[Columns.VALUE_TARGETS] = targets.astype(np.float32)
    if config["use_critic"]:
        columns[VALUES_BOOTSTRAPPED] = _next_values(values, length_S, last_value_S)


def _values(columns: Mapping[str, Any]) -> np.ndarray:
    """Return the module values as float64 [n]."""
    if Columns.VF_PREDS not in columns:
        raise BatchError(f"advantages need {Columns.VF_PREDS!r}, which the policy's module does not output; add it, "
                         f"or set use_critic=False and use_gae=False in policy_config")  # fmt: skip
    return np.asarray(columns[Columns.VF_PREDS], np.float64)


def _next_values(values: np.ndarray, length_S: np.ndarray, last_value_S: np.ndarray) -> np.ndarray:
    """Return the value after each step, float32 [n]."""
    following = np.empty(len(values), np.float32)
    following[:-1] = values[1:]
    following[np.cumsum(length_S) - 1] = last_value_S
    return following


@public("fastmarl.legacy")
class PPOTorchPolicy(TorchPolicy):
    """A policy with the loss and advantages of PPO. Options and defaults are the same as in RLlib.

    Only `update_kl()` changes the KL coefficient; the RLlib algorithm calls it after each iteration.
    `lr_schedule` and `entropy_coeff_schedule` are lists of [timestep, value] pairs, linearly interpolated. The timestep
    is initially 0 and is set by `worker.set_global_vars()`.

    Args:
        module: The module that acts and learns.
        config: Options that differ from `DEFAULTS`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **TorchPolicy.DEFAULTS,
        "gamma": 0.99,
        "lambda": 1.0,
        "use_gae": True,
        "use_critic": True,
        "clip_param": 0.3,
        "vf_clip_param": 10.0,
        "vf_loss_coeff": 1.0,
        "entropy_coeff": 0.0,
        "entropy_coeff_schedule": None,
        "lr_schedule": None,
        "use_kl_loss": True,
        "kl_coeff": 0.2,
        "kl_target": 0.01,
    }

    def __init__(self, module: Any, config: Mapping[str, Any] | None = None):
        super().__init__(module, config)
        self._follow_schedules(0)
        self.kl_coeff: float = self.config["kl_coeff"]
        self._made = self.model, self.dist_class
        self._gradients: dict[Tensor, Tensor] = {}
        self._compiled: CompiledGradients | None = None

    # Advantages.

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Mapping[Any, tuple] | None = None, episode: Any = None
    ) -> Any:
        """Add "advantages", "value_targets" and, with a critic, "values_bootstrapped" to a trajectory."""
        last = slice(len(sample_batch) - 1, len(sample_batch))
        states = [sample_batch[f"state_out_{i}"][last] for i in range(self.num_state_tensors())]
        next_obs = map_struct(lambda leaf: leaf[last], sample_batch[Columns.NEXT_OBS])
        last_values = self.last_values(next_obs, states, sample_batch[Columns.TERMINATEDS][last])
        add_advantages(sample_batch, np.array([len(sample_batch)]), last_values, self.config)
        return sample_batch

    def postprocess_trajectories(
        self, columns: dict[str, Any], length_S: np.ndarray, final_obs: Any, final_states: list[np.ndarray]
    ) -> None:
        """Add the columns of `add_advantages()` to s concatenated trajectories in a single call.

        Args:
            columns: Columns [n, ...] of the trajectories, to which the results are added.
            length_S: int64 [s], the lengths of the trajectories.
            final_obs: [s, ...], the observation after the last step of each trajectory.
            final_states: [s, ...] each, the leaves of the recurrent state after the last step of each trajectory.
        """
        ended_S = columns[Columns.TERMINATEDS][np.cumsum(length_S) - 1]
        add_advantages(columns, length_S, self.last_values(final_obs, final_states, ended_S), self.config)

    def last_values(self, obs: Any, states: list[np.ndarray], ended_S: np.ndarray) -> np.ndarray:
        """Return the values of final observations, float64 [s]: 0 for terminated trajectories or without a critic.

        Args:
            obs: Observations [s, ...].
            states: Leaves of the recurrent states, each [s, ...]; empty if the policy is not recurrent.
            ended_S: bool [s], True for terminated trajectories.
        """
        values = np.zeros(len(ended_S))
        alive = ~ended_S
        if self.config["use_critic"] and alive.any():
            values[alive] = self.values(map_struct(lambda leaf: leaf[alive], obs), [leaf[alive] for leaf in states])
        return values

    def values(self, obs: Any, states: list[np.ndarray]) -> np.ndarray:
        """Return the values, float32 [n], for `obs` [n, ...] and the leaves of recurrent `states` [n, ...], if any."""
        columns = {Columns.OBS: map_struct(self._tensor, obs)}
        if states:
            n = len(flatten_struct(obs)[0][1])
            columns |= {f"state_in_{i}": self._tensor(leaf) for i, leaf in enumerate(states)}
            columns[Columns.SEQ_LENS] = torch.ones(n, dtype=torch.int64)
        with torch.no_grad():
            self.model(columns)
            return self.model.value_function().cpu().numpy()

    # The loss.

    def loss(self, model: PolicyModel, dist_class: Callable[..., Distribution], train_batch: Any) -> Tensor:
        """Return the PPO loss: clipped surrogate loss, value error, entropy bonus and KL penalty."""
        config = self.config
        logits, state = model(train_batch)
        now, before = dist_class(logits, model), dist_class(train_batch[Columns.ACTION_DIST_INPUTS], model)
        mean = _mean_over_steps(train_batch, len(logits)) if state else torch.mean
        advantages = train_batch[Columns.ADVANTAGES]
        ratio = torch.exp(now.logp(train_batch[Columns.ACTIONS]) - train_batch[Columns.ACTION_LOGP])
        clipped = ratio.clamp(1 - config["clip_param"], 1 + config["clip_param"])
        surrogate = torch.minimum(advantages * ratio, advantages * clipped)
        entropy = now.entropy()
        values, value_error = torch.zeros(()), torch.zeros_like(surrogate)
        if config["use_critic"]:
            values = model.value_function()
            value_error = (values - train_batch[Columns.VALUE_TARGETS]).square().clamp(0, config["vf_clip_param"])
        total = mean(config["vf_loss_coeff"] * value_error - surrogate - self.entropy_coeff * entropy)
        kl = mean(before.kl(now)) if config["use_kl_loss"] else torch.zeros(())
        if config["use_kl_loss"]:
            total = total + self.kl_coeff * kl
        model.tower_stats.update(
            total_loss=total, policy_loss=mean(-surrogate), vf_loss=mean(value_error), entropy=mean(entropy), kl=kl,
            vf_explained_var=explained_variance(train_batch[Columns.VALUE_TARGETS], values.detach()),
        )  # fmt: skip
        return total

    def _compute_gradients(self, batch: Any) -> dict[str, Any]:
        """Compute gradients, with compiled code if `fastmarl.learning` supports this loss and module."""
        config = self.config
        is_without_term = (config["use_kl_loss"] and not self.kl_coeff) or (
            config["use_critic"] and not config["vf_loss_coeff"]
        )  # compiled code would also omit its statistics
        if not self._has_own_loss() or self.is_recurrent() or is_without_term:
            return super()._compute_gradients(batch)
        train_batch = self._tensors(batch)
        options = LossOptions(
            clip=config["clip_param"],
            vf_coeff=config["vf_loss_coeff"] if config["use_critic"] else 0.0,
            vf_clip=config["vf_clip_param"],
            entropy_coeff=self.entropy_coeff,
            kl_coeff=self.kl_coeff if config["use_kl_loss"] else 0.0,
        )
        columns = {name: train_batch[name] for name in LEARNED_FROM if name in train_batch}
        try:
            rows = self._compiled_gradients().rows(columns, options)
        except NotDenseError:
            return super()._compute_gradients(batch)
        self._optimizer.zero_grad()
        stats = rows.compute(torch.arange(len(rows)))
        for parameter in rows.trained:
            parameter.grad = self._gradients[parameter]
        return self._processed(self._note(stats, options, train_batch), train_batch)

    def _compiled_gradients(self) -> CompiledGradients:
        trained = [each for each in self.module.parameters() if each.requires_grad]
        if self._compiled is None or list(map(id, trained)) != list(map(id, self._gradients)):
            self._gradients = {each: torch.zeros_like(each).detach() for each in trained}
            self._compiled = CompiledGradients(self.module, self._gradients)
        return self._compiled

    def _has_own_loss(self) -> bool:
        """Return whether loss, model and distribution are unmodified, so that compiled code can replace them."""
        is_own = type(self).loss is PPOTorchPolicy.loss and "loss" not in vars(self)
        return is_own and (self.model, self.dist_class) == self._made

    def _note(self, stats: Mapping[str, float], options: LossOptions, train_batch: Any) -> Tensor:
        """Store statistics in `tower_stats`, like `loss()`, and return the loss."""
        kl, vf_loss = stats.get("mean_kl_loss", 0.0), stats.get("vf_loss", 0.0)
        total = stats["policy_loss"] + options.vf_coeff * vf_loss - options.entropy_coeff * stats["entropy"]
        share = stats.get("vf_explained_var", 0.0)
        found = {"total_loss": total + options.kl_coeff * kl, "policy_loss": stats["policy_loss"], "vf_loss": vf_loss,
                 "entropy": stats["entropy"], "kl": kl,
                 "vf_explained_var": self._explained_variance(share, train_batch)}  # fmt: skip
        self.model.tower_stats.clear()
        self.model.tower_stats.update({name: torch.tensor(value) for name, value in found.items()})
        loss: Tensor = self.model.tower_stats["total_loss"]
        return loss

    def _explained_variance(self, share: float, train_batch: Any) -> float:
        """Convert `share`, from compiled code with a different minimum variance, to the explained variance of RLlib."""
        targets = train_batch[Columns.VALUE_TARGETS]
        if self.config["use_critic"] and share <= -1.0:  # may have been clipped
            return float(explained_variance(targets, torch.as_tensor(self.values(train_batch[Columns.OBS], []))))
        variance = float(targets.double().var()) if len(targets) > 1 else math.nan
        return 1.0 - (1.0 - share) * variance / (variance + LEAST_VARIANCE)

    def stats_fn(self, train_batch: Any) -> dict[str, Any]:
        """Return statistics of the last loss on `train_batch` as floats.

        Names are the same as in RLlib: "total_loss", "policy_loss", "vf_loss", "vf_explained_var", "entropy", "kl",
        "cur_kl_coeff", "cur_lr", "entropy_coeff".
        """
        now = {"cur_kl_coeff": self.kl_coeff, "cur_lr": self.cur_lr, "entropy_coeff": self.entropy_coeff}
        return {**super().stats_fn(train_batch), **now}

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Set the counters from `global_vars`, and `cur_lr` and `entropy_coeff` to their schedules at "timestep"."""
        super().on_global_var_update(global_vars)
        self._follow_schedules(global_vars["timestep"])
        if self.config["lr_schedule"] is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self.cur_lr

    def _follow_schedules(self, timestep: int) -> None:
        config = self.config
        self.cur_lr: float = _scheduled("lr", config["lr"], config["lr_schedule"], timestep)
        entropy_coeff, of_entropy = config["entropy_coeff"], config["entropy_coeff_schedule"]
        if of_entropy is not None and not isinstance(of_entropy, Sequence):  # timestep at which it reaches 0
            of_entropy = [[0, entropy_coeff], [of_entropy, 0.0]]
        self.entropy_coeff: float = _scheduled("entropy_coeff", entropy_coeff, of_entropy, timestep)

    def update_kl(self, sampled_kl: float) -> float:
        """Adapt the KL coefficient to `sampled_kl`, the mean KL divergence of the last update, and return it."""
        if sampled_kl > 2.0 * self.config["kl_target"]:
            self.kl_coeff *= 1.5
        elif sampled_kl < 0.5 * self.config["kl_target"]:
            self.kl_coeff *= 0.5
        return self.kl_coeff

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "current_kl_coeff": self.kl_coeff}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.kl_coeff = state.get("current_kl_coeff", self.kl_coeff)


def explained_variance(targets: Tensor, values: Tensor) -> Tensor:
    """Return 1 - variance of errors / variance of `targets`, at least -1. As in RLlib, padding rows are included."""
    if len(targets) < 2:
        return torch.tensor(math.nan)
    share = (targets - values).var() / (targets.var() + LEAST_VARIANCE)
    return (1 - share).clamp(min=-1.0)


def _mean_over_steps(train_batch: Any, n_rows: int) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the mean of values [n] over all steps except padding."""
    lengths = train_batch[Columns.SEQ_LENS]
    steps = torch.arange(n_rows // len(lengths), device=lengths.device)
    mask = (steps < lengths[:, None]).flatten()
    return lambda values: values[mask].mean()


def _scheduled(name: str, constant: float, schedule: Any, timestep: int) -> float:
    """Return the value of an option at a timestep.

    Args:
        name: Name of the option.
        constant: The value if there is no schedule.
        schedule: [timestep, value] pairs in timestep order, linearly interpolated, or None. Outside their range, the
            last value is used, as in RLlib.
        timestep: Number of env steps.

    Raises:
        ConfigError: If the schedule is invalid.
    """
    if schedule is None:
        return constant
    if not _is_schedule(schedule):
        raise ConfigError(f"{name}_schedule must be a list of [timestep, value] pairs with ascending timesteps, got "
                          f"{schedule!r:.200}")  # fmt: skip
    points = [(int(t), float(value)) for t, value in schedule]
    for (t, value), (next_t, next_value) in pairwise(points):
        if t <= timestep < next_t:
            return value + (timestep - t) / (next_t - t) * (next_value - value)
    return points[-1][1]


def _is_schedule(schedule: Any) -> bool:
    if not isinstance(schedule, Sequence) or isinstance(schedule, str) or not schedule:
        return False
    if not all(isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_number, pair)) for pair in schedule):
        return False
    times = [t for t, _ in schedule]
    return times == sorted(times)
