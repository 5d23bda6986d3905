"""Two faces of RLlib's old API stack, on which the same checks run: RLlib's own classes, and those without Ray."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_env import MultiAgentEnv

import fastmarl
import fastmarl.legacy
from support.legacy_api.names import CLASSES

OBS, ACT = gym.spaces.Box(-1, 10, (2,), np.float32), gym.spaces.Discrete(3)
LENGTH = 5


class Clock(MultiAgentEnv):
    """Two agents; "a" receives 1 and "b" 2 in each of five steps; every second episode is truncated."""

    def __init__(self, config: Any = None):
        super().__init__()
        self.context = config
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces, self.action_spaces = dict.fromkeys("ab", OBS), dict.fromkeys("ab", ACT)
        self.observation_space = gym.spaces.Dict(self.observation_spaces)
        self.action_space = gym.spaces.Dict(self.action_spaces)
        self.n_over = 0

    def seen(self) -> dict:
        return {agent: np.full(2, self.t, np.float32) for agent in "ab"}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple:
        self.t = 0
        return self.seen(), {}

    def step(self, action_dict: dict) -> tuple:
        self.t += 1
        is_over, infos = self.t == LENGTH, {agent: {"t": self.t} for agent in "ab"}
        self.n_over += is_over
        is_truncated = is_over and self.n_over % 2 == 0
        flags = [{"a": flag, "b": flag, "__all__": flag} for flag in (is_over and not is_truncated, is_truncated)]
        return self.seen(), {"a": 1.0, "b": 2.0}, *flags, infos


def by_agent(agent_id: str, episode: Any, worker: Any = None, **kwargs: Any) -> str:
    return {"a": "p0", "b": "p1"}[agent_id]


def all_to_p0(agent_id: str, episode: Any, worker: Any = None, **kwargs: Any) -> str:
    return "p0"


class Face:
    """A set of classes, and workers of them."""

    def __init__(self, classes: dict[str, Any]):
        self.__dict__.update(classes)
        self._made: list[Any] = []

    def fresh(self, made: dict[str, Any] | None = None, **options: Any) -> Any:
        """Return a worker of its own.

        Args:
            made: arguments of the constructor.
            options: options of the config.
        """
        raise NotImplementedError

    @cached_property
    def worker(self) -> Any:
        """A worker that no check changes; it has sampled a batch of two episodes."""
        worker = self.fresh()
        worker.sample()
        return worker

    @cached_property
    def io_worker(self) -> Any:
        """A worker for readers, of which RLlib's want a "default_policy"."""
        ids = ["default_policy", "p1"]
        return self.fresh(policies=ids, policy_mapping_fn=lambda agent_id, *args, **kwargs: ids["ab".index(agent_id)])

    @property
    def policy(self) -> Any:
        return self.worker.policy_map["p0"]

    def batch(self, n: int = 6, **columns: Any) -> Any:
        """Return a SampleBatch of two episodes."""
        half = n // 2
        return self.SampleBatch(
            {
                "obs": np.arange(2.0 * n, dtype=np.float32).reshape(n, 2),
                "actions": np.arange(n) % 3,
                "rewards": np.arange(n, dtype=np.float32),
                "terminateds": np.arange(1, n + 1) % half == 0,
                "truncateds": np.zeros(n, bool),
                "eps_id": np.arange(n) // half,
                "agent_index": np.zeros(n, np.int64),
                "t": np.arange(n) % half,
                **columns,
            }
        )

    def sequences(self) -> Any:
        """Return a SampleBatch of a recurrent policy."""
        return self.SampleBatch(
            {"obs": np.arange(5.0), "seq_lens": np.array([2, 3], np.int32), "state_in_0": np.ones((2, 4))}
        )

    def multi(self) -> Any:
        return self.MultiAgentBatch({"p0": self.batch(), "p1": self.batch()}, 6)

    def episodes(self, look: Callable[[Any], Any], event: str = "on_episode_step") -> list[Any]:
        """Return what `look(episode)` returns at the events of two episodes."""
        found = []

        class Looks(RLlibCallback):
            pass

        setattr(Looks, event, lambda self, *, episode, **kwargs: found.append(look(episode)))
        self.fresh(callbacks_class=Looks).sample()
        return found

    def called(self, event: str, look: Callable[[dict], Any], act: Callable[[Any], Any] | None = None) -> list[Any]:
        """Return what `look(arguments)` returns at the event while a worker is made and samples or does `act`."""
        found = []

        class Looks(RLlibCallback):
            pass

        setattr(Looks, event, lambda self, **kwargs: found.append(look(kwargs)))
        worker = self.fresh(callbacks_class=Looks)
        (act or (lambda worker: worker.sample()))(worker)
        return found

    def close(self) -> None:
        for worker in self._made:
            worker.stop()


class Theirs(Face):
    """The classes of RLlib itself."""

    is_rllib = True

    def env_runner(self, worker: Any) -> Any:
        return worker.sampler._env_runner_obj

    def count_of(self, of_filter: Any) -> int:
        return of_filter.running_stats.n

    def filter_of(self, size: int) -> Any:
        return self.MeanStdFilter((size,))

    def moments(self, stats: Any) -> Any:
        return stats.n, *np.ravel(stats.mean), *np.ravel(stats.var), *np.ravel(stats.std)

    def __init__(self) -> None:
        super().__init__(CLASSES)

    def fresh(self, made: dict[str, Any] | None = None, **options: Any) -> Any:
        config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        config.environment(Clock).framework("torch").debugging(seed=1)
        config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_agent)
        config.env_runners(num_env_runners=0, rollout_fragment_length=2 * LENGTH)
        config.training(model={"fcnet_hiddens": [8]}, train_batch_size=2 * LENGTH)
        for name, value in options.items():
            setattr(config, name, value)
        made = {"env_creator": Clock, **(made or {})}
        of_config = config.algo_class.get_default_policy_class(config)
        self._made.append(self.RolloutWorker(default_policy_class=of_config, config=config, **made))
        return self._made[-1]


class Ours(Face):
    """The classes of `fastmarl.legacy`."""

    is_rllib = False

    def env_runner(self, worker: Any) -> Any:
        return worker.env_runner

    def count_of(self, of_filter: Any) -> int:
        return of_filter.running_stats[0].count

    def filter_of(self, size: int) -> Any:
        return self.MeanStdFilter([fastmarl.RunningMeanStd(size)], [fastmarl.RunningMeanStd(size)])

    def moments(self, stats: Any) -> Any:
        [of_box] = stats
        return of_box.n, *of_box.mean, *of_box.var, *of_box.std

    def __init__(self) -> None:
        super().__init__({name: getattr(fastmarl.legacy, name, None) for name in CLASSES})
        self.EnvContext = fastmarl.envs.EnvContext
        self.PolicyMap = type(self.worker.policy_map)

    def fresh(self, made: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {
            "env": Clock,
            "policies": ["p0", "p1"],
            "policy_mapping_fn": by_agent,
            "rollout_fragment_length": 2 * LENGTH,
            "model_config": {"fcnet_hiddens": [8]},
            "seed": 1,
            **options,
        }
        made = made or {}
        if "env_creator" in made and made["env_creator"] is None:
            given["env"] = None
        self._made.append(self.RolloutWorker(config=fastmarl.legacy.RolloutWorkerConfig(**given), **made))
        return self._made[-1]


def keys(value: Any, without: tuple[str, ...] = ()) -> Any:
    """Return the keys of nested dicts, except some; the dtypes of arrays; None for anything else."""
    if isinstance(value, dict):
        return {key: keys(each, without) for key, each in value.items() if key not in without}
    return str(value.dtype) if isinstance(value, np.ndarray) and value.ndim else None
