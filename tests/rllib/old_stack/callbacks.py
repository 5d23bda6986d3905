"""Callbacks of the old stack: such that write all down, and such that change what is sampled."""

from typing import Any

import numpy as np
from ray.rllib.algorithms.callbacks import make_multi_callbacks
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from rllib.differential import tape
from rllib.differential.tape import freeze
from rllib.old_stack.notes import collected, outline


def _note(hook: str, *entry: Any, **kwargs: Any) -> None:
    tape.note("callback", hook, *entry, tuple(sorted(kwargs)))


class AllCalls(RLlibCallback):
    """Every hook that a worker has."""

    def on_sub_environment_created(self, *, worker: Any, sub_environment: Any, env_context: Any, **kwargs: Any) -> None:
        place = (env_context.worker_index, env_context.vector_index, env_context.num_workers, env_context.remote)
        _note("sub_environment_created", type(sub_environment).__name__, place, worker.worker_index, **kwargs)

    def on_create_policy(self, *, policy_id: str, policy: Any) -> None:
        _note("create_policy", policy_id, type(policy).__name__)

    def on_episode_created(self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs):
        same = (worker.policy_map is policies, worker.async_env is base_env, episode.worker is worker)
        _note("created", env_index, *outline(episode), same, **kwargs)

    def on_episode_start(self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs):
        _note("start", env_index, *outline(episode), **kwargs)
        episode.user_data["steps"] = []

    def on_episode_step(self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs):
        envs = base_env.get_sub_environments()
        _note("step", env_index, *outline(episode), len(envs), getattr(envs[env_index], "t", None), **kwargs)
        episode.user_data.setdefault("steps", []).append(episode.length)

    def on_episode_end(self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs):
        _note("end", env_index, *outline(episode), tuple(policies.keys()), **kwargs)

    def on_postprocess_trajectory(
        self, *, worker: Any, episode: Any, agent_id: Any, policy_id: str, policies: Any, postprocessed_batch: Any,
        original_batches: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        shown = original_batches if len(original_batches) < 4 else [agent_id]
        before = tuple((repr(agent), one[0], one[-1].count, type(one[1])) for agent, one in original_batches.items())
        before = (before, freeze({agent: dict(original_batches[agent][-1]) for agent in shown}))
        about = (repr(agent_id), policy_id, postprocessed_batch.count, worker.worker_index)
        _note("postprocess", *outline(episode), about, freeze(dict(postprocessed_batch)), before, **kwargs)

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        parts = {name: dict(part) for name, part in samples.policy_batches.items()}
        _note("sample_end", samples.count, samples.agent_steps(), freeze(parts), **kwargs)


class Ends(RLlibCallback):
    """The most common callback: logs numbers of an episode when it ends."""

    def on_episode_end(self, *, episode: Any, worker: Any = None, env_index: int, **kwargs: Any) -> None:
        if isinstance(episode, Exception):
            return
        worker = worker or episode.worker
        episode.custom_metrics["length"] = episode.length
        episode.custom_metrics["best"] = max(map(float, episode.agent_rewards.values()), default=0.0)
        episode.hist_data["rewards"] = [float(reward) for reward in episode.agent_rewards.values()]
        episode.media["picture"] = np.zeros((2, 2), np.uint8)
        _note("end", env_index, *outline(episode), worker.global_vars["timestep"])


class Steps(RLlibCallback):
    """Collects a value a step, as RLlib's own example does."""

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        if episode.length > 0:
            raise AssertionError("an episode starts in its midst")
        episode.user_data["infos"], episode.hist_data["rewards"] = [], []

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        agents = episode.get_agents()
        episode.user_data["infos"].append([episode.last_info_for(agent) for agent in agents])
        rewards = [episode._agent_reward_history[agent][-1:] for agent in agents]
        episode.hist_data["rewards"].append(float(sum(float(latest[0]) for latest in rewards if latest)))

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        if not isinstance(episode, Exception):
            _note("end", *outline(episode))


class Collectors(RLlibCallback):
    """Reads what RLlib keeps to itself."""

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        _note("step", *collected(episode))


class Postprocessors(RLlibCallback):
    """Changes a trajectory before it goes into the batch."""

    def on_postprocess_trajectory(
        self, *, postprocessed_batch: Any, agent_id: Any, episode: Any, **kwargs: Any
    ) -> None:
        postprocessed_batch["rewards"] = postprocessed_batch["rewards"] * np.float32(2)
        postprocessed_batch["agent_number"] = np.full(len(postprocessed_batch), len(str(agent_id)))
        postprocessed_batch["obs"][..., :1] = 0


class SampleEditors(RLlibCallback):
    """Changes what is returned."""

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        for batch in samples.policy_batches.values():
            batch["rows"] = np.arange(len(batch))
            batch["rewards"][:1] = -1


class ExtraBatches(RLlibCallback):
    """Adds rows of its own to what is sampled."""

    def on_episode_step(self, *, worker: Any, episode: Any, **kwargs: Any) -> None:
        if episode.length % 3 == 0:
            rows = SampleBatch({"t": np.array([episode.length, 0]), "rewards": np.ones(2, np.float32)})
            worker.sampler.extra_batches.put(MultiAgentBatch({"extra": rows}, env_steps=1))


class Learner(RLlibCallback):
    """Self-play: maps otherwise, and moves weights, when an episode ends."""

    def on_episode_end(self, *, worker: Any, episode: Any, **kwargs: Any) -> None:
        names = sorted(worker.policy_map.keys())
        turned = names[::-1] if worker.policy_mapping_fn.__name__ != "_turned" else names

        def _turned(agent_id: Any, episode: Any, **kwargs: Any) -> str:
            return turned[len(str(agent_id)) % len(turned)]

        worker.set_policy_mapping_fn(_turned)


def _raising(hook: str, number: int) -> type[RLlibCallback]:
    """A class whose hook raises at the call with this number."""

    def method(self: Any, **kwargs: Any) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == number:
            raise LookupError(f"this callback fails in {hook}()")

    return type("Raising", (RLlibCallback,), {hook: method})


CALLBACKS: dict[str, type[RLlibCallback]] = {
    "none": RLlibCallback,
    "all": AllCalls,
    "several": make_multi_callbacks([AllCalls, Ends]),
    "ends": Ends,
    "steps": Steps,
    "collectors": Collectors,
    "postprocessors": Postprocessors,
    "sample editors": SampleEditors,
    "extra batches": ExtraBatches,
    "learner": Learner,
    "raising": _raising("on_episode_step", 7),
    "raising at ends": _raising("on_episode_end", 2),
    "raising afterwards": _raising("on_sample_end", 2),
}
READERS = ("all", "ends", "steps", "collectors")
WRITERS = ("postprocessors", "sample editors", "extra batches")
