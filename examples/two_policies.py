"""Two policies with different observations learn against each other: hunters and prey of simple_tag, by REINFORCE.

python examples/two_policies.py --iterations 50
"""

import argparse

import torch

import fastmarl

GAMMA = 0.95


class Policy(torch.nn.Module):
    """Any module will do that maps {"obs": [B, ...]} to {"action_dist_inputs": [B, n]}."""

    def __init__(self, n_inputs, n_actions):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(n_inputs, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        )
        self.logits = torch.nn.Linear(64, n_actions)

    def forward(self, batch):
        return {"action_dist_inputs": self.logits(self.net(batch["obs"]))}


def role_of(agent_id, episode=None, **kwargs):
    """The mapping function: agents are called adversary_0, adversary_1, ..., agent_0."""
    return "hunters" if agent_id.startswith("adversary") else "prey"


def returns_to_go(rewards):
    """Discounted sum of rewards from each step on, float32 [n]."""
    total, result = 0.0, torch.empty(len(rewards))
    for t in reversed(range(len(rewards))):
        total = float(rewards[t]) + GAMMA * total
        result[t] = total
    return result


def policy_loss(policy, trajectories):
    """REINFORCE over the trajectories of one policy's agents; the mean return at each step is the baseline."""
    obs = torch.cat([torch.as_tensor(steps.get_observations())[:-1] for steps in trajectories])
    actions = torch.cat([torch.as_tensor(steps.get_actions()) for steps in trajectories])
    returns = [returns_to_go(steps.get_rewards()) for steps in trajectories]
    baseline = torch.stack(returns).mean(0)
    advantage = torch.cat([values - baseline for values in returns])
    advantage = advantage / (advantage.std() + 1e-6)
    logits = policy({"obs": obs})["action_dist_inputs"]
    logp = torch.log_softmax(logits, -1).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    return -(logp * advantage).mean()


def train(runner, policies, iterations, episodes_per_iteration):
    optimizers = {role: torch.optim.Adam(policy.parameters(), lr=1e-3) for role, policy in policies.items()}
    for iteration in range(iterations):
        episodes = runner.sample(num_episodes=episodes_per_iteration)
        for role, policy in policies.items():
            trajectories = [
                steps
                for episode in episodes
                for agent, steps in episode.agent_episodes.items()
                if role_of(agent) == role
            ]
            optimizers[role].zero_grad()
            policy_loss(policy, trajectories).backward()
            optimizers[role].step()
        means = runner.get_metrics()["module_episode_returns_mean"]
        print(f"iteration {iteration:3}  hunters {means['hunters']:8.2f}  prey {means['prey']:8.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    policies = {"hunters": Policy(16, 5), "prey": Policy(14, 5)}
    config = fastmarl.EnvRunnerConfig(
        env="mpe2.simple_tag_v3",
        num_envs_per_env_runner=8,
        policies=policies,
        policy_mapping_fn=role_of,
        seed=args.seed,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    train(runner, policies, args.iterations, args.episodes)
    runner.stop()


if __name__ == "__main__":
    main()
