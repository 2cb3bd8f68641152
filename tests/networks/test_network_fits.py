"""Fits of networks: what is kept, stored and continued, and what is predicted from it."""

import copy
import pickle
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.predicting import blocks, values

RNG = np.random.default_rng(0)
N = 40
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (np.sin(X[:, 0]) + 0.2 * RNG.normal(size=N)).astype(np.float32)
LABELS = np.array(["ant", "bee", "cat"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
NEW = RNG.normal(size=(9, 2)).astype(np.float32)
NUMBERS, CLASSES = {"x": X, "y": Y}, {"x": X, "y": LABELS}
METHOD = lv.SGLD(step_size=1e-3)
SETTINGS = {"num_chains": 2, "num_warmup": 20, "num_draws": 30, "progress": False}


def mlp(out_size=1, seed=0):
    return eqx.nn.MLP(2, out_size, 4, 1, activation=jnp.tanh, key=jax.random.key(seed))


def fitted(network, data=NUMBERS, method=METHOD, **options):
    with pytest.warns(lv.LangevinWarning):  # So few draws are doubtful, and so is a step that was made up.
        return lv.fit(network, data, method, **SETTINGS | options)


@pytest.fixture(scope="module")
def network():
    return lv.Network(mlp())


@pytest.fixture(scope="module")
def fit(network):
    return fitted(network)


@pytest.fixture(scope="module")
def classifier():
    return lv.Network(mlp(3), "categorical")


@pytest.fixture(scope="module")
def classified(classifier):
    return fitted(classifier, CLASSES)


def outputs(fit, network, x):
    """The network at all draws, one after the other, by hand."""
    draws = [fit.posterior[f"layers.{i}.{part}"].values for i in (0, 1) for part in ("weight", "bias")]
    w, b, v, c = (array.reshape(-1, *array.shape[2:]).astype(np.float64) for array in draws)
    hidden = np.tanh(np.einsum("ni,shi->snh", x, w) + b[:, None])
    return np.einsum("snh,soh->sno", hidden, v) + c[:, None]


def shares(fit):
    return (fit.weights.values / fit.weights.values.sum()).ravel()


def test_weights_are_kept_once(fit, network):
    assert "unconstrained_posterior" not in fit.tree
    assert set(fit.posterior) == {*network.shapes, "noise", "prediction"}
    both = fitted(network, keep=lv.Keep(unconstrained=True))
    assert "unconstrained_posterior" in both.tree
    np.testing.assert_array_equal(both.posterior["layers.0.weight"], fit.posterior["layers.0.weight"])


def test_chains_can_start_at_a_fit_that_kept_no_positions(fit, network):
    again = fitted(network, init=fit, num_warmup=0, num_draws=5)
    both = fitted(network, keep=lv.Keep(unconstrained=True))
    other = fitted(network, init=both, num_warmup=0, num_draws=5)
    np.testing.assert_allclose(again.posterior["noise"], other.posterior["noise"], rtol=1e-5)
    np.testing.assert_allclose(again.posterior["layers.0.weight"], other.posterior["layers.0.weight"], rtol=1e-5)
    fewer = fitted(network, keep="noise", num_draws=5)
    with pytest.raises(lv.SettingError, match="kept no unconstrained positions"):
        lv.fit(network, NUMBERS, METHOD, init=fewer, progress=False)


def test_what_is_shown_are_predictions(fit, network):
    table = fit.summary()
    assert table.index[0] == "noise"
    assert all(name.startswith(("noise", "prediction[")) for name in table.index)
    assert "layers" not in repr(fit).split("\n")[0]
    assert "prediction[" in fit._repr_html_()
    assert "layers.0" not in fit._repr_html_()
    assert any("predictions, and not the weights" in finding.finding for finding in fit.verdict)


def test_a_tempered_fit_says_so(network):
    cold = fitted(lv.Network(mlp(), temperature=0.5), num_draws=5)
    assert "tempered (temperature 0.5)" in cold.settings["approximation"]
    assert "tempered" in repr(cold)


def test_predictions_of_numbers_by_hand(fit, network):
    found = fit.predict({"x": NEW, "y": Y[:9]})
    output, w, noise = outputs(fit, network, NEW)[..., 0], shares(fit), fit.posterior["noise"].values.ravel()
    mean = w @ output
    np.testing.assert_allclose(found["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(found["sd_aleatoric"], np.sqrt(w @ noise**2), rtol=1e-4)
    variance = w @ (output - mean) ** 2 / (1 - np.sum(w**2))
    np.testing.assert_allclose(found["sd_epistemic"], np.sqrt(variance), rtol=1e-3)
    density = np.exp(-((Y[:9] - output) ** 2) / (2 * noise[:, None] ** 2)) / np.sqrt(2 * np.pi) / noise[:, None]
    np.testing.assert_allclose(found["log_predictive_density"], np.log(w @ density), rtol=1e-3)


def test_predictions_of_classes_by_hand(classified, classifier):
    found = classified.predict({"x": NEW})
    output = outputs(classified, classifier, NEW)
    p = np.exp(output) / np.exp(output).sum(axis=-1, keepdims=True)
    mean = np.tensordot(shares(classified), p, 1)
    for k in range(3):
        np.testing.assert_allclose(found[f"probability_{k}"], mean[:, k], atol=1e-5)
    np.testing.assert_array_equal(found["most_probable"], mean.argmax(axis=1))
    entropy = -(mean * np.log(mean)).sum(axis=1)
    np.testing.assert_allclose(found["entropy"], entropy, rtol=1e-4)
    given = np.tensordot(shares(classified), -(p * np.log(p)).sum(axis=-1), 1)
    np.testing.assert_allclose(found["mutual_information"], entropy - given, atol=1e-5)
    scores = classified.evaluate(CLASSES)
    assert 0.3 < scores["accuracy"] <= 1
    with pytest.raises(lv.DataError, match="dog"):
        classified.evaluate({"x": X[:2], "y": ["dog", "ant"]})


def test_new_labels_are_checked_too(classifier):
    fit = fitted(classifier, {"x": X, "y": np.unique(LABELS, return_inverse=True)[1]}, num_draws=5)
    with pytest.raises(lv.DataError, match="class 7 in row 1"):
        fit.evaluate({"x": X[:2], "y": [0, 7]})
    with pytest.raises(lv.ModelError, match=r"a row of shape \(3,\)"):
        fit.predict({"x": np.ones((4, 3), np.float32)})


def test_two_classes_have_entropies():
    fit = fitted(lv.Network(mlp(), "bernoulli"), {"x": X, "y": X[:, 0] > 0})
    found = fit.predict({"x": NEW})
    p = 1 / (1 + np.exp(-outputs(fit, None, NEW)[..., 0]))
    h = lambda p: -p * np.log(p) - (1 - p) * np.log(1 - p)  # noqa: E731
    np.testing.assert_allclose(found["entropy"], h(shares(fit) @ p), rtol=1e-4)
    np.testing.assert_allclose(found["mutual_information"], h(shares(fit) @ p) - shares(fit) @ h(p), atol=1e-5)


@pytest.mark.parametrize("precision", [None, "half"])
@pytest.mark.parametrize("data", [NUMBERS, CLASSES], ids=["numbers", "classes"])
def test_predictions_that_are_kept_are_those_of_the_weights(fit, network, classified, classifier, data, precision):
    whole, model = (fit, network) if data is NUMBERS else (classified, classifier)
    test = {"x": NEW, "y": data["y"][:9]}
    kept = fitted(model, data, keep=lv.Keep(predict=test, precision=precision))
    assert not set(model.shapes) & set(kept.posterior)
    assert kept.posterior["output"].dtype == (np.float16 if precision else np.float32)
    expected, found = whole.predict(test), kept.predict()
    assert set(found) == set(expected)
    for name in set(found) - {"most_probable", "log_predictive_density"}:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-2 if precision else 1e-5, err_msg=name)
    np.testing.assert_allclose(kept.evaluate(test), whole.evaluate(test), atol=2e-2 if precision else 1e-5)
    np.testing.assert_allclose(kept.evaluate(), kept.evaluate(test))
    some = "entropy" if data is CLASSES else "mean"
    np.testing.assert_allclose(kept.predict({"x": NEW})[some], found[some], atol=1e-6)
    with pytest.raises(lv.SettingError, match=r"for 9 rows, and not its weights"):
        kept.predict({"x": NEW[:5]})
    with pytest.raises(lv.SettingError, match=r"for 9 rows, and not its weights"):
        kept.predict({"x": NEW + 1})
    assert kept.verdict.word == whole.verdict.word


def test_rows_to_keep_come_in_blocks(network, monkeypatch):
    from langevin.models.networks import keeping

    test = {"x": RNG.normal(size=(23, 2)).astype(np.float32)}
    one = fitted(network, num_draws=5, keep=lv.Keep(predict=test))
    monkeypatch.setattr(keeping, "ROWS_A_BLOCK", 5)
    other = fitted(network, num_draws=5, seed=0, keep=lv.Keep(predict=test, sites="layers.1.*"))
    np.testing.assert_allclose(one.posterior["output"], other.posterior["output"], atol=1e-5)
    assert {"layers.1.weight", "layers.1.bias"} < set(other.posterior)


@pytest.mark.parametrize("method", ["nuts", "map", lv.VI(num_steps=50)], ids=["nuts", "map", "vi"])
def test_every_engine_can_keep_predictions(network, method):
    options = SETTINGS | {"method": method, "num_warmup": 10, "num_draws": 10}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        whole = lv.fit(network, NUMBERS, **options)
        kept = lv.fit(network, NUMBERS, keep=lv.Keep(predict={"x": NEW}), **options)
    np.testing.assert_allclose(kept.predict()["mean"], whole.predict({"x": NEW})["mean"], atol=1e-4)


def test_predictions_are_kept_of_networks_only(network):
    with pytest.raises(lv.SettingError, match="`predict` is for an lv.Network"):
        lv.fit(lambda: None, None, keep=lv.Keep(predict={"x": NEW}))


def test_stored_and_loaded(fit, network, classified, classifier, tmp_path):
    fit.save(tmp_path / "fit")
    loaded = lv.load(tmp_path / "fit", network)
    np.testing.assert_allclose(loaded.predict({"x": NEW})["mean"], fit.predict({"x": NEW})["mean"], atol=1e-6)
    classified.save(tmp_path / "classes")
    loaded = lv.load(tmp_path / "classes", classifier)
    assert loaded.evaluate(CLASSES)["NLL"] == pytest.approx(classified.evaluate(CLASSES)["NLL"], rel=1e-5)
    kept = fitted(network, num_draws=8, keep=lv.Keep(predict={"x": NEW}))
    kept.save(tmp_path / "kept")
    again = lv.load(tmp_path / "kept", network)
    np.testing.assert_allclose(again.predict({"x": NEW})["mean"], kept.predict()["mean"], atol=1e-6)
    with pytest.raises(lv.SettingError, match="not its weights"):
        again.predict({"x": X})


def test_a_run_on_disk_goes_on_with_its_network_only(network, tmp_path):
    path = tmp_path / "run"
    part = fitted(network, num_draws=10, store=path)
    with pytest.raises(lv.SettingError, match="model has changed"):
        lv.resume(path, lv.Network(mlp(), "student_t"), NUMBERS, progress=False)
    with pytest.raises(lv.SettingError, match="model has changed"):
        lv.resume(path, lv.Network(mlp(), prior=lv.FanIn(1.0)), NUMBERS, progress=False)
    with pytest.warns(lv.LangevinWarning):
        whole = lv.resume(path, network, NUMBERS, num_draws=20, progress=False)
    straight = fitted(network, num_draws=20)
    np.testing.assert_array_equal(whole.posterior["layers.0.weight"], straight.posterior["layers.0.weight"])
    np.testing.assert_array_equal(part.posterior["noise"], straight.posterior["noise"][:, :10])
    np.testing.assert_allclose(whole.predict({"x": NEW})["mean"], straight.predict({"x": NEW})["mean"], atol=1e-6)


def test_frozen_weights_are_part_of_what_a_run_is(fit, network, tmp_path):
    one, other = (lv.Network(mlp(seed=seed), frozen="layers.0.*") for seed in (0, 1))
    fitted(one, num_draws=5, store=tmp_path / "run")
    with pytest.raises(lv.SettingError, match="model has changed"):
        lv.resume(tmp_path / "run", other, NUMBERS, progress=False)


def test_predictions_on_disk_go_on_with_the_same_rows(network, tmp_path):
    path = tmp_path / "run"
    fitted(network, num_draws=5, store=path, keep=lv.Keep(predict={"x": NEW}))
    with pytest.raises(lv.SettingError, match="Give the same `keep` again"):
        lv.resume(path, network, NUMBERS, progress=False)
    with pytest.raises(lv.SettingError, match="Give the same `keep` again"):
        lv.resume(path, network, NUMBERS, keep=lv.Keep(predict={"x": NEW + 1}), progress=False)
    with pytest.warns(lv.LangevinWarning):
        whole = lv.resume(path, network, NUMBERS, keep=lv.Keep(predict={"x": NEW}), num_draws=9, progress=False)
    assert whole.posterior["output"].shape == (2, 9, 9, 1)
    assert whole.predict().sizes["rows"] == 9


def test_other_rows_are_probed_in_another_fit(network):
    """A program that is compiled for some rows to look at does not serve others of the same shape."""
    one, other = (fitted(network, {"x": x, "y": Y}, num_draws=4, num_warmup=0) for x in (X, X[::-1].copy()))
    for fit, x in ((one, X), (other, X[::-1])):
        found = fit.posterior["prediction"].values.reshape(-1, N)
        np.testing.assert_allclose(found, outputs(fit, None, x)[..., 0], atol=1e-4)


def test_copies_and_criticism(fit, network):
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.posterior["noise"], fit.posterior["noise"])
    np.testing.assert_allclose(copy.deepcopy(fit).predict({"x": NEW})["mean"], fit.predict({"x": NEW})["mean"])
    groups = fit.data_tree
    assert groups["log_likelihood"]["y"].shape == (2, 30, N)
    assert fit.predictive_check(num_draws=50) is not None
    tree = lv.prior_predictive(network, {"x": NEW}, num_draws=20)
    assert tree["prior_predictive"]["y"].shape == (1, 20, 9)
    two = lv.prior_predictive(lv.Network(mlp(2)), {"x": NEW}, num_draws=20)
    assert two["prior_predictive"]["y"].shape == (1, 20, 9, 2)


def test_the_likelihood_of_a_tempered_fit_has_no_temperature(network):
    cold = fitted(lv.Network(mlp(), temperature=0.5), num_draws=20)
    output, noise = outputs(cold, None, X)[..., 0], cold.posterior["noise"].values.reshape(-1, 1)
    by_hand = -((Y - output) ** 2) / (2 * noise**2) - np.log(noise) - 0.5 * np.log(2 * np.pi)
    found = cold.data_tree["log_likelihood"]["y"].values.reshape(-1, N)
    np.testing.assert_allclose(found, by_hand, rtol=1e-3, atol=1e-3)
    with pytest.raises(lv.SettingError, match="these are tempered"):
        cold.loo()


def test_draws_that_are_large_are_read_a_few_at_a_time(fit, network, classified, monkeypatch, tmp_path):
    expected, of_classes = fit.predict({"x": NEW, "y": Y[:9]}), classified.predict({"x": NEW})
    fit.save(tmp_path / "fit")
    read = []
    monkeypatch.setattr(values, "MOST_BYTES", 100)
    monkeypatch.setattr(blocks, "MOST_BYTES", 2000)
    plain = values.Read.__getitem__
    monkeypatch.setattr(values.Read, "__getitem__", lambda self, i: read.append(np.size(i)) or plain(self, i))
    for one in (fit, lv.load(tmp_path / "fit", network)):
        found = one.predict({"x": NEW, "y": Y[:9]})
        for name in set(expected) - {"q5", "q50", "q95"}:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
        for name in ("q5", "q50", "q95"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-3)
    assert 1 <= max(read) < 60
    again = classified.predict({"x": NEW})
    for name in set(of_classes):
        np.testing.assert_allclose(again[name], of_classes[name], atol=1e-5)


def test_a_point_is_computed_once_for_all_its_quantiles(network):
    fit = lv.fit(network, NUMBERS, lv.MAP(num_steps=200), num_chains=2, progress=False)
    noise, output = float(fit.posterior["noise"].values[0, 0]), outputs(fit, network, NEW)[0, :, 0]
    found = fit.predict({"x": NEW})
    np.testing.assert_allclose(found["mean"], output, atol=1e-5)
    np.testing.assert_allclose(found["q95"], output + 1.6449 * noise, atol=0.03 * noise)
    np.testing.assert_allclose(found["sd_epistemic"], 0, atol=1e-6)
