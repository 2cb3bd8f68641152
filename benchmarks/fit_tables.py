"""The sections of docs/benchmarks.md about what is done with a fit: prediction and cross-validation."""

from __future__ import annotations

from page import table


def predict(figures: dict) -> str:
    """Seconds of each contestant, and the memory."""
    contests, peak = figures["contests"], figures["memory"]
    names = list(contests[0]["seconds"])
    rows = [[name, *(f"{contest['seconds'][name]:.2f}" for contest in contests)] for name in names]
    for key, what in (
        ("ratio_to_predictive", "Predictive / langevin"),
        ("ratio_to_the_same_summary", "Predictive with the same summary / langevin"),
    ):
        rows.append([what, *(f"{contest[key]:.1f}" for contest in contests)])
    return f"""## How fast is prediction?

{contests[0]["num_draws"]:,} draws of a regression on {contests[0]["num_rows"]:,} new rows, warm: seconds, medians of
alternating calls. `fit.predict` gives mean, sd with its parts, three quantiles or class probabilities, in bounded
memory; NumPyro's `Predictive` gives draws, and holds them all. "Then NumPy's summary" adds mean, sd and the same
quantiles of these.

{table(["contestant", *(contest["outcome"] for contest in contests)], rows)}

{peak["num_rows"]:,} rows by {contests[0]["num_draws"]:,} draws took {peak["megabytes"]:,.0f} MB more than before, and
{peak["seconds"]:.1f} s."""


def loo(figures: dict) -> str:
    """Errors of samples, and what they say of them."""
    rows = [
        [
            count,
            f"{figures[count]['root mean square']:.2f}",
            f"{figures[count]['root mean square said']:.2f}",
            f"{100 * figures[count]['within two']:.0f} %",
        ]
        for count in ("200", "1000")
    ]
    return f"""## How good is cross-validation on a sample of the rows?

`fit.loo(num_rows=...)` against `fit.loo()` on all {figures["rows"]:,} rows of a linear regression with heavy-tailed
noise, elpd {figures["elpd"]:,.1f} (se {figures["se"]:,.0f}), 20 seeds: the error of the sample, what it says of it, and
how often it is within two of these.

{table(["rows in the sample", "error (root mean square)", "said", "within two"], rows)}"""
