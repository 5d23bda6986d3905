"""Workers of `fastmarl.legacy`, and what they are compared by."""

import numpy as np

from fastmarl.legacy import RolloutWorker, RolloutWorkerConfig
from support.scenario_envs import BOTH
from support.scripted import Step, scripted

AGENTS = (0, 1)


def p_of_agent(agent_id, episode, worker):
    """As RLlib's old API stack calls it."""
    assert isinstance(worker, RolloutWorker)
    return f"p{agent_id}"


def all_p0(agent_id, episode):
    return "p0"


def config_with(**options):
    return RolloutWorkerConfig(**{
        "env": "fastmarl.cart_pole",
        "env_config": {"num_agents": len(AGENTS)},
        "policies": ["p0", "p1"],
        "policy_mapping_fn": p_of_agent,
        "num_envs_per_env_runner": 2,
        "rollout_fragment_length": 20,
        "model_config": {"fcnet_hiddens": [8]},
        "seed": 3,
        **options,
    })  # fmt: skip


def same(one, other):
    """Return true if two nested dicts of arrays are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(entry, other[name]) for name, entry in one.items())
    return np.array_equal(one, other)


def rewarded(infos=lambda t: {}):
    """Ten steps; the agents receive 1 and 2 in each."""
    return [Step(BOTH, {"a0": 1.0, "a1": 2.0}, infos=infos(t), terminated=t == 10) for t in range(11)]


def clocks(script=None, **options):
    """Options of a worker whose agents play a script, each with a policy of its own."""
    mapping = {"policy_mapping_fn": lambda agent_id, episode: f"p{agent_id[1]}"}
    return {"env": scripted(script or rewarded()), **mapping, **options}
