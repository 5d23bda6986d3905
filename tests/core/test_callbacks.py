import functools
import gc
import types
import weakref
from dataclasses import replace

import pytest

import fastmarl
from fastmarl.core.callbacks import EVENTS, Callbacks, listeners
from fastmarl.errors import ConfigError
from fastmarl.runner.loop import listeners as runner_listeners
from fastmarl.testing import CountingEnv


class Recorder(Callbacks):
    """Writes down the ends it hears of."""

    def __init__(self, log=None):
        self.log = [] if log is None else log

    def on_episode_end(self, *, episode, **kwargs):
        self.log.append(("class", episode))


def rllib_classes():
    """Stand-ins with the module and class names that RLlib's own classes have."""
    events = [*EVENTS, "on_train_result"]
    base = type("RLlibCallback", (), {event: lambda self, **kwargs: None for event in events})
    base.__module__ = "ray.rllib.callbacks.callbacks"
    tracker = type("MemoryTrackingCallbacks", (base,), {"on_episode_end": lambda self, **kwargs: "rllib"})
    tracker.__module__ = base.__module__
    mine = type(
        "Mine", (base,), {event: lambda self, **kwargs: "mine" for event in ("on_sample_end", "on_train_result")}
    )
    return base, tracker, mine


def heard(found):
    return {event for event, callables in found.items() if callables}


@pytest.mark.parametrize("callbacks_class", [None, [], Callbacks, rllib_classes()[0]])
def test_events_without_overrides_have_no_listeners(callbacks_class):
    assert listeners(callbacks_class, {}) == dict.fromkeys(EVENTS, ())


def test_only_overridden_events_are_heard():
    assert heard(listeners(Recorder, {})) == {"on_episode_end"}


def test_an_override_is_inherited():
    class Heir(Recorder):
        pass

    assert heard(listeners(Heir, {})) == {"on_episode_end"}


def test_each_class_is_instantiated_once_for_all_events():
    class Both(Callbacks):
        def on_episode_start(self, **kwargs):
            self.started = True

        def on_episode_end(self, **kwargs):
            return self.started

    found = listeners(Both, {})
    found["on_episode_start"][0]()
    assert found["on_episode_end"][0]() is True


def test_classes_come_before_functions_and_keep_their_order():
    log = []
    classes = [functools.partial(Recorder, log), functools.partial(Recorder, log)]
    functions = [functools.partial(lambda i, *, episode, **kwargs: log.append((i, episode)), i) for i in range(2)]
    for listener in listeners(classes, {"on_episode_end": functions})["on_episode_end"]:
        listener(episode="e")
    assert log == [("class", "e"), ("class", "e"), (0, "e"), (1, "e")]


def test_a_single_function_and_none_are_taken_as_they_are():
    found = listeners(None, {"on_sample_end": max, "on_episode_step": None})
    assert found["on_sample_end"] == (max,)
    assert found["on_episode_step"] == ()


def test_classes_without_our_base_work():
    class Plain:
        def on_episode_step(self, **kwargs):
            return "plain"

    found = listeners(Plain, {})
    assert heard(found) == {"on_episode_step"}
    assert found["on_episode_step"][0](episode=None) == "plain"


def test_a_method_set_on_the_object_is_heard():
    def make():
        obj = Callbacks()
        obj.on_episode_step = lambda **kwargs: "instance"
        return obj

    assert heard(listeners(make, {})) == {"on_episode_step"}


def test_rllib_subclasses_are_heard_even_those_that_rllib_ships():
    _, tracker, mine = rllib_classes()
    assert heard(listeners(tracker, {})) == {"on_episode_end"}
    assert heard(listeners(mine, {})) == {"on_sample_end"}


def test_an_instance_instead_of_a_class_is_refused():
    with pytest.raises(ConfigError, match="pass the class itself"):
        listeners(Recorder(), {})


def test_an_unknown_event_is_refused_by_name():
    with pytest.raises(ConfigError, match="'on_episode_finish'; the events are on_environment_created, "):
        listeners(None, {"on_episode_finish": max})


def test_a_misspelt_method_is_refused():
    class Typo(Callbacks):
        def on_epsiode_end(self, **kwargs):
            raise AssertionError

    message = "unknown callback event 'on_epsiode_end' of Typo; the events are .*; did you mean 'on_episode_end'"
    with pytest.raises(ConfigError, match=message):
        listeners(Typo, {})


def test_attributes_that_are_no_methods_may_have_any_name():
    class Counts(Recorder):
        on_the_way = 0

    assert heard(listeners(Counts, {})) == {"on_episode_end"}


class Few(Callbacks):
    def on_episode_end(self, *, episode):
        raise AssertionError


@pytest.mark.parametrize(
    ("callbacks_class", "functions", "text"),
    [
        (Few, {}, "which Few.on_episode_end does not accept: got an unexpected keyword argument '.*'"),
        (None, {"on_episode_end": lambda episodes, **kwargs: None}, "missing a required argument: 'episodes'"),
        (
            None,
            {"on_sample_end": lambda samples: None},
            "with the keywords env_runner, metrics_logger, samples, which .* 'env_runner'",
        ),
    ],
)
def test_a_signature_that_events_do_not_fit_is_refused(callbacks_class, functions, text):
    with pytest.raises(ConfigError, match=f"{text}; name the arguments you use, and end the signature with ..kwargs"):
        listeners(callbacks_class, functions)


def test_a_decorator_may_take_more_than_the_function_it_wraps():
    @functools.wraps(len)
    def on_sample_end(*args, **kwargs):
        return len(kwargs["samples"])

    assert heard(listeners(None, {"on_sample_end": on_sample_end})) == {"on_sample_end"}


@pytest.mark.parametrize("bad", ["print", [max, 3], types.SimpleNamespace()])
def test_something_that_cannot_be_called_is_refused(bad):
    with pytest.raises(ConfigError, match="callbacks_on_sample_end must be a callable"):
        listeners(None, {"on_sample_end": bad})


def test_chunks_remembered_of_an_endless_episode_are_bounded(monkeypatch):
    monkeypatch.setattr(runner_listeners, "MOST_REMEMBERED", 50)
    received = []
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env=lambda config: CountingEnv(episode_length=195),
            callbacks_on_episode_end=lambda prev_episode_chunks, **kwargs: received.append(prev_episode_chunks),
        )
    )
    with pytest.warns(RuntimeWarning, match="the last 50 env steps") as warned:
        chunks = [weakref.ref(runner.sample(num_timesteps=10)[0]) for _ in range(19)]
    gc.collect()
    assert len(warned) == 1
    assert [chunk() is not None for chunk in chunks] == [False] * 14 + [True] * 5
    runner.sample(num_timesteps=10)
    (earlier,) = received
    assert [(chunk.env_t_started, chunk.env_t) for chunk in earlier] == [(t, t + 10) for t in range(140, 190, 10)]
    assert sum(chunk.agent_steps() for chunk in earlier) == 100


def make_runner(**options):
    config = {"env": lambda config: CountingEnv(episode_length=3), "num_envs_per_env_runner": 2, "seed": 5, **options}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**config))


class InformingEnv(CountingEnv):
    """Gives the first agent an info at every step, so that each chunk has data of its own."""

    def step(self, actions):
        *results, _ = super().step(actions)
        return *results, {self.possible_agents[0]: {"env_t": self.env_t}}


@pytest.mark.parametrize("holder", ["the episode", "a callback"])
def test_custom_data_that_is_still_empty_stays_with_its_episode(holder):
    """The record of an ended episode serves another one as soon as later ones have ended that are summed up instead."""
    held, written = [], 5

    def on_episode_start(*, episode, **kwargs):
        if len(held) == written:
            episode.custom_data["number"] = written
        held.append(episode.custom_data if holder == "a callback" else None)

    runner = make_runner(
        env=lambda config: (InformingEnv if holder == "the episode" else CountingEnv)(episode_length=3),
        num_envs_per_env_runner=1,
        metrics_num_episodes_for_smoothing=1,
        callbacks_on_episode_start=on_episode_start,
    )
    episodes = runner.sample(num_episodes=8)
    kept = held if holder == "a callback" else [episode.custom_data for episode in episodes]
    assert kept == [{}] * written + [{"number": written}] + [{}] * 2


def test_a_class_that_is_given_twice_keeps_both_objects_as_the_config_changes():
    heard = []

    class Hears(Callbacks):
        def on_sample_end(self, **kwargs):
            heard.append(self)

    runner = make_runner(callbacks_class=[Hears, Hears])
    runner.sample(num_timesteps=1)
    runner.config = replace(runner.config, explore=False)
    runner.sample(num_timesteps=1)
    one, other, *again = heard
    assert one is not other and again == [one, other]


def test_on_episode_start_has_the_seed_of_its_reset():
    begun = {}

    def on_episode_start(*, episode, **kwargs):
        begun[episode.id_] = episode.reset_seed

    runner = make_runner(callbacks_on_episode_start=on_episode_start)
    episodes = runner.sample(num_episodes=6)
    assert [begun[episode.id_] for episode in episodes] == [episode.reset_seed for episode in episodes]
    assert len(set(begun.values())) == len(begun) and None not in begun.values()


def test_weights_set_in_a_callback_number_the_actions_after_it():
    def on_episode_step(*, env_runner, episode, **kwargs):
        if episode.env_t == 1:
            env_runner.set_weights(env_runner.get_weights(), weights_seq_no=7)

    runner = make_runner(
        num_envs_per_env_runner=1,
        env=lambda config: CountingEnv(episode_length=5),
        callbacks_on_episode_step=on_episode_step,
    )
    (episode,) = runner.sample(num_episodes=1)
    for part in episode.agent_episodes.values():
        assert part.get_extra_model_outputs("weights_seq_no").tolist() == [0, 7, 7, 7, 7]
