"""RLlib's own environments, standalone."""

from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

import fastmarl


def test_multi_agent_cartpole():
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: MultiAgentCartPole(dict(config)),
        env_config={"num_agents": 3},
        num_envs_per_env_runner=2,
        policies={"p", "q"},
        policy_mapping_fn=lambda agent_id, episode: "p" if agent_id else "q",
        seed=1,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    episodes = runner.sample(num_episodes=5)
    assert len(episodes) == 5
    for episode in episodes:
        assert episode.is_terminated
        for agent in episode.agent_episodes.values():
            assert agent.is_terminated
            assert agent.get_return() == len(agent) == len(agent.get_observations()) - 1
    runner.stop()
