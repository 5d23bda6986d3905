"""IPPO and MAPPO with the algorithm and the hyperparameters of EPyMARL (Papoudakis et al. 2021).

python examples/epymarl.py --critic central --steps 20000000 --folder runs/lbf    (equal to fastmarl train epymarl)

It differs from ippo.py and mappo.py: an update has a single batch without minibatches; advantages use n-step returns
whose last value comes from a slowly moving target critic, and are not normalised; every agent receives the team reward
and observes which agent it is. EPyMARL computes advantages again in each epoch, after a step of the critic; here they
are computed once per update. In EPyMARL all agents act at every step; here, if agents wait, a step is an agent step,
with the total team reward until the next one.
"""

import copy
import sys
from collections import defaultdict
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.utils import RunningMeanStd
from torch import nn

import fastmarl
from fastmarl.batches import (
    TeamRewards,
    add_aligned_n_step_returns,
    aligned,
    columns,
    map_columns,
    sequences,
    with_final_obs,
)
from fastmarl.cli.arguments import not_negative, positive
from fastmarl.cli.train import main
from fastmarl.connectors import AgentIndicator, FlattenObservations
from fastmarl.learning import PPOLearner, ValueLearner, to_tensors
from fastmarl.training import Algorithm, agents_of, load_states, runner_options, states_of

EPOCHS, TARGET_RATE = 4, 0.01
OWN, CENTRAL = "own", "central"
POLICY = "default_policy"


def add_arguments(parser):
    """Add the options of PPO in EPyMARL."""
    parser.add_argument("--critic", choices=[OWN, CENTRAL], default=OWN, help="what the critic sees: the agent's own "
                        "observation (IPPO) or those of all agents (MAPPO)")  # fmt: skip
    parser.add_argument("--fragment", type=positive, default=50, help="env steps of each env and update")
    parser.add_argument("--n-steps", type=positive, default=5, help="rewards in a return, before the critic's value")
    parser.add_argument("--entropy", type=not_negative, default=0.001, help="entropy weight (default %(default)s)")
    parser.add_argument("--normalize-rewards", action="store_true", help="subtract the mean of the run's rewards, and "
                        "divide them by their standard deviation")  # fmt: skip
    parser.add_argument("--gru", action="store_true", help="a GRU as the actor's last hidden layer")


def make_connectors(env, spaces, device):
    """Flatten observations, unless they are vectors, and append the agent."""
    observation_space, _ = spaces[POLICY]
    is_vector = isinstance(observation_space, gym.spaces.Box) and len(observation_space.shape) == 1
    return [*([] if is_vector else [FlattenObservations()]), AgentIndicator(agents_of(env))]


def make_config(args):
    *dense, last = args.hiddens
    layers = {"fcnet_hiddens": args.hiddens}
    if args.gru:
        layers = {"fcnet_hiddens": dense, "use_gru": True, "gru_cell_size": last}
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),
        rollout_fragment_length=args.fragment,
        env_to_module_connector=make_connectors,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),  # an actor, without a value head
        model_config={"fcnet_activation": "relu", **layers},
    )


class RewardNorm(RunningMeanStd):
    """Running mean and variance of all rewards of a run."""

    def __call__(self, rewards):
        self.update(rewards)
        return (rewards - self.mean) / np.sqrt(self.var)

    def state_dict(self):
        return {name: float(value) for name, value in vars(self).items()}

    def load_state_dict(self, state):
        vars(self).update(state)


class Learner:
    """Trains an actor in place, so that the runner acts with its latest weights, and a critic."""

    def __init__(self, runner, args, num_updates):
        actor, self.args, self.agents = runner.module[POLICY], args, agents_of(runner.env.envs[0])
        self.device, n_agents = next(actor.parameters()).device, len(self.agents)
        n_obs = actor.observation_space.shape[0]
        sizes = [n_obs if args.critic == OWN else n_agents * (n_obs - n_agents) + n_agents, *args.hiddens]
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.critic = nn.Sequential(*layers, nn.Linear(sizes[-1], 1)).to(self.device)
        self.target = copy.deepcopy(self.critic)
        options = {"lr": args.lr, "adam_eps": 1e-8, "epochs": EPOCHS, "num_minibatches": 1, "max_grad_norm": 10.0}
        self.ppo = PPOLearner(actor, clip=0.2, vf_coeff=0.0, entropy_coeff=args.entropy, **options)
        self.regression = ValueLearner(self.critic, **options)
        self.team_rewards, self.reward_norm = TeamRewards(), RewardNorm()
        self.parts = {"critic": self.critic, "target": self.target, "optimizer": self.ppo.optimizer,
                      "critic_optimizer": self.regression.optimizer, "team_rewards": self.team_rewards,
                      "reward_norm": self.reward_norm}  # fmt: skip

    def learn(self, episodes):
        """Update actor and critic; returns the losses, averaged over the epochs."""
        actor_rows, critic_rows = self.rows_of(episodes)
        if not actor_rows:
            return {}
        stats = self.ppo.update(actor_rows) | self.regression.update(critic_rows)
        with torch.no_grad():
            for slow, newest in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(newest, TARGET_RATE)
        return stats

    def rows_of(self, episodes):
        """Return columns for actor and critic with one row per agent step; for a GRU, the actor's are sequences.

        They are empty if no step was finished.
        """
        batch = aligned(episodes, groups={POLICY: self.agents}, outputs=["action_logp"]).get(POLICY)
        if batch is None:
            return {}, {}
        active, rewards = batch["active"], self.team_rewards(batch)  # [T, E, A]
        if not active.any():
            return {}, {}
        if self.args.normalize_rewards:
            rewards[active] = self.reward_norm(rewards[active])
        inputs = self.inputs_of(torch.from_numpy(with_final_obs(batch)).to(self.device))  # [T + 1, E, A, k]
        with torch.no_grad():
            later, inputs = self.target(inputs).squeeze(-1), inputs[:-1][active]
            values = self.critic(inputs).squeeze(-1)
        n_steps, gamma = self.args.n_steps, self.args.gamma
        add_aligned_n_step_returns(batch, later, n_step=n_steps, gamma=gamma, rewards=rewards)
        tensors = to_tensors(batch, ["obs", "actions", "action_logp", "value_targets"], self.device)
        rows = map_columns(lambda column: column[active], tensors)
        rows["advantages"] = rows["value_targets"] - values
        critic_rows = {"obs": inputs, "value_targets": rows["value_targets"]}
        return self.sequences_of(episodes, batch, rows) if self.args.gru else rows, critic_rows

    def sequences_of(self, episodes, batch, rows):
        """Return a sequence per agent and chunk, [S, fragment, ...]; `rows` [n, ...] are the batch's active agents."""
        active, names, places = batch["active"], ["advantages", "value_targets"], defaultdict(list)
        for e, a in zip(*active.any(0).nonzero(), strict=True):  # several for an agent that respawned
            places[f"{batch['eps_id'][e]}_{self.agents[a]}", self.agents[a]].append((slice(None), e, a))
        flat = columns(episodes, outputs=[])[POLICY]
        order = [places[ids].pop(0) for ids in zip(flat["eps_id"], flat["agent_id"], strict=True)]
        extra, padded = {}, np.zeros(active.shape, np.float32)  # [T, E, A]
        for name in names:
            padded[active] = rows[name].cpu()
            extra[name] = np.concatenate([padded[place][active[place]] for place in order])
        found = sequences(episodes, max_seq_len=self.args.fragment, extra_columns={POLICY: extra})[POLICY]
        return to_tensors(found, ["obs", "actions", "action_logp", "loss_mask", "state_in", *names], self.device)

    def inputs_of(self, obs):
        """Return the critic inputs, given the agent observations [..., A, n]."""
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
