"""PPO for a single policy shared by all agents of simple_spread: a complete training loop in plain PyTorch.

python examples/train_shared_policy.py --iterations 100
"""

import argparse

import torch

import fastmarl
from fastmarl.batches import add_gae, columns

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH = 0.95, 0.95, 0.2, 6, 1024
REWARD_SCALE = 0.1  # keeps the value error from dominating the policy gradient in shared layers


def make_batch(episodes, module):
    """Return the steps of all agents as tensors, with normalised advantages and value targets."""

    def value_fn(obs):
        with torch.no_grad():
            return module.forward_train({"obs": torch.from_numpy(obs)})["vf_preds"]

    batch = columns(episodes, outputs=["action_logp", "vf_preds"])["default_policy"]
    batch["rewards"] *= REWARD_SCALE
    add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, value_fn=value_fn)
    names = ("obs", "actions", "action_logp", "advantages", "value_targets")
    batch = {name: torch.from_numpy(batch[name]) for name in names}
    advantages = batch["advantages"]
    batch["advantages"] = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-6)
    return batch


def ppo_loss(module, batch):
    """Return the loss of a minibatch: clipped surrogate, value error and entropy bonus."""
    outputs = module.forward_train({"obs": batch["obs"]})
    dist = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
    ratio = torch.exp(dist.logp(batch["actions"]) - batch["action_logp"])
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    surrogate = torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
    value_error = (outputs["vf_preds"] - batch["value_targets"]).square().mean()
    return -surrogate + 0.5 * value_error - 0.01 * dist.entropy().mean()


def learn(module, optimizer, batch):
    """Train for several epochs on a batch."""
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch["obs"])).split(MINIBATCH):
            loss = ppo_loss(module, {name: column[rows] for name, column in batch.items()})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train(runner, iterations):
    module = runner.module["default_policy"]  # trained in place: the runner acts with the latest weights
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for iteration in range(iterations):
        episodes = runner.sample()
        batch = make_batch(episodes, module)
        learn(module, optimizer, batch)
        metrics = runner.get_metrics()
        print(f"iteration {iteration:3}  mean return {metrics['episode_return_mean']:8.2f}  steps {len(batch['obs'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = fastmarl.EnvRunnerConfig(
        env="mpe2.simple_spread_v3",
        num_envs_per_env_runner=args.num_envs,
        rollout_fragment_length=200,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
        seed=args.seed,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    train(runner, args.iterations)
    runner.stop()


if __name__ == "__main__":
    main()
