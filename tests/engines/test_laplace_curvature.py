"""The curvature of networks for Laplace's method: against Gauss-Newton matrices by jax.jacobian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from laplace_cases import at_given, by_hand, covariance_at, two_layers

import langevin as lv
from langevin.geometry import gauss_newton


def test_the_gauss_newton_matrix_of_two_layers(monkeypatch):
    """In parts of 4 rows (dense, diagonal and last layer), of which the last overlaps the one before."""
    most = {"dense": 4 * 3 * 43, "diagonal": 4 * (3 * 8 + 11), "last_layer": 4 * (3 * 3 + 6 + 36)}
    whole = gauss_newton.GaussNewton.__init__

    def in_parts(self, target, example, programs, structure):
        monkeypatch.setattr(gauss_newton, "MOST_NUMBERS", most[structure.kind])
        whole(self, target, example, programs, structure)
        assert self.num_parts == 3

    monkeypatch.setattr(gauss_newton.GaussNewton, "__init__", in_parts)
    network, data = two_layers()
    jacobian, hessians, prior = by_hand(network, data)
    matrix = np.einsum("nci,ncd,ndj->ij", jacobian, hessians, jacobian) + np.diag(prior)
    mean, covariance = at_given(network, data, "dense")[2]
    np.testing.assert_allclose(covariance, np.linalg.inv(matrix), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(np.sort(mean), np.sort(np.concatenate([v.ravel() for v in network.net.first.values()])))
    covariance = covariance_at(network, data, "diagonal")
    np.testing.assert_allclose(np.diag(covariance), 1 / np.diag(matrix), rtol=1e-4)
    covariance = covariance_at(network, data, "last_layer")
    last = np.r_[25:28, 28:43]
    assert [*sorted(network.shapes)] == ["layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"]
    np.testing.assert_allclose(
        covariance[np.ix_(last, last)], np.linalg.inv(matrix[np.ix_(last, last)]), rtol=2e-3, atol=1e-5
    )
    assert not covariance[:25].any()


def test_kronecker_factors_of_two_layers():
    network, data = two_layers()
    _, hessians, _ = by_hand(network, data)
    first = {name: np.asarray(value, np.float64) for name, value in network.net.first.items()}
    count = len(data["x"])
    hidden = np.tanh(data["x"] @ first["layers.0.weight"].T + first["layers.0.bias"])
    back = first["layers.1.weight"] * (1 - hidden**2)[:, None, :]
    factors = [
        (data["x"], np.einsum("nci,ncd,ndj->ij", back, hessians, back), 4, 9 / 4),
        (hidden, hessians.sum(axis=0), 5, 9 / 5),
    ]
    covariance = covariance_at(network, data, "kronecker")
    start = 0
    for inputs, outputs, width, variance in factors:
        a = np.concatenate([inputs, np.ones((count, 1))], axis=1)
        precision = np.kron(outputs, a.T @ a / count)
        precision += np.kron(np.eye(len(outputs)), np.diag([1 / variance] * width + [1.0]))
        places = np.arange(len(precision)).reshape(len(outputs), width + 1)
        # The flat position has the biases first.
        order = np.concatenate([places[:, -1], places[:, :-1].ravel()])
        wanted = np.linalg.inv(precision)[np.ix_(order, order)]
        here = slice(start, start + len(order))
        np.testing.assert_allclose(covariance[here, here], wanted, rtol=2e-3, atol=1e-5)
        start += len(order)


def test_kronecker_factors_of_biases_alone_are_exact_by_layer():
    """With the matrices frozen, what goes in is 1."""
    network, data = two_layers(frozen="*.weight")
    dense, kronecker = (covariance_at(network, data, structure) for structure in ("dense", "kronecker"))
    for here in (slice(0, 5), slice(5, 8)):
        wanted = np.linalg.inv(np.linalg.inv(dense)[here, here])
        np.testing.assert_allclose(kronecker[here, here], wanted, rtol=2e-3, atol=1e-5)
    assert not kronecker[:5, 5:].any()


def test_temperature_counts_in_all_of_it():
    network, data = two_layers()
    warm, _ = two_layers(temperature=4.0)
    one, other = (covariance_at(net, data, "kronecker") for net in (network, warm))
    np.testing.assert_allclose(other, 4 * one, rtol=2e-3, atol=1e-5)


def test_unknowns_of_the_likelihood_have_their_own_curvature():
    network, data = two_layers(lv.likelihoods.StudentT(dist.Gamma(2.0, 0.1)), rows=40)
    target, position, (_, covariance) = at_given(network, data, "dense")
    of_others = lambda u: -target.log_density({**position, "df": u[0], "noise": u[1]})  # noqa: E731
    hessian = jax.jit(jax.hessian(of_others))(jnp.stack([position["df"], position["noise"]]))
    names = sorted(position)
    places = [sum(position[other].size for other in names[: names.index(name)]) for name in ("df", "noise")]
    np.testing.assert_allclose(covariance[np.ix_(places, places)], np.linalg.inv(hessian), rtol=1e-3)
    rest = np.delete(np.arange(len(covariance)), places)
    assert not covariance[np.ix_(places, rest)].any()


def test_a_convolution_is_a_linear_layer_at_every_place():
    """Over the whole image it is one; with several places its diagonal is that of the derivatives."""
    keys = jax.random.split(jax.random.key(0), 2)

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        last: eqx.nn.Linear

        def __call__(self, x):
            return self.last(jnp.tanh(self.conv(x)).ravel())

    generator = np.random.default_rng(1)
    data = {"x": generator.normal(size=(6, 1, 3, 3)).astype(np.float32), "y": generator.integers(2, size=6)}
    whole = Net(eqx.nn.Conv2d(1, 4, 3, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1]))
    flat = eqx.nn.MLP(9, 2, 4, 1, activation=jnp.tanh, key=keys[0])
    where = lambda net: [net.layers[0].weight, net.layers[0].bias, net.layers[1].weight, net.layers[1].bias]  # noqa: E731
    same = [whole.conv.weight.reshape(4, 9), whole.conv.bias.ravel(), whole.last.weight, whole.last.bias]
    flat = eqx.tree_at(where, flat, same)
    priors = dist.Normal(0, 1)
    of_conv = covariance_at(lv.Network(whole, "categorical", priors, init="given"), data, "kronecker")
    rows = {**data, "x": data["x"].reshape(6, 9)}
    of_flat = covariance_at(lv.Network(flat, "categorical", priors, init="given"), rows, "kronecker")
    np.testing.assert_allclose(of_conv, of_flat, rtol=1e-3, atol=1e-5)
    small = Net(eqx.nn.Conv2d(1, 4, 2, key=keys[0]), eqx.nn.Linear(16, 2, key=keys[1]))
    network = lv.Network(small, "categorical", priors, init="given")
    jacobian, hessians, _ = by_hand(network, data)
    diagonal = np.einsum("nci,ncd,ndi->i", jacobian, hessians, jacobian) + 1
    variance = np.diag(covariance_at(network, data, "diagonal"))
    np.testing.assert_allclose(variance, 1 / diagonal, rtol=1e-3)
    variance = np.diag(covariance_at(network, data, "kronecker"))
    # An approximation: of the same size.
    assert np.abs(np.log(variance * diagonal)).max() < 1.5
