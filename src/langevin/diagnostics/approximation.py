"""How far an approximation is from the posterior, and whether its fit came to an end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from langevin import ratios
from langevin.diagnostics.findings import Finding, Result
from langevin.diagnostics.mixing import coordinate

# What these rest on: Gaussian q of sds 0.5 to 1.5 and means 0 to 0.5 off a standard normal p, in one or in all of 1
# to 100 dimensions, 1,000 and 4,000 draws, ten times each. Comparing means and sds of draws with those of the same
# draws weighted by their ratios found every sd of at most 0.8 or at least 1.2, and every mean off by a quarter of an
# sd, wherever the weights were worth more than 100 draws; an sd of 0.85 was missed in up to 3 of 10 cases of 1,000
# draws. Where they were worth less, q was off in every case. No sd within 5 % was called off; of 100 means each off
# by 0.1, one was in 3 of 10 cases of 1,000 draws. The efficiency alone cannot tell: it is 0.94 where one mean is off
# by a quarter, and 0.56 where each of 100 sds is 5 % off. Nor can k: 3.6 for a t distribution with 10 degrees of
# freedom, whose best Gaussian has an sd of 0.975 and an efficiency of 0.98. In 10 dimensions of those, k was above
# 0.7 in two of ten cases, at an efficiency of 0.7.
MOST_MEAN_SHIFT = 0.2
MOST_SD_RATIO = 1.15
MOST_KHAT = 0.7
LEAST_EFFICIENCY = 0.5
LEAST_WORTH = 100
# With a lower efficiency the ratios are those of a few draws in the tails of q, and that they show no fault tells
# nothing: on an item-response model, whose posterior is skewed, sds of 0.77 of the true ones were not seen at an
# efficiency of 0.05, worth 200 draws; nor, with 1,000 group effects, a scale's sd of 0.79 at 0.1.
LEAST_TELLING = 0.2
# What each coordinate whose sd is 5 % off takes off the logarithm of the efficiency. Where there are so many that the
# ratios of a q which is right enough would be worthless, that they are says nothing.
COST_OF_RIGHT = 0.0058
LEAST_MANY = 400
CHANCE = 0.01
COLUMNS_AT_ONCE = 500
# A fall of the bound in a sweep, relative to its size, that is more than round-off in double precision.
MOST_FALL = 1e-9


class Shift(NamedTuple):
    """How far a coordinate of the draws is from where their ratios say it should be.

    Attributes:
        name: The coordinate.
        mean: By how many sds of the posterior its mean is off.
        sd: Its sd, as a multiple of the posterior's.
    """

    name: str
    mean: float
    sd: float

    def __str__(self) -> str:
        if abs(self.mean) > MOST_MEAN_SHIFT:
            return f"the mean of {self.name} is {abs(self.mean):.2g} sds off"
        return f"the sd of {self.name} is {self.sd:.2g} times the posterior's"


def largest_khat(count: int) -> float:
    """The largest k at which so many ratios can be trusted (Vehtari et al. 2024, section 3.2.4)."""
    return min(1 - 1 / math.log10(max(count, 11)), MOST_KHAT)


def far_off(result: Result, khat: float | None, efficiency: float, count: int) -> list[Finding]:
    """Whether ratios tell of a mean or an sd that is off, or are themselves too uneven to tell anything.

    Args:
        result: The draws, with `lp` and `log_q`.
        khat: The shape of the tail of the ratios.
        efficiency: How many draws of the posterior a draw is worth.
        count: How many ratios there are.
    """
    most = largest_khat(count)
    heavy = khat is not None and khat > most and efficiency < LEAST_EFFICIENCY
    # So few draws that even equal ratios are not worth 100 tell nothing by that.
    useless = efficiency * count < min(LEAST_WORTH, 0.1 * count)
    shift = _worst_shift(result)
    if khat is None:
        return []
    size = _num_coordinates(result)
    too_many = size >= LEAST_MANY and COST_OF_RIGHT * size > math.log(max(count / LEAST_WORTH, 1.0))
    if too_many and (useless or (heavy and shift is None)):
        # The ratios of so few draws say of some coordinate among so many that it is off, whatever q is.
        return [_uneven(result, efficiency)]
    if not (heavy or useless or shift is not None):
        return [_uneven(result, efficiency)] if efficiency < LEAST_TELLING and count >= LEAST_WORTH else []
    seen = f"the importance ratios of its draws have a tail of shape k = {khat:.2f} and an efficiency of "
    seen += f"{efficiency:.2g} (k should be below {most:.2g}, or the efficiency above {LEAST_EFFICIENCY})"
    if shift is not None:
        seen = f"by the importance ratios of its draws, {shift} (k = {khat:.2f}, efficiency {efficiency:.2g})"
    too_wide = shift is not None and abs(shift.mean) <= MOST_MEAN_SHIFT and shift.sd > 1
    return [
        Finding(
            "far off",
            f"The approximation is far from the posterior: {seen}.",
            "It is wider than the posterior: sds and intervals cannot be trusted."
            if too_wide
            else "It misses part of the posterior: means, sds and intervals cannot be trusted.",
            _OTHERS.get(result.method.get("name", "")) or (_LONGER if too_wide else _richer(result.method)),
        )
    ]


def _num_coordinates(result: Result) -> int:
    """How many coordinates q is over."""
    sites = result.posterior if result.unconstrained is None else result.unconstrained
    return sum(int(np.prod(values.shape[2:])) for values in sites.values())


def _uneven(result: Result, efficiency: float) -> Finding:
    return Finding(
        "unchecked",
        f"How far this approximation is from the posterior cannot be told: its importance ratios have an efficiency of "
        f"{efficiency:.2g} (it should be above {LEAST_TELLING}).",
        "No mean or sd is seen to be off, but an sd may well be, by a quarter.",
        _OTHERS.get(result.method.get("name", "")) or _richer(result.method),
    )


def unchecked(result: Result, why: str = "") -> list[Finding]:
    """No ratios were computed: nothing is known.

    Args:
        result: The draws.
        why: A clause that says so, where it is not that rows have sites of their own.
    """
    del result
    remedy = "Compare with a sampler on fewer rows, with these sites summed or integrated out of the program."
    if why:
        remedy = (
            "Judge it by what it predicts on rows that it has not seen (`fit.evaluate`), or compare with a sampler on "
            "a smaller model."
        )
    return [
        Finding(
            "unchecked",
            "The distance of this approximation from the posterior was not computed: "
            f"{why or 'each row has continuous sites of its own'}.",
            "Nothing is known of how right its means and sds are.",
            remedy,
        )
    ]


def tilted(result: Result, gap: float, shift: float, error: float, name: str, block: Sequence[str]) -> list[Finding]:
    """Whether the bound of a nested block tilts what the samplers target.

    Args:
        result: The draws.
        gap: Between the log-marginal of the block and its bound, on average, in nats.
        shift: By how many sds the mean of a coordinate would move if the gap were put back.
        error: Of the shift, its standard error.
        name: The site of that coordinate.
        block: The sites of the block.
    """
    del result
    if abs(shift) - 3 * error < MOST_MEAN_SHIFT:
        return []
    listed = ", ".join(map(repr, block))
    return [
        Finding(
            "far off",
            f"The bound of the block {listed} is {gap:.2g} nats below its log-marginal, and by more where {name!r} is "
            f"{'high' if shift > 0 else 'low'}: that moves the mean of {name!r} by about {abs(shift):.2g} sds.",
            "The draws of the other sites are from a tilted density: means and intervals cannot be trusted.",
            "Give the block a richer family (family='fullrank', or 'markov' for a time series), or to lv.NUTS().",
        )
    ]


def optimisation(result: Result, settled: bool, skipped: int, error: float | None) -> list[Finding]:
    """Whether the fit of q came to its end."""
    fixed = result.method.get("num_steps") is not None
    findings = []
    if not settled:
        what = "The bound was still rising when the fit ended, or there were too few steps to tell"
        known = (
            "" if error is None else f", or its parameters still wander: a mean is known to {error:.2g} of its scale"
        )
        findings.append(
            Finding(
                "not settled",
                f"{what}{known}.",
                "The approximation is not the best of its family yet.",
                "Leave num_steps out, or raise it; take more rows or particles in a step."
                if fixed
                else "Take more rows or particles in a step, or give num_steps and a smaller learning_rate.",
            )
        )
    if skipped:
        findings.append(
            Finding(
                "skipped",
                f"At {skipped} steps the bound was not finite.",
                "These steps were left out, so q is fitted as if it had no draws there.",
                "Look for sites whose parameters overflow; take more particles or a smaller learning_rate.",
            )
        )
    return findings


def ascent(result: Result, settled: bool, sweeps: int, left: float | None, fall: float) -> list[Finding]:
    """Whether coordinate ascent came to its end, and rose all the way.

    Args:
        result: The draws.
        settled: Whether it ended by its tolerance.
        sweeps: How many sweeps there were.
        left: How many nats are left to gain; None if that is unknown.
        fall: By how much the bound fell in a sweep, relative to its size.
    """
    del result
    findings = []
    if not settled:
        known = "" if left is None else f", with about {left:.2g} nats left to gain"
        findings.append(
            Finding(
                "not settled",
                f"The bound was still rising after {sweeps} sweeps{known}.",
                "The approximation is not the best of its family yet.",
                "Leave num_sweeps out, or raise it.",
            )
        )
    if fall > MOST_FALL:
        findings.append(
            Finding(
                "falling",
                f"The bound fell in a sweep, by {fall:.2g} of its size.",
                "No update of coordinate ascent lowers the bound: numbers lose their precision, or an update is wrong.",
                "Rescale columns to the order of 1; and please report it.",
            )
        )
    return findings


def points(result: Result, names: Sequence[str]) -> list[Finding]:
    """Sites to which a guide gives a single value."""
    del result
    return [
        Finding(
            "point",
            f"The guide gives a single value to {', '.join(map(repr, names))}.",
            "That says nothing of its uncertainty.",
            "Give it a distribution with a width.",
        )
    ]


_LONGER = (
    "Let it run longer: leave num_steps and learning_rate out, take larger minibatches or more particles; or "
    "method='nuts', started from this fit by `init=fit`."
)
_OTHERS = {
    "CAVI": "Dependence between blocks is lost: put sites into one block (`blocks=`) where they allow it, or take "
    "method='gibbs', whose conditionals are the same and whose draws are exact, or 'nuts'.",
    "Hybrid": "Give the block of `VI` a richer family (family='fullrank', or 'markov' for a time series), or to "
    "lv.NUTS().",
    "SWAG": "Take more snapshots or another learning_rate; VI with family='fullrank'; or method='nuts', started from "
    "this fit by `init=fit`.",
}
_RICHER = {
    "meanfield": "family='fullrank', 'lowrank' or 'flow'",
    "lowrank": "a higher rank, family='fullrank' or 'flow'",
    "fullrank": "family='flow'",
    "markov": "family='flow'",
    "flow": "a deeper flow",
}


def _richer(method: Mapping[str, Any]) -> str:
    """A remedy that does not name the family in use."""
    if "structure" in method:
        return (
            "Try method='vi', whose Gaussian is the nearest to the posterior and not that of the mode; or "
            "method='nuts', started from this fit by `init=fit`."
        )
    family = method.get("family")
    if isinstance(family, str) and family in _RICHER:
        return f"Try {_RICHER[family]}; noncentred=True; or method='nuts', started from this fit by `init=fit`."
    return (
        "Try a guide that follows more of the dependence between sites, sum discrete sites out of the program, or, "
        "where it has none, method='nuts'."
    )


def _worst_shift(result: Result) -> Shift | None:
    """The coordinate that is farthest off, of those that are off by more than chance; None if there is none."""
    from scipy.special import ndtri

    result = result.running()
    if "log_q" not in result.stats:
        return None
    log_ratios = (result.stats["lp"] - result.stats["log_q"]).values.ravel().astype(np.float64)
    known = np.isfinite(log_ratios)
    sites = [values for values in result.judged.values() if values.dtype.kind == "f"]
    if result.unconstrained is not None:
        # The logarithm of a scale may be off where the scale, with its longer tail, is not.
        sites += [values.rename(f"unconstrained {values.name}") for values in result.unconstrained.values()]
    if known.sum() < ratios.LEAST or not sites:
        return None
    log_weights = ratios.smoothed(log_ratios[known])[0]
    weights = np.exp(log_weights - log_weights.max())
    # Chance has as many chances as there are coordinates.
    num_coordinates = sum(values[0, 0].size for values in sites)
    most_errors = float(-ndtri(CHANCE / 2 / max(num_coordinates, 1)))
    worst, size = None, 1.0
    for values in sites:
        flat = values.values.reshape(len(log_ratios), -1)
        for start in range(0, flat.shape[1], COLUMNS_AT_ONCE):
            draws = flat[known, start : start + COLUMNS_AT_ONCE].astype(np.float64)
            mean, log_sd, scores = _shifts(draws, weights / weights.mean(), most_errors)
            place = np.unravel_index(np.argmax(scores), scores.shape)
            if scores[place] > size:
                i = int(place[1])
                # What is said of it is what is farther off.
                off = float(mean[i]) if place[0] == 0 else 0.0
                worst = Shift(coordinate(values, start + i), off, math.exp(log_sd[i]))
                size = scores[place]
    return worst


def _shifts(draws: np.ndarray, weights: np.ndarray, most_errors: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By how many sds means are off, the logarithms of how wide sds are, and both in units of what is acceptable.

    Args:
        draws: (draws, coordinates).
        weights: One a draw, 1 on average.
        most_errors: What is fewer standard errors off may be so by chance: it scores 0.
    """
    weights = weights[:, None]
    # Draws that are not finite have no score: that is said elsewhere.
    with np.errstate(divide="ignore", invalid="ignore"):
        middle, right_middle = draws.mean(axis=0), np.mean(weights * draws, axis=0)
        square, right_square = (draws - middle) ** 2, (draws - right_middle) ** 2
        variance, right = square.mean(axis=0), np.mean(weights * right_square, axis=0)
        mean, log_sd = (middle - right_middle) / np.sqrt(right), np.log(variance / right) / 2
        # The standard errors are those of the mean influence of a draw on each.
        of_mean = (weights * (draws - right_middle) - (draws - middle)) / np.sqrt(right)
        of_sd = (weights * (right_square / right - 1) - (square / variance - 1)) / 2
        errors = np.stack([np.std(influence, axis=0) for influence in (of_mean, of_sd)]) / np.sqrt(len(draws))
    off = np.abs(np.stack([mean, log_sd]))
    scores = off / np.array([[MOST_MEAN_SHIFT], [math.log(MOST_SD_RATIO)]])
    return mean, log_sd, np.where(np.isfinite(scores) & (off > most_errors * errors), scores, 0.0)
