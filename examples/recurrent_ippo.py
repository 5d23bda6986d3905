"""Recurrent IPPO on CartPole without velocities: an LSTM infers them from successive positions and angles.

python examples/recurrent_ippo.py --steps 200000 --folder runs/recurrent_ippo

Two agents balance a pole each for at most 500 env steps, so the maximum return is 1000. Random play returns 44. 200,000
env steps, 13 CPU seconds, raise greedy play to 1000; a feedforward network (--memoryless) reaches 86 (figures:
docs/gallery.md). --folder receives the learning curve and checkpoints, from which --resume continues. In other
environments, agents see their complete observations.
"""

import sys

import gymnasium as gym
import torch

import fastmarl
from fastmarl.batches import add_gae, columns, sequences
from fastmarl.cli.train import main
from fastmarl.cli.train_options import add_ppo_arguments
from fastmarl.connectors import EnvToModuleConnector
from fastmarl.learning import PPOLearner, ValueNorm, bootstrap_values, normalized, to_tensors
from fastmarl.training import Algorithm, linear_schedule, load_states, runner_options, states_of

MAX_GRAD_NORM = 0.5
TASK = "fastmarl.cart_pole"
SEQUENCE, BURN_IN = 16, 4  # steps
VISIBLE = [0, 2]  # position and angle, without the velocities
POLICY = "default_policy"


class HideVelocities(EnvToModuleConnector):
    """Reduces observations to cart position and pole angle."""

    per_agent_state = ()

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        space = input_observation_space
        return gym.spaces.Box(space.low[VISIBLE], space.high[VISIBLE], dtype=space.dtype)

    def __call__(self, obs, rows):  # [n, 4] -> [n, 2]
        return obs.take(VISIBLE, 1)


def add_arguments(parser):
    add_ppo_arguments(parser, fragment=64)
    parser.add_argument("--memoryless", action="store_true", help="a feedforward network instead, for comparison")


def make_config(args):
    memory = {} if args.memoryless else {"use_lstm": True, "lstm_cell_size": 64}
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=args.fragment,
        env_to_module_connector=HideVelocities() if args.env == TASK else None,
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "tanh", **memory},
        episode_lookback_horizon=BURN_IN,
    )


class Learner:
    """Trains a module in place, so that its runner acts with the latest weights."""

    def __init__(self, runner, args, num_updates):
        self.module, self.args, self.value_norm = runner.module[POLICY], args, ValueNorm()
        self.ppo = PPOLearner(
            self.module, lr=args.lr, epochs=args.epochs, num_minibatches=args.minibatches, clip=args.clip,
            entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.schedule = linear_schedule(self.ppo.optimizer, num_updates)
        self.parts = {"value_norm": self.value_norm, "optimizer": self.ppo.optimizer, "schedule": self.schedule}

    def rows_of(self, episodes):
        """Return sequences with normalised advantages and value targets, [n, T, ...], or single steps [n, ...] for a
        network without memory; empty if no step was finished."""
        names = ["obs", "actions", "action_logp", "advantages", "value_targets"]
        has_memory = self.module.is_stateful()
        outputs = ["action_logp", "vf_preds", *(["state_out"] if has_memory else [])]
        batch = columns(episodes, outputs=outputs).get(POLICY)
        if batch is None:
            return {}
        batch |= (estimates := self.estimates(batch))
        if has_memory:
            extra = {POLICY: estimates}
            batch = sequences(episodes, max_seq_len=SEQUENCE, burn_in=BURN_IN, extra_columns=extra)[POLICY]
            names += ["loss_mask", "state_in"]
        return to_tensors(batch, names, next(self.module.parameters()).device)

    def estimates(self, batch):
        """Return normalised advantages and value targets, one row per step."""
        batch["vf_preds"] = self.value_norm.denormalize(torch.from_numpy(batch["vf_preds"]))
        last_values = bootstrap_values(self.module, batch, self.value_norm)
        add_gae(batch, gamma=self.args.gamma, lambda_=self.args.lambda_, last_values=last_values)
        advantages, targets = (torch.from_numpy(batch[name]) for name in ("advantages", "value_targets"))
        self.value_norm.update(targets)
        return {"advantages": normalized(advantages), "value_targets": self.value_norm.normalize(targets)}

    def learn(self, episodes):
        """Update the module; returns the losses, averaged over the minibatches."""
        rows = self.rows_of(episodes)
        if not rows:
            return {}
        stats = self.ppo.update(rows)
        self.schedule.step()
        return stats

    def get_state(self):
        return states_of(self.parts)

    def set_state(self, state):
        load_states(self.parts, state)


ALGORITHM = Algorithm(
    name="recurrent_ippo",
    help="independent PPO with an LSTM",
    defaults={
        "env": TASK,
        "env_config": {"num_agents": 2},
        "steps": 200_000,
        "num_envs": 32,
        "gamma": 0.99,
        "lr": 2e-3,
        "hiddens": [64],
    },
    make_config=make_config,
    make_learner=Learner,
    add_arguments=add_arguments,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
