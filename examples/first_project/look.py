"""Sample eight episodes with fastmarl's default network, and look at the longest one."""

from meadow import Meadow

import fastmarl

config = fastmarl.EnvRunnerConfig(env=Meadow, num_envs_per_env_runner=8, seed=0)
with fastmarl.MultiAgentEnvRunner(config) as runner:
    episodes = runner.sample(num_episodes=8)

longest = max(episodes, key=len)
print(len(longest), "env steps, return", longest.get_return())
for hare, steps in longest.agent_episodes.items():
    fate = "caught" if steps.is_terminated else "alive at the end"
    print(f"{hare}: {len(steps)} actions, return {steps.get_return():.0f}, {fate}")

steps = longest.agent_episodes["hare_0"]
masks = steps.get_observations()["action_mask"][:-1]  # without the last observation, on which it did not act
for mask, action, reward in zip(masks[:5], steps.get_actions(), steps.get_rewards(), strict=False):
    print("legal", mask, "chosen", action, "reward", reward)
