"""lv.calibrate: a method put to the test on data simulated from the model (Talts et al. 2018).

Parameters are drawn from the prior, data with these, and the model is fitted to the data. The rank of a parameter among
the draws of its posterior is then uniform: if it is not, the draws are not those of the posterior, or the data is not
that of the model.

Reference:
    Talts, Betancourt, Simpson, Vehtari & Gelman (2018), Validating Bayesian inference algorithms with simulation-based
    calibration.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from langevin import checks
from langevin.calibration.report import Calibration
from langevin.calibration.simulating import simulator_of
from langevin.diagnostics import weighted
from langevin.diagnostics.mixing import label
from langevin.errors import LangevinWarning, SamplingError, SettingError
from langevin.inference import fit
from langevin.methods import Method, as_method, describe
from langevin.models.arguments import brought
from langevin.run.seeds import Seed

if TYPE_CHECKING:
    from langevin.models.density import Density
    from langevin.result import Fit

# A rank among more draws says no more of where a parameter is.
MOST_DRAWS = 1000


def calibrate(
    model: Callable[..., Any] | Density,
    simulate: Callable[[np.random.Generator], tuple[Mapping[str, Any], Any]] | None = None,
    method: str | Method = "nuts",
    *,
    data: Any = None,
    constants: Mapping[str, Any] | None = None,
    num_simulations: int = 100,
    names: list[str] | tuple[str, ...] | None = None,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Calibration:
    """Simulation-based calibration: whether a method recovers the parameters that data was simulated with.

    Each fit is of other data of the same shapes, and compiled programs are used again. Draws are thinned by their
    effective size, and weights are honoured. Ctrl-C ends it with the simulations that there are.

    Args:
        model: A NumPyro program, or an `lv.Density`.
        simulate: From a NumPy generator to parameters (a dict by name, as in `fit.posterior`) and data for the fit. By
            default the program itself simulates: its latent sites from their prior, and its observed ones with these.
        method: As in `fit`.
        data: Where the program simulates: data as for a fit, of which the values of observed columns are replaced.
        constants: As in `fit`.
        num_simulations: How many. With 100, an interval that has 80 % in place of 90 % is usually found.
        names: The parameters to look at; all by default.
        seed: The same seed gives the same simulations and fits.
        progress: Whether to show a bar on the terminal.
        settings: Further arguments of `lv.fit`, such as `num_draws` and `batch_size`.

    Returns:
        A `Calibration`: its `verdict`, a table with `summary()` and a picture with `plot()`.

    Raises:
        LangevinError: If the model or the settings cannot be used; says why. Single fits that fail are counted.

    Example:
        >>> import langevin as lv, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     with numpyro.plate("rows", len(y)):
        ...         numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> found = lv.calibrate(model, data={"y": [0.0, 0.0]}, num_simulations=20, num_draws=100, progress=False)
        >>> found.is_calibrated
        True
    """
    num_simulations = checks.count("calibrate", "num_simulations", num_simulations, least=10)
    for name in ("store", "init", "keep"):
        if name in settings:
            raise SettingError(f"`calibrate`: `{name}` is for a single fit. Leave it out.")
    root, method = Seed.of(seed), as_method(method)
    draw = _simulation(model, simulate, data, constants or {})
    found: list[dict[str, float]] = []
    words: Counter[str] = Counter()
    failures: list[str] = []
    interrupted = False
    with _bar(num_simulations) if progress else nullcontext(lambda: None) as advance:
        try:
            for number in range(num_simulations):
                child = root.child("calibration", number)
                parameters, rows = draw(child.child("data"))
                try:
                    fitted = _fitted(model, rows, method, constants, child.child("fit"), settings)
                    words[fitted.verdict.word] += 1
                    found.append(_places(fitted, _wanted(parameters, names), child.child("places")))
                except SamplingError as error:
                    failures.append(str(error))
                advance()
        except KeyboardInterrupt:
            interrupted = True
            if not found:
                raise
    if not found:
        raise SamplingError(f"`calibrate`: all {len(failures)} fits failed. The last: {failures[-1]}")
    places = {name: np.array([each[name] for each in found]) for name in found[0]}
    return Calibration(
        places=places,
        method=describe(method)["name"],
        asked=num_simulations,
        failures=tuple(failures),
        words=dict(words),
        interrupted=interrupted,
    )


def _simulation(
    model: Any, simulate: Callable[..., Any] | None, data: Any, constants: Mapping[str, Any]
) -> Callable[[Seed], tuple[Mapping[str, Any], Any]]:
    if simulate is None:
        return simulator_of(model, *brought(model, data, constants))
    if data is not None:
        raise SettingError("`calibrate`: `simulate` makes the data. Leave `data` out, or `simulate`.")
    if not callable(simulate):
        raise SettingError(f"`calibrate`: `simulate` must be a function of a NumPy generator; got {simulate!r}.")

    def drawn(seed: Seed) -> tuple[Mapping[str, Any], Any]:
        made = simulate(seed.generator())
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Mapping):
            raise SettingError(
                "`calibrate`: `simulate` must return a pair, the parameters as a dict by name and the data; it "
                f"returned {type(made).__name__}."
            )
        return made

    return drawn


def _fitted(model: Any, rows: Any, method: Method, constants: Any, seed: Seed, settings: Mapping[str, Any]) -> Fit:
    with warnings.catch_warnings():
        # The verdicts are counted.
        warnings.simplefilter("ignore", LangevinWarning)
        return fit(model, rows, method, constants=constants, seed=seed.key(), progress=False, **settings)


def _wanted(parameters: Mapping[str, Any], names: Any) -> dict[str, np.ndarray]:
    chosen = list(parameters) if names is None else [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in parameters:
            raise SettingError(f"`calibrate`: no parameter {name!r} is simulated; there are {', '.join(parameters)}.")
    return {name: np.asarray(parameters[name], np.float64) for name in chosen}


def _places(fitted: Fit, parameters: Mapping[str, np.ndarray], seed: Seed) -> dict[str, float]:
    """Where each parameter is among its draws, from 0 to 1: uniform, if it is as likely anywhere among them.

    With rank r among L thinned draws it is (r + u) / (L + 1), u uniform, and equal draws count by chance as smaller.
    """
    posterior, weights = fitted.posterior, fitted.weights.values
    running = np.flatnonzero(weights.sum(axis=1) > 0)
    generator = seed.generator()
    places = {}
    for name, truth in parameters.items():
        if name not in posterior:
            raise SettingError(
                f"`calibrate`: the fit has no {name!r}, which is simulated; it has {', '.join(map(str, posterior))}."
            )
        draws = posterior[name].transpose("chain", "draw", ...).values.astype(np.float64)
        if draws.shape[2:] != truth.shape:
            raise SettingError(
                f"`calibrate`: {name!r} is simulated with the shape {truth.shape}, and its draws have the shape "
                f"{draws.shape[2:]}."
            )
        sizes = np.asarray(weighted.effective_size(draws, weights))
        for index in np.ndindex(truth.shape):
            chains = [draws[(chain, slice(None), *index)][weighted.resampled(weights[chain])] for chain in running]
            flat = np.concatenate(chains)
            size = float(sizes[index])
            count = int(np.clip(size if np.isfinite(size) else 1, 1, min(len(flat), MOST_DRAWS)))
            thinned = flat[np.linspace(0, len(flat) - 1, count).astype(int)]
            below, equal = np.sum(thinned < truth[index]), np.sum(thinned == truth[index])
            rank = below + generator.integers(0, equal, endpoint=True)
            places[label(name, index)] = (rank + generator.random()) / (count + 1)
    return places


def _bar(total: int) -> Any:
    """A bar that moves on by one at each call."""
    from contextlib import contextmanager

    from rich.progress import Progress

    @contextmanager
    def shown() -> Any:
        with Progress(transient=True) as bars:
            task = bars.add_task("calibrating", total=total)
            yield lambda: bars.advance(task)

    return shown()
