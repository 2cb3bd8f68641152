"""lv.fit: a model, rows and a method in; a Fit out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin import checks
from langevin.contracts import Needs
from langevin.data.batches import Batches
from langevin.data.table import Table, as_table
from langevin.drivers import exact, stochastic, variational
from langevin.drivers.chains import Draws
from langevin.drivers.estimates import Gradients, gradients_of
from langevin.drivers.exact import Counts
from langevin.drivers.scrutiny import Scrutiny
from langevin.errors import LangevinWarning, SettingError
from langevin.keys import derive
from langevin.methods import MAP, SGHMC, VI, CyclicalSGHMC, CyclicalSGLD, Exact, Method, Sampler, as_method
from langevin.models.build import target_of
from langevin.models.density import Density
from langevin.posterior import Key, Posterior
from langevin.programs import keep_on_disk
from langevin.progress import Bars, Watch, silent
from langevin.variational.flow import is_flow

if TYPE_CHECKING:
    from langevin.result import Fit


def fit(
    model: Callable[..., Any] | Density,
    data: Any = None,
    method: str | Method = "nuts",
    *,
    constants: Mapping[str, Any] | None = None,
    rows: str | tuple[str, ...] | None = None,
    noncentred: bool | tuple[str, ...] = False,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_draws: int = 1000,
    thin: int | None = None,
    batch_size: int | Batches | None = None,
    seed: int | jax.Array = 0,
    init: Fit | None = None,
    progress: bool = True,
    cache: bool | str | Path = False,
) -> Fit:
    """Fits the posterior of a model.

    Args:
        model: A NumPyro program, called with `data` and `constants` as keywords; or an `lv.Density`.
        data: A dict of arrays, or a frame. The leading axis is the rows.
        method: A method such as `lv.SGLD()`, or its name in lower case.
        constants: Arguments of the program that are passed whole.
        rows: The name of the program's plate over the rows, where it cannot be told by its size.
        noncentred: Sites of the program whose noise is inferred, in place of the site itself: for random effects and
            walks of unknown scale (see `langevin.models.centring`). True for every site that has a location and scale.
        num_chains: Chains; they run side by side.
        num_warmup: Draws of each chain, on average, that an exact method adapts with. With stochastic gradients, steps
            to find the mode, or, where the step size is given, to burn in; a schedule starts anew with the draws.
        num_draws: Draws of each chain.
        thin: Draws (with stochastic gradients, steps) to a draw that is kept. By default 1, except for stochastic
            gradients with an automatic step size: then so many that the draws of a chain span 150 times what it takes
            the chain to forget (with fewer than 150 draws, one time each).
        batch_size: Rows in a minibatch, or an `lv.Batches`. By default every step sees all rows.
        seed: A whole number or a JAX key. The same seed gives the same bits.
        init: An earlier fit of the same model, by any method (say, by variational inference): the chains start at draws
            of it, and an exact method takes its first metric from their covariance.
        progress: Whether to show bars on the terminal.
        cache: Whether compiled programs are kept on disk, so that the same model starts at once in the next process;
            or the folder for them. Turns JAX's compilation cache on for the whole process.

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
    method = as_method(method)
    num_chains = checks.count("fit", "num_chains", num_chains)
    num_draws = checks.count("fit", "num_draws", num_draws)
    num_warmup = checks.count("fit", "num_warmup", num_warmup, least=0)
    thin = None if thin is None else checks.count("fit", "thin", thin)
    if not isinstance(constants, Mapping | None):
        raise SettingError(f"`constants` must be a dict of arguments by name; got {constants!r}.")
    batches = batch_size if isinstance(batch_size, Batches | None) else Batches(batch_size)
    noncentred = (noncentred,) if isinstance(noncentred, str) else noncentred
    words = _seed_words(seed)
    if cache is not False:
        keep_on_disk(None if cache is True else cache)
    table = as_table(data)
    if batches is not None:
        batches.check(table.num_rows)
        batches = batches.resolved(table.num_rows, method.independent_batches)
    _check_together(method, num_draws, batches)
    target = _target(model, table, constants or {}, rows, noncentred, batches, method)
    known = None
    if init is not None:
        target, known = _starting_from(init, target)
    asked = (num_chains, num_warmup, num_draws, thin)
    with Bars() if progress else nullcontext(silent) as watch:
        if isinstance(method, Exact):
            ran = _run_exact(method, target, words, asked, watch, known)
        else:
            layout_key, run_key = derive(_as_key(words), 2)
            if batches is not None:
                laid_out = batches.lay_out(table.columns, table.num_rows, _words_of(layout_key))
                target = dataclasses.replace(target, data=laid_out)
            if isinstance(method, VI):
                ran = _run_variational(method, target, batches, words, asked, watch)
            else:
                ran = _run_stochastic(method, target, batches, run_key, asked, watch)
    # These import xarray, which takes half a second, and which a thread has imported in the meantime.
    from langevin.assembly import add_optimisation, approximation, data_tree, describe
    from langevin.result import Fit

    settings = {
        "method": describe(method),
        "num_chains": num_chains,
        "num_warmup": ran.num_warmup,
        "num_draws": ran.draws.valid.shape[1],
        "thin": ran.thin,
        "noncentred": noncentred,
        "batches": None if batches is None else dataclasses.asdict(batches),
        "num_data": target.num_data,
        "seed": words,
        "together": ran.together,
        "step_size": None if ran.step_size is None else float(ran.step_size),
        "scrutiny": ran.scrutiny,
        "approximation": approximation(method, batches, () if ran.found is None else ran.found.scored),
        "version": importlib.metadata.version("langevin"),
    }
    tree = data_tree(ran.draws, dict(target.dims), settings)
    if ran.found is not None:
        add_optimisation(tree, ran.found.optimised)
    guide = None if ran.found is None else ran.found.guide
    result = Fit(tree, target if isinstance(target, Posterior) else None, guide)
    for finding in result.verdict:
        if finding.code != "point":
            warnings.warn(str(finding), LangevinWarning, stacklevel=2)
    return result


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
    checks.count("elbo_gradients", "num_samples", num_samples)
    table = as_table(data)
    batches = None if batch_size is None else Batches(batch_size)
    if batches is not None:
        batches.check(table.num_rows)
        batches = batches.resolved(table.num_rows, independent=True)
    words = _seed_words(seed)
    target = _target(model, table, constants or {}, rows, False, batches, method)
    if batches is not None:
        target = dataclasses.replace(target, data=batches.lay_out(table.columns, table.num_rows, words))
    objective = variational.objective_of(method, target, batches)
    return gradients_of(method, objective, batches, parameters, num_samples, np.random.SeedSequence(words))


class _Ran(NamedTuple):
    """What a run brought, whatever the method."""

    draws: Draws
    num_warmup: int
    thin: int
    step_size: Any
    scrutiny: dict[str, Any]
    together: int = 1
    found: variational.Approximated | None = None


_Asked = tuple[int, int, int, int | None]
"""Chains, warm-up, draws of each chain, and steps to a draw."""


def _run_exact(
    method: Exact, target: Posterior, words: list[int], asked: _Asked, watch: Watch, known: np.ndarray | None
) -> _Ran:
    num_chains, num_warmup, num_draws, thin = asked
    counts = Counts(num_chains, num_warmup, num_draws, thin or 1, _together(num_chains))
    draws, step_size = exact.sample(method, target, np.random.SeedSequence(words), counts, watch, known)
    return _Ran(draws, num_warmup, counts.thin, step_size, Scrutiny()._asdict(), counts.together)


def _run_variational(
    method: VI, target: Any, batches: Batches | None, words: list[int], asked: _Asked, watch: Watch
) -> _Ran:
    objective = variational.objective_of(method, target, batches)
    seeds = np.random.SeedSequence(words)
    found = variational.approximate(method, objective, batches, seeds, (asked[0], asked[2]), watch)
    scrutiny = {
        "khat": found.khat,
        "efficiency": found.efficiency,
        "settled": found.optimised.settled,
        "skipped": found.optimised.skipped,
        "parameter_error": found.optimised.error,
        "points": list(objective.points),
    }
    return _Ran(found.draws, 0, 1, found.optimised.learning_rate, scrutiny, found=found)


def _run_stochastic(
    method: MAP | Sampler, target: Posterior, batches: Batches | None, key: Key, asked: _Asked, watch: Watch
) -> _Ran:
    if isinstance(method, MAP):
        draws, tuning, thin = stochastic.climb(method, target, batches, key, asked[0], watch)
        return _Ran(draws, 0, thin, tuning.step_size, Scrutiny()._asdict())
    draws, tuning, thin, seen = stochastic.sample(method, target, batches, key, asked, watch)
    return _Ran(draws, asked[1], thin, tuning.step_size, seen._asdict())


def _target(
    model: Any,
    table: Table,
    constants: Mapping[str, Any],
    rows: str | tuple[str, ...] | None,
    noncentred: bool | tuple[str, ...],
    batches: Batches | None,
    method: Method,
) -> Any:
    """The posterior; or the joint distribution, where variational inference needs that."""
    needs = Needs("density")
    if isinstance(method, VI):
        in_family = isinstance(method.family, str) or (isinstance(model, Density) and is_flow(method.family))
        needs = Needs("either" if in_family and method.local is None else "joint")
    return target_of(
        model,
        table,
        constants=constants,
        rows=rows,
        noncentred=noncentred,
        needs=needs,
        minibatch=batches is not None,
    )


def _starting_from(init: Fit, posterior: Any) -> tuple[Posterior, np.ndarray]:
    """The posterior with the draws of an earlier fit as its starts; and these draws, flat.

    Raises:
        SettingError: If the fit is of another model.
    """
    if not isinstance(posterior, Posterior):
        raise SettingError("`init` is for samplers and families; a guide brings its own start. Leave it out.")
    example = posterior.start(np.random.default_rng(0))
    leaves, structure = jax.tree.flatten(example)
    group = init.data_tree["unconstrained_posterior"].to_dataset()
    found = [np.asarray(group[name].values) for name in group.attrs["leaves"]]
    shapes = [part.shape[2:] for part in found]
    if shapes != [np.shape(leaf) for leaf in leaves]:
        raise SettingError(
            f"`init` is a fit of another model: its unconstrained positions have the shapes {shapes}, and those of "
            f"this model {[np.shape(leaf) for leaf in leaves]}."
        )
    parts = [part.reshape(-1, *shape) for part, shape in zip(found, shapes, strict=True)]

    def start(generator: np.random.Generator) -> Any:
        index = generator.integers(len(parts[0]))
        return jax.tree.unflatten(
            structure, [np.asarray(p[index], x.dtype) for p, x in zip(parts, leaves, strict=True)]
        )

    flat = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    return posterior.with_start(start), flat


def _check_together(method: Method, num_draws: int, batches: Batches | None) -> None:
    """Settings that make sense alone, but not together."""
    if isinstance(method, Exact) and batches is not None:
        raise SettingError(
            f"`{type(method).__name__}` takes all rows in every step: leave `batch_size` out. For minibatches there "
            "are 'sgld', 'sghmc' and their kin."
        )
    if isinstance(method, CyclicalSGLD | CyclicalSGHMC) and num_draws % method.num_cycles:
        raise SettingError(
            f"`num_draws` must be a multiple of the {method.num_cycles} cycles, so that each gives as many; got "
            f"{num_draws}."
        )
    if isinstance(method, SGHMC) and batches is None and method.gradient_noise not in ("auto", 0):
        raise SettingError(
            f"`SGHMC(gradient_noise={method.gradient_noise})`: gradients on all rows have no noise to take off. Give a "
            "`batch_size`, or leave `gradient_noise` out."
        )


def _together(num_chains: int) -> int:
    """How many chains start at one place, so that nested R-hat can judge hundreds of short chains."""
    return next((size for size in (16, 8, 4) if num_chains % size == 0 and num_chains // size >= 4), 1)


def _seed_words(seed: Any) -> list[int]:
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.ndim == 0:
        return _words_of(seed)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
        raise SettingError(f"`seed` must be a whole number of 64 bits, or one key from jax.random.key; got {seed!r}.")
    return list(divmod(int(seed) % 2**64, 2**32))


def _words_of(key: Key) -> list[int]:
    return np.asarray(jax.random.key_data(key)).ravel().tolist()


def _as_key(words: list[int]) -> Key:
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))
