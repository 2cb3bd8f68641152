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
from langevin.culprit import ASKS_FOR_VALUES
from langevin.data.table import Table, as_table
from langevin.errors import DataError, ModelError
from langevin.models.networks.likelihoods import Likelihood, Scale, likelihood_of, predicted
from langevin.models.networks.linear import linearised
from langevin.models.networks.nets import Weights, net_of
from langevin.models.networks.outcomes import Meant, check_outcome, fitted, meant_by
from langevin.models.networks.priors import PriorOfWeights, priors_of
from langevin.models.networks.scales import scales_of, warn_of_scales
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch, Centring, Model, Position, Posterior

if TYPE_CHECKING:
    from langevin.result import Fit

PREDICTION, OUTPUT, PROBE = "prediction", "output", "probe"
MOST_PROBES = 64


class Network:
    """A network with a likelihood and a prior of its weights: a model for `lv.fit`, with every method.

    Args:
        net: An Equinox module, which is called on one row; `key -> module`; or a pair `(params, apply)`, also
            `(key -> params, apply)`, whose `apply(params, x)` is called on all rows at once, as those of Flax are.
        likelihood: "gaussian", "student_t", "categorical", "bernoulli", "poisson"; an `lv.likelihoods.Gaussian` or
            `StudentT`, for other noise; or a function from the network's output to a NumPyro distribution.
        prior: Of the weights. By default Gaussian, with a variance of 9 over the number of inputs of a unit
            (`lv.FanIn`); a NumPyro distribution for all; `lv.ScaleMixture()`; `(name, shape) -> distribution`; or a
            dict of these by name or pattern of names: `{"layers.0.*": dist.Normal(0, 1), "*.bias": dist.Cauchy(0, 1)}`.
        inputs: The column that the network is called with; of several, those side by side.
        outcome: The column that is observed.
        frozen: Names of weights, or patterns, that stay as they are (see `freeze`).
        init: Chains start at weights that are "redrawn" as those of the network were (by its function of a key, else by
            shuffling each array), or at those "given", for a network that was trained before.
        standardise: Rows whose means and standard deviations inputs (and with Gaussian or Student noise the outcome)
            are standardised by: usually the training data. What is predicted is in the outcome's own units; the site
            `noise` is in sds of the outcome.
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
        self._settings: dict[str, Any] = {
            name: value for name, value in locals().items() if name not in ("self", "net")
        }
        self.inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.outcome, self.temperature = outcome, float(temperature)
        self.net = net_of(net, frozen, init)
        self.likelihood = likelihood_of(likelihood)
        self.priors = priors_of(prior, self.net)
        self._check_names()
        scaled = [*self.inputs, *([outcome] if self.likelihood.of_numbers else [])]
        self._scales = {} if standardise is None else scales_of(as_table(standardise), scaled)
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
        with nullcontext() if self.temperature == 1 else _Tempered(scale=1 / self.temperature):
            weights = {name: numpyro.sample(name, prior) for name, prior in self.priors.items()}
            values = {name: numpyro.sample(name, prior) for name, prior in self.likelihood.sites.items()}
            with numpyro.plate("rows", len(rows)):
                self.observe(self.output(weights, rows), values, columns)

    def observe(self, output: jax.Array, values: dict[str, Any], columns: Batch) -> None:
        """The part of the program that is the likelihood, inside a plate over the rows."""
        fn = self.distribution(output, values)
        numpyro.sample(self.outcome, fn, obs=fitted(columns.get(self.outcome), fn))

    def log_likelihood(self, output: jax.Array, values: dict[str, Any], outcome: Any) -> jax.Array:
        """Of each row, tempered if the posterior is.

        Args:
            output: Of the network, rows in front.
            values: Of the further unknowns of the likelihood.
            outcome: What was observed.
        """
        fn = self.distribution(output, values)
        return jnp.asarray(fn.log_prob(fitted(outcome, fn))) / self.temperature

    def output(self, weights: Weights, rows: Any) -> jax.Array:
        """What the network puts out for rows that are standardised.

        Raises:
            ModelError: If it cannot be called with such rows, or puts out something else than an array.
        """
        try:
            output = self.net.apply(weights, rows)
        except ASKS_FOR_VALUES:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else ""
            one = f"a row of shape {rows.shape[1:]}" if self.net.is_module else f"rows of shape {rows.shape}"
            raise ModelError(
                f"`Network`: the network cannot be called with {one}, of {rows.dtype}: {type(error).__name__}: "
                f"{reason:.200}"
            ) from error
        if not isinstance(output, jax.Array | np.ndarray) or output.shape[:1] != rows.shape[:1]:
            shapes = jax.tree.map(jnp.shape, output)
            raise ModelError(
                f"`Network`: the network must put out one array with a row for each of the {len(rows)} rows; it put "
                f"out {type(output).__name__} of shape {shapes}."
            )
        return jnp.asarray(output)

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

    def check(self, table: Table) -> None:
        """Raises an error if the network cannot be called with these rows, or their outcome is not what it observes.

        Args:
            table: Rows, with or without the outcome.
        """
        if any(name not in table.columns for name in self.inputs):
            return
        named = [name for name in self.inputs if name in table.levels]
        if named and (len(self.inputs) > 1 or self._scales):
            raise DataError(
                f"`data[{named[0]!r}]` holds names, and a network takes numbers. Make a column of zeros and ones of "
                f"each name, as pandas.get_dummies(data[{named[0]!r}]) does."
            )
        check_outcome(self.outcome, table, self._meant(table.columns, table.num_rows))

    def _meant(self, columns: Batch, num_rows: int) -> Meant:
        """What the network's output means on so many rows, found without computing it."""
        shapes = {n: jax.ShapeDtypeStruct((num_rows, *columns[n].shape[1:]), columns[n].dtype) for n in self.inputs}

        def distribution(columns: Batch, weights: Weights) -> dist.Distribution:
            values = {name: jnp.ones(prior.shape()) for name, prior in self.likelihood.sites.items()}
            return self.distribution(self.output(weights, self.rows(columns)), values)

        return meant_by(distribution, shapes, {name: self.net.first[name] for name in self.shapes})

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
        lacking = [name for name in self.shapes if name not in fit.posterior]
        if lacking:
            raise ModelError(
                f"`freeze`: the fit has no draws of {lacking[0]!r}. Is it a fit of this network that kept its weights?"
            )
        heights = np.where(fit.weights.values > 0, fit.stats["lp"].values, -np.inf)
        chain, draw = np.unravel_index(int(np.argmax(np.nan_to_num(heights, nan=-np.inf))), heights.shape)
        highest = fit.posterior[list(self.shapes)].isel(chain=chain, draw=draw)
        values = {name: np.asarray(highest[name].values) for name in self.shapes}
        for name, shape in self.shapes.items():
            if values[name].shape != shape:
                raise ModelError(
                    f"`freeze`: {name!r} has the shape {values[name].shape} in the fit, and {shape} in this network."
                )
        changed: dict[str, Any] = {
            "frozen": (*_as_tuple(self._settings["frozen"]), *names),
            "init": "given",
            # What is a gain, and has a prior around 1, cannot be told of weights that were fitted.
            "prior": lambda name, shape: self.priors[name],
        }
        return Network(self.net.brought(values), **{**self._settings, **changed})

    def check_fitted(self, table: Table) -> None:
        """Raises an error if there is no outcome to fit to, and warns of columns that are far from standardised."""
        if self.outcome not in table.columns:
            raise DataError(
                f"`data` has no column {self.outcome!r}, which the network is to be fitted to. Add it, or name another "
                "one: lv.Network(..., outcome=...)."
            )
        if all(name in table.columns for name in self.inputs):
            self._warn_of_scales(table)

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

    def unconstrained(self, sites: Weights) -> Position:
        """The position whose sites these are: weights are what they are, and the noise is mapped to the real line."""
        position = {name: sites[name] for name in self.shapes}
        for name, prior in self.likelihood.sites.items():
            position[name] = dist.biject_to(prior.support).inv(jnp.asarray(sites[name]))
        return position

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

    def _predictions(self, sites: Weights, rows: Any) -> jax.Array:
        weights = {name: sites[name] for name in self.shapes}
        values = {name: sites[name] for name in self.likelihood.sites}
        output = self.output(weights, rows)
        return predicted(self.distribution(output, values), output)

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

    def _warn_of_scales(self, table: Table) -> None:
        wanted = [] if self._indexes(table) else [name for name in self.inputs if name not in table.levels]
        wanted += [self.outcome] if self.likelihood.of_numbers else []
        warn_of_scales(table, [name for name in wanted if name not in self._scales])

    def _indexes(self, table: Table) -> bool:
        """Whether the inputs are whole numbers that the network looks something up by, as words: others do not do."""
        if any(table.columns[name].dtype.kind not in "iu" for name in self.inputs):
            return False
        as_numbers = {name: np.zeros((1, *table.columns[name].shape[1:]), np.float32) for name in self.inputs}
        try:
            self._meant(as_numbers, 1)
        except ModelError:
            return True
        return False

    def _check_names(self) -> None:
        taken = [*self.inputs, self.outcome, PREDICTION, OUTPUT, "rows", PROBE, "chain", "draw", *self.likelihood.sites]
        for name in self.net.first:
            if name in taken:
                raise ModelError(f"`Network`: a weight is called {name!r}, which something else is called too.")

    def __repr__(self) -> str:
        frozen = f", {len(self.net.frozen)} arrays frozen" if self.net.frozen else ""
        return f"Network({self.num_weights} weights in {len(self.shapes)} arrays{frozen})"


spelling.check_keywords(Network)


class _Tempered(handlers.scale):
    """Scales log-probabilities, and not the Jacobians of maps to the real line: these are of the space."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Leaves factors alone: a network has none of its own."""
        if msg["type"] == "sample" and isinstance(msg["fn"], dist.Unit):
            return
        super().process_message(msg)


def _as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
