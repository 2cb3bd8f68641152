"""The section of docs/benchmarks.md about coordinate ascent."""

from __future__ import annotations

from page import table


def cavi(figures: dict) -> str:
    """Mixtures against SVI and scikit-learn, topics, and many rows by minibatches."""
    return "\n\n".join(["## How fast is coordinate ascent?", _mixtures(figures), _topics(figures), _tall(figures)])


def _mixtures(figures: dict) -> str:
    rows = []
    for dim, name in (("1", "one dimension"), ("2", "two, full covariances")):
        ours, theirs = (figures["mixture"][dim][who] for who in ("langevin", "scikit-learn"))
        ratio = theirs["warm"] / ours["warm"]
        seconds = [f"{one[phase]:.1f}" for one in (ours, theirs) for phase in ("cold", "warm")]
        rows.append([name, *seconds, f"{ratio:.1f}"])
    header = [
        "mixture",
        "langevin, cold, s",
        "warm, s",
        "scikit-learn, cold, s",
        "warm, s",
        "scikit-learn / langevin, warm",
    ]
    own = figures["mixture"]["1"]["langevin"]
    warm, sweeps = own["warm"], own["sweeps"]
    svi = [
        [
            f"{run['batch_size']:,}",
            f"{run['rate']:g}",
            f"{run['steps']:,}",
            f"{'' if run['reached'] else 'not in '}{run['seconds']:.1f}",
            f"{run['bound']:,.0f}",
            *(f"{'' if run['reached'] else 'above '}{run['seconds'] / ours:.0f}" for ours in (warm, sweeps)),
        ]
        for run in figures["svi"]
    ]
    bound = figures["mixture"]["1"]["langevin"]["bound"]
    size = f"{figures['num_rows']:,} rows, {figures['num_sweeps']} sweeps from one start"
    medians = f"medians of {figures['rounds']} fresh processes" if figures["rounds"] > 1 else "one fresh process each"
    return f"""A mixture of five normals with unknown weights, means and precisions, {size};
{medians}. Cold: imports and compilation included. Warm: the same call again in the process.
scikit-learn's `BayesianGaussianMixture` has the same priors; its q keeps the mean and the precision of a component in
one block, and ours has them apart.

{table(header, rows)}

NumPyro's SVI on the mixture in one dimension, with the labels summed out (`MixtureSameFamily`), a guide of the same
distributions as our q, Adam, and a plate that subsamples; it begins at quantiles of the rows. Its clock runs in its
steps alone, without compilation; of our {warm:.2f} s the {figures["num_sweeps"]} sweeps are {sweeps:.2f}. The bound is
ours for both, one function of the parameters of q, with each label at its optimum: the sweeps
end at {bound:,.0f}, and SVI has arrived where it is within {100 * figures["near"]:g} % of that.
(SVI climbs the bound without labels, which is a little higher for the same q.)

{table(["rows a step", "rate", "steps", "seconds", "best bound", "times langevin, warm", "times its sweeps"], svi)}"""


def _topics(figures: dict) -> str:
    rows = [
        [name, f"{row['cold']:.1f}", f"{row['warm']:.1f}", f"{row['bound']:,.0f}"]
        for name, row in figures["topics"].items()
    ]
    remark = figures.get("remark", "")
    return f"""Ten topics of 395 articles of Reuters (84,010 tokens, 4,258 words; the package lda), Dirichlet priors of
0.1, {figures["topic_sweeps"]} sweeps from one start. scikit-learn's `LatentDirichletAllocation` goes over each article
several times in a sweep. The bound is one function of both fits' concentrations; they are at different maxima.

{table(["contestant", "cold, s", "warm, s", "bound"], rows)}

{remark}""".rstrip()


def _tall(figures: dict) -> str:
    found = figures["tall"]
    names = {
        "stochastic": f"minibatches of {found['batch_size']:,}",
        "pieces": "the same, of a Parquet file that is read in pieces",
        "batch": "all rows in each sweep",
    }
    rows = [
        [name, f"{found[key]['seconds']:.0f}", f"{found[key]['megabytes']:,.0f}", f"{found[key]['bound']:,.0f}"]
        for key, name in names.items()
    ]
    best = found["batch"]["bound"]
    apart = [f"{100 * (found[key]['bound'] / best - 1):+.4f} %" for key in ("stochastic", "pieces")]
    return f"""The mixture in one dimension on {found["num_rows"]:,} rows, in a fresh process, compilation included;
memory is the rise of the peak over what the rows and imports took. The bound is over all rows, by one function: those
of minibatches are {" and ".join(apart)} of its size away from that of the sweeps over all rows (+ is worse).

{table(["", "seconds", "megabytes", "bound"], rows)}"""
