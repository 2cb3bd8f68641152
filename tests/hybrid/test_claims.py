"""Which site belongs to which block, and what is said where that cannot be told."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

ROWS = {"y": np.linspace(-1, 1, 20)}


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, tau), obs=y)


def labels(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def chain(y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    s = numpyro.sample("s", lv.series.RandomWalk(sigma, y.shape[0]))
    numpyro.sample("y", dist.Normal(jnp.cumsum(s), 1.0), obs=y)


def steps(y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    s = numpyro.sample("s", dist.GaussianRandomWalk(sigma, y.shape[0]))
    numpyro.sample("y", dist.Normal(s, 1.0), obs=y)


def rows_of_their_own(y):
    """Every row has a site whose scale is not known."""
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        e = numpyro.sample("e", dist.Normal(0.0, sigma))
        numpyro.sample("y", dist.Normal(e, 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "blocks", "sentence"),
    [
        (model, {"mu": lv.NUTS()}, r"site 'tau' has no block.*lv.Hybrid\(\{'mu': lv.NUTS\(\), \.\.\.: lv.NUTS\(\)\}\)"),
        (model, {("mu", "tau"): lv.NUTS(), ...: lv.Enumerate()}, "no discrete site is left"),
        (model, {"ta": lv.NUTS(), ...: lv.RWM()}, "no site 'ta'. Did you mean 'tau'"),
        (model, {"mu": lv.NUTS(), ("mu", "tau"): lv.RWM()}, r"two blocks claim site 'mu': 'mu' and \('mu', 'tau'\)"),
        (model, {"mu": lv.NUTS(), "tau": lv.RWM(), ...: lv.HMC()}, "no site is left for `...`"),
        (model, {lambda site: site.size > 9: lv.NUTS(), ...: lv.RWM()}, "chooses no site"),
        (model, {"mu": lv.Enumerate(), ...: lv.NUTS()}, "site 'mu' is not discrete"),
        (model, {...: lv.VI()}, "every continuous site has a `VI`"),
        (model, {"mu": lv.VI(), "tau": lv.VI("fullrank")}, "two blocks have a `VI`"),
        (model, {"mu": lv.VI("lowrank"), ...: lv.NUTS()}, "VI's `family` must be one of"),
        (model, {"mu": lv.VI(num_steps=10), ...: lv.NUTS()}, "of VI, give `family` alone"),
        (labels, {"z": lv.NUTS(), ...: lv.RWM()}, "site 'z' is discrete, and `NUTS` is for continuous ones"),
        (chain, {"s": lv.VI("markov"), ...: lv.NUTS()}, "states that are not its neighbours"),
        (steps, {"s": lv.VI("markov"), ...: lv.NUTS()}, "sites of lv.series.RandomWalk"),
    ],
)
def test_what_cannot_be_said_says_so(program, blocks, sentence):
    with pytest.raises(lv.SettingError, match=sentence):
        lv.fit(program, ROWS, lv.Hybrid(blocks), num_warmup=20, num_draws=20, progress=False)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lv.Hybrid({}), "must be a dict of methods by site"),
        (lambda: lv.Hybrid({"mu": "nuts"}), "must have a method, such as lv.NUTS"),
        (lambda: lv.Hybrid({"mu": lv.MAP()}), "`MAP` cannot update one block"),
        (lambda: lv.Hybrid({...: lv.NUTS(), "...": lv.HMC()}), "two keys of `blocks` are the same: `?..."),
        (lambda: lv.Hybrid({("a", "b"): lv.NUTS(), "a, b": lv.HMC()}), r"two keys .* \('a', 'b'\)"),
        (lambda: lv.Hybrid({3: lv.NUTS()}), "a key must be the name of a site"),
        (lambda: lv.Hybrid({...: lv.NUTS()}, subsequences=100), "`subsequences` must be an lv.Subsequences"),
        (lambda: lv.Subsequences(0, 10), "`length` must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_said_at_once(make, sentence):
    with pytest.raises(lv.SettingError, match=sentence):
        make()


def test_minibatches_need_a_block_that_takes_them():
    with pytest.raises(lv.SettingError, match="takes all rows in every step"):
        lv.fit(model, ROWS, lv.Hybrid(), batch_size=5, progress=False)


def test_enumeration_is_no_method_of_its_own():
    with pytest.raises(lv.SettingError, match="for the discrete sites of a `Hybrid`"):
        lv.fit(labels, ROWS, lv.Enumerate(), progress=False)


def test_a_run_is_rebuilt_from_its_description():
    from langevin.methods import describe, from_description

    blocks = {"s": lv.VI("markov"), "beta_*": lv.RWM(), ("a", "b"): lv.SGLD(), ...: lv.NUTS(max_depth=5)}
    method = lv.Hybrid(blocks, subsequences=lv.Subsequences(100, 10))
    assert from_description(describe(method)) == method
    assert from_description(describe(lv.Hybrid({lambda site: site.discrete: lv.Enumerate()}))) is None


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_minibatch_has_some_of_the_sites_of_rows():
    method = lv.Hybrid({"e": lv.VI("meanfield"), ...: lv.SGLD(step_size=1e-4)})
    fit = lv.fit(rows_of_their_own, ROWS, method, batch_size=5, num_chains=1, num_warmup=2, num_draws=4, progress=False)
    assert fit.posterior["sigma"].shape == (1, 4)
