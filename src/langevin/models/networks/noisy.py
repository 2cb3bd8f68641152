"""Noise in the layers of a network: of its own for each row, at little more than the price of one draw of the weights.

With q(W) = N(M, S^2), element by element, x what a layer gets of one row, and noise e and signs r, s of that row:

    shared      y = (M + S * E) x                     one E for all rows, so that their errors do not average out
    local       y = M x + sqrt(S^2 x^2) * e           the outputs are drawn, which are Gaussian given x
                                                      (local reparameterisation; Kingma, Salimans & Welling 2015)
    flipout     y = M x + r * ((S * E) (s * x))       one E, and each row has it with signs of its own
                                                      (Wen, Vicol, Ba, Tran & Grosse 2018)

The output of a row has the same distribution in all three, and so the sum of log-likelihoods the same mean. That of
"local" holds where a layer is called once for a row: the places of a convolution, or the steps of a sequence, share
weights, and outputs drawn one by one would not. There, the layer has signs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from langevin.models.networks.nets import Net, Weights

# Keeps the derivative of a square root finite where all inputs of a unit are zero.
LEAST_VARIANCE = 1e-16
BITS = 32


class Layer(NamedTuple):
    """A layer whose noise is by rows.

    Attributes:
        name: Where it is in the network, with a dot behind; empty for a network that is a layer.
        kind: "local" or "flipout".
        inputs: Inputs, or channels of them.
        outputs: Outputs, or channels of them.
    """

    name: str
    kind: str
    inputs: int
    outputs: int

    @property
    def weight(self) -> str:
        """The name of its weights."""
        return f"{self.name}weight"

    @property
    def bias(self) -> str:
        """The name of its biases, if it has any."""
        return f"{self.name}bias"


def layers_of(net: Net, row: Any, kind: str) -> tuple[Layer, ...]:
    """The layers of a network whose noise can be by rows: linear ones and convolutions.

    Not those that are never called as a whole, or that lend their weights to something else.

    Args:
        net: The network.
        row: What it is called with, or its shape.
        kind: "local", where that is exact, and else "flipout"; or "flipout" for all.
    """
    if not net.is_module:
        return ()
    weights = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in net.first.items()}

    def watched(weights: Weights, row: Any) -> Any:
        def seen(name: str, part: Any) -> Any:
            def called(x: Any) -> Any:
                x = checkpoint_name(x, _mark(name))
                shape = jax.eval_shape(part, x)
                return jnp.zeros(shape.shape, shape.dtype)

            return _called(part, called)

        return _swapped(net.brought(weights), seen)(row)

    traced = jax.make_jaxpr(watched)(weights, row).jaxpr
    used = {id(atom) for equation in traced.eqns for atom in equation.invars} | {id(atom) for atom in traced.outvars}
    lent = {name for name, variable in zip(sorted(weights), traced.invars, strict=False) if id(variable) in used}
    straight = Counter((mark, shape) for mark, shape, depth in _marks(traced) if depth == 0)
    everywhere = Counter(mark for mark, _, _ in _marks(traced))
    found = []

    def add(name: str, part: Any) -> Any:
        inputs, outputs = _sizes(part)
        mark = _mark(name)
        names = {f"{name}weight", f"{name}bias"}
        if everywhere[mark] and names & set(net.shapes) and not names & lent:
            shape = () if getattr(part, "in_features", None) == "scalar" else (inputs,)
            once = everywhere[mark] == 1 and straight[mark, shape] == 1
            found.append(Layer(name, "local" if once and kind == "local" else "flipout", inputs, outputs))
        return part

    _swapped(net.brought({}), add)
    return tuple(found)


def outputs(
    net: Net, layers: tuple[Layer, ...], drawn: Weights, means: Weights, scales: Weights, rows: Any, key: jax.Array
) -> jax.Array:
    """What the network puts out for each row, with noise in its layers.

    Args:
        net: The network.
        layers: Those whose noise is by rows.
        drawn: The weights that all rows share, drawn.
        means: Of all that are inferred.
        scales: Of the same.
        rows: What the network is called with.
        key: Of all noise of the layers.
    """
    if not layers:
        return net.apply(drawn, rows)
    by_name = {layer.name: layer for layer in layers}
    module = net.brought({**means, **drawn})
    of_outputs, of_weights, of_signs = jax.random.split(key, 3)
    shaken = _shaken(layers, scales, of_weights)
    by_row = _by_row(layers, len(rows), of_outputs, of_signs, jnp.result_type(*means.values()))

    def one(row: Any, noise: Mapping[str, tuple[jax.Array, ...]]) -> Any:
        def swapped(name: str, part: Any) -> Any:
            layer = by_name.get(name)
            if layer is None:
                return part
            if layer.kind == "local":
                return _called(part, functools.partial(_local, part, layer, scales, *noise[name]))
            return _called(part, functools.partial(_flipped, part, shaken[name], *noise[name]))

        return _swapped(module, swapped)(row)

    return jax.vmap(one)(rows, by_row)


def _local(layer: Any, names: Layer, scales: Weights, noise: jax.Array, x: jax.Array) -> jax.Array:
    """A linear layer whose outputs are drawn."""
    x = jnp.atleast_1d(x)
    mean, variance = x @ layer.weight.T, jnp.asarray(LEAST_VARIANCE, x.dtype)
    if names.weight in scales:
        variance = variance + (x**2) @ (scales[names.weight] ** 2).T
    if layer.bias is not None:
        mean = mean + layer.bias
    if names.bias in scales:
        variance = variance + scales[names.bias] ** 2
    y = mean + jnp.sqrt(variance) * noise
    return y[0] if layer.out_features == "scalar" else y


def _flipped(layer: Any, shaken: Mapping[str, Any], before: jax.Array, behind: jax.Array, x: jax.Array) -> jax.Array:
    """A linear layer or a convolution, and the same with a draw of the noise for weights, between signs."""
    y = layer(x)
    noise = _copy(layer, type(layer), **shaken)(_signed(before, x))
    return y + _signed(behind, noise)


def _signed(signs: jax.Array, x: jax.Array) -> jax.Array:
    return signs.reshape(-1, *[1] * (x.ndim - 1)) * x if x.ndim else signs[0] * x


def _shaken(layers: tuple[Layer, ...], scales: Weights, key: jax.Array) -> dict[str, dict[str, Any]]:
    """For each layer with signs, noise in place of its weights and biases."""
    signed = [layer for layer in layers if layer.kind == "flipout"]
    wanted = [name for layer in signed for name in (layer.weight, layer.bias) if name in scales]
    noise = dict(zip(wanted, normals(key, [scales[name].shape for name in wanted]), strict=True))
    noise = {name: scales[name] * value.astype(scales[name].dtype) for name, value in noise.items()}
    # What is frozen, or is not there, has none.
    return {layer.name: {"weight": noise.get(layer.weight), "bias": noise.get(layer.bias)} for layer in signed}


def _by_row(
    layers: tuple[Layer, ...], num_rows: int, of_outputs: jax.Array, of_signs: jax.Array, dtype: Any
) -> dict[str, tuple[jax.Array, ...]]:
    """For each layer, what each row has of its own: noise, or signs before and behind."""
    local = [layer for layer in layers if layer.kind == "local"]
    signed = [layer for layer in layers if layer.kind == "flipout"]
    noise = _parts(jax.random.normal(of_outputs, (num_rows, sum(layer.outputs for layer in local)), dtype), local)
    sizes = [size for layer in signed for size in (layer.inputs, layer.outputs)]
    signs = jnp.split(_signs(of_signs, num_rows, sum(sizes), dtype), np.cumsum(sizes)[:-1], axis=1) if signed else []
    pairs = zip(signs[::2], signs[1::2], strict=True)
    return noise | {layer.name: pair for layer, pair in zip(signed, pairs, strict=True)}


def _parts(noise: jax.Array, layers: list[Layer]) -> dict[str, tuple[jax.Array, ...]]:
    if not layers:
        return {}
    parts = jnp.split(noise, np.cumsum([layer.outputs for layer in layers])[:-1], axis=1)
    return {layer.name: (part,) for layer, part in zip(layers, parts, strict=False)}


def normals(key: jax.Array, shapes: list[tuple[int, ...]]) -> list[jax.Array]:
    """Standard normal arrays of these shapes, made in one go."""
    if not shapes:
        return []
    sizes = [int(np.prod(shape)) for shape in shapes]
    flat = jax.random.normal(key, (sum(sizes),), jnp.result_type(float))
    parts = jnp.split(flat, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]


def _signs(key: jax.Array, num_rows: int, count: int, dtype: Any) -> jax.Array:
    """Signs, one a bit of random words."""
    words = jax.random.bits(key, (num_rows, -(-count // BITS)), jnp.uint32)
    bits = (words[:, :, None] >> jnp.arange(BITS, dtype=jnp.uint32)) & 1
    return (1 - 2 * bits.reshape(num_rows, -1)[:, :count].astype(jnp.int32)).astype(dtype)


# Layers in a module, and others in their place.


def _swapped(module: Any, swap: Callable[[str, Any], Any]) -> Any:
    """The module with `swap(name, layer)` in place of each layer."""

    def at(path: Any, part: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".")
        return swap(f"{name}." if name else "", part) if _is_layer(part) else part

    return jax.tree_util.tree_map_with_path(at, module, is_leaf=_is_layer)


def _is_layer(part: Any) -> bool:
    """Whether it is a linear layer or a convolution; a stack of them, which has an axis in front, is not."""
    import equinox as eqx

    if isinstance(part, eqx.nn.Linear):
        return jnp.ndim(part.weight) == 2
    return isinstance(part, eqx.nn.Conv | eqx.nn.ConvTranspose) and jnp.ndim(part.weight) == part.num_spatial_dims + 2


def _sizes(part: Any) -> tuple[int, int]:
    """How many inputs and outputs (or channels of them) a layer has."""
    if hasattr(part, "in_channels"):
        return part.in_channels, part.out_channels
    return part.weight.shape[1], part.weight.shape[0]


@functools.cache
def _kind_called(kind: Any) -> Any:
    """A kind of layer that leaves its call to a function, and else is what it was."""

    def __call__(self: Any, x: Any, *, key: Any = None) -> Any:  # noqa: N807
        del key
        return self.called(x)

    namespace = {"__annotations__": {"called": Callable}, "__call__": __call__, "__module__": __name__}
    return type(kind)(kind.__name__, (kind,), namespace)


def _called(layer: Any, called: Callable[[Any], Any]) -> Any:
    """The layer, called in another way."""
    return _copy(layer, _kind_called(type(layer)), called=called)


def _copy(layer: Any, kind: Any, **changes: Any) -> Any:
    """The layer as an instance of a kind, with other values of some fields."""
    copied = object.__new__(kind)
    values = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)} | changes
    if changes.get("weight", layer) is None:
        values["weight"] = jnp.zeros_like(layer.weight)
    if "use_bias" in values and "bias" in changes:
        values["use_bias"] = values["bias"] is not None
    for name, value in values.items():
        object.__setattr__(copied, name, value)
    return copied


def _mark(name: str) -> str:
    return f"layer {name}"


def _marks(jaxpr: Any, depth: int = 0) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """The marks in a trace: their name, the shape of what is marked, and in how many other traces it is."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            yield equation.params["name"], equation.invars[0].aval.shape, depth
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_trace):
            if _is_trace(inner):
                yield from _marks(getattr(inner, "jaxpr", inner), depth + 1)


def _is_trace(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)
