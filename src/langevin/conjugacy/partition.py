"""From the log-density to blocks: which sites are conjugate, in which family, and which belong together.

Reads every term of the log-density. What stands in the way of a conditional is an error that names the site, the
site of the log-density where it happens, and what happens there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from langevin.conjugacy.blocks import Block, Layout, gaussian
from langevin.conjugacy.families import (
    Beta,
    Categorical,
    CategoricalChain,
    Dirichlet,
    PolyaGamma,
    PoweredGamma,
    Wishart,
)
from langevin.conjugacy.indexing import At, same
from langevin.conjugacy.latents import Latent
from langevin.conjugacy.polynomial import Opaque, Polynomial
from langevin.conjugacy.reading import Statement
from langevin.conjugacy.terms import LOG, LOG1M, LOGDET, VALUE, Factor, Term
from langevin.errors import ModelError, NotConjugateError, SettingError

# The longest vector with a Gaussian of its own.
MOST_JOINT = 2048


class Use(NamedTuple):
    """Factors of one site in one term, and where."""

    statement: Statement
    factors: tuple[Factor, ...]


def partition(
    latents: Mapping[str, Latent],
    statements: Sequence[Statement],
    asked: Sequence[Sequence[str]] | str = "auto",
    augmented: Mapping[str, PolyaGamma] | None = None,
    together: int = 256,
) -> tuple[Block, ...]:
    """The blocks of the sites that the statements are polynomials in.

    Args:
        latents: The sites, by name, in the order of the program.
        statements: The log-densities.
        asked: Names of sites that belong together; "auto" for what the log-density suggests, "sites" for each alone.
        augmented: Auxiliary sites, with their families.
        together: How long the vector is at most that several sites are put into, where it was not asked for.

    Raises:
        ModelError: If a site is not conditionally conjugate.
    """
    for statement in statements:
        if isinstance(statement.log_density, Opaque) and statement.log_density.sites:
            raise _refused(statement, sorted(statement.log_density.sites), statement.log_density.reason)
    uses = {name: list(_uses(name, statements)) for name in latents}
    blocks: dict[str, Block] = {}
    real = [name for name, latent in latents.items() if latent.support == "real"]
    for name, latent in latents.items():
        if name not in real:
            block = _own(latent, uses[name], (augmented or {}).get(name))
            blocks[name] = block
    layouts = {name: _layout(latents[name], uses[name]) for name in real}
    for name in real:
        _check_real(latents[name], uses[name], layouts[name])
    for group in _together(real, latents, layouts, statements, asked, together):
        made = _gaussian(group, latents, layouts, statements)
        blocks[made.sites[0]] = made
    order = {name: place for place, name in enumerate(latents)}
    return tuple(sorted(blocks.values(), key=lambda block: order[block.sites[0]]))


def _uses(name: str, statements: Sequence[Statement]) -> Iterator[Use]:
    for statement in statements:
        for term in _terms(statement):
            factors = tuple(factor for factor in term.factors if factor.site == name)
            if factors:
                yield Use(statement, factors)


def _terms(statement: Statement) -> tuple[Term, ...]:
    return statement.log_density.terms if isinstance(statement.log_density, Polynomial) else ()


def _own(latent: Latent, uses: list[Use], augmented: PolyaGamma | None) -> Block:
    """The block of a site that is not real."""
    if latent.support == "discrete":
        return _discrete(latent, uses)
    known = {"positive": _positive, "unit": _unit, "simplex": _simplex, "matrix": _matrix}
    if augmented is not None:
        return Block(latent.name, (latent.name,), augmented, local=latent.local)
    if latent.support not in known:
        raise NotConjugateError(
            f"Site {latent.name!r} ({latent.distribution}) is not conditionally conjugate: no family here has its "
            f"support ({latent.support}). {_remedy([latent.name])}",
            latent.name,
        )
    for use in uses:
        if len(use.factors) > 1:
            what = "multiplies it by another element of itself, or by its own logarithm"
            raise _refused(use.statement, [latent.name], what, said=True)
    family = known[latent.support](latent, uses)
    return Block(latent.name, (latent.name,), family, local=latent.local)


def _discrete(latent: Latent, uses: list[Use]) -> Block:
    values = latent.values or ()
    chained = False
    for use in uses:
        if len(use.factors) == 1:
            continue
        times = [factor.access[1] if latent.time is not None else None for factor in use.factors]
        if len(use.factors) == 2 and all(isinstance(time, At) for time in times):
            one, two = times
            assert isinstance(one, At)
            assert isinstance(two, At)
            rest = zip(use.factors[0].access[2:], use.factors[1].access[2:], strict=True)
            if one.label is two.label and abs(one.offset - two.offset) == 1 and all(same(a, b) for a, b in rest):
                chained = True
                continue
        if len(use.factors) == 2 and latent.shape and latent.shape[0] == 2 and latent.time is not None:
            chained = True
            continue
        raise _refused(use.statement, [latent.name], "depends on two elements of it at a time", said=True)
    if chained:
        family = CategoricalChain(len(values), latent.shape[0], latent.shape[1:])
    else:
        family = Categorical(len(values), latent.shape)
    return Block(latent.name, (latent.name,), family, local=latent.local, values=values)


def _used(uses: list[Use]) -> dict[tuple[str, float], Statement]:
    """What functions of a site there are, and where each is first."""
    found: dict[tuple[str, float], Statement] = {}
    for use in uses:
        factor = use.factors[0]
        found.setdefault((factor.function, factor.exponent), use.statement)
    return found


def _positive(latent: Latent, uses: list[Use]) -> PoweredGamma:
    used = _used(uses)
    powers = [exponent for function, exponent in used if function == VALUE]
    for (function, exponent), statement in used.items():
        if function not in (VALUE, LOG) or (function == LOG and exponent != 1):
            raise _refused(statement, [latent.name], _word(function, exponent))
    if len(powers) > 1:
        other = next(power for power in powers if power != powers[0])
        here, there = used[VALUE, powers[0]], used[VALUE, other]
        raise NotConjugateError(
            f"Site {latent.name!r} ({latent.distribution}) is not conditionally conjugate: the log-density of "
            f"{here.name!r} ({here.distribution}) has its power {powers[0]:g}, and that of {there.name!r} "
            f"({there.distribution}) its power {other:g}; a power of a gamma variable has one of them, beside its "
            f"logarithm. {_prior_remedy(latent, powers[0], other)}",
            latent.name,
        )
    return PoweredGamma(latent.shape, powers[0] if powers else 1.0)


def _prior_remedy(latent: Latent, power: float, other: float) -> str:
    if -2.0 in (power, other):
        name = latent.name
        return (
            f"It looks like a standard deviation: make its precision the site, "
            f'numpyro.sample("{name}_precision", dist.Gamma(...)), and {name} = 1 / jnp.sqrt({name}_precision).'
        )
    return _remedy([latent.name])


def _unit(latent: Latent, uses: list[Use]) -> Beta:
    for (function, exponent), statement in _used(uses).items():
        if function not in (LOG, LOG1M) or exponent != 1:
            raise _refused(statement, [latent.name], _word(function, exponent))
    return Beta(latent.shape)


def _simplex(latent: Latent, uses: list[Use]) -> Dirichlet:
    for (function, exponent), statement in _used(uses).items():
        if function != LOG or exponent != 1:
            raise _refused(statement, [latent.name], _word(function, exponent))
    return Dirichlet(latent.shape)


def _matrix(latent: Latent, uses: list[Use]) -> Wishart:
    for (function, exponent), statement in _used(uses).items():
        if function not in (VALUE, LOGDET) or exponent != 1:
            raise _refused(statement, [latent.name], _word(function, exponent))
    return Wishart(latent.shape[:-2], latent.shape[-1])


def _layout(latent: Latent, uses: list[Use]) -> Layout:
    """Along which axes the elements of a real site meet."""
    axes = range(len(latent.shape))
    joint: set[int] = set()
    steps: set[int] = set()
    for use in uses:
        for one, two in itertools.combinations(use.factors, 2):
            for axis in axes:
                a, b = one.access[axis], two.access[axis]
                if same(a, b):
                    continue
                if isinstance(a, At) and isinstance(b, At) and a.label is b.label and abs(a.offset - b.offset) == 1:
                    steps.add(axis)
                else:
                    joint.add(axis)
    steps -= joint
    if len(steps) > 1:
        joint |= set(sorted(steps)[1:])
        steps = {min(steps)}
    chain = next(iter(steps), None)
    batch = tuple(axis for axis in axes if axis not in joint and axis != chain)
    return Layout(latent.name, latent.shape, batch, tuple(sorted(joint)), chain)


def _check_real(latent: Latent, uses: list[Use], layout: Layout) -> None:
    for use in uses:
        degree = sum(factor.exponent for factor in use.factors)
        odd = [factor for factor in use.factors if factor.function != VALUE or factor.exponent not in (1, 2)]
        if odd:
            raise _refused(use.statement, [latent.name], _word(odd[0].function, odd[0].exponent))
        if degree > 2:
            raise _refused(use.statement, [latent.name], f"a polynomial of degree {degree:g}")
    if layout.size > MOST_JOINT:
        raise NotConjugateError(
            f"Site {latent.name!r} has {layout.size} elements that all meet in the log-density; their conditional is "
            f"one Gaussian, for which at most {MOST_JOINT} elements are taken. Fit the program by lv.VI.",
            latent.name,
        )


def _together(
    real: Sequence[str],
    latents: Mapping[str, Latent],
    layouts: Mapping[str, Layout],
    statements: Sequence[Statement],
    asked: Sequence[Sequence[str]] | str,
    together: int,
) -> list[list[str]]:
    """Real sites in groups, each of which has one Gaussian."""
    meeting, apart = _meetings(set(real), statements)
    if not isinstance(asked, str):
        return _asked(real, apart, asked)
    groups = [[name] for name in real]
    if asked == "sites":
        return groups
    for one, two in sorted(meeting):
        a = next(group for group in groups if one in group)
        b = next(group for group in groups if two in group)
        if a is b or any(frozenset((x, y)) in apart for x in a for y in b):
            continue
        if _fits([*a, *b], latents, layouts, statements, together):
            groups = [group for group in groups if group is not a and group is not b] + [[*a, *b]]
    return groups


def _asked(real: Sequence[str], apart: set[frozenset[str]], asked: Sequence[Sequence[str]]) -> list[list[str]]:
    groups = [list(group) for group in asked]
    for group in groups:
        for name in group:
            if name not in real:
                raise SettingError(f"`blocks`: {name!r} is no real site; those are {', '.join(map(repr, real))}.")
        for one, two in itertools.combinations(group, 2):
            if frozenset((one, two)) in apart:
                raise SettingError(
                    f"`blocks`: {one!r} and {two!r} are multiplied in the log-density, so that together they are not "
                    "Gaussian. Leave them apart."
                )
    named = [name for group in groups for name in group]
    if len(set(named)) < len(named):
        raise SettingError("`blocks`: a site is in two blocks. Name each at most once.")
    return groups + [[name] for name in real if name not in named]


def _meetings(real: set[str], statements: Sequence[Statement]) -> tuple[set[tuple[str, str]], set[frozenset[str]]]:
    """Pairs of real sites that meet, and pairs that cannot be in one Gaussian, since then it would be none."""
    meeting: set[tuple[str, str]] = set()
    apart: set[frozenset[str]] = set()
    for statement in statements:
        for term in _terms(statement):
            degrees: dict[str, float] = {}
            for factor in term.factors:
                if factor.site in real:
                    degrees[factor.site] = degrees.get(factor.site, 0.0) + factor.exponent
            names = sorted(degrees)
            for one, two in itertools.combinations(names, 2):
                if degrees[one] + degrees[two] > 2:
                    apart.add(frozenset((one, two)))
                meeting.add((one, two))
            if sum(degrees.values()) > 2 and len(names) > 2:
                apart |= {frozenset(pair) for pair in itertools.combinations(names, 2)}
    return meeting, apart


def _fits(
    group: list[str],
    latents: Mapping[str, Latent],
    layouts: Mapping[str, Layout],
    statements: Sequence[Statement],
    together: int,
) -> bool:
    """Whether one Gaussian of several sites is affordable."""
    if len({latents[name].local for name in group}) > 1:
        return False
    if _alike(group, layouts, statements):
        return sum(layouts[name].size for name in group) <= together
    if any(layouts[name].chain is not None for name in group):
        return False
    return sum(math.prod(latents[name].shape) for name in group) <= together


def _alike(group: list[str], layouts: Mapping[str, Layout], statements: Sequence[Statement]) -> bool:
    """Whether the sites meet element by element along all axes but those of their vectors."""
    shapes = {(layouts[name].batch_shape, _length(layouts[name])) for name in group}
    if len(shapes) > 1:
        return False
    chained = layouts[group[0]].chain is not None
    if not layouts[group[0]].batch and not chained:
        return True
    for statement in statements:
        for term in _terms(statement):
            factors = [factor for factor in term.factors if factor.site in group]
            for one, two in itertools.combinations(factors, 2):
                first, second = layouts[one.site], layouts[two.site]
                for a, b in zip(first.batch, second.batch, strict=True):
                    if not same(one.access[a], two.access[b]):
                        return False
                if first.chain is not None and second.chain is not None:
                    a, b = one.access[first.chain], two.access[second.chain]
                    step = isinstance(a, At) and isinstance(b, At) and a.label is b.label
                    if not same(a, b) and not (step and abs(a.offset - b.offset) == 1):
                        return False
    return True


def _length(layout: Layout) -> int | None:
    return None if layout.chain is None else layout.shape[layout.chain]


def _gaussian(
    group: list[str], latents: Mapping[str, Latent], layouts: Mapping[str, Layout], statements: Sequence[Statement]
) -> Block:
    chosen = [layouts[name] for name in group]
    if len(group) > 1 and not _alike(group, layouts, statements):
        # All elements in one vector.
        axes = [tuple(range(len(layout.shape))) for layout in chosen]
        chosen = [layout._replace(batch=(), joint=own, chain=None) for layout, own in zip(chosen, axes, strict=True)]
    return gaussian("+".join(group), chosen, latents[group[0]].local)


def _word(function: str, exponent: float) -> str:
    if function == VALUE:
        return "its value itself" if exponent == 1 else f"its power {exponent:g}"
    words = {LOG: "the logarithm", LOG1M: "the logarithm of one minus it", LOGDET: "the determinant"}
    return words.get(function, function) + ("" if exponent == 1 else f" to the power of {exponent:g}")


def _refused(statement: Statement, sites: Sequence[str], reason: str, said: bool = False) -> ModelError:
    listed = " and ".join(map(repr, sites))
    if len(sites) > 2:
        listed = ", ".join(map(repr, sites[:-1])) + f" and {sites[-1]!r}"
    verb = "is" if len(sites) == 1 else "are"
    which = f"Site {listed}" if len(sites) == 1 else f"Sites {listed}"
    where = f"the log-density of {statement.name!r} ({statement.distribution})"
    if said:
        what = f"{where} {reason}"
    elif reason.startswith("its "):
        what = f"{where} has {reason}"
    else:
        what = f"{where} has {reason} {'of it' if len(sites) == 1 else 'of them'}"
    hint = ""
    if statement.distribution in ("BernoulliLogits", "BinomialLogits"):
        hint = ' Logistic likelihoods have conjugate sites with logistic="polya-gamma".'
    elif statement.distribution in ("BernoulliProbs", "BinomialProbs") and "logistic" in reason:
        hint = ' Give it logits=..., without the function; they have conjugate sites with logistic="polya-gamma".'
    elif statement.distribution == "StudentT":
        hint = (
            ' Write it with a precision for each row: lam = numpyro.sample("lam", dist.Gamma(df / 2, df / 2)), and '
            "dist.Normal(loc, scale / jnp.sqrt(lam))."
        )
    elif statement.distribution.startswith("Mixture"):
        hint = ' Make the label of the mixture a site: numpyro.sample("z", dist.Categorical(probs)).'
    if "can be zero" in reason:
        hint = " Put a small number in place of zero, as in jnp.where(z == 1, rate, 1e-6)."
    return NotConjugateError(f"{which} {verb} not conditionally conjugate: {what}.{hint} {_remedy(sites)}", sites[0])


def _remedy(sites: Sequence[str]) -> str:
    return f"Fit the program by another method ('nuts', 'vi'), or {sites[0]!r} alone by another one, with lv.Hybrid."
