"""One run of a NumPyro program, abstractly or for real, at a fixed point: its sites, and what they are."""

from __future__ import annotations

import threading
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from langevin import culprit
from langevin.errors import LangevinWarning, ModelError
from langevin.models.centring import can_be_noncentred
from langevin.models.stack import stack
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch

Call = Callable[[Batch], Any]
# Before any program runs: from here on each thread has handlers of its own.
stack()
# But a program may keep things of its own that two threads cannot use at a time.
HANDLERS = threading.RLock()


ARRAYS = (np.ndarray, np.generic, jax.Array, bool, int, float)


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
    except ModelError as error:
        asked = error.__cause__
        if not isinstance(asked, culprit.ASKS_FOR_VALUES):
            raise
        raise culprit.told(asked, "The program", _whose(call, columns)) from asked
    return outlines[-1]


def _whose(call: Call, columns: dict[str, Any]) -> str:
    """Whose value a program asks for that cannot be compiled: it is the data's if it runs where the data has values."""

    def run(nothing: jax.Array) -> jax.Array:
        trace_of(call, dict(columns), elsewhere=nothing)
        return nothing

    try:
        jax.vmap(run)(jnp.zeros(1))
    except Exception as error:
        return "a latent site" if isinstance(error.__cause__, culprit.ASKS_FOR_VALUES) else ""
    return "the data"


class _Within(Messenger):
    """Checks that every site has a name, and is not inside a function that JAX traces inside the program."""

    def __enter__(self) -> None:
        self._state = get_opaque_trace_state()
        super().__enter__()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] in ("sample", "deterministic", "param") and not (isinstance(msg["name"], str) and msg["name"]):
            raise ModelError(
                f"The name of a site must be a text that is not empty; got {msg['name']!r}. Write "
                'numpyro.sample("m", dist.Normal()).'
            )
        if msg["type"] in ("sample", "deterministic", "param") and get_opaque_trace_state() != self._state:
            raise ModelError(
                f"Site {msg['name']!r} is inside a function that jax.jit, jax.vmap or jax.lax.scan runs, from which "
                "its value cannot get out. Take jax.jit away (langevin compiles the program), write jax.vmap as a "
                "`numpyro.plate`, and jax.lax.scan as `numpyro.contrib.control_flow.scan`."
            )


def check_same_sites(trace: dict[str, Any], position: Mapping[str, Any]) -> None:
    """Checks that the continuous latent sites of a run are those of the position; discrete ones may be summed out.

    A site that it lacks would be drawn once, when the program is compiled, and be a number from then on.
    """
    latent = {
        name
        for name, site in trace.items()
        if site["type"] == "sample" and not is_observed(site) and not site["fn"].support.is_discrete
    }
    changed = (latent - set(position)) | (set(position) - set(trace))
    if changed:
        raise ModelError(
            f"The program has not the same latent sites each time it is run: {min(changed)!r} comes and goes. Let "
            "names not depend on a counter or on random numbers."
        )


def check_one_size(outline: Outline, row_plates: list[str], num_rows: int) -> None:
    """Checks that a plate over the rows is always that: what is inside it belongs to a row."""
    for name, site in outline.sites.items():
        for frame in site["cond_indep_stack"]:
            if frame.name in row_plates and frame.size != num_rows:
                raise ModelError(
                    f"Two plates are named {frame.name!r}: one over the {num_rows} rows, and one of size "
                    f"{frame.size}, at site {name!r}. Give each its own name."
                )


def warn_of_nothing_observed(outline: Outline, columns: list[str]) -> None:
    """Warns of data that no observed site can use."""
    if columns and not any(site["is_observed"] for site in outline.sites.values()):
        warnings.warn(
            f"Nothing is observed: no site of the program has `obs=`, so that `data` ({', '.join(columns)}) tells "
            "nothing, and the draws are of the prior. Give the site of the observations `obs=y`.",
            LangevinWarning,
            stacklevel=8,
        )


def check_listed(names: tuple[str, ...]) -> None:
    """Checks that no two sites have one name in a result, where "/" becomes "."."""
    for name in names:
        listed = name.replace("/", ".")
        if listed != name and listed in names:
            raise ModelError(f"Sites {name!r} and {listed!r} would have one name in a result. Rename one of them.")


def _described(site: dict[str, Any]) -> dict[str, Any]:
    """What is static of a site."""
    sampled = site["type"] == "sample"
    if sampled and is_observed(site) and not isinstance(site["value"], ARRAYS):
        raise ModelError(
            f"Observed site {site['name']!r} has a value of the type {type(site['value']).__name__}. Make it an array, "
            "jnp.asarray(y), or pass it in `data`."
        )
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
    except (NotImplementedError, *culprit.ASKS_FOR_VALUES):
        return None


def trace_of(
    call: Call, batch: Batch, row_plates: tuple[str, ...] = (), elsewhere: Any = 0.0
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """One run at a fixed point: the sites, and for each latent one its unconstrained shape.

    Args:
        call: The program.
        batch: Rows.
        row_plates: Plates over the rows, if they are known: all rows then have the same latent values.
        elsewhere: Is added to the latent values that are continuous.
    """
    names: list[str] = []

    def substitute(site: dict[str, Any]) -> Any:
        value = _somewhere(site, names, row_plates)
        return value if value is None or site["fn"].support.is_discrete else value + elsewhere

    program = handlers.substitute(_Within(call), substitute_fn=substitute)
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
