"""Self-play in a league on connect four: PPO against itself, frozen copies of itself and two rule-based players.

python examples/self_play.py --steps 12000000 --folder runs/self_play

Greedy play then won 960 and 910 of 1,000 games as first and second player against a player that looks one move ahead,
and 997 and 999 against random moves (12 minutes; docs/gallery.md). --folder receives the learning curve and a
checkpoint.
"""

import argparse
import random
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import nn

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import MetricsWriter, PPOLearner, make_value_fn

GAMMA, LAMBDA, EPOCHS, MINIBATCH, MAX_GRAD_NORM = 0.98, 0.95, 4, 512, 0.5
NUM_ENVS, FRAGMENT, LEARNING_RATE = 512, 16, 7e-4
ENTROPY = 0.02, 0.005  # weight of its bonus, at the start and at the end
SHARES = 0.3, 0.3, 0.4  # of games against "main" itself, the one-ply player, and any player of the league
COPIES, COPY_EVERY = 6, 60  # maximum number; updates between two
SIDES = ("player_0", "player_1")


def landing_cells(board):
    """Return the cells in which the next stone of each column lands.

    Args:
        board: float32 [B, 6, 7, 2].

    Returns:
        float32 [B, 6, 7], 1 in these cells.
    """
    free = 1 - board.sum(-1)
    return free * (1 - nn.functional.pad(free[:, 1:], (0, 0, 0, 1)))  # free cells without a free one below


class Net(fastmarl.RLModule):
    """Applies the same weights to all twelve squares of 4 x 4 cells; every line of four lies in one of them."""

    def setup(self):
        self.square, self.trunk = nn.Linear(4 * 4 * 3, 64), nn.Linear(12 * 64, 128)
        self.pi, self.vf = nn.Linear(128, 7), nn.Linear(128, 1)

    def _forward(self, batch, **kwargs):
        board, mask = batch["obs"]["observation"].float(), batch["obs"]["action_mask"]  # [B, 6, 7, 2], [B, 7]
        cells = torch.cat([board, landing_cells(board).unsqueeze(-1)], -1)
        squares = cells.unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 12, 4 * 4 * 3)
        features = self.trunk(self.square(squares).relu().flatten(1)).relu()
        logits = self.pi(features).masked_fill(mask == 0, torch.finfo(torch.float32).min)
        return {"action_dist_inputs": logits, "vf_preds": self.vf(features).squeeze(-1)}


class RandomPlayer(fastmarl.RLModule):
    """Plays random legal moves, each equally likely."""

    def _forward(self, batch, **kwargs):
        return {"actions": torch.multinomial(batch["obs"]["action_mask"].float(), 1).squeeze(-1)}


class OnePlyPlayer(fastmarl.RLModule):
    """Wins in one move if possible, otherwise blocks a one-move win of the opponent, otherwise plays at random."""

    def setup(self):
        row, diagonal = torch.eye(4)[:1].expand(4, 4).T, torch.eye(4)
        self.lines = torch.stack([row, row.T, diagonal, diagonal.flip(0)]).unsqueeze(1)

    def winning(self, stones, cells):
        """Return the columns in which another stone completes four in a row: bool [B, 7].

        Args:
            stones: Stones of a player, [B, 6, 7].
            cells: Result of `landing_cells()`, [B, 6, 7].
        """
        after = stones.unsqueeze(1) + cells.unsqueeze(1) * torch.eye(7).unsqueeze(1)  # [B, 7, 6, 7]
        in_line = nn.functional.conv2d(after.reshape(-1, 1, 6, 7), self.lines, padding=3)
        return (in_line == 4).flatten(1).any(1).view(-1, 7)

    def _forward(self, batch, **kwargs):
        board = batch["obs"]["observation"].float()
        cells, (own, others) = landing_cells(board), board.unbind(-1)
        choice = legal = batch["obs"]["action_mask"].bool()
        for stones in (others, own):
            winning = self.winning(stones, cells) & legal
            choice = torch.where(winning.any(1, keepdim=True), winning, choice)
        return {"actions": torch.multinomial(choice.float(), 1).squeeze(-1)}


class League:
    """The opponents of "main", with Elo ratings of all players; the rating of the random player remains 0."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.founders = {"main": Net, "random": RandomPlayer, "one_ply": OnePlyPlayer}
        self.ratings = dict.fromkeys(self.founders, 0.0)

    def expected(self, opponent):
        """Return the score of main predicted by the ratings, from 0 (it loses) to 1 (it wins)."""
        return 1 / (1 + 10 ** ((self.ratings[opponent] - self.ratings["main"]) / 400))

    def player_of(self, agent_id, episode, **kwargs):
        """Map agents to players; in the league, strong opponents are chosen more often."""
        if not episode.custom_data:
            league = [name for name in self.ratings if name != "main"]
            anyone = self.rng.choices(league, [1.02 - self.expected(name) for name in league])[0]
            opponent = self.rng.choices(("main", "one_ply", anyone), SHARES)[0]
            episode.custom_data.update(zip(self.rng.sample(SIDES, 2), ("main", opponent), strict=True))
        return episode.custom_data[agent_id]

    def rate(self, episodes):
        """Update the ratings; each game changes the ratings of both players by at most one point."""
        for episode in episodes:
            opponent = next((name for name in episode.custom_data.values() if name != "main"), None)
            if episode.is_done and opponent in self.ratings:
                gain = episode.get_return() if episode.agent_episodes else -1.0  # main lost before its first move
                surprise = (gain + 1) / 2 - self.expected(opponent)
                self.ratings["main"] += surprise
                self.ratings[opponent] -= surprise if opponent != "random" else 0.0

    def add_copy(self, runner, name):
        """Add a copy of main. If there are too many copies, the one with the lowest rating leaves."""
        runner.add_module(name, fastmarl.RLModuleSpec(Net), new_agent_to_module_mapping_fn=self.player_of)
        runner.set_weights({name: runner.get_weights()["main"]})
        self.ratings[name] = self.ratings["main"]
        if len(self.ratings) > len(self.founders) + COPIES:
            weakest = min(self.ratings.keys() - self.founders.keys(), key=self.ratings.get)
            runner.remove_module(weakest)
            del self.ratings[weakest]


def learn(ppo, episodes):
    """Train a module in place, so that its runner acts with the latest weights; returns the mean losses."""
    batch = columns(episodes)["main"]
    add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, value_fn=make_value_fn(ppo.module))
    return ppo.update(batch)


def make_config(args, league):
    return fastmarl.EnvRunnerConfig(
        env="fastmarl.connect_four",
        env_config={"random_moves": 8},
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        policies={name: fastmarl.RLModuleSpec(player) for name, player in league.founders.items()},
        policy_mapping_fn=league.player_of,
        policies_to_train=["main"],
        return_only_policies_to_train=True,
        seed=args.seed,
    )


def train(args, runner, league):
    num_updates, begun = -(-args.steps // (NUM_ENVS * FRAGMENT)), time.perf_counter()
    ppo = PPOLearner(
        runner.module["main"], lr=LEARNING_RATE, epochs=EPOCHS, minibatch_size=MINIBATCH, normalize_advantages=True,
        max_grad_norm=MAX_GRAD_NORM,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LinearLR(ppo.optimizer, 1.0, 0.05, num_updates)
    with MetricsWriter(csv_path=args.folder / "curve.csv") as curve:
        for update in range(num_updates):
            episodes = runner.sample()
            league.rate(episodes)
            ppo.entropy_coeff = ENTROPY[0] + (ENTROPY[1] - ENTROPY[0]) * update / num_updates
            stats = learn(ppo, episodes)
            schedule.step()
            if update % max(1, num_updates // 50) == 0 or update == num_updates - 1:
                steps, seconds = runner.get_metrics()["num_env_steps_sampled_lifetime"], time.perf_counter() - begun
                ratings = {name: round(league.ratings[name]) for name in ("main", "one_ply")}
                curve.write(steps, {"seconds": seconds, "rating": ratings}, stats)
                print(f"{steps:>10} moves  {seconds:6.1f} s  ratings {ratings}")
            if update % COPY_EVERY == COPY_EVERY - 1:
                league.add_copy(runner, f"main_{update + 1}")
    runner.save_to_path(args.folder / "checkpoint")


def evaluate(args, runner):
    """Evaluate greedy play from the empty board, on each side; also against the oldest copy of main in the league."""
    copies = sorted((name for name in runner.module if name.startswith("main_")), key=lambda name: int(name[5:]))
    for opponent, side in product(("random", "one_ply", *copies[:1]), SIDES):
        runner.set_policy_mapping_fn(lambda agent, episode, s=side, o=opponent: "main" if agent == s else o)
        returns = [episode.agent_episodes[side].get_return() for episode in runner.evaluate(args.games)]
        print(f"greedy play as {side} against {opponent}: won {returns.count(1.0)} of {args.games} games")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12_000_000, help="env steps, that is moves of both players")
    parser.add_argument("--games", type=int, default=1000, help="games of the evaluation per opponent and side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/self_play"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    league = League(args.seed)
    with fastmarl.MultiAgentEnvRunner(make_config(args, league)) as runner:
        train(args, runner, league)
        config = replace(runner.config, env_config={})  # with the modules of the checkpoint
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(args.folder / "checkpoint", config) as runner:
        evaluate(args, runner)


if __name__ == "__main__":
    main()
