"""Independent PPO with a shared policy (IPPO) on simple_spread: 3 agents spread over 3 landmarks.

python examples/ippo.py --steps 12000000 --folder runs/ippo    (equal to fastmarl train ippo)
python examples/ippo.py --env fastmarl.lbforaging --env-config '{"name": "Foraging-8x8-2p-2f-coop-v3"}' --gamma 0.9
python examples/ippo.py --env fastmarl.simple_tag --policies hunters='adversary_*' prey='agent_*'

Random play returns about -79 per episode. 12 million env steps, 6 minutes on one core, raise greedy play to -23
(figures: docs/benchmarks.md). --folder receives the learning curve and checkpoints, from which --resume continues.
"""

import sys

import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.cli.arguments import above_zero
from fastmarl.cli.train import main
from fastmarl.cli.train_options import add_ppo_arguments
from fastmarl.learning import PPOLearner, ValueNorm, make_value_fn, normalized, to_tensors
from fastmarl.training import Algorithm, linear_schedule, load_states, runner_options, states_of

MAX_GRAD_NORM = 0.5


def add_arguments(parser):
    add_ppo_arguments(parser)
    parser.add_argument(
        "--min-std", type=above_zero, default=1e-6, metavar="STD", help="lower bound of the standard "
        "deviation by which advantages are divided (default %(default)s); raise it if rewards are rare, so that noise "
        "does not dominate updates",
    )  # fmt: skip


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, policies, device, seed
        rollout_fragment_length=args.fragment,
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "tanh", "vf_share_layers": False},
    )


class PolicyLearner:
    """Trains a single module in place, so that its runner acts with the latest weights."""

    def __init__(self, module, args, num_updates):
        self.module, self.args, self.value_norm = module, args, ValueNorm()
        self.device = next(module.parameters()).device
        self.ppo = PPOLearner(
            module, lr=args.lr, epochs=args.epochs, num_minibatches=args.minibatches, clip=args.clip,
            entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.schedule = linear_schedule(self.ppo.optimizer, num_updates)
        self.parts = {"value_norm": self.value_norm, "optimizer": self.ppo.optimizer, "schedule": self.schedule}

    def rows_of(self, batch):
        """Return the columns of a module as tensors, with normalised advantages and value targets."""
        batch["vf_preds"] = self.value_norm.denormalize(torch.from_numpy(batch["vf_preds"]))
        add_gae(
            batch,
            gamma=self.args.gamma,
            lambda_=self.args.lambda_,
            value_fn=make_value_fn(self.module, self.value_norm),
        )
        batch = to_tensors(batch, ["obs", "actions", "action_logp", "advantages", "value_targets"], self.device)
        self.value_norm.update(batch["value_targets"])
        batch["value_targets"] = self.value_norm.normalize(batch["value_targets"])
        batch["advantages"] = normalized(batch["advantages"], min_std=self.args.min_std)
        return batch

    def learn(self, rows):
        """Update the module; returns the losses, averaged over the minibatches."""
        stats = self.ppo.update(rows)
        self.schedule.step()
        return stats


class Learner:
    """Trains all modules of a runner, each on the steps of its agents."""

    def __init__(self, runner, args, num_updates):
        self.learners = {name: PolicyLearner(module, args, num_updates) for name, module in runner.module.items()}

    def rows_of(self, episodes):
        """Return the columns of all policies with finished steps."""
        batches = columns(episodes, outputs=["action_logp", "vf_preds"])
        return {name: self.learners[name].rows_of(batch) for name, batch in batches.items()}

    def learn(self, episodes):
        """Update all modules with steps; returns the losses, per policy if there are several."""
        stats = {name: self.learners[name].learn(rows) for name, rows in self.rows_of(episodes).items()}
        return stats if len(self.learners) > 1 else next(iter(stats.values()), {})

    def get_state(self):
        return {name: states_of(learner.parts) for name, learner in self.learners.items()}

    def set_state(self, state):
        for name, learner in self.learners.items():
            load_states(learner.parts, state[name])


ALGORITHM = Algorithm(
    name="ippo",
    help="independent PPO: agents share a policy, or have several (--policies)",
    defaults={"env": "fastmarl.simple_spread", "steps": 3_000_000, "num_envs": 128, "gamma": 0.95, "lr": 2e-3},
    make_config=make_config,
    make_learner=Learner,
    add_arguments=add_arguments,
    takes_policies=True,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
