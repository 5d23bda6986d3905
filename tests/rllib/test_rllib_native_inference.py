"""`sampler="fast"`: compiled code stands in for RLlib's modules and distributions, and gives the same but for draws."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.core.models.torch.heads import TorchMLPHead
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from scipy import stats
from torch import nn

from fastmarl.core.nets import dense_layers
from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.inference import draws as rllib_draws
from fastmarl.rllib.inference.inference import ExactInference
from fastmarl.rllib.inference.native import NativeActor
from fastmarl.rllib.store.layout import ObservationLayout

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

CPU = torch.device("cpu")
OBS = Box(-1, 1, (5,), np.float32)
CHOICE, PARTS, REAL = Discrete(4), MultiDiscrete([2, 5, 1, 3]), Box(-1, 1, (3,), np.float32)
Fast = MultiAgentEnvRunner.options(sampler="fast")


def make_module(
    action_space: gym.Space = CHOICE,
    *,
    kind: type = DefaultPPOTorchRLModule,
    obs_space: gym.Space = OBS,
    inference_only: bool = True,
    options: dict[str, Any] | None = None,
    **config: Any,
) -> Any:
    """With weights large enough for outputs to differ."""
    model = DefaultModelConfig(**{"fcnet_hiddens": [32, 16], **config})
    module = RLModuleSpec(
        module_class=kind,
        observation_space=obs_space,
        action_space=action_space,
        inference_only=inference_only,
        model_config={**vars(model), **options} if options else model,
    ).build()
    shake(module)
    return module


@torch.no_grad()
def shake(module: nn.Module, size: float = 1.0) -> None:
    for parameter in module.parameters():
        parameter.copy_(size * torch.randn_like(parameter))


def logits_of(module: Any, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module.forward_exploration({Columns.OBS: torch.from_numpy(obs).float()})["action_dist_inputs"].numpy()


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Up to 1e-5 of the largest sum or of one of its terms: where these cancel out, torch's own rows differ as much."""
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))


# Layers.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vf_share_layers": False, "inference_only": False},
        {"fcnet_activation": "relu", "head_fcnet_hiddens": [8, 4]},
        {"fcnet_activation": "elu", "head_fcnet_hiddens": [6], "head_fcnet_activation": "silu"},
        {"fcnet_activation": "linear", "fcnet_hiddens": [9]},
        {"fcnet_activation": nn.Tanh, "action_space": PARTS},
        {"fcnet_activation": nn.GELU, "fcnet_use_layernorm": True},
        {"action_space": REAL},
        {"action_space": REAL, "log_std_clip_param": 0.05},
        {"action_space": REAL, "free_log_std": True, "log_std_clip_param": 0.3},
        {"action_space": REAL, "free_log_std": True},
        {"action_space": Box(-1, 1, (), np.float32)},
        {"action_space": REAL, "kind": DefaultSACTorchRLModule, "options": {"twin_q": True}},
        {"action_space": Dict({"b": Discrete(3), "a": REAL})},
    ],
    ids=str,
)
def test_default_modules_give_the_same(options: dict, rng: np.random.Generator) -> None:
    module = make_module(**options)
    native = NativeActor(module, CPU)
    assert native.backend == "native"
    for n in (1, 3, 17, 70):
        obs = rng.normal(size=(n, 5)).astype(np.float32)
        assert native.reads(ObservationLayout.of(obs[0]), n)
        assert_close(native.forward(obs), logits_of(module, obs))  # test_dense.py is stricter
    assert_close(native.forward(obs.astype(np.float64)), logits_of(module, obs))


def test_bounds_are_read_at_every_call() -> None:
    module = make_module(REAL, log_std_clip_param=0.05)
    native, obs = NativeActor(module, CPU), np.ones((2, 5), np.float32)
    assert np.abs(native.forward(obs)[:, 3:]).max() <= np.float32(0.05)
    module.pi.log_std_clip_param_const.fill_(0.01)
    assert_close(native.forward(obs), logits_of(module, obs))
    with torch.no_grad():
        module.pi.net.mlp[-1].bias[3] = float("nan")
    assert np.isnan(native.forward(obs)[:, 3]).all()


class Noting(DefaultPPOTorchRLModule):
    pass


def with_other_strides(module: Any) -> None:
    layer = module.pi.net.mlp[0]
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({"kind": Noting}, None, "Noting is not one of DefaultPPOTorchRLModule"),
        ({"fcnet_activation": nn.CELU}, None, "no compiled kernel for layer CELU"),
        ({"use_lstm": True}, None, "TorchStatefulActorCriticEncoder"),
        ({"obs_space": Box(-1, 1, (8, 8, 1)), "conv_filters": [[4, 3, 2], [4, 3, 2]]}, None, "TorchCNNEncoder"),
        ({}, lambda module: module.double(), "is unknown, has hooks"),
        (
            {},
            lambda module: module.pi.net.mlp[0].register_forward_hook(lambda *_: None),
            "its Linear is unknown, has hooks",
        ),
        (
            {},
            lambda module: setattr(module.encoder, "_compiled_call_impl", lambda *_: None),
            "its TorchActorCriticEncoder is unknown, has hooks or is compiled",
        ),
        ({}, lambda module: setattr(module, "_forward_exploration", dict), "has a replaced _forward_exploration()"),
        ({}, lambda module: setattr(module.encoder, "forward", dict), "its TorchActorCriticEncoder"),
        ({}, with_other_strides, "not contiguous"),
    ],
)
def test_other_modules_are_left_to_torch(options: dict, change: Any, reason: str) -> None:
    module = make_module(**options)
    if change is not None:
        change(module)
    native = NativeActor(module, CPU)
    assert native.backend.startswith("torch: ") and reason in native.backend
    assert not native.reads(ObservationLayout.of(np.ones(5, np.float32)), 1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(DefaultPPOTorchRLModule, "_forward"), (TorchMLPHead, "_forward"), (nn.Tanh, "forward"), (nn.Linear, "__call__")],
)
def test_methods_replaced_on_a_class_are_seen(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    module = make_module()
    monkeypatch.setattr(kind, name, lambda self, *args, **kwargs: None)
    assert NativeActor(module, CPU).backend == f"torch: {kind.__name__}.{name}() has been replaced"


def test_other_places_and_observations_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NativeActor(make_module(), torch.device("meta")).backend == "torch: the device is meta"
    native = NativeActor(make_module(), CPU)
    for unfit in (np.ones(6, np.float32), np.ones(5, np.uint8), np.ones((5, 1), np.float32), {"a": np.ones(5)}, "text"):
        assert not native.reads(ObservationLayout.of(unfit), 1)
        assert native.backend == "torch: the observations are not float vectors of size 5"
    assert native.reads(ObservationLayout.of(np.ones(5)), 1) and native.backend == "native"
    monkeypatch.setattr(dense_layers, "BEST", "plain")
    native = NativeActor(make_module(), CPU)
    assert native.reads(ObservationLayout.of(np.ones(5)), 100) and not native.reads(
        ObservationLayout.of(np.ones(5)), 10**6
    )


# Distributions.


def draws_of(space: gym.Space, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    dist_cls = make_module(space).get_exploration_action_dist_cls()
    draws = rllib_draws.draws_of(dist_cls, np.random.default_rng(5))
    assert draws is not None
    return *draws.sample(logits), dist_cls.from_logits(torch.from_numpy(logits))


@pytest.mark.parametrize("space", [CHOICE, PARTS, REAL], ids=str)
def test_log_probabilities_are_rllibs(space: gym.Space, rng: np.random.Generator) -> None:
    logits = logits_of(make_module(space), rng.normal(size=(200, 5)).astype(np.float32)).copy()
    logits[:, 3:] = np.clip(
        logits[:, 3:], -2, 2
    )  # where deviations are tiny, so are the digits that are left of actions
    actions, logp, distribution = draws_of(space, logits)
    want = distribution.logp(torch.from_numpy(actions)).numpy()
    assert logp.dtype == want.dtype and logp.shape == want.shape and len(actions) == 200
    np.testing.assert_allclose(logp, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", [CHOICE, PARTS, REAL], ids=str)
def test_likeliest_actions_are_rllibs(space: gym.Space, rng: np.random.Generator) -> None:
    logits = logits_of(make_module(space), rng.normal(size=(50, 5)).astype(np.float32))
    dist_cls = make_module(space).get_inference_action_dist_cls()
    draws = rllib_draws.draws_of(dist_cls, rng)
    assert draws is not None
    actions = draws.likeliest(logits)
    distribution = dist_cls.from_logits(torch.from_numpy(logits)).to_deterministic()
    want = distribution.sample()
    assert np.array_equal(actions, want.numpy())


def test_choices_have_the_probabilities_of_their_logits() -> None:
    logits = np.array([0.5, -1.0, 2.0, -0.3], np.float32)
    actions, _, _ = draws_of(CHOICE, np.tile(logits, (40_000, 1)))
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    assert stats.chisquare(np.bincount(actions, minlength=4), 40_000 * p).pvalue > 1e-6


def test_parts_of_choices_have_the_probabilities_of_their_logits() -> None:
    logits = np.linspace(-1, 1, 11, dtype=np.float32)
    actions, _, _ = draws_of(PARTS, np.tile(logits, (40_000, 1)))
    assert actions.shape == (40_000, 4)
    begin = 0
    for part, size in enumerate(PARTS.nvec):
        p = np.exp(logits[begin : begin + size].astype(float))
        counts = np.bincount(actions[:, part], minlength=size)
        assert size == 1 or stats.chisquare(counts, 40_000 * p / p.sum()).pvalue > 1e-6
        begin += size
    assert abs(np.corrcoef(actions[:, 0], actions[:, 1])[0, 1]) < 0.03


def test_real_actions_have_their_means_and_deviations() -> None:
    logits = np.array([1.0, -2.0, 0.5, 0.3, -1.0, 0.0], np.float32)
    actions, _, _ = draws_of(REAL, np.tile(logits, (20_000, 1)))
    for column, mean, log_std in zip(actions.T, logits[:3], logits[3:], strict=True):
        assert stats.kstest((column - mean) / np.exp(log_std), "norm").pvalue > 1e-6


class Choosing(TorchRLModule):
    """Chooses actions itself, so that their distribution is not needed."""

    def setup(self) -> None:
        self.layer = nn.Linear(5, 4)

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTIONS: self.layer(batch[Columns.OBS]).argmax(-1)}

    def get_exploration_action_dist_cls(self) -> Any:
        raise NotImplementedError


class Recurring(Choosing):
    """Its batches have an axis of time."""

    def get_initial_state(self) -> dict:
        return {"h": np.zeros(2, np.float32)}

    def is_stateful(self) -> bool:
        return True

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch[Columns.OBS]), Columns.STATE_OUT: batch[Columns.STATE_IN]}

    def get_exploration_action_dist_cls(self) -> Any:
        return TorchCategorical


@pytest.mark.parametrize("kind", [Choosing, Recurring])
def test_modules_of_other_classes_act(kind: type, rng: np.random.Generator) -> None:
    spec = RLModuleSpec(module_class=kind, observation_space=OBS, action_space=CHOICE)
    multi = MultiRLModuleSpec(rl_module_specs={"p0": spec}).build()
    inference = ExactInference(multi, None, rng)
    obs = torch.ones(3, 5)
    batch = {"obs": obs[:, None], "state_in": {"h": torch.ones(3, 2)}} if kind is Recurring else {"obs": obs}
    for explore in (True, False) if kind is Choosing else (True,):
        outputs = inference.answer({"p0": batch}, explore=explore, t=0)["p0"]
        assert outputs["actions"].shape == (3,) and outputs["actions"].dtype == np.int32
    if kind is Recurring:
        logits, logp = outputs["action_dist_inputs"], outputs["action_logp"]
        want = torch.log_softmax(torch.from_numpy(logits), -1).numpy()[np.arange(3), outputs["actions"]]
        np.testing.assert_allclose(logp, want, rtol=1e-5)


def test_rows_that_were_promised_run_by_torch_if_the_module_has_changed_since(rng: np.random.Generator) -> None:
    """A module is replaced in the middle of a call, which is when the others are checked again."""
    spec = RLModuleSpec(module_class=Choosing, observation_space=OBS, action_space=CHOICE)
    multi = MultiRLModuleSpec(rl_module_specs={"b": spec}).build()
    multi.add_module("a", make_module())
    inference, obs = ExactInference(multi, None, rng), np.ones((2, 5), np.float32)
    assert inference.reads("a", ObservationLayout.of(obs[0]), 2)
    multi.add_module("b", spec.build(), override=True)
    multi["a"].pi.net.mlp[0].register_forward_hook(lambda layer, inputs, output: output + 1)
    answers = inference.answer({"a": obs, "b": {"obs": torch.ones(2, 5)}}, explore=False, t=0)
    assert_close(answers["a"]["action_dist_inputs"], logits_of(multi["a"], obs))


class Scribbling(Choosing):
    """Writes to its input, as modules may."""

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        batch["obs"].zero_()
        return super()._forward(batch, **kwargs)


def test_a_module_that_came_after_a_batch_was_made_gets_a_copy() -> None:
    """The one before only reads: its batch may be memory of the record."""
    spec = RLModuleSpec(module_class=Scribbling, observation_space=OBS, action_space=CHOICE)
    multi = MultiRLModuleSpec(rl_module_specs={}).build()
    multi.add_module("a", make_module())
    inference, obs = ExactInference(multi, None), np.ones((2, 5), np.float32)
    assert inference.leaves_input_untouched("a")
    multi.add_module("a", spec.build(), override=True)
    inference.answer({"a": {"obs": torch.from_numpy(obs)}}, explore=False, t=0)
    assert obs.all()
    assert not inference.leaves_input_untouched("a")


def replace_data(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)


CHANGES: dict[str, Any] = {
    "shared memory": lambda module: module.share_memory(),
    "another parameter": lambda module: setattr(module.pi.net.mlp[0], "weight", nn.Parameter(torch.randn(6, 16))),
    "other memory": replace_data,
    "another layer": lambda module: module.encoder.encoder.net.mlp.__setitem__(2, nn.Linear(32, 16)),
    "another bound": lambda module: setattr(module.pi, "log_std_clip_param_const", torch.tensor([0.01])),
    "a parametrization": lambda module: nn.utils.parametrizations.weight_norm(module.pi.net.mlp[0]),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_and_layers_that_change_are_found_before_the_next_pass(
    change: Any, is_exact: bool, rng: np.random.Generator
) -> None:
    spec = make_module(REAL, log_std_clip_param=0.05)
    multi = MultiRLModuleSpec(rl_module_specs={}).build()
    multi.add_module("a", spec)
    inference, obs = ExactInference(multi, None, None if is_exact else rng), np.ones((2, 5), np.float32)
    batch: Any = {"obs": torch.ones(2, 5)} if is_exact else obs
    inference.answer({"a": batch}, explore=False, t=0)
    change(multi["a"])
    got = inference.answer({"a": batch}, explore=False, t=0)["a"]["action_dist_inputs"]
    assert_close(got, logits_of(multi["a"], obs))


# Runners.


def by_number(agent_id: int, episode: Any, **kwargs: Any) -> str:
    return f"p{agent_id % 2}"


def config_of(env: Any = MultiAgentCartPole, *, explore: bool = True, envs: int = 2, **model: Any) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env, env_config={"num_agents": 3})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=by_number)
        .rl_module(model_config=DefaultModelConfig(**{"fcnet_hiddens": [32, 32], **model}))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs, explore=explore)
        .debugging(seed=3)
    )


def make_pair(config: PPOConfig, kind: type = Fast) -> tuple[Any, Any]:
    """RLlib's runner and ours, with equal weights; not so large that environments go to chaos."""
    theirs, ours = RLlibEnvRunner(config=config), kind(config=config)
    theirs.module.foreach_module(lambda _, module: shake(module, 0.2))
    ours.set_state({"rl_module": theirs.module.get_state(), "weights_seq_no": 1})
    theirs._weights_seq_no = 1
    return theirs, ours


def columns_of(episode: MultiAgentEpisode) -> dict[tuple, Any]:
    columns: dict[tuple, Any] = {("env",): (episode.env_t_started, episode.env_t, episode.is_terminated)}
    for agent_id, part in episode.agent_episodes.items():
        own = {name: getattr(part, name) for name in ("observations", "actions", "rewards")}
        for name, column in {**own, **part.extra_model_outputs}.items():
            columns[agent_id, part.module_id, name] = column.data
    return columns


@pytest.mark.parametrize(
    "options",
    [{}, {"vf_share_layers": False}, {"env": MultiAgentPendulum}, {"env": MultiAgentPendulum, "free_log_std": True}],
    ids=str,
)
def test_without_exploration_episodes_are_rllibs(options: dict) -> None:
    theirs, ours = make_pair(config_of(**options, explore=False))
    for _ in range(2):
        want, got = (runner.sample(num_timesteps=120) for runner in (theirs, ours))
        assert ours.inference_backends == {"p0": "native", "p1": "native"}
        assert len(want) == len(got) and all(isinstance(episode, MultiAgentEpisode) for episode in got)
        for one, other in zip(map(columns_of, want), map(columns_of, got), strict=True):
            assert list(one) == list(other)
            for key, column in one.items():
                if isinstance(column, np.ndarray):
                    assert (column.dtype, column.shape) == (other[key].dtype, other[key].shape), key
                    np.testing.assert_allclose(other[key], column, rtol=1e-5, atol=1e-4, err_msg=str(key))
                else:
                    assert column == other[key], key


def form_of(episodes: list[MultiAgentEpisode]) -> dict[tuple, set]:
    """(agent, module, column) -> dtypes and shapes of a row."""
    forms: dict[tuple, set] = {}
    for episode in episodes:
        for key, column in columns_of(episode).items():
            if isinstance(column, np.ndarray):
                forms.setdefault(key, set()).add((column.dtype, column.shape[1:]))
    return forms


@pytest.mark.parametrize("env", [MultiAgentCartPole, MultiAgentPendulum])
def test_with_exploration_columns_and_metrics_are_rllibs(env: Any) -> None:
    theirs, ours = make_pair(config_of(env))
    want, got = (runner.sample(num_episodes=2) for runner in (theirs, ours))
    assert form_of(want) == form_of(got) and ours.inference_backends == {"p0": "native", "p1": "native"}
    want, got = (runner.sample(num_timesteps=300) for runner in (theirs, ours))
    assert form_of(want) == form_of(got)
    assert 300 <= sum(map(len, got)) <= 301 and 300 <= sum(map(len, want)) <= 301
    want, got = (runner.get_metrics() for runner in (theirs, ours))
    assert set(want) - set(got) == {"timers", "connector_pipeline_timer"}  # 27
    assert set(got) - set(want) == {"num_accelerated_env_runners"}


def test_recorded_draws_have_the_recorded_probabilities() -> None:
    _, ours = make_pair(config_of(envs=16))
    episodes = ours.sample(num_timesteps=6000)
    drawn, expected = np.zeros(2), np.zeros(2)
    for episode in episodes:
        for part in episode.agent_episodes.values():
            logits = part.get_extra_model_outputs("action_dist_inputs").astype(float)
            actions, logp = part.get_actions(), part.get_extra_model_outputs("action_logp")
            log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            np.testing.assert_allclose(logp, log_p[np.arange(len(actions)), actions], rtol=1e-5, atol=1e-5)
            drawn += np.bincount(actions, minlength=2)
            expected += np.exp(log_p).sum(0)
    assert abs(drawn - expected).max() < 4 * np.sqrt(drawn.sum()) / 2


def test_seeds_give_the_same_again() -> None:
    runs = [Fast(config=config_of()).sample(num_timesteps=60) for _ in range(2)]
    for one, other in zip(*(map(columns_of, episodes) for episodes in runs), strict=True):
        assert all(np.array_equal(column, other[key]) for key, column in one.items())


def test_weights_reach_it() -> None:
    """Those that are set, trained in place, or replaced by other tensors."""
    theirs, ours = make_pair(config_of(explore=False, envs=1))
    module = ours.module["p0"]

    def train() -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        module._forward({"obs": torch.ones(1, 4)})["action_dist_inputs"].square().sum().backward()
        optimizer.step()

    def replace() -> None:
        layer = module.pi.net.mlp[0]
        layer.bias = nn.Parameter(layer.bias.detach() + 1.0)

    def set_state() -> None:
        theirs.module.foreach_module(lambda _, part: shake(part))
        ours.set_state({"rl_module": theirs.module.get_state(), "weights_seq_no": 2})

    for change in (train, replace, set_state):
        ours.sample(num_timesteps=5)
        change()
        episode = ours.sample(num_timesteps=5)[-1]
        part = episode.agent_episodes[0]
        obs, got = part.get_observations()[:-1], part.get_extra_model_outputs("action_dist_inputs")
        assert_close(got, logits_of(module, obs))
        assert ours.inference_backends["p0"] == "native"


def test_modules_that_it_cannot_run_go_through_torch() -> None:
    """Beside a module that it can run, in one MultiRLModule; a hook that comes later is seen, too."""
    theirs, ours = make_pair(config_of(explore=False))
    ours.sample(num_timesteps=20)
    seen: list[int] = []
    hook = ours.module["p1"].pi.net.mlp[0].register_forward_hook(lambda layer, inputs, output: seen.append(len(output)))
    theirs.sample(num_timesteps=20)
    want, got = (runner.sample(num_timesteps=40) for runner in (theirs, ours))
    assert seen and ours.inference_backends["p0"] == "native" and "hooks" in ours.inference_backends["p1"]
    for one, other in zip(map(columns_of, want), map(columns_of, got), strict=True):
        for key, column in one.items():
            if isinstance(column, np.ndarray):
                np.testing.assert_allclose(other[key], column, rtol=1e-5, atol=1e-4, err_msg=str(key))
    hook.remove()
    ours.sample(num_timesteps=20)
    assert ours.inference_backends == {"p0": "native", "p1": "native"}


def test_inference_backends_are_reported() -> None:
    exact = MultiAgentEnvRunner(config=config_of())
    assert exact.inference_backends == {}
    exact.sample(num_timesteps=2)
    assert exact.inference_backends == dict.fromkeys(("p0", "p1"), "torch: samples must match RLlib's")
    recurrent = Fast(config=config_of(use_lstm=True, lstm_cell_size=4))
    recurrent.sample(num_timesteps=2)
    assert all("TorchStatefulActorCriticEncoder" in backend for backend in recurrent.inference_backends.values())


def test_nan_is_an_error_as_under_rllib() -> None:
    _, ours = make_pair(config_of())
    with torch.no_grad():
        ours.module["p1"].pi.net.mlp[-1].bias.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="probability tensor") as error:
        ours.sample(num_timesteps=10)
    assert "module 'p1'" in error.value.__notes__[0]
