"""The complete conditionals of a program's sites, by block.

    F(t_1, ..., t_K) = log p(sites, data)          multilinear in the statistics t_b of the blocks
    p(block b | the rest, data) is in its family, with natural parameters  dF / dt_b

At values of the other sites the derivative gives the conditional itself, which Gibbs sampling draws from; at their
expected statistics it gives the update of coordinate ascent.

Reference:
    Hoffman, Johnson, Tran (2018), Autoconj: recognizing and exploiting conjugacy without a domain-specific language.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from langevin.conjugacy import augmentation
from langevin.conjugacy import polynomial as poly
from langevin.conjugacy.blocks import Block
from langevin.conjugacy.expectation import Product, Statistics, products, terms_of, total
from langevin.conjugacy.families import Family
from langevin.conjugacy.latents import Latent
from langevin.conjugacy.numbers import abstract
from langevin.conjugacy.partition import partition
from langevin.conjugacy.reading import Reader
from langevin.conjugacy.writing import Writer
from langevin.errors import ModelError
from langevin.models.joint import Joint
from langevin.posterior import Batch
from langevin.run.seeds import Seed

# How far the polynomial may be from what NumPyro says of the same point, relative to the sum of all sizes.
# A program may hold constants in single precision, of which it computes functions in single precision.
MOST_DIFFERENCE, WITH_SINGLE = {4: 1e-3, 8: 1e-8}, 1e-6
# What is the same at all points, as normalisers of counts are, changes no conditional; in single precision it is the
# difference of large numbers.
CONSTANT_OF_SINGLE = 1e-3
# At how many points: a label that is read wrongly may be right by chance at each of them. Fewer where each takes long.
NUM_POINTS, NUM_POINTS_OF_MANY, MANY = 24, 6, 1_000_000
# An update of one Gaussian takes the cube of its length.
MOST_TOGETHER = 256


class Conditionals:
    """What is static of the conditionals of one program.

    Args:
        joint: The program and its rows.
        num_rows: With how many rows it will be called.
        sites: Those whose conditionals are wanted, given the values of the others; None for all.
        blocks: See `lv.CAVI`.
        logistic: "polya-gamma" where logistic likelihoods get auxiliary sites that make them conjugate.
        together: How long the vector is at most that several sites are put into, where it was not asked for.

    Attributes:
        latents: The latent sites.
        blocks: The blocks, in the order in which they are updated.
        precisions: The powers of positive sites that are precisions of normal distributions.
    """

    def __init__(
        self,
        joint: Joint,
        num_rows: int,
        sites: tuple[str, ...] | None = None,
        blocks: Sequence[Sequence[str]] | str = "auto",
        logistic: str | None = None,
        together: int = MOST_TOGETHER,
    ) -> None:
        self.joint, self.num_rows = joint, num_rows
        self._reader = Reader(joint, num_rows, sites, logistic)
        self.latents: dict[str, Latent] = dict(self._reader.latents)
        wanted = self.latents if sites is None else {*sites, *self._reader.augmented}
        chosen = {name: latent for name, latent in self.latents.items() if name in wanted}
        found: list[tuple[Block, ...]] = []
        scaling: set[str] = set()

        def find(batch: Batch, values: Any) -> int:
            statements = self._reader.statements(batch, values)
            scaling.update(*(poly.sites_of(one.log_density) for one in statements if one.is_gaussian))
            found.append(partition(chosen, statements, blocks, self._reader.augmented, together))
            return 0

        jax.eval_shape(find, abstract(joint, num_rows), self._reader.like_given)
        self.blocks = _in_order(found[0])
        self.precisions = _precisions(self.blocks, scaling)
        self.block_of = {site: block.name for block in self.blocks for site in block.sites}
        # An indicator is read along its values first.
        self._shapes = {
            name: latent.shape if latent.values is None else (len(latent.values), *latent.shape)
            for name, latent in self.latents.items()
        }
        self._readings = {block.name: block.read for block in self.blocks}

    def __repr__(self) -> str:
        """Without an address: a compiled program is known by what it computes."""
        return f"Conditionals({self.blocks})"

    @property
    def largest(self) -> int:
        """About how many elements the largest array has that an update goes through one by one."""
        likes = [like for block in self.blocks if block.local or block.values for like in block.family.like().values()]
        return max((math.prod(like.shape) for like in likes), default=0)

    def at(self, batch: Batch, values: Mapping[str, Any] | None = None, *, as_all: bool = False) -> Equations:
        """The log joint at these rows, and at values of the sites that have no block. For compiled code.

        Args:
            batch: Rows.
            values: Of the sites that have no block.
            as_all: Whether these count as all rows there are, and nothing is scaled.
        """
        terms = []
        families = {block.name: block.family for block in self.blocks}
        for statement in self._reader.statements(batch, values, as_all=as_all):
            terms += terms_of(statement.log_density)
            if statement.count is not None:
                name = augmentation.auxiliary(statement.name)
                families[name] = dataclasses.replace(self._reader.augmented[name], count=statement.count)
        return Equations(products(terms, self.block_of, self._shapes), self._readings, families)

    def written(self, batch: Batch) -> str:
        """The conditionals in words and formulas."""
        terms = [term for one in self._reader.statements(batch) for term in terms_of(one.log_density)]
        return Writer(terms, [self._block(name) for name in self._first_sites()], batch).written()

    def _first_sites(self) -> list[str]:
        """The blocks in the order of the program."""
        return list(dict.fromkeys(self.block_of[name] for name in self.latents))

    def _block(self, name: str) -> Block:
        return next(block for block in self.blocks if block.name == name)

    def statistics(self, values: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
        """The statistics of all blocks at values of their sites."""
        return {block.name: block.family.statistics(block.to_value(values)) for block in self.blocks}

    def check(self, seed: Seed, batch: Batch) -> float:
        """Checks at random points that the polynomial is the log joint density that NumPyro computes.

        Returns:
            The variance of the real numbers that are observed, about; 1 if there are none.

        Raises:
            ModelError: If it is not: better no fit than a wrong one.
        """
        count = NUM_POINTS if self.largest <= MANY else NUM_POINTS_OF_MANY
        difference, size, dtype, spread = augmentation.compared(self, seed.generator(), batch, count)
        most = MOST_DIFFERENCE[dtype.itemsize]
        constant = np.median(difference) if self._reader.has_single else 0.0
        most = max(most, WITH_SINGLE) if self._reader.has_single else most
        varying = np.all(np.abs(difference - constant) <= most * (size + 1))
        if not (varying and np.abs(constant) <= CONSTANT_OF_SINGLE * (np.median(size) + 1)):
            raise ModelError(
                "The log-density that was read off the program is not the one that it computes (they differ by "
                f"{np.max(np.abs(difference)):.3g}, or one is not finite). A label may be used outside of its element "
                "of the plate, or rows of one plate combined. Write the program with plates, or fit it by another "
                "method; and please report it."
            )
        return spread


class Equations:
    """The log joint as a function of statistics.

    Args:
        chosen: Its terms.
        readings: For each block, how factors are read from its statistics.
        families: For each block, the family of its conditional.

    Attributes:
        families: As above.
    """

    def __init__(self, chosen: Sequence[Product], readings: Mapping[str, Any], families: Mapping[str, Family]) -> None:
        self._products, self._readings, self.families = list(chosen), readings, families

    def log_joint(self, statistics: Statistics, without: str | None = None) -> jax.Array:
        """F, or the terms of it that a block is not in."""
        chosen = [product for product in self._products if without is None or without not in product.blocks]
        return total(chosen, self._readings, statistics)

    def meeting(self) -> tuple[str, str] | None:
        """Two blocks that are multiplied with one another, if there are any."""
        for product in self._products:
            if len(product.blocks) > 1:
                one, two = sorted(product.blocks)[:2]
                return one, two
        return None

    def natural(self, name: str, statistics: Statistics) -> dict[str, jax.Array]:
        """The natural parameters of a block's conditional: dF / dt."""
        chosen = [product for product in self._products if name in product.blocks]

        def of(own: Mapping[str, jax.Array]) -> jax.Array:
            return total(chosen, self._readings, {**statistics, name: own})

        # F is linear in the block's statistics, so that where it is differentiated does not matter.
        return jax.grad(of)(dict(statistics[name]))


def _in_order(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Real sites first, see `starting`; discrete ones last, since the bound is cheapest after them."""

    def key(place: int) -> Any:
        block = blocks[place]
        return bool(block.values), not block.layouts, place

    return tuple(blocks[place] for place in sorted(range(len(blocks)), key=key))


def _precisions(blocks: Sequence[Block], scaling: set[str]) -> dict[str, float]:
    """Those among these sites that are precisions, and which power of each is one."""
    powers = {block.sites[0]: block.family.precision_power for block in blocks}
    return {name: power for name, power in powers.items() if name in scaling and power is not None}
