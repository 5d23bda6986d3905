"""MAPPO (Yu et al. 2022) on simple_spread: 3 agents share an actor, and a separate critic sees the full state.

python examples/mappo.py --steps 3000000 --folder runs/mappo

Random play returns about -79 per episode. 3 million env steps, a minute on one core, raise greedy play to -27.5
(figures: docs/gallery.md). --folder receives the learning curve and checkpoints, from which --resume continues.
"""

import math
import sys

import torch
from torch import nn

import fastmarl
from fastmarl.batches import add_aligned_gae, aligned, map_columns
from fastmarl.cli.train import main
from fastmarl.cli.train_options import add_ppo_arguments
from fastmarl.errors import ConfigError
from fastmarl.learning import PPOLearner, ValueLearner, ValueNorm, to_tensors
from fastmarl.training import Algorithm, linear_schedule, load_states, runner_options, states_of

MAX_GRAD_NORM = 0.5
POLICY = "default_policy"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=args.fragment,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),  # an actor, without a value head
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "tanh"},
        record_env_state=True,
    )


class Learner:
    """Trains an actor in place, so that its runner acts with the latest weights, and a critic of the env state."""

    def __init__(self, runner, args, num_updates):
        state_space = runner.env.envs[0].state_space
        if state_space is None:
            raise ConfigError("mappo needs an env with a state_space, a Box for its state(); add it, or train ippo")
        layers = nn.Linear(math.prod(state_space.shape), 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        self.actor, self.critic, self.args = runner.module[POLICY], nn.Sequential(*layers), args
        self.device, self.value_norm = next(self.actor.parameters()).device, ValueNorm()
        options = {"lr": args.lr, "epochs": args.epochs, "num_minibatches": args.minibatches,
                   "max_grad_norm": MAX_GRAD_NORM}  # fmt: skip
        self.ppo = PPOLearner(self.actor, vf_coeff=0.0, clip=args.clip, entropy_coeff=args.entropy,
                              normalize_advantages=True, **options)  # fmt: skip
        self.regression = ValueLearner(self.critic.to(self.device), **options)
        optimizers = {"optimizer": self.ppo.optimizer, "critic_optimizer": self.regression.optimizer}
        self.schedules = {f"{name}_schedule": linear_schedule(each, num_updates) for name, each in optimizers.items()}
        self.parts = {"critic": self.critic, "value_norm": self.value_norm, **optimizers, **self.schedules}

    def rows_of(self, episodes):
        """Return a row per agent step, and a row with the state per env step with acting agents; empty without
        steps."""
        batch = aligned(episodes, outputs=["action_logp"]).get(POLICY)
        if batch is None:
            return {}, {}
        states, active = torch.from_numpy(batch["env_state"]).flatten(2).float(), batch["active"]  # [T + 1, E, k]
        with torch.no_grad():
            values = self.value_norm.denormalize(self.critic(states.to(self.device)).squeeze(-1).cpu())
        add_aligned_gae(batch, values, gamma=self.args.gamma, lambda_=self.args.lambda_)
        names = ["obs", "actions", "action_logp", "advantages", "value_targets"]
        of_agents = map_columns(lambda column: column[active], to_tensors(batch, names, self.device))
        self.value_norm.update(of_agents["value_targets"])
        has_acted = active.any(-1)  # [T, E]
        targets = (batch["value_targets"].sum(-1)[has_acted] / active.sum(-1)[has_acted]).astype("f4")  # 0 if inactive
        targets = self.value_norm.normalize(torch.from_numpy(targets))
        return of_agents, {"obs": states[:-1][has_acted], "value_targets": targets}

    def learn(self, episodes):
        """Update actor and critic; returns the losses, averaged over the minibatches."""
        of_agents, of_states = self.rows_of(episodes)
        if not of_agents:
            return {}
        stats = self.ppo.update(of_agents) | self.regression.update(of_states)
        for schedule in self.schedules.values():
            schedule.step()
        return stats

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
    add_arguments=add_ppo_arguments,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
