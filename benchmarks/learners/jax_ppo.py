"""PPO with a shared policy in JAX, like PureJaxRL and JaxMARL's baselines: an iteration is one compiled function.

    build/peers/jax/bin/python benchmarks/learners/jax_ppo.py --seed 0
    build/peers/jax/bin/python benchmarks/learners/jax_ppo.py --num-envs 128 --iterations 300

The first command trains until a return is reached, as all learners here do. With --iterations the sizes are those of
`examples/ippo.py`, and CPU times of warm iterations are printed. The environment is JaxMARL's simple_spread, with the
same dynamics, rewards and observations as mpe2's, in float32. Its episodes have one step more than `max_steps`.

Where JAX offers several ways on a CPU, this uses the fastest that we found: products with features in rows, sorted
random numbers for a permutation, and `lax.cond` around resets, which JaxMARL's own `step()` computes at every step.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import common

# XLA starts a thread for each core that the process may use; it reads both settings once, at import.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jaxmarl  # noqa: E402
import optax  # noqa: E402
from jax import Array, lax  # noqa: E402

A = common.AGENTS
WARM_UP = 3  # iterations before the first timed one


class Sizes(NamedTuple):
    num_envs: int
    fragment: int
    epochs: int
    minibatch: int
    annealed: int | None = None  # iterations over which the learning rate falls to 2 %

    @property
    def rows(self) -> int:
        return self.num_envs * self.fragment * A


class Runner(NamedTuple):
    """State of an iteration. Axes: E environment, R agent of an environment, agents outermost."""

    networks: dict[str, list[tuple[Array, Array]]]
    optimizer: Any
    obs_RK: Array
    state_E: Any
    reward_sum_E: Array  # in running episodes
    key: Array


class Rollout(NamedTuple):
    """Sampled steps. Axes: T step, R row."""

    obs_TRK: Array
    actions_TR: Array
    logp_TR: Array
    values_TR: Array
    rewards_TR: Array  # including the estimated future at a time limit
    live_TR: Array  # 0 where the episode ended
    returns_TE: Array  # of episodes that ended, NaN elsewhere


def layers(key: Array, n_out: int, gain: float) -> list[tuple[Array, Array]]:
    """Return weights [n_out, n_in] and biases, distributed as in `common.initialize`."""
    sizes = common.OBSERVATION_SIZE, *common.HIDDENS, n_out
    gains = [2**0.5] * len(common.HIDDENS) + [gain]
    keys = jax.random.split(key, len(gains))
    return [
        (jax.nn.initializers.orthogonal(gain)(key, (n_out, n_in)), jnp.zeros((n_out, 1)))
        for key, gain, n_in, n_out in zip(keys, gains, sizes, sizes[1:], strict=False)
    ]


def forward(network: list[tuple[Array, Array]], obs_RK: Array) -> Array:
    """Return the outputs [n_out, R] of a network; features are in rows throughout."""
    *hidden, (weight, bias) = network
    x_KR = obs_RK.T
    for hidden_weight, hidden_bias in hidden:
        x_KR = jnp.tanh(hidden_weight @ x_KR + hidden_bias)
    return weight @ x_KR + bias


def values_of(networks: dict, obs_RK: Array) -> Array:
    return forward(networks["value"], obs_RK)[0]


def of_actions(x_NR: Array, actions_R: Array) -> Array:
    return jnp.take_along_axis(x_NR, actions_R[None], axis=0)[0]


def loss_of(networks: dict, rows: tuple[Array, ...]) -> Array:
    obs_RK, actions_R, old_logp_R, advantages_R, targets_R = rows
    logp_NR = jax.nn.log_softmax(forward(networks["policy"], obs_RK), axis=0)
    ratio_R = jnp.exp(of_actions(logp_NR, actions_R) - old_logp_R)
    clipped_R = jnp.clip(ratio_R, 1 - common.CLIP, 1 + common.CLIP)
    surrogate = jnp.minimum(ratio_R * advantages_R, clipped_R * advantages_R).mean()
    entropy = -(jnp.exp(logp_NR) * logp_NR).sum(0).mean()
    value_error = jnp.square(values_of(networks, obs_RK) - targets_R).mean()
    return common.VF_COEFF * value_error - surrogate - common.ENTROPY_COEFF * entropy


class PPO:
    """Functions of a `Runner`, to be compiled."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.env = jaxmarl.make("MPE_simple_spread_v3", num_agents=A, max_steps=common.MAX_CYCLES - 1)
        rate = common.LEARNING_RATE
        if sizes.annealed:
            n_steps = sizes.annealed * sizes.epochs * (sizes.rows // sizes.minibatch)
            rate = optax.linear_schedule(rate, 0.02 * rate, n_steps)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(common.MAX_GRAD_NORM), optax.adam(rate, eps=common.ADAM_EPS)
        )

    def begin(self, seed: int) -> Runner:
        policy, value, reset, key = jax.random.split(jax.random.key(seed), 4)
        networks = {"policy": layers(policy, common.ACTIONS, 0.01), "value": layers(value, 1, 1.0)}
        obs_RK, state_E = self.reset(reset)
        return Runner(networks, self.optimizer.init(networks), obs_RK, state_E, jnp.zeros(self.sizes.num_envs), key)

    def rows(self, by_agent: dict[str, Array]) -> Array:
        return jnp.concatenate([by_agent[agent] for agent in self.env.agents])

    def reset(self, key: Array) -> tuple[Array, Any]:
        obs, state_E = jax.vmap(self.env.reset)(jax.random.split(key, self.sizes.num_envs))
        return self.rows(obs), state_E

    def step(self, runner: Runner, key: Array) -> tuple[Runner, Rollout]:
        """Step all environments. Those that end are reset, after their last observations were valued."""
        networks, _, obs_RK, state_E, reward_sum_E, _ = runner
        n_envs = self.sizes.num_envs
        key_of_actions, key_of_step, key_of_reset = jax.random.split(key, 3)
        logits_NR = forward(networks["policy"], obs_RK)
        actions_R = jax.random.categorical(key_of_actions, logits_NR, axis=0)
        logp_R = of_actions(jax.nn.log_softmax(logits_NR, axis=0), actions_R)
        actions = dict(zip(self.env.agents, actions_R.reshape(A, n_envs), strict=True))
        seen, after_E, rewards, dones, _ = jax.vmap(self.env.step_env)(
            jax.random.split(key_of_step, n_envs), state_E, actions
        )
        seen_RK, rewards_R, done_E = self.rows(seen), self.rows(rewards), dones["__all__"]
        reward_sum_E += rewards_R.reshape(A, n_envs).sum(0)
        done_R = jnp.tile(done_E, A)
        rewards_R *= common.REWARD_SCALE

        def with_resets() -> tuple[Array, Any, Array]:
            first_RK, first_E = self.reset(key_of_reset)
            choose = jax.vmap(lambda is_new, new, old: jax.tree.map(partial(jnp.where, is_new), new, old))
            new_E = choose(done_E, first_E, after_E)
            later_R = jnp.where(done_R, common.GAMMA * values_of(networks, seen_RK), 0)
            return jnp.where(done_R[:, None], first_RK, seen_RK), new_E, rewards_R + later_R

        new_RK, new_E, rewards_R = lax.cond(done_E.any(), with_resets, lambda: (seen_RK, after_E, rewards_R))
        runner = runner._replace(obs_RK=new_RK, state_E=new_E, reward_sum_E=jnp.where(done_E, 0, reward_sum_E))
        returns_E, values_R = jnp.where(done_E, reward_sum_E, jnp.nan), values_of(networks, obs_RK)
        return runner, Rollout(obs_RK, actions_R, logp_R, values_R, rewards_R, 1.0 - done_R, returns_E)

    def sample(self, runner: Runner) -> tuple[Runner, Rollout]:
        key, key_of_steps = jax.random.split(runner.key)
        return lax.scan(self.step, runner._replace(key=key), jax.random.split(key_of_steps, self.sizes.fragment))

    def advantages(self, runner: Runner, rollout: Rollout) -> Array:
        def back(carry: tuple[Array, Array], step: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
            (advantage_R, following_R), (values_R, rewards_R, live_R) = carry, step
            delta_R = rewards_R + common.GAMMA * following_R * live_R - values_R
            advantage_R = delta_R + common.GAMMA * common.LAMBDA * live_R * advantage_R
            return (advantage_R, values_R), advantage_R

        following_R = values_of(runner.networks, runner.obs_RK)
        steps = rollout.values_TR, rollout.rewards_TR, rollout.live_TR
        return lax.scan(back, (jnp.zeros_like(following_R), following_R), steps, reverse=True)[1]

    def learn(self, runner: Runner, rollout: Rollout) -> Runner:
        sizes = self.sizes
        advantages_TR = self.advantages(runner, rollout)
        scaled_TR = (advantages_TR - advantages_TR.mean()) / (advantages_TR.std() + 1e-8)
        columns = (rollout.obs_TRK, rollout.actions_TR, rollout.logp_TR, scaled_TR, advantages_TR + rollout.values_TR)
        batch = [column.reshape(sizes.rows, *column.shape[2:]) for column in columns]

        def minibatch(carry: tuple, rows: tuple[Array, ...]) -> tuple[tuple, None]:
            networks, state = carry
            updates, state = self.optimizer.update(jax.grad(loss_of)(networks, rows), state)
            return (optax.apply_updates(networks, updates), state), None

        def epoch(carry: tuple, key: Array) -> tuple[tuple, None]:
            order = jnp.argsort(jax.random.bits(key, sizes.rows))
            shuffled = tuple(column[order].reshape(-1, sizes.minibatch, *column.shape[1:]) for column in batch)
            return lax.scan(minibatch, carry, shuffled)

        key, key_of_epochs = jax.random.split(runner.key)
        begin = runner.networks, runner.optimizer
        (networks, state), _ = lax.scan(epoch, begin, jax.random.split(key_of_epochs, sizes.epochs))
        return runner._replace(networks=networks, optimizer=state, key=key)

    def iteration(self, runner: Runner) -> tuple[Runner, Array]:
        """Return the new runner, and the returns of episodes that ended, NaN elsewhere."""
        runner, rollout = self.sample(runner)
        return self.learn(runner, rollout), rollout.returns_TE


def cpu_time(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Return the seconds and the result of a call."""
    began = time.process_time()
    returned = jax.block_until_ready(call(*args))
    return time.process_time() - began, returned


def compiled(function: Callable[..., Any], *args: Any) -> tuple[float, Callable[..., Any]]:
    return cpu_time(lambda: jax.jit(function).lower(*args).compile())


def ended(returns_TE: Array) -> list[float]:
    return returns_TE[~jnp.isnan(returns_TE)].tolist()


def time_iterations(ppo: PPO, runner: Runner, iterations: int) -> dict[str, Any]:
    """Return medians of warm iterations in ms of CPU time, also of sampling and learning, compiled separately."""
    compile_seconds, iterate = compiled(ppo.iteration, runner)
    whole, curve = [], []
    for _ in range(WARM_UP + iterations):
        seconds, (runner, returns_TE) = cpu_time(iterate, runner)
        whole.append(seconds)
        curve.append(statistics.fmean(ended(returns_TE)))
    _, sample = compiled(ppo.sample, runner)
    _, learn = compiled(ppo.learn, *sample(runner))
    sampling, learning = [], []
    for _ in range(WARM_UP + min(iterations, 20)):
        seconds, (runner, rollout) = cpu_time(sample, runner)
        sampling.append(seconds)
        seconds, runner = cpu_time(learn, runner, rollout)
        learning.append(seconds)
    times = {"iteration": whole, "sampling": sampling, "learning": learning}
    medians = {f"{name}_ms": 1000 * statistics.median(seconds[WARM_UP:]) for name, seconds in times.items()}
    return {**medians, "compilation_s": compile_seconds, "first_return": curve[0], "last_return": curve[-1]}


def train(ppo: PPO, runner: Runner, given: Any) -> None:
    seconds, iterate = compiled(ppo.iteration, runner)
    progress = common.Progress(given, compilation=seconds)
    while not progress.is_over:
        runner, returns_TE = iterate(runner)
        progress.add(ppo.sizes.num_envs * ppo.sizes.fragment, ended(returns_TE))


def main() -> None:
    parser = common.parser()
    parser.add_argument("--iterations", type=int, help="to be timed, with the sizes of examples/ippo.py")
    parser.add_argument("--num-envs", type=int, default=128, help="with --iterations")
    given = parser.parse_args()
    if given.iterations:
        rows = given.num_envs * 25 * A
        ppo = PPO(Sizes(given.num_envs, fragment=25, epochs=4, minibatch=rows // 4, annealed=given.iterations))
        print(json.dumps(time_iterations(ppo, ppo.begin(given.seed), given.iterations)))
    else:
        ppo = PPO(Sizes(common.NUM_ENVS, common.FRAGMENT, common.EPOCHS, common.MINIBATCH))
        train(ppo, ppo.begin(given.seed), given)


if __name__ == "__main__":
    main()
