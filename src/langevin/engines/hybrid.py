"""The engine of a model in blocks: what is nested, what takes turns, and in words what that targets."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Engine, Plan
from langevin.engines.claims import Block, check_able, claimed, sites_of
from langevin.engines.double import DoubleEngine
from langevin.engines.nested import NestedEngine
from langevin.engines.pieced import PiecedEngine
from langevin.engines.sweeps import SweepEngine
from langevin.errors import SettingError
from langevin.posterior import Posterior
from langevin.run import compilation
from langevin.variational import marginal, nested
from langevin.variational.marginal import Nest
from langevin.variational.subsequences import Subsequences

# A Hessian of which less than this is elsewhere has nothing there; what is next to its diagonal may be small at one
# point and large at another, and is nothing if it is rounding.
NOTHING, ROUNDING = 1e-3, 16.0
MOST_IN_A_CLOUD = 256
FAMILIES = ("auto", "markov", "fullrank", "meanfield")


def engine_of(blocks: Mapping[Any, Any], subsequences: Subsequences | None, target: Posterior, plan: Plan) -> Engine:
    """The engine of a run.

    Args:
        blocks: Methods by key, see `langevin.engines.claims`.
        subsequences: How a time series is cut.
        target: The posterior. Its sites are centred here: a block is given the sites themselves.
        plan: What was asked of the run.

    Raises:
        SettingError: Names the site that has no block or two, or a method that cannot update its block.
    """
    # Of the sites of rows a minibatch has some: one number for all of them.
    by_row = () if plan.batches is None and subsequences is None else target.model.local
    shapes = {name: () if name in by_row else like.shape for name, like in target.model.adjustable.items()}
    target = target.with_centring({name: np.ones(shape) for name, shape in shapes.items()})
    sites = sites_of(target, target.model.like)
    found = claimed(blocks, sites)
    check_able(found, sites)
    bound = next((block for block in found if block.method.role == "bound"), None)
    rest = tuple(block for block in found if block is not bound)
    derived = next((block for block in rest if block.method.role == "conditional"), None)
    if derived is not None:
        _check_derived(derived, found, target, plan)
        return DoubleEngine(functools.partial(SweepEngine, rest), target, plan)
    if bound is None:
        _check_local(target, plan)
        return SweepEngine(rest, target, plan)
    if any(block.method.role == "labels" for block in rest):
        raise SettingError(
            f"`Hybrid`: the block of {bound.names[0]!r} has a `VI`, whose bound cannot be taken at discrete sites that "
            "change. Leave `Enumerate` out: discrete sites are then summed out."
        )
    if subsequences is not None:
        return _pieced(bound, rest, subsequences, target, plan)
    stochastic = any(block.method.needs.minibatches != "none" for block in rest)
    nest = _nest_of(bound, target, plan, twice=stochastic)
    return NestedEngine(functools.partial(_over_the_rest, rest), nest, target, plan)


def _check_derived(derived: Block, blocks: tuple[Block, ...], target: Posterior, plan: Plan) -> None:
    """Checks that a block has complete conditionals, given what the other blocks are.

    Raises:
        SettingError: If other sites have no values that they could be conditionals given.
    """
    name, roles = derived.names[0], {block.method.role for block in blocks}
    if "bound" in roles:
        raise SettingError(
            f"`Hybrid`: `Gibbs` draws {name!r} given all other sites, and those with a `VI` have a bound in place of "
            f"values. Give {name!r} to lv.NUTS()."
        )
    if target.summed_out and "labels" not in roles:
        raise SettingError(
            f"`Hybrid`: `Gibbs` draws {name!r} given all other sites, and {target.summed_out[0]!r} is summed out. Draw "
            f"it too: {{{target.summed_out[0]!r}: lv.Enumerate()}}."
        )
    if plan.batches is not None and "labels" in roles:
        raise SettingError(
            f"`Hybrid`: `Gibbs` draws {name!r} given the labels of all rows, and with minibatches only those of a "
            f"batch are drawn. Leave `batch_size` out, or give {name!r} to lv.SGLD()."
        )
    if plan.batches is not None:
        _check_local(target, plan)


def _over_the_rest(rest: tuple[Block, ...], target: Posterior, plan: Plan) -> Engine:
    """One block has the engine of its own method; several take turns."""
    return rest[0].method.engine(target, plan) if len(rest) == 1 else SweepEngine(rest, target, plan)


def _pieced(bound: Block, rest: tuple[Block, ...], how: Subsequences, target: Posterior, plan: Plan) -> Engine:
    """The engine of a time series in pieces.

    Raises:
        SettingError: If it is not one path, or is too short.
    """
    names, like = bound.names, target.model.like
    if len(names) > 1 or like[names[0]].shape != (target.num_data,):
        raise SettingError(
            f"`Hybrid`: `subsequences` cuts a path with one state for each row of `data` ({target.num_data}); "
            f"{', '.join(f'{name!r} has shape {like[name].shape}' for name in names)}."
        )
    if target.num_data < 2 * how.width:
        raise SettingError(
            f"`Subsequences`: the series has {target.num_data} steps, and a piece with its buffer {how.width}. Take "
            "shorter ones, or leave `subsequences` out."
        )
    nest = Nest(names, nested.Path(), twice=False, in_pieces=True)
    independent = any(block.method.needs.minibatches == "independent" for block in rest)
    make = functools.partial(SweepEngine, rest)
    return PiecedEngine(make, nest, target, plan, how, independent=independent)


def check_plan(methods: Iterable[Any], subsequences: Subsequences | None, plan: Plan) -> None:
    """Checks that the blocks can take what was asked for.

    Raises:
        SettingError: A sentence, if they cannot.
    """
    methods = list(methods)
    if subsequences is not None:
        wanted = [method.needs.minibatches for method in methods if method.role == "kernel"]
        if not any(method.role == "bound" for method in methods) or not wanted or "none" in wanted:
            raise SettingError(
                "`Hybrid`: `subsequences` is for lv.VI('markov') of a path and stochastic gradients of the rest: "
                "lv.Hybrid({'s': lv.VI('markov'), ...: lv.SGLD()}, subsequences=lv.Subsequences(1000, 100))."
            )
        if plan.batches is not None:
            raise SettingError(
                "`Hybrid`: with `subsequences`, a step sees `Subsequences(number=...)` pieces. Leave `batch_size` out."
            )
    for method in methods:
        if method.role != "bound":
            continue
        if not isinstance(method.family, str) or method.family not in FAMILIES:
            raise SettingError(
                f"`Hybrid`: a block's q is Gaussian: VI's `family` must be one of {', '.join(map(repr, FAMILIES))}; "
                f"got {method.family!r:.80}."
            )
        if not method.leaves_it_open or method.local is not None:
            raise SettingError(
                "`Hybrid`: the q of a block is found by Newton's steps, without gradients from draws: of VI, give "
                "`family` alone."
            )


def target_in_words(methods: Iterable[Any], subsequences: Subsequences | None, plan: Plan) -> str:
    """Which density the draws are from, in a sentence; empty if it is the posterior."""
    sentences = []
    if subsequences is not None:
        sentences.append(
            f"the likelihood of each piece of {subsequences.length} steps is that given the {subsequences.buffer} "
            "before it, and forgets what was before those."
        )
    for method in methods:
        if method.role == "bound":
            sentences.append(
                "the samplers target exp(bound), where the bound of the block of VI given the rest stands for its "
                "log-marginal, and the block is drawn from its q given the rest: exact where that q is, and else off "
                "by what the gap between the two changes with the rest."
            )
        said = method.approximation(plan) if method.role == "kernel" else ""
        if said:
            sentences.append(f"in the block of {type(method).__name__}, {said}")
    return " ".join(dict.fromkeys(sentences))


def _check_local(target: Posterior, plan: Plan) -> None:
    local = [name for name in target.model.local if name in target.model.like]
    if plan.batches is not None and local:
        raise SettingError(
            f"`Hybrid`: every row has its own {local[0]!r}, and a minibatch sees only a few. Give it a bound, "
            f"{{{local[0]!r}: lv.VI('meanfield')}}, or leave `batch_size` out."
        )


def _nest_of(bound: Block, target: Posterior, plan: Plan, *, twice: bool) -> Nest:
    """The block, with the form of q that its family and the Hessian of the density call for.

    Raises:
        SettingError: If the block is too large for its family, or is not what the family is for.
    """
    names, family = bound.names, bound.method.family
    like = target.model.like
    by_row = plan.batches is not None and any(name in target.model.local for name in names)
    if by_row:
        return _by_row(bound, target, twice=twice)
    if plan.batches is not None:
        raise SettingError(
            f"`Hybrid`: the bound of {names[0]!r} takes all rows, as each of them may tell of it. Leave `batch_size` "
            "out; of a time series, cut it by lv.Hybrid(..., subsequences=lv.Subsequences(length, buffer))."
        )
    size = sum(math.prod(like[name].shape) for name in names)
    coupled, banded, steady = _hessian_of(names, target)
    if family == "markov" and not (banded and steady):
        what = (
            "is tied to states that are not its neighbours" if not banded else "is tied to its neighbours nonlinearly"
        )
        raise SettingError(
            f"`Hybrid`: VI('markov') is for a chain of states, and a state of {names[0]!r} {what}. Take "
            "VI('fullrank'), or lv.NUTS() for the block. The states of a random walk are sites of "
            "lv.series.RandomWalk; those of dist.GaussianRandomWalk are its steps."
        )
    if banded and steady and (family in ("auto", "markov") or (family == "meanfield" and not coupled)):
        return Nest(names, nested.Path(coupled), twice=twice)
    if size > MOST_IN_A_CLOUD:
        raise SettingError(
            f"`Hybrid`: the block {', '.join(map(repr, names))} has {size} numbers, and VI({family!r}) inside a "
            f"sampler takes at most {MOST_IN_A_CLOUD} that hang together. Give it to lv.NUTS()."
        )
    return Nest(names, nested.Cloud(full=family != "meanfield"), twice=twice)


def _by_row(bound: Block, target: Posterior, *, twice: bool) -> Nest:
    """The nest of local variables: one number for each row."""
    names = bound.names
    if len(names) > 1 or target.model.like[names[0]].shape != (target.num_data,):
        raise SettingError(
            f"`Hybrid`: with minibatches, a block with a `VI` is one site with one number for each row; got "
            f"{', '.join(f'{name!r} of shape {target.model.like[name].shape}' for name in names)}. Leave `batch_size` "
            "out, or integrate some of them out of the program."
        )
    if bound.method.family == "markov":
        raise SettingError(
            f"`Hybrid`: the rows of a minibatch are no chain. Take VI('meanfield') for {names[0]!r}, whose rows are "
            "independent given the rest."
        )
    return Nest(names, nested.Path(coupled=False), by_row=True, twice=twice)


def _hessian_of(names: tuple[str, ...], target: Posterior) -> tuple[bool, bool, bool]:
    """Of the block's Hessian: whether neighbours are coupled, nothing else is, and the couplings are constant."""
    example = jax.tree.map(np.asarray, target.start(np.random.default_rng(0)))
    others = {name: leaf for name, leaf in example.items() if name not in names}
    block = {name: np.zeros_like(example[name]) for name in names}
    size = sum(np.size(leaf) for leaf in block.values())
    if size < 2:
        return False, True, True
    found = compilation.run(functools.partial(_couples, names), target, others)
    coupled, beyond, change = (float(number) for number in found)
    rounding = ROUNDING * float(np.finfo(np.result_type(*block.values())).eps)
    return coupled > rounding, beyond < NOTHING, change < NOTHING


def _couples(names: tuple[str, ...], target: Posterior, others: Any) -> Any:
    density, size = marginal.block_density(target, names, others)
    at = jnp.zeros(size, jnp.result_type(float))
    return nested.couples(density, jax.random.key(0), at)
