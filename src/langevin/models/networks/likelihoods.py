"""Likelihoods: from what a network puts out to the distribution of what is observed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from langevin import checks
from langevin.errors import ModelError
from langevin.models.wrappers import unwrapped

LEAST_NOISE = 1e-3
_ONE_MORE = dist.transforms.AffineTransform(1.0, 1.0, domain=dist.constraints.positive)
CLASSES = (dist.BernoulliProbs, dist.BernoulliLogits, dist.CategoricalProbs, dist.CategoricalLogits)


@dataclasses.dataclass(frozen=True)
class Scale:
    """The location and scale of a column, by which it is standardised."""

    location: np.ndarray | float = 0.0
    scale: np.ndarray | float = 1.0


@runtime_checkable
class Likelihood(Protocol):
    """What a network's output means."""

    @property
    def of_numbers(self) -> bool:
        """Whether the outcome is a number on a scale of its own, which can be standardised."""
        ...

    @property
    def sites(self) -> dict[str, dist.Distribution]:
        """Further unknowns, with their priors."""
        ...

    def distribution(self, output: jax.Array, values: dict[str, Any], scale: Scale) -> dist.Distribution:
        """The distribution of each row's outcome.

        Args:
            output: Of the network, rows in front.
            values: Of the further unknowns.
            scale: Of the outcome, where it was standardised.
        """
        ...


def _unit(output: jax.Array) -> jax.Array:
    """Without an axis of one output."""
    return output[..., 0] if output.ndim > 1 and output.shape[-1] == 1 else output


def predicted(fn: dist.Distribution, output: jax.Array) -> jax.Array:
    """The numbers that stand for a distribution: the probabilities of classes, else the mean.

    Of a distribution that may have no mean it is the location, and else the output itself.
    """
    base = unwrapped(fn)
    if isinstance(base, CLASSES):
        return base.probs
    if isinstance(base, dist.StudentT | dist.Cauchy):
        return jnp.broadcast_to(base.loc, fn.shape())
    try:
        return fn.mean
    except (NotImplementedError, AttributeError):
        return output


def _by_row(fn: dist.Distribution) -> dist.Distribution:
    """One distribution a row."""
    return fn.to_event(len(fn.batch_shape) - 1)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Normal noise around the network's output, for numbers.

    Args:
        noise: The standard deviation: a number; a prior, if it is to be learned (by default HalfNormal(1)); or
            "output", if the second half of the network's outputs is to say it, for each row: softplus of them. Where
            the outcome is standardised, it is in sds of the outcome.
    """

    noise: float | dist.Distribution | Literal["output"] | None = None
    of_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_noise("Gaussian", self.noise)

    @property
    def sites(self) -> dict[str, dist.Distribution]:
        """The noise, if it is learned."""
        return _noise_sites(self.noise)

    def distribution(self, output: jax.Array, values: dict[str, Any], scale: Scale) -> dist.Distribution:
        """The distribution of each row's outcome."""
        location, noise = _located(output, self.noise, values, scale)
        return _by_row(dist.Normal(location, noise))


@dataclasses.dataclass(frozen=True)
class StudentT:
    """Noise with heavy tails around the network's output, for numbers with outliers.

    Args:
        df: The degrees of freedom: a number, or a prior; by default 1 more than a Gamma(2, 0.1), so that there is a
            mean.
        noise: As in `Gaussian`.
    """

    df: float | dist.Distribution | None = None
    noise: float | dist.Distribution | Literal["output"] | None = None
    of_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_noise("StudentT", self.noise)
        if self.df is not None and not isinstance(self.df, dist.Distribution):
            checks.positive("StudentT", "df", self.df, "4")

    @property
    def sites(self) -> dict[str, dist.Distribution]:
        """Those of degrees of freedom and noise that are learned."""
        prior = self.df
        if prior is None:
            prior = dist.TransformedDistribution(dist.Gamma(2.0, 0.1), _ONE_MORE)
        return {**_noise_sites(self.noise), **({"df": prior} if isinstance(prior, dist.Distribution) else {})}

    def distribution(self, output: jax.Array, values: dict[str, Any], scale: Scale) -> dist.Distribution:
        """The distribution of each row's outcome."""
        location, noise = _located(output, self.noise, values, scale)
        return _by_row(dist.StudentT(values.get("df", self.df), location, noise))


@dataclasses.dataclass(frozen=True)
class _OfOutput:
    """A likelihood without further unknowns."""

    make: Callable[[jax.Array], dist.Distribution]
    of_numbers: ClassVar[bool] = False

    @property
    def sites(self) -> dict[str, dist.Distribution]:
        """None."""
        return {}

    def distribution(self, output: jax.Array, values: dict[str, Any], scale: Scale) -> dist.Distribution:
        """The distribution of each row's outcome."""
        del values, scale
        fn = self.make(output)
        if not isinstance(fn, dist.Distribution):
            raise ModelError(f"`Network`: `likelihood` must return a NumPyro distribution; it returned {fn!r}.")
        return _by_row(fn)


def categorical(output: jax.Array) -> dist.Distribution:
    """Classes, by their logits."""
    return dist.Categorical(logits=output)


def bernoulli(output: jax.Array) -> dist.Distribution:
    """Yes or no, by the logit."""
    return dist.Bernoulli(logits=_unit(output))


def poisson(output: jax.Array) -> dist.Distribution:
    """Counts, by the logarithm of their rate."""
    return dist.Poisson(jnp.exp(_unit(output)))


BY_NAME: dict[str, Callable[[], Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "categorical": lambda: _OfOutput(categorical),
    "bernoulli": lambda: _OfOutput(bernoulli),
    "poisson": lambda: _OfOutput(poisson),
}


def likelihood_of(likelihood: Any) -> Likelihood:
    """A likelihood by its name, as it is, or from a function of the network's output.

    Raises:
        ModelError: If it is none of these.
    """
    if isinstance(likelihood, str):
        if likelihood not in BY_NAME:
            known = ", ".join(map(repr, BY_NAME))
            raise ModelError(f"`Network`: `likelihood` must be one of {known}, or a function; got {likelihood!r}.")
        return BY_NAME[likelihood]()
    if isinstance(likelihood, Likelihood) and not isinstance(likelihood, type):
        return likelihood
    if isinstance(likelihood, type) and issubclass(likelihood, Gaussian | StudentT):
        return likelihood()
    if not callable(likelihood) or isinstance(likelihood, type | dist.Distribution):
        raise ModelError(f"`Network`: `likelihood` must be a name, or a function of the output; got {likelihood!r}.")
    return _OfOutput(likelihood)


def _check_noise(who: str, noise: Any) -> None:
    if noise is None or noise == "output" or isinstance(noise, dist.Distribution):
        return
    checks.positive(who, "noise", noise, "0.1, a prior such as dist.HalfNormal(1.0), or 'output'")


def _noise_sites(noise: Any) -> dict[str, dist.Distribution]:
    prior = dist.HalfNormal(1.0) if noise is None else noise
    return {"noise": prior} if isinstance(prior, dist.Distribution) else {}


def _located(output: jax.Array, noise: Any, values: dict[str, Any], scale: Scale) -> tuple[jax.Array, Any]:
    """Location and scale of the outcome, in its own units."""
    if noise == "output":
        if output.ndim < 2 or output.shape[-1] % 2:
            raise ModelError(
                "`Network`: with noise='output' the network has two outputs for each number that is observed: its "
                f"mean, and its noise. It has {1 if output.ndim < 2 else output.shape[-1]}."
            )
        output, raw = jnp.split(output, 2, axis=-1)
        spread = _unit(jax.nn.softplus(raw) + LEAST_NOISE)
    else:
        spread = values.get("noise", noise)
    return jnp.asarray(scale.location + scale.scale * _unit(output)), scale.scale * spread
