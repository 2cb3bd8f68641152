"""Makes docs/benchmarks.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
from pathlib import Path

import conjugacy_tables
import fit_tables
import hybrid_tables
import network_tables
import trust_table
from page import table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
NAMES = (
    "sgld_throughput",
    "runs",
    "auto_step",
    "compile_time",
    "nuts",
    "vi",
    "cavi",
    "hybrid",
    "predict",
    "loo",
    "mnist",
    "uci",
    "trust",
)
NUTS_LIBRARIES = ("langevin", "numpyro", "blackjax", "nutpie")

INTRODUCTION = """# Benchmarks

Made by `benchmarks/tables.py` from `benchmarks/results/`; do not edit. `python benchmarks/run.py` measures again.
All contestants of a table are measured in the same run on the same machine, on the CPU. Ratios are of medians; a large
spread between rounds, or much load at the start, says that the machine was busy and the figures are poor. Peers are
used as their documentation shows; where there are several sensible ways to run them, all are measured, and our targets
are held against the fastest."""


def provenance(result: dict) -> str:
    """When, where, with what."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    machine = f"{result['cores']} cores (load {result['load_at_start']:.1f} at the start), {result['architecture']}"
    where = f"{machine}, Python {result['python']}"
    minutes = f" in {result['minutes']:.1f} minutes" if "minutes" in result else ""
    return f"Measured on {result['date']}{minutes}; {where}; {versions}."


def sgld_throughput(figures: dict) -> str:
    """Steps a second, the whole call, targets, and the time a step takes by the number of rows."""
    contestants = figures["contestants"]
    speeds = table(
        ["contestant", "microseconds a step", "steps a second", "time, langevin = 1", "slowest / fastest round"],
        [
            [
                name,
                f"{row['microseconds_a_step']:.1f}",
                f"{1e6 / row['microseconds_a_step']:,.0f}",
                f"{row['ratio_to_langevin']:.2f}",
                f"{max(row['all_microseconds']) / min(row['all_microseconds']):.2f}",
            ]
            for name, row in contestants.items()
        ],
    )
    goals = figures["targets"]
    targets = table(
        ["target", "measured", "reached"],
        [[goal["target"], f"{goal['measured']:.2f}", "yes" if goal["reached"] else "**no**"] for goal in goals],
    )
    sizes = table(
        ["rows", "langevin, microseconds a step", "hand-written scan", "langevin / scan", "reshuffling, on average"],
        [_size_row(row) for row in figures["by_size"]],
    )
    cold = figures["cold"]
    missed = [goal["target"] for goal in goals if not goal["reached"]]
    return f"""## How many SGLD steps a second?

Logistic regression, {figures["num_rows"]:,} x 50 in float32, minibatches of 1,000, one chain, every tenth position
kept. Warm: compiled, data in place; the median of {len(contestants["langevin"]["all_microseconds"])} rounds that
alternate between the contestants.

{speeds}

{targets}

The scan is the floor: plain JAX without a driver, without a log-density at each draw, without a check that the numbers
stay finite. BlackJAX and posteriors leave the loop to the user, who may well write that scan around BlackJAX's step.
The order of our rows is drawn anew now and then, which adds {figures["reshuffle_microseconds_a_step"]:.1f} microseconds
a step on average, and is in the table only if it fell into a median round.

Cold: `lv.fit` in a fresh process takes {cold["call_seconds"]:.1f} s for {cold["num_steps"]:,} steps, with the layout of
the data, compilation and the verdict on the draws, after {cold["import_seconds"]:.1f} s of imports.

The same step on more rows; every minibatch is read from memory, so the scan beside it shows what the caches do. The
last column is part of our time on few rows, and comes on top of it where a round is too short to see a new order:

{sizes}

What we lose: {_losses(contestants, missed)}"""


def _size_row(row: dict) -> list[str]:
    ours, scan = (row["contestants"][name]["microseconds_a_step"] for name in ("langevin", "hand-written scan"))
    shuffling = row["reshuffle_microseconds_a_step"]
    return [f"{row['num_rows']:,}", f"{ours:.1f}", f"{scan:.1f}", f"{ours / scan:.2f}", f"{shuffling:.1f}"]


def _losses(contestants: dict, missed: list[str]) -> str:
    scan = 1 / contestants["hand-written scan"]["ratio_to_langevin"]
    losses = f"a step of ours takes {scan:.2f} times that of the hand-written scan."
    return losses + (f" Not reached: {'; '.join(missed)}." if missed else "")


def runs(figures: dict) -> str:
    """Every draw kept, second fits, and memory."""
    names = {"in memory": "langevin, draws in memory", "on disk": "langevin, draws on disk (`store=`)"}
    every = [
        [names.get(name, name), f"{row['microseconds']:.1f}", f"{row['ratio']:.2f}"]
        for name, row in figures["every_draw"].items()
    ]
    second = [
        [f"`{name}`", f"{row['first']:.1f}", f"{row['second']:.2f}"] for name, row in figures["second_fit"].items()
    ]
    flat = figures["flat_memory"]
    return "\n\n".join(
        [
            "## Runs: every draw kept, second fits, memory",
            "SGLD at `thin=1`, logistic regression, 1,000,000 x 50, minibatches of 1,000, one chain. The scan stores "
            "its positions; we store the reported sites, the unconstrained position and the statistics of each draw.",
            table(["", "microseconds a step", "time, scan = 1"], every),
            "A fit of a small model (1,000 x 5) in a fresh process, and again: the second compiles nothing.",
            table(["method", "first, seconds", "second, seconds"], second),
            f"{flat['draws']:,} draws of 100 coordinates to disk ({flat['disk_gb']:.1f} GB) in {flat['seconds']:.0f} "
            f"s: the peak of resident memory went from {flat['before_gb']:.2f} to {flat['after_gb']:.2f} GB.",
        ]
    )


def auto_step(figures: dict) -> str:
    """Accuracy and price with no setting but the batch size."""
    rows = []
    for fit in figures["fits"]:
        if "stopped_after_seconds" in fit:
            rows.append([fit["method"], *["-"] * 3, f"stopped after {fit['stopped_after_seconds']}", "-"])
        else:
            rows.append(
                [
                    fit["method"],
                    f"{fit['largest_mean_error_in_sds']:.2f}",
                    f"{fit['least_sd_ratio']:.2f} to {fit['largest_sd_ratio']:.2f}",
                    f"{fit['worst_ess']:.0f}",
                    f"{fit['seconds']:.1f}",
                    f"{fit['worst_ess_a_second']:.1f}",
                ]
            )
    header = ["method", "largest error of a mean, in sds", "sd / exact sd", "worst ESS", "seconds", "worst ESS / s"]
    return f"""## How close is a fit with no settings?

`lv.fit(model, data, method, batch_size=1000)` and nothing else, on logistic regression with {figures["num_rows"]:,}
rows, an intercept and 20 columns scaled from 1e-3 to 1e3, two of them correlated at 0.9. The reference is the Laplace
approximation in float64. Seconds are of the whole call in a fresh process, compilation included. NUTS sees all rows
(NumPyro, 4 chains vectorised, 500 + 500); it is given at least 100 seconds, and at least as long as our slowest fit,
and then stopped. A stopped run says nothing of how long it would have taken.

{table(header, rows)}

An effective size of n leaves a Monte Carlo error of about 1 / sqrt(n) sds in a mean, and the largest of 21 is about
twice that. What we lose: minibatch methods are approximate, and NUTS, given the time, is exact."""


def compile_time(figures: dict) -> str:
    """The wait for a first small fit."""
    rows = [
        [
            name,
            f"{row['import_seconds']:.1f}",
            f"{row['call_seconds']:.1f}",
            f"{row['seconds']:.1f}",
            f"{row['ratio_to_langevin']:.2f}",
            f"{row['worst_ess']:.0f}",
        ]
        for name, row in figures["contestants"].items()
    ]
    header = ["contestant", "imports, s", "call, s", "total, s", "total, langevin = 1", "worst ESS of the weights"]
    faster = [name for name, row in figures["contestants"].items() if row["ratio_to_langevin"] < 1]
    losses = f"{' and '.join(faster)} took less time in total" if faster else "nobody took less time in total"
    best = max(figures["contestants"], key=lambda name: figures["contestants"][name]["worst_ess"])
    return f"""## How long is the wait for a first small fit?

Linear regression on {figures["num_rows"]:,} rows with 3 columns, in a fresh process; 4 chains side by side, 1,000 draws
of each. Median of {figures["repeats"]}, contestants alternating. NUTS adapts for 1,000 steps; `lv.fit` runs with its
defaults.

{table(header, rows)}

What we lose: {losses}. The largest effective size is that of {best}; and NUTS is exact."""


def nuts(figures: dict) -> str:
    """Effective draws a second by model and library, cold and warm; what they cost in gradients; compilation."""
    models = figures["models"]
    repeats = {name: model["repeats"] for name, model in models.items()}
    most = max(repeats.values())
    fewer = ", ".join(f"{name}: {count}" for name, count in repeats.items() if count < most)
    cold, warm = (_nuts_speeds(figures, phase) for phase in ("cold", "warm"))
    prices = table(
        ["model", *NUTS_LIBRARIES],
        [[name, *(_nuts_price(model, library) for library in NUTS_LIBRARIES)] for name, model in models.items()],
    )
    compilation = figures["compilation"]
    seconds = table(
        ["contestant", "nothing kept, s", "compiled code on disk, s"],
        [
            [name, *("-" if row[kind] is None else f"{row[kind]:.1f}" for kind in ("fresh", "cached"))]
            for name, row in compilation["seconds"].items()
        ],
    )
    return f"""## How fast is NUTS?

4 chains of {figures["num_warmup"]:,} + {figures["num_draws"]:,}, in fresh processes that alternate between the
contestants; the median of {most}{f" ({fewer})" if fewer else ""}. The figures are effective draws a second: the bulk
effective size of the worst parameter, by arviz-stats, over the seconds it took. All take the defaults of their NUTS.
NumPyro is run with its chains vectorised and with a device each, both inside one compiled function, and its cell is the
way that took the fewest seconds; BlackJAX with its window adaptation, vectorised. nutpie samples the same posteriors as
PyMC models, in float64; the others are in float32. Stochastic volatility we run as
`lv.fit(..., lv.NUTS(metric="lowrank"), noncentred=True)` from random starts; the others get the path of the volatility
itself as the unknown, on which they are faster, and start at a smoothed path.

Cold: imports, compilation and draws, with no compiled code kept from before.

{cold}

Warm: the same again in the same process, with another seed.

{warm}

Gradients an effective draw, sampling only; then the largest R-hat and the divergences; of the warm runs. Where R-hat is
far from 1, effective sizes are poor estimates.

{prices}

{_nuts_disagreements(models, figures["compared"])}

Seconds of a call of {compilation["num_steps"] // 2} + {compilation["num_steps"] // 2} on {compilation["model"]}, after
the imports: tracing and compiling. Then the same in a second process, with JAX's cache of compiled code on disk.

{seconds}

What we lose: {_nuts_losses(models)}"""


def _nuts_speeds(figures: dict, phase: str) -> str:
    rows = []
    for name, model in figures["models"].items():
        best = [model["contestants"][model["fastest"][phase][library]][phase] for library in NUTS_LIBRARIES]
        speeds = [_nuts_speed(row, model["repeats"]) for row in best]
        rows.append([name, *speeds, _nuts_ratio(model["ratios"][phase], "best peer")])
    means = figures["geometric_means"][phase]
    ratios = [_nuts_ratio(means, library) for library in (*NUTS_LIBRARIES[1:], "best peer")]
    rows.append(["langevin / peer, geometric mean", "", *ratios])
    return table(["model", *NUTS_LIBRARIES, "langevin / best peer"], rows)


def _nuts_speed(row: dict, repeats: int) -> str:
    if "outcome" in row:
        return row["outcome"]
    missing = f" ({row['finished']} of {repeats} runs)" if row["finished"] < repeats else ""
    return f"{row['ess_a_second']:,.1f}{missing}"


def _nuts_ratio(ratios: dict, name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else "-"


def _nuts_price(model: dict, library: str) -> str:
    row = model["contestants"][model["fastest"]["warm"][library]]["warm"]
    if "outcome" in row:
        return row["outcome"]
    return f"{row['gradients_an_effective_draw']:,.1f}; {row['largest_rhat']:.2f}; {row['divergences']:,.0f}"


def _nuts_disagreements(models: dict, compared: list[str]) -> str:
    kinds = " or ".join(compared)
    sentences = [
        f"{name}, {' and '.join(pair['between'])}: {pair['of']} of {pair['coordinate']} by {pair['mcses']:.1f} errors"
        for name, model in models.items()
        for pair in model["disagreements"]
    ]
    if not sentences:
        return f"No posterior {kinds} differs between two contestants by more than 5 of its Monte Carlo errors."
    return f"A posterior {kinds} that differs by more than 5 of their Monte Carlo errors: {'; '.join(sentences)}."


def _nuts_losses(models: dict) -> str:
    phases = [(name, phase, model["ratios"][phase]) for name, model in models.items() for phase in ("cold", "warm")]
    ranked = [(f"{name} ({phase}", ratios["best peer"]) for name, phase, ratios in phases if ratios]
    slower = [f"{place}, {ratio:.2f})" for place, ratio in ranked if ratio < 1]
    missing = [f"{name} ({phase})" for name, phase, ratios in phases if not ratios]
    losses = f"a peer is faster on {', '.join(slower)}." if slower else "no peer is faster on any of these."
    return losses + (f" There is no comparison on {', '.join(missing)}." if missing else "")


def vi(figures: dict) -> str:
    """A step on many rows, a small fit, an epoch of a VAE."""
    ours = figures["step"]["langevin"]
    steps = table(
        ["contestant", "microseconds a step", "times langevin"],
        [[name, f"{1e6 * s:,.0f}", f"{s / ours:,.2f}"] for name, s in figures["step"].items()],
    )
    small = table(
        ["contestant", "cold, s", "warm, s"],
        [[name, f"{row['cold']:.2f}", f"{row['warm']:.2f}"] for name, row in figures["small"].items()],
    )
    mine = figures["vae"]["langevin"]["seconds"]
    epochs = table(
        ["contestant", "seconds an epoch", "langevin / contestant", f"test bound after {figures['vae_epochs']} epochs"],
        [
            [
                name,
                f"{row['seconds']:.2f}",
                f"{mine / row['seconds']:.2f}",
                "-" if row["bound"] is None else f"{row['bound']:.2f}",
            ]
            for name, row in figures["vae"].items()
        ],
    )
    return f"""## How fast is variational inference?

A step of a mean-field fit of a logistic regression, {figures["num_rows"]:,} rows x 50, minibatches of 1,000, warm: what
a longer run takes more than a shorter one, for each step. NumPyro's SVI subsamples in a plate, as its documentation
shows. By hand: one scan written for this model, minibatches as slices, the divergence in closed form. Medians over
processes that alternate.

{steps}

The same model on 1,000 rows, all in every step, 2,000 steps and 1,000 draws, from beginning to end. Cold: a first run
in a fresh process, imports and compilation included. Warm: the same again. Ours also computes the importance ratios of
the draws.

{small}

A variational autoencoder ({figures["vae_rows"]:,} binarised images of 784 pixels; decoder 2-64-256-784, encoder the
same backwards; minibatches of 128). NumPyro and Pyro with Adam at 0.001, as in their examples; ours with the settings
of `langevin demo vae`. "numpyro" is `SVI.update` in a loop that one compiles oneself, an epoch at a time, as its
example of a VAE does (without drawing the pixels anew); `SVI.run` is its one call, with a plate that subsamples. An
epoch is what five take more than one, warm; a median over processes that alternate. It is bound by matrix products,
which are the same for all: what differs is how they are scheduled, the passes over the weights, and how rows are taken.

{epochs}

{figures.get("note", "")}""".rstrip()


RENDERERS = {
    "predict": fit_tables.predict,
    "loo": fit_tables.loo,
    "mnist": network_tables.mnist,
    "uci": network_tables.uci,
    "vi": vi,
    "cavi": conjugacy_tables.cavi,
    "hybrid": hybrid_tables.hybrid,
    "sgld_throughput": sgld_throughput,
    "runs": runs,
    "auto_step": auto_step,
    "compile_time": compile_time,
    "nuts": nuts,
    "trust": trust_table.trust,
}


def render(results: dict[str, dict]) -> str:
    """The page."""
    parts = [INTRODUCTION]
    for name in NAMES:
        if name in results:
            parts += [RENDERERS[name](results[name]["figures"]), provenance(results[name])]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Reads the results there are, and writes the page."""
    results = {name: json.loads(path.read_text()) for name in NAMES if (path := RESULTS / f"{name}.json").exists()}
    if not results:
        raise SystemExit("There are no results yet: python benchmarks/run.py measures.")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(results))
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")


if __name__ == "__main__":
    main()
