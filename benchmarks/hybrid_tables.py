"""The section of docs/benchmarks.md about hybrids."""

from __future__ import annotations

from page import table


def hybrid(figures: dict) -> str:
    """Volatility of a real series, of a million steps, and a million rows with labels."""
    parts = ["## An engine for each part of a model", _returns(figures), _series(figures), _labels(figures)]
    return "\n\n".join([*parts, *([figures["remark"]] if figures.get("remark") else [])])


def _returns(figures: dict) -> str:
    rows = []
    for name, fit in figures["returns"].items():
        sigma, nu = (f"{fit[site][0]:.4g} ({fit[site][1]:.2g})" for site in ("sigma", "nu"))
        worst = min(fit["sizes"].values())
        agreement = [f"{fit['correlation']:.4f}", f"{fit['sd_ratio']:.2f}"]
        costs = [f"{fit['seconds']:.0f}", f"{worst:,.0f}", f"{fit['gradients_wanted']:,.0f}"]
        rows.append([name, sigma, nu, *agreement, *costs, ", ".join(fit["verdict"]) or "no fault found"])
    header = ["method", "sigma (sd)", "nu (sd)", "correlation", "sd ratio", "seconds", "worst ESS"]
    header += [f"gradients for an ESS of {figures['wanted']}", "verdict"]
    looks = figures["returns"]["hybrid"]["looks_wanted"]
    return f"""Stochastic volatility of the S&P 500, 2,686 returns (`langevin demo volatility`). NUTS over all
coordinates as it is by default, and with the noise of the walk as the unknown and a metric of low rank: 1,000 + 1,000
draws of four chains each. `lv.Hybrid({{"s": lv.VI("markov"), ...: lv.NUTS()}})`: 200 + 500. The mean path is correlated
with that of the second; the sd ratio is the median of the path's sds over those. Gradients are over the whole series,
in sampling. The hybrid looks for q at every gradient: {looks:,.0f} looks for that effective size, each counted as
{figures["gradients_a_look"]} gradients (a gradient and a product with the Hessian at five nodes, and three products).

{table(header, rows)}"""


def _series(figures: dict) -> str:
    truth, rows = figures["truth"], []
    for run in figures["series"]:
        inside = [f"{run[name][0]:.4f} to {run[name][1]:.4f}{'' if run[name][2] else ' (outside)'}" for name in truth]
        rows.append([str(run["seed"]), *inside, f"{run['seconds']:.0f}"])
    counts = ", ".join(f"{name} {sum(run[name][2] for run in figures['series'])}" for name in truth)
    truths = ", ".join(f"{name} = {value:g}" for name, value in truth.items())
    return f"""Returns of {figures["steps"]:,} simulated steps whose log-volatility is an autoregression
({truths}), in pieces of 1,000 with buffers of 100:
`lv.Hybrid({{"s": lv.VI("markov"), ...: lv.SGLD()}}, subsequences=lv.Subsequences(1000, 100))`, two chains of 200 draws.
95 % intervals; of {len(rows)} seeds they hold the true value this often: {counts}.

{table(["seed", *truth, "seconds"], rows)}"""


def _labels(figures: dict) -> str:
    rows = [
        [
            str(run["seed"]),
            f"{max(run['errors']):.2f}",
            f"{min(run['ratios']):.2f} to {max(run['ratios']):.2f}",
            f"{run['seconds']:.0f}",
            ", ".join(run["verdict"]) or "no fault found",
        ]
        for run in figures["labels"]
    ]
    return f"""A mixture of two normals, {figures["num_rows"]:,} rows in minibatches of 1,000, labels drawn and all
else by SGLD, `lv.Hybrid({{"z": lv.Enumerate(), ...: lv.SGLD()}})`; compared with the Gaussian at the mode of the
density with the labels summed out, in double precision.

{table(["seed", "largest error of a mean, in sds", "sd / exact sd", "seconds", "verdict"], rows)}"""
