"""Double Q-learning of team action values."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from fastmarl.core.errors import BatchError, CheckpointError, ConfigError, ModuleOutputError
from fastmarl.core.modules.encoders import make_flattener
from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.learning.adam import OptimizerSteps, limit_norm
from fastmarl.learning.compiled_batch import CompiledGradient
from fastmarl.learning.compiled_gradient import CompiledGradients
from fastmarl.learning.compiled_outputs import AutogradOutputs
from fastmarl.learning.flat_parameters import FlatParameters, flat_parameters
from fastmarl.learning.one_module import one_module
from fastmarl.learning.ppo import check_coefficients
from fastmarl.learning.team_rows import TeamRows, TeamSequences
from fastmarl.learning.tensors import to_tensors

NEEDED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, "active", "new_active", "terminateds")
TRAJECTORY = "trajectory"
OPTIONAL = (Columns.ACTION_MASK, Columns.LOSS_MASK, Columns.ENV_STATE, TRAJECTORY)
HUBER, MSE = "huber", "mse"


@public("fastmarl.learning")
class QLearner:
    """Trains a Q-network in place, by double Q-learning with a target network.

    ```python
    learner = QLearner(runner.module["default_policy"], lr=1e-3, gamma=0.99)
    stats = learner.update(replay.sample(256))  # replay: a TeamReplay
    ```

    The value of a team is the sum over the acting agents, as in VDN (Sunehag et al. 2018, "Value-Decomposition
    Networks"), or the output of a mixer, as in QMIX. For teams of a single agent, this is independent Q-learning. The
    trained network chooses the next actions, and the target network evaluates them (van Hasselt et al. 2016, "Deep
    Reinforcement Learning with Double Q-learning").

    The action values are the output "action_dist_inputs" of the module. Their gradient is compiled for the same modules
    as in `PPOLearner`; the gradient of the mixer is not compiled. A recurrent module starts each sequence, and each
    trajectory within it, with its initial state, and sees only the decisions in which the agent takes part.

    Args:
        module: Module with a Discrete action space. Its parameters and the mixer parameters are moved into a single
            tensor; see `flat_parameters()`.
        mixer: Module that maps (values [n, T, A], states [n, T, ...]) to team values [n, T], such as `QMixer`; None to
            sum the values. The states are the column "env_state" or, without it, the concatenated observations of all
            agents, flattened as by `gym.spaces.flatten()`. Values and observations are 0 for agents that do not take
            part.
        lr: Learning rate of Adam. Pass `optimizer` to schedulers.
        gamma: Discount per decision.
        lambda_: Parameter of TD(lambda) targets: 0 uses a single reward and the next value, 1 uses all rewards until
            the end of the sequence.
        tau: Fraction of the new weights in each update of the target network, as in RLlib.
        target_network_update_freq: Number of updates per update of the target network.
        td_error_loss_fn: "huber" or "mse".
        max_grad_norm: Maximum norm of gradients, which are scaled down if larger; None for no limit.
        compiled: True to use compiled code where possible, False to always use autograd.

    Attributes:
        backend: "compiled", or "autograd" followed by the reason; known after the first update.
        module, mixer: As passed.
        target: ModuleList of the target network and, if there is one, its mixer. Read-only. Updates also include
            buffers and frozen parameters.
        optimizer: torch.optim.Adam over `parameters`.
        parameters: FlatParameters of the module and the mixer.

    Raises:
        ConfigError: If an argument is out of range, or the module has no Discrete actions.
    """

    def __init__(
        self,
        module: nn.Module,
        mixer: nn.Module | None = None,
        *,
        lr: float = 5e-4,
        gamma: float = 0.99,
        lambda_: float = 0.0,
        tau: float = 0.01,
        target_network_update_freq: int = 1,
        td_error_loss_fn: str = HUBER,
        max_grad_norm: float | None = 10.0,
        compiled: bool = True,
    ):
        _check_arguments(gamma=gamma, lambda_=lambda_, tau=tau)
        check_coefficients(max_grad_norm=max_grad_norm)
        if target_network_update_freq < 1:
            raise ConfigError(f"target_network_update_freq must be at least 1, got {target_network_update_freq}")
        if td_error_loss_fn not in (HUBER, MSE):
            raise ConfigError(f"td_error_loss_fn must be {HUBER!r} or {MSE!r}, got {td_error_loss_fn!r}")
        space = one_module(module).action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(f"QLearner needs a module with Discrete actions, got {space}")
        self.gamma, self.lambda_, self.tau = gamma, lambda_, tau
        self.target_network_update_freq, self.td_error_loss_fn = target_network_update_freq, td_error_loss_fn
        self.max_grad_norm, self.compiled = max_grad_norm, compiled
        self.backend = "autograd: there was no update yet"
        self._num_actions, self._num_updates = int(space.n), 0
        self._compared_with: CompiledGradient | None = None  # compiled code of the module when the target's was built
        self._of_target: Any = None
        try:
            copied = copy.deepcopy((module, mixer))
        except Exception as error:  # the module may contain anything
            raise ConfigError(f"can't copy {type(module).__name__} for the target network: "
                              f"{type(error).__name__}: {error}") from error  # fmt: skip
        self._online, self._target = _Team(module, mixer), _Team(*copied)
        self.module, self.mixer, self.target = module, mixer, self._target.parts
        self.parameters: FlatParameters = self._online.parameters
        fused = True if self.parameters.is_cuda else None  # on the CPU, `OptimizerSteps` is faster
        self.optimizer = torch.optim.Adam([self.parameters], lr=lr, fused=fused)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.parameters):,} parameters, {self.backend}>"

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Take a single optimizer step.

        Args:
            batch: Arrays or tensors as returned by `TeamReplay.sample()`; other columns are ignored. All decisions
                count if there is no "loss_mask".

        Returns:
            "qf_loss" and "qf_mean", the loss and the team value averaged over the decisions that count; and "grad_norm"
            before clipping.

        Raises:
            BatchError: If a column is missing or has a wrong shape, an action is out of range, or the gradient is not
                finite. In these cases, no step is taken.
            ModuleOutputError: If the module does not output one value per action, or the mixer does not output one
                value per decision.
            ConfigError: If the module parameters have been replaced since the learner was created.
        """
        rows = self._tensors(batch)
        layout = (TeamSequences if self._online.module.is_stateful() else TeamRows)(rows)
        if self.mixer is not None and Columns.ENV_STATE not in rows:
            space: Any = self._online.module.observation_space
            rows[Columns.ENV_STATE] = layout.joint(make_flattener(space).to(self.parameters.device))
        online, target = self._prepared(layout)
        self.backend = online.backend
        self._target.parameters.check()
        self.parameters.grad = None
        rows_of_values = online.outputs(layout.later_alone(), layout.acted())
        if rows_of_values.shape[-1] != self._num_actions:
            raise ModuleOutputError(type(self.module).__name__, f"QLearner needs {self._num_actions} action values, "
                                    f"got {rows_of_values.shape[-1]}")  # fmt: skip
        values = layout.columns(rows_of_values)  # [n, T + 1, A, actions]
        targets = self._targets(rows, values, layout.columns(target.outputs(layout.later())))
        stats, by_value = self._loss(rows, values, targets)
        reached = set() if self.mixer is None else self.parameters.reached()
        derivatives = torch.zeros_like(values)
        derivatives[:, :-1].scatter_(-1, rows[Columns.ACTIONS][..., None], by_value[..., None])
        online.backward(layout.rows(derivatives).reshape(-1, self._num_actions))
        if online.trained is not None:
            self.parameters.mark_reached({*online.trained, *(reached & self._online.of_mixer)})
        return {**stats, "grad_norm": self._step()}

    def _prepared(self, layout: TeamRows) -> tuple[Any, Any]:
        """Prepare the batch for the online network and the target network."""
        module, copied = self._online, self._target
        inputs = layout.inputs(module.module)
        try:
            if not self.compiled:
                raise NotDenseError("compiled is False")
            if not self._online.of_mixer.isdisjoint(module.module.parameters()):
                raise NotDenseError("its mixer shares parameters with it")
            online = module.gradients.outputs(inputs)
            # The copy is read again only if the module was, because its structure never changes on its own.
            if online.gradient is not self._compared_with:
                self._of_target = copied.gradients.outputs(inputs).gradient
                self._compared_with = online.gradient
            return online, online.of(self._of_target)
        except NotDenseError as reason:
            self._compared_with = None
            backend = f"autograd: {reason}"
            return AutogradOutputs(module.module, inputs, backend), AutogradOutputs(copied.module, inputs, backend)

    def _tensors(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that are used, as tensors on the device of the module."""
        if missing := [name for name in NEEDED if name not in batch]:
            raise BatchError(f"QLearner needs the columns {missing}, got only {list(batch)}")
        optional = [name for name in OPTIONAL if name in batch]
        rows = to_tensors(batch, [*NEEDED, *optional], self.parameters.device)
        rows.setdefault(Columns.LOSS_MASK, torch.ones_like(rows["terminateds"]))
        _check_shapes(rows)
        for name in (Columns.ACTIONS, TRAJECTORY):
            if name in rows and rows[name].is_floating_point():
                raise BatchError(f"expected integer {name!r}, got {rows[name].dtype}")
        actions = rows[Columns.ACTIONS] = rows[Columns.ACTIONS].long()
        if not (int(actions.min()) >= 0 and int(actions.max()) < self._num_actions):
            raise BatchError(f"expected actions >= 0 and < {self._num_actions}, got {int(actions.min())} to "
                             f"{int(actions.max())}")  # fmt: skip
        return rows

    def _targets(self, rows: Mapping[str, Tensor], values: Tensor, target_values: Tensor) -> Tensor:
        """Return the targets [n, T], given the action values of both networks, [n, T + 1, A, actions].

        See Sutton and Barto 2018, "Reinforcement Learning: An Introduction", equation 12.20.
        """
        best = values[:, 1:].argmax(-1, keepdim=True)
        later = target_values[:, 1:].gather(-1, best).squeeze(-1).masked_fill_(~rows["new_active"], 0.0)
        later = self._target.value(later, rows, slice(1, None)).masked_fill(rows["terminateds"], 0.0)
        targets = rows[Columns.REWARDS] + self.gamma * later
        for t in reversed(range(targets.shape[1] - 1 if self.lambda_ else 0)):
            goes_on = rows[Columns.LOSS_MASK][:, t + 1] & ~rows["terminateds"][:, t]
            more = torch.where(goes_on, targets[:, t + 1] - later[:, t], 0.0)
            targets[:, t] += self.gamma * self.lambda_ * more
        return targets

    def _loss(self, rows: Mapping[str, Tensor], values: Tensor, targets: Tensor) -> tuple[dict[str, float], Tensor]:
        """Return the statistics, and the loss derivatives w.r.t. the values of the taken actions, [n, T, A]."""
        active, counts, mixer = rows["active"], rows[Columns.LOSS_MASK], self._online.mixer
        taken = values[:, :-1].gather(-1, rows[Columns.ACTIONS][..., None]).squeeze(-1).masked_fill_(~active, 0.0)
        with torch.enable_grad():
            team = self._online.value(taken.requires_grad_(mixer is not None), rows, slice(None, -1))
        n, team_values = counts.sum(), torch.where(counts, team.detach(), 0.0)
        error = torch.where(counts, team_values - targets, 0.0)
        if self.td_error_loss_fn == HUBER:
            derivatives = error.clamp(-1.0, 1.0)
            loss = derivatives * (error - 0.5 * derivatives)
        else:
            derivatives, loss = 2 * error, error.square()
        by_team = derivatives / n
        if mixer is None:
            by_value = by_team[..., None].expand_as(taken)
        else:
            team.backward(by_team)
            by_value = torch.zeros_like(taken) if taken.grad is None else taken.grad
        qf_loss, qf_mean = (torch.stack([loss.sum(), team_values.sum()]) / n).tolist()
        return {"qf_loss": qf_loss, "qf_mean": qf_mean}, by_value.masked_fill(~active, 0.0)

    def _step(self) -> float:
        """Limit the gradient norm, update parameters and target network, and return the norm before limiting."""
        norm = limit_norm(self.parameters.gradient, self.max_grad_norm)
        if not math.isfinite(norm):
            raise BatchError(f"the gradient norm is {norm}: check the batch for non-finite numbers, and check the "
                             f"weights and the learning rate")  # fmt: skip
        OptimizerSteps(self.optimizer, self.parameters).step(self.parameters.unreached())
        self._num_updates += 1
        if self._num_updates % self.target_network_update_freq == 0:
            self._target.follow(self._online, self.tau)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the learner state for checkpoints, without the module state."""
        mixer = None if self._online.mixer is None else self._online.mixer.state_dict()
        return {"mixer": mixer, "target": self._target.parts.state_dict(), "optimizer": self.optimizer.state_dict(),
                "num_updates": self._num_updates}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: Result of `state_dict()` of a learner with the same networks.

        Raises:
            CheckpointError: If exactly one of the saved learner and this one has a mixer.
        """
        if (self.mixer is None) != (state["mixer"] is None):
            raise CheckpointError("only one of the saved learner and this one has a mixer")
        if self._online.mixer is not None:
            self._online.mixer.load_state_dict(state["mixer"])
        self._target.parts.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._num_updates = int(state["num_updates"])


class _Team:
    """A Q-network and an optional mixer.

    Attributes:
        parts: ModuleList of the network and, if there is one, the mixer.
        of_mixer: Parameters of the mixer.
        gradients: Compiled gradients of the network.
    """

    def __init__(self, module: nn.Module, mixer: nn.Module | None):
        self.module, self.mixer = one_module(module), mixer
        self.parts = nn.ModuleList([module] if mixer is None else [module, mixer])
        self.parameters = flat_parameters(self.parts)
        self.of_mixer = frozenset() if mixer is None else frozenset(mixer.parameters())
        self._has_others = bool(self._others())
        self.gradients = CompiledGradients(
            self.module, {each: each.grad for each in module.parameters() if each.grad is not None}
        )

    def follow(self, online: "_Team", tau: float) -> None:
        """Move weights and buffers towards `online` by the fraction `tau`."""
        self.parameters.detach().lerp_(online.parameters.detach(), tau)
        for slow, new in zip(self._others(), online._others(), strict=True) if self._has_others else ():
            slow.lerp_(new, tau) if slow.is_floating_point() else slow.copy_(new)

    def _others(self) -> list[Tensor]:
        """Return the tensors that are not in `parameters`: buffers and frozen parameters."""
        frozen = [each.detach() for each in self.parts.parameters() if not each.requires_grad]
        return [*self.parts.buffers(), *frozen]

    def value(self, values: Tensor, rows: Mapping[str, Tensor], steps: slice) -> Tensor:
        """Return the team values [n, T] for agent values [n, T, A]."""
        if self.mixer is None:
            return values.sum(-1)
        counts, states = rows[Columns.LOSS_MASK], rows[Columns.ENV_STATE][:, steps].to(values.dtype)
        states = states.masked_fill(~counts.view(*counts.shape, *[1] * (states.dim() - 2)), 0.0)  # padding may be NaN
        found: Tensor = self.mixer(values, states)
        if found.shape != counts.shape:
            raise ModuleOutputError(type(self.mixer).__name__, f"QLearner needs a value for each decision, a tensor of "
                                    f"shape {tuple(counts.shape)}, got shape {tuple(found.shape)}")  # fmt: skip
        return found


def _check_arguments(**given: float) -> None:
    for name, value in given.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be between 0 and 1, got {value}")


def _check_shapes(rows: Mapping[str, Any]) -> None:
    """Raise BatchError unless the shapes of all columns match the actions [n, T, A], and flags are bool."""
    shape = rows[Columns.ACTIONS].shape
    if len(shape) != 3 or not shape.numel():
        raise BatchError(f"expected 'actions' [n, T, A] with at least one action, got shape {tuple(shape)}")
    n, length, n_agents = shape
    expected: dict[str, tuple[int, ...]] = {"active": shape, "new_active": shape}
    expected |= dict.fromkeys((Columns.REWARDS, "terminateds", Columns.LOSS_MASK), (n, length))
    if TRAJECTORY in rows:
        expected[TRAJECTORY] = n, length + 1, n_agents
    for name, of_column in expected.items():
        if rows[name].shape != of_column:
            raise BatchError(f"expected {name!r} of shape {tuple(of_column)}, got {tuple(rows[name].shape)}")
    for name in ("active", "new_active", "terminateds", Columns.LOSS_MASK):
        if rows[name].dtype != torch.bool:
            raise BatchError(f"expected a bool {name!r}, got {rows[name].dtype}")
    if not rows[Columns.LOSS_MASK].any():
        raise BatchError("'loss_mask' masks out all decisions")
    leading = {Columns.OBS: (n, length + 1, n_agents), Columns.ACTION_MASK: (n, length + 1, n_agents)}
    for name, of_column in {**leading, Columns.ENV_STATE: (n, length + 1)}.items():
        for path, leaf in flatten_struct(rows.get(name, ())):
            if leaf.shape[: len(of_column)] != of_column:
                raise BatchError(f"expected {name!r} of shape {(*of_column, '...')}, got {tuple(leaf.shape)} at "
                                 f"{path}")  # fmt: skip
