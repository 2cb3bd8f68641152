"""The summary of a prediction, row by row.

    mean            E[mean(y | draw)]
    sd_aleatoric    sqrt E[var(y | draw)]           noise that would stay with infinitely much data
    sd_epistemic    sqrt var(mean(y | draw))        what the posterior does not know
    sd              sqrt(sd_aleatoric**2 + sd_epistemic**2)

over the weighted draws: the law of total variance. Of classes, with p the probabilities given a draw:

    entropy             H(E[p])                     of the prediction, in nats
    mutual_information  H(E[p]) - E[H(p)]           of class and draw: what the posterior does not know

(Houlsby et al. 2011, Bayesian active learning for classification and preference learning).

A site whose distribution does not know its mean and variance, or whose rows have latent variables of their own, has the
total only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from langevin.errors import SettingError
from langevin.predicting import quantiles
from langevin.predicting.blocks import Piece, blocks_of
from langevin.predicting.draws import row_coords, row_dim
from langevin.predicting.predictor import Predictor
from langevin.predicting.reduction import What
from langevin.predicting.sites import Site


def summarised(predictor: Predictor, probabilities: Sequence[float], batch_size: int | None) -> xr.Dataset:
    """The summary as a data set over the rows.

    Args:
        predictor: The fit and the rows.
        probabilities: Of the quantiles.
        batch_size: Rows in a batch.
    """
    for probability in probabilities:
        if not 0 < probability < 1:
            raise SettingError(f"`predict`: `quantiles` must be between 0 and 1; got {probability}. Try (0.05, 0.95).")
    what = What(True, "by row" if probabilities else None, bool(predictor.columns.held), codes=True)
    num_rows, rows = predictor.columns.num_rows, row_dim(predictor)
    arrays: dict[str, np.ndarray] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for block in blocks_of(predictor, what, batch_size):
        for site in predictor.asked:
            prefix = "" if len(predictor.asked) == 1 else f"{site.name}_"
            for name, value in _columns(site, block.pieces[site.name], predictor, probabilities).items():
                by_row = site.row_axis is not None
                if prefix + name not in arrays:
                    whole = (num_rows, *value.shape[1:]) if by_row else value.shape
                    # In double precision, which people print.
                    arrays[prefix + name] = np.empty(whole, np.float64 if value.dtype.kind == "f" else value.dtype)
                    single = (rows,) if by_row else ()
                    dims[prefix + name] = single if name == "log_predictive_density" else site.front
                arrays[prefix + name][block.start : block.stop if by_row else None] = value
    variables = {name: (dims[name], array) for name, array in arrays.items()}
    return xr.Dataset(variables, row_coords(predictor), {"sites": [site.name for site in predictor.asked]})


def _columns(site: Site, piece: Piece, predictor: Predictor, probabilities: Sequence[float]) -> dict[str, Any]:
    """What is said of a site on a batch of rows, by the name of the column."""
    found: dict[str, Any] = {}
    if piece.mean is not None and piece.epistemic is not None:
        found["mean"] = piece.mean
        noise = 0.0 if piece.aleatoric is None else piece.aleatoric
        found["sd"] = np.sqrt(noise + piece.epistemic)
        if piece.aleatoric is not None:
            found["sd_aleatoric"], found["sd_epistemic"] = np.sqrt(piece.aleatoric), np.sqrt(piece.epistemic)
    if piece.draws is not None:
        values, shares = quantiles.ordered(piece.draws, predictor.chosen.shares)
        quantities = quantiles.at(values, shares, probabilities, discrete=site.discrete)
        if piece.unit is not None and piece.mean is not None:
            quantities = [(piece.mean + piece.unit * value).astype(piece.mean.dtype) for value in quantities]
        found |= {f"q{100 * p:g}": value for p, value in zip(probabilities, quantities, strict=True)}
    if piece.probabilities is not None:
        if site.classes > 2 or piece.mean is None:
            found["most_probable"] = piece.probabilities.argmax(axis=-1)
        found |= {f"probability_{k}": piece.probabilities[..., k] for k in range(site.classes)}
        found["entropy"] = np.sum(_entropies(piece.probabilities), axis=-1)
        if piece.entropy is not None:
            found["mutual_information"] = np.maximum(found["entropy"] - piece.entropy, 0.0)
    if piece.log_density is not None:
        found["log_predictive_density"] = piece.log_density
    return found


def _entropies(probabilities: np.ndarray) -> np.ndarray:
    """-p log p of each."""
    p = np.asarray(probabilities, np.float64)
    return -p * np.log(np.where(p > 0, p, 1.0))
