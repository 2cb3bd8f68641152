"""What a user brings as a network, as one function of named weights and rows.

An Equinox module is called row by row (`jax.vmap`); a pair `(params, apply)` is called on all rows at once, as Flax and
Haiku do. The weights are the arrays of floating-point numbers in it, by their place: `"layers.0.weight"`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import ModelError

Weights = dict[str, Any]


class Net(NamedTuple):
    """A network as a function of its weights.

    Attributes:
        apply: `(weights, rows) -> outputs`, with the rows in front of both.
        start: `generator -> weights`: a random initialisation.
        first: Those of the network as it was given, or of a first initialisation; with those that are frozen.
        fan_ins: For each weight, how many inputs its unit has; 0 for a vector, which is a bias or a gain.
        frozen: The names of those that stay as they are.
        is_module: Whether it is an Equinox module, whose layers can be told.
        brought: `weights -> module`, or a pair: what a user would bring with these weights.
    """

    apply: Callable[[Weights, Any], Any]
    start: Callable[[np.random.Generator], Weights]
    first: Weights
    fan_ins: dict[str, int]
    frozen: tuple[str, ...]
    is_module: bool
    brought: Callable[[Weights], Any]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights that are inferred."""
        return {name: np.shape(value) for name, value in self.first.items() if name not in self.frozen}


def net_of(net: Any, frozen: Sequence[str] = (), init: str = "redrawn") -> Net:
    """A network from what a user brings.

    Args:
        net: An Equinox module, `key -> module`, `(params, apply)` or `(key -> params, apply)`.
        frozen: Names of weights that stay as they are, or patterns of them.
        init: Whether chains start at weights that are "redrawn", or at those "given".

    Raises:
        ModelError: If it is none of these, or cannot be a likelihood by rows; says why.
    """
    if isinstance(net, tuple) and len(net) == 2 and callable(net[1]):
        params, apply = net
        make = params if callable(params) else None
        first = make(jax.random.key(0)) if make is not None else params
        return _made(first, make, None, apply, frozen, init)
    import equinox as eqx

    make = None
    if callable(net) and not isinstance(net, eqx.Module):
        make = net
        try:
            net = make(jax.random.key(0))
        except Exception as error:
            raise ModelError(
                f"`Network`: {make!r} is taken for a function of a key that makes a network, and raised "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}. Give an Equinox module, "
                "such a function, or a pair (params, apply)."
            ) from error
    if not (isinstance(net, eqx.Module) and callable(net)):
        raise ModelError(
            "`Network`: a network is an Equinox module, a function of a key that makes one, or a pair (params, apply); "
            f"got {type(net).__name__}."
        )
    _check_module(net)
    params, static = eqx.partition(net, eqx.is_inexact_array)
    weights_of = None if make is None else lambda key: eqx.partition(make(key), eqx.is_inexact_array)[0]
    return _made(params, weights_of, lambda params: eqx.combine(params, static), None, frozen, init)


def _made(
    params: Any,
    make: Callable[[Any], Any] | None,
    combined: Callable[[Any], Any] | None,
    apply: Callable[..., Any] | None,
    patterns: Sequence[str],
    init: str,
) -> Net:
    structure = jax.tree.structure(params)
    names = [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    if not names:
        raise ModelError("`Network`: the network has no weights: no array of floating-point numbers.")
    if len(set(names)) < len(names):
        raise ModelError(f"`Network`: two weights would have one name in {sorted(names)}.")
    dtype = jnp.result_type(float)
    arrays = lambda tree: dict(zip(names, (np.asarray(leaf, dtype) for leaf in jax.tree.leaves(tree)), strict=True))  # noqa: E731
    first = arrays(params)
    frozen = matched(patterns, names, "frozen")
    if len(frozen) == len(names):
        raise ModelError("`Network`: all weights are frozen, so there is nothing to infer.")
    held = {name: first[name] for name in frozen}

    def tree_of(weights: Weights) -> Any:
        return jax.tree.unflatten(structure, [weights[name] for name in names])

    def called(weights: Weights, rows: Any) -> Any:
        whole = tree_of({**held, **weights})
        if combined is None:
            return apply(whole, rows)
        module = combined(whole)
        return jax.vmap(lambda row: module(row))(rows)

    def start(generator: np.random.Generator) -> Weights:
        if init == "given":
            drawn = first
        elif make is not None:
            drawn = arrays(make(jax.random.key(int(generator.integers(2**32)))))
        else:
            drawn = {name: _redrawn(value, generator) for name, value in first.items()}
        return {name: value for name, value in drawn.items() if name not in frozen}

    # Equinox has the outputs in front, others have them last.
    fan_in = lambda shape: math.prod(shape[1:]) if combined is not None else math.prod(shape[:-1])  # noqa: E731
    fan_ins = {name: fan_in(value.shape) if value.ndim > 1 else 0 for name, value in first.items()}

    def brought(weights: Weights) -> Any:
        whole = tree_of({**first, **weights})
        return (whole, apply) if combined is None else combined(whole)

    return Net(called, start, first, fan_ins, frozen, combined is not None, brought)


def matched(patterns: Sequence[str], names: Sequence[str], setting: str) -> tuple[str, ...]:
    """The names that match one of the patterns, in their order.

    Raises:
        ModelError: If a pattern matches none.
    """
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ModelError(f"`Network`: `{setting}` has {pattern!r}, and no weight is called so: {', '.join(names)}.")
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _redrawn(value: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The same numbers in another order: a draw of the distribution that they were drawn from."""
    return generator.permutation(value.ravel()).reshape(value.shape)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".") or "weights"


def _check_module(module: Any) -> None:
    import equinox as eqx

    parts = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, eqx.nn.Dropout | eqx.nn.StateIndex))
    if any(isinstance(part, eqx.nn.StateIndex) for part in parts):
        raise ModelError(
            "`Network`: the network has state (as BatchNorm has), so that what it says of a row depends on the rows "
            "beside it, and there is no likelihood by rows. Take eqx.nn.LayerNorm, GroupNorm or RMSNorm instead."
        )
    for part in parts:
        if isinstance(part, eqx.nn.Dropout) and part.p != 0 and not part.inference:
            raise ModelError(
                "`Network`: the network has dropout, which is random, where a posterior needs a function. It stands in "
                "for a prior, and here there is one: take it out, or turn it off with eqx.nn.inference_mode(net)."
            )
