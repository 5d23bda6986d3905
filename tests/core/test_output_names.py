"""Outputs of modules keep to themselves, whatever they are called, and to the form that they began with."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scripted import Says, Step, scripted

import fastmarl
from fastmarl import batches
from fastmarl.checkpoint import load_state, save_state
from fastmarl.core.inference import row_states
from fastmarl.core.spaces.columns import Recorded
from fastmarl.core.spaces.structs import Index
from fastmarl.errors import BatchError, ModuleOutputError
from fastmarl.modules import RLModule

OWN = ["obs0", "raw0", "raw_final0", "final0", "lane_R", "prev_R", "env_t_R", "reward_R", "seq_no_R", "final_prev_F",
       "final_at_F"]  # fmt: skip
COLUMNS = ["obs", "new_obs", "rewards", "infos", "terminateds", "truncateds", "seq_lens", "loss_mask", "eps_id",
           "active", "agent_id", "weights_seq_no",
           "action_mask", "env_t", "env_state", "final_obs", "final_t", "first_env_t", "t", "state_in",
           "state_out"]  # fmt: skip
ODD = ["", "a.b", ("a", "b"), 3]
NAMES = [*OWN, *COLUMNS, *ODD]
DTYPES = {"lane_R": torch.int32, "env_t_R": torch.int32, "reward_R": torch.float64}  # as the columns of these names


def see(agent, t):
    """Observe agent and time."""
    return np.full(4, t + 1000 * int(agent[-1]), np.float32)


def legal_at(t):
    return np.arange(3) != t % 3


AGENTS = ["agent_0", "agent_1"]
STEPS = [Step(AGENTS, 1.0, truncated=t == 50) for t in range(51)]
INFOS = [{agent: {"action_mask": legal_at(t)} for agent in AGENTS} if t else {} for t in range(51)]
MASKED = [replace(step, infos=infos) for step, infos in zip(STEPS, INFOS, strict=True)]


def marked(obs, i, dtype):
    """Return output number i for some observations."""
    return (obs[:, 0] * 100 + i).to(dtype)


class Named(RLModule):
    """A module with an output of each name, and some nested ones."""

    def _forward(self, batch, **kwargs):
        obs = batch["obs"]
        outputs = {name: marked(obs, i, DTYPES.get(name, torch.int64)) for i, name in enumerate(NAMES)}
        nested = {"a": {"b": marked(obs, 90, torch.int64)}, "c": (marked(obs, 91, torch.int64),)}
        return {**outputs, **nested, "actions": obs[:, 0].long() % 3}


def make_runner(module_class, **options):
    defaults = {"env": scripted(STEPS, see=see), "num_envs_per_env_runner": 2, "seed": 1, "episode_lookback_horizon": 3}
    spec = fastmarl.RLModuleSpec(module_class=module_class)
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, "rl_module_spec": spec, **options}))


@pytest.fixture(scope="module")
def chunks():
    runner = make_runner(Named)
    return [chunk for _ in range(3) for chunk in runner.sample(num_timesteps=150)]  # memory grows and is used again


def test_an_output_of_any_name_is_recorded_and_nothing_else_is_touched(chunks):
    assert len(chunks) > 6
    for chunk in chunks:
        for i, agent in enumerate(chunk.agent_episodes.values()):
            times = 1000 * i + agent.env_ts().astype(np.float32)
            assert np.array_equal(agent.get_observations()[:, 0], times[agent.lookback :])
            assert (agent.get_rewards() == 1).all()
            expected = times[agent.lookback : -1].astype(np.int64) * 100
            assert np.array_equal(agent.get_actions(), expected // 100 % 3)
            for number, name in enumerate(NAMES):
                assert np.array_equal(agent.get_extra_model_outputs(name), expected + number), name
            assert np.array_equal(agent.get_extra_model_outputs("a")["b"], expected + 90)
            assert np.array_equal(agent.get_extra_model_outputs("c")[0], expected + 91)
            assert set(agent.extra_model_output_keys) == {*NAMES, "a", "c", Recorded.WEIGHTS_SEQ_NO}


def test_names_of_columns_mean_the_same_in_batches(chunks):
    without = batches.columns(chunks, outputs=[], next_obs=True)["default_policy"]
    batch = batches.columns(chunks, next_obs=True)["default_policy"]
    for name, column in without.items():
        np.testing.assert_array_equal(batch[name], column, err_msg=name)
    assert {"obs0", "lane_R", "env_t", "t", ("a", "b"), 3, "infos"} <= batch.keys()
    steps = batch["obs"][:, 0].astype(np.int64) * 100
    assert np.array_equal(batch["env_t"], steps + NAMES.index("env_t"))
    aligned = batches.aligned(chunks[-2:])["default_policy"]
    active, obs = aligned["active"], aligned["obs"][..., 0].astype(np.int64)
    assert active.dtype == bool and active.any()
    assert np.array_equal(aligned["env_t"][active], obs[active] * 100 + NAMES.index("env_t"))
    with pytest.raises(BatchError, match="'rewards' has the same name as another batch column"):
        batches.columns(chunks, outputs=["rewards"])
    joined = batches.columns(chunks, outputs=["state_in", "env_t"])["default_policy"]
    assert np.array_equal(joined["state_in"], steps + NAMES.index("state_in"))


def test_slices_and_states_of_episodes_keep_the_names(chunks):
    sliced = chunks[-1].slice(slice(2, 6))
    for agent_id, agent in sliced.agent_episodes.items():
        whole = chunks[-1].agent_episodes[agent_id]
        for name in NAMES:
            got, expected = agent.get_extra_model_outputs(name), whole.get_extra_model_outputs(name)
            assert np.array_equal(got, expected[2:6]), name


def recording(value):
    """A runner whose module records value(n) as "mine", and what to replace that by."""
    module = Says(actions=0, mine=lambda obs: value(len(obs)))
    runner = make_runner(None, policies={"default_policy": module})
    return runner, module.outputs


FORMS = [
    (lambda n: torch.zeros(n, dtype=torch.float64), "float32 of shape [] per row, as in earlier steps, got float64"),
    (lambda n: torch.zeros(n, dtype=torch.int64), "float32 of shape [] per row, as in earlier steps, got int64"),
    (lambda n: torch.zeros(n, 1), "float32 of shape [] per row, as in earlier steps, got float32 of shape [1]"),
    (lambda n: {"part": torch.zeros(n)}, "'mine' with the parts ['mine'], as in earlier steps, got ('mine', 'part')"),
]


@pytest.mark.parametrize(("value", "problem"), FORMS)
@pytest.mark.parametrize("when", ["between", "within"])
def test_an_output_that_changes_its_form_is_an_error(value, problem, when):
    runner, says = recording(torch.ones)
    runner.sample(num_timesteps=4)
    calls = iter([torch.ones] * (3 if when == "within" else 0))
    says["mine"] = lambda obs: next(calls, value)(len(obs))
    with pytest.raises(ModuleOutputError) as error:
        runner.sample(num_timesteps=100)
    assert problem in str(error.value) and "'default_policy'" in str(error.value)
    assert runner.sample(num_timesteps=4, force_reset=True)  # the way out


def test_columns_of_equal_size_are_not_taken_for_one_another():
    runner, says = recording(lambda n: torch.zeros(n, 2, 3))
    runner.sample(num_timesteps=4)
    says["mine"] = lambda obs: torch.zeros(len(obs), 3, 2)
    with pytest.raises(ModuleOutputError, match=r"\[2, 3\] per row, .*, got float32 of shape \[3, 2\]"):
        runner.sample(num_timesteps=4)


class Reserved(RLModule):
    """Has memory, and outputs with the names of what the runner records itself."""

    def get_initial_state(self):
        return {"h": np.zeros(1, np.float32)}

    def _forward(self, batch, **kwargs):
        obs = batch["obs"][..., 0]  # [B, 1]
        return {
            "action_dist_inputs": torch.zeros(len(obs), 1, 3),
            "state_out": {"h": batch["state_in"]["h"] + 1},
            "state_in": obs.long() * 10,
            "action_mask": obs * 20,
            "weights_seq_no": {"deep": obs * 30},
        }


@pytest.fixture(scope="module")
def reserved():
    runner = make_runner(Reserved, env=scripted(MASKED, see=see))
    chunks = []
    for n in range(1, 4):
        runner.set_weights(runner.get_weights(), weights_seq_no=n)
        chunks += runner.sample(num_timesteps=150)
    return chunks


def kept(chunk):
    """Yield the chunk in several forms: unchanged, pickled, sliced, compacted."""
    yield chunk
    yield pickle.loads(pickle.dumps(chunk))
    yield chunk.slice(slice(0, len(chunk)))
    compact = pickle.loads(pickle.dumps(chunk))
    compact.compact()
    yield compact


def test_outputs_may_have_names_of_the_runners_own_columns(reserved):
    numbers = set()
    for chunk in (form for whole in reserved for form in kept(whole)):
        for i, agent in enumerate(chunk.agent_episodes.values()):
            times = agent.env_ts()[agent.lookback : -1]
            obs = 1000 * i + times
            assert np.array_equal(agent.get_extra_model_outputs("state_in"), obs * 10)
            assert np.array_equal(agent.get_extra_model_outputs("action_mask"), obs * 20)
            assert np.array_equal(agent.get_extra_model_outputs("weights_seq_no")["deep"], obs * 30)
            assert np.array_equal(agent.get_extra_model_outputs(Recorded.STATE_IN)["h"][:, 0], times)
            legal = agent.get_extra_model_outputs(Recorded.ACTION_MASK)
            assert np.array_equal(legal, [legal_at(t) if t else [True] * 3 for t in times])
            assert legal[np.arange(len(times)), agent.get_actions()].all()
            numbers |= set(agent.get_extra_model_outputs(Recorded.WEIGHTS_SEQ_NO).tolist())
    assert numbers == {1, 2, 3}


def test_batches_separate_outputs_from_the_runners_own_columns(reserved):
    flat = batches.columns(reserved)["default_policy"]
    obs = flat["obs"][:, 0].astype(np.int64)
    assert np.array_equal(flat["action_mask"], obs * 20)
    expected = [legal_at(t) if t else [True] * 3 for t in obs % 1000]
    assert np.array_equal(flat[Recorded.ACTION_MASK], expected)
    assert np.array_equal(batches.columns(reserved, outputs=[])["default_policy"][Recorded.ACTION_MASK], expected)
    cut = batches.sequences(reserved, max_seq_len=7)["default_policy"]
    assert np.array_equal(cut["state_in"]["h"][:, 0], cut["obs"][:, 0, 0] % 1000)


@pytest.mark.parametrize("key", ["x", ("a", Index(0)), ((1, 2), 3), (Recorded.STATE_IN, "h"), (Recorded.ACTION_MASK,)])
def test_names_go_through_checkpoints_of_running_episodes(key, tmp_path):
    save_state(tmp_path, row_states._plain_key(key))
    restored = row_states._key("it", load_state(tmp_path))
    assert restored == key and [*map(type, restored)] == [*map(type, key)]


def test_random_actions_keep_to_the_names():
    runner = make_runner(Reserved, env=scripted(MASKED, see=see), episode_lookback_horizon=0)
    for is_random in (False, True, False):
        runner.sample(num_timesteps=20, random_actions=is_random)


def test_random_actions_and_a_modules_own_share_a_column():
    for first in (True, False):
        runner = make_runner(None, policies={"default_policy": Says(actions=np.int32(1))})
        chunks = []
        for is_random in (first, not first, first):
            chunks += runner.sample(num_timesteps=6, random_actions=is_random)
        for chunk in chunks:
            for agent in chunk.agent_episodes.values():
                assert agent.get_actions().dtype.kind == "i"


class Remembering(RLModule):
    """Its state is of the dtype `initial`, and becomes one of `later`."""

    initial, later = np.float32, torch.float32

    def get_initial_state(self):
        return {"h": np.zeros(2, self.initial)}

    def _forward(self, batch, **kwargs):
        n = len(batch["obs"])
        return {"actions": torch.zeros(n, 1, dtype=torch.int64), "state_out": {"h": torch.zeros(n, 2).to(self.later)}}


@pytest.mark.parametrize(
    ("initial", "later", "is_wrong"),
    [
        (np.float32, torch.float32, False),
        (np.float64, torch.float32, False),  # modules get float32
        (np.int64, torch.int32, False),
        (np.float32, torch.float64, True),
        (np.int64, torch.float32, True),
    ],
)
def test_a_state_of_another_dtype_is_an_error(monkeypatch, initial, later, is_wrong):
    monkeypatch.setattr(Remembering, "initial", initial)
    monkeypatch.setattr(Remembering, "later", later)
    runner = make_runner(Remembering)
    if is_wrong:
        name = str(later).removeprefix("torch.")
        with pytest.raises(
            ModuleOutputError, match=f"expected .*state_out.* of dtype {np.dtype(initial)}, .*, got {name}"
        ):
            runner.sample(num_timesteps=2)
    else:
        assert runner.sample(num_timesteps=2)
