"""Action masks in learning: the loss sees the distribution from which the actions were drawn."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.masked_env import FORMS, PLACES, SPACES, LateMaskEnv, MaskedEnv, N
from torch import nn

import fastmarl
from fastmarl.batches import add_gae, add_vtrace, columns, sequences
from fastmarl.connectors import EnvToModuleConnector, FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.core.modules.base import as_rl_module
from fastmarl.core.spaces.columns import Recorded
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.errors import ActionMaskError, BatchError
from fastmarl.learning import bootstrap_values, make_value_fn, minibatches, ppo_loss, to_tensors
from fastmarl.modules import DefaultRLModule, RLModule, RLModuleSpec

NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]
SMALL = {"fcnet_hiddens": [8]}
LSTM = {**SMALL, "use_lstm": True, "lstm_cell_size": 4}


def seen(obs):
    """All of an observation, in a row."""
    leaves = [leaf for _, leaf in flatten_struct(obs)]
    first = leaves[0].dim() - 1
    return torch.cat([leaf.flatten(first).float() for leaf in leaves], -1)


def masked(logits, obs, value):
    """With this value where the observation's mask rules a choice out, if there is one."""
    masks = [obs[key] for key in PLACES if isinstance(obs, dict) and key in obs]
    return logits if value is None or not masks else logits.masked_fill(seen(masks[0]) == 0, value)


class Plain(nn.Module):
    """Knows nothing of masks, or masks by itself with this value."""

    def __init__(self, own=None):
        super().__init__()
        self.own = own
        self.pi, self.vf = nn.LazyLinear(N), nn.LazyLinear(1)

    def forward(self, batch):
        features = seen(batch["obs"])
        logits = masked(self.pi(features) * 3, batch["obs"], self.own)
        return {"action_dist_inputs": logits, "vf_preds": self.vf(features).squeeze(-1)}


class Recurrent(nn.Module):
    def __init__(self, own=None):
        super().__init__()
        self.own = own
        self.into = nn.LazyLinear(4)
        self.gru, self.pi, self.vf = nn.GRU(4, 4, batch_first=True), nn.Linear(4, N), nn.Linear(4, 1)

    def get_initial_state(self):
        return {"h": torch.zeros(4)}

    def forward(self, batch):
        features, h = self.gru(self.into(seen(batch["obs"])), batch["state_in"]["h"].unsqueeze(0))
        logits = masked(self.pi(features) * 3, batch["obs"], self.own)
        values = self.vf(features).squeeze(-1)
        return {"action_dist_inputs": logits, "vf_preds": values, "state_out": {"h": h.squeeze(0)}}


class Own(RLModule):
    """Exploration, inference and training by methods of their own."""

    masks_itself = False

    def setup(self):
        self.net = Plain(torch.finfo(torch.float32).min if self.masks_itself else None)

    def _forward_exploration(self, batch, **kwargs):
        return self.net(batch)

    _forward_inference = _forward_train = _forward_exploration


class OwnMasks(Own):
    masks_itself = masks_actions = True


class EpsilonGreedy(DefaultRLModule):
    """Any action may be drawn, whatever the mask that `_forward()` has applied."""

    def _forward_exploration(self, batch, **kwargs):
        outputs = self._forward(batch)
        values = outputs["action_dist_inputs"]
        greedy = nn.functional.one_hot(values.argmax(-1), N)
        return {**outputs, "action_dist_inputs": torch.log(0.1 * greedy + 0.9 / N)}

    def _forward_train(self, batch, **kwargs):
        return self._forward_exploration(batch)


MODULES = {
    "default": {"model_config": SMALL},
    "default, separate": {"model_config": {**SMALL, "vf_share_layers": False}},
    "default, LSTM": {"model_config": LSTM},
    "default, LSTMs": {"model_config": {**LSTM, "vf_share_layers": False}},
    "plain": Plain,
    "plain, masks with -inf": lambda: Plain(-torch.inf),
    "plain, masks finitely": lambda: Plain(torch.finfo(torch.float32).min),
    "recurrent": Recurrent,
    "recurrent, masks with -inf": lambda: Recurrent(-torch.inf),  # padding as well, where nothing is legal
    "epsilon-greedy": {"rl_module_spec": RLModuleSpec(EpsilonGreedy), "model_config": SMALL},
    "RLModule": {"rl_module_spec": RLModuleSpec(Own)},
    "RLModule, masks": {"rl_module_spec": RLModuleSpec(OwnMasks)},
}


def runner_of(module="plain", env=MaskedEnv, space="discrete", place="action_mask", form="binary", **options):
    torch.manual_seed(0)
    made = MODULES.get(module, module)
    options |= {"policies": {"all": made()}} if callable(made) else {"policies": ["all"], **made}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(
        env=env,
        env_config={"space": space, "place": place, "form": form},
        num_envs_per_env_runner=2,
        seed=0,
        **options,
    ))  # fmt: skip


def batch_of(module, episodes):
    """Tensors for the loss."""
    flat = columns(episodes)["all"]
    if not module.is_stateful():
        add_gae(flat, gamma=0.97, lambda_=0.95, value_fn=make_value_fn(module))
        return to_tensors(flat, NAMES)
    flat = columns(episodes, outputs=["vf_preds", "state_out"])["all"]
    add_gae(flat, gamma=0.97, lambda_=0.95, last_values=bootstrap_values(module, flat))
    estimates = {name: flat[name] for name in ("advantages", "value_targets")}
    batch = sequences(episodes, max_seq_len=5, outputs=["action_logp"], extra_columns={"all": estimates})["all"]
    return to_tensors(batch, [*NAMES, "state_in", "loss_mask"])


def check_loss(module, rows):
    """The loss before any update: actions are as probable as when they were drawn."""
    stats = {}
    module.zero_grad()
    ppo_loss(module, rows, stats=stats).backward()
    assert stats["clip_fraction"] == 0 and abs(stats["kl"]) < 1e-6
    assert all(torch.isfinite(value) for value in stats.values())
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)


WAYS = [(place, form) for place in PLACES for form in FORMS]
CASES = [("plain", *way, space) for way in WAYS for space in SPACES] + [
    (module, place, FORMS[(i + j) % len(FORMS)], list(SPACES)[(i + j) % len(SPACES)])
    for i, module in enumerate(MODULES)
    for j, place in enumerate(PLACES)
    if not (place == "info" and "masks" in module)  # which see no masks in infos
]


@pytest.mark.parametrize(("module", "place", "form", "space"), dict.fromkeys(CASES))
def test_before_an_update_nothing_is_clipped(module, place, form, space):
    with runner_of(module, space=space, place=place, form=form) as runner:
        episodes = runner.sample(num_timesteps=12)
        check_loss(runner.module["all"], batch_of(runner.module["all"], episodes))


class Named(Plain):
    """Has an output with the name of the runner's masks."""

    def forward(self, batch):
        outputs = super().forward(batch)
        return {**outputs, "action_mask": torch.zeros_like(outputs["action_dist_inputs"])}


@pytest.mark.parametrize("place", PLACES)
def test_an_output_with_the_name_of_the_masks_is_none(place):
    with runner_of(Named, place=place) as runner:
        rows = batch_of(runner.module["all"], runner.sample(num_timesteps=12))
        assert {Recorded.ACTION_MASK, "action_mask"} & set(rows) == (
            {Recorded.ACTION_MASK} if place == "info" else {"action_mask"}
        )
        check_loss(runner.module["all"], rows)


def test_v_trace_of_actions_just_drawn_corrects_nothing():
    with runner_of() as runner:
        module = runner.module["all"]
        batch = columns(runner.sample(num_timesteps=12))["all"]
        rows = to_tensors(batch, ["obs", "actions"])
        with torch.no_grad():
            logits = module.forward_train(rows)["action_dist_inputs"]
            logp = module.get_train_action_dist_cls().from_logits(logits).logp(rows["actions"])
        np.testing.assert_allclose(logp, batch["action_logp"], atol=1e-6)
        expected = dict(batch)
        add_vtrace(batch, logp, gamma=0.9, value_fn=make_value_fn(module))
        add_gae(expected, gamma=0.9, lambda_=1.0, value_fn=make_value_fn(module))
        np.testing.assert_allclose(batch["value_targets"], expected["value_targets"], atol=1e-5)


class Narrow(nn.Module):
    """Reads the vector, wherever it is."""

    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(2, N)

    def forward(self, batch):
        obs = batch["obs"]["vector"] if isinstance(batch["obs"], dict) else batch["obs"]
        return {"action_dist_inputs": self.pi(obs), "vf_preds": obs.sum(-1)}


def test_a_mask_that_is_missing_or_does_not_fit_is_an_error():
    with runner_of(Narrow) as runner:
        module = runner.module["all"]
        rows = batch_of(module, runner.sample(num_timesteps=12))
    vector = rows["obs"]["vector"]
    for obs, got in ((vector, "got Tensor"), ({"vector": vector}, r"got the keys \['vector'\]")):
        with pytest.raises(BatchError, match=rf"Narrow acts with the mask obs\['action_mask'\].*{got}"):
            ppo_loss(module, {**rows, "obs": obs})
    for mask in (torch.ones(3, N), torch.ones(len(vector), N - 1)):
        with pytest.raises(BatchError, match=r"5 entries per row, one per logit.*got shape \("):
            ppo_loss(module, {**rows, "action_mask": mask})


def test_actions_that_no_mask_fits_are_not_masked():
    space = gym.spaces.Dict(vector=gym.spaces.Box(-1, 1, (2,)), action_mask=gym.spaces.MultiBinary(N))
    actions = gym.spaces.Dict(move=gym.spaces.Discrete(N))
    module = as_rl_module(Plain(), space, actions)
    obs = {"vector": torch.zeros(3, 2), "action_mask": torch.zeros(3, N)}
    for batch in ({"obs": obs}, {"obs": obs, "action_mask": torch.zeros(3, N)}):
        assert torch.equal(module.forward_train(batch)["action_dist_inputs"], module(batch)["action_dist_inputs"])


class Free(MaskedEnv):
    """An environment that sends no masks."""

    def answer(self, agents):
        return super().answer(agents)[0], {}

    def check(self, mask, action):
        pass


def ruled_out(vector):
    """Return one action to rule out per observation, bool [n, N]."""
    return np.arange(N) == np.rint(vector[:, :1] * 20) % N


class AddsMasks(EnvToModuleConnector):
    per_agent_state = ()

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict(vector=input_observation_space, action_mask=gym.spaces.MultiBinary(N))

    def __call__(self, obs, rows):
        return {"vector": obs, "action_mask": (~ruled_out(obs)).astype(np.int8)}


class NarrowsMasks(EnvToModuleConnector):
    """Only the first legal action stays."""

    per_agent_state = ()

    def __call__(self, obs, rows):
        legal = obs["action_mask"] != 0
        return {**obs, "action_mask": (np.arange(N) == legal.argmax(1)[:, None]).astype(np.int8)}


class TakesMasksOut(EnvToModuleConnector):
    """For acting only: training makes its observations by itself."""

    per_agent_state = ()
    records = False

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return input_observation_space["vector"]

    def __call__(self, obs, rows):
        return obs["vector"]


CONNECTORS = {
    "filtered": ("avail_actions", lambda: [MeanStdFilter()]),
    "flat": ("action_mask", lambda: [FlattenObservations()]),
    "with previous actions": ("action_mask", lambda: [PrevActionsPrevRewards()]),
    "in infos, with previous actions": ("info", lambda: [PrevActionsPrevRewards()]),
    "narrowed": ("action_mask", lambda: [NarrowsMasks()]),
    "narrowed, taken out": ("action_mask", lambda: [NarrowsMasks(), FlattenObservations()]),
}


@pytest.mark.parametrize("module", ["default", "plain", "recurrent"])
@pytest.mark.parametrize("way", CONNECTORS)
def test_masks_behind_connectors(way, module):
    place, connectors = CONNECTORS[way]
    with runner_of(module, place=place, env_to_module_connector=connectors()) as runner:
        check_loss(runner.module["all"], batch_of(runner.module["all"], runner.sample(num_timesteps=12)))


@pytest.mark.parametrize("options", [{}, {"explore": False}, {"random_actions": True}], ids=str)
@pytest.mark.parametrize("module", ["default", "plain"])
def test_masks_that_a_connector_makes(module, options):
    with runner_of(module, env=Free, place="info", env_to_module_connector=[AddsMasks()]) as runner:
        episodes = runner.sample(num_timesteps=40, **options)
        batch = columns(episodes)["all"]
        assert not ruled_out(batch["obs"]["vector"])[np.arange(len(batch["actions"])), batch["actions"]].any()
        policy = fastmarl.Policy.from_runner(runner)
        with pytest.raises(ActionMaskError, match=r"its observation contains the mask, obs\['action_mask'\]"):
            policy.act(np.zeros(2, np.float32), action_mask=[1] * N)
        assert policy.act(np.zeros(2, np.float32)) != 0
        if not options:
            check_loss(runner.module["all"], batch_of(runner.module["all"], episodes))


def test_masks_that_only_the_record_has():
    with runner_of(Narrow, env_to_module_connector=[TakesMasksOut()]) as runner:
        batch = columns(runner.sample(num_timesteps=12))["all"]
        assert np.array_equal(batch["action_mask"], batch["obs"]["action_mask"] != 0)
        batch["obs"], batch["final_obs"] = batch["obs"]["vector"], batch["final_obs"]["vector"]
        add_gae(batch, gamma=0.97, lambda_=0.95, value_fn=make_value_fn(runner.module["all"]))
        check_loss(runner.module["all"], to_tensors(batch, NAMES))


@pytest.mark.slow
def test_random_runs_with_masks(rng):
    """Several calls, envs that send masks now and then, chunks in any order: each minibatch is as it was drawn."""
    for _ in range(6):
        module, env = str(rng.choice(list(MODULES))), [MaskedEnv, LateMaskEnv][rng.integers(2)]
        place = "info" if env is LateMaskEnv else PLACES[rng.integers(3)]
        if place == "info" and "masks" in module:
            continue
        options = {"space": str(rng.choice(list(SPACES))), "form": str(rng.choice(FORMS)), "place": place}
        with runner_of(module, env=env, **options) as runner:
            episodes = [chunk for n in rng.integers(1, 14, size=3) for chunk in runner.sample(num_timesteps=int(n))]
            rng.shuffle(episodes)
            acting = runner.module["all"]
            for rows in minibatches(batch_of(acting, episodes), size=int(rng.integers(3, 40))):
                check_loss(acting, rows)
