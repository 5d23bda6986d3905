"""`bootstrap_values()`: what a module says of trajectories' final observations."""

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.errors import BatchError, ModuleOutputError
from fastmarl.learning import ValueNorm, bootstrap_values, make_value_fn

OUTPUTS = ["vf_preds", "state_out"]


def make_runner(**model_config):
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        num_envs_per_env_runner=3,
        rollout_fragment_length=10,  # of 25 steps, so that chunks begin and end within episodes
        model_config={"fcnet_hiddens": [8], "lstm_cell_size": 5, **model_config},
        seed=0,
    )
    return fastmarl.MultiAgentEnvRunner(config)


class ByHand:
    """Steps a module through trajectories, one observation at a time, as they come chunk after chunk."""

    def __init__(self, module):
        self._module = module
        self._states = {}

    def last_values(self, batch):
        values, begin = [], 0
        for s, length in enumerate(batch["seq_lens"]):
            key = batch["eps_id"][s], batch["agent_id"][s]
            state = self._states.get(key, map_struct(torch.as_tensor, self._module.get_initial_state()))
            for obs in batch["obs"][begin : begin + length]:
                state = self._step(obs, state)["state_out"]
                state = map_struct(lambda leaf: leaf[0], state)
            self._states[key] = state
            values.append(self._step(batch["final_obs"][s], state)["vf_preds"].item())
            begin += length
        return np.array(values, np.float32)

    def _step(self, obs, state):
        inputs = {"obs": torch.as_tensor(obs)[None, None], "state_in": map_struct(lambda leaf: leaf[None], state)}
        with torch.no_grad():
            return self._module.forward_train(inputs)


@pytest.mark.parametrize("vf_share_layers", [True, False])
def test_a_recurrent_module_is_asked_with_its_states(vf_share_layers):
    with make_runner(use_lstm=True, vf_share_layers=vf_share_layers) as runner:
        module = runner.module["default_policy"]
        by_hand = ByHand(module)
        for _ in range(6):
            batch = columns(runner.sample(), outputs=OUTPUTS)["default_policy"]
            values = bootstrap_values(module, batch)
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, by_hand.last_values(batch), rtol=1e-4, atol=1e-6)
            no_state = {**batch, "state_out": map_struct(np.zeros_like, batch["state_out"])}
            assert not np.allclose(bootstrap_values(module, no_state), values, rtol=1e-4)
            add_gae(batch, gamma=0.9, lambda_=0.9, last_values=values)
            last = batch["seq_lens"].cumsum() - 1
            expected = batch["rewards"] + 0.9 * np.where(batch["terminateds"][last], 0, values).repeat(
                batch["seq_lens"]
            )
            np.testing.assert_allclose(batch["value_targets"][last], expected[last], rtol=1e-4)


def test_values_are_those_of_make_value_fn_and_normalised_if_asked():
    norm = ValueNorm()
    norm.update(torch.tensor([10.0, 30.0]))
    with make_runner() as runner, make_runner(use_lstm=True) as recurrent:
        module, with_memory = runner.module["default_policy"], recurrent.module["default_policy"]
        batch = columns(runner.sample())["default_policy"]
        of_memory = columns(recurrent.sample(), outputs=OUTPUTS)["default_policy"]
    for value_norm in (None, norm):
        want = make_value_fn(module, value_norm)(batch["final_obs"])
        assert np.array_equal(bootstrap_values(module, batch, value_norm), want)
    want = bootstrap_values(with_memory, of_memory) * 10 + 20
    np.testing.assert_allclose(bootstrap_values(with_memory, of_memory, norm), want, rtol=1e-5)


def test_errors_name_missing_outputs_and_methods():
    with make_runner(use_lstm=True) as runner:
        module = runner.module["default_policy"]
        batch = columns(runner.sample())["default_policy"]
        with pytest.raises(
            BatchError, match=r"needs 'state_out' of DefaultRLModule, .*outputs=\[\.\.\., 'state_out'\]"
        ):
            bootstrap_values(module, batch)
    silent = fastmarl.RLModuleSpec(
        observation_space=module.observation_space,
        action_space=module.action_space,
        inference_only=True,
        model_config={"fcnet_hiddens": [8]},
    ).build()
    with pytest.raises(ModuleOutputError, match=r"bootstrap_values\(\) needs 'vf_preds'"):
        bootstrap_values(silent, batch)
