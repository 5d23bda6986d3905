"""Dense networks with a compiled gradient of the PPO loss, and the packed rows used to compute it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmarl.core.native._ppo import BEST, PPOGradient
from fastmarl.core.nets.dense_layers import OBSERVATIONS, Cell, Layer, NotDenseError
from fastmarl.core.spaces.structs import Path

MOST_WEIGHTS = {"plain": 100_000, "avx2": 250_000, "avx512": 600_000}  # with more, torch is faster on one thread
MOST_OPTIONS = 2**24  # per choice: rows store actions as float32
LOGP, ADVANTAGES, TARGETS, COUNTS, FIRST_ACTION = range(5)  # columns of packed rows


class DenseNet(NamedTuple):
    """A network, described by its layers.

    Attributes:
        n_obs: Number of inputs.
        layers: The layers, in order of execution.
        logits: Index of the layer that outputs the logits.
        values: Index of the layer that outputs the values; OBSERVATIONS if there is no such layer.
        sizes: Number of options of each choice of a categorical policy; None for a Gaussian policy.
        log_std: Parameter used as the second half of the logits of a Gaussian policy; None if a layer computes it.
        bound: Bound on the log standard deviations of a Gaussian policy.
    """

    n_obs: int
    layers: list[Layer]
    logits: int
    values: int
    sizes: list[int] | None
    log_std: Tensor | None = None
    bound: float | None = None

    @property
    def parameters(self) -> list[Tensor]:
        """All trainable parameters of the network."""
        given = [self.log_std, *(each for layer in self.layers for each in layer.weights)]
        return [each for each in given if each is not None]

    @property
    def n_logits(self) -> int:
        """Number of distribution parameters output by the policy."""
        n_out = len(self.layers[self.logits].weight)  # type: ignore[arg-type]
        return n_out if self.log_std is None else 2 * n_out

    @property
    def states(self) -> list[Path]:
        """Paths of the recurrent states, in layer order."""
        return [path for layer in self.layers if layer.cell for path in layer.cell.states]


def gradient_of(
    net: DenseNet,
    gradients: Mapping[Any, Tensor],
    *,
    has_mask: bool = False,
    has_former: bool = False,
    is_given: bool = False,
    variant: str | None = None,
) -> PPOGradient:
    """Create the compiled gradient of a network.

    Args:
        net: The network.
        gradients: Trained parameter -> tensor for its gradient.
        has_mask: True if rows have action masks; see `packed_rows()`.
        has_former: True if rows have the logits of the sampling policy; see `packed_rows()`.
        is_given: True if loss derivatives w.r.t. the logits are passed, instead of rows of the PPO loss.
        variant: Instruction set; see PPOGradient.

    Raises:
        NotDenseError: If compiled code does not support the network.
    """
    n_weights = sum(each.numel() for each in net.parameters)
    if n_weights > MOST_WEIGHTS[variant or BEST]:
        raise NotDenseError(f"torch is faster for {n_weights:,} weights")
    if len(set(net.parameters)) < len(net.parameters):
        raise NotDenseError("layers share a parameter")
    if any(layer.eps is not None for layer in net.layers):
        raise NotDenseError("layer normalisation has no compiled gradient")
    if net.sizes is not None and max(net.sizes) > MOST_OPTIONS:
        raise NotDenseError(f"a choice has more than {MOST_OPTIONS} options")

    def gradient(parameter: Tensor | None) -> Any:
        return None if parameter is None else _array(gradients.get(parameter))

    def memory(cell: Cell | None) -> Any:
        return cell and (cell.kind, _array(cell.weight), _array(cell.bias), gradient(cell.weight), gradient(cell.bias))

    layers = [
        (each.source, _array(each.weight), _array(each.bias), each.activation, each.alpha, gradient(each.weight),
         gradient(each.bias), memory(each.cell))
        for each in net.layers
    ]  # fmt: skip
    return PPOGradient(
        net.n_obs,
        layers,
        net.logits,
        net.values,
        sizes=net.sizes,
        log_std=_array(net.log_std),
        d_log_std=gradient(net.log_std),
        bound=net.bound,
        has_mask=has_mask,
        has_former=has_former,
        is_given=is_given,
        variant=variant,
    )


def needed_layers(net: DenseNet) -> DenseNet:
    """Remove layers that neither logits nor values depend on."""
    wanted = {net.logits, net.values}
    for k in reversed(range(len(net.layers))):
        if k in wanted:
            wanted.add(net.layers[k].source)
    kept = sorted(wanted - {OBSERVATIONS})
    places = {OBSERVATIONS: OBSERVATIONS, **{k: place for place, k in enumerate(kept)}}
    layers = [net.layers[k]._replace(source=places[net.layers[k].source]) for k in kept]
    return net._replace(layers=layers, logits=places[net.logits], values=places[net.values])


def packed_rows(
    *,
    logp: Tensor,
    advantages: Tensor,
    targets: Tensor | None,
    actions: Tensor,
    loss_mask: Tensor | None = None,
    action_mask: Tensor | None = None,
    former_logits: Tensor | None = None,
) -> Tensor:
    """Concatenate columns in the order expected by `PPOGradient.compute()`.

    Args:
        logp: Log probabilities [n] of the sampled actions.
        advantages: Advantages [n].
        targets: Value targets [n]; None if values are not trained.
        actions: [n, ...], choice indices or Box values.
        loss_mask: bool [n], True for rows that count; None if all rows count.
        action_mask: Action masks [n, k], if PPOGradient uses masks.
        former_logits: Logits [n, k] of the sampling policy, if PPOGradient uses them.

    Returns:
        float32 [n, width].
    """
    counts = torch.ones_like(logp) if loss_mask is None else loss_mask
    columns = (logp, advantages, torch.zeros_like(logp) if targets is None else targets, counts, actions,
               action_mask, former_logits)  # fmt: skip
    n = len(logp)
    return torch.cat([each.reshape(n, -1).to(torch.float32) for each in columns if each is not None], 1)


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().numpy()
