r"""Leave-one-out cross-validation of a fit, of all rows or of a sample of them.

With $\ell_i$ the log predictive density of row $i$ where it is left out, by Pareto-smoothed importance sampling, and
$\tilde\ell_i$ what it is about, the sum is estimated from a random sample $S$ of $m$ of the $n$ rows as

$$\widehat{elpd} = \sum_{i=1}^n \tilde\ell_i + \frac{n}{m} \sum_{i \in S} (\ell_i - \tilde\ell_i),$$

which has no bias, and an error that is small where the two are alike (Magnusson et al. 2020). Over the posterior,
$\ell_i = -\log E(1 / p(y_i \mid \theta))$: $\tilde\ell_i$ is that over some of the draws, not smoothed; or, to second
order, the log density at the posterior mean less half its variance over these draws. For the $m$ rows where that
variance is largest it is $\ell_i$ itself: the few rows that the model fits worst would make the error, and a sample may
have none of them.

References:
    Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC.
    Magnusson, Andersen, Jonasson & Vehtari (2019), Bayesian leave-one-out cross-validation for large data.
    Magnusson, Andersen, Jonasson & Vehtari (2020), Leave-one-out cross-validation for Bayesian model comparison in
    large data.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr

from langevin import checks
from langevin.criticism import lazy
from langevin.criticism.lazy import MOST_VALUES, Limit
from langevin.criticism.likelihood import Likelihood, as_position
from langevin.criticism.models import target_for
from langevin.diagnostics import weighted
from langevin.errors import LangevinWarning, SettingError
from langevin.ratios import smoothed
from langevin.run import compilation
from langevin.run.seeds import Seed

if TYPE_CHECKING:
    from arviz_stats import ELPDData

    from langevin.result import Fit

# The least draws that rows are approximated from; and how many log densities are computed for it, in all and at once.
SPREAD = 32
MOST_EVALUATED = 30_000_000
MOST_AT_ONCE = 10_000_000
MOST_COORDINATES = 1000
ROW = "row"


def loo_of_fit(fit: Fit, num_rows: int | None, data: Any, seed: int) -> ELPDData:
    """See `Fit.loo`."""
    target = target_for(fit, data, "loo")
    tree = fit.data_tree
    likelihood = Likelihood(target, tree)
    count = likelihood.num_units
    if not count:
        raise SettingError("`loo`: the model observes nothing, so there is nothing to leave out.")
    if target.model.network is not None and target.model.network.temperature != 1:
        raise SettingError(
            "`loo` is for draws of the posterior, and these are tempered. Evaluate rows that were left out."
        )
    corrections = _corrections(tree)
    efficiency = _relative_efficiency(tree)
    if num_rows is None or num_rows == count:
        found = _of_all(likelihood, efficiency, corrections)
    else:
        num_rows = checks.count("loo", "num_rows", num_rows, least=2)
        if num_rows > count:
            raise SettingError(f"`loo`: `num_rows` is {num_rows}, and there are {count} rows. Leave it out for all.")
        mean = _mean(tree, likelihood, has_positions=target is fit.target)
        found = _of_some(mean, likelihood, num_rows, seed, efficiency, corrections)
    _warn(found)
    return found


def _of_all(likelihood: Likelihood, efficiency: float, corrections: tuple[Any, ...]) -> ELPDData:
    from arviz_stats import ELPDData

    count, size = likelihood.num_units, likelihood.num_chains * likelihood.num_draws
    at_once = count if count * size <= MOST_VALUES else max(MOST_VALUES // (10 * size), 1)
    parts = []
    for start in range(0, count, at_once):
        units = None if at_once == count else np.arange(start, min(start + at_once, count))
        values = likelihood.by_unit(np.arange(likelihood.num_draws), units)
        parts.append(_left_out(np.moveaxis(values, 2, 0), efficiency, corrections))
    elpd, khat, effect = (xr.DataArray(np.concatenate(each), dims=ROW) for each in zip(*parts, strict=True))
    return ELPDData(
        "loo",
        float(elpd.sum()),
        float(np.sqrt(count * elpd.var())),
        float(effect.sum()),
        size,
        count,
        "log",
        bool((khat > _good(size)).any()),
        _good(size),
        elpd.rename("elpd_i"),
        khat.rename("pareto_k"),
        approx_posterior=bool(corrections),
    )


def _left_out(values: np.ndarray, efficiency: float, corrections: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """For each row the log predictive density where it is left out, k, and what the row adds to its own prediction."""
    from arviz_stats.base import array_stats

    with np.errstate(all="ignore"):
        if not corrections:
            return array_stats.loo(values, chain_axis=1, draw_axis=2, r_eff=efficiency)
        log_p, log_q = (np.broadcast_to(part, values.shape) for part in corrections)
        elpd, khat, _ = array_stats.loo_approximate_posterior(values, log_p, log_q, chain_axis=1, draw_axis=2)
        return elpd, khat, _seen(values.reshape(len(values), -1).T, corrections) - elpd


def _seen(values: np.ndarray, corrections: tuple[Any, ...]) -> np.ndarray:
    """The log predictive density of rows that are not left out, from log densities by draw and row."""
    if not corrections:
        return _log_mean_exp(values)
    log_weights, _ = smoothed((corrections[0] - corrections[1]).ravel())
    weights = np.exp(log_weights - log_weights.max())
    return _log_mean_exp(values + np.log(weights / weights.mean())[:, None])


def _of_some(
    mean: Any, likelihood: Likelihood, num_rows: int, seed: int, efficiency: float, corrections: tuple[Any, ...]
) -> ELPDData:
    import arviz_stats

    count, shape = likelihood.num_units, (likelihood.num_chains, likelihood.num_draws)
    limit = Limit("`loo`: the log-likelihood of the sampled rows", "Take fewer rows: `num_rows=1000`.")
    limit.check(num_rows * shape[0] * shape[1])
    generator = Seed.of(seed).child("loo").generator()
    chosen = np.sort(generator.choice(count, num_rows, replace=False))
    values = likelihood.by_unit(np.arange(shape[1]), chosen)
    about, influence = _approximate(mean, likelihood, values, chosen)
    # The rows that matter most are few, a sample may have none of them, and no approximation of them is good: these
    # are computed, so that the difference is none.
    worst = np.sort(np.argpartition(influence, -num_rows)[-num_rows:])
    of_worst = np.moveaxis(likelihood.by_unit(np.arange(shape[1]), worst), 2, 0)
    about[worst] = _left_out(of_worst, efficiency, corrections)[0]
    approximate = xr.DataArray(about, dims=ROW, name="y")

    def read(indices: tuple[np.ndarray, ...]) -> np.ndarray:
        chains, draws, rows = indices
        return values[np.ix_(chains, draws, np.searchsorted(chosen, rows))]

    # ArviZ asks for the chosen rows only.
    lazily = lazy.variable(("chain", "draw", ROW), (*shape, count), np.float64, read, limit)
    coords = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    sampled = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"m": (("chain", "draw"), np.zeros(shape))}, coords),
            "log_likelihood": xr.Dataset({"y": lazily}, coords),
            "observed_data": xr.Dataset({"y": approximate}),
        }
    )
    log_p, log_q = corrections or (None, None)
    with warnings.catch_warnings():
        # `_warn` says it.
        warnings.simplefilter("ignore", UserWarning)
        found = arviz_stats.loo_subsample(
            sampled,
            chosen,
            pointwise=True,
            var_name="y",
            reff=efficiency,
            log_p=log_p,
            log_q=log_q,
            method="plpd",
            log_lik_fn=lambda observed, data: approximate,
        )
    # ArviZ takes the approximation for the density of rows that are not left out.
    seen = _seen(values.reshape(-1, num_rows), corrections)
    found.p = float(count * np.mean(seen - found.elpd_i.values[chosen]))
    return found


def _approximate(
    mean: Any, likelihood: Likelihood, values: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """About the log predictive density of every row where it is left out, from as many draws as there is time for.

    And how much each row matters: half the variance of its log density.

    With most draws, the importance ratios as they are; with few, to second order around the posterior mean. Where the
    mean is no likely point (the weights of a network, a mixture whose labels switch), the ratios again. Which is
    nearer, the sampled rows tell.
    """
    count, num_chains = likelihood.num_units, likelihood.num_chains
    budget = MOST_EVALUATED if likelihood.rows_apart else MOST_AT_ONCE
    in_chain = int(np.clip(budget // (count * num_chains), -(-SPREAD // num_chains), likelihood.num_draws))
    spread = np.unique(np.linspace(0, likelihood.num_draws - 1, in_chain).astype(int))
    at_once = max(MOST_AT_ONCE // (len(spread) * num_chains), 1) if likelihood.rows_apart else count
    ratios, half = [], []
    for start in range(0, count, at_once):
        units = None if at_once >= count else np.arange(start, min(start + at_once, count))
        at_draws = likelihood.by_unit(spread, units)
        at_draws = at_draws.reshape(-1, at_draws.shape[2])
        ratios.append(-_log_mean_exp(-at_draws))
        half.append(at_draws.var(axis=0, ddof=1) / 2)
    by_ratios = np.concatenate(ratios)
    influence = np.concatenate(half)
    by_order = likelihood.at(mean) - influence
    wanted = -_log_mean_exp(-values.reshape(-1, values.shape[2]))
    errors = [np.var(wanted - about[chosen]) for about in (by_ratios, by_order)]
    return by_ratios if not np.isfinite(errors[1]) or errors[0] <= errors[1] else by_order, influence


def _mean(tree: xr.DataTree, likelihood: Likelihood, has_positions: bool) -> Any:
    """The posterior mean: of the unconstrained positions, where these are the target's, so that it is possible."""
    target, by_position = likelihood.target, likelihood.sites.by_position
    if not by_position and not (has_positions and "unconstrained_posterior" in tree.children):
        draws = [likelihood.draws(chain, slice(None)) for chain in range(likelihood.num_chains)]
        return jax.tree.map(lambda *leaves: np.mean([leaf.mean(0) for leaf in leaves], axis=0), *draws)
    group = tree["unconstrained_posterior"].to_dataset()
    means = {name: group[name].mean(("chain", "draw")).values for name in group.attrs["leaves"]}
    position = as_position(target, means)
    if by_position:
        return position
    reported = compilation.run(lambda target, position: target.constrain(position), target, position)
    return {name: np.asarray(reported[name]) for name in likelihood.sites.latent}


def _corrections(tree: xr.DataTree) -> tuple[Any, ...]:
    """Log p and log q of the draws of an approximation, where all are known: importance ratios make up for it."""
    stats = tree["sample_stats"].to_dataset()
    if "log_q" not in stats:
        return ()
    pair = tuple(stats[name].transpose("chain", "draw").values.astype(np.float64) for name in ("lp", "log_q"))
    return pair if all(np.isfinite(part).all() for part in pair) else ()


def _relative_efficiency(tree: xr.DataTree) -> float:
    """How many independent draws a draw is worth, as a mean over the coordinates."""
    posterior = tree["posterior"].to_dataset()
    sizes = []
    for name in posterior:
        draws = posterior[name].transpose("chain", "draw", ...).values
        flat = draws.reshape(*draws.shape[:2], -1).astype(np.float64)
        some = flat[:, :, :: max(flat.shape[2] // MOST_COORDINATES, 1)]
        sizes.append(weighted.effective_size(some, np.ones(some.shape[:2])))
    known = np.concatenate(sizes)
    known = known[np.isfinite(known)]
    return float(known.mean() / (posterior.sizes["chain"] * posterior.sizes["draw"])) if len(known) else 1.0


def _good(size: int) -> float:
    """Above this k, the smoothed ratios of so many draws are not to be trusted (Vehtari et al. 2024)."""
    return min(1 - 1 / np.log10(size), 0.7) if size > 1 else 0.7


def _warn(found: ELPDData) -> None:
    khat = found.pareto_k.values
    known = khat[np.isfinite(khat)]
    bad = int((known > found.good_k).sum())
    if bad:
        warnings.warn(
            f"`loo`: {bad} of {len(known)} rows have k > {found.good_k:.2f}: the posterior without such a row differs "
            "so much that its density there cannot be told from these draws, and the estimate is likely too high. Look "
            "at these rows (`pareto_k`), take a model with heavier tails, or more draws.",
            LangevinWarning,
            stacklevel=4,
        )


def _log_mean_exp(values: np.ndarray) -> np.ndarray:
    top = values.max(axis=0)
    return top + np.log(np.mean(np.exp(values - top), axis=0))
