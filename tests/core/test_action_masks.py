"""Legal actions only: masks in observations and infos, for modules that know nothing of them and for random actions."""

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.masked_env import PLACES, SPACES, LateMaskEnv, MaskedEnv, N

import fastmarl
from fastmarl.batches import aligned, columns, sequences
from fastmarl.connectors import FlattenObservations, PrevActionsPrevRewards
from fastmarl.core.native._masks import read_legal, rule_out
from fastmarl.core.spaces.structs import map_struct
from fastmarl.errors import ActionMaskError, ConfigError
from fastmarl.learning import to_tensors


class Unmasked(fastmarl.RLModule):
    """Always the same logits."""

    def setup(self):
        self.logits = torch.nn.Parameter(torch.linspace(-1, 2, N))

    def _forward(self, batch, **kwargs):
        n = len(next(iter(batch["obs"].values())) if isinstance(batch["obs"], dict) else batch["obs"])
        return {"action_dist_inputs": self.logits.expand(n, N)}


def runner_of(module=Unmasked, **env_config):
    spec = None if module is None else fastmarl.RLModuleSpec(module_class=module)
    config = fastmarl.EnvRunnerConfig(
        env=MaskedEnv, env_config=env_config, rl_module_spec=spec, num_envs_per_env_runner=3, seed=0
    )
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"explore": False}, {"random_actions": True}], ids=["explore", "best", "random"]
)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("space", SPACES)
def test_only_legal_actions(space, place, options):
    """The env itself asserts it; an agent that has died may well have no legal action."""
    runner = runner_of(space=space, place=place)
    for _ in range(3):
        assert runner.sample(num_timesteps=100, **options)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_default_nets_know_the_masks(place):
    runner_of(module=None, space="discrete", place=place).sample(num_timesteps=200)


WAYS = {
    "beside others": ("action_mask", []),
    "in the info": ("info", []),
    "flattened": ("avail_actions", [FlattenObservations()]),
    "beside previous actions": ("action_mask", [PrevActionsPrevRewards()]),
    "in the info, with previous actions": ("info", [PrevActionsPrevRewards()]),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("use_lstm", [False, True], ids=["plain", "lstm"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("space", SPACES)
def test_default_nets_apply_the_same_masks_in_training_as_in_sampling(space, way, use_lstm):
    place, connectors = WAYS[way]
    config = fastmarl.EnvRunnerConfig(
        env=MaskedEnv,
        env_config={"space": space, "place": place},
        env_to_module_connector=connectors,
        model_config={"use_lstm": use_lstm, "fcnet_hiddens": [8], "lstm_cell_size": 4},
        seed=0,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    episodes = runner.sample(num_timesteps=60)
    if use_lstm:
        batch = sequences(episodes, max_seq_len=5)["default_policy"]
        on_record = batch["loss_mask"]
    else:
        batch = columns(episodes)["default_policy"]
        on_record = np.full(len(batch["actions"]), True)
    batch = {
        name: batch[name] for name in ("obs", "state_in", "action_mask", "actions", "action_logp") if name in batch
    }
    assert ("action_mask" in batch) == (way != "beside others")
    batch = map_struct(torch.as_tensor, batch)
    module = runner.module["default_policy"]
    with torch.no_grad():
        logits = module.forward_train(batch)["action_dist_inputs"]
    logp = module.get_train_action_dist_cls().from_logits(logits).logp(batch["actions"])
    assert np.allclose(logp[on_record], batch["action_logp"][on_record], atol=1e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("space", SPACES)
def test_masks_and_masked_logits_are_recorded(space, place):
    runner = runner_of(space=space, place=place)
    sizes = runner.env.envs[0].sizes
    for episode in runner.sample(num_timesteps=60):
        for part in episode.agent_episodes.values():
            actions = np.asarray(part.get_actions()).reshape(len(part), -1)
            if place == "info":
                masks = part.get_extra_model_outputs("action_mask")
            else:
                masks = part.get_observations()[place][: len(part)]
            logits = torch.as_tensor(np.asarray(part.get_extra_model_outputs("action_dist_inputs")))
            wanted = torch.linspace(-1, 2, N).masked_fill(torch.as_tensor(masks) == 0, -torch.inf)
            assert torch.equal(logits.exp(), wanted.exp())
            parts = [torch.log_softmax(of_part, -1) for of_part in wanted.split(sizes, -1)]
            logp = sum(p[torch.arange(len(p)), torch.as_tensor(actions[:, i])] for i, p in enumerate(parts))
            assert np.allclose(part.get_extra_model_outputs("action_logp"), logp, atol=1e-6)


def test_random_actions_are_uniform_over_the_legal_ones():
    runner = runner_of(space="multi_discrete", place="action_mask")
    for episode in runner.sample(num_timesteps=60, random_actions=True):
        for part in episode.agent_episodes.values():
            masks = part.get_observations()["action_mask"][: len(part)]
            n_legal = masks[:, :3].sum(1) * masks[:, 3:].sum(1)
            assert np.allclose(part.get_extra_model_outputs("action_logp"), -np.log(n_legal), atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_no_legal_action_is_an_error_that_says_where(place):
    runner = runner_of(space="discrete", place=place, illegal_at=3)
    where = "info['action_mask']" if place == "info" else f"obs[{place!r}]"
    with pytest.raises(
        ActionMaskError, match=re.escape(f"env 0, agent 'a', env step 3: {where} rules out all actions")
    ):
        runner.sample(num_timesteps=100)


def late_runner():
    config = fastmarl.EnvRunnerConfig(env=LateMaskEnv, env_config={"space": "discrete", "place": "info"}, seed=0)
    return fastmarl.MultiAgentEnvRunner(config)


def test_without_a_mask_everything_is_legal():
    for episode in late_runner().sample(num_timesteps=60):
        masks = episode.agent_episodes["a"].get_extra_model_outputs("action_mask")
        assert [bool(mask.all()) for mask in masks[:3]] == [True] * 3
        assert not masks[3::3].all()


def test_a_mask_of_another_size_is_refused():
    space = gym.spaces.Dict(vector=gym.spaces.Box(-1, 1, (2,)), action_mask=gym.spaces.MultiBinary(4))

    class WrongSize(MaskedEnv):
        def __init__(self, config):
            super().__init__(config)
            self.observation_spaces = dict.fromkeys(self.possible_agents, space)

    config = fastmarl.EnvRunnerConfig(env=WrongSize, env_config={"space": "discrete", "place": "action_mask"})
    with pytest.raises(ConfigError, match=r"'action_mask' .*MultiBinary\(4\), has 4 entries, but Discrete.5. needs 5"):
        fastmarl.MultiAgentEnvRunner(config)


def test_an_infos_mask_of_another_size_is_an_error():
    class Short(MaskedEnv):
        def mask(self, agent):
            return super().mask(agent)[:4]

    config = fastmarl.EnvRunnerConfig(env=Short, env_config={"space": "discrete", "place": "info"})
    with pytest.raises(
        ActionMaskError, match=r"agent '[ab]', env step 0: info\['action_mask'\] has 4 entries, expected 5"
    ):
        fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=5)


class Narrow(fastmarl.MultiAgentEnv):
    """In env 0 one action is legal in each step, in others all are."""

    possible_agents = ["a"]  # noqa: RUF012
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, config):
        self.is_narrow = config.vector_index == 0
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._seen(), self._infos()

    def step(self, actions):
        assert not self.is_narrow or actions["a"] == self.n_steps % 5
        self.t += 1
        self.n_steps += 1
        return self._seen(), {"a": 0.0}, {"__all__": self.t == 2}, {}, self._infos()

    def _seen(self):
        return {"a": np.zeros(2, np.float32)}

    def _infos(self):
        mask = np.arange(5) == self.n_steps % 5 if self.is_narrow else np.ones(5)
        return {"a": {"action_mask": mask}}


def test_infos_of_envs_that_rest_are_no_masks_of_others():
    """Lanes are used again: that of an episode which has ended may be that of one which runs."""
    config = fastmarl.EnvRunnerConfig(
        env=Narrow, num_envs_per_env_runner=3, model_config={"fcnet_hiddens": [4]}, seed=0
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    for num_episodes in (3, 1, 2, 3, 1, 1):
        assert len(runner.sample(num_episodes=num_episodes)) == num_episodes


BATCHES = {
    "columns": columns,
    "sequences": lambda episodes, **options: sequences(episodes, max_seq_len=4, **options),
    "aligned": aligned,
}


@pytest.mark.parametrize("outputs", [None, [], ["action_mask", "action_logp"]], ids=str)
@pytest.mark.parametrize("make", BATCHES)
def test_masks_are_part_of_batches(make, outputs):
    """Also where only some of the chunks have masks: in the others nothing is ruled out."""
    runner = late_runner()
    without, having = runner.sample(num_timesteps=3), runner.sample(num_timesteps=9)
    for episodes in (having + without, without + having):
        batch = BATCHES[make](episodes, outputs=outputs)["default_policy"]
        known = {"sequences": "loss_mask", "aligned": "active"}.get(make)
        is_step = batch[known] if known else np.full(batch["actions"].shape, True)
        masks, times = batch["action_mask"][is_step], np.rint(batch["obs"][..., 0][is_step] * 20)
        is_masked = (times % 3 == 0) & (times > 0)
        assert is_masked.any() and masks[~is_masked].all() and not masks[is_masked].all()
        assert masks[np.arange(len(masks)), batch["actions"][is_step]].all()
    assert "action_mask" not in BATCHES[make](without)["default_policy"]


def test_tensors_of_actions_have_their_masks():
    batch = columns(late_runner().sample(num_timesteps=9))["default_policy"]
    assert list(to_tensors(batch, iter(["obs", "actions"]))) == ["obs", "actions", "action_mask"]
    assert list(to_tensors(batch, ["action_mask", "actions"])) == ["action_mask", "actions"]
    assert list(to_tensors(batch, ["obs", "vf_preds"])) == ["obs", "vf_preds"]


def test_groups_of_modules_with_masks_of_different_sizes_are_aligned_without_them():
    class Two(MaskedEnv):
        def __init__(self, config):
            super().__init__(config)
            self.action_spaces = {"a": gym.spaces.Discrete(N), "b": gym.spaces.Discrete(3)}

        def answer(self, agents):
            obs, infos = super().answer(agents)
            if "b" in infos:
                infos["b"] = {"action_mask": [1, 0, 1]}
            return obs, infos

        def check(self, mask, action):
            pass

    config = fastmarl.EnvRunnerConfig(
        env=Two,
        env_config={"space": "discrete", "place": "info"},
        policies=["a", "b"],
        policy_mapping_fn=lambda agent_id, episode: agent_id,
    )
    episodes = fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=5)
    batch = aligned(episodes, groups={"all": ["a", "b"]}, outputs=["action_logp"])["all"]
    assert "action_mask" not in batch and "action_logp" in batch


DTYPES = (np.bool_, np.int8, np.uint8, np.int64, np.float16, np.float32, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[1], [5], [3, 1, 2]])
def test_masks_are_read_and_applied_as_by_numpy(rng, sizes, dtype):
    n, k = 200, sum(sizes)
    mask = (rng.choice([-2, -0.0, 0, 0.25, np.nan], (n, 2 * k, 2)) * (4 if dtype != np.bool_ else 1)).astype(np.float16)
    with np.errstate(invalid="ignore"):
        mask = mask.astype(dtype)[:, ::2, 1]  # not contiguous
    mask[150] = 0
    logits, want = rng.normal(size=(n, k + 3)).astype(np.float32), mask != 0
    masked = logits.copy()
    rule_out(masked, mask, 2)
    assert np.array_equal(masked[:, 2:-1], np.where(want, logits[:, 2:-1], np.finfo(np.float32).min))
    assert np.array_equal(masked[:, [0, 1, -1]], logits[:, [0, 1, -1]])
    legal = np.empty((n, k), np.bool_)
    unfit = read_legal(mask, np.array(sizes), legal)
    without = [~part.any(1) for part in np.split(want, np.cumsum(sizes)[:-1], 1)]
    assert np.array_equal(legal, want) and unfit == np.flatnonzero(np.any(without, 0))[0]
    good = ~np.any(without, 0)
    assert read_legal(mask[good], np.array(sizes), legal[: good.sum()]) == -1


def test_masks_of_another_size_than_their_logits_are_refused():
    logits, legal, sizes = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.bool_), np.array([3])
    for mask in (np.zeros((2, 4)), np.zeros((1, 3)), np.zeros((3, 3))):
        with pytest.raises(ValueError, match="expected"):
            rule_out(logits, mask)
        with pytest.raises(ValueError, match="expected"):
            read_legal(mask, sizes, legal)
    for unfit in (logits.astype(np.float64), np.asfortranarray(logits)):
        with pytest.raises(ValueError, match="expected float32"):
            rule_out(unfit, legal)
    with pytest.raises(ValueError, match="expected float32"):
        rule_out(logits, legal, 1)
    empty = np.zeros((0, 3), np.float32)
    rule_out(empty, np.zeros((0, 3), np.int8))
    assert read_legal(empty, sizes, legal[:0]) == -1
