"""The state of the standalone runner by RLlib's names: which components come, and what is taken."""

import warnings

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from support.differences import is_same
from support.rllib_walk import Walk

import fastmarl

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
OF_RLLIB = {
    "rl_module",
    "weights_seq_no",
    "env_to_module_connector",
    "module_to_env_connector",
    "num_env_steps_sampled_lifetime",
}
POLICIES = ["p0", "p1"]


def of_agent(agent_id, episode=None, **kwargs):
    return {"a": "p0", "b": "p1"}[agent_id]


@pytest.fixture(scope="module")
def runners():
    config = PPOConfig().environment(Walk).env_runners(num_env_runners=0)
    config = config.multi_agent(policies=set(POLICIES), policy_mapping_fn=of_agent)
    standalone = fastmarl.EnvRunnerConfig(env=Walk, policies=POLICIES, policy_mapping_fn=of_agent)
    both = MultiAgentEnvRunner(config=config), fastmarl.MultiAgentEnvRunner(standalone)
    yield both
    for runner in both:
        runner.stop()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "components",
    [None, "rl_module", "rl_module/p0", ["env_to_module_connector"], "module_to_env_connector", ["unknown"], [],
     ["rl_module/p1", "module_to_env_connector"], "rl_module/unknown"],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    "not_components", [None, "rl_module", ["rl_module/p0"], ["env_to_module_connector", "unknown"]]
)
@pytest.mark.parametrize("options", [{}, {"inference_only": True}, {"timeout": 3}], ids=str)
def test_components_are_those_of_rllib(runners, components, not_components, options):
    theirs, ours = (runner.get_state(components, not_components=not_components, **options) for runner in runners)
    assert ours.keys() & OF_RLLIB == theirs.keys()
    assert ours.get("rl_module", {}).keys() == theirs.get("rl_module", {}).keys()


def test_the_same_weights_are_taken_as_by_rllib(runners):
    for seq_no, offset, is_taken in (
        (0, 1, True),
        (3, 2, True),
        (3, 3, False),
        (2, 4, False),
        (0, 5, True),
        (9, 6, True),
    ):
        taken = []
        for runner in runners:
            before = runner.get_state("rl_module")["rl_module"]
            weights = {
                "p0": {name: np.asarray(value) + np.float32(offset) for name, value in before["p0"].items()},
                "elsewhere": {},
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runner.set_weights(weights, None, seq_no)
            after = runner.get_state("rl_module")["rl_module"]
            taken.append({id_: not is_same(before[id_], after[id_]) for id_ in POLICIES})
        assert taken == [{"p0": is_taken, "p1": False}] * 2, seq_no
