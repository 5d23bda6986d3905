"""MAPPO (Yu et al. 2022) on simple_spread: 3 agents share an actor, and a separate critic sees the whole state.

python examples/mappo.py --steps 3000000 --folder runs/mappo

Random play returns about -79 per episode. 3 million env steps, a minute and a half on one core, raise greedy play to
-28 (figures: docs/gallery.md). The folder receives the learning curve and checkpoints, from which --resume continues.
"""

import math
import sys

import torch
from torch import nn

import fastmarl
from fastmarl.batches import add_aligned_gae, aligned, map_columns
from fastmarl.cli.train import main
from fastmarl.errors import ConfigError
from fastmarl.learning import ValueNorm, flat_parameters, minibatches, normalized, ppo_loss, to_tensors
from fastmarl.training import Algorithm, linear_schedule, load_states, runner_options, states_of

LAMBDA, EPOCHS, MINIBATCHES, MAX_GRAD_NORM, FRAGMENT = 0.95, 4, 4, 0.5, 25
POLICY = "default_policy"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=FRAGMENT,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),  # an actor, without a value head
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "tanh"},
        record_env_state=True,
    )


class Learner:
    """Trains an actor in place, so that its runner acts with the newest weights, and a critic of the env's state."""

    def __init__(self, runner, args, num_updates):
        state_space = runner.env.envs[0].state_space
        if state_space is None:
            raise ConfigError("mappo needs an env with a state_space, a Box for its state(); add it, or train ippo")
        layers = nn.Linear(math.prod(state_space.shape), 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        self.actor, self.critic, self.gamma = runner.module[POLICY], nn.Sequential(*layers), args.gamma
        self.device = next(self.actor.parameters()).device
        self.parameters = flat_parameters(nn.ModuleList([self.actor, self.critic.to(self.device)]))
        self.optimizer = torch.optim.Adam([self.parameters], lr=args.lr, eps=1e-5, fused=True)
        self.schedule, self.value_norm = linear_schedule(self.optimizer, num_updates), ValueNorm()
        self.parts = {"critic": self.critic, "optimizer": self.optimizer, "schedule": self.schedule,
                      "value_norm": self.value_norm}  # fmt: skip

    def rows_of(self, episodes):
        """Return one row per env step at which an agent acted, [n, ...]: its state, and all agents' observations and
        actions; none if no agent finished a step."""
        batch = aligned(episodes, outputs=["action_logp"]).get(POLICY)
        if batch is None:
            return {}
        states = torch.from_numpy(batch["env_state"]).flatten(2).float()  # [T + 1, E, k]
        with torch.no_grad():
            values = self.value_norm.denormalize(self.values_of(states.to(self.device)).cpu())
        add_aligned_gae(batch, values, gamma=self.gamma, lambda_=LAMBDA)
        batch["env_state"], batch["loss_mask"] = states[:-1], batch["active"]
        names = ["env_state", "loss_mask", "obs", "actions", "action_logp", "advantages", "value_targets"]
        has_acted = torch.from_numpy(batch["active"].any(-1))  # [T, E]
        rows = map_columns(lambda column: column[has_acted].to(self.device), to_tensors(batch, names))
        self.value_norm.update(rows["value_targets"][rows["loss_mask"]])
        rows["value_targets"] = self.value_norm.normalize(rows["value_targets"])
        rows["advantages"] = normalized(rows["advantages"], rows["loss_mask"])
        return rows

    def values_of(self, states):
        """Return normalised values [...] of states [..., k]."""
        return self.critic(states).squeeze(-1)

    def loss(self, rows, stats):
        """Return the sum of the actor's loss and the critic's; all agents share the value of a state."""
        values = self.values_of(rows.pop("env_state"))[:, None]  # [n, 1]
        errors = (values - rows.pop("value_targets"))[rows["loss_mask"]]
        of_agents = map_columns(lambda column: column.flatten(0, 1), rows)
        actor_loss = ppo_loss(self.actor, of_agents, clip=0.2, vf_coeff=0.0, entropy_coeff=0.01, stats=stats)
        return actor_loss + 0.5 * errors.square().mean()

    def learn(self, episodes):
        """Update actor and critic; returns the losses of the last minibatch."""
        rows, stats = self.rows_of(episodes), {}
        if not rows:
            return stats
        size = -(-len(rows["loss_mask"]) // MINIBATCHES)
        for part in minibatches(rows, size, EPOCHS):
            self.optimizer.zero_grad()
            self.loss(part, stats).backward()
            nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
        self.schedule.step()
        return {name: value.item() for name, value in stats.items()}

    def get_state(self):
        return states_of(self.parts)

    def set_state(self, state):
        load_states(self.parts, state)


ALGORITHM = Algorithm(
    name="mappo",
    help="PPO with a central critic, which sees the state of the whole environment",
    defaults={"env": "fastmarl.simple_spread", "steps": 3_000_000, "num_envs": 128, "gamma": 0.95, "lr": 2e-3},
    make_config=make_config,
    make_learner=Learner,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
