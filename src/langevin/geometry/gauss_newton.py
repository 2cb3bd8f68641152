"""The generalised Gauss-Newton matrix of a network: the curvature of the network that is linear in its weights.

    P = sum_i J_i^T H_i J_i + prior precision

where J_i are the derivatives of the outputs of a row by the weights, and H_i the second derivatives of its negative
log-likelihood by the outputs (Schraudolph 2002; Daxberger et al. 2021). With H_i = S_i S_i^T, the rows g of S_i^T J_i
are as many gradients as there are outputs: nothing is sampled. Structures:

    dense         all of it
    diagonal      its diagonal, exactly
    last_layer    all of it that belongs to the last linear layer; the other weights stay at the mode
    kronecker     for each layer A (x) G, A the mean of a a^T over rows and G the sum of g g^T (Ritter et al. 2018)

The unknowns of the likelihood have their own Hessian, and count as independent of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.geometry.curvature import Sums, added, rows_from
from langevin.geometry.starts import flattened
from langevin.models.networks.layers import Layer, tapped
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs

# Numbers that are computed side by side, of a part of the rows.
MOST_NUMBERS = 8_000_000
# An H_i is not positive if its least eigenvalue is below minus this share of the largest.
ROUNDING = 1e-3


class Structure(NamedTuple):
    """Which part of the matrix is computed.

    Attributes:
        kind: "dense", "diagonal", "last_layer" or "kronecker".
        layers: Those it is computed by; empty if it is computed weight by weight.
        num_outputs: How many numbers the network says of a row.
    """

    kind: str
    layers: tuple[Layer, ...]
    num_outputs: int

    def numbers_a_row(self, num_weights: int) -> int:
        """About how many numbers are computed of a row."""
        if not self.layers:
            return self.num_outputs * num_weights
        of_layers = sum(
            (self.num_outputs * layer.num_outputs + layer.width) * layer.num_places for layer in self.layers
        )
        if self.kind != "last_layer":
            return of_layers
        layer = self.layers[0]
        return of_layers + layer.width * layer.num_outputs * (layer.num_outputs + 1) // 2


class GaussNewton:
    """The matrix, or its parts, summed over parts of the rows.

    Args:
        target: The posterior of a network.
        example: A position, for its shape.
        programs: The compiled programs of the run.
        structure: Which part of it.
    """

    def __init__(self, target: Posterior, example: Position, programs: Programs, structure: Structure) -> None:
        self._target, self._example, self._programs = target, example, programs
        most = MOST_NUMBERS // max(structure.numbers_a_row(target.model.network.num_weights), 1)
        num_rows = int(np.clip(most, 1, target.num_data))
        self.num_parts = -(-target.num_data // num_rows)
        self._static = (structure, num_rows)

    def add(self, sums: Sums, part: int, point: np.ndarray) -> Sums:
        """The sums with one more part of the rows; with the prior in the first."""
        at = point.astype(flattened(self._example).dtype)
        if part == 0:
            structure = self._static[0]
            prior = self._programs(_of_prior, structure.kind, self._target, at, self._example)
            sums = added({}, prior)
        first = np.int32(part * self._static[1])
        found = self._programs(_of_rows, self._static, self._target, at, self._example, first)
        terms = added({}, found)
        return sums | {name: sums[name] + value if name in sums else value for name, value in terms.items()}

    def at(self, point: np.ndarray) -> Sums:
        """The sums over all parts."""
        sums: Sums = {}
        for part in range(self.num_parts):
            sums = self.add(sums, part, point)
        return sums


def _of_prior(kind: str, target: Posterior, point: jax.Array, example: Position) -> dict[str, jax.Array]:
    """The log-prior, its gradient, and minus its second derivatives: of the weights, and of the other sites."""
    network = target.model.network
    _, unravel = ravel_pytree(example)
    position = unravel(point)
    value, gradient = jax.value_and_grad(lambda x: target.log_prior(unravel(x)))(point)
    weights, others = _parted(network, position)
    flat, back = ravel_pytree(weights)
    slope = jax.grad(lambda w: target.log_prior({**back(w), **others}))
    if kind == "dense":
        precision = -jax.lax.map(lambda v: jax.jvp(slope, (flat,), (v,))[1], jnp.eye(flat.size), batch_size=64)
    else:
        # The weights are independent in the prior: the sum of a row is its diagonal.
        precision = -jax.jvp(slope, (flat,), (jnp.ones_like(flat),))[1]
    found = {"height": value, "gradient": gradient, "prior": precision}
    if others:
        flat, back = ravel_pytree(others)
        found["others"] = -jax.hessian(lambda u: target.log_prior({**weights, **back(u)}))(flat)
    return found


def _of_rows(
    static: tuple[Structure, int], target: Posterior, point: jax.Array, example: Position, first: jax.Array
) -> dict[str, jax.Array]:
    """What one part of the rows adds."""
    structure, num_rows = static
    network = target.model.network
    _, unravel = ravel_pytree(example)
    here, counts = rows_from(target, first, num_rows)
    position = unravel(point)
    weights, others = _parted(network, position)
    rows, outcomes = network.rows(here), here[network.outcome]

    def log_likelihood(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts, target.terms(unravel(x), here)[1], 0.0))

    value, gradient = jax.value_and_grad(log_likelihood)(point)
    found = {"height": value, "gradient": gradient}
    outputs = network.net.apply(weights, rows)
    if others:
        flat, back = ravel_pytree(others)

        def of_others(u: jax.Array) -> jax.Array:
            values = _values(target, {**weights, **back(u)})
            return -jnp.sum(jnp.where(counts, network.log_likelihood(outputs, values, outcomes), 0.0))

        found["others"] = jax.hessian(of_others)(flat)
    values = _values(target, position)

    def loss(output: jax.Array, outcome: jax.Array) -> jax.Array:
        return -network.log_likelihood(output.reshape(1, *outputs.shape[1:]), values, outcome[None])[0]

    hessians = jax.vmap(jax.hessian(loss))(outputs.reshape(num_rows, -1), outcomes)
    roots, found["not_positive"] = _roots(hessians, counts)
    compute = _by_layers if structure.layers else _by_weights
    return found | compute(structure, network, weights, rows, roots, counts)


def _parted(network: Any, position: Position) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """The weights, and the other sites."""
    weights = {name: position[name] for name in network.shapes}
    return weights, {name: position[name] for name in position if name not in weights}


def _values(target: Posterior, position: Position) -> dict[str, jax.Array]:
    reported = target.constrain(position)
    return {name: reported[name] for name in target.model.network.likelihood.sites}


def _roots(hessians: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """S with S S^T = H for each row, where negative curvature counts as none; and in how many rows there was some."""
    values, vectors = jnp.linalg.eigh((hessians + jnp.swapaxes(hessians, 1, 2)) / 2)
    negative = values[:, 0] < -ROUNDING * jnp.maximum(jnp.abs(values).max(axis=1), 1e-30)
    roots = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
    return jnp.where(counts[:, None, None], roots, 0.0), jnp.sum(negative & counts)


def _by_weights(
    structure: Structure, network: Any, weights: Any, rows: jax.Array, roots: jax.Array, counts: jax.Array
) -> dict[str, jax.Array]:
    """From the gradients of each row by each weight."""
    del counts
    flat, unravel = ravel_pytree(weights)

    def gradients(row: jax.Array, root: jax.Array) -> jax.Array:
        output, pull = jax.vjp(lambda w: network.net.apply(unravel(w), row[None])[0], flat)
        return jax.vmap(lambda column: pull(column.reshape(output.shape))[0])(root.T)

    found = jax.vmap(gradients)(rows, roots).reshape(-1, flat.size)
    if structure.kind == "diagonal":
        return {"diagonal": jnp.sum(found**2, axis=0)}
    return {"matrix": found.T @ found}


def _by_layers(
    structure: Structure, network: Any, weights: Any, rows: jax.Array, roots: jax.Array, counts: jax.Array
) -> dict[str, jax.Array]:
    """From what goes into each layer, and the gradients by what comes out."""
    shifts = {layer.name: jnp.zeros((layer.num_places, layer.num_outputs), roots.dtype) for layer in structure.layers}

    def gradients(row: jax.Array, root: jax.Array) -> Any:
        output, pull, inputs = jax.vjp(lambda s: tapped(network.net, weights, row, s), shifts, has_aux=True)
        return inputs, jax.vmap(lambda column: pull(column.reshape(output.shape))[0])(root.T)

    inputs, slopes = jax.vmap(gradients)(rows, roots)
    found: dict[str, jax.Array] = {}
    for number, layer in enumerate(structure.layers):
        # (rows, places, inputs) and (rows, outputs of the network, places, outputs of the layer)
        a, g = jax.vmap(layer.inputs)(inputs[layer.name]), slopes[layer.name]
        a = jnp.where(counts[:, None, None], a, 0.0)
        if structure.kind == "kronecker":
            found[f"inputs_{number}"] = jnp.einsum("nti,ntj->ij", a, a)
            found[f"outputs_{number}"] = jnp.einsum("ncto,nctp->op", g, g) / layer.num_places
        elif structure.kind == "diagonal":
            found[f"squares_{number}"] = jnp.einsum("no,ni->oi", jnp.sum(g[:, :, 0] ** 2, axis=1), a[:, 0] ** 2)
        else:
            found["pairs"] = _pairs(layer, a[:, 0], jnp.einsum("nco,ncp->nop", g[:, :, 0], g[:, :, 0]))
    return found


def _pairs(layer: Layer, a: jax.Array, curvature: jax.Array) -> jax.Array:
    """The sum over rows of `curvature[o, p] a a^T`, for each pair of outputs o <= p of a layer."""
    above = np.triu_indices(layer.num_outputs)
    weighted = curvature[:, above[0], above[1]].T[:, :, None] * a
    return jnp.einsum("qni,nj->qij", weighted, a)


def matrix_of_pairs(layer: Layer, pairs: np.ndarray) -> np.ndarray:
    """From sums over pairs of outputs to a matrix, whose order is that of the weights: first the matrix, then the bias.

    Args:
        layer: The last layer.
        pairs: (pairs of outputs, inputs, inputs).
    """
    outputs, width = layer.num_outputs, layer.width
    full = np.zeros((outputs, width, outputs, width))
    for (o, p), part in zip(zip(*np.triu_indices(outputs), strict=True), pairs, strict=True):
        full[o, :, p, :], full[p, :, o, :] = part, part.T
    places = np.arange(outputs * width).reshape(outputs, width)
    split = layer.num_inputs if layer.weight else 0
    order = np.concatenate([places[:, :split].ravel(), places[:, split:].ravel()])
    return full.reshape(outputs * width, -1)[np.ix_(order, order)]
