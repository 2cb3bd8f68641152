"""One site that rows observe: what it is called with, what was observed, and how to predict it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from langevin.errors import SettingError
from langevin.predicting.calling import Keys
from langevin.predicting.predictor import Predictor, predictor_of
from langevin.predicting.sites import Site

if TYPE_CHECKING:
    from langevin.result import Fit


class Outcome(NamedTuple):
    """A site to look at.

    Attributes:
        site: What is known of it.
        predictor: What predicts it.
        observed: What was observed, one value a row; None if the rows do not have it.
    """

    site: Site
    predictor: Predictor
    observed: np.ndarray | None


def outcome_of(
    fit: Fit, what: str, data: Any, name: str | None, num_draws: int | None = None, seed: Any = 0
) -> Outcome:
    """The one site that a picture is of.

    Args:
        fit: The fit.
        what: Who asks, for messages.
        data: Rows; None for those of the fit.
        name: The site; by default the one that was observed.
        num_draws: As in `Fit.predict`.
        seed: As in `Fit.predict`.

    Raises:
        SettingError: If several sites were observed and none is named, or its rows have more than one number.
    """
    predictor = predictor_of(fit, data, names=name, num_draws=num_draws, seed=seed, who=what)
    if len(predictor.asked) > 1:
        there = ", ".join(repr(site.name) for site in predictor.asked)
        raise SettingError(f"`{what}` shows one site, and this model observes {there}: say which, by `name=`.")
    site = predictor.asked[0]
    if site.row_axis is None or len(site.shape) > 1:
        raise SettingError(f"`{what}` shows one number a row, and {site.name!r} has the shape {site.shape}.")
    return Outcome(site, predictor, _observed(predictor, site))


def _observed(predictor: Predictor, site: Site) -> np.ndarray | None:
    """The value of the site as the program computes it from the columns, which may be a function of these."""
    held = predictor.columns.held
    if site.deterministic or not held:
        return None
    values = {name: value[0] for name, value in {**predictor.values, **predictor.own}.items()}
    key = jax.random.key(0)
    trace = predictor.caller.trace({**predictor.columns.inputs, **held}, {**predictor.params, **values}, Keys(key, key))
    return np.asarray(trace[site.name]["value"], np.float64) if trace[site.name]["is_observed"] else None
