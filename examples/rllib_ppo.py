"""RLlib PPO on two-policy CartPole, sampled by fastmarl: only the two marked lines differ from plain RLlib.

python examples/rllib_ppo.py --iterations 20
"""

import argparse

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

import fastmarl.rllib  # 1


def make_config(num_env_runners):
    return (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}")
        .env_runners(
            env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner,  # 2
            num_env_runners=num_env_runners,
            num_envs_per_env_runner=8,
        )
        .training(train_batch_size_per_learner=2000, minibatch_size=256, num_epochs=6, lr=1e-3)
        .debugging(seed=0)
    )


def train(iterations, num_env_runners=0):
    """Train and return the mean return of the last iteration."""
    algorithm = make_config(num_env_runners).build_algo()
    mean_return = 0.0
    try:
        for iteration in range(iterations):
            result = algorithm.train()["env_runners"]
            mean_return = result["episode_return_mean"]
            print(f"iteration {iteration:3}: mean return {mean_return:7.1f}, sampled in {result['sample']:.3f} s")
    finally:
        algorithm.stop()
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--num-env-runners", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.iterations, arguments.num_env_runners)
