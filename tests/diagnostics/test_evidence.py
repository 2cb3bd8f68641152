"""Evidence and what is found in it: for every name in FINDERS what makes its finding, and what does not."""

import re
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

from langevin.diagnostics import findings
from langevin.diagnostics.evidence import FINDERS, judge
from langevin.diagnostics.findings import Finding, Result
from langevin.engines.drawing import ratios_of

NUM_CHAINS, NUM_DRAWS = 4, 500
DIMS = ("chain", "draw")
GOOD = np.random.default_rng(0).normal(size=(NUM_CHAINS, NUM_DRAWS))
SLOW = np.cumsum(GOOD, axis=1)
APART = GOOD + 5.0 * (np.arange(NUM_CHAINS) > 1)[:, None]


def result(x=GOOD, stats=None, **sites):
    """Draws of a site `x` and others, with good statistics unless others are given."""
    draws = {name: (DIMS, values) for name, values in {"x": x, **sites}.items()}
    ones = np.ones(np.shape(x))
    by_draw = {"weight": ones, "lp": ones} | (stats or {})
    return Result(xr.Dataset(draws), xr.Dataset({name: (DIMS[: np.ndim(v)], v) for name, v in by_draw.items()}))


def with_unconstrained(z, x=GOOD):
    """Draws with an unconstrained position beside them, in single precision."""
    return result(x)._replace(unconstrained=xr.Dataset({"z": (DIMS, z.astype(np.float32))}))


def replaced(value, where, array=GOOD):
    """The array with a value in some places."""
    array = np.array(array, np.result_type(array, type(value)))
    array[where] = value
    return array


def at(chains, draws):
    """True at these draws of these chains."""
    return replaced(True, (chains, draws), np.zeros(GOOD.shape, bool))


class Case(NamedTuple):
    """Numbers of the evidence and draws, and the codes of what is found."""

    codes: list[str]
    numbers: Any = MappingProxyType({})
    result: Result = result()


STEPS = np.full(GOOD.shape, 7)
# So many coordinates that the ratios of any q are worthless.
WIDE = np.random.default_rng(1).normal(size=(NUM_CHAINS, NUM_DRAWS, 1000)).astype(np.float32)
MANY = result()._replace(unconstrained=xr.Dataset({"z": ((*DIMS, "z_dim_0"), WIDE)}))
BLOWN_UP = replaced(np.nan, (2, slice(100, None)))
LOST = np.array([-1, -1, 107, -1])
MODAL = {"flat": 0, "distance": 0.0, "size": 3, "fixed": [], "judged": True}

CASES = {
    "interrupted": [Case(["interrupted"], {"asked": 1000})],
    "out of time": [Case(["out of time"], {"asked": 1000, "seconds": 10.0})],
    "stopped": [
        Case([], result=result(stats={"stopped": np.full(4, -1)})),
        Case(["stopped"], result=result(stats={"stopped": LOST})),
    ],
    "noise": [
        Case([], {"ratio": 1.2}),
        Case([], {"ratio": 0.5}),
        Case(["noise"], {"ratio": 9.0}),
        Case(["noise"], {"ratio": 0.1}),
    ],
    "trajectories": [
        Case([]),
        Case([], result=result(stats={"diverging": at(0, []), "reached_max_treedepth": at(0, slice(20))})),
        Case(["diverging"], result=result(stats={"diverging": at(1, 3)})),
        Case(["depth"], result=result(stats={"reached_max_treedepth": at(1, slice(30))})),
        Case([], result=result(stats={"energy": GOOD, "n_steps": STEPS})),
        Case(["energy"], result=result(stats={"energy": SLOW, "n_steps": STEPS})),
        # A random walk gets no velocities; and of few draws nothing can be told.
        Case([], result=result(stats={"energy": SLOW, "n_steps": np.ones(GOOD.shape)})),
        Case([], result=result(GOOD[:, :20], {"energy": SLOW[:, :20], "n_steps": STEPS[:, :20]})),
        Case(["diverging", "energy"], result=result(stats={"diverging": at(0, 0), "energy": SLOW, "n_steps": STEPS})),
    ],
    "finite": [
        Case([]),
        Case([], result=result(flag=GOOD > 0, count=np.ones(GOOD.shape, int))),
        Case(["not finite"], result=result(flag=GOOD > 0, bad=GOOD * np.nan)),
        Case(["not finite"], result=result(replaced(np.inf, (0, 0)))),
        Case(["not finite"], result=result(stats={"lp": np.where(GOOD > 0, GOOD, -np.inf)})),
        Case([], {"density": False}, result(stats={"lp": GOOD * np.nan})),
        Case(["not finite"], {"density": False}, result(replaced(np.nan, (0, 0)))),
        Case([], result=result(BLOWN_UP, {"stopped": LOST})),
    ],
    "stuck": [
        Case([]),
        Case(["stuck"], result=result(replaced(1.0, 2))),
        # A chain that moves in one of its sites moves.
        Case([], result=result(replaced(1.0, 2), y=GOOD)),
        Case([], result=result(replaced(1.0, 2), {"stopped": LOST})),
        Case([], result=result(GOOD[:, :1])),
        Case([], result=with_unconstrained(GOOD + 100)),
        Case(["frozen"], result=with_unconstrained(np.full(GOOD.shape, 1.7e9))),
        Case(["frozen"], result=with_unconstrained(1.7e9 + 100 * GOOD)),
        Case(["frozen"], result=with_unconstrained(np.zeros(GOOD.shape) + 1e9 * np.arange(1, 5)[:, None])),
        # Chains that never move at all: by rounding, or by rejections.
        Case(["frozen"], result=with_unconstrained(np.full(GOOD.shape, 1.7e9), x=np.ones(GOOD.shape))),
        Case(["stuck"], result=with_unconstrained(np.ones(GOOD.shape), x=np.ones(GOOD.shape))),
        Case([], result=with_unconstrained(1.7e9 + 1e7 * GOOD)),
    ],
    "mixing": [
        Case([], {"exact": True}),
        Case(["not mixed"], {"exact": True}, result(APART)),
        Case(["not mixed"], {"exact": False}, result(SLOW)),
        Case(["not mixed"], {"exact": True}, result(y=APART)),
        Case([], {"exact": True}, result(flag=APART > 2)),
        Case(["few draws"], {"exact": True}, result(GOOD[:, :3])),
        Case(["few draws"], {"exact": True}, result(GOOD[:, :1])),
        Case(["few draws"], {"exact": True}, result(GOOD[:, :20])),
        Case([], {"exact": False}, result(replaced(50.0, 2), {"stopped": LOST})),
        Case([], {"exact": False}, result(stats={"stopped": np.zeros(4, int)})),
        Case(["one chain"], {"exact": True}, result(GOOD[:1])),
        Case(["not mixed", "one chain"], {"exact": True}, result(SLOW[:1])),
        # Chains that stand still at different places.
        Case(["not mixed"], {"exact": True}, result(np.zeros(GOOD.shape) + np.arange(4)[:, None], y=GOOD)),
        # Each pair is around a place of its own.
        Case(["not mixed"], {"exact": True, "together": 2}, result(APART)),
    ],
    "width": [
        Case([], {"value": 1.1, "error": 0.05, "widest": 1.1}),
        Case([], {"value": 2.0, "error": 0.5, "widest": 1.1}),
        Case(["too wide"], {"value": 2.0, "error": 0.1, "widest": 1.1}),
        # Of draws far outside, the error is large too.
        Case(["too wide"], {"value": 41.8, "error": 16.6, "widest": 0.0}),
        Case(["too wide"], {"value": 1.0, "error": 0.1, "widest": 1.5}),
        Case(["too wide"], {"value": np.inf, "error": 0.0, "widest": np.inf}),
    ],
    "drift": [
        Case([], {"mean": 0.05, "sd": 0.05, "acceptance": 0.8}),
        Case(["drifting"], {"mean": 0.2, "sd": 0.0, "acceptance": 0.8}),
        Case(["drifting"], {"mean": 0.0, "sd": 0.2, "acceptance": 0.8}),
        Case(["drifting"], {"mean": np.inf, "sd": np.inf, "acceptance": 0.0}),
    ],
    "elsewhere": [
        Case([], {"missed": 1.2}),
        Case([], {"missed": 1.2, "modes": 0, "starts": 4}),
        Case(["elsewhere"], {"missed": 0.0, "modes": 1, "starts": 4}),
        Case(["elsewhere"], {"missed": 3.0}),
    ],
    "ratios": [
        Case([], {"khat": 0.4, "efficiency": 0.4, "count": 4000}),
        Case(["far off"], {"khat": 0.8, "efficiency": 0.4, "count": 4000}),
        # Of fewer ratios, a thinner tail is already too thick to be told from a thicker one.
        Case(["far off"], {"khat": 0.6, "efficiency": 0.4, "count": 100}),
        Case([], {"khat": 0.6, "efficiency": 0.4, "count": 4000}),
        Case([], {"khat": 0.8, "efficiency": 0.95, "count": 4000}),
        # Ratios that are worth so few draws tell nothing else.
        Case(["far off"], {"khat": 0.6, "efficiency": 0.01, "count": 4000}),
        Case(["unchecked"], {"khat": 0.6, "efficiency": 0.15, "count": 4000}),
        Case(["unchecked"], {"khat": 3.0, "efficiency": 0.0003, "count": 4000}, MANY),
        Case([], {"khat": None, "efficiency": 0.1, "count": 20}),
        Case(["far off"], {"khat": np.inf, "efficiency": 0.0, "count": 4000}),
    ],
    "unchecked": [Case(["unchecked"]), Case(["unchecked"], {"why": "importance ratios of 2,000 weights tell nothing"})],
    "optimisation": [
        Case([], {"settled": True, "skipped": 0, "error": 0.01}),
        Case([], {"settled": True, "skipped": 0, "error": None}),
        Case(["not settled"], {"settled": False, "skipped": 0, "error": None}),
        Case(["skipped"], {"settled": True, "skipped": 3, "error": None}),
        Case(["not settled", "skipped"], {"settled": False, "skipped": 3, "error": 0.3}),
    ],
    "ascent": [
        Case([], {"settled": True, "sweeps": 40, "left": 1e-5, "fall": 1e-13}),
        Case(["not settled"], {"settled": False, "sweeps": 40, "left": 3.0, "fall": 0.0}),
        Case(["not settled"], {"settled": False, "sweeps": 1, "left": None, "fall": 0.0}),
        Case(["falling"], {"settled": True, "sweeps": 40, "left": 1e-5, "fall": 1e-6}),
    ],
    "nested": [
        Case([], {"gap": 0.3, "shift": 0.1, "error": 0.01, "name": "a", "block": ["s"]}),
        Case([], {"gap": 0.3, "shift": 0.5, "error": 0.2, "name": "a", "block": ["s"]}),
        Case(["far off"], {"gap": 3.0, "shift": -0.5, "error": 0.05, "name": "a", "block": ["s"]}),
    ],
    "on the way": [Case(["not mixed"], {"phase": "training"}, result(GOOD[:, :1]))],
    "laplace": [
        Case([], MODAL),
        Case([], MODAL | {"distance": 0.19}),
        Case(["not settled"], MODAL | {"distance": 0.21}),
        Case(["curvature"], MODAL | {"flat": 1}),
        Case(["point", "unchecked"], MODAL | {"fixed": ["a", "b"], "judged": False}),
    ],
    "points": [Case(["point"], {"names": ["a", "b"]})],
    "point": [Case(["point"])],
    "ensemble": [
        # Chains that have mixed are those of one posterior; but not if some are missing.
        Case([], {"asked": 4, "members": [{"mixing": {"exact": True}}] * 4}),
        Case(["ensemble"], {"asked": 4, "members": [{"point": {}}] * 4}, result(GOOD[:, :1])),
        Case(["ensemble"], {"asked": 5, "members": [{"mixing": {"exact": True}}] * 4}),
        Case(["ensemble"], {"asked": 4, "members": [{"mixing": {"exact": True}}] * 4}, result(APART)),
        # A chain that moves too slowly does so by itself.
        Case(["not mixed", "ensemble"], {"asked": 4, "members": [{"mixing": {"exact": True}}] * 4}, result(SLOW)),
        Case(["noise", "ensemble"], {"asked": 4, "members": [{"noise": {"ratio": r}} for r in (1.0, 9.0, 1.0, 9.0)]}),
    ],
}


def found(name, **numbers):
    case = numbers.pop("result", result())
    return judge(case, {name: numbers})


def test_every_name_has_its_cases():
    assert set(CASES) == set(FINDERS)


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, case, id=f"{name} {number}") for name in CASES for number, case in enumerate(CASES[name])],
)
def test_what_is_found(name, case):
    seen = judge(case.result, {name: case.numbers})
    assert [finding.code for finding in seen] == case.codes
    for finding in seen:
        assert all(sentence.endswith(".") for sentence in finding[1:])
        assert str(finding) == " ".join(finding[1:])


def test_every_code_is_documented():
    documented = set(re.findall(r'"([a-z ]+)"', Finding.__doc__))
    assert {code for cases in CASES.values() for case in cases for code in case.codes} == documented
    assert set(findings.SEVERITIES) == documented


def test_good_draws_have_no_findings():
    """With all the evidence that engines bring of a run that is over."""
    brought = {
        name: CASES[name][0].numbers
        for name in CASES
        if name not in ("interrupted", "out of time", "on the way", "point", "points", "unchecked")
    }
    assert judge(result(stats={"stopped": np.full(4, -1)}), brought) == ()


def test_nothing_is_found_without_evidence():
    assert judge(result(APART, {"lp": GOOD * np.nan, "stopped": LOST}), {}) == ()


def test_findings_come_in_the_order_of_the_finders():
    brought = {
        "point": {},
        "width": {"value": 9.0, "error": 0.1, "widest": 9.0},
        "noise": {"ratio": 9.0},
        "interrupted": {"asked": 9},
    }
    codes = [finding.code for finding in judge(result(), brought)]
    assert codes == ["interrupted", "noise", "too wide", "point"]


@pytest.mark.parametrize("draws", [APART, GOOD[:, :3]])
def test_chains_that_have_not_mixed_have_no_width(draws):
    brought = {"mixing": {"exact": False}, "width": {"value": 9.0, "error": 0.1, "widest": 9.0}}
    assert [finding.code for finding in judge(result(draws), brought)] in (["not mixed"], ["few draws"])


def test_findings_have_names_and_numbers():
    def text(name, **numbers):
        return str(found(name, **numbers)[0])

    assert "500 of 1000 draws" in text("interrupted", asked=1000)
    assert "1 of 4 chains blew up: chain 2 at step 107" in text("stopped", result=result(stats={"stopped": LOST}))
    assert "Chain 2 never moved" in text("stuck", result=result(replaced(1.0, 2)))
    # The number of a chain is its own, also where another one stopped.
    lost = {"stopped": np.array([3, -1, -1, -1])}
    assert "Chain 2 never moved" in text("stuck", result=result(replaced(1.0, [0, 2]), lost))
    assert "50 % of the values of 'y'" in text("finite", result=result(y=np.where(np.arange(500) % 2, GOOD, np.nan)))
    assert "1.41 times as wide" in text("width", value=2.0, error=0.01, widest=2.0)
    assert "9 times what warm-up measured" in text("noise", ratio=9.0)
    assert "2 trajectories diverged (0.1 %)" in text(
        "trajectories", result=result(stats={"diverging": at([0, 1], [5, 6])})
    )
    assert "k = 0.80" in text("ratios", khat=0.8, efficiency=0.4, count=4000)
    assert "known to 0.3 of its scale" in text("optimisation", settled=False, skipped=0, error=0.3)
    assert "At 3 steps" in text("optimisation", settled=True, skipped=3, error=None)
    assert "'a', 'b'" in text("points", names=["a", "b"])


def test_the_remedy_for_mixing_is_that_of_the_method():
    exact, stochastic = (found("mixing", exact=exact, result=result(APART))[0] for exact in (True, False))
    assert "non-centre" in exact.remedy
    assert "cyclical" in stochastic.remedy


def test_the_worst_of_many_coordinates_is_named():
    """More than are judged with care."""
    many = np.random.default_rng(1).normal(size=(*GOOD.shape, 30, 40))
    many[:, :, 17, 31] = APART
    draws = Result(xr.Dataset({"w": ((*DIMS, "row", "column"), many)}), result().stats)
    assert "for w[17, 31]" in judge(draws, {"mixing": {"exact": True}})[0].finding
    assert judge(draws._replace(posterior=draws.posterior.isel(row=slice(17))), {"mixing": {"exact": True}}) == ()


def test_of_very_many_draws_some_are_looked_at(monkeypatch):
    """Evenly spread, over the whole run: what happens at its end is seen."""
    monkeypatch.setattr(findings, "MOST_NUMBERS", 1000)
    monkeypatch.setattr(findings, "LEAST_LOOKED_AT", 100)
    drifting = GOOD + np.linspace(0, 5, NUM_DRAWS)
    some = result(drifting).running().posterior["x"].values
    assert 100 <= some.shape[1] <= 250
    assert [finding.code for finding in found("mixing", exact=True, result=result(drifting))] == ["not mixed"]
    # But a single value that is not finite spoils a mean, wherever it is.
    for draw in (0, 1, 2, 499):
        spoilt = result(replaced(np.nan, (1, draw)))
        assert [finding.code for finding in found("finite", result=spoilt)] == ["not finite"]


def approximated(scales, shifts=0.0, log_p=lambda x: -(x**2) / 2, num_draws=4000, seed=0):
    """Draws of a Gaussian q of these sds and means, and what is found of them."""
    scales = np.asarray(scales, float)
    noise = np.random.default_rng(seed).normal(size=(num_draws, len(scales)))
    x = shifts + scales * noise
    lp, log_q = log_p(x).sum(1), (-(noise**2) / 2 - np.log(scales)).sum(1)
    draws = xr.Dataset({"x": ((*DIMS, "k"), x.reshape(4, -1, len(scales)))})
    stats = {name: (DIMS, v.reshape(4, -1)) for name, v in {"lp": lp, "log_q": log_q, "weight": lp**0}.items()}
    return judge(Result(draws, xr.Dataset(stats)), ratios_of(np.stack([lp, log_q])))


@pytest.mark.parametrize("dimensions", [1, 10, 100])
@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.parametrize(("scale", "shift"), [(0.5, 0), (0.7, 0), (0.8, 0), (1.25, 0), (1.5, 0), (1, 0.3), (1, 0.5)])
def test_means_and_sds_that_are_off_are_found(dimensions, all_of_them, scale, shift):
    scales, shifts = np.ones(dimensions), np.zeros(dimensions)
    where = slice(None) if all_of_them else 0
    scales[where], shifts[where] = scale, shift
    assert [finding.code for finding in approximated(scales, shifts)] == ["far off"]


@pytest.mark.parametrize("dimensions", [1, 10, 100])
@pytest.mark.parametrize("scale", [0.96, 1.0, 1.04])
def test_means_and_sds_that_are_right_are_not_called_wrong(dimensions, scale):
    assert [approximated(np.full(dimensions, scale), 0.03, seed=seed) for seed in range(5)] == [()] * 5


def test_a_posterior_with_slightly_heavier_tails_is_near_its_gaussian():
    """A t distribution with 10 degrees of freedom: k is large, but nothing is missed that matters."""

    def log_t(x):
        return -5.5 * np.log(1 + x**2 / 10)

    assert [approximated([1.09, 1.09], log_p=log_t, seed=seed) for seed in range(5)] == [()] * 5


def test_what_is_said_of_an_approximation_is_what_was_seen():
    narrow, wide, shifted = approximated([0.6, 1])[0], approximated([1, 1.6])[0], approximated([1, 1], [0, 0.5])[0]
    assert "the sd of x[0] is 0.6" in narrow.finding
    assert "the sd of x[1] is 1.6 times" in wide.finding
    assert "the mean of x[1] is 0.5 sds off" in shifted.finding
    assert "wider" in wide.meaning
    assert "wider" not in narrow.meaning


@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "SGNHT", "CyclicalSGLD", "CyclicalSGHMC"])
def test_no_remedy_is_the_sampler_in_use(name):
    method = {"name": name, "step_size": "auto", "estimator": "minibatch"}
    brought = {"mixing": {"exact": False}, "noise": {"ratio": 9.0}, "stopped": {}}
    remedies = " ".join(f.remedy for f in judge(result(APART, {"stopped": LOST})._replace(method=method), brought))
    assert "step_size='auto'" not in remedies
    assert "estimator='minibatch'" not in remedies
    assert ("(SGHMC)" in remedies) == (name in ("SGLD", "CyclicalSGLD"))
    assert ("cyclical steps" in remedies) == (not name.startswith("Cyclical"))


@pytest.mark.parametrize("family", ["meanfield", "fullrank", "lowrank", "markov", "flow"])
def test_no_remedy_is_the_family_in_use(family):
    method = {"name": "VI", "family": family, "num_steps": None}
    brought = {
        "ratios": {"khat": 0.9, "efficiency": 0.1, "count": 4000},
        "optimisation": {"settled": False, "skipped": 0, "error": None},
    }
    remedies = " ".join(finding.remedy for finding in judge(result()._replace(method=method), brought))
    assert f"'{family}'" not in remedies
    assert "num_steps out" not in remedies


def test_chains_that_never_moved_are_not_said_to_mix():
    brought = {"mixing": {"exact": True}, "stuck": {}}
    still = np.zeros(GOOD.shape) + np.arange(4)[:, None]
    assert [finding.code for finding in judge(result(still), brought)] == ["stuck"]


def test_the_word_of_a_verdict():
    def word(**brought):
        return judge(result(APART), {name: dict(numbers) for name, numbers in brought.items()}).word

    assert word() == "trustworthy"
    assert word(point={}) == "doubtful"
    assert word(point={}, mixing={"exact": True}) == "wrong"
    assert repr(judge(result(), {})) == "Trustworthy: no fault found."
    assert repr(judge(result(), {"point": {}})).startswith("Doubtful.\n  ! This is a single point")
