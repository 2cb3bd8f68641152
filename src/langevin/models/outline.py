"""One run of a NumPyro program, abstractly or for real, at a fixed point: its sites, and what they are."""

from __future__ import annotations

import threading
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from langevin.errors import ModelError
from langevin.models.centring import can_be_noncentred
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch

Call = Callable[[Batch], Any]
# NumPyro's handlers are on one stack for all threads.
HANDLERS = threading.RLock()

LOOKS_AT_DATA = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Outline(NamedTuple):
    """One run of the program, reduced to what is static.

    Attributes:
        shapes: For each latent site its unconstrained shape; for a discrete one, the shape of its value.
        sites: All sites but plates' and parameters', and what they are.
        plates: The sizes of the plates.
        params: The names of the `numpyro.param` sites.
    """

    shapes: dict[str, tuple[int, ...]]
    sites: dict[str, dict[str, Any]]
    plates: dict[str, int]
    params: tuple[str, ...]


def is_observed(site: dict[str, Any]) -> bool:
    """Whether a sample site has a given value; factors count."""
    return bool(site["is_observed"])


def log_prob(site: dict[str, Any]) -> jax.Array:
    """The log-probability of a sample site, one value for each of its independent parts."""
    value = unscaled_log_prob(site)
    return value if site["scale"] is None else site["scale"] * value


def unscaled_log_prob(site: Mapping[str, Any]) -> jax.Array:
    """The same without the scale of NumPyro's `scale` handler."""
    intermediates = site.get("intermediates")
    args = (site["value"], intermediates) if intermediates else (site["value"],)
    return site["fn"].log_prob(*args)


def row_dim(site: dict[str, Any], row_plates: tuple[str, ...]) -> int | None:
    """The axis of the rows in a site's log-probability, counted from the right; None outside the plate."""
    for frame in site.get("cond_indep_stack", ()):
        if frame.name in row_plates:
            return frame.dim
    return None


def outline_of(call: Call, columns: dict[str, Any], num_rows: int) -> Outline:
    """Runs the program abstractly on so many rows.

    Raises:
        ModelError: If there is a site that no engine can handle.
    """
    outlines: list[Outline] = []

    def run(batch: Batch) -> int:
        trace, shapes = trace_of(call, batch)
        kinds = {kind: [name for name in trace if trace[name]["type"] == kind] for kind in ("plate", "param")}
        for name in kinds["plate"]:
            _check_plate(name, *trace[name]["args"])
        # Within the run: what a distribution is may be asked of its arguments, which are tracers.
        sites = {name: _described(site) for name, site in trace.items() if site["type"] not in kinds}
        plates = {name: trace[name]["args"][0] for name in kinds["plate"]}
        outlines.append(Outline(shapes, sites, plates, tuple(kinds["param"])))
        return 0

    batch = {name: jax.ShapeDtypeStruct((num_rows, *col.shape[1:]), col.dtype) for name, col in columns.items()}
    try:
        jax.eval_shape(run, batch)
    except LOOKS_AT_DATA as error:
        raise ModelError(
            "The program asks for a value that is not there while it is being compiled. If it is one of a latent site "
            "(np.exp(z), `if z > 0`), write it with JAX: jnp.exp(z), jnp.where(z > 0, ...). If it is one of the data "
            "(int(x.max())), compute it beforehand and pass it in `constants`. JAX says: "
            f"{str(error).splitlines()[0]}"
        ) from error
    except ValueError as error:
        name = _failed_site(error)
        if isinstance(error, ModelError) or name is None:
            raise
        raise ModelError(
            f"Site {name!r} cannot be made: {error}. Do its values, its parameters and the plates that it is in have "
            f"the same sizes? Take these from the arrays (`x.shape[0]`); the data has {num_rows} rows."
        ) from error
    return outlines[-1]


def _failed_site(error: Exception) -> str | None:
    """The name of the site in whose `numpyro.sample` an error was raised; None if it was somewhere else."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is numpyro.sample.__code__:
            return frame.f_locals.get("name")
    return None


def _described(site: dict[str, Any]) -> dict[str, Any]:
    """What is static of a site."""
    sampled = site["type"] == "sample"
    return {
        "type": site["type"],
        "is_observed": site.get("is_observed", False),
        "cond_indep_stack": tuple(site.get("cond_indep_stack", ())),
        "shape": jnp.shape(site["value"]) if site["type"] != "control_flow" else (),
        "event_dim": site["fn"].event_dim if sampled else 0,
        "batch_shape": site["fn"].batch_shape if sampled else (),
        "with_scale": sampled and can_be_noncentred(site["fn"]),
        "discrete": sampled and site["fn"].support.is_discrete,
        "is_factor": sampled and isinstance(unwrapped(site["fn"]), dist.Unit),
        "choices": _choices(site["fn"]) if sampled and not is_observed(site) else None,
    }


def _check_plate(name: str, size: int, subsample_size: int | None) -> None:
    if subsample_size not in (None, size):
        raise ModelError(
            f"Plate {name!r} has a `subsample_size`. Leave it out: langevin calls the program with a minibatch of "
            "the rows, and scales."
        )


def _choices(fn: Any) -> int | None:
    """How many values a discrete distribution has, if that is finite and known beforehand."""
    fn = unwrapped(fn)
    if not fn.support.is_discrete or not fn.has_enumerate_support:
        return None
    try:
        return len(fn.enumerate_support(expand=False))
    except (NotImplementedError, *LOOKS_AT_DATA):
        return None


def trace_of(
    call: Call, batch: Batch, row_plates: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """One run at a fixed point: the sites, and for each latent one its unconstrained shape.

    Args:
        call: The program.
        batch: Rows.
        row_plates: Plates over the rows, if they are known: all rows then have the same latent values.
    """
    names: list[str] = []
    program = handlers.substitute(call, substitute_fn=lambda site: _somewhere(site, names, row_plates))
    try:
        with HANDLERS:
            trace = handlers.trace(handlers.seed(program, jax.random.key(0))).get_trace(batch)
    except AssertionError as error:
        if "unique names" not in str(error):
            raise
        name = str(error).split("`")[1]
        raise ModelError(f"The program has two sites named {name!r}. Rename one of them.") from error
    shapes = {}
    for name in names:
        site = trace[name]
        if site["type"] != "sample":
            raise ModelError(f"{name!r} is the name of a site and of a {site['type']}. Rename one of them.")
        # The shape of the value, and not of the distribution: inside `scan` only the value has the axis of time.
        shape = jnp.shape(site["value"])
        support = site["fn"].support
        shapes[name] = shape if support.is_discrete else tuple(biject_to(support).inverse_shape(shape))
    return trace, shapes


def _somewhere(site: dict[str, Any], names: list[str], row_plates: tuple[str, ...]) -> Any:
    """Gives a latent site a value, and notes its name.

    The value is the same in every run, and at no special point: at 0, `w * x.mean()` would seem not to depend on x.
    In the plates over the rows, all rows have the same.
    """
    if site["type"] != "sample" or is_observed(site):
        return None
    name, support = site["name"], site["fn"].support
    key = jax.random.fold_in(jax.random.key(0), zlib.crc32(name.encode()))
    if name not in names:
        names.append(name)
    if support.is_discrete:
        value = site["fn"].sample(key)
    else:
        try:
            transform = biject_to(support)
        except NotImplementedError as error:
            raise ModelError(
                f"Site {name!r} has the support {support}, which no bijection maps to the real numbers. Reparametrise "
                "it (`numpyro.infer.reparam`), or give it another prior."
            ) from error
        value = transform(jax.random.uniform(key, transform.inverse_shape(site["fn"].shape()), minval=-1.0))
    for frame in site["cond_indep_stack"]:
        axis = jnp.ndim(value) - site["fn"].event_dim + frame.dim
        if frame.name in row_plates and support.is_discrete and not site["fn"].event_dim:
            # Which values a row's own can have may follow from the row (a binomial's number of trials): 1 for all.
            value = jnp.ones_like(value)
        if frame.name in row_plates and axis >= 0 and value.shape[axis] == frame.size:
            value = jnp.broadcast_to(jnp.take(value, jnp.array([0]), axis=axis), value.shape)
    return value
