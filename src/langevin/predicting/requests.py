"""What a user asks of a fit: see `Fit.predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

from langevin import checks
from langevin.predicting.draws import dataset_of
from langevin.predicting.predictor import predictor_of
from langevin.predicting.summary import summarised

if TYPE_CHECKING:
    from langevin.result import Fit


def predict(
    fit: Fit, data: Any, kind: str, quantiles: Sequence[float], batch_size: int | None, options: Mapping[str, Any]
) -> xr.Dataset:
    """See `Fit.predict`."""
    checks.choice("predict", "kind", kind, ("summary", "draws"))
    if batch_size is not None:
        checks.count("predict", "batch_size", batch_size)
    predictor = predictor_of(fit, data, **options)
    if kind == "draws":
        return dataset_of(predictor, batch_size, fit.weights.values)
    return summarised(predictor, tuple(quantiles), batch_size)
