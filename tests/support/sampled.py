"""The results of a runner with a batch of envs, over several calls."""

import fastmarl


class Sampled:
    """Whole episodes of a batch.

    Attributes:
        runner: which has been stopped.
        adapter: its env.
        by_env: for each env its episodes, whole, in the order in which they began.
        steps: env steps of each env.
    """

    def __init__(self, make, num_envs, calls=(1, 3, 10, 22), **options):
        ids = [[] for _ in range(num_envs)]

        def note(*, episode, env_index, **kwargs):
            ids[env_index].append(episode.id_)

        options = {"seed": 0, "model_config": {"fcnet_hiddens": [8]}, **options}
        self.runner = fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(
                env=make, num_envs_per_env_runner=num_envs, callbacks_on_episode_created=note, **options
            )
        )
        episodes = {}
        for n_steps in calls:
            for chunk in self.runner.sample(num_timesteps=n_steps * num_envs):
                if chunk.id_ in episodes:
                    episodes[chunk.id_].concat_episode(chunk)
                else:
                    episodes[chunk.id_] = chunk
        self.by_env = [[episodes[id_] for id_ in of_env if id_ in episodes] for of_env in ids]
        self.adapter = self.runner.env.envs[0]
        self.steps = sum(calls)
        self.runner.stop()

    def at(self, env_index, tick):
        """(the episode of that env in that tick, env steps in it before)."""
        for episode in self.by_env[env_index]:
            if tick < len(episode):
                return episode, tick
            tick -= len(episode)
        raise IndexError
