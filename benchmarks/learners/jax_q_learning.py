"""CPU time of VDN's and QMIX's update in JAX, as JaxMARL's baselines write them, beside bench_team_learners.py.

python benchmarks/learners/jax_q_learning.py        (in an environment with jax and optax)

256 decisions of 3 agents, networks of 64-64, double Q-learning, Huber loss, Adam, a target network that follows. 200
updates run in one compiled loop, on the same batch: nothing is drawn from a replay and nothing is dispatched.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
import time
from functools import partial

import jax
import jax.numpy as jnp
import optax

ROWS, AGENTS, N_OBS, N_ACTIONS, SIZE, EMBED, UPDATES, ROUNDS = 256, 3, 18, 5, 64, 32, 200, 15
GAMMA, TAU = 0.9, 0.01
OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(5e-4))


def layers(key, *sizes):
    make = jax.nn.initializers.orthogonal()
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": make(each, (n_in, n_out)), "b": jnp.zeros(n_out)}
        for each, n_in, n_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def dense(net, x):
    for layer in net[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ net[-1]["w"] + net[-1]["b"]


def mixed(mixer, values, states):
    weights = jnp.abs(dense(mixer["weights"], states)).reshape(-1, AGENTS, EMBED)
    hidden = jax.nn.elu(jnp.einsum("na,nae->ne", values, weights) + dense(mixer["biases"], states))
    last = jnp.abs(dense(mixer["last_weights"], states))
    return (hidden * last).sum(-1) + dense(mixer["last_bias"], states)[:, 0]


def loss(online, target, batch, mixes):
    taken = jnp.take_along_axis(dense(online["q"], batch["obs"]), batch["actions"][..., None], -1)[..., 0]
    best = dense(jax.lax.stop_gradient(online["q"]), batch["next_obs"]).argmax(-1)
    later = jnp.take_along_axis(dense(target["q"], batch["next_obs"]), best[..., None], -1)[..., 0]
    if mixes:
        value = mixed(online["mixer"], taken, batch["obs"].reshape(ROWS, -1))
        later = mixed(target["mixer"], later, batch["next_obs"].reshape(ROWS, -1))
    else:
        value, later = taken.sum(-1), later.sum(-1)
    targets = batch["rewards"] + GAMMA * later
    return optax.huber_loss(value, jax.lax.stop_gradient(targets)).mean()


@partial(jax.jit, static_argnums=2)
def updated(state, batch, mixes):
    def update(state, _):
        online, target, moments = state
        steps, moments = OPTIMIZER.update(jax.grad(loss)(online, target, batch, mixes), moments, online)
        online = optax.apply_updates(online, steps)
        target = jax.tree.map(lambda slow, new: (1 - TAU) * slow + TAU * new, target, online)
        return (online, target, moments), None

    return jax.lax.scan(update, state, None, length=UPDATES)[0]


def main():
    keys = jax.random.split(jax.random.PRNGKey(0), 9)
    n_states = AGENTS * N_OBS
    mixer = {
        "weights": layers(keys[1], n_states, SIZE, AGENTS * EMBED),
        "last_weights": layers(keys[2], n_states, SIZE, EMBED),
        "biases": layers(keys[3], n_states, EMBED),
        "last_bias": layers(keys[4], n_states, EMBED, 1),
    }
    online = {"q": layers(keys[0], N_OBS, SIZE, SIZE, N_ACTIONS), "mixer": mixer}
    batch = {
        "obs": jax.random.normal(keys[5], (ROWS, AGENTS, N_OBS)),
        "next_obs": jax.random.normal(keys[6], (ROWS, AGENTS, N_OBS)),
        "actions": jax.random.randint(keys[7], (ROWS, AGENTS), 0, N_ACTIONS),
        "rewards": jax.random.normal(keys[8], (ROWS,)),
    }
    for name, mixes in (("VDN", False), ("QMIX", True)):
        state = updated((online, online, OPTIMIZER.init(online)), batch, mixes)
        seconds = []
        for _ in range(ROUNDS):
            jax.block_until_ready(state)
            begun = time.process_time()
            state = jax.block_until_ready(updated(state, batch, mixes))
            seconds.append(time.process_time() - begun)
        print(f"{name}: ms of CPU: {1000 * min(seconds) / UPDATES:.2f}")


if __name__ == "__main__":
    main()
