"""Bayesian inference at the scale and price of stochastic gradient descent."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Notes when a process is forked.
from langevin import forks as forks

if TYPE_CHECKING:
    from langevin import diagnostics, kernels
    from langevin.calibration.calibrate import calibrate
    from langevin.calibration.report import Calibration
    from langevin.data.batches import Batches
    from langevin.data.pieces import Pieces
    from langevin.errors import (
        DataError,
        LangevinError,
        LangevinWarning,
        ModelError,
        NotConjugateError,
        SamplingError,
        SettingError,
        StoreError,
    )
    from langevin.inference import elbo_gradients, fit, resume, show_conditionals
    from langevin.kernels.schedules import Constant, CosineCycles, Polynomial
    from langevin.methods import (
        CAVI,
        HMC,
        MALA,
        MAP,
        NUTS,
        RWM,
        SGHMC,
        SGLD,
        SGNHT,
        SWAG,
        VI,
        CyclicalSGHMC,
        CyclicalSGLD,
        Ensemble,
        Enumerate,
        Gibbs,
        Hybrid,
        Laplace,
        RMSprop,
        Subsequences,
    )
    from langevin.models import series
    from langevin.models.density import Density
    from langevin.models.networks import likelihoods
    from langevin.models.networks.network import Network
    from langevin.models.networks.priors import FanIn, ScaleMixture
    from langevin.posterior import Posterior
    from langevin.predicting.prior import prior_predictive
    from langevin.result import Fit
    from langevin.run.keep import Keep
    from langevin.store import load

# Names are imported when they are first used: the command answers --help without importing JAX.
_HOMES = {
    "Batches": "langevin.data.batches",
    "CAVI": "langevin.methods",
    "Calibration": "langevin.calibration.report",
    "Constant": "langevin.kernels.schedules",
    "CosineCycles": "langevin.kernels.schedules",
    "CyclicalSGHMC": "langevin.methods",
    "CyclicalSGLD": "langevin.methods",
    "DataError": "langevin.errors",
    "Density": "langevin.models.density",
    "Ensemble": "langevin.methods",
    "Enumerate": "langevin.methods",
    "FanIn": "langevin.models.networks.priors",
    "Fit": "langevin.result",
    "Hybrid": "langevin.methods",
    "Keep": "langevin.run.keep",
    "LangevinError": "langevin.errors",
    "Laplace": "langevin.methods",
    "LangevinWarning": "langevin.errors",
    "MAP": "langevin.methods",
    "ModelError": "langevin.errors",
    "NotConjugateError": "langevin.errors",
    "Network": "langevin.models.networks.network",
    "Pieces": "langevin.data.pieces",
    "Polynomial": "langevin.kernels.schedules",
    "Posterior": "langevin.posterior",
    "RMSprop": "langevin.methods",
    "Gibbs": "langevin.methods",
    "HMC": "langevin.methods",
    "MALA": "langevin.methods",
    "NUTS": "langevin.methods",
    "RWM": "langevin.methods",
    "SGHMC": "langevin.methods",
    "SGLD": "langevin.methods",
    "SGNHT": "langevin.methods",
    "SWAG": "langevin.methods",
    "SamplingError": "langevin.errors",
    "ScaleMixture": "langevin.models.networks.priors",
    "SettingError": "langevin.errors",
    "StoreError": "langevin.errors",
    "Subsequences": "langevin.methods",
    "VI": "langevin.methods",
    "calibrate": "langevin.calibration.calibrate",
    "elbo_gradients": "langevin.inference",
    "fit": "langevin.inference",
    "load": "langevin.store",
    "prior_predictive": "langevin.predicting.prior",
    "resume": "langevin.inference",
    "show_conditionals": "langevin.inference",
}

_ROOMS = {
    "diagnostics": "langevin.diagnostics",
    "kernels": "langevin.kernels",
    "likelihoods": "langevin.models.networks.likelihoods",
    "series": "langevin.models.series",
}

__all__ = [
    "CAVI",
    "HMC",
    "MALA",
    "MAP",
    "NUTS",
    "RWM",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SWAG",
    "VI",
    "Batches",
    "Calibration",
    "Constant",
    "CosineCycles",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "DataError",
    "Density",
    "Ensemble",
    "Enumerate",
    "FanIn",
    "Fit",
    "Gibbs",
    "Hybrid",
    "Keep",
    "LangevinError",
    "LangevinWarning",
    "Laplace",
    "ModelError",
    "Network",
    "NotConjugateError",
    "Pieces",
    "Polynomial",
    "Posterior",
    "RMSprop",
    "SamplingError",
    "ScaleMixture",
    "SettingError",
    "StoreError",
    "Subsequences",
    "calibrate",
    "diagnostics",
    "elbo_gradients",
    "fit",
    "kernels",
    "likelihoods",
    "load",
    "prior_predictive",
    "resume",
    "series",
    "show_conditionals",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(_ROOMS[name])
    else:
        # With the module, Python says which name was probably meant.
        raise AttributeError(f"module 'langevin' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
