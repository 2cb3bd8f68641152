"""Where in a user's function an error of a library was raised, and what to write there instead."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpyro

from langevin.errors import LangevinError, ModelError

LIBRARIES = frozenset({"jax", "jaxlib", "numpyro", "numpy", "scipy", "langevin", "optax", "equinox"})

# Errors of JAX about a value that a compiled function does not have, and what to write. The first that fits counts.
REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "`if`, `while`, `and`, `or`, `not`, min() and max() need it: write jnp.where(z > 0, a, b), or jax.lax.cond.",
    ),
    (jax.errors.TracerArrayConversionError, "NumPy needs it: write it with JAX, jnp.exp(z) in place of np.exp(z)."),
    (
        jax.errors.TracerIntegerConversionError,
        "`range` and the index of a list need it: take sizes from shapes (`x.shape[0]`), compute with whole arrays in "
        "place of a loop, and index an array, jnp.asarray(values)[z].",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "How many elements x[x > 0] has follows from it: write jnp.where(x > 0, x, 0.0), or mask the site "
        "(`numpyro.handlers.mask`).",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "float(), int(), z.item() and the functions of `math` need it: leave the conversion out, and write jnp.exp(z) "
        "in place of math.exp(z), jnp.where(z > 0, a, b) in place of `if z > 0`.",
    ),
)
ASKS_FOR_VALUES = tuple(kind for kind, _ in REMEDIES)
# Beginnings of what JAX says otherwise, and what to write.
HINTS = (
    ("Only integer scalar arrays can be converted", "`range(z)` needs a number that is known beforehand."),
    ("DynamicJaxprTracer has no attribute", "Functions of arrays are in jax.numpy: jnp.exp(z) in place of z.exp()."),
    ("unsupported format string", "It has no value while it is being compiled: print it by jax.debug.print."),
    ("could not convert string", "It has no value while it is being compiled: print it by jax.debug.print."),
)
MOST_TEXT = 120


def guarded(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """A user's function, in which errors of libraries become sentences with the user's line.

    JAX cuts its own frames out of the traceback of what it traces, so that this must be inside what is traced.

    Args:
        function: The function.
        what: What it is: "The program".
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            sentence = told(error, what)
            if sentence is error:
                raise
            raise sentence from error

    return call


def told(error: Exception, what: str, whose: str = "") -> Exception:
    """The sentence for an error that a user's function raised; the error itself, if it is the user's own, or ours.

    Args:
        error: The error, with its traceback.
        what: What the function is: "The program".
        whose: Whose value it asks for, if it does: "a latent site", "the data"; empty if that is not known.
    """
    if isinstance(error, LangevinError):
        return error
    if isinstance(error, ASKS_FOR_VALUES):
        return _asks_for_value(error, what, whose)
    # NumPy raises an error of its own where it puts a value into an array.
    if isinstance(error.__cause__, ASKS_FOR_VALUES):
        return ModelError(
            f"{what} puts a value that is not there while it is being compiled into an array of NumPy's"
            f"{place_of(error)}. Write it with JAX: jnp.stack([...]), or x = x.at[i].set(z) in place of x[i] = z."
        )
    if isinstance(error, AssertionError) and "unique names" in str(error):
        return ModelError(
            f"{what} has two sites named {str(error).split('`')[1]!r}{place_of(error)}. Rename one of them; in a loop, "
            "give each its own name (f'w{i}'), or make one site of all (`numpyro.plate`)."
        )
    return error if _is_own(error) else _failed(error, what)


def place_of(error: BaseException) -> str:
    """The last line of the user's own that an error came through: ", at FILE, line 3: `text`"; empty if none."""
    place = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        name = _package(frame)
        if name in LIBRARIES or name in sys.stdlib_module_names:
            continue
        file = frame.f_code.co_filename
        text = linecache.getline(file, number, frame.f_globals).strip()
        text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
        place = f", at {file}, line {number}" + (f": `{text}`" if text else "")
    return place


def _asks_for_value(error: Exception, what: str, whose: str) -> ModelError:
    remedy = next(remedy for kind, remedy in REMEDIES if isinstance(error, kind))
    if whose == "the data":
        remedy = "Compute it beforehand and pass it in `constants`."
    of = f" of {whose}" if whose else ""
    return ModelError(
        f"{what} asks for a value{of} that is not there while it is being compiled{place_of(error)}. {remedy}"
    )


def _failed(error: Exception, what: str) -> ModelError:
    """What to say of a function in which a library raised an error."""
    site = _failed_site(error)
    hint = next((f" {hint}" for start, hint in HINTS if str(error).startswith(start)), "")
    if isinstance(error, jax.errors.UnexpectedTracerError):
        sentence = (
            f"{what} uses a value outside the function in which it was computed{place_of(error)}. Return it from that "
            "function (one that jax.jit, jax.vmap or jax.lax.scan runs), and keep no values in globals or attributes."
        )
    elif site is None:
        sentence = f"{what} failed{place_of(error)}. {type(error).__name__}: {_said(error)}.{hint}"
    else:
        if isinstance(error, ValueError):
            hint = (
                " Do its values, its parameters and the plates that it is in have the same sizes? Take these from the "
                "arrays (`x.shape[0]`)."
            )
        sentence = f"Site {site!r} cannot be made{place_of(error)}: {_said(error)}.{hint}"
    return ModelError(sentence)


def _is_own(error: BaseException) -> bool:
    """Whether an error was raised by the user's own code, and not inside a library, or about a value of JAX's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (not frames or _package(frames[-1]) not in LIBRARIES) and "Tracer" not in str(error)


def _failed_site(error: Exception) -> str | None:
    """The name of the site in whose `numpyro.sample` an error was raised; None if it was somewhere else."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is numpyro.sample.__code__:
            return frame.f_locals.get("name")
    return None


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def _said(error: Exception) -> str:
    """What a library says: JAX adds pages of advice after an empty line."""
    said = " ".join(str(error).split("\n\n")[0].split("\n-----")[0].split())
    return said[:400].removesuffix(".")
