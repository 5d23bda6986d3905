"""Behaviour cloning: record episodes of a policy in Parquet files, and train another policy to imitate them.

python examples/behaviour_cloning.py --folder runs/bc                      (trains a demonstrator by PPO first)
python examples/behaviour_cloning.py --checkpoint runs/ippo/checkpoint   (uses one that examples/ippo.py trained)

Returns on simple_spread are negative: random play returns about -79. The clone is therefore scored by the fraction of
the gap between random play and the recorded play that it closes: 0 % is random play, 100 % the return of the recorded
episodes. The demonstrator samples its actions, so the clone is evaluated with sampled play, and with greedy play for
comparison.
"""

import argparse
from pathlib import Path

import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import PPOLearner, flat_parameters, make_value_fn, to_tensors
from fastmarl.offline import ParquetReader, ParquetWriter

ENV, POLICY, LENGTH = "fastmarl.simple_spread", "default_policy", 25  # env steps per episode
NET = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}


def make_runner(num_envs, seed):
    config = fastmarl.EnvRunnerConfig(
        env=ENV,
        num_envs_per_env_runner=num_envs,
        rollout_fragment_length=LENGTH,
        model_config=NET,
        seed=seed,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def train_demonstrator(steps, seed):
    """Return the weights of a policy trained by PPO; examples/ippo.py trains better ones in more steps."""
    with make_runner(128, seed) as runner:
        module = runner.module[POLICY]
        learner = PPOLearner(module, lr=2e-3, normalize_advantages=True)
        for _ in range(-(-steps // (128 * LENGTH))):
            batch = columns(runner.sample(), outputs=["action_logp", "vf_preds"])[POLICY]
            add_gae(batch, gamma=0.95, lambda_=0.95, value_fn=make_value_fn(module))
            learner.update(batch)
        return runner.get_weights()


def record(weights, args):
    """Write episodes of the demonstrator to files."""
    with make_runner(100, args.seed + 1) as runner, ParquetWriter(args.folder / "data", columns=[]) as writer:
        if weights is None:
            runner.restore_from_path(args.checkpoint)
        else:
            runner.set_weights(weights)
        for _ in range(-(-args.episodes // 100)):
            writer.write(runner.sample())


def recorded_return(folder):
    """Return (mean return of the recorded episodes, number of episodes)."""
    returns = [episode.get_return() for some in ParquetReader(folder).iter_episodes() for episode in some]
    return sum(returns) / len(returns), len(returns)


def clone(folder, args):
    """Return the weights of a policy trained to choose the recorded actions."""
    reader = ParquetReader(folder)
    with make_runner(1, args.seed + 2) as runner:
        module = runner.module[POLICY]
        parameters = flat_parameters(module)
        optimizer = torch.optim.Adam([parameters], lr=3e-3, fused=True)
        steps = args.epochs * -(-reader.num_rows(POLICY) // args.batch_size)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
        distribution = module.get_train_action_dist_cls()
        for epoch in range(args.epochs):
            losses = []
            for batch in reader.iter_batches(module_id=POLICY, batch_size=args.batch_size, shuffle=True, seed=epoch):
                rows = to_tensors(batch, ["obs", "actions"])
                logits = module.forward_train(rows)["action_dist_inputs"]
                loss = -distribution.from_logits(logits).logp(rows["actions"]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            print(f"epoch {epoch + 1:2}  loss {sum(losses) / len(losses):.4f}")
        return runner.get_weights()


def mean_return(args, weights=None, **play):
    """Return the mean return of new episodes, played with these weights, or at random without weights."""
    with make_runner(100, args.seed + 3) as runner:
        if weights is None:
            episodes = [each for _ in range(-(-args.evaluation // 100)) for each in runner.sample(random_actions=True)]
            return sum(episode.get_return() for episode in episodes) / len(episodes)
        runner.set_weights(weights)
        return fastmarl.evaluate(runner, episodes=args.evaluation, seeds=range(args.evaluation), **play).mean


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="checkpoint of the demonstrator; without it, one is trained")
    parser.add_argument("--steps", type=int, default=2_000_000, help="env steps of the demonstrator's training")
    parser.add_argument("--episodes", type=int, default=4000, help="episodes to record")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the recorded steps")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--evaluation", type=int, default=2000, help="episodes of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/bc"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    weights = None if args.checkpoint else train_demonstrator(args.steps, args.seed)
    record(weights, args)
    data = args.folder / "data"
    recorded, n = recorded_return(data)
    cloned = clone(data, args)
    random, sampled = mean_return(args), mean_return(args, cloned, explore=True)
    print(f"recorded: mean return {recorded:.2f} over {n} episodes; random play {random:.2f}")
    print(f"clone: sampled play {sampled:.2f}, greedy play {mean_return(args, cloned, explore=False):.2f}")
    print(f"gap to random play closed: {(sampled - random) / (recorded - random):.1%}")


if __name__ == "__main__":
    main()
