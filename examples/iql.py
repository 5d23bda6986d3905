"""IQL (Tan 1993) on simple_spread: 3 agents share an action-value network, and each learns from its own rewards.

python examples/iql.py --steps 1000000 --folder runs/iql

Random play returns about -79 per episode. 1 million env steps, 39 CPU seconds, raise greedy play to -42 (figures:
docs/gallery.md). The algorithm is the same as in vdn.py, for teams of a single agent. --folder receives the learning
curve and checkpoints, from which --resume continues; they contain the replays, up to 110 MB each.
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
CAPACITY = 500_000  # decisions of each agent
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
        agents = agents_of(runner.env.envs[0])
        self.replays = {agent: TeamReplay(CAPACITY, args.seed, respawn=args.respawn) for agent in agents}
        self.q = QLearner(runner.module[POLICY], lr=args.lr, gamma=args.gamma)
        self.updates = args.updates
        self.schedule = linear_schedule(self.q.optimizer, num_updates * args.updates)
        self.parts = {"q": self.q, "schedule": self.schedule}

    def learn(self, episodes):
        """Add episodes to the replays and update on samples from them; returns the statistics of the last update."""
        for agent, batch in aligned(episodes, groups={agent: [agent] for agent in self.replays}, outputs=[]).items():
            self.replays[agent].add(batch)
        replays, stats = [each for each in self.replays.values() if len(each)], {}
        for _ in range(self.updates if replays else 0):
            turn = self.schedule.last_epoch  # the number of updates so far, in all calls
            stats = self.q.update(replays[turn % len(replays)].sample(BATCH))
            self.schedule.step()
        return stats

    def get_state(self):
        return {"parts": states_of(self.parts), "replays": [each.get_state() for each in self.replays.values()]}

    def set_state(self, state):
        load_states(self.parts, state["parts"])
        for replay, of_replay in zip(self.replays.values(), state["replays"], strict=True):
            replay.set_state(of_replay)


ALGORITHM = Algorithm(
    name="iql",
    help="independent Q-learning: each agent learns action values from its own rewards",
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
