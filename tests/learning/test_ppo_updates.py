"""PPOLearner: compiled updates against those by autograd, what is left to autograd, and what goes wrong."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.ppo import BOX_ACTIONS, DISCRETE, MASKED, NAMES, VECTOR, N, both, make_batch, make_module
from torch import nn

import fastmarl
from fastmarl.batches import add_gae, columns, sequences
from fastmarl.errors import BatchError, ConfigError
from fastmarl.learning import PPOLearner, bootstrap_values, make_value_fn, ppo_loss, to_tensors
from fastmarl.modules import RLModule


def assert_same_updates(module, batches, **options):
    ours, theirs = both(module, **options)
    for batch in batches:
        before = copy.deepcopy(batch)
        got, want = ours.update(batch), theirs.update(batch)
        assert ours.backend == "compiled"
        assert theirs.backend == "autograd: compiled is False"
        assert got == pytest.approx(want, rel=1e-3, abs=1e-4, nan_ok=True)
        torch.testing.assert_close(batch, before, equal_nan=True)
    # Adam's first steps have a gradient's sign, which rounding decides where it is nearly 0.
    off = (ours.parameters - theirs.parameters).abs()
    assert off.median() < 1e-5
    assert off.mean() < 1e-4


# Modules that are compiled.


class Separate(RLModule):
    def setup(self):
        self.pi = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 7), nn.ReLU()), nn.Linear(7, 4)
        )
        self.vf = nn.Sequential(nn.Linear(6, 5), nn.ELU(0.5), nn.Linear(5, 1))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["obs"]), "vf_preds": self.vf(batch["obs"])[:, 0]}


class Shared(RLModule):
    """With functions in the place of modules."""

    def setup(self):
        self.first, self.second, self.pi, self.vf = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4), nn.Linear(9, 1)

    def _forward_train(self, batch, **kwargs):
        features = torch.tanh(self.first(batch["obs"].float()))
        features = nn.functional.gelu(self.second(features))
        return {
            "action_dist_inputs": self.pi(features),
            "vf_preds": self.vf(features).squeeze(-1),
            "embeddings": features,
        }

    _forward = _forward_exploration = _forward_train


class Gaussian(RLModule):
    def setup(self):
        self.pi, self.vf = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 2)), nn.Linear(6, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def _forward(self, batch, **kwargs):
        means = self.pi(batch["obs"])
        logits = torch.cat([means, self.log_std.expand_as(means)], -1)
        return {"action_dist_inputs": logits, "vf_preds": self.vf(batch["obs"])[..., 0]}


class Plain(nn.Module):
    """No RLModule; knows nothing of masks."""

    def __init__(self, key=None):
        super().__init__()
        self.key = key
        self.pi, self.vf = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(6, 1)

    def forward(self, batch):
        obs = batch["obs"] if self.key is None else batch["obs"][self.key]
        return {"action_dist_inputs": self.pi(obs), "vf_preds": self.vf(obs).squeeze(1)}


def adapted(key=None, obs=VECTOR):
    torch.manual_seed(3)
    return fastmarl.core.modules.base.as_rl_module(Plain(key), obs, DISCRETE)


COMPILED = {
    "default": make_module,
    "own layers for values": lambda: make_module(vf_share_layers=False, fcnet_activation="relu"),
    "heads": lambda: make_module(head_fcnet_hiddens=[7], head_fcnet_activation="silu", fcnet_activation="gelu"),
    "no hidden layers": lambda: make_module(fcnet_hiddens=[]),
    "MultiDiscrete": lambda: make_module(actions=gym.spaces.MultiDiscrete([3, 1, 5])),
    "grid of MultiDiscrete": lambda: make_module(actions=gym.spaces.MultiDiscrete([[2, 3], [4, 2]])),
    "Box": lambda: make_module(actions=BOX_ACTIONS),
    "Box, free scales": lambda: make_module(actions=gym.spaces.Box(-1, 1, (2, 2), np.float32), free_log_std=True),
    "bytes": lambda: make_module(obs=gym.spaces.Box(0, 255, (3, 2), np.uint8)),
    "numbers": lambda: make_module(obs=gym.spaces.Discrete(5), vf_share_layers=False),
    "nested": lambda: make_module(obs=gym.spaces.Dict({"a": VECTOR, "b": gym.spaces.MultiDiscrete([3, 2])})),
    "mask in the observations": lambda: make_module(obs=MASKED),
    "separate": lambda: make_module(Separate),
    "shared": lambda: make_module(Shared),
    "Gaussian": lambda: make_module(Gaussian, actions=BOX_ACTIONS),
    "torch module": adapted,
    "torch module, masks by the learner": lambda: adapted("observation", MASKED),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_updates_are_close(name):
    module = COMPILED[name]()
    assert_same_updates(module, [make_batch(module, seed=seed) for seed in range(3)])


OPTIONS = [
    {"kl_coeff": 0.5},
    {"vf_clip": 0.5, "clip": 0.05},
    {"entropy_coeff": 0.0, "vf_coeff": 1.5, "max_grad_norm": None},
    {"vf_coeff": 0.0},
    {"minibatch_size": 64, "epochs": 1},
    {"minibatch_size": 1000},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options):
    module = make_module(vf_share_layers=False)
    batch = make_batch(module)
    if "kl_coeff" in options:
        batch["action_dist_inputs"] = torch.randn(N, 4)
    if options.get("vf_coeff") == 0:
        del batch["value_targets"]
    assert_same_updates(module, [batch], **options)


def test_loss_masks_and_recorded_action_masks():
    module = make_module()
    batch = make_batch(module)
    batch["loss_mask"] = torch.arange(N) % 3 != 1
    batch["action_mask"] = torch.ones(N, 4, dtype=torch.int8)
    batch["action_mask"].scatter_(1, ((batch["actions"] + 1) % 4)[:, None], 0)
    assert_same_updates(module, [batch])
    for name in ("advantages", "value_targets", "action_logp"):
        batch[name] = batch[name].masked_fill(~batch["loss_mask"], torch.nan)
    learner, _ = both(module)
    assert all(map(math.isfinite, learner.update(batch).values()))


def test_frozen_and_unused_parameters():
    class Unused(Separate):
        def setup(self):
            super().setup()
            self.other = nn.Linear(6, 6)

    module = make_module(Unused)
    module.pi[0].weight.requires_grad_(False)
    assert_same_updates(module, [make_batch(module)])


@pytest.mark.parametrize("compiled", [True, False])
def test_parameters_without_a_gradient_stay_with_their_moments(compiled):
    module = make_module(Separate)
    learner = PPOLearner(module, compiled=compiled)
    learner.update(make_batch(module))
    learner.vf_coeff = 0.0
    moments = learner.optimizer.state[learner.parameters]
    kept = [learner.parameters.detach(), moments["exp_avg"], moments["exp_avg_sq"]]
    before, n_pi = [each.clone() for each in kept], sum(each.numel() for each in module.pi.parameters())
    learner.update(make_batch(module, seed=1))
    for now, then in zip(kept, before, strict=True):
        assert torch.equal(now[n_pi:], then[n_pi:])
        assert not torch.equal(now[:n_pi], then[:n_pi])


# The rest.


def test_a_module_that_changes_is_noticed():
    """A pass shows one branch only."""

    class Switch(Separate):
        is_on = False

        def _forward(self, batch, **kwargs):
            return super()._forward(batch if not self.is_on else {"obs": -batch["obs"]})

    module = make_module(Switch)
    learner = PPOLearner(module)
    learner.update(make_batch(module))
    assert learner.backend == "compiled"
    module.is_on = True
    learner.update(make_batch(module))
    assert learner.backend.startswith("autograd: its forward pass has")
    module.is_on = False
    learner.update(make_batch(module))
    assert learner.backend == "compiled"


@pytest.mark.parametrize("actions", [DISCRETE, gym.spaces.MultiDiscrete([4, 3])], ids=["one", "two"])
def test_an_almost_certain_policy_is_compiled(actions):
    """Rounding, of numbers of any size, decides the gradient of an action with a probability of nearly 1."""
    images = gym.spaces.Box(0, 255, (300,), np.uint8)
    module = make_module(obs=images, actions=actions, vf_share_layers=False, fcnet_hiddens=[])
    with torch.no_grad():
        module.pi.weight *= 0.01
        module.pi.bias[[0, 4][: 1 + (actions is not DISCRETE)]] = 14
    batch = make_batch(module)
    assert not batch["actions"].any()
    learner = PPOLearner(module, vf_coeff=0.0)
    learner.update(batch)
    assert learner.backend == "compiled"


def test_weights_that_are_set_are_used():
    module = make_module()
    batch = make_batch(module)
    ours, theirs = both(module)
    other = make_module()
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    for learner in (ours, theirs):
        learner.update(batch)
        learner.module.set_state(other.get_state())
        learner.update(batch)
    torch.testing.assert_close(ours.parameters.detach(), theirs.parameters.detach(), rtol=1e-3, atol=1e-4)


def test_resuming():
    module = make_module()
    batches = [make_batch(module, seed=seed) for seed in range(4)]
    whole, _ = both(module)
    for batch in batches:
        whole.update(batch)
    first, second = both(module)[0], None
    for batch in batches[:2]:
        first.update(batch)
    second = PPOLearner(make_module(), lr=0.3, epochs=3, generator=first.generator)
    second.module.set_state(first.module.get_state())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for batch in batches[2:]:
        second.update(batch)
    assert torch.equal(whole.parameters, second.parameters)


def recurrent_batch():
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        num_envs_per_env_runner=3,
        rollout_fragment_length=30,
        model_config={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4},
        seed=0,
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        module, episodes = runner.module["default_policy"], runner.sample()
        flat = columns(episodes, outputs=["vf_preds", "state_out"])["default_policy"]
        add_gae(flat, gamma=0.9, lambda_=0.9, last_values=bootstrap_values(module, flat))
        extra = {"default_policy": {name: flat[name] for name in ("advantages", "value_targets")}}
        batch = sequences(episodes, max_seq_len=7, outputs=["action_logp"], extra_columns=extra)["default_policy"]
    return module, to_tensors(batch, [*NAMES, "state_in", "loss_mask"])


def test_sequences():
    module, batch = recurrent_batch()
    want = {}
    ppo_loss(module, batch, stats=want)
    found = PPOLearner(module, epochs=1, num_minibatches=1).update(batch)
    assert {key: found[key] for key in want} == pytest.approx({key: float(want[key]) for key in want}, rel=1e-4)
    assert_same_updates(module, [batch], minibatch_size=5)


@pytest.mark.parametrize("env", ["fastmarl.gridworld", "fastmarl.simple_spread"])
def test_nothing_is_clipped_before_the_first_step(env):
    """The learner sees the distributions from which the actions were drawn, under their masks."""
    config = fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=8, rollout_fragment_length=40, seed=1)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        module = runner.module["default_policy"]
        batch = columns(runner.sample(), outputs=["action_logp"])["default_policy"]
        add_gae(batch, gamma=0.9, lambda_=0.9, value_fn=make_value_fn(module))
        learner = PPOLearner(module, epochs=1, num_minibatches=1)
        stats = learner.update(to_tensors(batch, NAMES))
    assert learner.backend == "compiled"
    assert stats["clip_fraction"] == 0
    assert abs(stats["kl"]) < 1e-6


def filled(column, value):
    return column.index_fill(0, torch.tensor([7]), value)


def bad_batch(name, value):
    return lambda batch: {**batch, name: value(batch[name])}


BAD = {
    "missing": (lambda batch: {key: batch[key] for key in NAMES[:3]}, "columns"),
    "no columns": (lambda batch: {}, "columns"),
    "no rows": (lambda batch: {key: column[:0] for key, column in batch.items()}, "with rows"),
    "other number of rows": (bad_batch("advantages", lambda column: column[1:]), "the same number of rows"),
    "other shape": (bad_batch("advantages", lambda column: column[:, None]), "one number for each row"),
    "text": (bad_batch("obs", lambda column: np.full(column.shape, "1")), "the column 'obs' can't be converted"),
    "actions too large": (bad_batch("actions", lambda column: column + 3), "actions >= 0"),
    "negative actions": (bad_batch("actions", lambda column: column - 4), "actions >= 0"),
    "more actions": (bad_batch("actions", lambda column: torch.stack([column, column], 1)), r"shape \(210,\)"),
    "a mask that is no bool": (lambda batch: {**batch, "loss_mask": torch.ones(N)}, "bool"),
    "a mask of another size": (lambda batch: {**batch, "action_mask": torch.ones(N, 5)}, "mask"),
    "NaN": (bad_batch("advantages", lambda column: filled(column, torch.nan)), "'advantages' in row 7"),
    "infinity": (bad_batch("obs", lambda column: filled(column, torch.inf)), "'obs' in row 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_batches(name):
    spoil, message = BAD[name]
    module = make_module()
    learner = PPOLearner(module, num_minibatches=1)
    batch = make_batch(module)
    learner.update(batch)
    before, moments = learner.parameters.detach().clone(), copy.deepcopy(learner.optimizer.state_dict())
    with pytest.raises(BatchError, match=message):
        learner.update(spoil(batch))
    assert torch.equal(learner.parameters, before)
    torch.testing.assert_close(learner.optimizer.state_dict(), moments)
    learner.update(batch)  # it goes on
    assert learner.backend == "compiled"


@pytest.mark.parametrize("options", [{"epochs": 0}, {"num_minibatches": 0}, {"minibatch_size": 0}], ids=str)
def test_bad_options(options):
    with pytest.raises(ConfigError, match="at least 1"):
        PPOLearner(make_module(), **options)
    learner = PPOLearner(make_module())
    vars(learner).update(options)
    with pytest.raises(ConfigError, match="at least 1"):
        learner.update(make_batch(learner.module))
