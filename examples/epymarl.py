"""IPPO and MAPPO with the algorithm and the hyperparameters of EPyMARL (Papoudakis et al. 2021).

python examples/epymarl.py --critic central --steps 20000000 --folder runs/lbf    (equal to fastmarl train epymarl)

It differs from ippo.py and mappo.py: an update has one batch without minibatches; advantages are those of n-step
returns whose last value comes from a slowly moving target critic, and are not normalised; every agent receives the
team's reward, and observes which agent it is. EPyMARL computes advantages again in each epoch, after a step of the
critic; here they are computed once per update. EPyMARL's agents all act at every step; where agents wait, a step is
here one of the agent's own, with all that the team receives until the next one.
"""

import copy
import sys
from itertools import pairwise

import gymnasium as gym
import torch
from torch import nn

import fastmarl
from fastmarl.batches import TeamRewards, add_aligned_n_step_returns, aligned, map_columns, with_final_obs
from fastmarl.cli.arguments import not_negative, positive
from fastmarl.cli.train import main
from fastmarl.connectors import AgentIndicator, FlattenObservations
from fastmarl.learning import PPOLearner, ValueLearner, to_tensors
from fastmarl.training import Algorithm, agents_of, load_states, runner_options, states_of

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


def make_connectors(env, spaces, device):
    """Flatten observations, unless they are vectors, and append the agent."""
    observation_space, _ = spaces[POLICY]
    is_vector = isinstance(observation_space, gym.spaces.Box) and len(observation_space.shape) == 1
    return [*([] if is_vector else [FlattenObservations()]), AgentIndicator(agents_of(env))]


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),
        rollout_fragment_length=args.fragment,
        env_to_module_connector=make_connectors,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=args.critic == CENTRAL),  # an actor, without a value head
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu", "vf_share_layers": False},
    )


class Learner:
    """Trains actor and critic in place, so that the runner acts with the newest weights.

    The own critic is a part of the module, the central one is not.
    """

    def __init__(self, runner, args, num_updates):
        module, self.args, self.agents = runner.module[POLICY], args, agents_of(runner.env.envs[0])
        self.is_central, self.device = args.critic == CENTRAL, next(module.parameters()).device
        self.ppo = PPOLearner(
            module, lr=args.lr, adam_eps=ADAM_EPS, epochs=EPOCHS, num_minibatches=1, clip=CLIP,
            vf_coeff=0.0 if self.is_central else 1.0, entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.team_rewards = TeamRewards()
        self.parts = {"optimizer": self.ppo.optimizer, "team_rewards": self.team_rewards}
        if self.is_central:
            n_agents = len(self.agents)
            sizes = [n_agents * (module.observation_space.shape[0] - n_agents) + n_agents, *args.hiddens]
            layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
            self.critic = nn.Sequential(*layers, nn.Linear(sizes[-1], 1)).to(self.device)
            self.regression = ValueLearner(
                self.critic, lr=args.lr, epochs=EPOCHS, num_minibatches=1, max_grad_norm=MAX_GRAD_NORM
            )
            self.regression.optimizer.param_groups[0]["eps"] = ADAM_EPS
            self.parts |= {"critic": self.critic, "critic_optimizer": self.regression.optimizer}
        else:
            self.critic = nn.Sequential(module.vf_trunk, module.vf)
        self.parts["target"] = self.target = copy.deepcopy(self.critic)

    def learn(self, episodes):
        """Update actor and critic; returns the losses, averaged over the epochs."""
        rows, inputs = self.rows_of(episodes)
        if not rows:
            return {}
        stats = self.ppo.update(rows)
        if self.is_central:
            fitted = self.regression.update({"obs": inputs, "value_targets": rows["value_targets"]})
            stats["vf_loss"] = fitted["vf_loss"]
        with torch.no_grad():
            for slow, newest in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                slow.lerp_(newest, TARGET_RATE)
        return stats

    def rows_of(self, episodes):
        """Return columns with one row per agent step, and the critic's inputs; no columns if no step was finished."""
        outputs = ["action_logp"] if self.is_central else ["action_logp", "vf_preds"]
        batch = aligned(episodes, groups={POLICY: self.agents}, outputs=outputs).get(POLICY)
        if batch is None:
            return {}, None
        active = torch.from_numpy(batch["active"]).to(self.device)  # [T, E, A]
        inputs = self.inputs_of(torch.from_numpy(with_final_obs(batch)).to(self.device))  # [T + 1, E, A, k]
        with torch.no_grad():
            values = self.target(inputs).squeeze(-1)
        rewards, n_steps = self.team_rewards(batch), self.args.n_steps
        add_aligned_n_step_returns(batch, values, n_step=n_steps, gamma=self.args.gamma, rewards=rewards)
        names = ["obs", "actions", "value_targets", *outputs]
        rows = map_columns(lambda column: column[active], to_tensors(batch, names, self.device))
        inputs = inputs[:-1][active]
        with torch.no_grad():
            values = self.critic(inputs).squeeze(-1) if self.is_central else rows.pop("vf_preds")
        return rows | {"advantages": rows["value_targets"] - values}, inputs

    def inputs_of(self, obs):
        """Return what the critic sees, given what agents see, [..., A, n]."""
        if not self.is_central:
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
