"""NumPyro guides: hand-written and automatic, discrete sites, sites of rows, and guides that do not fit."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import autoguide

import langevin as lv
from langevin.data.table import as_table
from langevin.models.program import Program
from langevin.variational.build import objective_of

GENERATOR = np.random.default_rng(3)
LABELS = GENERATOR.random(60) < 0.3
MIXED = {"x": np.where(LABELS, GENERATOR.normal(2.0, 1.0, 60), GENERATOR.normal(-1.0, 1.0, 60))}


def bernoulli_mixture(x):
    """Each row belongs to one of two Gaussians; which one is a discrete latent site."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    means = numpyro.sample("means", dist.Normal(jnp.array([-1.0, 1.0]), 2.0).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("x", dist.Normal(means[z], 1.0), obs=x)


def globals_of_the_mixture():
    a = numpyro.param("a", 2.0, constraint=constraints.positive)
    b = numpyro.param("b", 2.0, constraint=constraints.positive)
    loc = numpyro.param("loc", jnp.array([-1.0, 1.0]))
    scale = numpyro.param("scale", jnp.full(2, 0.3), constraint=constraints.positive)
    numpyro.sample("share", dist.Beta(a, b))
    numpyro.sample("means", dist.Normal(loc, scale).to_event(1))


def mixture_guide(x):
    globals_of_the_mixture()
    logits = numpyro.param("logits", jnp.full(60, 0.1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Bernoulli(logits=logits))


def amortised_mixture_guide(x):
    globals_of_the_mixture()
    slope, offset = numpyro.param("slope", 1.0), numpyro.param("offset", 0.0)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Bernoulli(logits=slope * x + offset))


def enumerated_bound(values, x, probs, num_draws=4000):
    """The same bound with z summed out: exactly over the labels, by many draws over the other two."""
    q_share = dist.Beta(values["a"], values["b"])
    q_means = dist.Normal(values["loc"], values["scale"])

    def one(key):
        first, second = jax.random.split(key)
        share, means = q_share.sample(first), q_means.sample(second)
        log_p = dist.Beta(2.0, 2.0).log_prob(share) - q_share.log_prob(share)
        log_p += jnp.sum(dist.Normal(jnp.array([-1.0, 1.0]), 2.0).log_prob(means) - q_means.log_prob(means))
        for label, prob in ((0, 1 - probs), (1, probs)):
            terms = dist.Normal(means[label], 1.0).log_prob(x) + dist.Bernoulli(share).log_prob(label)
            log_p += jnp.sum(prob * (terms - jnp.log(prob)))
        return log_p

    return float(jnp.mean(jax.vmap(one)(jax.random.split(jax.random.key(0), num_draws))))


def best_enumerated():
    """The best bound in the guide's family, by ascent on the enumerated one."""
    import optax

    x = jnp.asarray(MIXED["x"])
    start = {
        "a": jnp.log(2.0),
        "b": jnp.log(2.0),
        "loc": jnp.array([-1.0, 1.0]),
        "scale": jnp.log(jnp.full(2, 0.3)),
        "logits": jnp.zeros(60),
    }

    def loss(raw, key):
        values = {k: jnp.exp(v) if k in ("a", "b", "scale") else v for k, v in raw.items()}
        probs = jnp.clip(jax.nn.sigmoid(values["logits"]), 1e-6, 1 - 1e-6)
        q_share, q_means = dist.Beta(values["a"], values["b"]), dist.Normal(values["loc"], values["scale"])
        first, second = jax.random.split(key)
        share, means = q_share.sample(first, (16,)), q_means.sample(second, (16,))
        log_p = dist.Beta(2.0, 2.0).log_prob(share) - q_share.log_prob(share)
        log_p += jnp.sum(dist.Normal(jnp.array([-1.0, 1.0]), 2.0).log_prob(means) - q_means.log_prob(means), axis=-1)
        for label, prob in ((0, 1 - probs), (1, probs)):
            terms = dist.Normal(means[:, label, None], 1.0).log_prob(x)
            terms += dist.Bernoulli(share[:, None]).log_prob(label)
            log_p += jnp.sum(prob * (terms - jnp.log(prob)), axis=-1)
        return -jnp.mean(log_p)

    optimizer = optax.adam(optax.cosine_decay_schedule(0.05, 4000))

    def step(carry, key):
        raw, state = carry
        updates, state = optimizer.update(jax.grad(loss)(raw, key), state)
        return (optax.apply_updates(raw, updates), state), None

    keys = jax.random.split(jax.random.key(1), 4000)
    (raw, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, keys))((start, optimizer.init(start)))
    return -float(np.mean([loss(raw, key) for key in jax.random.split(jax.random.key(2), 100)]))


@pytest.mark.filterwarnings("ignore:The approximation is far")
@pytest.mark.slow
def test_discrete_sites_by_the_score_function():
    """Within 2 % of the bound that is obtained by enumeration; the fit says how."""
    fit = lv.fit(bernoulli_mixture, MIXED, lv.VI(mixture_guide, num_particles=8), progress=False, num_draws=100)
    values = fit.guide.values
    probs = jnp.clip(jax.nn.sigmoid(values["logits"]), 1e-6, 1 - 1e-6)
    best = best_enumerated()
    assert abs(enumerated_bound(values, jnp.asarray(MIXED["x"]), probs) - best) < 0.02 * abs(best)
    assert "score function" in fit.settings["approximation"]
    assert "z" in fit.settings["approximation"]
    assert fit.posterior["z"].shape == (4, 100, 60)


@pytest.mark.filterwarnings("ignore:The approximation is far")
@pytest.mark.slow
def test_discrete_sites_of_rows_by_their_kind():
    """The guide above, but made from kinds of distributions: as good a bound, and z is inside its plate."""
    kinds = {"z": dist.Bernoulli, "share": dist.Beta, "means": dist.Normal}
    fit = lv.fit(bernoulli_mixture, MIXED, lv.VI(kinds, num_particles=8), progress=False, num_draws=100)
    found = fit.guide.values
    arguments = {"a": "share.concentration1", "b": "share.concentration0", "loc": "means.loc", "scale": "means.scale"}
    probs = jnp.clip(jax.nn.sigmoid(found["z.logits"]), 1e-6, 1 - 1e-6)
    values = {short: found[name] for short, name in arguments.items()}
    best = best_enumerated()
    assert abs(enumerated_bound(values, jnp.asarray(MIXED["x"]), probs) - best) < 0.02 * abs(best)
    assert fit.guide.objective.wiring.plates["q.z"] == {"rows": -1}


def test_categorical_sites_of_rows():
    """Three clusters that lie far apart: every row's probabilities are those of Bayes' rule at known means."""
    means, x = jnp.array([-3.0, 0.0, 3.0]), np.array([-3.2, -2.5, 0.3, 1.4, 2.8])

    def model(x):
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
            numpyro.sample("x", dist.Normal(means[z], 1.0), obs=x)

    fit = lv.fit(model, {"x": x}, lv.VI({"z": dist.Categorical}, num_particles=16), progress=False)
    found = jax.nn.softmax(fit.guide.values["z.logits"])
    exact = jax.nn.softmax(jnp.log(jnp.array([0.2, 0.3, 0.5])) - (x[:, None] - means) ** 2 / 2)
    np.testing.assert_allclose(found, exact, atol=0.02)


@pytest.mark.parametrize(("apart", "word"), [(1.0, "wrong"), (8.0, "trustworthy")])
def test_labels_have_ratios(apart, word):
    """Labels that are uncertain make a mean-field q too narrow, which is found; labels that are certain do not."""
    signs = np.where(np.arange(60) % 2, 0.5, -0.5)
    y = apart * signs + np.random.default_rng(0).normal(size=60)

    def model(y):
        m = numpyro.sample("m", dist.Normal(apart * jnp.array([-0.5, 0.5]), 1.0).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.ones(2) / 2))
            numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        fit = lv.fit(model, {"y": y}, lv.VI({"z": dist.Categorical}, num_particles=4), progress=False)
    assert ("far off" in [finding.code for finding in fit.verdict]) == (word == "wrong")
    assert np.isfinite(fit.stats["log_q"]).all()


def test_sites_of_rows_are_said_to_be_unchecked():
    def model(y):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, s))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    y = np.random.default_rng(0).normal(size=20)
    fit = lv.fit(model, {"y": y}, lv.VI({"z": dist.Normal}, num_particles=4), progress=False)
    assert [finding.code for finding in fit.verdict] == ["unchecked"]
    assert fit.verdict.word == "doubtful"


def test_kinds_for_rows_need_all_rows():
    with pytest.raises(lv.ModelError, match="'z' has a value for each row, and a minibatch"):
        lv.fit(bernoulli_mixture, MIXED, lv.VI({"z": dist.Bernoulli}), batch_size=10, progress=False)


def mixture_objective(guide=mixture_guide, **settings):
    target = Program(bernoulli_mixture).joint(as_table(MIXED))
    return objective_of(lv.VI(guide, **settings), target, None)


def test_variance_reduction_is_tenfold():
    """Leave-one-out baselines and Rao-Blackwellisation, against the plain estimator with as many particles."""
    found = {
        name: lv.elbo_gradients(bernoulli_mixture, MIXED, lv.VI(mixture_guide, num_particles=8, **settings))
        for name, settings in {"plain": {"baseline": None, "rao_blackwell": False}, "reduced": {}}.items()
    }
    plain, reduced = (one.variance["params"]["logits"].sum() for one in found.values())
    assert plain > 10 * reduced
    first, second = (one.mean["params"]["logits"] for one in found.values())
    errors = np.sqrt(sum(one.variance["params"]["logits"] for one in found.values()) / 1000)
    assert np.all(np.abs(first - second) < 5 * errors)


def test_which_terms_a_site_has_a_part_in():
    """z has a part in its own prior and in the likelihood of its row; not in the priors of the globals."""
    wiring = mixture_objective().wiring
    assert wiring.scored == ("z",)
    assert set(wiring.costs["z"][0]) == {"z", "x"}
    assert wiring.costs["z"][1] == ("z",)
    assert wiring.plates["q.z"] == wiring.plates["p.x"] == {"rows": -1}


def test_closed_forms_are_used_where_they_hold():
    """Of share and means; not of z, which is scored; and not where a prior hangs on what was drawn later."""
    assert set(mixture_objective().closed) == {"share", "means"}
    assert mixture_objective(gradient="score").closed == ()

    def hierarchy():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(a, 1.0))
        numpyro.sample("y", dist.Normal(b, 1.0), obs=1.0)

    def backwards():
        b = numpyro.sample("b", dist.Normal(numpyro.param("m", 0.5), 1.0))
        numpyro.sample("a", dist.Normal(0.5 * b, 0.8))

    def forwards():
        a = numpyro.sample("a", dist.Normal(numpyro.param("m", 0.5), 1.0))
        numpyro.sample("b", dist.Normal(0.5 * a, 0.8))

    target = Program(hierarchy).joint(as_table(None))
    assert set(objective_of(lv.VI(backwards), target, None).closed) == {"a"}
    assert set(objective_of(lv.VI(forwards), target, None).closed) == {"a", "b"}
    bounds = [
        lv.elbo_gradients(hierarchy, None, lv.VI(guide, gradient=g), num_samples=20_000).elbo
        for guide in (backwards, forwards)
        for g in ("pathwise", "stl")
    ]
    for closed, sampled in (bounds[:2], bounds[2:]):
        error = np.hypot(closed.std(), sampled.std()) / np.sqrt(20_000)
        assert abs(closed.mean() - sampled.mean()) < 4.5 * error


@pytest.mark.parametrize("guide", [mixture_guide, amortised_mixture_guide])
def test_score_function_of_everything_agrees_with_the_mixed_one(guide):
    found = [
        lv.elbo_gradients(bernoulli_mixture, MIXED, lv.VI(guide, gradient=g, num_particles=8), num_samples=3000)
        for g in ("pathwise", "score")
    ]
    for name in ("loc", "scale", "a", "b"):
        first, second = (one.mean["params"][name] for one in found)
        errors = np.sqrt(sum(one.variance["params"][name] for one in found) / 3000)
        assert np.all(np.abs(first - second) < 5 * errors + 1e-3), name


def test_minibatches_of_an_amortised_guide_are_unbiased():
    """Scaled by N/B once, in the cost and not in the score too."""
    settings = {"num_particles": 4}
    whole, part = (
        lv.elbo_gradients(
            bernoulli_mixture, MIXED, lv.VI(amortised_mixture_guide, **settings), num_samples=6000, batch_size=size
        )
        for size in (None, 10)
    )
    for name in ("slope", "offset", "loc"):
        errors = np.sqrt((whole.variance["params"][name] + part.variance["params"][name]) / 6000)
        assert np.all(np.abs(whole.mean["params"][name] - part.mean["params"][name]) < 5 * errors + 1e-3), name
    assert abs(whole.elbo.mean() - part.elbo.mean()) < 5 * part.elbo.std() / np.sqrt(6000)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


X = GENERATOR.normal(size=(80, 2))
REGRESSION = {"x": X, "y": X @ [1.0, -1.0] + 0.5 * GENERATOR.normal(size=80)}


@pytest.mark.parametrize("kind", ["AutoNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"])
def test_automatic_guides(kind):
    guide = getattr(autoguide, kind)(regression)
    fit = lv.fit(regression, REGRESSION, lv.VI(guide), progress=False)
    reference = lv.fit(regression, REGRESSION, progress=False)
    for name in ("w", "s"):
        first, second = (f.posterior[name].values.reshape(4000, -1) for f in (fit, reference))
        assert np.all(np.abs(first.mean(0) - second.mean(0)) < 0.15 * second.std(0))
        assert np.all(np.abs(first.std(0) / second.std(0) - 1) < 0.15)
    assert fit.verdict == ()


def test_a_family_for_what_the_guide_leaves():
    """The guide has each row's own; the family has the globals: a Bayesian decoder."""

    def factor(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1))
            numpyro.sample("x", dist.Normal(z[:, None] * w, 0.5).to_event(1), obs=x)

    def encoder(x):
        v = numpyro.param("v", jnp.array([0.3, 0.2, 0.1]))
        scale = numpyro.param("scale", 0.5, constraint=constraints.positive)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("z", dist.Normal(x @ v, scale))

    generator = np.random.default_rng(1)
    w = np.array([1.0, -0.7, 0.4])
    x = generator.normal(size=(400, 1)) * w + 0.5 * generator.normal(size=(400, 3))
    fit = lv.fit(factor, {"x": x}, lv.VI("fullrank", local=encoder), batch_size=100, progress=False, num_draws=50)
    found = fit.posterior["w"].values.reshape(-1, 3)
    found = found * np.sign(found[:, :1])
    np.testing.assert_allclose(found.mean(0), w, atol=0.12)
    assert 0.01 < found.std(0).max() < 0.1
    # The posterior of z is known given w: N(w.x / (0.25 + w.w), 0.25 / (0.25 + w.w)).
    np.testing.assert_allclose(fit.guide.values["scale"], np.sqrt(0.25 / (0.25 + w @ w)), rtol=0.1)
    again = fit.guide.sample(3, data={"x": x[:5]})
    assert again["z"].shape == (3, 5)


def scale_guide(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("m", jnp.zeros(2)), 1.0).to_event(1))
    numpyro.sample("s", dist.Normal(0.0, 1.0))


def missing_guide(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("m", jnp.zeros(2)), 1.0).to_event(1))


def surplus_guide(x, y):
    missing_guide(x, y)
    numpyro.sample("s", dist.Gamma(2.0, 2.0))
    numpyro.sample("t", dist.Normal(0.0, 1.0))


def misshapen_guide(x, y):
    numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("s", dist.Gamma(2.0, 2.0))


def observing_guide(x, y):
    missing_guide(x, y)
    numpyro.sample("s", dist.Gamma(2.0, 2.0))
    numpyro.sample("y", dist.Normal(jnp.zeros(len(y)), 1.0))


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (missing_guide, "misses site 's' of the program; it has 'w'"),
        (scale_guide, "'s': the guide draws from Real, but in the program its support is Positive"),
        (surplus_guide, "has site 't', which the program does not"),
        (misshapen_guide, r"'w' is of shape \(2,\) in the program, but \(3,\) in the guide"),
        (observing_guide, "has site 'y', which is observed"),
    ],
)
def test_guides_that_do_not_fit(guide, words):
    with pytest.raises(lv.ModelError, match=words):
        lv.fit(regression, REGRESSION, lv.VI(guide), progress=False)


def test_guides_and_rows():
    def unplated(x):
        globals_of_the_mixture()
        numpyro.sample("z", dist.Bernoulli(logits=x).to_event(0))

    with pytest.raises(
        lv.ModelError, match="inside the plate 'rows' over the rows in the program, but not in the guide"
    ):
        lv.fit(bernoulli_mixture, MIXED, lv.VI(unplated), batch_size=10, progress=False)

    def follows(x):
        globals_of_the_mixture()
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("logits", jnp.zeros(x.shape[0]))))

    with pytest.raises(lv.ModelError, match="shape of parameter 'logits' follows the number of rows"):
        lv.fit(bernoulli_mixture, MIXED, lv.VI(follows), batch_size=10, progress=False)


def test_a_family_has_no_discrete_sites():
    """Those with finitely many values are summed out; a count has no end."""

    def thinned(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", len(y)):
            n = numpyro.sample("n", dist.Poisson(rate))
            numpyro.sample("y", dist.Normal(n, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match="'n' is discrete: a Gaussian family cannot have it"):
        lv.fit(thinned, {"y": np.arange(5.0)}, "vi", progress=False)


def test_importance_weighted_bound_needs_a_path():
    with pytest.raises(lv.SettingError, match="site 'z' is by the score function"):
        lv.fit(bernoulli_mixture, MIXED, lv.VI(mixture_guide, bound="importance", num_particles=4), progress=False)


def test_a_tempered_prior_is_sampled():
    """Its divergence in closed form would be that of the prior as it is."""

    def model():
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("z", dist.Normal(0.0, 1.0))

    def guide():
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        numpyro.sample("z", dist.Normal(0.0, scale))

    # E_q[log p] / 2 + H(q) is largest at scale^2 = 2.
    fit = lv.fit(model, None, lv.VI(guide, num_particles=16), progress=False)
    assert abs(float(fit.guide.values["scale"]) / 2**0.5 - 1) < 0.03


@pytest.mark.parametrize("gradient", ["pathwise", "score"])
def test_a_guide_of_points_says_so(gradient):
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 10.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    y = np.array([2.0, 3.0, 4.0])
    fit = lv.fit(model, {"y": y}, lv.VI(autoguide.AutoDelta(model), gradient=gradient), progress=False)
    assert abs(float(fit.posterior["m"].mean()) - 9 / 3.01) < 0.05
    assert [finding.code for finding in fit.verdict] == ["point"]
    assert "ratios" not in fit.settings["evidence"]


@pytest.mark.filterwarnings("ignore:The approximation is far")
def test_log_prob_of_half_a_guide_is_refused():
    def model(y):
        m, s = numpyro.sample("m", dist.Normal(0, 10)), numpyro.sample("s", dist.HalfNormal(5))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m, s), obs=y)

    fit = lv.fit(model, {"y": np.arange(9.0)}, lv.VI({"s": dist.LogNormal}), progress=False)
    with pytest.raises(lv.SettingError, match="not known for sites"):
        fit.guide.log_prob({"s": 1.0, "m": 0.0})


def test_a_renamed_parameter_is_another_program():
    def fit(name):
        def model(y):
            numpyro.param(name, 1.0)
            with numpyro.plate("rows", len(y)):
                numpyro.sample("y", dist.Normal(numpyro.sample(f"{name}.m", dist.Normal(0, 1)), 1.0), obs=y)

        return lv.fit(model, {"y": np.ones(5)}, lv.VI(num_steps=1000), progress=False)

    for name in ("a", "b"):
        found = fit(name)
        assert set(found.guide.values) == {name, "mean", "log_scale"}
        assert list(found.posterior) == [f"{name}.m"]
