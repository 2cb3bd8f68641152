"""One run of a NumPyro program, abstractly or for real, at a fixed point: its sites, and what they are."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from langevin.errors import ModelError, NeedsGuideError
from langevin.models.centring import can_be_noncentred
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
    """One run of the program, reduced to what is static."""

    shapes: dict[str, tuple[int, ...]]
    sites: dict[str, dict[str, Any]]
    plates: dict[str, int]


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


def outline_of(call: Call, columns: dict[str, Any], num_rows: int, guided: bool = False) -> Outline:
    """Runs the program abstractly on so many rows.

    Raises:
        ModelError: If there is a site that no engine can handle.
    """
    found: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def run(batch: Batch) -> int:
        trace, latent = trace_of(call, batch, num_rows, guided)
        found.update(trace)
        shapes.update(latent)
        return 0

    batch = {name: jax.ShapeDtypeStruct((num_rows, *col.shape[1:]), col.dtype) for name, col in columns.items()}
    try:
        jax.eval_shape(run, batch)
    except LOOKS_AT_DATA as error:
        raise ModelError(
            "The program looks at the values of its data while it is being compiled (for instance int(x.max())). "
            f"Compute such numbers beforehand and pass them in `constants`. JAX says: {str(error).splitlines()[0]}"
        ) from error
    sites = {}
    for name, site in found.items():
        if site["type"] == "param" and guided:
            continue
        if site["type"] == "param":
            raise NeedsGuideError(
                f"Site {name!r} is a `numpyro.param`, which has no prior. Make it a `numpyro.sample` site, or fit the "
                "program by `lv.VI`, which finds its value."
            )
        sites[name] = {
            "type": site["type"],
            "is_observed": site.get("is_observed", False),
            "cond_indep_stack": tuple(site.get("cond_indep_stack", ())),
            "shape": jnp.shape(site["value"]) if site["type"] != "control_flow" else (),
            "event_dim": site["fn"].event_dim if site["type"] == "sample" else 0,
            "batch_shape": site["fn"].batch_shape if site["type"] == "sample" else (),
            "with_scale": site["type"] == "sample" and can_be_noncentred(site["fn"]),
            "discrete": site["type"] == "sample" and site["fn"].support.is_discrete,
            "choices": _choices(site["fn"]) if site["type"] == "sample" else None,
        }
    plates = {name: site["args"][0] for name, site in found.items() if site["type"] == "plate"}
    for name, site in found.items():
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise ModelError(
                f"Plate {name!r} has a `subsample_size`. Leave it out: langevin calls the program with a minibatch of "
                "the rows, and scales."
            )
    return Outline(shapes, sites, plates)


def _choices(fn: Any) -> int | None:
    """How many values a discrete distribution has, if that is finite and known beforehand."""
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    if not fn.support.is_discrete or not fn.has_enumerate_support:
        return None
    try:
        return len(fn.enumerate_support(expand=False))
    except (NotImplementedError, *LOOKS_AT_DATA):
        return None


def trace_of(
    call: Call, batch: Batch, num_rows: int = 0, guided: bool = False
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """One run at a fixed point: the sites, and for each latent one its unconstrained shape."""
    names: list[str] = []
    program = handlers.substitute(call, substitute_fn=lambda site: _somewhere(site, names, num_rows, guided))
    with HANDLERS:
        trace = handlers.trace(handlers.seed(program, jax.random.key(0))).get_trace(batch)
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


def _somewhere(site: dict[str, Any], names: list[str], num_rows: int, guided: bool) -> Any:
    """Gives a latent site a value, and notes its name.

    The value is the same in every run, and at no special point: at 0, `w * x.mean()` would seem not to depend on x.
    Where each row has its own, all rows have the same.
    """
    if site["type"] != "sample" or is_observed(site):
        return None
    name, support = site["name"], site["fn"].support
    key = jax.random.fold_in(jax.random.key(0), zlib.crc32(name.encode()))
    if support.is_discrete and not guided:
        raise NeedsGuideError(
            f"Site {name!r} is a discrete latent variable, which has no gradient. Sum it out of the program (a "
            "mixture: `dist.MixtureSameFamily`), observe it, or fit it by `lv.VI` with a guide."
        )
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
    for frame in site["cond_indep_stack"] if guided else ():
        axis = jnp.ndim(value) - site["fn"].event_dim + frame.dim
        if frame.size == num_rows and axis >= 0 and value.shape[axis] == num_rows:
            value = jnp.broadcast_to(jnp.take(value, jnp.array([0]), axis=axis), value.shape)
    return value
