"""Small modules, batches of rows that an older policy has sampled, and learners to compare."""

import copy

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.learning import PPOLearner

VECTOR = gym.spaces.Box(-1, 1, (6,), np.float32)
DISCRETE = gym.spaces.Discrete(4)
BOX_ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
MASKED = gym.spaces.Dict({"observation": VECTOR, "action_mask": gym.spaces.Box(0, 1, (4,), np.int8)})
NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]
N = 210


def make_module(module_class=None, obs=VECTOR, actions=DISCRETE, **model_config):
    torch.manual_seed(3)
    spec = fastmarl.RLModuleSpec(
        module_class,
        observation_space=obs,
        action_space=actions,
        model_config={"fcnet_hiddens": [9, 8], **model_config},
    )
    return spec.build()


def as_batch(space, n, generator):
    """Random observations as tensors."""
    if isinstance(space, gym.spaces.Dict):
        return {key: as_batch(child, n, generator) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Box) and space.dtype == np.float32:
        return torch.randn(n, *space.shape, generator=generator)
    space.seed(5)
    return torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(n)]))


def make_batch(module, n=N, seed=0):
    """Rows that an older policy has sampled."""
    generator = torch.Generator().manual_seed(seed)
    obs = as_batch(module.observation_space, n, generator)
    if isinstance(obs, dict) and "action_mask" in obs:
        obs["action_mask"][:, 1] = 1
    with torch.no_grad():
        outputs = module.forward_train({"obs": obs})
        distribution = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
        torch.manual_seed(seed)
        actions = distribution.sample()
        logp = distribution.logp(actions)
    return {
        "obs": obs,
        "actions": actions,
        "action_logp": logp + torch.randn(n, generator=generator) / 5,
        "advantages": torch.randn(n, generator=generator),
        "value_targets": 3 + torch.randn(n, generator=generator),
    }


def both(module, **options):
    """Learners of copies of the module, compiled and not."""
    options = {"lr": 0.01, "epochs": 3, "num_minibatches": 4, **options}
    return [
        PPOLearner(copy.deepcopy(module), generator=torch.Generator().manual_seed(1), compiled=compiled, **options)
        for compiled in (True, False)
    ]
