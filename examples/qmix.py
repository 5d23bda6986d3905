"""QMIX (Rashid et al. 2018) on simple_spread: 3 agents learn action values, mixed into a team value by a network.

python examples/qmix.py --steps 1000000 --folder runs/qmix

Random play returns about -79 per episode. 1 million env steps, two CPU minutes, raise greedy play to -36 (figures:
docs/gallery.md). The mixer sees the observations of all agents, as in EPyMARL. With --memory, agents have recurrent
memory and learn from complete episodes. --folder receives the learning curve and checkpoints, from which --resume
continues; they contain the replay, up to 110 MB each.
"""

import sys

import gymnasium as gym

import fastmarl
from fastmarl.batches import aligned
from fastmarl.cli.train import main
from fastmarl.cli.train_options import add_q_arguments
from fastmarl.learning import QLearner, QMixer, TeamReplay
from fastmarl.modules import EpsilonGreedyRLModule
from fastmarl.training import Algorithm, agents_of, linear_schedule, load_states, runner_options, states_of

SEQUENCES, LENGTH, EPISODES = 64, 8, 32
LAMBDA = 0.8  # of TD(lambda)
CAPACITY = 500_000  # decisions of the team
POLICY = "default_policy"


def add_arguments(parser):
    add_q_arguments(parser)
    parser.add_argument("--memory", action="store_true", help="agents with a GRU, which learn from whole episodes")


def make_config(args):
    epsilon = [[0, 1.0], [args.epsilon_steps, 0.05]]
    memory = {"use_gru": True, "gru_cell_size": args.hiddens[-1]} if args.memory else {}
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=args.fragment,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=EpsilonGreedyRLModule, inference_only=True),
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu", "epsilon": epsilon, **memory},
    )


class Learner:
    """Trains a module in place, so that its runner acts with the latest weights, and the mixer."""

    def __init__(self, runner, args, num_updates):
        self.agents = agents_of(runner.env.envs[0])
        self.replay = TeamReplay(CAPACITY, args.seed, respawn=args.respawn)
        module, self.has_memory, self.updates = runner.module[POLICY], args.memory, args.updates
        mixer = QMixer(len(self.agents), len(self.agents) * gym.spaces.flatdim(module.observation_space))
        device = next(module.parameters()).device
        self.q = QLearner(module, mixer.to(device), lr=args.lr, gamma=args.gamma, lambda_=LAMBDA)
        self.schedule = linear_schedule(self.q.optimizer, num_updates * args.updates)
        self.parts = {"q": self.q, "schedule": self.schedule}

    def learn(self, episodes):
        """Add episodes to the replay and update on samples from it; returns the statistics of the last update."""
        for batch in aligned(episodes, groups={POLICY: self.agents}, outputs=[]).values():
            self.replay.add(batch)
        if not (self.replay.num_episodes if self.has_memory else len(self.replay)):
            return {}
        for _ in range(self.updates):
            if self.has_memory:
                rows = self.replay.sample_episodes(EPISODES)
            else:
                rows = self.replay.sample(SEQUENCES, LENGTH)
            stats = self.q.update(rows)
            self.schedule.step()
        return stats

    def get_state(self):
        return {"parts": states_of(self.parts), "replay": self.replay.get_state()}

    def set_state(self, state):
        load_states(self.parts, state["parts"])
        self.replay.set_state(state["replay"])


ALGORITHM = Algorithm(
    name="qmix",
    help="Q-learning of action values that a network mixes to the team's value",
    defaults={"env": "fastmarl.simple_spread", "steps": 1_000_000, "num_envs": 32, "gamma": 0.9, "lr": 1e-3},
    make_config=make_config,
    make_learner=Learner,
    add_arguments=add_arguments,
    takes_module=False,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
