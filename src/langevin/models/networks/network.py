"""A neural network whose weights are unknown: a NumPyro program, so that everything that serves programs serves it.

    w ~ prior                       one site for each array of weights
    y_i ~ likelihood(net(w, x_i))   in a plate over the rows

Engines see a log-density as of any program, and what a network has besides (`Model.network`): starts that are
initialisations, the layers, and predictions at a few rows. By these it is judged whether chains have mixed: weights
have symmetries (units of a layer may trade places), and need not.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro import handlers

from langevin import checks, spelling
from langevin.data.table import Table, as_table
from langevin.errors import ModelError
from langevin.models.networks.likelihoods import Likelihood, Scale, likelihood_of
from langevin.models.networks.linear import linearised
from langevin.models.networks.nets import Weights, net_of
from langevin.models.networks.priors import PriorOfWeights, priors_of
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch, Centring, Model, Position, Posterior

if TYPE_CHECKING:
    from langevin.result import Fit

PREDICTION = "prediction"
PROBE = "probe"
MOST_PROBES = 64


class Network:
    """A network with a likelihood and a prior of its weights: a model for `lv.fit`, with every method.

    Args:
        net: An Equinox module, which is called on one row; `key -> module`; or a pair `(params, apply)`, also
            `(key -> params, apply)`, whose `apply(params, x)` is called on all rows at once, as those of Flax are.
        likelihood: "gaussian", "student_t", "categorical", "bernoulli", "poisson"; an `lv.likelihoods.Gaussian` or
            `StudentT`, for other noise; or a function from the network's output to a NumPyro distribution.
        prior: Of the weights. By default Gaussian, with a variance of 2 over the number of inputs of a unit
            (`lv.FanIn`); a NumPyro distribution for all; `lv.ScaleMixture()`; `(name, shape) -> distribution`; or a
            dict of these by name or pattern of names: `{"layers.0.*": dist.Normal(0, 1), "*.bias": dist.Cauchy(0, 1)}`.
        inputs: The column that the network is called with; of several, those side by side.
        outcome: The column that is observed.
        frozen: Names of weights, or patterns, that stay as they are (see `freeze`).
        init: Chains start at weights that are "redrawn" as those of the network were (by its function of a key, else by
            shuffling each array), or at those "given", for a network that was trained before.
        standardise: Rows whose means and standard deviations inputs (and with Gaussian or Student noise the outcome)
            are standardised by: usually the training data. What is predicted is in the outcome's own units.
        temperature: Other than 1, the posterior is tempered: its density to the power of 1 over this, which is no
            longer the posterior. Below 1 it is a cold posterior.

    Example:
        >>> import equinox as eqx, jax, langevin as lv
        >>> network = lv.Network(lambda key: eqx.nn.MLP(2, 1, 8, 1, key=key), "bernoulli")
        >>> network.num_weights, list(network.shapes)[:2]
        (33, ['layers.0.weight', 'layers.0.bias'])
    """

    def __init__(
        self,
        net: Any,
        likelihood: str | Likelihood | Callable[[jax.Array], dist.Distribution] = "gaussian",
        prior: PriorOfWeights | None = None,
        *,
        inputs: str | Sequence[str] = "x",
        outcome: str = "y",
        frozen: str | Sequence[str] = (),
        init: Literal["redrawn", "given"] = "redrawn",
        standardise: Any = None,
        temperature: float = 1.0,
    ) -> None:
        checks.choice("Network", "init", init, ("redrawn", "given"))
        checks.positive("Network", "temperature", temperature, "1.0")
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "net")}
        self.inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.outcome, self.temperature = outcome, float(temperature)
        self.net = net_of(net, frozen, init)
        self.likelihood = likelihood_of(likelihood)
        self.priors = priors_of(prior, self.net)
        self._check_names()
        self._scales = {} if standardise is None else self._scales_of(as_table(standardise))
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, kind) for name in self.inputs]
        self.__signature__ = inspect.Signature([*parameters, inspect.Parameter(outcome, kind, default=None)])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights that are inferred."""
        return self.net.shapes

    @property
    def num_weights(self) -> int:
        """How many numbers are inferred, but for those of the likelihood."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def __call__(self, **columns: Any) -> None:
        """The program."""
        rows = self.rows(columns)
        tempered = nullcontext() if self.temperature == 1 else handlers.scale(scale=1 / self.temperature)
        with tempered:
            weights = {name: numpyro.sample(name, prior) for name, prior in self.priors.items()}
            values = {name: numpyro.sample(name, prior) for name, prior in self.likelihood.sites.items()}
            with numpyro.plate("rows", len(rows)):
                fn = self.distribution(self.net.apply(weights, rows), values)
                numpyro.sample(self.outcome, fn, obs=columns.get(self.outcome))

    def rows(self, columns: Batch) -> jax.Array:
        """What the network is called with: its columns, standardised if asked for, side by side if they are several."""
        parts = []
        for name in self.inputs:
            column = jnp.asarray(columns[name])
            if name in self._scales:
                scale = self._scales[name]
                column = (column - scale.location) / scale.scale
            parts.append(column)
        if len(parts) == 1 and parts[0].ndim > 1:
            return parts[0]
        return jnp.concatenate([part[:, None] if part.ndim == 1 else part for part in parts], axis=-1)

    def distribution(self, output: jax.Array, values: dict[str, Any]) -> dist.Distribution:
        """The distribution of the outcome of each row.

        Args:
            output: Of the network, rows in front.
            values: Of the further unknowns of the likelihood.
        """
        return self.likelihood.distribution(output, values, self._scales.get(self.outcome, Scale()))

    def freeze(self, fit: Fit, *names: str) -> Network:
        """The same network with these weights (or patterns of names) as they are in a fit: last-layer inference.

        Of several draws, those of the highest log-density.

        Example:
            >>> import equinox as eqx, jax, langevin as lv, numpy as np
            >>> network = lv.Network(eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0)))
            >>> x = np.linspace(-1.0, 1.0, 20, dtype="float32")
            >>> fit = lv.fit(network, {"x": x, "y": x**2}, lv.MAP(num_steps=100), progress=False)
            >>> list(network.freeze(fit, "layers.0.*").shapes)
            ['layers.1.weight', 'layers.1.bias']
        """
        if not names:
            raise ModelError("`freeze`: name the weights to freeze: network.freeze(fit, 'layers.0.*').")
        heights = fit.stats["lp"].values
        chain, draw = np.unravel_index(int(np.argmax(np.where(np.isfinite(heights), heights, -np.inf))), heights.shape)
        lacking = [name for name in self.shapes if name not in fit.posterior]
        if lacking:
            raise ModelError(f"`freeze`: the fit has no draws of {lacking[0]!r}. Is it a fit of this network?")
        values = {name: fit.posterior[name].values[chain, draw] for name in self.shapes}
        frozen = (*_as_tuple(self._settings["frozen"]), *names)
        return Network(self.net.brought(values), **self._settings | {"frozen": frozen, "init": "given"})

    def target(self, target: Any, table: Table) -> Any:
        """The target of the program on these rows, with what a network has besides."""
        if not isinstance(target, Posterior):
            return target
        probes = np.asarray(self.probes(table.columns, table.num_rows))
        shape = jax.eval_shape(self._predictions, target.model.like, probes).shape
        dims = (PROBE, *(f"{PREDICTION}_dim_{axis}" for axis in range(1, len(shape))))
        report = target.model.report

        def reported(
            position: Position, batch: Batch, hidden: frozenset[str], centring: Centring
        ) -> dict[str, jax.Array]:
            sites = report(position, batch, frozenset(), centring)
            shown = {name: value for name, value in sites.items() if name not in hidden}
            return {**shown, PREDICTION: self._predictions(sites, probes)}

        model = dataclasses.replace(
            target.model,
            report=reported,
            start=lambda generator: self._start(target.model, generator),
            dims=(*target.model.dims, (PREDICTION, dims)),
            judged_by=(*self.likelihood.sites, PREDICTION),
            remark=self._remark,
            network=self,
        )
        return dataclasses.replace(target, model=model)

    def probes(self, columns: Batch, num_rows: int) -> jax.Array:
        """The rows by whose predictions it is judged whether chains have mixed: evenly spread ones."""
        chosen = np.linspace(0, num_rows - 1, min(num_rows, MOST_PROBES)).astype(int)
        given = {name: columns[name] for name in self.inputs}
        return self.rows({n: (c if isinstance(c, jax.Array) else np.asarray(c))[chosen] for n, c in given.items()})

    def linearised(self, mode: Weights) -> Network:
        """The same network as its expansion to first order in the weights, around a mode: see `lv.Laplace`."""
        other = copy.copy(self)
        other.net = linearised(self.net, {name: np.asarray(mode[name]) for name in self.shapes})
        return other

    def as_fitted(self, fit: Fit) -> Network:
        """The network that a fit predicts with: linearised, if it was fitted so."""
        if not fit.settings.get("linearised", False):
            return self
        group = fit.tree["mode"].to_dataset()
        return self.linearised({name: group[name].values for name in self.shapes})

    @property
    def has_independent_priors(self) -> bool:
        """Whether the weights are independent in their prior."""
        return all(unwrapped(prior).event_shape == () for prior in self.priors.values())

    def predicted(self, fn: dist.Distribution) -> jax.Array:
        """The numbers that stand for a distribution: the probabilities of classes, else the mean."""
        base = fn.base_dist if isinstance(fn, dist.Independent) else fn
        probabilities = getattr(base, "probs", None) if base.support.is_discrete else None
        return fn.mean if probabilities is None else probabilities

    def _predictions(self, sites: Weights, rows: Any) -> jax.Array:
        weights = {name: sites[name] for name in self.shapes}
        values = {name: sites[name] for name in self.likelihood.sites}
        return self.predicted(self.distribution(self.net.apply(weights, rows), values))

    def _start(self, model: Model, generator: np.random.Generator) -> Position:
        """An initialisation; of what else is unknown, 1 or near it (0 on the unconstrained scale)."""
        weights = self.net.start(generator)
        others = {name: like for name, like in model.like.items() if name not in weights}
        return weights | {
            name: np.asarray(0.1 * generator.standard_normal(like.shape), like.dtype) for name, like in others.items()
        }

    @property
    def _remark(self) -> str:
        if self.temperature == 1:
            return ""
        return f"The posterior is tempered (temperature {self.temperature:g}): its density to the power of 1 over that."

    def _scales_of(self, table: Table) -> dict[str, Scale]:
        scales = {}
        wanted = [*self.inputs, *([self.outcome] if hasattr(self.likelihood, "noise") else [])]
        for name in wanted:
            if name not in table.columns:
                raise ModelError(f"`Network`: `standardise` has no column {name!r} of numbers.")
            column = np.asarray(table.columns[name], np.float64)
            spread = column.std(axis=0)
            scale = np.where(spread > 0, spread, 1.0)
            dtype = jnp.result_type(float)
            scales[name] = Scale(np.asarray(column.mean(axis=0), dtype), np.asarray(scale, dtype))
        return scales

    def _check_names(self) -> None:
        taken = [*self.inputs, self.outcome, PREDICTION, "rows", PROBE, "chain", "draw", *self.likelihood.sites]
        for name in self.net.first:
            if name in taken:
                raise ModelError(f"`Network`: a weight is called {name!r}, which something else is called too.")

    def __repr__(self) -> str:
        frozen = f", {len(self.net.frozen)} arrays frozen" if self.net.frozen else ""
        return f"Network({self.num_weights} weights in {len(self.shapes)} arrays{frozen})"


spelling.check_keywords(Network)


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
