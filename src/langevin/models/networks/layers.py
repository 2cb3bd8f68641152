"""What goes into the layers of a network, and what comes out, row by row.

A linear layer `y = W a + b` has the gradients `g a^T` by W and `g` by b, where g is the gradient by y (Martens & Grosse
2015). A convolution is a linear layer at every place, whose input is the patch there (Grosse & Martens 2016); a layer
that is called several times has as many places.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.models.networks.nets import Net, Weights


class Layer(NamedTuple):
    """A linear layer or a convolution, of which some weights are inferred.

    Attributes:
        name: Its place in the network.
        weight: The name of its matrix; empty if that is frozen.
        bias: The name of its bias; empty if it has none, or a frozen one.
        num_inputs: Of a unit, without the bias.
        num_outputs: How many units it has.
        num_places: At how many places a row uses it.
        is_linear: Whether it is an `eqx.nn.Linear`.
    """

    name: str
    weight: str
    bias: str
    num_inputs: int
    num_outputs: int
    num_places: int
    is_linear: bool

    @property
    def width(self) -> int:
        """How many inputs the inferred weights of a unit have, where that of the bias is 1."""
        return (self.num_inputs if self.weight else 0) + bool(self.bias)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the weights that are inferred."""
        return tuple(name for name in (self.weight, self.bias) if name)

    def inputs(self, a: jax.Array) -> jax.Array:
        """Inputs (places, inputs) with a 1 for the bias, as far as weights are inferred."""
        parts = [a] if self.weight else []
        if self.bias:
            parts.append(jnp.ones((len(a), 1), a.dtype))
        return jnp.concatenate(parts, axis=1)


def layers_of(net: Net, row: Any) -> tuple[Layer, ...]:
    """The layers in the order in which they are called, by their last call; none if that cannot be told.

    A network that is no Equinox module has none that can be told; nor has one that calls them inside `jax.vmap`,
    `jax.lax.scan` or `jax.checkpoint` of its own, or that uses the weights of a layer by itself.

    Args:
        net: The network.
        row: One row, or its shape.
    """
    if not net.is_module:
        return ()
    seen: list[tuple[str, Any]] = []

    def call(weights: Weights, row: Any) -> Any:
        tap = _Taps(None)
        output = tap.put_in(net.brought(weights))(row)
        seen.extend((name, layer) for name, layer in tap.order)
        return output, tap.inputs

    rows = jax.ShapeDtypeStruct((1, *row.shape), row.dtype)
    try:
        # Through `vmap`, as it is called later: that notices what is inside another transformation.
        _, inputs = jax.eval_shape(jax.vmap(call, (None, 0)), {name: net.first[name] for name in net.shapes}, rows)
    except Exception:  # inputs inside a transformation of the network's own cannot be taken out of it
        return ()
    last = {name: number for number, (name, _) in enumerate(seen)}
    layers = []
    for name in sorted(last, key=last.__getitem__):
        kind, places = seen[last[name]][1], sum(part.shape[1] for part in inputs[name])
        prefix = f"{name}." if name else ""
        weight, bias = (part if part in net.shapes else "" for part in (f"{prefix}weight", f"{prefix}bias"))
        if not (weight or bias):
            continue
        num_inputs = math.prod(kind.weight.shape[1:])
        layers.append(Layer(name, weight, bias, num_inputs, kind.weight.shape[0], places, _is_linear(kind)))
    return tuple(layers)


def tapped(net: Net, weights: Weights, row: Any, shifts: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
    """What a network says of one row, with shifts (places, outputs) added to what comes out of its layers.

    Returns:
        The output; and for each layer what goes in, (places, inputs).
    """
    tap = _Taps(shifts)
    output = tap.put_in(net.brought(weights))(row)
    return output, {name: jnp.concatenate(tap.inputs[name]) for name in shifts}


class _Taps:
    """Layers that note what goes in. They live as long as one call."""

    def __init__(self, shifts: dict[str, jax.Array] | None) -> None:
        self._shifts = shifts
        self.inputs: dict[str, list[jax.Array]] = {}
        self.order: list[tuple[str, Any]] = []

    def put_in(self, module: Any) -> Any:
        """The module with taps for layers."""

        def tap(path: Any, part: Any) -> Any:
            if not _is_known(part):
                return part
            name = jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".")
            return _Tap(self, name, part)

        return jax.tree_util.tree_map_with_path(tap, module, is_leaf=_is_known)

    def through(self, name: str, layer: Any, x: Any) -> Any:
        """Calls a layer."""
        y = layer(x)
        known = self.inputs.setdefault(name, [])
        first = sum(len(part) for part in known)
        known.append(_inputs(layer, x))
        self.order.append((name, layer))
        if self._shifts is None or name not in self._shifts:
            return y
        shift = self._shifts[name][first : first + len(known[-1])]
        return y + shift.T.reshape(jnp.shape(y))


class _Tap:
    """Stands where a layer was."""

    def __init__(self, taps: _Taps, name: str, layer: Any) -> None:
        self._taps, self._name, self._layer = taps, name, layer

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        del key
        return self._taps.through(self._name, self._layer, x)

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            raise AttributeError("Weights that are used outside of their layer have gradients that it does not see.")
        return getattr(self._layer, name)


def _is_linear(part: Any) -> bool:
    import equinox as eqx

    return isinstance(part, eqx.nn.Linear)


def _is_known(part: Any) -> bool:
    import equinox as eqx

    if isinstance(part, eqx.nn.Conv):
        return part.groups == 1 and part.padding_mode == "ZEROS"
    return isinstance(part, eqx.nn.Linear)


def _inputs(layer: Any, x: Any) -> jax.Array:
    """What goes in, (places, inputs)."""
    if _is_linear(layer):
        return jnp.reshape(x, (1, -1))
    patches = jax.lax.conv_general_dilated_patches(
        x[None], layer.kernel_size, layer.stride, layer.padding, rhs_dilation=layer.dilation
    )[0]
    return patches.reshape(patches.shape[0], int(np.prod(patches.shape[1:]))).T
