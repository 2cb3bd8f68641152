"""A fit and rows, ready to be predicted: the program, and the values of its sites at each draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from langevin import checks
from langevin.data.table import Table
from langevin.errors import ModelError, SettingError
from langevin.models.arguments import brought_again
from langevin.models.density import Density
from langevin.models.source import Source
from langevin.predicting.calling import Caller, Unseen, program_of, site_of
from langevin.predicting.chosen import Chosen, choose
from langevin.predicting.columns import Columns, columns_of, index_of, left_out, may_lack
from langevin.predicting.sites import Site, Sites, are_independent, look, with_split
from langevin.predicting.values import Read, values_at
from langevin.run.keep import leaf_name
from langevin.run.seeds import Seed

if TYPE_CHECKING:
    from langevin.result import Fit


class Predictor(NamedTuple):
    """All that a prediction needs.

    Attributes:
        caller: The program.
        columns: The rows.
        chosen: Which draws.
        values: The values of the sites that all rows share, draws in front, each once; and of parameters, without
            draws.
        own: The values of sites that each row has its own of, draws in front, where the rows are the fit's own.
        params: The values of the program's `numpyro.param` sites.
        sites: The sites of the program.
        asked: Those that are predicted.
        by_rows: Whether rows can be called in batches.
        seed: Of all that is drawn.
        source: Keeps what is compiled.
        likeness: What the program is called with, but for the rows' values: with the same, it is compiled once.
    """

    caller: Caller
    columns: Columns
    chosen: Chosen
    values: dict[str, np.ndarray | Read]
    own: dict[str, np.ndarray | Read]
    params: dict[str, Any]
    sites: Sites
    asked: tuple[Site, ...]
    by_rows: bool
    seed: Seed
    source: Source
    likeness: Hashable


def predictor_of(
    fit: Fit,
    data: Any = None,
    *,
    names: str | list[str] | tuple[str, ...] | None = None,
    num_draws: int | None = None,
    seed: Any = 0,
    unseen: Unseen = "error",
    constants: Mapping[str, Any] | None = None,
    who: str = "predict",
) -> Predictor:
    """Makes a fit ready to predict rows.

    Args:
        fit: The fit.
        data: Rows, as a user brings them or as a `Table`; None for those of the fit.
        names: The sites to predict; by default those that were observed.
        num_draws: How many evenly spread draws; by default all, but at most 1,000.
        seed: Of all that is drawn.
        unseen: What becomes of groups that the fit has not seen.
        constants: Arguments of the program to replace those of the fit.
        who: The function that asks, for messages.

    Raises:
        SettingError: If the fit does not know its model, or an argument makes no sense.
        ModelError: If the program cannot be called on these rows; names the argument or the site.
    """
    checks.choice(who, "unseen", unseen, ("error", "draw"))
    source = source_of(fit, who)
    function, held_constants = _program(source, constants)
    table = data if isinstance(data, Table) else source.table
    if data is not None and table is not data:
        given = {**held_constants, **(constants or {})}
        table, held_constants = new_rows(fit, source.model, given, data, unseen)
        held_constants = {**held_constants, **(constants or {})}
    if table is None:
        raise SettingError(f"`{who}`: this fit was loaded, and does not have the rows it was fitted to. Give `data`.")
    columns = columns_of(function, held_constants, table, who, source.once)._replace(index=index_of(data))
    caller = Caller(function, held_constants, unseen=unseen)
    missing = ", ".join(f"`{name}`" for name in left_out(function, columns.inputs, held_constants))
    draws = _drawn(fit, source)
    likeness = _likeness(caller, columns)
    sites = source.once(
        ("sites", columns.num_rows, likeness),
        lambda: look(caller, columns.inputs, columns.num_rows, observed_of(fit), draws, missing),
    )
    asked = asked_of(sites, names, missing, who)
    caller = dataclasses.replace(caller, by_rows=frozenset({*sites.plated, *(site.name for site in asked)}))
    chosen = choose(fit.weights.values, num_draws, who)
    are_own = data is None or _same_rows(source, columns)
    if source.is_own is not None and not are_own:
        raise SettingError(f"`{who}`: {source.why_own}")
    everywhere, own = _values(draws, sites, chosen, are_own)
    params = _params(fit, sites)
    seeds = Seed.of(seed).child(who)
    begun = Predictor(
        caller, columns, chosen, everywhere, own, params, sites, asked, False, seeds, source, (likeness, tuple(own))
    )
    return finished(begun)


def finished(begun: Predictor) -> Predictor:
    """The predictor, once it is known whether rows can be called in batches, and what can be split."""
    caller, inputs, num_rows = begun.caller, begun.columns.inputs, begun.columns.num_rows
    first = {**begun.params, **{name: value[0] for name, value in begun.values.items()}}
    own = {name: value[0] for name, value in begun.own.items()}
    asked = tuple(site.name for site in begun.asked)

    def found() -> tuple[bool, Sites]:
        independent = are_independent(caller, inputs, num_rows, first, begun.sites)
        return independent, with_split(caller, inputs, num_rows, {**first, **own}, begun.sites)

    by_rows, sites = begun.source.once(("rows", num_rows, begun.likeness, asked), found)
    return begun._replace(by_rows=by_rows, sites=sites, asked=tuple(sites.all[name] for name in asked))


def _likeness(caller: Caller, columns: Columns) -> Hashable:
    """What the sites of a program follow from, besides the number of rows."""
    named = ((part, name, column) for part in ("inputs", "held") for name, column in getattr(columns, part).items())
    shapes = tuple((part, name, column.shape[1:], str(column.dtype)) for part, name, column in named)
    return caller.function, _Constants(caller.constants), caller.unseen, shapes


class _Constants:
    """Arguments that are the same if they are the same objects."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        # Held, so that no other object gets its address.
        self._items = tuple(sorted(constants.items(), key=lambda item: item[0]))

    def __hash__(self) -> int:
        return hash(tuple((name, id(value)) for name, value in self._items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constants) and [(n, id(v)) for n, v in self._items] == [
            (n, id(v)) for n, v in other._items
        ]


def new_rows(
    fit: Fit, model: Any, constants: Mapping[str, Any], data: Any, unseen: Unseen = "error"
) -> tuple[Table, dict[str, Any]]:
    """New rows with the codes that names had in the fit, and the constants that go with them.

    Raises:
        DataError: What is wrong, in which column; names the groups that the fit did not see.
    """
    counts = fit.settings.get("counts", {})
    lacks = frozenset() if isinstance(model, Density) else may_lack(model)
    return brought_again(model, data, constants, fit.levels, counts, may_lack=lacks, unseen=unseen)


def source_of(fit: Fit, who: str) -> Source:
    """What the fit knows of its model.

    Raises:
        SettingError: If it was loaded without it.
    """
    if fit.source is None:
        raise SettingError(
            f"`{who}` needs the model, which is not stored with a fit. Load it with the model: lv.load(path, model), "
            "and with its `constants` if it has any."
        )
    return fit.source


def observed_of(fit: Fit) -> tuple[str, ...]:
    """The names of the sites that were observed in the fit; empty if that is unknown."""
    return tuple(fit.settings.get("observed", ()))


def asked_of(sites: Sites, names: Any, missing: str, who: str) -> tuple[Site, ...]:
    """The sites to predict.

    Raises:
        SettingError: If there is no such site.
        ModelError: If nothing is left to predict.
    """
    if names is None:
        names = list(sites.observed)
        if not names:
            there = ", ".join(map(repr, sites.all)) or "none"
            raise ModelError(
                f"`{who}`: the program, called without {missing or 'any column'}, has no site to predict: it has "
                f"{there}. Let it sample what was observed in the fit "
                "whether or not it is observed: numpyro.sample('y', ..., obs=y) with y=None."
            )
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in sites.all:
            raise SettingError(f"`{who}`: there is no site {name!r}; there are {', '.join(map(repr, sites.all))}.")
    return tuple(sites.all[name] for name in names)


def _program(source: Source, constants: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(source.model, Density):
        density = source.model
        return source.once("program", lambda: program_of(density)), {}
    return source.model, {**source.constants, **(constants or {})}


def _same_rows(source: Source, columns: Columns) -> bool:
    """Whether the rows are those that the model was fitted to, or that the fit knows."""
    if source.is_own is not None:
        return source.is_own(columns.inputs, columns.num_rows)
    table = source.table
    if table is None or table.num_rows != columns.num_rows:
        return False
    return all(
        name in table.columns and np.array_equal(table.columns[name], column) for name, column in columns.inputs.items()
    )


def _values(
    draws: Mapping[str, Any], sites: Sites, chosen: Chosen, are_own: bool
) -> tuple[dict[str, np.ndarray | Read], dict[str, np.ndarray | Read]]:
    """The values of sites that all rows share, and of those that each row has its own of."""
    everywhere, own = {}, {}
    for name in sites.latent:
        follows = name in sites.own
        if name in draws and (are_own or not follows or (sites.has_control_flow and name not in sites.plated)):
            (own if follows else everywhere)[name] = values_at(draws[name], chosen.index[:: chosen.times])
        elif follows and name not in sites.plated and name not in sites.discrete and not sites.has_control_flow:
            raise ModelError(
                f"Site {name!r} has a value for each of the fit's rows and is not in a plate over them, so there is no "
                "telling what it is at other rows. Predict the rows of the fit, or write how it goes on with "
                "`numpyro.contrib.control_flow.scan`."
            )
        elif name not in sites.plated and name not in sites.discrete and not follows:
            raise ModelError(
                f"Site {name!r} is needed to predict, and the fit has no draws of it; it has "
                f"{', '.join(map(repr, draws)) or 'none'}. Fit again and keep it: `keep=` must name every latent site."
            )
    return everywhere, own


def _drawn(fit: Fit, source: Source) -> Mapping[str, Any]:
    """The draws by the name of their site."""
    if not isinstance(source.model, Density):
        return {str(name): fit.posterior[name] for name in fit.posterior}
    if "unconstrained_posterior" not in fit.tree:
        raise SettingError(
            "`predict`: this fit of an lv.Density kept no unconstrained positions. Fit it with "
            "lv.Keep(unconstrained=True)."
        )
    group = fit.tree["unconstrained_posterior"].to_dataset()
    return {site_of(str(name)): group[name] for name in group}


def _params(fit: Fit, sites: Sites) -> dict[str, Any]:
    """The fitted values of the program's parameters, where they may be.

    Raises:
        ModelError: If the fit has none of one.
    """
    if not sites.params:
        return {}
    group = fit.tree["parameters"].to_dataset() if "parameters" in fit.tree else {}
    values = {}
    for name, (like, constraint) in sites.params.items():
        leaves, structure = jax.tree_util.tree_flatten_with_path(like)
        stored = [
            leaf_name((jax.tree_util.DictKey("params"), jax.tree_util.DictKey(name), *path)) for path, _ in leaves
        ]
        if any(leaf not in group for leaf in stored):
            raise ModelError(f"The fit has no value of the program's parameter {name!r}.")
        bijection = biject_to(constraint)
        values[name] = jax.tree.unflatten(structure, [bijection(jnp.asarray(group[leaf].values)) for leaf in stored])
    return values
