"""Fits of programs with discrete latent sites, and `fit.infer_discrete`."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp
from labelled import groups, hidden_markov

import langevin as lv

RNG = np.random.default_rng(4)
MEANS, SHARES, NUM_ROWS = np.array([-3.0, 0.0, 4.0]), np.array([0.3, 0.5, 0.2]), 1_000_000
LARGE = (MEANS[RNG.choice(3, NUM_ROWS, p=SHARES)] + RNG.normal(size=NUM_ROWS)).astype(np.float32)
FEW = {"y": LARGE[:200]}


def parameters():
    """Ordered means, so that each label has one name in all draws."""
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    ordered = dist.TransformedDistribution(
        dist.Normal(0.0, 3.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    return w, numpyro.sample("m", ordered)


def mixture(y):
    w, m = parameters()
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def mixture_by_hand(y):
    w, m = parameters()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(m, 1.0)), obs=y)


@pytest.fixture(scope="module")
def fit():
    return lv.fit(mixture, FEW, num_draws=500, num_warmup=500, progress=False)


def responsibilities(draws, y):
    """The probabilities of the labels in closed form, averaged over weighted draws."""
    w, m = (draws[name].values.reshape(-1, 3) for name in ("w", "m"))
    weights = draws["weight"].values.ravel() if "weight" in draws else np.ones(len(w))
    logits = np.log(w)[:, None] - 0.5 * (np.asarray(y)[:, None] - m[:, None]) ** 2
    return np.average(np.exp(logits - logsumexp(logits, axis=-1, keepdims=True)), axis=0, weights=weights)


def agree(one, other, names, factor=4.5):
    """Whether the means and sds of two fits differ by no more than their Monte Carlo errors say."""
    one, other = (fit.summary(list(names)) for fit in (one, other))
    error = np.hypot(one["mcse"], other["mcse"])
    assert (np.abs(one["mean"] - other["mean"]) < factor * error).all()
    rough = np.sqrt(0.5 / one["ess"] + 0.5 / other["ess"])
    assert (np.abs(np.log(one["sd"] / other["sd"])) < factor * rough).all()


def test_nuts_agrees_with_the_sum_by_hand(fit):
    by_hand = lv.fit(mixture_by_hand, FEW, num_draws=500, num_warmup=500, seed=1, progress=False)
    agree(fit, by_hand, ("w", "m"))
    assert fit.settings["summed_out"] == ["z"]
    assert by_hand.settings["summed_out"] == []
    assert "Summed out: z" in repr(fit)
    assert "z" not in fit.posterior


@pytest.fixture(scope="module")
def large():
    """A short chain on a million rows, with decreasing steps and so with weights."""
    method = lv.SGLD(step_size=lv.Polynomial(3e-7, 1.0, 0.55))
    settings = {"batch_size": 1000, "num_chains": 2, "num_warmup": 10, "num_draws": 60, "thin": 2, "progress": False}
    with pytest.warns(lv.LangevinWarning, match="not mixed"):
        return [lv.fit(model, {"y": LARGE}, method, **settings) for model in (mixture, mixture_by_hand)]


def test_a_million_rows_in_minibatches(large):
    """One seed gives one noise and the same minibatches, so the chains are the same, to rounding."""
    summed, by_hand = (fit.posterior for fit in large)
    moved = np.abs(summed["m"][:, -1] - summed["m"][:, 0]).max()
    assert moved > 0.3
    for name in ("w", "m"):
        assert np.abs(summed[name] - by_hand[name]).max() < 1e-4 * moved


def test_weighted_draws_count_by_their_weights(large):
    fit, rows = large[0], LARGE[:3000]
    assert np.ptp(fit.weights.values) > 0
    draws = fit.posterior.assign(weight=fit.weights)
    found = fit.infer_discrete({"y": rows}, kind="probabilities", batch_size=700)["z"].values
    assert np.abs(found - responsibilities(draws, rows)).max() < 1e-4
    assert np.abs(found - responsibilities(fit.posterior, rows)).max() > 1e-3
    drawn = fit.infer_discrete({"y": rows}, batch_size=700)
    assert drawn["z"].shape == (2, 60, 3000)
    assert np.array_equal(drawn["weight"], fit.weights)
    with pytest.raises(lv.SettingError, match=r"take \d+ GB.*kind='probabilities'"):
        fit.infer_discrete({"y": np.tile(LARGE, 40)})


def test_probabilities_in_closed_form(fit):
    found = fit.infer_discrete(kind="probabilities")["z"]
    assert found.dims == ("rows", "z_value")
    assert list(found["z_value"].values) == [0, 1, 2]
    assert np.abs(found.values - responsibilities(fit.posterior, FEW["y"])).max() < 1e-4
    new = np.array([-4.0, 1.5, 9.0])
    found = fit.infer_discrete({"y": new}, kind="probabilities")["z"]
    assert np.abs(found.values - responsibilities(fit.posterior, new)).max() < 1e-4


def test_draws_have_these_probabilities(fit):
    found = fit.infer_discrete(seed=3)
    assert found["z"].dims == ("chain", "draw", "rows")
    assert found["z"].dtype == np.int8
    exact = responsibilities(fit.posterior, FEW["y"])
    for value in range(3):
        share = (found["z"] == value).mean(("chain", "draw")).values
        error = np.sqrt(exact[:, value] * (1 - exact[:, value]) / 2000)
        assert (np.abs(share - exact[:, value]) < 4.5 * error + 1e-3).all()
    assert found.equals(fit.infer_discrete(seed=3))
    assert not found.equals(fit.infer_discrete(seed=4))


def test_draws_are_independent_from_row_to_row_given_the_parameters(fit):
    """Rows with one value of y have one probability, and labels of their own."""
    found = fit.infer_discrete({"y": np.full(50, 2.0)})["z"].values
    differing = (found != found[..., :1]).any(axis=-1).mean()
    assert differing > 0.9


def smoothing(p, m, y):
    """The forward and backward algorithms in NumPy: the probability of each state, and of each pair in a row."""
    emitted = np.exp(-0.5 * (y[:, None] - m) ** 2)
    alpha, beta = np.zeros((len(y), len(m))), np.ones((len(y), len(m)))
    alpha[0] = p[0] * emitted[0]
    for t in range(1, len(y)):
        alpha[t] = (alpha[t - 1] @ p) * emitted[t]
        alpha[t] /= alpha[t].sum()
    for t in range(len(y) - 2, -1, -1):
        beta[t] = p @ (emitted[t + 1] * beta[t + 1])
        beta[t] /= beta[t].sum()
    single = alpha * beta
    pairs = alpha[:-1, :, None] * p * (emitted[1:] * beta[1:])[:, None, :]
    return single / single.sum(-1, keepdims=True), pairs / pairs.sum((-2, -1), keepdims=True)


@pytest.fixture(scope="module")
def chain():
    states = np.repeat([0, 2, 1, 2, 0], 5)
    y = np.array([-2.0, 0.0, 2.0])[states] + np.random.default_rng(0).normal(size=25)
    with pytest.warns(lv.LangevinWarning, match="The approximation"):
        return lv.fit(hidden_markov, {"y": y}, lv.VI(), num_chains=2, num_draws=200, progress=False), y


def test_states_of_a_chain_by_forward_and_backward(chain):
    fit, y = chain
    singles, pairs = zip(
        *(
            smoothing(p.astype(np.float64), m.astype(np.float64), y)
            for p, m in zip(
                fit.posterior["p"].values.reshape(-1, 3, 3), fit.posterior["m"].values.reshape(-1, 3), strict=True
            )
        ),
        strict=True,
    )
    found = fit.infer_discrete(kind="probabilities")["z"].values
    assert np.abs(found - np.mean(singles, axis=0)).max() < 1e-4
    # Joint draws: pairs in a row have the right probabilities, not only single states.
    drawn = np.concatenate([fit.infer_discrete(seed=seed)["z"].values.reshape(-1, len(y)) for seed in range(10)])
    share = np.mean(np.eye(3)[drawn[:, :-1, None]].swapaxes(-1, -2) * np.eye(3)[drawn[:, 1:, None]], axis=0)
    exact = np.mean(pairs, axis=0)
    error = np.sqrt(exact * (1 - exact) / len(drawn))
    assert (np.abs(share - exact) < 5 * error + 1e-3).all()


def test_labels_of_groups_take_all_their_rows():
    y = np.random.default_rng(2).normal(np.repeat([-1.0, 1.0], 3), 1.0, size=(5, 6))
    with pytest.warns(lv.LangevinWarning, match="order the labels"):
        fit = lv.fit(groups, {"y": y}, lv.VI(), num_chains=1, num_draws=50, progress=False)
    w, m = (fit.posterior[name].values[0] for name in "wm")
    logits = np.log(w)[:, None] - 0.5 * ((y[..., None] - m[:, None, None]) ** 2).sum(1)
    exact = np.exp(logits - logsumexp(logits, axis=-1, keepdims=True)).mean(0)
    found = fit.infer_discrete(kind="probabilities")["z"]
    assert found.dims == ("groups", "z_value")
    assert np.abs(found.values - exact).max() < 1e-4


def test_a_fit_that_was_loaded_needs_its_model_and_its_rows(fit, tmp_path):
    fit.save(tmp_path / "fit")
    for loaded in (lv.load(tmp_path / "fit"), lv.load(tmp_path / "fit", mixture)):
        with pytest.raises(lv.SettingError, match=r"this fit was loaded.*lv\.load\(path, model=model\)"):
            loaded.infer_discrete()
    loaded = lv.load(tmp_path / "fit", mixture)
    assert loaded.infer_discrete(FEW, seed=3).equals(fit.infer_discrete(seed=3))


def test_what_cannot_be_asked(fit):
    with pytest.raises(lv.SettingError, match=r"`kind`.*'draws', 'probabilities'"):
        fit.infer_discrete(kind="mean")
    with pytest.raises(lv.DataError, match=r"columns of the fit, \['y'\]; got \['x'\]"):
        fit.infer_discrete({"x": np.zeros(3)})
    with pytest.raises(lv.SettingError, match="`batch_size` is for fits by minibatches"):
        fit.infer_discrete(batch_size=10)
    density = lv.Density(lambda x: -(x**2) / 2, init=0.0)
    other = lv.fit(density, method=lv.VI(), num_chains=1, progress=False)
    with pytest.raises(lv.SettingError, match="no discrete site was summed out"):
        other.infer_discrete()


def test_a_guide_keeps_its_labels():
    """Kinds by site ask for the joint distribution of the sites: nothing is summed out."""
    method = lv.VI({"z": dist.Categorical}, num_steps=20)
    with pytest.warns(lv.LangevinWarning):
        fit = lv.fit(mixture, FEW, method, num_chains=1, num_draws=20, progress=False)
    assert "z" in fit.posterior
    assert fit.settings["summed_out"] == []
