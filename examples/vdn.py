"""VDN (Sunehag et al. 2018) on simple_spread: 3 agents learn action values that add up to the team value.

python examples/vdn.py --steps 1000000 --folder runs/vdn

Random play returns about -79 per episode. 1 million env steps, 55 CPU seconds, raise greedy play to -32 (figures:
docs/gallery.md). The algorithm is double Q-learning from a replay of team decisions, with a slowly moving target
network. --folder receives the learning curve and checkpoints, from which --resume continues; they contain the replay,
up to 110 MB each.
"""

import sys

import fastmarl
from fastmarl.batches import aligned
from fastmarl.cli.train import main
from fastmarl.cli.train_options import add_q_arguments
from fastmarl.learning import QLearner, TeamReplay
from fastmarl.modules import EpsilonGreedyRLModule
from fastmarl.training import Algorithm, agents_of, linear_schedule, load_states, runner_options, states_of

BATCH = 256
CAPACITY = 500_000  # decisions of the team
POLICY = "default_policy"


def make_config(args):
    epsilon = [[0, 1.0], [args.epsilon_steps, 0.05]]
    return fastmarl.EnvRunnerConfig(
        **runner_options(args),  # env, env_config, number of envs, device, seed
        rollout_fragment_length=args.fragment,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=EpsilonGreedyRLModule, inference_only=True),
        model_config={"fcnet_hiddens": args.hiddens, "fcnet_activation": "relu", "epsilon": epsilon},
    )


class Learner:
    """Trains a module in place, so that its runner acts with the latest weights."""

    def __init__(self, runner, args, num_updates):
        self.agents = agents_of(runner.env.envs[0])
        self.replay = TeamReplay(CAPACITY, args.seed, respawn=args.respawn)
        self.q = QLearner(runner.module[POLICY], lr=args.lr, gamma=args.gamma)
        self.updates = args.updates
        self.schedule = linear_schedule(self.q.optimizer, num_updates * args.updates)
        self.parts = {"q": self.q, "schedule": self.schedule}

    def learn(self, episodes):
        """Add episodes to the replay and update on samples from it; returns the statistics of the last update."""
        for batch in aligned(episodes, groups={POLICY: self.agents}, outputs=[]).values():
            self.replay.add(batch)
        if not len(self.replay):
            return {}
        for _ in range(self.updates):
            stats = self.q.update(self.replay.sample(BATCH))
            self.schedule.step()
        return stats

    def get_state(self):
        return {"parts": states_of(self.parts), "replay": self.replay.get_state()}

    def set_state(self, state):
        load_states(self.parts, state["parts"])
        self.replay.set_state(state["replay"])


ALGORITHM = Algorithm(
    name="vdn",
    help="value decomposition: Q-learning of action values that add up to the team's value",
    defaults={
        "env": "fastmarl.simple_spread",
        "steps": 1_000_000,
        "num_envs": 32,
        "gamma": 0.9,
        "lr": 2e-3,
        "reward_scale": 0.1,
    },
    make_config=make_config,
    make_learner=Learner,
    add_arguments=add_q_arguments,
    takes_module=False,
)

if __name__ == "__main__":
    sys.exit(main(ALGORITHM))
