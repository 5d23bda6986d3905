"""IPPO and MAPPO with the algorithm and the hyperparameters of EPyMARL (Papoudakis et al. 2021).

python examples/epymarl.py --critic central --steps 20000000 --folder runs/lbf    (equal to fastmarl train epymarl)

It differs from ippo.py and mappo.py: an update has one batch without minibatches; advantages are those of n-step
returns whose last value comes from a slowly moving target critic, and are not normalised; every agent receives the
team's reward, and observes which agent it is.
"""

import copy
import sys
from itertools import pairwise

import torch
from torch import nn

import fastmarl
from fastmarl.batches import aligned
from fastmarl.cli.arguments import not_negative, positive
from fastmarl.cli.train import main
from fastmarl.connectors import AgentIndicator
from fastmarl.learning import PPOLearner, flat_parameters, to_tensors
from fastmarl.training import Algorithm, load_states, runner_options, states_of

EPOCHS, CLIP, MAX_GRAD_NORM, TARGET_RATE = 4, 0.2, 10.0, 0.01
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
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),  # an actor; the critic is the learner's
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu"},
    )


class Learner:
    """Trains an actor in place, so that its runner acts with the newest weights, and a critic."""

    def __init__(self, runner, args, num_updates):
        self.actor, self.args = runner.module[POLICY], args
        self.agents = list(runner.env.envs[0].possible_agents)
        self.ppo = PPOLearner(
            self.actor, lr=args.lr, adam_eps=1e-8, epochs=1, num_minibatches=1, clip=CLIP, vf_coeff=0.0,
            entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        n_obs = self.actor.observation_space.shape[0] - len(self.agents)
        n_inputs = n_obs * (len(self.agents) if args.critic == CENTRAL else 1) + len(self.agents)
        sizes = [n_inputs, *args.hiddens]
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.critic = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        self.target = copy.deepcopy(self.critic)
        self.parameters, self.of_target = flat_parameters(self.critic), flat_parameters(self.target)
        self.optimizer = torch.optim.Adam([self.parameters], lr=args.lr, fused=True)
        self.parts = {"critic": self.critic, "target": self.target, "critic_optimizer": self.optimizer,
                      "actor_optimizer": self.ppo.optimizer}  # fmt: skip

    def learn(self, episodes):
        """Update actor and critic; returns the losses, averaged over the epochs."""
        rows, inputs, found = *self.rows_of(episodes), []
        for _ in range(EPOCHS):
            errors = rows["value_targets"] - self.critic(inputs).squeeze(-1)
            loss = errors.square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
            found.append(self.ppo.update(rows | {"advantages": errors.detach()}) | {"vf_loss": loss.item()})
        with torch.no_grad():
            self.of_target.lerp_(self.parameters, TARGET_RATE)
        return {name: sum(each[name] for each in found) / EPOCHS for name in found[0]}

    def rows_of(self, episodes):
        """Return the actor's rows with returns as value targets, and the critic's inputs; one per agent step."""
        names = ["obs", "actions", "action_logp", "rewards", "active", "final_obs", "final_t", "terminateds"]
        batch = to_tensors(aligned(episodes, agents=self.agents, outputs=["action_logp"])[POLICY], names)
        active = batch["active"]  # [T, E, A]
        inputs = self.inputs_of(batch["obs"])[active]
        with torch.no_grad():
            values = torch.zeros(len(active) + 1, *active.shape[1:])
            values[:-1][active] = self.target(inputs).squeeze(-1)
            last = self.target(self.inputs_of(batch["final_obs"])).squeeze(-1) * ~batch["terminateds"].any(0)
            values.scatter_(0, batch["final_t"][None], last[None])
        rewards, returns = batch["rewards"].sum(-1, keepdim=True).float(), values
        for _ in range(self.args.n_steps):
            returns = torch.where(active, rewards + self.args.gamma * returns[1:], values[:-1])
            returns = torch.cat([returns, values[-1:]])
        rows = {name: batch[name][active] for name in ("obs", "actions", "action_logp")}
        return rows | {"value_targets": returns[:-1][active]}, inputs

    def inputs_of(self, obs):
        """Return what the critic sees, given what agents see, [..., A, n]."""
        if self.args.critic == OWN:
            return obs
        n_agents = len(self.agents)
        joint = obs[..., :-n_agents].flatten(-2)[..., None, :]
        return torch.cat([joint.expand(*obs.shape[:-1], -1), obs[..., -n_agents:]], -1)

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
