"""What is computed of one block, in compiled code: the program at each draw, then what the draws have in common.

A summary needs few draws of what is observed: distributions know their mean, variance and density. Quantiles need one
for each draw of the posterior, and each row by itself: where a distribution has a quantile function, draw s of every
row is its value at the same level, the levels being evenly spread over the draws, in random order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from langevin.models.outline import unscaled_log_prob
from langevin.models.wrappers import unwrapped
from langevin.predicting.predictor import Predictor
from langevin.predicting.sites import Site, keys_of

# Draws as codes are rounded to a sixthousandth of an sd, a hundredth of the error that a quantile of 1,000 draws has.
CODES_AN_SD = 3000
MOST_CODE = 32_000


class What(NamedTuple):
    """What is computed of the sites.

    Attributes:
        moments: Conditional means and variances, and class probabilities.
        draws: "joint" for draws of all rows together; "by row" for draws of which each row's are right by themselves,
            as quantiles need them; None for none.
        density: Whether the log-density of what is observed is computed.
        codes: Whether draws by row may be whole numbers of a small unit, which are sorted in half the time.
        spread: Whether the variance of class probabilities over the draws is computed.
    """

    moments: bool = False
    draws: str | None = None
    density: bool = False
    codes: bool = False
    spread: bool = False


def reduced(
    predictor: Predictor, what: What, inputs: Any, held: Any, values: Any, params: Any, words: Any, numbers: Any
) -> Any:
    """What is said of a batch of rows by some draws: see the top of this file. For compiled code.

    Args:
        predictor: The program, and the sites that are predicted.
        what: What is computed of them.
        inputs: The rows.
        held: The columns of what is observed on them; empty if no density is wanted.
        values: Of sites, draws in front.
        params: Of parameters.
        words: Of the keys for what all rows share, and for the rows.
        numbers: Of the draws: their number, share and level (the probability at which a quantile function is read).
            With two axes where each of `values` is used several times.
    """
    index, shares, levels = numbers

    def one(values: Mapping[str, Any], number: jax.Array, level: jax.Array) -> dict[str, dict[str, jax.Array]]:
        keys = keys_of(*words)
        keys = type(keys)(*(jax.random.fold_in(key, number) for key in keys))
        trace = predictor.caller.trace(inputs, {**params, **values}, keys)
        found = {site.name: _of_site(site, trace[site.name], what, level) for site in predictor.asked}
        if held:
            given = predictor.caller.trace({**inputs, **held}, {**params, **values}, keys)
            for site in predictor.asked:
                if not site.deterministic and given[site.name]["is_observed"]:
                    found[site.name]["log_density"] = _row_sums(site, unscaled_log_prob(given[site.name]))
        return found

    if index.ndim == 1:
        found = jax.vmap(one)(values, index, levels)
    else:
        # What follows from the values alone is computed once for all times.
        often = jax.vmap(lambda v, i, l: jax.vmap(lambda i, l: one(v, i, l))(i, l))(values, index, levels)  # noqa: E741
        found = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), often)
        shares = shares.reshape(-1)
    return {site.name: _over_draws(site, what, found[site.name], shares) for site in predictor.asked}


def _of_site(site: Site, traced: Mapping[str, Any], what: What, level: jax.Array) -> dict[str, jax.Array]:
    """What one draw says of a site, rows in front."""
    value, found = traced["value"], {}
    shape = jnp.shape(value)
    front = functools.partial(_rows_first, site)
    fn = None if site.deterministic else traced["fn"]
    if what.moments and site.deterministic and not site.discrete:
        found["mean"] = front(jnp.asarray(value))
    elif what.moments and fn is not None:
        if site.has_moments:
            found["mean"] = front(jnp.broadcast_to(fn.mean, shape))
            found["aleatoric"] = front(jnp.broadcast_to(fn.variance, shape))
        elif not site.classes:
            found["mean"] = front(jnp.asarray(value, jnp.result_type(float)))
        if site.classes > 2 or (site.classes and not site.has_moments):
            found["probabilities"] = front(_probabilities(fn, shape))
            found["entropy"] = jnp.sum(entr(found["probabilities"]), axis=-1)
        elif site.classes:
            found["entropy"] = entr(found["mean"]) + entr(1 - found["mean"])
    elif what.moments:
        found["mean"] = front(jnp.asarray(value, jnp.result_type(float)))
    if what.draws == "by row" and site.inverted:
        found["draws"] = front(jnp.broadcast_to(unwrapped(fn).icdf(level), shape))
    elif what.draws == "joint" or (what.draws == "by row" and not site.classes):
        found["draws"] = front(jnp.asarray(value))
    return found


def _probabilities(fn: Any, shape: tuple[int, ...]) -> jax.Array:
    probabilities = unwrapped(fn).probs
    return jnp.broadcast_to(probabilities, (*shape, probabilities.shape[-1]))


def _rows_first(site: Site, value: jax.Array) -> jax.Array:
    return value if site.row_axis is None else jnp.moveaxis(value, site.row_axis, 0)


def _row_sums(site: Site, log_prob: jax.Array) -> jax.Array:
    """The log-density of each row: the sum over all else that a row has."""
    if site.row_axis is None or site.row_axis >= jnp.ndim(log_prob):
        return jnp.sum(log_prob)
    return jnp.sum(log_prob, axis=tuple(axis for axis in range(jnp.ndim(log_prob)) if axis != site.row_axis))


def _over_draws(site: Site, what: What, found: Mapping[str, jax.Array], shares: jax.Array) -> dict[str, jax.Array]:
    """Over the draws, which are in front."""
    share = jnp.sum(shares)
    out: dict[str, jax.Array] = {"share": share}
    average = lambda x: jnp.tensordot(shares.astype(x.dtype), x, axes=1)  # noqa: E731
    if "mean" in found:
        # Around one of the draws: a large mean would cost its own rounding error a thousand times.
        around = found["mean"][0]
        mean = around + average(found["mean"] - around) / share
        out |= {"mean": mean, "scatter": average((found["mean"] - mean) ** 2)}
    if "aleatoric" in found and site.split:
        out["aleatoric"] = average(found["aleatoric"]) / share
    elif "aleatoric" in found:
        # Conditional on more than the fitted sites: only the total is that of the prediction.
        out["scatter"] = out["scatter"] + average(found["aleatoric"])
    if "entropy" in found and site.split:
        out["entropy"] = average(found["entropy"]) / share
    if "probabilities" in found:
        out["probabilities"] = average(found["probabilities"]) / share
        if what.spread:
            out["probability_scatter"] = average((found["probabilities"] - out["probabilities"]) ** 2)
    if "log_density" in found:
        logs = jnp.where(shares > 0, jnp.log(jnp.where(shares > 0, shares, 1.0)), -jnp.inf)
        shaped = logs.reshape(-1, *(1,) * (found["log_density"].ndim - 1))
        out["log_density"] = jax.scipy.special.logsumexp(found["log_density"] + shaped, axis=0)
    if "draws" in found:
        draws = found["draws"]
        if what.codes and site.light_tailed:
            variance = out["scatter"] / share + out.get("aleatoric", 0.0)
            out["unit"] = jnp.maximum(jnp.sqrt(variance) / CODES_AN_SD, jnp.finfo(variance.dtype).tiny)
            codes = jnp.round((draws - out["mean"]) / out["unit"])
            draws = jnp.clip(codes, -MOST_CODE, MOST_CODE).astype(jnp.int16)
        out["draws"] = jnp.moveaxis(draws, 0, -1)
    return out
