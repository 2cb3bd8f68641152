"""Labels of many rows, which few starts are affordable for, end at a good maximum."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import CASES, conditionals_of

import langevin as lv
from langevin.engines import coordinate, searching

RNG = np.random.default_rng(5)
CENTRES = np.array([-6.0, -2.0, 0.0, 3.0, 8.0])
LABELS = RNG.integers(5, size=60_000)
X = CENTRES[LABELS] + np.array([0.5, 1.0, 0.3, 1.0, 2.0])[LABELS] * RNG.normal(size=60_000)


def mixture(x):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate("clusters", 5):
        t = numpyro.sample("t", dist.Gamma(1.0, 1.0))
        m = numpyro.sample("m", dist.Normal(0.0, (0.01 * t) ** -0.5))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("x", dist.Normal(m[z], t[z] ** -0.5), obs=x)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_two_starts_and_a_sample(monkeypatch):
    """From each of the two starts of this seed alone an ascent ends 5,000 nats lower."""
    monkeypatch.setattr(coordinate, "MOST_SEARCHED", 600_000)
    fit = lv.fit(mixture, {"x": X}, "cavi", seed=3, num_chains=1, num_draws=2, progress=False)
    assert len(fit.elbo.values.ravel()) < 200
    np.testing.assert_allclose(np.sort(fit.data_tree["parameters"]["m.loc"].values.ravel()), CENTRES, atol=0.1)


def test_samples_are_of_rows_with_labels():
    few, none = conditionals_of(CASES["mixture"]), conditionals_of(CASES["regression"])
    assert searching.sample_size(none, 10**9) == 0
    # 60 rows with 3 labels each, and 9 means, squares of means, and so on.
    assert searching.sample_size(few, 10**9) == 0
    assert searching.sample_size(few, 100) == 0
