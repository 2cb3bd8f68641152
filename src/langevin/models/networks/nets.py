"""What a user brings as a network, as one function of named weights and rows.

An Equinox module is called row by row (`jax.vmap`); a pair `(params, apply)` is called on all rows at once, as Flax and
Haiku do. The weights are the arrays of floating-point numbers in it, by their place: `"layers.0.weight"`.

The inputs of a unit are counted by the shape of its weights: an Equinox module has the outputs in front, `(out, in,
...)`, and others have them last, `(..., in, out)`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
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
        fan_ins: For each weight, how many inputs its unit has; 0 for a bias or a gain.
        gains: The names of those that stretch a unit (as in LayerNorm), and are around 1.
        frozen: The names of those that stay as they are.
        is_module: Whether it is an Equinox module, whose layers can be told.
        brought: `weights -> module`, or a pair: what a user would bring with these weights.
    """

    apply: Callable[[Weights, Any], Any]
    start: Callable[[np.random.Generator], Weights]
    first: Weights
    fan_ins: dict[str, int]
    gains: frozenset[str]
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
        _check_params(first)
        return _made(first, make, None, apply, frozen, init)
    import equinox as eqx

    make = None
    if callable(net) and not isinstance(net, eqx.Module):
        _check_foreign(net)
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
    return _made(net, make, _normed(net), None, frozen, init)


def _made(
    whole: Any,
    make: Callable[[Any], Any] | None,
    gains: frozenset[str] | None,
    apply: Callable[..., Any] | None,
    patterns: Sequence[str],
    init: str,
) -> Net:
    """The network.

    Args:
        whole: A module, or the parameters of a pair.
        make: Makes another one from a key.
        gains: The names of weights that are known to be gains; None for a pair, of which nothing is known.
        apply: Of a pair.
        patterns: Of frozen weights.
        init: How chains start.
    """
    # A module may have numbers that are settings, as the share of a dropout.
    kinds = (np.ndarray, jax.Array) if apply is None else (float, np.ndarray, np.generic, jax.Array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(whole)
    weighing = [isinstance(leaf, kinds) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for _, leaf in leaves]
    places = {_name(path): number for number, (path, _) in enumerate(leaves) if weighing[number]}
    names, others = list(places), [leaf for _, leaf in leaves]
    if not names:
        raise ModelError("`Network`: the network has no weights: no array of floating-point numbers.")
    if len(names) < sum(weighing):
        raise ModelError(f"`Network`: two weights would have one name in {sorted(names)}.")
    dtype = jnp.result_type(float)

    def arrays(tree: Any) -> Weights:
        parts = jax.tree.leaves(tree)
        return {name: np.asarray(parts[number], dtype) for name, number in places.items()}

    first = arrays(whole)
    frozen = matched(patterns, names, "frozen")
    if len(frozen) == len(names):
        raise ModelError("`Network`: all weights are frozen, so there is nothing to infer.")
    held = {name: first[name] for name in frozen}
    fan_ins = {name: _fan_in(name, value, outputs_first=apply is None) for name, value in first.items()}
    ones = {name for name, value in first.items() if value.size and (value == 1).all()}
    named = {name for name in first if apply is not None and name.split(".")[-1] == "scale" and fan_ins[name] == 0}

    def tree_of(weights: Weights) -> Any:
        parts = list(others)
        for name, number in places.items():
            parts[number] = weights[name]
        return jax.tree.unflatten(structure, parts)

    def called(weights: Weights, rows: Any) -> Any:
        tree = tree_of({**held, **weights})
        return apply(tree, rows) if apply is not None else jax.vmap(lambda row: tree(row))(rows)

    def start(generator: np.random.Generator) -> Weights:
        if init == "given":
            drawn = first
        elif make is not None:
            drawn = arrays(make(jax.random.key(int(generator.integers(2**32)))))
        else:
            drawn = {name: _redrawn(value, fan_ins[name], generator) for name, value in first.items()}
        return {name: value for name, value in drawn.items() if name not in frozen}

    def brought(weights: Weights) -> Any:
        tree = tree_of({name: jnp.asarray(value, dtype) for name, value in {**first, **weights}.items()})
        return tree if apply is None else (tree, apply)

    known = frozenset(ones | named | (gains or set()))
    fan_ins |= dict.fromkeys(known, 0)
    return Net(called, start, first, fan_ins, known, frozen, apply is None, brought)


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


def _redrawn(value: np.ndarray, fan_in: int, generator: np.random.Generator) -> np.ndarray:
    """The same numbers in another order: a draw of the distribution that they were drawn from.

    Weights that are all the same were not drawn: they are, so that the units of a layer differ.
    """
    if fan_in and (value == value.flat[0]).all():
        return np.asarray(generator.standard_normal(value.shape) / math.sqrt(fan_in), value.dtype)
    return generator.permutation(value.ravel()).reshape(value.shape)


def _fan_in(name: str, value: np.ndarray, *, outputs_first: bool) -> int:
    """How many inputs a unit has. The biases of a convolution have more than one axis, and their name."""
    if value.ndim < 2 or name.split(".")[-1] == "bias":
        return 0
    return math.prod(value.shape[1:] if outputs_first else value.shape[:-1])


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


def _normed(module: Any) -> frozenset[str]:
    """The names of the gains of layers that normalise."""
    import equinox as eqx

    kinds = (eqx.nn.LayerNorm, eqx.nn.GroupNorm, eqx.nn.RMSNorm)
    parts = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda part: isinstance(part, kinds))[0]
    layers = [_name((*path, jax.tree_util.GetAttrKey("weight"))) for path, part in parts if isinstance(part, kinds)]
    return frozenset(layers) & {_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(module)[0]}


def _check_params(params: Any) -> None:
    if isinstance(params, Mapping) and "batch_stats" in params:
        raise ModelError(
            "`Network`: the parameters have 'batch_stats': with BatchNorm, what the network says of a row depends on "
            "the rows beside it, and there is no likelihood by rows. Take LayerNorm, GroupNorm or RMSNorm instead."
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not isinstance(leaf, float | int | np.ndarray | np.generic | jax.Array):
            raise ModelError(
                f"`Network`: in (params, apply), params must be arrays; {_name(path)!r} is a {type(leaf).__name__}."
            )


def _check_foreign(net: Any) -> None:
    """Raises a ModelError for a module of Flax, which is not a function of a key."""
    homes = [base.__module__ for base in type(net).__mro__]
    if any(home.startswith("flax.linen") for home in homes):
        raise ModelError(
            "`Network`: a module of Flax Linen goes as a pair: (module.init(key, x)['params'], lambda params, x: "
            "module.apply({'params': params}, x))."
        )
    if any(home.startswith("flax.nnx") for home in homes):
        raise ModelError(
            "`Network`: a module of Flax NNX goes as a pair: graph, params, rest = nnx.split(module, nnx.Param, ...), "
            "and (nnx.to_pure_dict(params), lambda params, x: nnx.merge(graph, params, rest)(x))."
        )
