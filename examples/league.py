"""Self-play in a league: "main" learns tic-tac-toe against its past versions and a random player, by actor-critic.

When it wins often enough, a copy of it joins the league. Copies are not trained, and `sample()` omits their moves.

python examples/league.py --iterations 200
"""

import argparse
import random

import torch

import fastmarl

PROMOTED_AT = 0.4  # mean return of an iteration, between -1 (all games lost) and 1 (all won)


class RandomPlayer(fastmarl.RLModule):
    """A module without weights that plays random legal moves."""

    def _forward(self, batch, **kwargs):
        mask = batch["obs"]["action_mask"]
        return {"actions": torch.multinomial(mask.float(), 1).squeeze(-1)}


def matchmaker(opponents, rng):
    """Return a mapping function: in each episode, "main" plays one side and one of `opponents` the other."""

    def policy_mapping_fn(agent_id, episode, **kwargs):
        players = episode.custom_data.get("players")
        if players is None:
            sides = rng.sample(["player_1", "player_2"], 2)
            players = episode.custom_data["players"] = {sides[0]: "main", sides[1]: rng.choice(opponents)}
        return players[agent_id]

    return policy_mapping_fn


def loss_of(module, episodes):
    """Return the actor-critic loss with the value network as baseline, and sums of future rewards as returns."""
    parts = [part for episode in episodes for part in episode.agent_episodes.values()]
    obs = {
        key: torch.cat([torch.as_tensor(part.get_observations()[key][:-1]) for part in parts])
        for key in ("observation", "action_mask")
    }
    actions = torch.cat([torch.as_tensor(part.get_actions()) for part in parts])
    rewards = [torch.as_tensor(part.get_rewards(), dtype=torch.float32) for part in parts]
    returns = torch.cat([of_part.flip(0).cumsum(0).flip(0) for of_part in rewards])
    outputs = module.forward_train({"obs": obs})
    dist = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
    advantages = returns - outputs["vf_preds"]
    policy_loss = -(dist.logp(actions) * advantages.detach()).mean()
    return policy_loss + 0.5 * advantages.square().mean() - 0.01 * dist.entropy().mean()


def train(runner, opponents, rng, iterations, games):
    main = runner.module["main"]
    optimizer = torch.optim.Adam(main.parameters(), lr=2e-3)
    for iteration in range(iterations):
        episodes = runner.sample(num_episodes=games)
        optimizer.zero_grad()
        loss_of(main, episodes).backward()
        optimizer.step()
        mean_return = sum(episode.get_return() for episode in episodes) / games  # of "main" only
        print(f"iteration {iteration:3}  mean return {mean_return:5.2f}  opponents {len(opponents)}")
        if mean_return > PROMOTED_AT:
            opponents.append(f"main_v{len(opponents)}")
            runner.add_module(opponents[-1], new_agent_to_module_mapping_fn=matchmaker(tuple(opponents), rng))
            runner.set_weights({opponents[-1]: runner.get_weights()["main"]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--games", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng, opponents = random.Random(args.seed), ["random"]
    config = fastmarl.EnvRunnerConfig(
        env="pettingzoo.classic.tictactoe_v3",
        num_envs_per_env_runner=16,
        policies={"main": None, "random": fastmarl.RLModuleSpec(RandomPlayer)},
        policy_mapping_fn=matchmaker(tuple(opponents), rng),
        policies_to_train=["main"],
        return_only_policies_to_train=True,
        model_config={"fcnet_hiddens": [64, 64]},
        seed=args.seed,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    train(runner, opponents, rng, args.iterations, args.games)
    runner.stop()


if __name__ == "__main__":
    main()
