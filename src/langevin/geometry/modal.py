"""The Gaussian around a mode: which structure its covariance has, and its parameters from the curvature there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from langevin.errors import SettingError
from langevin.geometry.curvature import Hessian, Sums, factor_of, scales_of
from langevin.geometry.gauss_newton import GaussNewton, Structure, matrix_of_pairs
from langevin.geometry.starts import flattened
from langevin.models.networks.layers import Layer, layers_of
from langevin.models.networks.network import Network
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs
from langevin.variational.blocks import Block, BlockGaussian

# "auto" takes all of a curvature up to so many coordinates; of a network, if it takes about so many multiplications.
MOST_DENSE = 4096
MOST_DENSE_WEIGHTS = 2048
MOST_PRODUCTS = 2e11
# What is asked for is computed, as far as it fits into memory.
MOST_ASKED = 10_000


class Shape(NamedTuple):
    """Which Gaussian it is.

    Attributes:
        structure: "dense", "diagonal", "kronecker" or "last_layer".
        family: The Gaussian.
        work: Which part of the Gauss-Newton matrix of a network is computed; None for a Hessian.
        ranges: For each leaf of the position, where it is in the flat one.
        weights: The weights of a network, in the order of the flat position.
        fixed: Those of them that stay at the mode.
    """

    structure: str
    family: BlockGaussian
    work: Structure | None
    ranges: dict[str, tuple[int, int]]
    weights: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def curvature(self, target: Posterior, example: Position, programs: Programs) -> Hessian | GaussNewton:
        """What computes the curvature."""
        if self.work is None:
            return Hessian(target, example, programs, diagonal=self.structure == "diagonal")
        return GaussNewton(target, example, programs, self.work)


class Made(NamedTuple):
    """The Gaussian that a curvature makes.

    Attributes:
        parameters: Of the family, in double precision.
        flat: In how many directions there was no curvature, or a negative one.
        distance: How far the mode is, in sds: the root mean square over the coordinates.
        not_positive: In how many rows the likelihood of a network is not concave in its outputs.
    """

    parameters: Any
    flat: int
    distance: float
    not_positive: int


def shape_of(target: Posterior, example: Position, asked: str) -> Shape:
    """The structure that was asked for, or with "auto" the richest that can be afforded.

    Raises:
        SettingError: If the model does not have what it takes.
    """
    size, ranges = flattened(example).size, _ranges(example)
    network = target.model.network
    if network is None:
        structure = ("dense" if size <= MOST_DENSE else "diagonal") if asked == "auto" else asked
        if structure not in ("dense", "diagonal"):
            raise SettingError(
                f"`Laplace`: `structure={structure!r}` is for an lv.Network, whose layers can be told. Choose 'dense' "
                "or 'diagonal'."
            )
        _check_size(structure, size)
        kind = "dense" if structure == "dense" else "independent"
        return Shape(structure, BlockGaussian(size, (Block(kind, ((0, size),)),)), None, ranges)
    rows = jax.eval_shape(network.rows, target.data)
    outputs = jax.eval_shape(network.net.apply, {name: example[name] for name in network.shapes}, rows)
    num_outputs = math.prod(outputs.shape[1:])
    layers = layers_of(network.net, jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype))
    structure = _affordable(network, layers, target.num_data * num_outputs) if asked == "auto" else asked
    _check_structure(network, layers, structure)
    blocks, used, fixed = _blocks(network, layers, structure, ranges)
    others = tuple(ranges[name] for name in sorted(example) if name not in network.shapes)
    blocks += (Block("dense", others),) if others else ()
    work = Structure(structure, used, num_outputs)
    return Shape(structure, BlockGaussian(size, blocks), work, ranges, tuple(sorted(network.shapes)), fixed)


def _blocks(
    network: Network, layers: tuple[Layer, ...], structure: str, ranges: dict[str, tuple[int, int]]
) -> tuple[tuple[Block, ...], tuple[Layer, ...], tuple[str, ...]]:
    """The blocks of the weights, the layers they are computed by, and the weights that stay at the mode."""
    names = sorted(network.shapes)
    if structure == "kronecker":
        of_layers = (
            Block("kronecker", tuple(ranges[name] for name in layer.names), (layer.num_outputs, layer.width))
            for layer in layers
        )
        return tuple(of_layers), layers, ()
    if structure == "last_layer":
        last = layers[-1]
        fixed = tuple(name for name in names if name not in last.names)
        return (Block("dense", tuple(ranges[name] for name in last.names)),), (last,), fixed
    every = tuple(ranges[name] for name in names)
    if structure == "dense":
        return (Block("dense", every),), (), ()
    quick = not _outside(network, layers) and all(layer.num_places == 1 for layer in layers)
    return (Block("independent", every),), layers if quick else (), ()


def _affordable(network: Network, layers: tuple[Layer, ...], num_gradients: int) -> str:
    size = network.num_weights
    if size <= MOST_DENSE_WEIGHTS and num_gradients * size**2 <= MOST_PRODUCTS:
        return "dense"
    if network.has_independent_priors and layers and not _outside(network, layers):
        return "kronecker"
    last = layers[-1] if layers else None
    if last is not None and _is_last(last) and last.width * last.num_outputs <= MOST_DENSE:
        return "last_layer"
    return "diagonal"


def _outside(network: Network, layers: tuple[Layer, ...]) -> list[str]:
    """The weights that belong to no layer."""
    inside = {name for layer in layers for name in layer.names}
    return [name for name in network.shapes if name not in inside]


def _is_last(layer: Layer) -> bool:
    return layer.is_linear and layer.num_places == 1


def _check_size(structure: str, size: int) -> None:
    if structure == "dense" and size > MOST_ASKED:
        raise SettingError(
            f"`Laplace`: `structure='dense'` of {size:,} coordinates would take {8 * size**2 / 1e9:.0f} GB. Choose "
            "'diagonal', or 'kronecker' or 'last_layer' for a network."
        )


def _check_structure(network: Network, layers: tuple[Layer, ...], structure: str) -> None:
    """Raises a SettingError if the network does not have what a structure takes."""
    _check_size(structure, network.num_weights)
    if structure in ("kronecker", "last_layer") and not layers:
        raise SettingError(
            f"`Laplace`: `structure={structure!r}` needs an Equinox module that calls its eqx.nn.Linear and Conv "
            "layers on one row at a time, outside of jax.vmap and scan; here no layer can be told. Choose 'dense' or "
            "'diagonal'."
        )
    outside = _outside(network, layers)
    if structure == "kronecker" and outside:
        raise SettingError(
            f"`Laplace`: `structure='kronecker'` is for networks whose weights are all in eqx.nn.Linear and Conv "
            f"(without groups) layers; {outside[0]!r} is not. Choose 'last_layer' or 'diagonal', or freeze it."
        )
    if structure == "last_layer" and not _is_last(layers[-1]):
        raise SettingError(
            f"`Laplace`: `structure='last_layer'` needs an eqx.nn.Linear that is called last, and once; the last is "
            f"{layers[-1].name!r}. Choose 'kronecker' or 'diagonal'."
        )
    if structure != "dense" and not network.has_independent_priors:
        raise SettingError(
            f"`Laplace`: `structure={structure!r}` is for weights that are independent in their prior. Choose 'dense'."
        )


def _ranges(example: Position) -> dict[str, tuple[int, int]]:
    """Where the leaves of a position are in the flat one, by name."""
    ranges, first = {}, 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(example)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        ranges[name] = (first, first + np.size(leaf))
        first += np.size(leaf)
    return ranges


def full_matrix(shape: Shape, sums: Sums) -> np.ndarray:
    """The curvature of all coordinates, where it is dense."""
    if shape.work is None:
        return sums["matrix"]
    whole = np.zeros((shape.family.size, shape.family.size))
    for block, matrix in zip(shape.family.blocks, (sums["matrix"] + sums["prior"], sums.get("others")), strict=False):
        places = np.concatenate([np.arange(*ends) for ends in block.ranges])
        whole[np.ix_(places, places)] = matrix
    return whole


def gaussian_at(shape: Shape, sums: Sums, mode: np.ndarray, num_data: int) -> Made:
    """The Gaussian around a mode.

    Raises:
        SamplingError: If the curvature is not finite.
    """
    found, flat, blocks, white = [], 0, shape.family.blocks, 0.0
    prior, negative = _prior(shape, sums)
    for number, block in enumerate(blocks):
        if shape.work is not None and number == len(blocks) - 1 and "others" in sums:
            made, none = _dense(sums["others"])
        elif block.kind == "kronecker":
            made, none = _kronecker(sums, number, block.taken(prior), num_data), 0
        else:
            made, none = _plain(shape, block, sums, prior)
        found.append(made)
        flat += none
        white += float(np.sum(_whitened(block, made, sums["gradient"]) ** 2))
    distance = math.sqrt(white / max(shape.family.noise_size, 1))
    not_positive = int(sums.get("not_positive", 0))
    return Made({"mean": mode, "blocks": found}, flat + negative, distance, not_positive)


def _prior(shape: Shape, sums: Sums) -> tuple[np.ndarray, int]:
    """The precision that the prior has in each coordinate, where negative ones count by their size; how many do."""
    flat = np.zeros(shape.family.size)
    if shape.work is None or shape.structure == "dense":
        return flat, 0
    flat[np.concatenate([np.arange(*shape.ranges[name]) for name in shape.weights])] = sums["prior"]
    return np.abs(flat), int((flat < 0).sum())


def _plain(shape: Shape, block: Block, sums: Sums, prior: np.ndarray) -> tuple[dict[str, Any], int]:
    """A dense block, or one of independent coordinates."""
    if shape.structure == "last_layer" and shape.work is not None:
        return _dense(matrix_of_pairs(shape.work.layers[0], sums["pairs"]) + np.diag(block.taken(prior)))
    if shape.structure == "dense":
        return _dense(sums["matrix"] + sums.get("prior", 0.0))
    diagonal = sums["matrix"] if shape.work is None else _diagonal(shape, shape.work, sums) + block.taken(prior)
    scale, none = scales_of(diagonal)
    return {"scale": scale, "log_det": np.log(scale).sum()}, none


def _diagonal(shape: Shape, work: Structure, sums: Sums) -> np.ndarray:
    if not work.layers:
        return sums["diagonal"]
    flat = np.zeros(shape.family.size)
    for number, layer in enumerate(work.layers):
        split = layer.num_inputs if layer.weight else 0
        squares = sums[f"squares_{number}"]
        for name, part in ((layer.weight, squares[:, :split]), (layer.bias, squares[:, split:])):
            if name:
                flat[slice(*shape.ranges[name])] = part.ravel()
    return shape.family.blocks[0].taken(flat)


def _dense(curvature: np.ndarray) -> tuple[dict[str, Any], int]:
    factor, flat = factor_of(curvature)
    return {"factor": factor, "log_det": np.log(np.diagonal(factor)).sum()}, flat


def _kronecker(sums: Sums, number: int, prior: np.ndarray, num_data: int) -> dict[str, Any]:
    """From A (x) G, with the precision D of the prior in each column: P = A (x) G + D (x) I.

    In units in which D is the identity, the eigenvalues of P are the products of those of A and G, plus 1. A prior that
    differs between the units of a layer counts by its mean over them.
    """
    precision = np.maximum(prior.mean(axis=0), 1e-30)
    units = 1 / np.sqrt(precision)
    inputs = units[:, None] * sums[f"inputs_{number}"] / num_data * units
    of_inputs, right = np.linalg.eigh((inputs + inputs.T) / 2)
    outputs = sums[f"outputs_{number}"]
    of_outputs, left = np.linalg.eigh((outputs + outputs.T) / 2)
    scale = 1 / np.sqrt(np.maximum(of_outputs, 0)[:, None] * np.maximum(of_inputs, 0) + 1)
    log_det = np.log(scale).sum() + len(left) * np.log(units).sum()
    return {"left": left, "right": units[:, None] * right, "scale": scale, "log_det": log_det}


def _whitened(block: Block, made: dict[str, Any], gradient: np.ndarray) -> np.ndarray:
    """The gradient in units in which the covariance is the identity: at a mode it is 0."""
    of_block = block.taken(gradient)
    if block.kind == "dense":
        return made["factor"].T @ of_block
    if block.kind == "independent":
        return made["scale"] * of_block
    return made["scale"] * (made["left"].T @ of_block @ made["right"])
