"""Callbacks of episodes on the fast path: what they may do, and what is refused. For equality, see test_equality.py."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from support.exhaustive import further
from support.rllib_walk import RLlibClock

from fastmarl.errors import RunnerBusyError, RunningEpisodeError
from fastmarl.rllib import MultiAgentEnvRunner

# Every runner registers its envs under this one name.
pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env")


def make_runner(*, runner_class=MultiAgentEnvRunner, num_envs=2, env=MultiAgentCartPole, **callbacks):
    config = (
        PPOConfig()
        .environment(env, env_config={"num_agents": 2})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p0")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        .callbacks(**callbacks)
        .fault_tolerance(restart_failed_sub_environments=env is not MultiAgentCartPole)
        .debugging(seed=1)
    )
    return runner_class(config=config)


def test_an_episode_that_is_not_read_is_not_made():
    seen = []

    def note(*, episode, **kwargs):
        episode.custom_data["n"] = episode.custom_data.get("n", 0) + 1
        seen.append((len(episode), episode.get_return(), episode.get_infos(-1), type(episode)))

    runner = make_runner(on_episode_step=note)
    runner.sample(num_timesteps=2)
    made = []
    runner._fast.events._episodes.built = lambda *arguments: made.append(arguments)
    episodes = runner.sample(num_timesteps=40)
    assert len(seen) >= 42 and not made
    assert all(issubclass(kind, MultiAgentEpisode) for *_, kind in seen)
    assert all(type(episode) is MultiAgentEnvRunner.episode_class for episode in episodes)
    assert sum(episode.custom_data["n"] for episode in episodes if episode.env_t_started == 0) > 0


class NumpyFlags(RLlibClock):
    """Agent "a1" joins in step 2 and waits until step 5; flags are np.bool_."""

    def sees(self, t):
        return ["a0", "a1"] if t in (2, 5, 10) else ["a0"]

    def pays(self, t):
        return {"a0": 1.0}

    def step(self, actions):
        obs, rewards, *flags, infos = super().step(actions)
        return obs, rewards, *({"__all__": np.bool_(flag["__all__"])} for flag in flags), infos


def test_flags_of_agents_that_have_not_stepped_yet_are_python_bools():
    """As in RLlib, until their first step."""
    found = []
    for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner):
        noted = []

        def note(*, episode, noted=noted, **kwargs):
            noted.append([
                (agent_id, repr(part.is_terminated), repr(part.is_truncated), repr(part.is_done))
                for agent_id, part in episode.agent_episodes.items()
            ])  # fmt: skip

        make_runner(runner_class=runner_class, num_envs=1, env=NumpyFlags, on_episode_step=note).sample(num_timesteps=9)
        found.append(noted)
    assert found[1] == found[0]
    assert found[0][3][1] == ("a1", "False", "False", "False") and found[0][3][0][1] == "np.False_"


def test_a_returned_chunk_keeps_its_custom_data():
    def note(*, episode, **kwargs):
        episode.custom_data.setdefault("env_ts", []).append(episode.env_t)

    runner = make_runner(on_episode_step=note)
    chunks = [chunk for _ in range(3) for chunk in runner.sample(num_timesteps=4)]
    assert any(chunk.env_t_started for chunk in chunks)
    assert [chunk.custom_data["env_ts"] for chunk in chunks] == [[*range(1, chunk.env_t + 1)] for chunk in chunks]


@pytest.mark.parametrize("event", ["on_episode_start", "on_episode_step", "on_episode_end"])
def test_sample_returns_the_very_episodes_that_callbacks_were_given(event):
    given = []
    runner = make_runner(**{event: lambda *, episode, **kwargs: given.append(episode)})
    returned = runner.sample(num_timesteps=100)
    assert {*map(id, given)} <= {*map(id, returned)}
    assert all(len(agent.get_rewards()) == len(agent) for episode in given for agent in episode.agent_episodes.values())


def test_the_end_is_shown_earlier_chunks():
    chunks = []
    runner = make_runner(on_episode_end=lambda *, prev_episode_chunks, **kwargs: chunks.extend(prev_episode_chunks))
    returned = [episode for _ in range(30) for episode in runner.sample(num_timesteps=8)]
    assert chunks
    assert {*map(id, chunks)} <= {*map(id, returned)}
    runner.get_metrics()
    assert set(runner._ongoing_episodes_for_metrics) <= {episode.id_ for episode in returned[-2:]}


class Fragile(MultiAgentCartPole):
    """Fails now and then."""

    def __init__(self, config):
        super().__init__(config)
        self._n_steps = 0

    def step(self, action_dict):
        self._n_steps += 1
        if self._n_steps % 12 == 0:
            raise ValueError("broken")
        return super().step(action_dict)


def test_chunks_of_failed_episodes_are_not_kept():
    runner = make_runner(
        env=Fragile,
        on_episode_end=lambda **kwargs: None,
        on_episode_start=lambda *, episode, **kwargs: episode.get_rewards(),
    )
    for _ in range(20):
        runner.sample(num_timesteps=6)
    running = {record.id_ for record in runner._fast.parts.running()}
    runner.get_metrics()
    assert set(runner._ongoing_episodes_for_metrics) <= running


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda episode: pickle.loads(pickle.dumps(episode))])
def test_a_running_episode_can_be_copied(copied):
    copies = []

    def keep(*, episode, **kwargs):
        if len(episode) == 5:
            episode.agent_to_module_mapping_fn = None  # a lambda does not pickle
            copies.append(copied(episode))

    make_runner(on_episode_step=keep, num_envs=1).sample(num_timesteps=6)
    (episode,) = copies
    assert len(episode) == 5 and all(len(agent) == 5 for agent in episode.agent_episodes.values())


@pytest.mark.parametrize("of_agent", [False, True])
def test_kept_methods_answer_after_the_episode_is_built(of_agent):
    answers = []

    def ask(*, episode, **kwargs):
        asked = episode.agent_episodes[0] if of_agent else episode
        kept = [asked.get_return, asked.get_infos, *([asked.get_rewards] if of_agent else [])]
        before = [np.array(method()).tolist() for method in kept]
        episode.get_rewards(), episode.agent_episodes[0].get_observations()
        answers.append(before == [np.array(method()).tolist() for method in kept])

    make_runner(on_episode_step=ask).sample(num_timesteps=20)
    assert len(answers) >= 20 and all(answers)


TAKEN_AWAY = {
    "del": lambda agents: agents.__delitem__(1),
    "pop": lambda agents: agents.pop(1, None),
    "popitem": lambda agents: agents.popitem(),
    "clear": lambda agents: agents.clear(),
}
ADDED = {
    "put": lambda agents: agents.__setitem__(1, agents[0]),
    "add": lambda agents: agents.setdefault("another", agents[0]),
    "update": lambda agents: agents.update({"another": agents[0]}),
    "|=": lambda agents: agents.__ior__({"another": agents[0]}),
}


@pytest.mark.parametrize("how", TAKEN_AWAY)
def test_an_episode_answers_without_the_agents_that_a_callback_takes_away(how):
    """To this callback and the next, as RLlib's does, whose own loop goes by what is there."""
    answers = []
    for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner):
        seen = []

        def take_away(*, episode, **kwargs):
            TAKEN_AWAY[how](episode.agent_episodes)
            seen.append(episode.get_return())  # noqa: B023

        def look(*, episode, **kwargs):
            asked = episode.get_rewards(), episode.get_agents_that_stepped(), episode.agent_ids
            seen.append((*asked, {*episode.agent_episodes}))  # noqa: B023

        runner = make_runner(runner_class=runner_class, on_episode_end=[take_away, look], num_envs=1)
        episodes = runner.sample(num_timesteps=60)
        seen.append([{*episode.agent_episodes} for episode in episodes])
        answers.append(seen)
    np.testing.assert_equal(*answers)
    assert len(answers[0]) > 3


@pytest.mark.parametrize("how", ADDED)
def test_an_episode_has_the_agents_that_a_callback_adds(how):
    """RLlib's own loop fails with most of them."""
    seen = []

    def add(*, episode, **kwargs):
        agents = episode.agent_episodes
        ADDED[how](agents)
        assert {**agents} == {**episode.agent_episodes}
        assert episode.get_return() == sum(part.get_return() for part in agents.values())
        seen.append({agent_id: id(part) for agent_id, part in agents.items()})

    episodes = make_runner(on_episode_end=add, num_envs=1).sample(num_timesteps=60)
    assert seen
    for episode, want in zip(episodes, seen, strict=False):
        assert {agent_id: id(part) for agent_id, part in episode.agent_episodes.items()} == want


def test_agents_that_a_callback_has_kept_are_those_of_the_episode_that_is_returned():
    kept = []
    runner = make_runner(on_episode_end=lambda *, episode, **kwargs: kept.append(episode.agent_episodes), num_envs=1)
    (episode,) = runner.sample(num_episodes=1)
    kept[0].pop(1)
    assert [*episode.agent_episodes] == [*kept[0]] == [0]
    for copied in (copy.copy(kept[0]), copy.deepcopy(kept[0]), pickle.loads(pickle.dumps(kept[0]))):
        assert type(copied) is dict and [*copied] == [0]


def test_reading_a_running_episode_outside_of_a_callback_is_an_error():
    kept = []
    runner = make_runner(on_episode_start=lambda *, episode, **kwargs: kept.append(episode))
    runner.config.callbacks_on_episode_step = lambda **kwargs: kept[1].get_rewards()  # another env's
    with pytest.raises(RunningEpisodeError, match="can only be read while a callback or connector runs"):
        runner.sample(num_timesteps=4)


def test_a_callback_cannot_end_an_episode():
    def end(*, episode, **kwargs):
        episode.is_truncated = True

    with pytest.raises(RunningEpisodeError, match=r"env 0.*let the env end it"):
        make_runner(on_episode_step=end).sample(num_timesteps=4)


def test_an_error_in_a_callback_loses_no_finished_episode():
    calls = []

    def fail(*, episode, **kwargs):
        calls.append(episode.id_)
        if len(calls) == 3:
            raise ValueError("mine")

    runner = make_runner(on_episode_end=fail)
    with pytest.raises(ValueError, match="mine"):
        runner.sample(num_timesteps=1000)
    assert [episode.id_ for episode in runner.sample(num_timesteps=1)][:2] == calls[:2]


class PaysArrays(MultiAgentCartPole):
    """The second of these envs gives rewards without a truth value in its third step."""

    n_made = 0

    def __init__(self, config):
        super().__init__(config)
        self.number, self.n_steps = type(self).n_made, 0
        type(self).n_made += 1

    def step(self, action_dict):
        self.n_steps += 1
        obs, rewards, *others = super().step(action_dict)
        odd = dict.fromkeys(rewards, np.ones(2))
        return obs, odd if self.number == 1 and self.n_steps == 3 else rewards, *others


@pytest.mark.parametrize("where", ["callback", "env"])
def test_the_steps_of_a_failed_call_are_counted(where):
    def fail(*, episode, **kwargs):
        if episode.env_t == 3:
            raise ValueError("mine")

    def counted(runner_class):
        env = type("Env", (PaysArrays,), {}) if where == "env" else MultiAgentCartPole
        callbacks = {"on_episode_step": fail} if where == "callback" else {}
        runner = make_runner(runner_class=runner_class, env=env, **callbacks)
        with pytest.raises(Exception, match=r"mine|ambiguous"):
            runner.sample(num_timesteps=1000)
        metrics = runner.get_metrics()
        agents = metrics["num_agent_steps_sampled"].items()
        return metrics["num_env_steps_sampled"].peek(), sorted((agent, stats.peek()) for agent, stats in agents)

    assert counted(MultiAgentEnvRunner) == counted(RLlibEnvRunner)


def test_a_callback_cannot_sample():
    runner = make_runner(on_episode_step=lambda *, env_runner, **kwargs: env_runner.sample(num_timesteps=1))
    with pytest.raises(RunnerBusyError):
        runner.sample(num_timesteps=4)


class ReadsTheLoop(RLlibCallback):
    def on_episode_step(self, *, env_runner, env_index, **kwargs):
        assert len(env_runner._ongoing_episodes[env_index])


def test_callbacks_that_read_rllibs_loop_get_rllibs_loop():
    runner = make_runner(callbacks_class=ReadsTheLoop)
    runner.sample(num_timesteps=4)
    assert runner.slow_path_reasons == [
        "the callback ReadsTheLoop.on_episode_step() reads the runner's _ongoing_episodes"
    ]


def test_arguments_are_rllibs():
    def names_in(runner_class):
        seen = []
        events = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
        notes = {event: lambda event=event, **kwargs: seen.append((event, [*kwargs])) for event in events}
        make_runner(runner_class=runner_class, **notes).sample(num_timesteps=60)
        return seen

    assert names_in(MultiAgentEnvRunner) == names_in(RLlibEnvRunner)


def test_an_episode_renamed_before_it_begins_is_not_built():
    def rename(*, episode, env_index, **kwargs):
        episode.id_ = f"env={env_index}|{episode.id_}"

    runner = make_runner(on_episode_created=rename)
    runner.sample(num_timesteps=2)
    made = []
    runner._fast.events._episodes.built = lambda *arguments: made.append(arguments)
    episodes = runner.sample(num_timesteps=60)
    assert not made
    for episode in episodes:
        assert episode.id_.startswith("env=")
        assert {each.multi_agent_episode_id for each in episode.agent_episodes.values()} == {episode.id_}


@pytest.mark.parametrize("event", ["on_episode_created", "on_episode_start", "on_episode_step"])
def test_no_chunks_are_kept_of_episodes_that_were_renamed(event):
    """As many as there are running episodes: a name that was given up has none."""
    lengths = []

    def rename(*, episode, env_index, **kwargs):
        if not episode.id_.startswith("env=") and len(episode) in (0, 3):
            episode.id_ = f"env={env_index}|{episode.id_}"

    def note(*, episode, prev_episode_chunks, **kwargs):
        lengths.append((episode.env_t, len(episode) + sum(map(len, prev_episode_chunks))))

    runner = make_runner(on_episode_end=note, **{event: rename})
    for _ in range(50):
        runner.sample(num_timesteps=4)
    assert len(lengths) > 5
    assert all(env_t == total for env_t, total in lengths)
    runner.get_metrics()
    assert len(runner._ongoing_episodes_for_metrics) <= runner.num_envs


def test_an_episode_renamed_at_its_end_counts_with_its_full_length():
    lengths = []

    def rename(*, episode, **kwargs):
        lengths.append(episode.env_t)
        episode.id_ = f"{episode.env_t}|{episode.id_}"

    runner = make_runner(on_episode_end=rename)
    returned = [episode for _ in range(50) for episode in runner.sample(num_timesteps=4)]
    assert [episode.env_t for episode in returned if episode.id_.startswith(f"{episode.env_t}|")] == lengths
    assert runner.get_metrics()["episode_len_mean"].peek() == pytest.approx(np.mean(lengths))
    assert len(runner._ongoing_episodes_for_metrics) <= runner.num_envs


def test_an_id_that_is_no_text_is_an_error():
    def rename(*, episode, **kwargs):
        episode.id_ = 7

    runner = make_runner(on_episode_start=rename)
    with pytest.raises(RunningEpisodeError, match="expected the id_ of an episode to be a str, got 7"):
        runner.sample(num_timesteps=4)


def asking(how, event):
    """A class of callbacks that read RLlib's loop at an event, in ways that their code does not show."""

    def ask(self, *, env_runner, episode=None, **kwargs):
        found = READ[how](env_runner)
        self.seen.append((found, episode is not None and [*WAYS["getattr"](env_runner, EPISODES)].index(episode)))

    return type("Asks", (RLlibCallback,), {"seen": [], f"on_{event}": ask})


EPISODES = "_ongoing_episodes"
WAYS = {
    "getattr": getattr,
    "vars": lambda runner, name: vars(runner)[name],
    "get": lambda runner, name: runner.__dict__.get(name),
    "closure": lambda runner, name: (lambda: getattr(runner, name))(),
}


def lengths(episodes):
    return [None if episode is None else len(episode) for episode in episodes]


def deep(episodes):
    """Return the data of running episodes, which are built for that."""
    return [
        None if episode is None else (episode.env_t, [*map(outline, episode.agent_episodes.values())])
        for episode in episodes
    ]


def outline(part):
    return part.agent_id, [*part.get_rewards()], np.array(part.get_observations(-1)).tolist()


def returns(chunks):
    return [(len(chunk), chunk.get_return(), len(chunk.agent_episodes)) for chunk in chunks]


READ = {
    **{f"lengths by {way}": lambda runner, read=read: lengths(read(runner, EPISODES)) for way, read in WAYS.items()},
    "all there is": lambda runner: deep(getattr(runner, EPISODES)),
    "done": lambda runner: returns(WAYS["vars"](runner, "_done_episodes_for_metrics")),
    "earlier chunks": lambda runner: sorted(
        returns(chunks) for chunks in WAYS["closure"](runner, "_ongoing_episodes_for_metrics").values() if chunks
    ),
    "reset": lambda runner: WAYS["getattr"](runner, "_needs_initial_reset"),
    "next batch": lambda runner: getattr(runner, "_cached_to_module") and deep(getattr(runner, EPISODES)),  # noqa: B009
}
EVENTS_TO_ASK = ("episode_created", "episode_start", "episode_step", "episode_end", "sample_end")


ALL_READINGS = [*product(EVENTS_TO_ASK, READ)]
FEW = {
    *product(["episode_step"], READ),
    *product(EVENTS_TO_ASK, ["all there is"]),
    *product(["sample_end"], ["done", "earlier chunks", "reset"]),
}


@pytest.mark.parametrize(
    ("event", "how"),
    [*(each for each in ALL_READINGS if each in FEW), *further(each for each in ALL_READINGS if each not in FEW)],
)
def test_code_that_reads_rllibs_loop_gets_its_values(how, event):
    answers = []
    for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner):
        if how == "next batch" and event in ("episode_created", "episode_start"):
            return  # at a reset, see the next test
        runner = make_runner(runner_class=runner_class, callbacks_class=asking(how, event))
        reports = []
        for n in (5, 40, 30, 20):
            episodes = runner.sample(num_timesteps=n)
            reports.append([(len(each), each.get_return()) for each in episodes])
            if n != 40:
                mean = runner.get_metrics().get("episode_return_mean")
                reports.append(mean and mean.peek())
        (callback,) = runner._callbacks
        answers.append((callback.seen, reports))
        if runner_class is MultiAgentEnvRunner:
            assert runner.is_accelerated == (how == "reset" and event == "sample_end")
            assert set(runner.slow_path_codes) <= {"callback_reads_runner"}
    assert repr(answers[0]) == repr(answers[1])
    assert answers[0][0]


@pytest.mark.parametrize("name", ["_shared_data", "_cached_to_module"])
def test_reading_attributes_unknown_in_a_call_raises_and_rllibs_loop_goes_on(name):
    seen = []
    runner = make_runner(on_episode_start=lambda *, env_runner, **kwargs: seen.append(bool(getattr(env_runner, name))))
    with pytest.raises(RunningEpisodeError, match=f"can't read the runner's {name} here.*RLlib's loop samples"):
        runner.sample(num_timesteps=4)
    runner.sample(num_timesteps=4)
    assert runner.slow_path_reasons == [f"a callback or other code read the runner's {name}"]
    assert seen and all(seen)


def test_the_loop_is_read_between_calls():
    """By code other than callbacks: episodes go on from there."""
    answers = []
    for runner_class in (RLlibEnvRunner, MultiAgentEnvRunner):
        runner = make_runner(runner_class=runner_class)
        before = len(getattr(runner, EPISODES)), vars(runner).get("_shared_data")
        runner.sample(num_timesteps=9)
        batch = runner._cached_to_module
        seen = before, deep(vars(runner)[EPISODES]), {key: value.tolist() for key, value in batch["p0"].items()}
        episodes = runner.sample(num_timesteps=30)
        answers.append((seen, [(len(each), each.get_return(), each.env_t) for each in episodes]))
        with pytest.raises(KeyError):
            vars(runner)["none"]
        assert vars(runner).get("none", 7) == 7
    assert repr(answers[0]) == repr(answers[1])
    assert not runner.is_accelerated
    runner = make_runner()
    runner.sample(num_episodes=1)
    with pytest.raises(RunningEpisodeError, match=r"no _ongoing_episodes after sample\(num_episodes=\.\.\.\)"):
        runner._ongoing_episodes  # noqa: B018
    runner.sample(num_episodes=1)
    assert not runner.is_accelerated and len(runner._ongoing_episodes) == 2


def test_the_loops_state_cant_be_set_while_fastmarl_samples():
    runner = make_runner(on_episode_step=lambda *, env_runner, **kwargs: setattr(env_runner, EPISODES, []))
    with pytest.raises(RunningEpisodeError, match="can't set the runner's _ongoing_episodes while sample"):
        runner.sample(num_timesteps=4)
