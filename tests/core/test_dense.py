"""The compiled dense nets against NumPy in float64, for every instruction set that this machine has."""

import math

import numpy as np
import pytest

from fastmarl.core.native._dense import ACTIVATIONS, BEST, VARIANTS, DenseNet

SIZES = [1, 2, 3, 4, 5, 15, 16, 17, 40]
NORMAL = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), [float])
NUMPY = {
    "linear": lambda x, alpha: x,
    "tanh": lambda x, alpha: np.tanh(x),
    "relu": lambda x, alpha: np.maximum(x, 0),
    "silu": lambda x, alpha: x / (1 + np.exp(-x)),
    "gelu": lambda x, alpha: x * NORMAL(x),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


def random_layers(rng, n_obs):
    """Two trunks and two heads, or less."""
    layers, widths = [], {-1: n_obs}
    for i, source in enumerate([-1, 0, 1, -1]):
        n_out = 1 if i == 3 else int(rng.choice(SIZES))
        weight = rng.normal(size=(n_out, widths[source])).astype(np.float32)
        bias = rng.normal(size=n_out).astype(np.float32) if rng.random() < 0.7 else None
        activation = str(rng.choice(list(ACTIVATIONS)))
        alpha = float(rng.uniform(0.5, 2))
        layers.append((source, weight / max(1, widths[source]) ** 0.5, bias, activation, alpha, None, None))
        widths[i] = n_out
    return layers


def oracle(layers, obs, of):
    source, weight, bias, activation, alpha, eps, _ = layers[of]
    inputs = obs.astype(np.float64) if source < 0 else oracle(layers, obs, source)
    if eps is not None:
        inputs = (inputs - inputs.mean(1, keepdims=True)) / np.sqrt(inputs.var(1, keepdims=True) + eps)
        outputs = inputs if weight is None else inputs * weight
    else:
        outputs = inputs @ weight.T.astype(np.float64)
    return NUMPY[activation](outputs + (0 if bias is None else bias), alpha)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 15, 16, 17, 33, 512])
def test_outputs_are_those_of_numpy(rng, variant, n):
    for _ in range(6):
        n_obs = int(rng.choice(SIZES))
        layers = random_layers(rng, n_obs)
        log_std = rng.normal(size=2).astype(np.float32) if rng.random() < 0.5 else None
        obs = rng.normal(size=(n, n_obs)).astype(np.float32)
        net = DenseNet(n_obs, layers, 2, 3, log_std, variant)
        for out in net.forward(obs):
            out[...] = np.nan  # poison: the next call writes to the same memory
        logits, values = net.forward(obs)
        expected = oracle(layers, obs, 2)
        if log_std is not None:
            expected = np.hstack([expected, np.tile(log_std, (n, 1))])
        assert logits.shape == expected.shape and values.shape == (n,)
        np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=2e-6)
        np.testing.assert_allclose(values, oracle(layers, obs, 3)[:, 0], rtol=1e-6, atol=2e-6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def remembered(kind, x, h, c, weight, bias, state_weight, state_bias):
    """The next h and c by the formulas in the documentation of torch.nn.LSTM and GRU."""
    source = np.split(x @ weight.T.astype(np.float64) + (0 if bias is None else bias), 4 if kind == "lstm" else 3, 1)
    state = np.split(h @ state_weight.T.astype(np.float64) + (0 if state_bias is None else state_bias), len(source), 1)
    if kind == "gru":
        reset, update = (sigmoid(source[k] + state[k]) for k in (0, 1))
        return (1 - update) * np.tanh(source[2] + reset * state[2]) + update * h, None
    into, forget, out = (sigmoid(source[k] + state[k]) for k in (0, 1, 3))
    c = forget * c + into * np.tanh(source[2] + state[2])
    return out * np.tanh(c), c


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 15, 16, 17, 33])
@pytest.mark.parametrize("kinds", [("lstm", "gru"), ("gru", "lstm"), ("lstm", "lstm")])
def test_cells_are_those_of_numpy(rng, variant, kinds, n):
    """One after a layer, the other beside it, with heads."""
    for _ in range(4):
        sizes = [int(size) for size in rng.choice(SIZES, 3)]
        n_obs, arrays = int(rng.choice(SIZES)), lambda *shape: rng.normal(size=shape).astype(np.float32) / 2
        layers = [(-1, arrays(sizes[0], n_obs), None, "tanh", 1.0, None, None)]
        for kind, n_in, source, size in zip(kinds, (sizes[0], n_obs), (0, -1), sizes[1:], strict=True):
            gates, has_bias = (4 if kind == "lstm" else 3) * size, rng.random() < 0.7
            biases = [arrays(gates) if has_bias else None for _ in range(2)]
            cell = kind, arrays(gates, size), biases[1]
            layers.append((source, arrays(gates, n_in), biases[0], "linear", 1.0, None, cell))
        layers += [(1, arrays(3, sizes[1]), None, "linear", 1.0, None, None)]
        layers += [(2, arrays(1, sizes[2]), None, "linear", 1.0, None, None)]
        obs = arrays(n, n_obs)
        names = [(k, name) for k, kind in enumerate(kinds) for name in ("hc" if kind == "lstm" else "h")]
        states = {key: arrays(n, sizes[1 + key[0]]) for key in names}
        found = {key: np.full_like(state, np.nan) for key, state in states.items()}
        net = DenseNet(n_obs, layers, 3, 4, None, variant)
        for _ in range(2):  # nothing is left of the call before
            logits, values = net.forward(obs, [*states.values()], [*found.values()])
        x = np.tanh(obs @ layers[0][1].T.astype(np.float64))
        for k, (kind, inputs) in enumerate(zip(kinds, (x, obs), strict=True)):
            _, weight, bias, *_, (_, state_weight, state_bias) = layers[1 + k]
            h, c = remembered(
                kind, inputs, states[k, "h"], states.get((k, "c")), weight, bias, state_weight, state_bias
            )
            np.testing.assert_allclose(found[k, "h"], h, rtol=2e-6, atol=2e-6)
            if c is not None:
                np.testing.assert_allclose(found[k, "c"], c, rtol=2e-6, atol=2e-6)
            outputs = h @ layers[3 + k][1].T.astype(np.float64)
            np.testing.assert_allclose((logits, values[:, None])[k], outputs, rtol=4e-6, atol=4e-6)


def test_states_are_checked():
    """Before anything is written: compiled code does not know the arrays' sizes."""
    ones = np.ones((4, 1), np.float32)
    net = DenseNet(1, [(-1, ones, None, "linear", 1.0, None, ("lstm", ones, None))], 0, -1, None)
    obs, state = np.ones((2, 1), np.float32), np.ones((2, 1), np.float32)
    for states in (
        None,
        [],
        [state],
        [state] * 3,
        [state, state[:1]],
        [state, state.astype(np.float64)],
        [state, None],
    ):
        for given in ((states, [state, state]), ([state, state], states)):
            with pytest.raises((ValueError, TypeError)):
                net.forward(obs, *given)
    for kind, weight in (("lstm", ones[:3]), ("gru", ones), ("rnn", ones)):
        with pytest.raises((ValueError, KeyError)):
            DenseNet(1, [(-1, ones, None, "linear", 1.0, None, (kind, weight, None))], 0, -1, None)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", [1, 4, 5, 16, 37])
@pytest.mark.parametrize("size", [1, 3, 16, 17, 300])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_normalisation_is_that_of_numpy(rng, variant, n, size, eps):
    for affine in (True, False):
        scale, shift = (rng.normal(size=size).astype(np.float32) if affine else None for _ in range(2))
        head = (rng.normal(size=(1, size)) / size).astype(np.float32)
        layers = [(-1, scale, shift, "tanh", 1.0, eps, None), (0, head, None, "linear", 1.0, None, None)]
        obs = rng.normal(2, 3, (n, size)).astype(np.float32)
        net = DenseNet(size, layers, 0, 1, None, variant)
        for out in net.forward(obs):
            out[...] = np.nan
        logits, values = net.forward(obs)
        # The mean's last bits count for more the closer together a row's numbers are.
        most = 2e-6 * (1 + abs(obs).max(1) / np.sqrt(obs.var(1) + eps))
        assert (abs(logits - oracle(layers, obs, 0)) <= most[:, None]).all()
        assert (abs(values - oracle(layers, obs, 1)[:, 0]) <= most).all()


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("activation", NUMPY)
@pytest.mark.parametrize("n", [1, 16])
def test_activations_are_exact_to_some_units_in_the_last_place(variant, activation, n):
    magnitudes = np.concatenate([np.geomspace(1e-30, 100, 40_000), np.linspace(0, 20, 40_000)])
    inputs = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    one = np.ones((1, 1), np.float32)
    net = DenseNet(1, [(-1, one, None, activation, 1.5, None, None)], 0, -1, None, variant)
    got = np.concatenate([net.forward(part)[0][:, 0].copy() for part in inputs.reshape(-1, n, 1)])
    with np.errstate(over="ignore"):
        expected = NUMPY[activation](inputs.astype(np.float64), 1.5)
    normal = np.abs(expected) > 1e-30
    slack = 2.0 + inputs[normal] ** 2 if activation == "gelu" else 1.0  # its exponent, -x^2 / 2, is rounded
    assert (abs(got[normal] - expected[normal]) <= 5e-7 * slack * abs(expected[normal])).all()
    np.testing.assert_allclose(got[~normal], expected[~normal], atol=1e-29)


@pytest.mark.parametrize("activation", NUMPY)
@pytest.mark.parametrize("n", [1, 16])
def test_nan_and_infinity_go_through(variant, activation, n):
    net = DenseNet(1, [(-1, np.ones((1, 1), np.float32), None, activation, 1.0, None, None)], 0, -1, None, variant)
    for given, expected in [(np.nan, np.nan), (np.inf, 1.0 if activation == "tanh" else np.inf)]:
        logits, values = net.forward(np.full((n, 1), given, np.float32))
        assert values is None
        np.testing.assert_array_equal(logits, np.full((n, 1), expected))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("n", [0, 1, 5, 16, 40])
def test_observations_of_bytes_are_scaled_numbers(rng, variant, n, dtype):
    layers, bounds = random_layers(rng, 33), np.iinfo(dtype)
    obs = rng.integers(bounds.min, bounds.max, (n, 11, 3), dtype, endpoint=True)
    net = DenseNet(33, layers, 2, 3, None, variant, scale=1 / 255)
    logits, values = net.forward(obs)
    scaled = obs.reshape(n, 33) / 255
    np.testing.assert_allclose(logits, oracle(layers, scaled, 2), rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(values, oracle(layers, scaled, 3)[:, 0], rtol=1e-6, atol=2e-6)


def test_weights_are_read_at_every_call(rng, variant):
    weight, bias = rng.normal(size=(3, 2)).astype(np.float32), np.zeros(3, np.float32)
    net = DenseNet(2, [(-1, weight, bias, "linear", 1.0, None, None)], 0, -1, None, variant)
    obs = rng.normal(size=(4, 2)).astype(np.float32)
    net.forward(obs)
    weight *= 2
    bias += 1
    np.testing.assert_allclose(net.forward(obs)[0], obs @ weight.T + 1, rtol=1e-5, atol=1e-6)


def test_it_keeps_the_weights_alive(rng):
    nets = [
        DenseNet(50, [(-1, np.full((50, 50), i, np.float32), None, "linear", 1.0, None, None)], 0, -1, None)
        for i in range(20)
    ]
    for i, net in enumerate(nets):
        assert (net.forward(np.ones((1, 50), np.float32))[0] == 50 * i).all()


ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, [(-1, np.ones((1, 2), np.float32), None, "tanh", 1.0, None, None)], 0, -1, None),
        (1, [(-1, np.ones((1, 1)), None, "tanh", 1.0, None, None)], 0, -1, None),
        (2, [(-1, np.ones((2, 2), np.float32)[:, ::2], None, "tanh", 1.0, None, None)], 0, -1, None),
        (1, [(-1, ONE, np.ones(2, np.float32), "tanh", 1.0, None, None)], 0, -1, None),
        (1, [(0, ONE, None, "tanh", 1.0, None, None)], 0, -1, None),
        (1, [(-2, ONE, None, "tanh", 1.0, None, None)], 0, -1, None),
        (1, [(-1, ONE, None, "tanh", 1.0, None, None)], 1, -1, None),
        (1, [(-1, ONE, None, "tanh", 1.0, None, None)], 0, 1, None),
        (1, [(-1, np.ones((2, 1), np.float32), None, "tanh", 1.0, None, None)], 0, 0, None),
        (1, [(-1, ONE, None, "tanh", 1.0, None, None)], 0, -1, np.ones(1)),
        (2, [(-1, np.ones(3, np.float32), None, "tanh", 1.0, 1e-5, None)], 0, -1, None),
        (2, [(-1, None, None, "tanh", 1.0, -1e-5, None)], 0, -1, None),
        (2, [(-1, None, np.ones(3, np.float32), "tanh", 1.0, 1e-5, None)], 0, -1, None),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments):
    with pytest.raises(ValueError, match=r"expected|must"):
        DenseNet(*arguments)


@pytest.mark.parametrize(
    "obs", [np.ones((2, 3), np.float32), np.ones((2, 2)), np.ones((2, 4), np.float32)[:, ::2], np.ones(2, np.float32)]
)
def test_observations_that_do_not_fit_are_an_error(obs):
    net = DenseNet(2, [(-1, np.ones((1, 2), np.float32), None, "tanh", 1.0, None, None)], 0, -1, None)
    with pytest.raises(ValueError, match="expected float32"):
        net.forward(obs)


def test_the_best_variant_is_one_of_them():
    assert BEST in VARIANTS and "plain" in VARIANTS
