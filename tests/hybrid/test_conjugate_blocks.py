"""Blocks that are drawn from conditionals derived from the program, beside others that are not."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import forget
from targets import check_within_errors, raw_regression

import langevin as lv
from langevin.conjugacy.families.gaussian import Gaussian
from langevin.engines import conjugate

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
SETTINGS = {"num_warmup": 200, "num_draws": 1500, "progress": False, "seed": 1}
METHOD = lv.Hybrid({"w": lv.Gibbs(), "s": lv.NUTS()})


def check_regression(kind):
    """Coefficients by exact draws, the sd of the noise, which is not conjugate, by NUTS."""
    target = raw_regression(kind)
    fit = lv.fit(target.model, target.data, METHOD, **SETTINGS)
    check_within_errors(fit, target)
    assert fit.verdict.word == "trustworthy"
    assert fit.settings["approximation"] == ""
    assert list(fit.settings["step_size"]) == ["s"]
    assert fit.posterior["w"].dtype == np.float32


@pytest.mark.parametrize("kind", ["year", "square", "dollars"])
def test_columns_as_they_come(kind):
    """In single precision the precision of these coefficients has no inverse."""
    check_regression(kind)


def wide_draws(patch):
    real = Gaussian.sample

    def sample(self, key, eta):
        mean = self.expected(eta)["x"]
        return mean + np.sqrt(2.0) * (real(self, key, eta) - mean)

    patch.setattr(Gaussian, "sample", sample)


def given_the_start(patch):
    """The block is drawn given where the others were at first: here, at 1 on the unconstrained scale."""
    real = conjugate.kernel
    patch.setattr(
        conjugate,
        "kernel",
        lambda derived, names, target, others, labels: real(
            derived, names, target, {name: 0 * value + 1 for name, value in others.items()}, labels
        ),
    )


def same_key(patch):
    import jax

    real = conjugate._drawn
    patch.setattr(conjugate, "_drawn", lambda derived, key, *more: real(derived, jax.random.key(0), *more))


@pytest.mark.parametrize("bug", [wide_draws, given_the_start, same_key])
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check_regression("dollars")
    forget()


def logistic(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_auxiliary_sites_are_no_part_of_the_chain():
    """Pólya-Gamma variables are drawn anew before the coefficients: compare with NUTS for all."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 3))
    data = {"x": x, "y": generator.random(60) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.0]))}
    blocks = {"w": lv.Gibbs(logistic="polya-gamma"), ...: lv.NUTS()}
    by_blocks = lv.fit(logistic, data, lv.Hybrid(blocks), **SETTINGS)
    together = lv.fit(logistic, data, "nuts", **SETTINGS)
    sites = lambda fit: np.concatenate([fit.posterior["w"].values, fit.posterior["scale"].values[..., None]], -1)  # noqa: E731
    ours, theirs = sites(by_blocks), sites(together)
    np.testing.assert_allclose(ours.mean((0, 1)), theirs.mean((0, 1)), atol=0.15 * theirs.std((0, 1)).max())
    np.testing.assert_allclose(ours.std((0, 1)), theirs.std((0, 1)), rtol=0.12)


def mixture(x, y=None):
    mean = numpyro.sample("mean", dist.Normal(jnp.array([-1.0, 1.0]), 2.0).to_event(1))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("x", dist.Normal(mean[z], 1.0), obs=x)


@pytest.mark.parametrize(
    ("model", "blocks", "batch_size", "error", "sentence"),
    [
        (raw_regression().model, {"s": lv.Gibbs(), ...: lv.NUTS()}, None, lv.NotConjugateError, "'s'"),
        (mixture, {"mean": lv.Gibbs()}, None, lv.SettingError, "'z' is summed out. Draw it too"),
        (mixture, {("mean", "z"): lv.Gibbs()}, None, lv.SettingError, "'z' is discrete, and `Gibbs`"),
        (mixture, {"mean": lv.Gibbs(), "z": lv.Enumerate()}, 5, lv.SettingError, "takes all rows in every step"),
        (raw_regression().model, {"w": lv.Gibbs(), "s": lv.VI()}, None, lv.SettingError, "have a bound in place"),
    ],
)
def test_what_has_no_conditional_says_so(model, blocks, batch_size, error, sentence):
    data = {"x": np.linspace(-2, 2, 20)} if model is mixture else raw_regression().data
    with pytest.raises(error, match=sentence):
        lv.fit(model, data, lv.Hybrid(blocks), batch_size=batch_size, progress=False)


def test_a_density_has_no_conditionals():
    density = lv.Density(lambda x: -(x["a"] ** 2) - x["b"] ** 2, init={"a": 0.0, "b": 0.0})
    with pytest.raises(lv.SettingError, match="the model is a density"):
        lv.fit(density, method=lv.Hybrid({"a": lv.Gibbs(), ...: lv.NUTS()}), progress=False)


def test_the_noise_of_a_site_has_no_conditional():
    def model(y):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(y)):
            b = numpyro.sample("b", dist.Normal(3.0, tau))
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    method = lv.Hybrid({"b": lv.Gibbs(), ...: lv.NUTS()})
    with pytest.raises(lv.SettingError, match="Leave `noncentred` out"):
        lv.fit(model, {"y": np.arange(5.0)}, method, noncentred=True, progress=False)
