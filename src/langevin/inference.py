"""lv.fit: a model, rows and a method in; a Fit out."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import math
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from langevin import checks
from langevin.data.batches import Batches
from langevin.data.table import Table, as_table
from langevin.drivers import landscape
from langevin.drivers.chains import Chains, Draws
from langevin.drivers.scrutiny import Scrutiny, scrutinise
from langevin.drivers.warmup import start_positions, warm_up
from langevin.errors import LangevinWarning, ModelError, SamplingError, SettingError
from langevin.keys import derive
from langevin.methods import (
    MAP,
    SGHMC,
    SGNHT,
    CyclicalSGHMC,
    CyclicalSGLD,
    Method,
    RMSprop,
    Sampler,
    as_method,
)
from langevin.models.density import Density
from langevin.models.program import Program
from langevin.posterior import Key, Posterior
from langevin.progress import Bars, Watch, silent
from langevin.result import Fit
from langevin.tuning import SD_BIAS, Tuning

# A chain should forget this often, so that four chains give an effective size of about 500.
TIMES_TO_FORGET = 150
MOST_THIN = 10_000


def fit(
    model: Callable[..., Any] | Density,
    data: Any = None,
    method: str | Method = "sgld",
    *,
    constants: Mapping[str, Any] | None = None,
    rows: str | tuple[str, ...] | None = None,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_draws: int = 1000,
    thin: int | None = None,
    batch_size: int | Batches | None = None,
    seed: int | jax.Array = 0,
    progress: bool = True,
) -> Fit:
    """Fits the posterior of a model.

    Args:
        model: A NumPyro program, called with `data` and `constants` as keywords; or an `lv.Density`.
        data: A dict of arrays, or a frame. The leading axis is the rows.
        method: A method such as `lv.SGLD()`, or its name in lower case.
        constants: Arguments of the program that are passed whole.
        rows: The name of the program's plate over the rows, where it cannot be told by its size.
        num_chains: Chains; they run side by side.
        num_warmup: Steps to find the mode, or, where the step size is given, to burn in. A schedule starts anew with
            the draws.
        num_draws: Draws of each chain.
        thin: Steps to a draw. By default 1, except with an automatic step size: then so many that the draws of a
            chain span 150 times what it takes the chain to forget (with fewer than 150 draws, one time each).
        batch_size: Rows in a minibatch, or an `lv.Batches`. By default every step sees all rows.
        seed: A whole number or a JAX key. The same seed gives the same bits.
        progress: Whether to show bars on the terminal.

    Returns:
        A `Fit`. If it cannot be trusted, a `LangevinWarning` says why.

    Raises:
        LangevinError: A sentence that says what is wrong, where, and what to do; see `langevin.errors`.

    Example:
        >>> import langevin as lv
        >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
        >>> fit = lv.fit(normal, {"x": [1.0, 2.0, 3.0]}, "sghmc", progress=False)
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
    key = _as_key(seed)
    table = as_table(data)
    if batches is not None:
        batches.check(table.num_rows)
        batches = batches.resolved(table.num_rows, method.independent_batches)
    _check_together(method, num_draws, batches)
    # Judging the draws needs arviz-stats, which takes a second to import: it does so while XLA compiles.
    threading.Thread(target=importlib.import_module, args=("arviz_stats",), daemon=True).start()
    posterior = _posterior(model, table, constants or {}, rows, batches)
    layout_key, run_key = derive(key, 2)
    if batches is not None:
        layout_seed = np.asarray(jax.random.key_data(layout_key)).tolist()
        laid_out = batches.lay_out(table.columns, table.num_rows, layout_seed)
        posterior = dataclasses.replace(posterior, data=laid_out)
    with Bars() if progress else nullcontext(silent) as watch:
        if isinstance(method, MAP):
            draws, tuning, thin = _climb(method, posterior, batches, run_key, num_chains, watch)
            scrutiny, num_warmup, num_draws = Scrutiny(), 0, 1
        else:
            counts = (num_chains, num_warmup, num_draws, thin)
            draws, tuning, thin, scrutiny = _sample(method, posterior, batches, run_key, counts, watch)
    settings = {
        "method": _describe(method),
        "num_chains": num_chains,
        "num_warmup": num_warmup,
        "num_draws": num_draws,
        "thin": thin,
        "batches": None if batches is None else dataclasses.asdict(batches),
        "num_data": posterior.num_data,
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "step_size": None if tuning.step_size is None else float(tuning.step_size),
        "scrutiny": scrutiny._asdict(),
        "approximation": _approximation(method, batches),
        "version": importlib.metadata.version("langevin"),
    }
    result = Fit(_data_tree(draws, posterior, settings), posterior)
    for finding in result.verdict:
        if finding.code != "point":
            warnings.warn(str(finding), LangevinWarning, stacklevel=2)
    return result


def _posterior(
    model: Any, table: Table, constants: Mapping[str, Any], rows: str | tuple[str, ...] | None, batches: Batches | None
) -> Posterior:
    if isinstance(model, Density):
        if constants or rows:
            raise SettingError(
                "`constants` and `rows` are for NumPyro programs; a `Density` closes over what it needs."
            )
        return model.posterior(table, minibatch=batches is not None)
    if not callable(model):
        raise ModelError(f"`model` must be a NumPyro program or an lv.Density; got {model!r}.")
    return Program(model, constants, rows).posterior(table, minibatch=batches is not None)


def _sample(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    counts: tuple[int, int, int, int | None],
    watch: Watch,
) -> tuple[Draws, Tuning, int, Scrutiny]:
    num_chains, num_warmup, num_draws, thin = counts
    warm_key, chain_key, check_key = derive(key, 3)
    ready = warm_up(method, posterior, batches, warm_key, num_chains, num_warmup, watch)
    if thin is None:
        thin = 1
        if ready.steps_to_forget is not None:
            thin = math.ceil(min(TIMES_TO_FORGET / num_draws, 1) * ready.steps_to_forget)
            thin = min(max(thin, 1), MOST_THIN)
    strides, cycle = _strides(method, num_draws, thin)
    tuning = ready.tuning._replace(cycle=cycle)
    chains = Chains(method, posterior, batches, tuning, chain_key, ready.positions)
    draws = chains.run(strides, watch("sampling", int(strides.sum())))
    if not draws.valid.any():
        steps = ", ".join(str(step) for step in draws.stopped)
        raise SamplingError(
            f"Every chain blew up before its first draw, at steps {steps}. The step is too long: take a smaller "
            "step_size, or leave it to warm-up with step_size='auto'."
        )
    return draws, tuning, thin, scrutinise(method, posterior, batches, tuning, draws, check_key)


def _check_together(method: Method, num_draws: int, batches: Batches | None) -> None:
    """Settings that make sense alone, but not together."""
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


def _strides(method: Sampler, num_draws: int, thin: int) -> tuple[np.ndarray, tuple[int, int]]:
    """How many steps lead to each draw; for a cyclical method, also the steps of a cycle and of its exploration."""
    strides = np.full(num_draws, thin)
    if not isinstance(method, CyclicalSGLD | CyclicalSGHMC):
        return strides, (1, 0)
    draws_a_cycle = num_draws // method.num_cycles
    sampling = draws_a_cycle * thin
    exploring = round(sampling * method.explore / (1 - method.explore))
    strides[::draws_a_cycle] += exploring
    return strides, (sampling + exploring, exploring)


def _climb(
    method: MAP, posterior: Posterior, batches: Batches | None, key: Key, num_chains: int, watch: Watch
) -> tuple[Draws, Tuning, int]:
    """Climbs from every start, and keeps the highest point."""
    start_key, climb_key = derive(key, 2)
    positions = start_positions(posterior, start_key, num_chains)
    climbers = Chains(method, posterior, batches, Tuning(), climb_key, positions)
    strides = np.diff(np.linspace(0, method.num_steps, 11).astype(int))
    draws = climbers.run(strides, watch("climbing", method.num_steps))
    heights = np.asarray(landscape.heights(posterior, climbers.positions))
    heights = np.where((draws.stopped < 0) & np.isfinite(heights), heights, -np.inf)
    if not np.isfinite(heights).any():
        raise SamplingError(
            f"Every climb left the finite numbers, the last at step {draws.stopped.max()}. Try a `learning_rate` below "
            f"{method.learning_rate}."
        )
    best = int(np.argmax(heights))
    last = jax.tree.map(lambda leaf: leaf[best : best + 1, -1:], draws._asdict() | {"stopped": draws.stopped[:, None]})
    last["info"]["log_density"] = np.full((1, 1), heights[best])
    return Draws(**last | {"stopped": last["stopped"][:, 0]}), Tuning(), method.num_steps


def _data_tree(draws: Draws, posterior: Posterior, settings: dict[str, Any]) -> xr.DataTree:
    dims = dict(posterior.dims)
    # Compiled code returns dicts sorted by name; a user reads them in the order of the program.
    names = [*dims, *(name for name in draws.reported if name not in dims)]
    reported = {
        name: (("chain", "draw", *dims.get(name, _numbered(name, draws.reported[name]))), draws.reported[name])
        for name in names
    }
    paths = jax.tree_util.tree_flatten_with_path(draws.position)[0]
    leaves = [jax.tree_util.keystr(path, simple=True, separator=".") or "position" for path, _ in paths]
    unconstrained = {
        name: (("chain", "draw", *_numbered(f"{name}_unconstrained", values)), values)
        for name, (_, values) in zip(leaves, paths, strict=True)
    }
    stats: dict[str, Any] = {name: (("chain", "draw"), values) for name, values in draws.info.items()}
    stats["lp"] = stats.pop("log_density")
    stats["weight"] = (("chain", "draw"), _weights(draws))
    stats["stopped"] = (("chain",), draws.stopped)
    coords = {"chain": np.arange(len(draws.valid)), "draw": np.arange(draws.valid.shape[1])}
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(reported, coords, {"names": names}),
            "sample_stats": xr.Dataset(stats, coords),
            "unconstrained_posterior": xr.Dataset(unconstrained, coords, {"leaves": leaves}),
        }
    )
    tree.attrs["settings"] = json.dumps(settings)
    return tree


def _weights(draws: Draws) -> np.ndarray:
    """Step sizes, zero for draws after a chain stopped, 1 on average (Teh, Thiery & Vollmer 2016)."""
    weights = np.where(draws.valid, np.asarray(draws.info["step_size"], np.float64), 0.0)
    return weights / weights.mean()


def _numbered(name: str, values: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(values.ndim - 2))


def _as_key(seed: Any) -> Key:
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.ndim == 0:
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
        raise SettingError(f"`seed` must be a whole number of 64 bits, or one key from jax.random.key; got {seed!r}.")
    high, low = divmod(int(seed) % 2**64, 2**32)
    return jax.random.fold_in(jax.random.key(low), high) if high else jax.random.key(low)


def _describe(method: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return _describe(value)
        if isinstance(value, str | int | bool | None):
            return value
        return float(value) if checks.is_number(value) else repr(value)

    fields = {field.name: plain(getattr(method, field.name)) for field in dataclasses.fields(method)}
    return {"name": type(method).__name__, **fields}


def _approximation(method: Method, batches: Batches | None) -> str:
    """Which density the draws are from, where it is not exactly the posterior."""
    accept = getattr(method, "accept", None)
    preconditioner = getattr(method, "preconditioner", None)
    kind = "gradients from minibatches and a" if batches is not None else "a"
    cases = [
        (isinstance(method, MAP), "a mode of the unconstrained log-density, not the posterior."),
        (accept == "full", ""),
        (accept == "minibatch", "proposals are accepted by the minibatch alone, whose noise widens the posterior."),
        (
            isinstance(method, CyclicalSGLD | CyclicalSGHMC),
            "the balance between modes that the chain does not cross by itself is that of their basins.",
        ),
        (isinstance(method, SGNHT), "gradient noise that differs between directions is balanced only on average."),
        (
            isinstance(preconditioner, RMSprop) and preconditioner.adapt == "throughout",
            "the metric adapts throughout, and remembers earlier positions.",
        ),
        (
            getattr(method, "step_size", None) == "auto",
            f"the step was chosen so that sds are at most about {100 * SD_BIAS:.0f} % too wide.",
        ),
        (True, f"{kind} step of finite length, without a Metropolis correction: the bias shrinks with the step."),
    ]
    return next(sentence for holds, sentence in cases if holds)
