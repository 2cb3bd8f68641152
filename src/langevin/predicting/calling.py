"""A program called on rows at given values of its sites: what has no value is drawn."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist
from numpyro import handlers

from langevin.errors import ModelError
from langevin.models.density import Density
from langevin.models.outline import HANDLERS, is_observed
from langevin.posterior import Batch, Key
from langevin.run.keep import leaf_name

Trace = dict[str, dict[str, Any]]
Unseen = Literal["error", "draw"]
ROWS = "row"


class Keys(NamedTuple):
    """The randomness of one draw.

    Attributes:
        whole: For what all rows share: it is the same in every batch of rows.
        rows: For what each row has its own of: another one in every batch.
    """

    whole: Key
    rows: Key


@dataclasses.dataclass(frozen=True, eq=False)
class Caller:
    """A program with the arguments that are passed to it whole.

    Attributes:
        function: The program.
        constants: These arguments.
        by_rows: The sites that each row has its own of.
        unseen: What becomes of groups that the fit has not seen: an error, or a draw from the site's distribution.
    """

    function: Callable[..., Any]
    constants: Mapping[str, Any]
    by_rows: frozenset[str] = frozenset()
    unseen: Unseen = "error"

    def trace(self, rows: Batch, values: Mapping[str, Any], keys: Keys) -> Trace:
        """The sites of a run on these rows.

        A latent site has its given value. Of a site without one, each row draws its own; what all rows share is drawn
        by its name, so that it is the same in every batch of rows.
        """

        def place(site: dict[str, Any]) -> Any:
            name = site["name"]
            if site["type"] == "param":
                return values.get(name)
            if site["type"] != "sample" or is_observed(site):
                return None
            inside_scan = "_scan_current_index" in site["infer"]
            if name in values:
                value = jnp.asarray(values[name])
                return value if inside_scan else self._fitted(site, value, keys)
            if name in self.by_rows or inside_scan:
                return None
            return site["fn"](rng_key=_named(keys.whole, name), sample_shape=site["kwargs"]["sample_shape"])

        program = handlers.substitute(self.function, substitute_fn=place)
        with HANDLERS:
            return handlers.trace(handlers.seed(program, keys.rows)).get_trace(**rows, **self.constants)

    def _fitted(self, site: dict[str, Any], value: Any, keys: Keys) -> Any:
        """The fitted value of a site; where the program asks for more groups than were fitted, with draws of these."""
        name, fn = site["name"], site["fn"]
        have, wanted = jnp.shape(value), tuple(site["kwargs"]["sample_shape"]) + fn.shape()
        if have == wanted:
            return value
        plates = {len(wanted) - fn.event_dim + frame.dim: frame.name for frame in site["cond_indep_stack"]}
        differ = [axis for axis in range(len(wanted)) if len(have) != len(wanted) or have[axis] != wanted[axis]]
        axis = differ[0]
        if len(have) != len(wanted) or len(differ) > 1 or have[axis] > wanted[axis] or axis not in plates:
            raise ModelError(
                f"Site {name!r} has the shape {have} in the fit, and the program now asks for {wanted}. Call it with "
                "the `constants` that it was fitted with; only a plate may have grown, by groups that are new."
            )
        if self.unseen != "draw":
            raise ModelError(
                f"Site {name!r} has {have[axis]} entries along the plate {plates[axis]!r} in the fit, and the program "
                f"now asks for {wanted[axis]}. With unseen='draw' the new ones are drawn from the site's own "
                "distribution."
            )
        drawn = fn(rng_key=_named(keys.whole, name), sample_shape=site["kwargs"]["sample_shape"])
        new = jax.lax.slice_in_dim(drawn, have[axis], wanted[axis], axis=axis)
        return jnp.concatenate([jnp.asarray(value, drawn.dtype), new], axis=axis)


def program_of(density: Density) -> Callable[..., None]:
    """A density with a predictive function, as a program: the leaves of its position are sites.

    Raises:
        ModelError: If it has none.
    """
    predictive = density.predictive
    if predictive is None:
        raise ModelError(
            "An lv.Density says how probable rows are, and not how to predict them. Give it a `predictive` function: "
            'lv.Density(..., predictive=lambda position, rows: {"y": dist.Normal(...)}), a distribution for each row.'
        )
    like = density.shapes()
    leaves = [(site_of(leaf_name(path)), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(like)[0]]

    def program(**rows: Any) -> None:
        values = [
            numpyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), leaf.shape)) for name, leaf in leaves
        ]
        position = jax.tree.unflatten(jax.tree.structure(like), values)
        num_rows = len(next(iter(rows.values())))
        predicted = predictive(position, rows)
        if not isinstance(predicted, Mapping):
            raise ModelError(f"`Density`: `predictive` must return a dict of distributions; it returned {predicted!r}.")
        with numpyro.plate(ROWS, num_rows):
            for name, distribution in predicted.items():
                numpyro.sample(name, distribution, obs=rows.get(name))

    return program


def site_of(leaf: str) -> str:
    """The name of a leaf of a position as a site: another one than any that is predicted."""
    return f"position {leaf}"


def _named(key: Key, name: str) -> Key:
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
