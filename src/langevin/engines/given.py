"""Draws from blocks of conditionals, as a run reports them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from langevin.conjugacy.augmentation import random_value
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Draws, Plan
from langevin.engines.double import as_double
from langevin.run.compilation import Programs
from langevin.run.seeds import key_of

DRAWS_A_BLOCK = 250
MOST_LOCAL = 50_000_000
MOST_BYTES_A_BLOCK = 256_000_000
# Ratios of draws in more dimensions tell nothing of q, and how many numbers may be read for them.
MOST_JUDGED_SIZE, MOST_READ = 1000, 1_000_000_000


class Drawn(NamedTuple):
    """A block of draws.

    Attributes:
        count: How many draws each chain has after it.
        draws: Of each chain.
        terms: Log p and log q of them, (2, draws); (2, 0) if they were not computed.
    """

    count: int
    draws: tuple[Draws, ...]
    terms: np.ndarray


class Reports:
    """Draws from q, and what is reported of them.

    Args:
        conditionals: Of the program.
        plan: What was asked of the run.
    """

    def __init__(self, conditionals: Conditionals, plan: Plan) -> None:
        self._conditionals, self._plan = conditionals, plan
        self._program: Any = None
        self._float = jnp.result_type(float)
        joint = conditionals.joint
        total = plan.num_chains * plan.num_draws
        self._whole = plan.batches is None
        kept = []
        for name in joint.structure.reported:
            size = math.prod(joint.structure.sizes[name])
            is_small = size * total <= MOST_LOCAL
            if (self._whole or name not in joint.structure.local) and is_small:
                kept.append(name)
        size = sum(math.prod(block.family.value_shape) for block in conditionals.blocks)
        rows = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(joint.data))
        self.judges = self._whole and size <= MOST_JUDGED_SIZE and total * max(rows, 1) <= 4 * MOST_READ
        self.kept = tuple(kept) or joint.structure.reported
        bytes_a_draw = 8 * max(sum(math.prod(joint.structure.sizes[name]) for name in kept) + size, 1)
        self.length = int(np.clip(MOST_BYTES_A_BLOCK // (bytes_a_draw * plan.num_chains), 1, DRAWS_A_BLOCK))

    def prepare(self, programs: Programs, naturals: Any, rows: Any) -> None:
        """Compiles what makes a block of draws, in another thread while the caller goes on."""
        static = _What(self._conditionals, self.kept, self.judges, self._whole)
        keys = np.zeros((self.length * self._plan.num_chains, 2), np.uint32)
        self._program = programs.aside(_draws, static, naturals, rows, keys, np.zeros(2, np.int32))

    def block(self, naturals: Any, drawn: int, rows: Any) -> Drawn:
        """The rest of a block of draws."""
        num_chains, length = self._plan.num_chains, self.length
        number, first = divmod(drawn, length)
        last = min(length, self._plan.num_draws - number * length)
        keys = self._plan.seed.child("draws", number).keys(length * num_chains)
        wanted = np.asarray([first * num_chains, last * num_chains], np.int32)
        reported, position, *terms = self._program(naturals, rows, keys, wanted)
        keep = self._plan.keep

        def shaped(leaf: Any) -> np.ndarray:
            leaf = np.asarray(leaf)
            if leaf.dtype == np.float64:
                leaf = leaf.astype(self._float)
            return leaf.reshape(length, num_chains, *leaf.shape[1:])[first:last]

        stats = dict(zip(("log_density", "log_q"), terms, strict=True))
        reported, position, stats = jax.tree.map(shaped, (reported, position, stats))
        draws = []
        for chain in range(num_chains):
            of_chain = jax.tree.map(lambda leaf, c=chain: leaf[:, c], (reported, position, stats))
            draws.append(keep.grouped(of_one(keep, of_chain[0]), *of_chain[1:]))
        known = np.stack([np.asarray(term, np.float64) for term in terms])
        known = known.reshape(2, length, num_chains)[:, first:last].reshape(2, -1)
        return Drawn(number * length + last, tuple(draws), known if self.judges else known[:, :0])


def of_one(keep: Any, reported: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is kept of draws of one chain."""
    return jax.tree.map(np.asarray, jax.vmap(keep.reported)(reported))


class _What(NamedTuple):
    conditionals: Conditionals
    kept: tuple[str, ...]
    judges: bool
    whole: bool


def _draws(what: _What, naturals: Any, rows: Any, keys: Any, wanted: Any) -> Any:
    """Draws by their keys, from a first one up to a last; zeros for the others."""
    conditionals = what.conditionals
    double = as_double(rows)
    equations = conditionals.at(double) if what.judges else None

    def one(words: Any) -> Any:
        key = key_of(words)
        values: dict[str, Any] = {}
        log_q, statistics = jnp.zeros(()), {}
        for number, block in enumerate(conditionals.blocks):
            if block.name not in naturals:
                continue
            drawn = block.family.sample(jax.random.fold_in(key, number), naturals[block.name])
            values |= block.from_value(drawn)
            if what.judges:
                statistics[block.name] = block.family.statistics(drawn)
                log_q = log_q + block.family.log_prob(naturals[block.name], drawn)
        log_p = equations.log_joint(statistics) if equations is not None else jnp.zeros(())
        return *given_back(conditionals, values, double, what.kept, what.whole), log_p, log_q

    like = jax.eval_shape(one, keys[0])
    blank = jax.tree.map(lambda leaf: jnp.zeros((len(keys), *leaf.shape), leaf.dtype), like)

    def write(number: Any, drawn: Any) -> Any:
        return jax.tree.map(lambda rows, leaf: rows.at[number].set(leaf), drawn, one(keys[number]))

    return jax.lax.fori_loop(wanted[0], wanted[1], write, blank)


def given_back(
    conditionals: Conditionals, values: Mapping[str, Any], rows: Any, kept: tuple[str, ...], whole: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is reported of values of the sites, and their unconstrained position."""
    joint = conditionals.joint
    own = {name: value for name, value in values.items() if name in joint.structure.shapes}
    if not whole:
        # Sites of rows are not reported, but the program asks for them.
        generator = np.random.default_rng(0)
        count = next(iter(conditionals.latents.values()), None) and conditionals.num_rows
        rows = jax.tree.map(lambda leaf: leaf[:count], rows)
        local = {name: latent for name, latent in conditionals.latents.items() if latent.local}
        own = {
            **own,
            **{
                name: random_value(latent, generator)
                for name, latent in local.items()
                if name in joint.structure.shapes
            },
        }
    trace = joint.trace(joint.function, rows, own, jax.random.key(0))
    reported = {name: jnp.asarray(trace[name]["value"]) for name in kept}
    position = {
        name: biject_to(trace[name]["fn"].support).inv(own[name])
        for name in kept
        if name in joint.structure.shapes and name not in joint.structure.discrete
    }
    return reported, position
