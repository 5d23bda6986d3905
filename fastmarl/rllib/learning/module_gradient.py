"""The gradient of PPO's loss for RLlib's default module without autograd."""

from typing import Any, NamedTuple

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.core.models.torch.encoder import TorchActorCriticEncoder, TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor, nn

from fastmarl.acting.backends.dense_layers import NotDenseError, parts_of
from fastmarl.native._ppo import PPOLoss
from fastmarl.rllib.acting.plain_modules import is_plain_part, plain_actor
from fastmarl.rllib.learning.dense import DenseStack, Gradients, is_dense, layers_of, memory

COLUMNS = (  # of a train batch, in the order of PPOLoss
    *(Columns.OBS, Columns.ACTIONS, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP),
    *(Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS),
)
DISTRIBUTIONS = (TorchCategorical, TorchDiagGaussian)
OWN_METHODS = {  # of a module
    *("forward_train", "_forward_train", "compute_values", "get_train_action_dist_cls"),
    *("get_exploration_action_dist_cls", "unwrapped"),
}
METHODS = {  # as they are before anybody can have replaced them
    (kind, name): getattr(kind, name)
    for kind, names in (
        (DefaultPPOTorchRLModule, ("forward_train", "_forward_train", "compute_values")),
        (TorchRLModule, ("forward_train", "unwrapped")),
        *((kind, ("from_logits", "logp", "kl", "entropy", "_get_torch_distribution")) for kind in DISTRIBUTIONS),
    )
    for name in names
}


class Parts(NamedTuple):
    """What a module consists of. `trunk` and `value_trunk` are the same where value layers are shared."""

    trunk: nn.Sequential
    value_trunk: nn.Sequential
    policy: Any
    value: nn.Sequential
    is_discrete: bool

    @property
    def n_obs(self) -> int:
        """Numbers in an observation."""
        first: Any = self.trunk[0]
        return int(first.in_features)

    @property
    def n_logits(self) -> int:
        """How many inputs a distribution has."""
        width = _width(self.policy.net.mlp)
        return 2 * width if type(self.policy) is TorchFreeLogStdMLPHead else width

    @property
    def bound(self) -> float | None:
        """Of logarithms of standard deviations."""
        if self.is_discrete or not self.policy.clip_log_std:
            return None
        return float(self.policy.log_std_clip_param_const)


def _width(sequence: nn.Sequential) -> int:
    """How many numbers a sequence of which `is_dense()` is true gives."""
    return [layer.out_features for layer in sequence if type(layer) is nn.Linear][-1]


def parts_of_module(module: Any) -> Parts | None:
    """What a module consists of, if it is known to compute just that; else None."""
    if type(module) is not DefaultPPOTorchRLModule or vars(module).keys() & OWN_METHODS or module.inference_only:
        return None
    if any(getattr(owner, name) != method for (owner, name), method in METHODS.items()):
        return None
    try:
        encoder, head = plain_actor(module)
    except NotDenseError:
        return None
    kind = module.get_train_action_dist_cls()
    if type(encoder) is not TorchMLPEncoder or type(module.encoder) is not TorchActorCriticEncoder:
        return None
    if kind not in DISTRIBUTIONS or module.get_exploration_action_dist_cls() is not kind:
        return None
    critic: Any = encoder if module.encoder.config.shared else module.encoder.critic_encoder
    if type(critic) is not TorchMLPEncoder or type(module.vf) is not TorchMLPHead or module.vf.clip_log_std:
        return None
    if not all(map(is_plain_part, parts_of(critic, module.vf))):
        return None
    parts = Parts(encoder.net.mlp, critic.net.mlp, head, module.vf.net.mlp, kind is TorchCategorical)
    return parts if _fits(parts, module) else None


def _fits(parts: Parts, module: Any) -> bool:
    sequences = {id(each): each for each in (parts.trunk, parts.value_trunk, parts.policy.net.mlp, parts.value)}
    if type(parts.policy.net.mlp[-1]) is not nn.Linear or not all(map(is_dense, sequences.values())):
        return False
    if _width(parts.value) != 1:  # RLlib squeezes one column
        return False
    if parts.is_discrete and (type(parts.policy) is not TorchMLPHead or parts.policy.clip_log_std):
        return False
    known: list[Tensor] = [weight for each in sequences.values() for weight in each.parameters()]
    if type(parts.policy) is TorchFreeLogStdMLPHead:
        known.append(parts.policy.log_std)
    parameters = list(module.parameters())
    return (
        sorted(map(id, parameters)) == sorted(map(id, known))  # no layers share one
        and all(map(_is_plain_parameter, parameters))
        and (parts.is_discrete or parts.n_logits % 2 == 0)
    )


def _is_plain_parameter(parameter: Any) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.is_cpu
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and not parameter._backward_hooks
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


class ModuleGradient:
    """Computes it for minibatches of so many rows, into the same memory each time.

    Args:
        module: of which `parts_of_module()` knows the parts.
        parts: those.
        n_rows: of a minibatch.
        loss: see PPOLoss.

    Attributes:
        rows: the minibatch, to be written before each call: see PPOLoss.
        flat: all gradients, one after the other.
        gradients: by parameter, which are views of it.
    """

    def __init__(self, module: nn.Module, parts: Parts, n_rows: int, loss: PPOLoss):
        parameters = list(module.parameters())
        self.flat = memory(sum(each.numel() for each in parameters))
        pieces = self.flat.split([each.numel() for each in parameters])
        self.gradients: Gradients = {
            each: piece.view(each.shape) for each, piece in zip(parameters, pieces, strict=True)
        }
        self.rows = memory(n_rows, n_columns(parts))
        self._obs = self.rows[:, : parts.n_obs]
        self._take_loss = loss.categorical if parts.is_discrete else loss.gaussian
        self._logits = memory(n_rows, parts.n_logits)
        self._d_logits = torch.empty_like(self._logits)
        self._set_stacks(parts, n_rows)
        arrays = (self._logits, self._value_head.outputs, self._d_logits, self._d_values)
        self._arrays: Any = self.rows.numpy(), parts.n_obs, *(each.numpy() for each in arrays)

    def _set_stacks(self, parts: Parts, n_rows: int) -> None:
        is_free = type(parts.policy) is TorchFreeLogStdMLPHead
        n_means = parts.n_logits // 2 if is_free else parts.n_logits
        self._log_std = parts.policy.log_std if is_free else None
        self._d_outputs = self._d_logits[:, :n_means]
        self._scales, self._d_scales = self._logits[:, n_means:], self._d_logits[:, n_means:]
        to, at = self.gradients, (n_rows, self.gradients)
        self._trunk = DenseStack(layers_of(parts.trunk, *at), is_first=True)
        self._value_trunk = self._trunk
        if parts.value_trunk is not parts.trunk:
            self._value_trunk = DenseStack(layers_of(parts.value_trunk, *at), is_first=True)
        outputs = self._logits[:, :n_means]
        self._head = DenseStack(layers_of(parts.policy.net.mlp, n_rows, to, outputs), is_first=False)
        self._value_head = DenseStack(layers_of(parts.value, *at), is_first=False)
        self._d_values = torch.empty_like(self._value_head.outputs)

    def compute(self) -> None:
        """Overwrite `gradients` with those of the loss of `rows`. To be called without autograd."""
        features = self._trunk.forward(self._obs)
        self._head.forward(features)
        if self._log_std is not None:
            self._scales.copy_(self._log_std.detach())
        is_shared = self._value_trunk is self._trunk
        self._value_head.forward(features if is_shared else self._value_trunk.forward(self._obs))
        self._take_loss(*self._arrays)
        if self._log_std is not None:
            torch.sum(self._d_scales, 0, out=self.gradients[self._log_std])
        by_features = self._head.backward(self._d_outputs)
        by_value_features = self._value_head.backward(self._d_values)
        if is_shared:
            by_features.add_(by_value_features)
        else:
            self._value_trunk.backward(by_value_features)
        self._trunk.backward(by_features)


def n_columns(parts: Parts) -> int:
    """How wide a row is: see PPOLoss."""
    return parts.n_obs + (1 if parts.is_discrete else parts.n_logits // 2) + parts.n_logits + 4


def packed_rows(batch: dict[str, Tensor], parts: Parts) -> Tensor | None:
    """All rows of a train batch as PPOLoss has them; None if its columns are not as RLlib's runners make them."""
    if not all(name in batch for name in COLUMNS):
        return None
    columns = [batch[name] for name in COLUMNS]
    n, actions = len(columns[0]), columns[COLUMNS.index(Columns.ACTIONS)]
    mask = batch.get(Columns.LOSS_MASK, torch.ones(n, dtype=torch.bool, device="cpu"))
    action_shape = () if parts.is_discrete else (parts.n_logits // 2,)
    shapes: tuple[tuple[int, ...], ...] = (parts.n_obs,), action_shape, (parts.n_logits,), (), (), ()
    if any(column.shape != (n, *shape) for column, shape in zip(columns, shapes, strict=True)):
        return None
    floats = [column for column in columns if column is not actions or not parts.is_discrete]
    if not all(column.dtype == torch.float32 and column.is_cpu for column in floats):
        return None
    if mask.dtype != torch.bool or mask.shape != (n,) or (parts.is_discrete and not _are_indices(actions, parts)):
        return None
    return torch.cat([each.reshape(n, -1).to(torch.float32) for each in (*columns, mask)], 1)


def _are_indices(actions: Tensor, parts: Parts) -> bool:
    """Whether discrete actions are such as the module chooses among, and as float32 can hold."""
    if actions.dtype not in (torch.int32, torch.int64):
        return False
    return 0 <= int(actions.min()) <= int(actions.max()) < min(parts.n_logits, 2**24)
