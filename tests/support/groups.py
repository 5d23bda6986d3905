"""Groups of runners in fake actors, and what tests do with them."""

import torch

import fastmarl
from support.fake_actors import FakeGroup


def make_config(env="fastmarl.simple_spread", **options):
    return fastmarl.EnvRunnerConfig(
        env=env,
        **{
            "num_envs_per_env_runner": 2,
            "rollout_fragment_length": 9,
            "seed": 1,
            "model_config": {"fcnet_hiddens": [4]},
            **options,
        },
    )


def make_group(config=None, n=3, **options):
    return FakeGroup(config or make_config(), num_env_runners=n, **options)


def seeds_of(episodes, module):
    """As a batch: the resets' seeds of the episodes that began in this call."""
    return [episode.reset_seed for episode in episodes if episode.env_t_started == 0]


def without_ids(batch):
    return {module_id: {name: c for name, c in part.items() if name != "eps_id"} for module_id, part in batch.items()}


def indices(parts):
    return [part.runner_index for part in parts]


def lose(group, index):
    """It ends, and is replaced. That is learned from the next call of it."""
    group.actor(index).is_alive = False
    group.foreach(repr)
    group._fleet.wait_for_starts(group._fleet.runners)


def sample_on(group):
    for _ in range(20):
        group.sample()


def take(group, n, **options):
    """The next n parts that are ready."""
    return [part for _, part in zip(range(n), group.sample_ready(**options), strict=False)]


def failing_once(error, then):
    """Return a function that raises the error in its first call, and does as `then` later."""
    errors = [error]

    def call(*arguments):
        if errors:
            raise errors.pop()
        return then(*arguments)

    return call


def perturb(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1)
