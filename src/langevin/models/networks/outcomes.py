"""What a network observes: whether the outcome that the rows bring is one that its likelihood could have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro import distributions as dist

from langevin.data.table import Table
from langevin.errors import DataError, ModelError
from langevin.models.wrappers import unwrapped

CATEGORIES = (dist.CategoricalProbs, dist.CategoricalLogits)


class Meant(NamedTuple):
    """What the output of a network means.

    Attributes:
        kind: The name of the distribution.
        shape: Of all outcomes, rows in front.
        support: The values that an outcome may have; None if they follow from the weights.
        classes: How many classes there are; 0 if the outcome is a number.
    """

    kind: str
    shape: tuple[int, ...]
    support: Any
    classes: int


def meant_by(distribution: Callable[..., dist.Distribution], *arguments: Any) -> Meant:
    """What a network's output means, found without computing it.

    Args:
        distribution: Of the outcomes.
        arguments: Its arguments, or their shapes.
    """
    found: list[Meant] = []

    def look(*arguments: Any) -> int:
        fn = distribution(*arguments)
        base = unwrapped(fn)
        support = base.support
        # Bounds that are traced have no values here.
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(support)):
            support = None
        classes = base.probs.shape[-1] if isinstance(base, CATEGORIES) else 0
        found.append(Meant(type(base).__name__, fn.shape(), support, classes))
        return 0

    jax.eval_shape(look, *arguments)
    return found[0]


def check_outcome(name: str, table: Table, meant: Meant) -> None:
    """Raises an error if the outcome has another shape than what is observed, or values that cannot be.

    Args:
        name: The column of the outcome; rows without it are fine.
        table: The rows.
        meant: What the network's output means on them.
    """
    if name not in table.columns:
        return
    values = np.asarray(table.columns[name])
    if values.shape not in (meant.shape, (*meant.shape, 1)):
        raise ModelError(
            f"`Network`: the network's output is {meant.kind} of shape {meant.shape[1:]} for each row, and "
            f"`data[{name!r}]` has rows of shape {values.shape[1:]}. Give the network an output for each number that "
            "is observed (for each class one; with noise='output' two)."
        )
    if meant.support is None:
        return
    fine = np.asarray(meant.support(values)) | (np.isnan(values) if values.dtype.kind == "f" else False)
    if fine.all():
        return
    row = int(np.argwhere(~fine)[0][0])
    value = values[tuple(np.argwhere(~fine)[0])]
    if meant.classes:
        raise DataError(
            f"`data[{name!r}]` has the class {value} in row {row}, and the network has {meant.classes} outputs, for "
            f"the classes 0 to {meant.classes - 1}. Count classes from 0, and give the network an output for each."
        )
    raise DataError(
        f"`data[{name!r}]` is {value} in row {row}, which {meant.kind} cannot have: its values are "
        f"{_described(meant.support)}."
    )


def fitted(values: Any, fn: dist.Distribution) -> Any:
    """The outcome as the distribution has it: a column of one is one number a row, and classes are whole numbers."""
    if values is None:
        return None
    values = jnp.asarray(values)
    if values.shape == (*fn.shape(), 1):
        values = values[..., 0]
    if values.shape != fn.shape():
        raise ModelError(
            f"`Network`: the outcome has the shape {values.shape}, and what the network observes {fn.shape()}."
        )
    if isinstance(unwrapped(fn), CATEGORIES) and not jnp.issubdtype(values.dtype, jnp.integer):
        values = values.astype(jnp.int32)
    return values


def _described(support: Any) -> str:
    if support is dist.constraints.boolean:
        return "0 and 1"
    if support is dist.constraints.nonnegative_integer:
        return "the whole numbers from 0"
    return str(support)
