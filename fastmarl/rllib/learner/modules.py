"""Forward passes for the loss, without what RLlib's wrappers do anew in each of them."""

from typing import Any

from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule


def are_default(module: Any) -> bool:
    """Whether all modules are RLlib's default ones for PPO."""
    names = list(module.keys()) if type(module) is MultiRLModule else []
    return bool(names) and all(type(module[name]) is DefaultPPOTorchRLModule for name in names)


def forward_train(module: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """As `module.forward_train(batch)`.

    RLlib puts a module and all its parts into training mode in each forward pass. Modules whose parts all are in that
    mode are left alone.
    """
    if type(module) is not MultiRLModule or "_forward_train" in vars(module):
        return module.forward_train(batch)  # type: ignore[no-any-return]
    return {
        module_id: _forward_train(module[module_id], batch[module_id]) for module_id in batch if module_id in module
    }


def _forward_train(module: Any, batch: Any) -> Any:
    own = type(module)
    is_plain = own.forward_train is TorchRLModule.forward_train and "forward_train" not in vars(module)
    if is_plain and not module.inference_only and "train" not in vars(module) and _is_in_training(module):
        return module._forward_train(batch)
    return module.forward_train(batch)


def _is_in_training(module: Any) -> bool:
    return all(part.training for part in module.modules())
