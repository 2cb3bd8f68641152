"""Laplace's method."""

from __future__ import annotations

import dataclasses
from typing import Literal

from langevin import checks
from langevin.contracts import Plan
from langevin.engines.laplace import LaplaceEngine
from langevin.errors import SettingError
from langevin.methods.base import Method
from langevin.methods.point import MAP
from langevin.posterior import Posterior

STRUCTURES = ("auto", "dense", "diagonal", "kronecker", "last_layer")


@dataclasses.dataclass(frozen=True)
class Laplace(Method):
    """A Gaussian around a mode, as wide as the curvature there says (MacKay 1992).

    Targets N(mode, P^-1), where P is minus the Hessian of the (unconstrained) log-density at the mode, on all rows. It
    is near the posterior where rows are many and unknowns few, and else too narrow, too wide or beside it: the verdict
    says by the importance ratios of its draws, where these can be afforded.

    For an `lv.Network`, P is the generalised Gauss-Newton matrix and the precision of the prior (see
    `langevin.geometry.gauss_newton`), and predictions are those of the network that is linear in its weights around the
    mode (Immer et al. 2021): draws of the weights in the network itself are known to fit worse than the mode.

    Args:
        structure: "dense" for all of P; "diagonal" for its diagonal; for networks also "kronecker", by layer as the
            Kronecker product of two factors (Ritter et al. 2018), and "last_layer", all of it for the last linear
            layer, with all other weights at the mode. "auto" is the first that can be afforded of "dense", "kronecker"
            (if all weights are in linear layers and convolutions), "last_layer" and "diagonal".
        climb: How to get to the mode. "auto" is by Newton's steps from all starts with up to 512 coordinates, and else
            `lv.MAP()`; an `lv.MAP` with other settings; or None, if the start is a mode already: `init=fit`, or a
            network that was trained before. A dense P leads on to the mode itself, unless it is None.
        linearised: Whether a network predicts as its expansion to first order around the mode. With False, draws of the
            weights go through the network itself.
        num_starts: Climbs from so many starts, of which the highest counts; by default 1 for networks and 4 for others.

    Example:
        >>> import langevin as lv
        >>> density = lv.Density(lambda x: -((x - 3.0) ** 2) / 8, init=0.0)
        >>> fit = lv.fit(density, method="laplace", progress=False)
        >>> round(float(fit.posterior["position"].std()), 1)
        2.0
    """

    structure: Literal["auto", "dense", "diagonal", "kronecker", "last_layer"] = "auto"
    climb: MAP | Literal["auto"] | None = "auto"
    linearised: bool = True
    num_starts: int | None = None

    def __post_init__(self) -> None:
        checks.choice("Laplace", "structure", self.structure, STRUCTURES)
        checks.choice("Laplace", "linearised", self.linearised, (True, False))
        if not (self.climb is None or self.climb == "auto" or isinstance(self.climb, MAP)):
            raise SettingError(f"`Laplace`: `climb` must be 'auto', an lv.MAP or None; got {self.climb!r}.")
        if self.num_starts is not None:
            checks.count("Laplace", "num_starts", self.num_starts)

    def approximation(self, plan: Plan) -> str:
        """A Gaussian by the curvature at a mode."""
        del plan
        return "a Gaussian around a mode of the unconstrained log-density, as wide as the curvature there says."

    def engine(self, target: Posterior, plan: Plan) -> LaplaceEngine:
        """The engine of a run."""
        if target.model.network is not None and self.linearised and plan.keep.predict is not None:
            raise SettingError(
                "`Laplace`: the linearised network predicts from weights, and `lv.Keep(predict=...)` keeps none. Leave "
                "it out, or give linearised=False."
            )
        return LaplaceEngine(self, target, plan, MAP() if self.climb == "auto" else self.climb)
