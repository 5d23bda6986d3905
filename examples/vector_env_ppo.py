"""Single-file PPO in plain PyTorch, in the style of CleanRL, on a Gymnasium vector environment whose rows are agents.

python examples/vector_env_ppo.py --steps 1000000
python examples/vector_env_ppo.py --env pettingzoo.butterfly.knights_archers_zombies_v11 --num-envs 8

Only the line that makes `envs` differs from such a script for other vector environments, and the mask "active": rows in
which no agent acts, because it waits or has finished, are left out of the loss. Random play returns about -26 per agent
in simple_spread; a million env steps, 48 CPU seconds, raise that to -14.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from fastmarl.interop.gymnasium import AgentVectorEnv

LENGTH, EPOCHS, MINIBATCHES = 25, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, MAX_GRAD_NORM = 0.95, 0.95, 0.2, 0.01, 0.5


def network(n_inputs, n_outputs, scale):
    layers = nn.Linear(n_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_outputs)
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, scale if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def tensor(array):
    return torch.as_tensor(np.asarray(array), dtype=torch.float32)


class Rollouts:
    """Steps the envs and keeps the observations with which the next rollout begins."""

    def __init__(self, envs, actor, critic):
        self.envs, self.actor, self.critic = envs, actor, critic
        self.n_obs = int(np.prod(envs.single_observation_space.shape))
        self.returns, self.finished = np.zeros(envs.num_envs), []
        observations, infos = envs.reset(seed=0)
        self.obs, self.active = self.rows(observations), tensor(infos["active"])

    def rows(self, observations):
        return tensor(observations).reshape(-1, self.n_obs)

    @torch.no_grad()
    def collect(self):
        """Return the training data of PPO, one row per step of an acting agent."""
        shape = LENGTH, self.envs.num_envs
        obs, actions, log_probs = (
            torch.zeros((*shape, self.n_obs)),
            torch.zeros(shape, dtype=torch.long),
            torch.zeros(shape),
        )
        rewards, dones, values, next_values, active = torch.zeros((5, *shape))
        for t in range(LENGTH):
            obs[t], active[t] = self.obs, self.active
            distribution = Categorical(logits=self.actor(obs[t]))
            actions[t] = distribution.sample()
            log_probs[t], values[t] = distribution.log_prob(actions[t]), self.critic(obs[t]).squeeze(-1)
            observations, reward, terminations, truncations, infos = self.envs.step(actions[t].numpy())
            self.obs, self.active = self.rows(observations), tensor(infos["active"])
            rewards[t], dones[t] = tensor(reward), tensor(terminations | truncations)
            self.count(reward, terminations | truncations)
            next_values[t] = self.critic(self.obs).squeeze(-1) * (1 - dones[t])
            if (rows := np.flatnonzero(truncations & ~terminations)).size:  # a time limit: the future has a value
                next_values[t, rows] = self.critic(self.rows(np.stack(infos["final_obs"][rows]))).squeeze(-1)
        advantages, later = torch.zeros(shape), torch.zeros(shape[1])
        for t in reversed(range(LENGTH)):
            delta = rewards[t] + GAMMA * next_values[t] - values[t]
            advantages[t] = later = delta + GAMMA * LAMBDA * (1 - dones[t]) * later
        return [each[active > 0] for each in (obs, actions, log_probs, advantages, advantages + values)]

    def count(self, rewards, dones):
        self.returns += rewards
        self.finished += self.returns[dones].tolist()
        self.returns[dones] = 0.0


def loss_of(actor, critic, obs, actions, log_probs, advantages, targets):
    distribution = Categorical(logits=actor(obs))
    ratio = (distribution.log_prob(actions) - log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = 0.5 * (critic(obs).squeeze(-1) - targets).square().mean()
    return policy_loss + 0.5 * value_loss - ENTROPY * distribution.entropy().mean()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="fastmarl.simple_spread")
    parser.add_argument("--num-envs", type=int, default=128, help="copies of the env")
    parser.add_argument("--steps", type=int, default=300_000, help="env steps")
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    envs = AgentVectorEnv(args.env, args.num_envs, autoreset_mode="SameStep")
    n_obs = int(np.prod(envs.single_observation_space.shape))
    actor, critic = network(n_obs, int(envs.single_action_space.n), 0.01), network(n_obs, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=args.lr, eps=1e-5)
    rollouts, num_updates = Rollouts(envs, actor, critic), max(1, args.steps // (args.num_envs * LENGTH))
    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = args.lr * (1 - update / num_updates)
        batch = rollouts.collect()
        for rows in (part for _ in range(EPOCHS) for part in torch.randperm(len(batch[0])).chunk(MINIBATCHES)):
            optimizer.zero_grad()
            loss_of(actor, critic, *(column[rows] for column in batch)).backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
        if (update + 1) % max(1, num_updates // 10) == 0 and rollouts.finished:
            print(f"{(update + 1) * args.num_envs * LENGTH:,} env steps: mean return of an agent "
                  f"{np.mean(rollouts.finished[-1000:]):.2f}", flush=True)  # fmt: skip
    envs.close()


if __name__ == "__main__":
    main()
