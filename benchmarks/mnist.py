"""What is averaging over the posterior of a network worth, and what does it cost? MNIST, two layers of 400 ReLUs.

    LANGEVIN_MNIST=FOLDER python benchmarks/mnist.py [--quick]

The contestants of `langevin demo mnist`, each in a fresh process: scores on the test images, seconds and memory. Then
the seconds of an epoch beside those of others, in processes that alternate: Bayes by Backprop beside Pyro and
bayesian-torch, pSGLD beside the SGLD of posteriors. An epoch is what a longer run takes more than a shorter one. MNIST
is read from the folder that LANGEVIN_MNIST names; without it (and in a quick run) it is scikit-learn's digits.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import machine

SHORT, LONG = 1, 4
ROUNDS = 3
PEERS = {
    "pyro, AutoNormal": "BBB",
    "bayesian-torch, reparameterised": "BBB",
    "bayesian-torch, Flipout": "BBB",
    "posteriors, SGLD": "pSGLD",
}
OURS = {"BBB": "BBB, Gaussian prior", "pSGLD": "pSGLD"}


def setting(quick: bool):
    """The images, how long everything goes on, and whether they are MNIST."""
    from langevin.demos import images, mnist

    folder = os.environ.get("LANGEVIN_MNIST")
    if folder and not quick:
        return images.mnist(folder), mnist.LARGE, True
    return images.digits(), mnist.TRIAL if quick else mnist.SMALL, False


def worker(question: str, name: str, quick: str) -> dict:
    """Answers one question for one contestant."""
    return {"score": _score, "epoch": _epoch}[question](name, quick == "True")


def _score(name: str, quick: bool) -> dict:
    from langevin.demos import mnist

    data, budget, _ = setting(quick)
    one = next(one for one in mnist.contestants(len(data.train), budget) if one.name == name)
    answer = mnist.answer_of(one, data, budget.width)
    return {
        "error": answer.error,
        "nll": answer.nll,
        "ece": answer.ece,
        "auroc": answer.auroc,
        "epochs": answer.epochs,
        "seconds": answer.seconds,
        "verdict": answer.verdict,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _epoch(name: str, quick: bool) -> dict:
    import langevin as lv
    from langevin.demos import mnist

    data, budget, _ = setting(quick)
    steps = -(-len(data.train) // budget.batch_size)
    batches = {"batch_size": budget.batch_size, "num_chains": 1}

    def run(epochs: int) -> None:
        if name == "BBB":
            method, more = lv.VI("meanfield", num_steps=epochs * steps), {"num_draws": 1}
        else:
            method = lv.SGLD(preconditioner="rmsprop", step_size=1e-6)
            more = {"num_warmup": steps, "num_draws": epochs, "thin": steps}
        mnist.fitted(mnist.Contestant(name, method, batches | more, epochs), data, budget.width)

    return {"seconds_an_epoch": difference(run)}


def difference(run: Callable[[int], None]) -> float:
    """What an epoch more takes, once runs of both lengths have compiled."""
    seconds = {}
    for number, length in itertools.product(range(2), (SHORT, LONG)):
        began = time.perf_counter()
        run(length)
        if number:
            seconds[length] = time.perf_counter() - began
    return (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT)


def peer(name: str, threads: int, num_rows: int, pixels: int, width: int, batch_size: int, epochs: int) -> dict:
    """The same network and rows of the same size, in an environment of torch's own; 0 threads are torch's default."""
    # torch first and by version, and bayesian-torch alone: with torchvision, pip would bring the CUDA build.
    groups = (("torch==2.13.0",), ("pyro-ppl", "posteriors", "numpy"), ("--no-deps", "bayesian-torch"))
    python = machine.environment("networks", *groups)
    numbers = map(str, (threads, num_rows, pixels, width, batch_size, epochs))
    command = [python, "-W", "ignore", machine.HERE / "mnist_peer.py", name, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(quick: bool) -> dict:
    """The table, and the seconds of an epoch."""
    from langevin.demos import mnist

    data, budget, real = setting(quick)
    names = [one.name for one in mnist.contestants(len(data.train), budget)]
    scores = {}
    for name in names:
        scores[name] = machine.fresh("mnist.py", "score", name, quick)
        print(f"  {name}: {scores[name]}", file=sys.stderr, flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS)}
    versions: dict[str, str] = {}
    sizes = (*data.train.shape, budget.width, budget.batch_size, LONG)
    for _, name in itertools.product(range(1 if quick else ROUNDS), seconds):
        if name in OURS:
            found = machine.fresh("mnist.py", "epoch", name, quick)
        else:
            # Torch's threads wait for each other where others use the cores too: the better of both counts.
            both = [peer(name, threads, *sizes) for threads in (0, 1)]
            found = min(both, key=lambda one: one["seconds_an_epoch"])
            versions |= found["versions"]
        seconds[name].append(found["seconds_an_epoch"])
        print(f"  an epoch of {name}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    epochs = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "data": "MNIST" if real else "scikit-learn's digits",
        "num_rows": len(data.train),
        "num_test": len(data.test),
        "budget": budget._asdict(),
        "scores": scores,
        "epochs": epochs,
        "all_epochs": seconds,
        "ratios": {name: epochs[ours] / epochs[name] for name, ours in PEERS.items()},
        "versions": versions,
    }


if __name__ == "__main__":
    machine.main(measure, worker)
