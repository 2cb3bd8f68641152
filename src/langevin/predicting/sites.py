"""What is known beforehand of the sites of a program that is called on new rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro.ops.provenance import eval_provenance

from langevin.culprit import ASKS_FOR_VALUES
from langevin.errors import LangevinError, ModelError
from langevin.models.outline import unscaled_log_prob
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch
from langevin.predicting.calling import ROWS, Caller, Keys
from langevin.run import compilation

TAKEN = ("chain", "draw", "sample", "weight")
# How many rows are called together to see whether a row depends on the others, and how far rounding may go.
MOST_COMPARED = 64
SAME_ROW = 1e-2
TWO_CLASSES = (dist.BernoulliProbs, dist.BernoulliLogits)
MANY_CLASSES = (dist.CategoricalProbs, dist.CategoricalLogits)
# Their quantile function costs less than a draw.
LIGHT_TAILED = (dist.Normal, dist.Logistic, dist.Uniform, dist.HalfNormal)
INVERTED = (dist.Normal, dist.Laplace, dist.Logistic, dist.Cauchy, dist.Gumbel, dist.Uniform, dist.HalfNormal)


class Site(NamedTuple):
    """A site that is predicted.

    Attributes:
        name: Its name.
        shape: The shape of its value on the rows it was looked at with.
        row_axis: Which axis is the rows; None if it has none.
        dims: Names of its axes.
        event_dim: How many of its axes, from the right, are one event.
        deterministic: Whether it follows from other sites.
        classes: How many classes it has; 0 if it is a number.
        discrete: Whether it is a whole number.
        has_moments: Whether its distribution knows its mean and variance.
        split: Whether these follow from the fitted sites alone, so that uncertainty can be split.
        inverted: Whether draws for quantiles come from its quantile function.
        light_tailed: Whether ten sds are further than any quantile that is asked for.
    """

    name: str
    shape: tuple[int, ...]
    row_axis: int | None
    dims: tuple[str, ...]
    event_dim: int
    deterministic: bool
    classes: int
    discrete: bool
    has_moments: bool
    split: bool
    inverted: bool
    light_tailed: bool

    @property
    def front(self) -> tuple[str, ...]:
        """The names of the axes, rows first."""
        if self.row_axis is None:
            return self.dims
        return (self.dims[self.row_axis], *(dim for axis, dim in enumerate(self.dims) if axis != self.row_axis))


class Sites(NamedTuple):
    """All sites of a program on rows without what is observed.

    Attributes:
        all: By name; plates and factors are none.
        observed: The names of sites that were observed in the fit.
        latent: The names of sample sites that are not predicted.
        own: The latent sites whose shape follows the number of rows.
        plated: Those of `own` that are inside a plate over the rows.
        discrete: The latent sites with discrete values.
        params: For each `numpyro.param`, its value's shape and its constraint.
        row_plates: The plates over the rows.
        has_control_flow: Whether the program has a `scan` or `cond`.
        runs_on_fewer: Whether the program ran on another number of rows too.
    """

    all: dict[str, Site]
    observed: tuple[str, ...]
    latent: tuple[str, ...]
    own: tuple[str, ...]
    plated: tuple[str, ...]
    discrete: tuple[str, ...]
    params: dict[str, tuple[Any, Any]]
    row_plates: tuple[str, ...]
    has_control_flow: bool
    runs_on_fewer: bool


def look(caller: Caller, inputs: Batch, num_rows: int, observed: tuple[str, ...], drawn: Any, missing: str) -> Sites:
    """Runs a program abstractly, on these rows and on fewer.

    Args:
        caller: The program.
        inputs: The columns that it is called with.
        num_rows: How many rows.
        observed: The sites that were observed in the fit; where that is unknown, all without draws.
        drawn: The names of what the fit has draws of.
        missing: The arguments that it is called without, for messages.

    Raises:
        ModelError: If it does not run without them.
    """
    try:
        raw = _raw(caller, inputs, num_rows)
    except (LangevinError, *ASKS_FOR_VALUES):
        raise
    except Exception as error:
        without = f" without {missing}" if missing else ""
        raise ModelError(
            f"The program does not run on the rows to predict{without}: {type(error).__name__}: {error}. It must take "
            "sizes from what it is called with (`x.shape[0]`), not from what is observed."
        ) from error
    try:
        other = _raw(caller, inputs, num_rows - 1 if num_rows > 1 else 2)
    except Exception:  # a program that knows how many rows it has may raise anything on fewer
        other = None
    compared = raw if other is None else other
    row_plates = tuple(
        name
        for name, size in raw.plates.items()
        if size == num_rows and compared.plates.get(name) != (size if other else -1)
    )
    sites = {name: _site(name, raw, other, row_plates, num_rows) for name in raw.sites}
    sampled = [name for name, site in sites.items() if not site.deterministic]
    latent = tuple(name for name in sampled if (name not in observed if observed else name in drawn))
    own = tuple(name for name in latent if sites[name].row_axis is not None)
    return Sites(
        all=sites,
        observed=tuple(name for name in sampled if name not in latent),
        latent=latent,
        own=own,
        plated=tuple(n for n in own if any(frame.name in row_plates for frame in raw.sites[n]["plates"])),
        discrete=tuple(n for n in latent if sites[n].discrete),
        params=raw.params,
        row_plates=row_plates,
        has_control_flow=raw.has_control_flow,
        runs_on_fewer=other is not None,
    )


class _Raw(NamedTuple):
    """One abstract run."""

    sites: dict[str, dict[str, Any]]
    plates: dict[str, int]
    params: dict[str, tuple[Any, Any]]
    has_control_flow: bool


def _raw(caller: Caller, inputs: Batch, num_rows: int) -> _Raw:
    runs: list[_Raw] = []

    def run(batch: Batch, words: Any) -> int:
        trace = caller.trace(batch, {}, keys_of(words, words))
        sites = {name: _about(site) for name, site in trace.items() if site["type"] in ("sample", "deterministic")}
        plates = {name: site["args"][0] for name, site in trace.items() if site["type"] == "plate"}
        params = {
            name: (
                jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), site["value"]),
                site["kwargs"].get("constraint", dist.constraints.real),
            )
            for name, site in trace.items()
            if site["type"] == "param"
        }
        scans = any(site["type"] == "control_flow" for site in trace.values())
        sites = {name: about for name, about in sites.items() if about is not None}
        runs.append(_Raw(sites, plates, params, scans))
        return 0

    shapes = {name: jax.ShapeDtypeStruct((num_rows, *col.shape[1:]), col.dtype) for name, col in inputs.items()}
    jax.eval_shape(run, shapes, jax.ShapeDtypeStruct((2,), np.uint32))
    return runs[-1]


def _about(site: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is static of a site; None for a factor, which has no value."""
    about = {"type": site["type"], "shape": jnp.shape(site["value"]), "plates": tuple(site["cond_indep_stack"])}
    if site["type"] == "deterministic":
        dtype = jnp.result_type(site["value"])
        return about | {
            "event_dim": 0,
            "classes": 0,
            "discrete": not jnp.issubdtype(dtype, jnp.inexact),
            "has_moments": True,
            "inverted": False,
            "light_tailed": False,
        }
    fn, base = site["fn"], unwrapped(site["fn"])
    if isinstance(base, dist.Unit):
        return None
    classes = 2 if isinstance(base, TWO_CLASSES) else base.probs.shape[-1] if isinstance(base, MANY_CLASSES) else 0
    return about | {
        "event_dim": fn.event_dim,
        "classes": classes,
        "discrete": bool(fn.support.is_discrete),
        "has_moments": not isinstance(base, MANY_CLASSES) and _has_moments(fn),
        "inverted": type(base) in INVERTED,
        "light_tailed": type(base) in LIGHT_TAILED,
    }


def _has_moments(fn: Any) -> bool:
    try:
        return fn.mean is not None and fn.variance is not None
    except (NotImplementedError, AttributeError):
        return False


def _site(name: str, raw: _Raw, other: _Raw | None, row_plates: tuple[str, ...], num_rows: int) -> Site:
    about = raw.sites[name]
    shape, event_dim = about["shape"], about["event_dim"]
    dims = [f"{name}_dim_{axis}" for axis in range(len(shape))]
    row_axis = None
    for frame in about["plates"]:
        axis = len(shape) - event_dim + frame.dim
        if axis < 0 or shape[axis] != frame.size:
            continue
        if frame.name in row_plates:
            row_axis = axis
        if frame.name not in TAKEN:
            dims[axis] = frame.name
    if row_axis is None:
        before = other.sites[name]["shape"] if other is not None and name in other.sites else ()
        same = len(before) == len(shape)
        follow = [
            a for a, size in enumerate(shape) if size == num_rows and (before[a] != size if same else other is None)
        ]
        row_axis = follow[0] if len(follow) == 1 else None
    if row_axis is not None and dims[row_axis] not in row_plates:
        dims[row_axis] = next((plate for plate in row_plates if plate not in TAKEN), ROWS)
    kept = {key: about[key] for key in ("classes", "discrete", "has_moments", "inverted", "light_tailed")}
    return Site(name, shape, row_axis, tuple(dims), event_dim, about["type"] == "deterministic", split=True, **kept)


def keys_of(whole: Any, rows: Any) -> Keys:
    """The keys with these words."""
    return Keys(*(jax.random.wrap_key_data(words, impl="threefry2x32") for words in (whole, rows)))


def with_split(caller: Caller, inputs: Batch, num_rows: int, values: Mapping[str, Any], sites: Sites) -> Sites:
    """Notes for which sites the conditional moments are drawn themselves: other draws of rows come before them."""
    able = [name for name, site in sites.all.items() if site.has_moments and name not in sites.latent]
    shapes = {
        f"column {n}": jax.ShapeDtypeStruct((num_rows, *c.shape[1:]), c.dtype) for n, c in enumerate(inputs.values())
    }

    def moments(words: Any, **columns: Any) -> dict[str, Any]:
        trace = caller.trace(
            dict(zip(inputs, columns.values(), strict=True)), values, keys_of(np.zeros(2, np.uint32), words)
        )
        return {n: trace[n]["value"] if sites.all[n].deterministic else trace[n]["fn"].mean for n in able}

    found = eval_provenance(moments, words=jax.ShapeDtypeStruct((2,), np.uint32), **shapes)
    drawn = {name for name, made_of in found.items() if "words" in made_of}
    return sites._replace(all={n: site._replace(split=n not in drawn) for n, site in sites.all.items()})


def are_independent(caller: Caller, inputs: Batch, num_rows: int, values: Mapping[str, Any], sites: Sites) -> bool:
    """Whether what the program says of a row is the same in whatever company the row is called.

    The first row is called alone and with others, at one draw; what is drawn of the row has the same value in both.
    """
    if not sites.row_plates or not sites.runs_on_fewer or num_rows < 2:
        return False
    of_rows = [site for name, site in sites.all.items() if site.row_axis is not None]
    if any(site.row_axis >= len(site.shape) - site.event_dim for site in of_rows if site.row_axis is not None):
        return False
    spread = np.linspace(0, num_rows - 1, min(num_rows, MOST_COMPARED)).astype(int)
    alone, together = ({n: c[np.asarray(i)] for n, c in inputs.items()} for i in ([0], [num_rows - 1, 0, *spread]))
    drawn = {site.name: site.row_axis for site in of_rows if not site.deterministic and site.row_axis is not None}

    def both(alone: Batch, together: Batch, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        keys = keys_of(np.zeros(2, np.uint32), np.ones(2, np.uint32))
        company = caller.trace(together, values, keys)
        taken = {n: jax.lax.slice_in_dim(company[n]["value"], 1, 2, axis=axis) for n, axis in drawn.items()}
        single = caller.trace(alone, {**values, **taken}, keys)
        return [_numbers(company, sites, 1), _numbers(single, sites, 0)]

    try:
        many, one = compilation.run(both, alone, together, dict(values))
    except Exception:  # a program that cannot be called on one row may raise anything
        return False
    return all(_same(np.asarray(one[name]), np.asarray(many[name])) for name in one)


def _numbers(trace: Mapping[str, Any], sites: Sites, row: int) -> dict[str, Any]:
    """What a run says of one row, and of what has no rows."""
    found = {}
    for name, site in sites.all.items():
        value = trace[name]["value"] if site.deterministic else unscaled_log_prob(trace[name])
        if not site.deterministic and site.row_axis is None:
            # Whatever it drew, its distribution is what may depend on the rows.
            value = [
                leaf
                for leaf in jax.tree.leaves(trace[name]["fn"])
                if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
            ]
            value = jnp.concatenate([jnp.ravel(leaf) for leaf in value]) if value else jnp.zeros(0)
        elif site.row_axis is not None:
            value = jnp.take(value, row, axis=site.row_axis)
        found[name] = value
    return found


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    one, other = one.astype(np.float64), other.astype(np.float64)
    size = max(1.0, float(np.max(np.abs(one[np.isfinite(one)]), initial=0.0)))
    return np.allclose(one, other, rtol=0.0, atol=SAME_ROW * size, equal_nan=True)
