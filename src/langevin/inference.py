"""lv.fit and lv.resume: a model, rows and a method in; a Fit out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from langevin import checks, spelling
from langevin.continuing import check_same, keep_of, method_of
from langevin.data.batches import Batches, Layout
from langevin.data.pieces import Pieces
from langevin.data.table import Missing
from langevin.engines.estimates import Gradients, gradients_of
from langevin.errors import SettingError
from langevin.methods import BY_NAME, CAVI, VI, Method, as_method, describe
from langevin.models.arguments import brought
from langevin.models.build import target_of
from langevin.models.density import Density
from langevin.models.joint import Joint
from langevin.models.networks.keeping import settled
from langevin.models.program import Noncentred, as_noncentred
from langevin.naming import coords_asked, dims_asked
from langevin.run.compilation import keep_on_disk
from langevin.run.keep import as_keep
from langevin.run.seeds import Seed
from langevin.run.store import Store
from langevin.runs import Asked, prepared
from langevin.surroundings import check_surroundings
from langevin.variational.build import objective_of

if TYPE_CHECKING:
    from langevin.result import Fit


def _belongs_to_method(name: str) -> str:
    """Says of a name which methods have a setting of that name."""
    methods = [make() for make in BY_NAME.values()]
    having = sorted({type(method).__name__ for method in methods if name in describe(method) and name != "name"})
    example = next((kind for kind in ("SGLD", "NUTS", *having) if kind in having), "")
    return f"It is a setting of the method: lv.{example}({name}=...), in place of its name." if having else ""


@functools.partial(spelling.checked, name="fit", homes=_belongs_to_method)
def fit(
    model: Callable[..., Any] | Density,
    data: Any = None,
    method: str | Method = "nuts",
    *,
    constants: Mapping[str, Any] | None = None,
    rows: str | tuple[str, ...] | None = None,
    missing: Missing = "error",
    dims: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    noncentred: Noncentred = "auto",
    collapse: str | tuple[str, ...] = (),
    num_chains: int | None = None,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: int | Batches | None = None,
    seed: int | jax.Array = 0,
    init: Fit | None = None,
    progress: bool = True,
    cache: bool | str | Path = False,
    store: str | Path | None = None,
    keep: Any = None,
    max_seconds: float | None = None,
) -> Fit:
    """Fits the posterior of a model.

    Ctrl-C ends a fit with the draws that there are, marked as interrupted; on disk, it can be continued.

    Args:
        model: A NumPyro program, called with `data` and `constants` as keywords; or an `lv.Density`.
        data: A dict of arrays, or a frame of pandas, polars or Arrow; or `lv.Pieces` of rows that do not fit into
            memory, for methods that take these. The leading axis is the rows. A program gets the
            columns that its arguments name, and the others are left alone. Names become codes, and an argument
            `num_carrier` is the number of levels of the column `carrier` (see docs/inputs.md).
        method: A method such as `lv.SGLD()`, or its name in lower case.
        constants: Arguments of the program that are passed whole.
        rows: The name of the program's plate over the rows, where it cannot be told by its size.
        missing: What to do where values are missing: "error"; "drop" leaves out the rows that lack a value in a column
            that is used, and the fit says how many; "keep" leaves not-a-number there, for a program that can handle
            it. A program with an argument `x_missing` gets the rows that lack `x`, and imputes them itself.
        dims: For sites, the names of their dimensions: `{"w": ("feature",)}`. By default those of their plates.
        coords: For dimensions, the labels of their elements: `{"feature": ["height", "weight"]}`. A dimension with the
            name of a column of categories has their levels.
        noncentred: Sites of the program whose noise is inferred, in place of the site itself (see
            `langevin.models.centring`). True for every site that has a location and scale, False for none; "auto" for
            what suits each element of the sites whose scale is unknown itself.
        collapse: Sites of the program to integrate out, in closed form, before the method runs (see
            `lv.show_conditionals` for those that can be). They are drawn back from their conditionals.
        num_chains: Chains; they run side by side. By default 4 (of `MAP` on a network 1).
        num_warmup: Draws of each chain, on average, that an exact method adapts with: by default 1000. With stochastic
            gradients and a step size that is given, steps to burn in; a schedule starts anew with the draws. With
            stochastic gradients on a network, steps to train and to burn in, half each; by default a number of epochs
            (see `langevin.engines.network`).
        num_draws: Draws of each chain: by default 1000; of a network of more than 12,500 weights fewer, so that the
            draws of four chains take about 400 MB, but at least 20.
        thin: Draws (with stochastic gradients, steps) to a draw that is kept. By default 1, except for stochastic
            gradients with an automatic step size: then so many that the draws of a chain span 150 to 600
            autocorrelation times (with fewer draws than that, one each), and of a network a number of epochs.
        batch_size: Rows in a minibatch, or an `lv.Batches`. By default every step sees all rows.
        seed: A whole number or a JAX key. The same seed gives the same bits.
        init: An earlier fit of the same model, by any method (say, by variational inference): the chains start at draws
            of it, and an exact method takes its first metric from their covariance.
        progress: Whether to show bars on the terminal, or in a notebook.
        cache: Whether compiled programs are kept on disk, so that the same model starts at once in the next process;
            or the folder for them. Turns JAX's compilation cache on for the whole process.
        store: A new folder that draws are written to as they come, with all that `resume` needs to continue the run.
            Memory stays flat however long the run is.
        keep: What is kept of a draw: names of sites, a function of the reported sites, or an `lv.Keep`. By default all
            that the model reports, and the unconstrained position; of an `lv.Network` its weights, once.
        max_seconds: After about so long the fit ends with what there is, and a finding says so. On disk, `resume`
            goes on.

    Returns:
        A `Fit`. If it cannot be trusted, a `LangevinWarning` says why.

    Raises:
        LangevinError: A sentence that says what is wrong, where, and what to do; see `langevin.errors`.

    Example:
        >>> import langevin as lv
        >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
        >>> fit = lv.fit(normal, {"x": [1.0, 2.0, 3.0]}, progress=False)
        >>> abs(float(fit.summary().loc["position", "mean"]) - 1.5) < 0.1
        True
    """
    check_surroundings("fit", constants)
    method = as_method(method)
    if max_seconds is not None:
        checks.positive("fit", "max_seconds", max_seconds, "60, or leave it out")
    if cache is not False:
        checks.path("fit", "cache", None if cache is True else cache)
        keep_on_disk(None if cache is True else cache)
    if callable(data) and not callable(model):
        raise SettingError("`fit`: the model comes first, and then the data: lv.fit(model, data).")
    checks.path("fit", "store", store)
    asked = Asked(
        num_chains=None if num_chains is None else checks.count("fit", "num_chains", num_chains),
        num_warmup=None if num_warmup is None else checks.count("fit", "num_warmup", num_warmup, least=0),
        num_draws=None if num_draws is None else checks.count("fit", "num_draws", num_draws),
        thin=None if thin is None else checks.count("fit", "thin", thin),
        batches=batch_size if isinstance(batch_size, Batches | None) else Batches(batch_size),
        seed=Seed.of(seed).words,
        rows=rows,
        noncentred=as_noncentred(noncentred),
        missing=missing,
        dims=dims_asked(dims),
        coords=coords_asked(coords),
        collapse=checks.names("fit", "collapse", collapse),
    )
    keep, pieces = as_keep(keep), data if isinstance(data, Pieces) else None
    data = data if pieces is None else pieces.columns(pieces.largest)
    table, constants = brought(model, data, constants or {}, missing, minibatch=asked.batches is not None)
    keep = settled(keep, model, table, constants)
    run = prepared(model, table, method, asked, keep, constants, init, pieces)
    if store is None:
        return run.into_memory(progress, max_seconds)
    created = Store.create(store, run.record(), run.engine.num_chains, run.plan.init)
    return run.into_store(created, progress, max_seconds)


@functools.partial(spelling.checked, name="resume")
def resume(
    path: str | Path,
    model: Callable[..., Any] | Density,
    data: Any = None,
    method: Method | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    keep: Any = None,
    num_draws: int | None = None,
    progress: bool = True,
    cache: bool | str | Path = False,
    max_seconds: float | None = None,
) -> Fit:
    """Continues a run on disk, to the same bits as if it had never stopped.

    Args:
        path: The folder that `fit(..., store=path)` wrote.
        model: The model of the run. Another one is noticed.
        data: Its data. Other data is noticed.
        method: Only for a method whose settings hold functions (a guide, a schedule, an optimiser), which are not
            stored: the same again.
        constants: As in `fit`.
        keep: As in `fit`; only where it was a function.
        num_draws: Draws of each chain in all, to ask for more than the run was begun with.
        progress: As in `fit`.
        cache: As in `fit`.
        max_seconds: As in `fit`, of this part of the run.

    Raises:
        SettingError: If something is not what the run was begun with; says what.
        StoreError: If the folder is damaged; says which file.
    """
    check_surroundings("resume", constants)
    if max_seconds is not None:
        checks.positive("resume", "max_seconds", max_seconds, "60, or leave it out")
    if cache is not False:
        checks.path("resume", "cache", None if cache is True else cache)
        keep_on_disk(None if cache is True else cache)
    checks.path("resume", "path", path)
    opened = Store.open(path)
    record = opened.record
    method = method_of(record, method)
    asked = Asked.from_json(record["asked"])
    if num_draws is not None:
        num_draws = checks.count("resume", "num_draws", num_draws)
        if asked.num_draws is not None and num_draws < asked.num_draws:
            raise SettingError(
                f"`resume`: `num_draws` is the number of draws in all, and the run was begun with {asked.num_draws}; "
                f"got {num_draws}."
            )
        asked = asked._replace(num_draws=num_draws)
    pieces = data if isinstance(data, Pieces) else None
    data = data if pieces is None else pieces.columns(pieces.largest)
    table, constants = brought(model, data, constants or {}, asked.missing, minibatch=asked.batches is not None)
    kept = keep_of(record, None if keep is None else settled(as_keep(keep), model, table, constants))
    run = prepared(model, table, method, asked, kept, constants, opened.init, pieces)
    now = run.record()
    check_same(record, now)
    opened.renew(now)
    return run.into_store(opened, progress, max_seconds)


@functools.partial(spelling.checked, name="elbo_gradients")
def elbo_gradients(
    model: Callable[..., Any] | Density,
    data: Any = None,
    method: VI = VI(),
    *,
    parameters: Any = None,
    num_samples: int = 1000,
    constants: Mapping[str, Any] | None = None,
    rows: str | tuple[str, ...] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Gradients:
    """Gradients of the bound at one point, each estimated from draws of its own: to compare estimators.

    Args:
        model: As in `fit`.
        data: As in `fit`.
        method: The family, the gradient, and how many particles an estimate has. A learned baseline is what it is in
            the first step: none.
        parameters: Of q, as in `fit.guide.parameters`; by default those that a fit begins with.
        num_samples: How many estimates.
        constants: As in `fit`.
        rows: As in `fit`.
        batch_size: As in `fit`: every estimate has its own minibatch.
        seed: The same seed gives the same bits.

    Example:
        >>> import langevin as lv
        >>> density = lv.Density(lambda x: -(x**2) / 2, init=0.0)
        >>> path, score = (lv.elbo_gradients(density, method=lv.VI(gradient=g)) for g in ("pathwise", "score"))
        >>> bool(path.variance["mean"] < score.variance["mean"])
        True
    """
    check_surroundings("elbo_gradients", constants)
    checks.count("elbo_gradients", "num_samples", num_samples)
    table, constants = brought(model, data, constants or {}, minibatch=batch_size is not None)
    batches = None if batch_size is None else Batches(batch_size)
    root = Seed.of(seed)
    if batches is not None:
        batches.check(table.num_rows)
        batches = batches.resolved(table.num_rows, independent=True)
    target = target_of(
        model,
        table,
        constants=constants,
        rows=rows,
        noncentred=False,
        needs=method.needs,
        minibatch=batches is not None,
    )
    objective = objective_of(method, target, batch_size)
    if batches is not None:
        objective = objective.with_data(Layout(batches, target.data, root.child("rows")).at(0)[0])
    return gradients_of(method, objective, batches, parameters, num_samples, root)


@functools.partial(spelling.checked, name="show_conditionals")
def show_conditionals(
    model: Callable[..., Any],
    data: Any = None,
    *,
    constants: Mapping[str, Any] | None = None,
    rows: str | tuple[str, ...] | None = None,
    blocks: Any = "auto",
    logistic: Literal["polya-gamma"] | None = None,
) -> None:
    """Prints the complete conditional of each block of sites, as it is derived from a program.

    `lv.Gibbs` draws from these; for coordinate ascent (`lv.CAVI`), the sites on the right stand for what q expects of
    them: `m[i]^2` for the expectation of the square.

    Args:
        model: A NumPyro program.
        data: As in `fit`.
        constants: As in `fit`.
        rows: As in `fit`.
        blocks: As in `lv.CAVI`.
        logistic: As in `lv.CAVI`.

    Raises:
        NotConjugateError: Names the site that has no conditional of a known family, and what stands in the way.

    Example:
        >>> import langevin as lv, numpy as np, numpyro, numpyro.distributions as dist
        >>> def normal(x):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        ...     with numpyro.plate("rows", len(x)):
        ...         numpyro.sample("x", dist.Normal(mean, precision**-0.5), obs=x)
        >>> lv.show_conditionals(normal, {"x": np.arange(10.0)})
        mean | rest ~ Normal
            precision = 0.01 + 10 precision
            precision * mean = sum_n precision x[n]
        <BLANKLINE>
        precision | rest ~ Gamma
            concentration = 7
            rate = 1 + 5 mean^2 - sum_n mean x[n] + 0.5 sum_n x[n]^2
    """
    from langevin.conjugacy.conditionals import Conditionals

    check_surroundings("show_conditionals", constants)
    method = CAVI(blocks=blocks, logistic=logistic)
    table, constants = brought(model, data, constants or {})
    target = target_of(
        model, table, constants=constants, rows=rows, noncentred=False, needs=method.needs, minibatch=False
    )
    assert isinstance(target, Joint)
    with jax.enable_x64(True):
        conditionals = Conditionals(target, target.num_data, None, method.blocks, method.logistic)
        print(conditionals.written(jax.tree.map(np.asarray, target.rows)))
