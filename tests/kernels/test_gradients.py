import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.kernels import gradients

NUM_ROWS = 60


@pytest.fixture(scope="module")
def posterior():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 2))
    density = lv.Density(
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, rows: -jnp.logaddexp(0.0, -rows["y"] * (rows["x"] @ w)),
        init=jnp.zeros(2),
    )
    return density.posterior({"x": x, "y": np.sign(x[:, 0] + generator.normal(size=NUM_ROWS))})


def all_batches(posterior, size=10):
    return [
        jax.tree.map(lambda array, i=i: array[i : i + size], posterior.data) for i in range(0, posterior.num_data, size)
    ]


ESTIMATORS = {
    "minibatch": gradients.minibatch,
    "control variate": lambda p: gradients.control_variate(p, jnp.array([0.5, 0.1])),
    "svrg": lambda p: gradients.svrg(p, 3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_unbiased(posterior, name):
    position = jnp.array([0.7, -0.3])
    estimator = ESTIMATORS[name](posterior)
    memory = estimator.init(jnp.array([0.4, 0.0]))
    found = [estimator.estimate(position, memory, batch)[1] for batch in all_batches(posterior)]
    exact = jax.grad(posterior.log_density)(position)
    np.testing.assert_allclose(np.mean(found, axis=0), exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(estimator.estimate(position, memory, None)[1], exact, rtol=1e-4, atol=1e-4)


def test_anchored_noise_shrinks_with_the_square_of_the_distance(posterior):
    centre = jnp.array([0.5, 0.1])
    estimator = gradients.control_variate(posterior, centre)
    memory = estimator.init(jnp.zeros(2))

    def variance(distance, estimator, memory):
        position = centre + distance * jnp.array([1.0, 0.0])
        return np.var([estimator.estimate(position, memory, b)[1] for b in all_batches(posterior)], axis=0).sum()

    near, far = variance(0.01, estimator, memory), variance(0.1, estimator, memory)
    assert 50 < far / near < 200
    plain = gradients.minibatch(posterior)
    assert far < 0.05 * variance(0.1, plain, plain.init(centre))


def test_svrg_renews_its_anchor_every_period(posterior):
    estimator = gradients.svrg(posterior, 3)
    memory = estimator.init(jnp.zeros(2))
    anchors = []
    for step in range(7):
        memory = estimator.advance(jnp.full(2, float(step)), memory)
        anchors.append(float(memory.anchor[0]))
    assert anchors == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0]
    np.testing.assert_allclose(memory.gradient, jax.grad(posterior.log_density)(jnp.full(2, 6.0)), rtol=1e-4)


def test_svrg_under_vmap_reads_all_rows_only_when_it_is_due(posterior):
    """A cond that became a select would evaluate the branch over all rows in every step."""
    estimator = gradients.svrg(posterior, 3)
    memories = jax.vmap(estimator.init)(jnp.zeros((2, 2)))
    text = str(jax.make_jaxpr(jax.vmap(estimator.advance))(jnp.ones((2, 2)), memories))
    assert "cond" in text
    for step in range(4):
        memories = jax.vmap(estimator.advance)(jnp.full((2, 2), float(step)), memories)
    np.testing.assert_allclose(memories.anchor, 3.0)
