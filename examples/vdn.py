"""VDN (Sunehag et al. 2018) on simple_spread: 3 agents learn action values that add up to the team's value.

python examples/vdn.py --steps 1000000 --folder runs/vdn

Random play returns about -79 per episode. 1 million env steps, 50 CPU seconds, raise greedy play to -32 (figures:
docs/gallery.md). The algorithm is double Q-learning from a replay of the team's decisions, with a slowly moving target
network. The folder receives the learning curve and checkpoints, from which --resume continues; they contain the replay,
up to 110 MB each.
"""

import copy
import sys

import gymnasium as gym
import torch
from torch import nn

import fastmarl
from fastmarl.batches import aligned, map_columns
from fastmarl.cli.train import main
from fastmarl.errors import ConfigError
from fastmarl.learning import TeamReplay, flat_parameters
from fastmarl.training import Algorithm, agents_of, linear_schedule, load_states, runner_options, states_of

MAX_GRAD_NORM, TARGET_RATE, REWARD_SCALE = 10.0, 0.01, 0.1
FRAGMENT, UPDATES, BATCH = 25, 16, 256
CAPACITY = 500_000  # decisions of the team
EPSILON, EPSILON_STEPS, SURE = 0.05, 100_000, 100.0  # a logit above all others by SURE is drawn for sure
POLICY = "default_policy"


class QNet(fastmarl.modules.DefaultRLModule):
    """A network of action values that acts greedily; in exploration, an action is random with probability epsilon.

    Masks are applied to what it returns, so these are equal numbers, or the values' ranks: any legal action, or the
    best one of these.
    """

    def _forward_exploration(self, batch, t, **kwargs):
        values = self._forward(batch)["action_dist_inputs"]
        epsilon = max(EPSILON, 1 - (1 - EPSILON) * t / EPSILON_STEPS)
        ranks = values.argsort(-1).argsort(-1).float()
        is_random = torch.rand(len(values), 1, device=values.device) < epsilon
        return {"action_dist_inputs": torch.where(is_random, 0.0, SURE * ranks)}


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=FRAGMENT,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=QNet, inference_only=True),
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu"},
    )


class Learner:
    """Trains a module in place, so that its runner acts with the newest weights."""

    def __init__(self, runner, args, num_updates):
        self.module, self.gamma, self.agents = runner.module[POLICY], args.gamma, agents_of(runner.env.envs[0])
        if not isinstance(self.module.action_space, gym.spaces.Discrete):
            raise ConfigError(f"vdn needs Discrete actions, got {self.module.action_space}; train ippo instead")
        self.target, self.replay = copy.deepcopy(self.module), TeamReplay(CAPACITY, args.seed)
        self.parameters, self.target_parameters = flat_parameters(self.module), flat_parameters(self.target)
        self.optimizer = torch.optim.Adam([self.parameters], lr=args.lr, fused=True)
        self.schedule = linear_schedule(self.optimizer, num_updates * UPDATES)
        self.parts = {"target": self.target, "optimizer": self.optimizer, "schedule": self.schedule}

    def loss(self, rows):
        """Return the error of the team's value, the sum of the values of the agents that acted, relative to rewards
        and the team's next decision; see `TeamReplay`."""
        taken = self.values_of(self.module, rows).gather(-1, rows["actions"][..., None].long()).squeeze(-1)
        following = {name: rows[f"new_{name}"] for name in ("obs", "action_mask") if name in rows}
        with torch.no_grad():  # double Q-learning: one network chooses actions, the other one evaluates them
            best = self.values_of(self.module, following).argmax(-1, keepdim=True)
            after = self.values_of(self.target, following).gather(-1, best).squeeze(-1)
            after = after.masked_fill(~rows["new_active"], 0.0).sum(-1)
            target = REWARD_SCALE * rows["rewards"] + self.gamma * after
        return nn.functional.smooth_l1_loss(taken.masked_fill(~rows["active"], 0.0).sum(-1), target)

    def values_of(self, module, rows):
        """Return action values [n, A, actions], the least finite number for actions that are masked."""
        inputs = {name: rows[name] for name in ("obs", "action_mask") if name in rows}
        values = module.forward_train(map_columns(lambda column: column.flatten(0, 1), inputs))["action_dist_inputs"]
        return values.unflatten(0, (-1, len(self.agents)))

    def learn(self, episodes):
        """Add episodes to the replay, and update on samples of it; returns the last loss."""
        for batch in aligned(episodes, groups={POLICY: self.agents}, outputs=[]).values():
            self.replay.add(batch)
        if not len(self.replay):
            return {}
        losses = [self.update(self.replay.sample(BATCH, self.parameters.device)) for _ in range(UPDATES)]
        return {"loss": losses[-1]}

    def update(self, rows):
        """Take one step of the optimizer; returns the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(rows)
        loss.backward()
        nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            self.target_parameters.lerp_(self.parameters, TARGET_RATE)
        return loss.item()

    def get_state(self):
        return {"parts": states_of(self.parts), "replay": self.replay.get_state()}

    def set_state(self, state):
        load_states(self.parts, state["parts"])
        self.replay.set_state(state["replay"])


ALGORITHM = Algorithm(
    name="vdn",
    help="value decomposition: Q-learning of action values that add up to the team's value",
    defaults={"env": "fastmarl.simple_spread", "steps": 1_000_000, "num_envs": 32, "gamma": 0.9, "lr": 2e-3},
    make_config=make_config,
    make_learner=Learner,
    takes_module=False,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
