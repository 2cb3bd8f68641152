"""The families' densities and entropies, against SciPy, NumPyro and quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats

from langevin.conjugacy import families


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def arrays(**values):
    return {name: jnp.asarray(value, float) for name, value in values.items()}


@jax.jit
def answers(family, eta, value):
    """The log-probability, the entropy and the usual parameters, in one program."""
    return family.log_prob(eta, value), family.entropy(eta), family.described(eta)


def close(left, right):
    np.testing.assert_allclose(left, right, rtol=1e-9)


@pytest.mark.parametrize(("power", "peer"), [(1, scipy.stats.gamma), (-1, scipy.stats.invgamma)])
def test_gamma_and_inverse_gamma_are_scipys(power, peer):
    concentration, rate = np.array([0.7, 3.0]), np.array([2.0, 0.4])
    family = families.PoweredGamma((2,), power)
    eta = arrays(log=power * concentration - 1, power=-rate)
    frozen = peer(concentration, scale=rate ** -float(power))
    value = np.array([0.3, 2.5])
    close(family.log_prob(eta, value), np.sum(frozen.logpdf(value)))
    close(family.entropy(eta), np.sum(frozen.entropy()))
    close(family.described(eta)["concentration"], concentration)
    close(family.described(eta)["rate"], rate)


@pytest.mark.parametrize("power", [1, -1, 2, -2, 0.5, -3])
def test_a_powered_gamma_integrates_to_one(power):
    family = families.PoweredGamma((), power)
    eta = arrays(log=power * 2.3 - 1, power=-1.7)
    density = jax.jit(lambda log_z: jnp.exp(family.log_prob(eta, jnp.exp(log_z)) + log_z))
    total = scipy.integrate.quad(density, -40, 40, points=[0], epsabs=1e-10, limit=200)[0]
    close(total, 1)


def test_a_power_has_the_gamma_distribution_that_is_described():
    family = families.PoweredGamma((), -2)
    described = family.described(arrays(log=-2 * 3.0 - 1, power=-0.8))
    close([described[name] for name in ("concentration", "rate", "power")], [3.0, 0.8, -2])
    draws = jax.vmap(family.sample, in_axes=(0, None))(
        jax.random.split(jax.random.key(3), 4000), arrays(log=-7.0, power=-0.8)
    )
    assert scipy.stats.kstest(draws**-2.0, scipy.stats.gamma(3.0, scale=1 / 0.8).cdf).pvalue > 1e-3


def test_beta_is_scipys():
    a, b, value = np.array([0.5, 2.0]), np.array([3.0, 0.8]), np.array([0.1, 0.7])
    family, eta, frozen = families.Beta((2,)), arrays(log=a - 1, log1m=b - 1), scipy.stats.beta(a, b)
    close(family.log_prob(eta, value), np.sum(frozen.logpdf(value)))
    close(family.entropy(eta), np.sum(frozen.entropy()))
    described = dist.Beta(**family.described(eta))
    close(jnp.sum(described.log_prob(value)), family.log_prob(eta, value))


def test_dirichlet_is_scipys():
    concentration, value = np.array([[0.5, 2.0, 4.0], [1.0, 3.0, 0.2]]), np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    family, eta = families.Dirichlet((2, 3)), arrays(log=concentration - 1)
    close(family.log_prob(eta, value), sum(map(scipy.stats.dirichlet.logpdf, value, concentration)))
    close(family.entropy(eta), sum(map(scipy.stats.dirichlet.entropy, concentration)))
    close(jnp.sum(dist.Dirichlet(**family.described(eta)).log_prob(value)), family.log_prob(eta, value))


def test_categorical_is_numpyros():
    rng = np.random.default_rng(0)
    family, eta, value = (
        families.Categorical(4, (2, 3)),
        arrays(onehot=rng.normal(size=(4, 2, 3))),
        [[0, 1, 2], [3, 3, 0]],
    )
    peer = dist.Categorical(**family.described(eta))
    close(family.log_prob(eta, jnp.asarray(value)), jnp.sum(peer.log_prob(jnp.asarray(value))))
    close(family.entropy(eta), jnp.sum(peer.entropy()))


@pytest.mark.parametrize("where", [0, 2])
def test_an_impossible_value_has_no_probability_and_is_not_drawn(where):
    family = families.Categorical(3, (50_000,))
    eta = {"onehot": jnp.zeros((3, 50_000)).at[where].set(-jnp.inf)}
    assert jnp.all(family.expected(eta)["onehot"][where] == 0)
    close(family.entropy(eta), 50_000 * np.log(2))
    with jax.enable_x64(False):
        single = {"onehot": jnp.asarray(eta["onehot"], jnp.float32)}
        assert not jnp.any(family.sample(jax.random.key(0), single) == where)
    assert family.log_prob(eta, jnp.full(50_000, where)) == -jnp.inf


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 60])
def test_gaussian_is_scipys(size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(2, size, size))
    covariance, mean = root @ np.swapaxes(root, 1, 2) + np.eye(size), rng.normal(size=(2, size))
    precision = np.linalg.inv(covariance)
    upper = -np.triu(precision, 1) - np.stack([np.diag(np.diag(p)) for p in precision]) / 2
    family, eta = families.Gaussian((2,), size), arrays(x=np.einsum("bij,bj->bi", precision, mean), xx=upper)
    value = rng.normal(size=(2, size))
    peers = [scipy.stats.multivariate_normal(m, c) for m, c in zip(mean, covariance, strict=True)]
    log_prob, entropy, described = answers(family, eta, value)
    close(log_prob, sum(peer.logpdf(v) for peer, v in zip(peers, value, strict=True)))
    close(entropy, sum(peer.entropy() for peer in peers))
    np.testing.assert_allclose(described["loc"], mean, rtol=1e-8)
    spread = described["scale"][..., None] ** 2 if size == 1 else described["covariance_matrix"]
    np.testing.assert_allclose(spread, covariance, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 3, 7])
def test_wishart_is_scipys_and_numpyros(dim):
    rng = np.random.default_rng(dim)
    root = rng.normal(size=(2, dim, dim))
    rate, concentration = root @ np.swapaxes(root, 1, 2) + np.eye(dim), dim + np.array([-0.5, 3.0])
    lower = -np.tril(rate, -1) - np.stack([np.diag(np.diag(r)) for r in rate]) / 2
    family, eta = families.Wishart((2,), dim), arrays(matrix=lower, logdet=(concentration - dim - 1) / 2)
    peers = [scipy.stats.wishart(n, np.linalg.inv(r)) for n, r in zip(concentration, rate, strict=True)]
    value = np.stack([np.reshape(peer.rvs(random_state=rng), (dim, dim)) for peer in peers])
    log_prob, entropy, described = answers(family, eta, value)
    close(log_prob, sum(peer.logpdf(v) for peer, v in zip(peers, value, strict=True)))
    close(entropy, sum(peer.entropy() for peer in peers))
    close(jnp.sum(dist.Wishart(**described).log_prob(value)), log_prob)
