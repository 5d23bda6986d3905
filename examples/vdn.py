"""VDN (Sunehag et al. 2018) on simple_spread: 3 agents learn action values that add up to the team's value.

python examples/vdn.py --steps 1000000 --folder runs/vdn

Random play returns about -79 per episode. 1 million env steps, 50 CPU seconds, raise greedy play to -32 (figures:
docs/gallery.md). The algorithm is double Q-learning from a replay of whole episodes, with a slowly moving target
network. The folder receives the learning curve and checkpoints, from which --resume continues; they contain the replay,
up to 110 MB each.
"""

import copy
import sys

import numpy as np
import torch
from torch import nn

import fastmarl
from fastmarl.batches import aligned
from fastmarl.cli.train import main
from fastmarl.learning import flat_parameters, to_tensors
from fastmarl.training import Algorithm, linear_schedule, load_states, runner_options, states_of

MAX_GRAD_NORM, TARGET_RATE, REWARD_SCALE = 10.0, 0.01, 0.1
FRAGMENT, UPDATES, BATCH = 25, 16, 256  # an episode of simple_spread has 25 steps
CAPACITY = 20_000  # chunks
EPSILON, EPSILON_STEPS = 0.05, 100_000
POLICY = "default_policy"


class QNet(fastmarl.modules.DefaultRLModule):
    """A network of action values that acts greedily; in exploration, an action is random with probability epsilon."""

    def _forward_exploration(self, batch, t, **kwargs):
        values = self._forward(batch)["action_dist_inputs"]
        epsilon = max(EPSILON, 1 - (1 - EPSILON) * t / EPSILON_STEPS)
        greedy = nn.functional.one_hot(values.argmax(-1), values.shape[-1])
        return {"action_dist_inputs": torch.log((1 - epsilon) * greedy + epsilon / values.shape[-1])}


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=FRAGMENT,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=QNet, inference_only=True),
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu"},
    )


class Replay:
    """The newest chunks of a team's episodes, all of equal length, with each observation stored once."""

    def __init__(self, capacity, seed):
        self.capacity, self.rng = capacity, np.random.default_rng(seed)
        self.size = self.next = 0
        self.columns = {}  # name -> [capacity, T, A, ...], and "obs" [capacity, T + 1, A, ...]

    def add(self, batch):
        """Add chunks as `aligned()` returns them, [T, E, A, ...]."""
        new = {name: batch[name] for name in ("actions", "rewards", "terminateds")}
        new["obs"] = np.concatenate([batch["obs"], batch["final_obs"][None]])
        places = (self.next + np.arange(len(batch["seq_lens"]))) % self.capacity
        for name, column in new.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((self.capacity, len(column), *column.shape[2:]), column.dtype)
            self.columns[name][places] = column.swapaxes(0, 1)
        self.next = int(places[-1] + 1) % self.capacity
        self.size = min(self.size + len(places), self.capacity)

    def sample(self, n, device):
        """Return n random steps of the team as tensors [n, A, ...]."""
        length = self.columns["rewards"].shape[1]
        chunks, steps = self.rng.integers(self.size, size=n), self.rng.integers(length, size=n)
        rows = {name: column[chunks, steps] for name, column in self.columns.items()}
        return to_tensors(rows | {"new_obs": self.columns["obs"][chunks, steps + 1]}, device=device)

    def get_state(self):
        filled = {name: column[: self.size] for name, column in self.columns.items()}
        return {"columns": filled, "size": self.size, "next": self.next, "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.size, self.next = state["size"], state["next"]
        self.columns = {}
        for name, filled in state["columns"].items():
            self.columns[name] = np.zeros((self.capacity, *filled.shape[1:]), filled.dtype)
            self.columns[name][: self.size] = filled
        self.rng.bit_generator.state = state["rng"]


class Learner:
    """Trains a module in place, so that its runner acts with the newest weights."""

    def __init__(self, runner, args, num_updates):
        self.module, self.gamma = runner.module[POLICY], args.gamma
        self.target, self.replay = copy.deepcopy(self.module), Replay(CAPACITY, args.seed)
        self.parameters, self.target_parameters = flat_parameters(self.module), flat_parameters(self.target)
        self.optimizer = torch.optim.Adam([self.parameters], lr=args.lr, fused=True)
        self.schedule = linear_schedule(self.optimizer, num_updates * UPDATES)
        self.parts = {"target": self.target, "optimizer": self.optimizer, "schedule": self.schedule}

    def loss(self, rows):
        """Return the error of the team's value, the sum of its agents' values, relative to rewards and later values."""
        taken = self.values_of(self.module, rows["obs"]).gather(-1, rows["actions"][..., None])
        with torch.no_grad():  # double Q-learning: one network chooses actions, the other one evaluates them
            best = self.values_of(self.module, rows["new_obs"]).argmax(-1, keepdim=True)
            after = self.values_of(self.target, rows["new_obs"]).gather(-1, best).squeeze(-1)
            after = after.masked_fill(rows["terminateds"], 0.0)
            target = REWARD_SCALE * rows["rewards"].sum(-1) + self.gamma * after.sum(-1)
        return nn.functional.smooth_l1_loss(taken.squeeze(-1).sum(-1), target)

    def values_of(self, module, obs):
        """Return action values [n, A, actions] of observations [n, A, ...]."""
        return module.forward_train({"obs": obs})["action_dist_inputs"]

    def learn(self, episodes):
        """Add episodes to the replay, and update on samples of it; returns the last loss."""
        self.replay.add(aligned(episodes, outputs=[])[POLICY])
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
