"""IPPO and MAPPO with the algorithm and the hyperparameters of EPyMARL (Papoudakis et al. 2021).

python examples/epymarl.py --critic central --steps 20000000 --folder runs/lbf    (equal to fastmarl train epymarl)

It differs from ippo.py and mappo.py: an update has one batch without minibatches; advantages are those of n-step
returns whose last value comes from a slowly moving target critic, and are not normalised; every agent receives the
team's reward, and observes which agent it is. EPyMARL computes advantages again in each epoch, after a step of the
critic; here they are computed once per update.
"""

import copy
import sys
from itertools import pairwise
from statistics import fmean

import torch
from torch import nn

import fastmarl
from fastmarl.batches import aligned
from fastmarl.cli.arguments import not_negative, positive
from fastmarl.cli.train import main
from fastmarl.connectors import AgentIndicator
from fastmarl.learning import PPOLearner, flat_parameters, to_tensors
from fastmarl.training import Algorithm, load_states, runner_options, states_of

EPOCHS, CLIP, MAX_GRAD_NORM, TARGET_RATE, ADAM_EPS = 4, 0.2, 10.0, 0.01, 1e-8
OWN, CENTRAL = "own", "central"
POLICY = "default_policy"


def add_arguments(parser):
    """Add the options of EPyMARL's PPO."""
    parser.add_argument("--critic", choices=[OWN, CENTRAL], default=OWN, help="what the critic sees: the agent's own "
                        "observation (IPPO) or those of all agents (MAPPO)")  # fmt: skip
    parser.add_argument("--fragment", type=positive, default=50, help="env steps of each env and update")
    parser.add_argument("--n-steps", type=positive, default=5, help="rewards in a return, before the critic's value")
    parser.add_argument("--entropy", type=not_negative, default=0.001, help="entropy weight (default %(default)s)")


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),
        rollout_fragment_length=args.fragment,
        env_to_module_connector=lambda env, spaces, device: AgentIndicator(list(env.possible_agents)),
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=args.critic == CENTRAL),  # an actor, without a value head
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu", "vf_share_layers": False},
    )


class Learner:
    """Trains actor and critic in place, so that the runner acts with the newest weights.

    The own critic is a part of the module, the central one is not.
    """

    def __init__(self, runner, args, num_updates):
        module, self.args, self.agents = runner.module[POLICY], args, list(runner.env.envs[0].possible_agents)
        self.is_central, self.device = args.critic == CENTRAL, next(module.parameters()).device
        self.ppo = PPOLearner(
            module, lr=args.lr, adam_eps=ADAM_EPS, epochs=EPOCHS, num_minibatches=1, clip=CLIP,
            vf_coeff=0.0 if self.is_central else 1.0, entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.parts = {"optimizer": self.ppo.optimizer}
        if self.is_central:
            n_agents = len(self.agents)
            sizes = [n_agents * (module.observation_space.shape[0] - n_agents) + n_agents, *args.hiddens]
            layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
            self.critic = nn.Sequential(*layers, nn.Linear(sizes[-1], 1)).to(self.device)
            self.parameters = flat_parameters(self.critic)
            self.optimizer = torch.optim.Adam([self.parameters], lr=args.lr, eps=ADAM_EPS, fused=True)
            self.parts |= {"critic": self.critic, "critic_optimizer": self.optimizer}
        else:
            self.critic = nn.Sequential(module.vf_trunk, module.vf)
        self.parts["target"] = self.target = copy.deepcopy(self.critic)

    def learn(self, episodes):
        """Update actor and critic; returns the losses, averaged over the epochs."""
        rows, inputs = self.rows_of(episodes)
        stats = self.ppo.update(rows)
        if self.is_central:
            stats["vf_loss"] = self.fit(inputs, rows["value_targets"])
        with torch.no_grad():
            for slow, newest in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(newest, TARGET_RATE)
        return stats

    def rows_of(self, episodes):
        """Return columns with one row per agent step, and the critic's inputs."""
        names = ["obs", "actions", "action_logp", "rewards", "active", "final_obs", "final_t", "terminateds"]
        outputs = ["action_logp"] if self.is_central else ["action_logp", "vf_preds"]
        batch = aligned(episodes, agents=self.agents, outputs=outputs)[POLICY]
        batch = to_tensors(batch, [*names, *outputs[1:]], self.device)
        active = batch["active"]  # [T, E, A]
        inputs = self.inputs_of(batch["obs"])[active]
        with torch.no_grad():
            values = torch.zeros(len(active) + 1, *active.shape[1:], device=self.device)
            values[:-1][active] = self.target(inputs).squeeze(-1)
            last = self.target(self.inputs_of(batch["final_obs"])).squeeze(-1) * ~batch["terminateds"].any(0)
            values.scatter_(0, batch["final_t"][None], last[None])
            rewards, returns = batch["rewards"].sum(-1, keepdim=True).float(), values
            for _ in range(self.args.n_steps):
                returns = torch.where(active, rewards + self.args.gamma * returns[1:], values[:-1])
                returns = torch.cat([returns, values[-1:]])
            targets = returns[:-1][active]
            values = self.critic(inputs).squeeze(-1) if self.is_central else batch["vf_preds"][active]
        rows = {name: batch[name][active] for name in ("obs", "actions", "action_logp")}
        return rows | {"value_targets": targets, "advantages": targets - values}, inputs

    def inputs_of(self, obs):
        """Return what the critic sees, given what agents see, [..., A, n]."""
        if not self.is_central:
            return obs
        n_agents = len(self.agents)
        joint = obs[..., :-n_agents].flatten(-2)[..., None, :]
        return torch.cat([joint.expand(*obs.shape[:-1], -1), obs[..., -n_agents:]], -1)

    def fit(self, inputs, targets):
        """Train the central critic; returns its loss, averaged over the epochs."""
        losses = []
        for _ in range(EPOCHS):
            loss = (self.critic(inputs).squeeze(-1) - targets).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
            losses.append(loss.item())
        return fmean(losses)

    def get_state(self):
        return states_of(self.parts)

    def set_state(self, state):
        load_states(self.parts, state)


ALGORITHM = Algorithm(
    name="epymarl",
    help="IPPO and MAPPO as EPyMARL has them",
    defaults={"env": "fastmarl.lbforaging", "steps": 20_050_000, "num_envs": 10, "gamma": 0.99, "lr": 3e-4,
              "hiddens": [128, 128]},
    make_config=make_config,
    make_learner=Learner,
    add_arguments=add_arguments,
    takes_module=False,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
