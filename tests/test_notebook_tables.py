"""The tables that a notebook shows: of runners, episodes, evaluations and tournaments."""

from html.parser import HTMLParser

import torch
from support.levels import Levels

import fastmarl
from fastmarl.learning import PPOLearner

SPREAD = "fastmarl.simple_spread"
SPEC = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [4]})
HOSTILE = "<script>alert('&')</script>"


class Cells(HTMLParser):
    """Collects the texts of a table's cells, row by row; tags must match."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def cells_of(shown):
    parser = Cells()
    parser.feed(shown._repr_html_())
    assert parser.open == []
    assert parser.tags <= {"div", "b", "small", "br", "table", "thead", "tbody", "tr", "th", "td"}
    return parser.rows


def config(**options):
    return fastmarl.EnvRunnerConfig(**{"env": SPREAD, "policies": {HOSTILE: SPEC}, "seed": 0, **options})


def test_a_runner_before_during_and_after_its_life():
    seen = []

    def look(*, env_runner, episode, **kwargs):
        seen.append((dict(cells_of(env_runner)), cells_of(episode)))

    runner = fastmarl.MultiAgentEnvRunner(config(env=Levels, callbacks_on_episode_step=look))
    chunks = runner.sample(num_timesteps=30)
    plain = fastmarl.MultiAgentEnvRunner(config(env=Levels))
    assert [(each.env_t, each.get_return()) for each in plain.sample(num_timesteps=30)] == [
        (each.env_t, each.get_return()) for each in chunks
    ]  # looking changes nothing
    assert len(seen) == 30
    assert cells_of(runner)[0] == ["env", "Levels"]
    assert dict(cells_of(runner))["modules"] == HOSTILE
    assert dict(cells_of(runner))["env steps sampled"] == "30"
    runner.stop()
    assert "stopped" in runner._repr_html_()
    unmade = fastmarl.MultiAgentEnvRunner.__new__(fastmarl.MultiAgentEnvRunner)
    assert cells_of(unmade) == [["<MultiAgentEnvRunner, not made>"]]


def test_an_episode_has_a_row_for_each_agent():
    with fastmarl.MultiAgentEnvRunner(config()) as runner:
        (episode,) = runner.sample(num_episodes=1)
    heading, *rows = cells_of(episode)
    assert heading == ["agent", "module", "steps", "return", "end"]
    assert rows == [
        [str(agent), HOSTILE, str(len(each)), f"{each.get_return():g}", "truncated"]
        for agent, each in episode.agent_episodes.items()
    ]


def test_of_many_agents_some_are_shown():
    episode = fastmarl.episodes.MultiAgentEpisode()
    episode.add_env_reset(observations=dict.fromkeys(range(50), 0.0), infos={})
    assert len(cells_of(episode)) == 21
    assert "and 30 more agents" in episode._repr_html_()


def test_an_evaluation_and_a_tournament_show_their_tables():
    with fastmarl.MultiAgentEnvRunner(config()) as runner:
        found = fastmarl.evaluate(runner, episodes=3)
    rows = cells_of(found)
    assert [row[0] for row in rows] == ["", "all", *(f"agent {agent}" for agent in found.by_agent), f"module {HOSTILE}"]
    assert rows[1][2] == f"{found.mean:,.4g}"
    assert repr(found).startswith("<Evaluation of 3 episodes: mean ")
    games = fastmarl.tournament({HOSTILE: SPEC, "b": SPEC}, "fastmarl.connect_four", episodes=2)
    assert sorted(row[0] for row in cells_of(games)[1:]) == sorted([HOSTILE, "b"])
    assert repr(games) == f"<Tournament of {[HOSTILE, 'b']}: 2 games>"


def test_a_learner_says_how_it_computes():
    assert repr(PPOLearner(torch.nn.Linear(2, 2))) == "<PPOLearner of 6 parameters, autograd: there was no update yet>"
