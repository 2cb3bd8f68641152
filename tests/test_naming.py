"""Dimensions that have names and labels: of plates, of columns, and those that a user gives."""

import json

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import langevin as lv

# Short runs are flagged, which is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

SHORT = {"num_chains": 2, "num_warmup": 50, "num_draws": 30, "progress": False, "seed": 1}
CARRIERS = ["UA", "AA", "B6", "DL"]
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 4, 120)
EFFECTS = np.array([2.0, -2.0, 0.0, 5.0])
FRAME = pd.DataFrame(
    {
        "carrier": np.array(CARRIERS)[CODES],
        "origin": pd.Categorical(np.array(["LGA", "JFK"])[RNG.integers(0, 2, 120)], ["LGA", "JFK", "EWR"]),
        "delay": EFFECTS[CODES] + RNG.normal(size=120),
        "when": pd.date_range("2013", periods=120),
    }
)
FRAME.loc[[5, 9], "delay"] = np.nan
SORTED = sorted(CARRIERS)


def model(carrier, origin, num_carrier, num_origin, delay):
    scale = numpyro.sample("scale", dist.HalfNormal(3.0))
    with numpyro.plate("carrier", num_carrier):
        a = numpyro.sample("a", dist.Normal(0.0, scale))
        numpyro.deterministic("doubled", 2 * a)
        numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("origins", num_origin):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("w", dist.Normal(0.0, 1.0).expand([num_carrier]).to_event(1))
    with numpyro.plate("rows", len(carrier)):
        numpyro.sample("delay", dist.Normal(a[carrier] + b[origin], 1.0), obs=delay)


NAMES = {"dims": {"slope": "term", "w": ("carrier",)}, "coords": {"term": ["one", "two"]}}


@pytest.fixture(scope="module")
def fit():
    return lv.fit(model, FRAME, missing="drop", **SHORT, **NAMES)


def test_group_effects_carry_levels(fit):
    assert fit.posterior["a"].dims == ("chain", "draw", "carrier")
    assert list(fit.posterior["carrier"].values) == SORTED
    for carrier, effect in zip(CARRIERS, EFFECTS, strict=True):
        # Two observations in three tell the effects apart by five of their sds.
        assert abs(float(fit.posterior["a"].sel(carrier=carrier).mean()) - effect) < 2
    np.testing.assert_array_equal(fit.posterior["doubled"].sel(carrier="UA"), 2 * fit.posterior["a"].sel(carrier="UA"))
    # A plate that is named after a column, and categories that no row has.
    assert list(fit.posterior["b"].coords["origins"].values) == ["LGA", "JFK", "EWR"]
    assert fit.posterior["slope"].sel(carrier="DL", term="two").shape == (2, 30)
    assert list(fit.posterior["w"].coords["carrier"].values) == SORTED


def test_the_fit_says_what_it_was_made_of(fit):
    assert fit.levels == {"carrier": SORTED, "origin": ["LGA", "JFK", "EWR"]}
    assert fit.settings["counts"] == {"num_carrier": 4, "num_origin": 3}
    assert fit.settings["missing"] == "drop"
    assert fit.settings["num_data"] == 118
    assert fit.settings["rows_left_out"] == "2 of 120 rows lack values and were left out: 'delay' in 2."
    assert fit.settings["rows_left_out"] in repr(fit)


def test_summaries_and_findings_name_levels(fit):
    index = list(fit.summary().index)
    assert index[1:5] == [f"a[{carrier}]" for carrier in SORTED]
    assert "slope[AA, one]" in index
    assert "b[EWR]" in index
    few = lv.fit(model, FRAME, missing="drop", **SHORT | {"num_draws": 8}, keep="a")
    assert any(f"a[{carrier}]" in str(few.verdict) for carrier in CARRIERS)


def assert_same(one, other):
    for group in ("posterior", "sample_stats"):
        a, b = one.tree[group].to_dataset(), other.tree[group].to_dataset()
        assert set(a.variables) == set(b.variables)
        for name in a.variables:
            np.testing.assert_array_equal(a[name].values, b[name].values)
            assert (a[name].dims, a[name].dtype) == (b[name].dims, b[name].dtype), name
    assert list(one.posterior) == list(other.posterior)
    assert one.settings == other.settings
    assert list(one.summary().index) == list(other.summary().index)


def test_names_survive_disk_and_resume(fit, tmp_path):
    fit.save(tmp_path / "saved")
    assert_same(lv.load(tmp_path / "saved"), fit)
    stored = lv.fit(model, FRAME, missing="drop", store=tmp_path / "run", **SHORT, **NAMES)
    assert_same(stored, fit)
    assert_same(lv.load(tmp_path / "run"), fit)
    resumed = lv.resume(tmp_path / "run", model, FRAME, num_draws=40, progress=False)
    np.testing.assert_array_equal(resumed.posterior["a"][:, :30], fit.posterior["a"])
    assert list(resumed.posterior["carrier"].values) == SORTED
    assert resumed.settings["rows_left_out"] == fit.settings["rows_left_out"]
    renamed = FRAME.assign(carrier=FRAME["carrier"].replace({"UA": "XX"}))
    with pytest.raises(lv.SettingError, match=r"`data\['carrier'\]` has other levels than the run was begun with"):
        lv.resume(tmp_path / "run", model, renamed, progress=False)
    with pytest.raises(lv.SettingError, match=r"`data\['delay'\]` has other values"):
        lv.resume(tmp_path / "run", model, FRAME.assign(delay=FRAME["delay"] + 1), progress=False)
    record = json.loads((tmp_path / "run" / "run.json").read_text())["record"]
    assert record["asked"]["missing"] == "drop"


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (lv.SGHMC(step_size=1e-3), {"batch_size": 30}),
        (lv.SGLD(lv.Polynomial(1e-2, 1, 0.55)), {"batch_size": 30}),
        (lv.VI("meanfield", num_steps=100), {}),
        (lv.VI({"a": dist.Normal}, num_steps=100), {"batch_size": 30}),
        ("map", {}),
    ],
    ids=["sghmc", "weighted sgld", "vi", "vi by sites", "map"],
)
def test_every_engine_has_the_names(method, more):
    found = lv.fit(model, FRAME, method, missing="drop", **SHORT, **NAMES, **more)
    assert list(found.posterior["a"].coords["carrier"].values) == SORTED
    assert list(found.data_tree["posterior"].to_dataset()["carrier"].values) == SORTED
    assert found.posterior["slope"].dims[2:] == ("carrier", "term")
    assert list(found.posterior["slope"].coords["term"].values) == ["one", "two"]


def plain(y):
    numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    m = numpyro.sample("m", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m.sum(), 1.0), obs=y)


ROWS = {"y": np.arange(5.0)}


@pytest.mark.parametrize(
    ("names", "culprit"),
    [
        ({"dims": {"q": "f"}}, "`dims`: no site 'q' is reported; there are w, m"),
        ({"dims": {"w": "f"}}, r"`dims\['w'\]` has 1 names, and site 'w' has the dimensions \('w_dim_0', 'w_dim_1'\)"),
        ({"dims": {"w": ("f", "f")}}, r"`dims\['w'\]` has a name twice"),
        (
            {"dims": {"w": ("f", "g"), "m": "f"}},
            r"the dimension 'f' has another size elsewhere, 2; here .*\(3,\)",
        ),
        ({"dims": {"m": "w"}}, r"`dims\['m'\]`: \('w',\) has the name of a site"),
        ({"dims": {"m": "draw"}}, "'draw' cannot be the name of a dimension"),
        ({"dims": {"m": "a/b"}}, "'a/b' cannot be the name of a dimension"),
        ({"dims": {"m": 3}}, r"`dims\['m'\]` must be names of dimensions"),
        ({"dims": ["m"]}, r"`dims` must be a dict of names by site"),
        ({"coords": {"f": [1]}}, "`coords`: no site has the dimension 'f'; there are 'w_dim_0', 'w_dim_1', 'm_dim_0'"),
        ({"dims": {"m": "f"}, "coords": {"f": [1]}}, r"`coords\['f'\]` has 1 labels, and the dimension has size 3"),
        ({"dims": {"m": "f"}, "coords": {"f": "abc"}}, r"`coords\['f'\]` must be a list of labels; got 'abc'"),
        ({"coords": [1]}, "`coords` must be a dict of labels by dimension"),
    ],
)
def test_names_that_cannot_be(names, culprit):
    with pytest.raises(lv.SettingError, match=culprit):
        lv.fit(plain, ROWS, **SHORT, **names)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        (np.array([10, 20, 30]), [10, 20, 30]),
        (pd.Index([0.5, 1.5, 2.5]), [0.5, 1.5, 2.5]),
        (["a", 1, 2.5], ["a", "1", "2.5"]),
        (pd.date_range("2013-01-01", periods=3), ["2013-01-01 00:00:00", "2013-01-02 00:00:00", "2013-01-03 00:00:00"]),
    ],
)
def test_labels_of_many_kinds(labels, expected, tmp_path):
    short = SHORT | {"num_warmup": 0, "num_draws": 2}
    found = lv.fit(plain, ROWS, "rwm", store=tmp_path / "run", dims={"m": "f"}, coords={"f": labels}, **short)
    assert list(found.posterior["f"].values) == expected
    assert list(lv.load(tmp_path / "run").posterior["f"].values) == expected
    assert f"m[{expected[1]}]" in found.summary().index


def test_names_of_what_a_function_keeps():
    def keep(sites):
        return {"total": sites["w"].sum(axis=0), "m": sites["m"][:2]}

    found = lv.fit(plain, ROWS, keep=keep, dims={"total": "f", "m": "g"}, coords={"f": list("abc")}, **SHORT)
    assert found.posterior["total"].dims == ("chain", "draw", "f")
    assert found.posterior["m"].dims == ("chain", "draw", "g")
    with pytest.raises(lv.SettingError, match="no site 'w' is reported; there are m, total"):
        lv.fit(plain, ROWS, keep=keep, dims={"w": ("f", "g")}, **SHORT)


def test_a_part_of_the_levels_is_no_plate():
    def keep(sites):
        return {"scale": sites["scale"], "a": sites["a"][:2], "doubled": sites["doubled"]}

    found = lv.fit(model, FRAME, missing="drop", keep=keep, **SHORT)
    assert found.posterior["doubled"].dims[2:] == ("doubled_dim_0",)
    assert "carrier" not in found.posterior.coords
    assert list(found.summary().index[1:3]) == ["a[0]", "a[1]"]


def test_names_of_a_density():
    density = lv.Density(lambda x: -(x["a"] ** 2).sum(), init={"a": np.zeros(3), "b": np.zeros(())})
    found = lv.fit(density, dims={"a": "f"}, coords={"f": list("xyz")}, **SHORT)
    assert list(found.summary().index) == ["a[x]", "a[y]", "a[z]", "b"]


def test_a_plate_of_another_size_has_no_labels():
    def more(carrier, delay):
        with numpyro.plate("carrier", 7):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(carrier)):
            numpyro.sample("delay", dist.Normal(a[carrier], 1.0), obs=delay)

    found = lv.fit(more, FRAME, missing="drop", **SHORT)
    assert "carrier" not in found.posterior.coords
    assert found.summary().index[6] == "a[6]"


def impute(x, y, x_missing):
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    if len(x_missing):
        with numpyro.plate("gaps", len(x_missing)):
            # Its density is that of the observed site below.
            gaps = numpyro.sample("gaps_of_x", dist.Normal(0.0, 1.0).mask(False))
        x = x.at[x_missing].set(gaps)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("x", dist.Normal(centre, 1.0), obs=x)
        numpyro.sample("y", dist.Normal(2.0 * x, 0.5), obs=y)


def test_missing_values_as_latents_agree_with_the_closed_form():
    generator = np.random.default_rng(3)
    x = generator.normal(0.5, 1.0, 40)
    y = 2 * x + generator.normal(0, 0.5, 40)
    gaps = np.array([4, 11, 30])
    x[gaps] = np.nan
    found = lv.fit(impute, {"x": x, "y": y}, progress=False)
    # Given the centre c: c, the rows that are there and those that are not are jointly Gaussian. In terms of the
    # unknowns (c, x of the gaps), the precision and the linear term are
    precision = np.diag([1.0 + len(x), *[1.0 + 4 / 0.25] * 3])
    precision[0, 1:] = precision[1:, 0] = -1.0
    linear = np.array([np.nansum(x), *(2 * y[gaps] / 0.25)])
    covariance = np.linalg.inv(precision)
    mean, sd = covariance @ linear, np.sqrt(np.diag(covariance))
    table = found.summary()
    rows = ["centre", "gaps_of_x[0]", "gaps_of_x[1]", "gaps_of_x[2]"]
    assert list(table.index) == rows
    assert (abs(table["mean"] - mean) < 4 * table["mcse"]).all()
    # The relative error of an sd of so many draws is 1 / sqrt(2 ess), for a Gaussian.
    assert (abs(table["sd"] / sd - 1) < 4 / np.sqrt(2 * table["ess"])).all()


def test_nothing_is_missing_where_it_might():
    generator = np.random.default_rng(3)
    x = generator.normal(0.5, 1.0, 40)
    found = lv.fit(impute, {"x": x, "y": 2 * x}, **SHORT)
    assert list(found.posterior) == ["centre"]


def test_a_program_that_handles_what_is_missing():
    def masked(x, y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            seen = ~np.isnan(1.0) & (x == x)
            numpyro.sample("y", dist.Normal(m, 1.0).mask(seen), obs=y)

    data = {"x": [1.0, np.nan, 1.0, 1.0], "y": [1.0, 100.0, 2.0, 3.0]}
    with pytest.raises(lv.DataError, match=r"'x' in 1 \(row 1\)"):
        lv.fit(masked, data, **SHORT)
    found = lv.fit(masked, data, missing="keep", progress=False)
    assert abs(float(found.summary()["mean"]["m"]) - 6 / 4) < 4 * float(found.summary()["mcse"]["m"])
    assert found.settings["missing"] == "keep"
