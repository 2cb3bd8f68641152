"""Does langevin ever call a wrong fit trustworthy, and how often does it call a right one so?

    python benchmarks/trust.py [--only NAME ...] [--methods NAME ...] [--settings NAME ...] [--again] [--quick]

Every posterior of the gallery, by every method, at its defaults and at bad settings. A fit is right if every mean is
within 0.2 sds of the reference and every sd within 15 %, plus three Monte Carlo errors. Results are merged into
benchmarks/results/trust.json as they come: what is there is not run again, unless asked.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
import trust_table
from tables import RESULTS
from trust_cases import LONG_STEPS, SETTINGS, cases_of, fitted

# Seconds of processor time for a case, and of the clock, in case that a process sleeps.
LIMIT, WALL_LIMIT = 40.0, 300.0
MOST_MEAN_ERROR, MOST_SD_ERROR = 0.2, 0.15
# An allowance for Monte Carlo error beyond that of a hundred effective draws would let any short run pass.
NUM_ERRORS, MOST_MONTE_CARLO = 3, 0.1
QUICK = ("gaussian_10", "linear_raw", "logistic_small", "eight_schools_centred", "tied_mixture", "cauchy")


def compared(fit: Any, posterior: Any, moments: Any, sds: dict) -> dict:
    """The worst mean and the worst sd of a fit, and whether it is right: against these means and sds."""
    import numpy as np

    from langevin.diagnostics import weighted

    weights = fit.weights.values
    draws = posterior.view({str(name): np.asarray(x.values, np.float64) for name, x in fit.posterior.items()})
    means, widths = [], []
    for name, x in draws.items():
        sd, mean = np.asarray(sds[name]), weighted.mean(x, weights)
        centred = x - mean
        spread = weighted.sd(x, weights)
        noise = _capped(weighted.mcse(x, weights) / sd)
        noise_of_sd = _capped(weighted.mcse(centred**2, weights) / (2 * np.maximum(spread, 1e-300) ** 2))
        error, ratio = np.abs(mean - moments.mean[name]) / sd, spread / sd
        excess = error - NUM_ERRORS * (noise + moments.error)
        excess_of_sd = np.abs(ratio - 1) - NUM_ERRORS * (noise_of_sd + moments.error)
        means.append(_worst(name, error, excess))
        widths.append(_worst(name, ratio, excess_of_sd))
    mean, width = (max(found, key=lambda worst: worst["excess"]) for found in (means, widths))
    right = mean["excess"] <= MOST_MEAN_ERROR and width["excess"] <= MOST_SD_ERROR
    return {
        "right": right,
        "mean_error": mean["value"],
        "mean_of": mean["name"],
        "sd_ratio": width["value"],
        "sd_of": width["name"],
    }


def _capped(error: Any) -> Any:
    import numpy as np

    return np.minimum(np.where(np.isfinite(error), error, MOST_MONTE_CARLO), MOST_MONTE_CARLO)


def _worst(name: str, values: Any, excess: Any) -> dict:
    """The coordinate that is furthest beyond its Monte Carlo error; one that is not finite is infinitely far."""
    import numpy as np

    flat = np.nan_to_num(np.ravel(excess), nan=np.inf, posinf=np.inf)
    worst = int(np.argmax(flat))
    index = ", ".join(map(str, np.unravel_index(worst, np.shape(excess))))
    value = float(np.ravel(values)[worst])
    return {
        "excess": float(flat[worst]),
        "value": float(f"{value:.3g}") if np.isfinite(value) else None,
        "name": f"{name}[{index}]" if index else name,
    }


def narrowest(fit: Any) -> float | None:
    """The sd of the draws in the direction where they vary least, before the map to what is reported."""
    import numpy as np

    sites = fit.data_tree["unconstrained_posterior"].to_dataset().values()
    draws = np.concatenate([np.asarray(x.values, np.float64).reshape(x.shape[0] * x.shape[1], -1) for x in sites], 1)
    if len(draws) < 2 or not np.isfinite(draws).all():
        return None
    return float(np.sqrt(max(np.linalg.eigvalsh(np.atleast_2d(np.cov(draws.T)))[0], 0.0)))


def judged(name: str, posterior: Any, method: str, setting: str, automatic: dict) -> dict:
    """One case: how it ended, whether the fit is right, and what it was called."""
    from gallery import reference_of

    import langevin as lv

    began = time.perf_counter()
    case = {"posterior": name, "method": method, "setting": setting}
    if setting in LONG_STEPS and not (automatic.get("step_size") and automatic.get("narrowest")):
        return case | {"outcome": "no step", "seconds": 0.0}
    try:
        fit = fitted(posterior, method, setting, automatic)
        verdict = fit.verdict
    except lv.LangevinError as error:
        return case | {"outcome": "refused", "told": str(error), "seconds": time.perf_counter() - began}
    except Exception as error:
        told = f"{type(error).__name__}: {str(error)[:300]}"
        return case | {"outcome": "failed", "told": told, "seconds": time.perf_counter() - began}
    seconds = round(time.perf_counter() - began, 1)
    moments = reference_of(name, posterior)
    found = compared(fit, posterior, moments, moments.sd)
    meanfield = method == "vi" and setting not in ("default", "fullrank", "noncentred")
    best = False
    if meanfield and not found["right"] and moments.meanfield is not None:
        best = compared(fit, posterior, moments, moments.meanfield)["right"]
    word = getattr(verdict, "word", "doubtful" if verdict else "trustworthy")
    told = [str(finding) for finding in verdict] if found["right"] and word != "trustworthy" else []
    codes = [finding.code for finding in verdict]
    case |= {"outcome": "fit", "seconds": seconds} | found | {"best_of_family": best, "word": word, "codes": codes}
    if told:
        case["told"] = " ".join(told)
    if setting == "default":
        step_size, thin = fit.settings.get("step_size"), fit.settings["thin"]
        case["automatic"] = {"step_size": step_size, "thin": thin, "narrowest": narrowest(fit)}
    return case


def check_source() -> None:
    """Raises SystemExit if langevin is not the one beside these benchmarks: another checkout would be measured."""
    import langevin

    beside = machine.HERE.parent / "src"
    if not Path(langevin.__file__).resolve().is_relative_to(beside.resolve()):
        raise SystemExit(f"langevin is imported from {langevin.__file__}, not from {beside}. Set PYTHONPATH to that.")


def worker(name: str, cases: str, automatic: str) -> None:
    """Judges cases of one posterior, and prints a line for each; the first line says that it is ready."""
    import references  # noqa: F401
    from gallery import REGISTRY

    warnings.simplefilter("ignore")
    posterior, steps = REGISTRY[name](), json.loads(automatic)
    print("ready", flush=True)
    for method, setting in json.loads(cases):
        # The signal of this timer ends the process, whatever it is computing.
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        found = judged(name, posterior, method, setting, steps.get(method, {}))
        steps |= {method: found["automatic"]} if "automatic" in found else {}
        print(json.dumps(found), flush=True)


class Worker:
    """A process that judges cases of one posterior, each within a time limit."""

    def __init__(self, name: str, cases: list[tuple[str, str]], automatic: dict) -> None:
        command = [sys.executable, __file__, "--worker", name, json.dumps(cases), json.dumps(automatic)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def line(self) -> str | None:
        """The next line, or None if the process ended or sleeps."""
        try:
            return self._lines.get(timeout=WALL_LIMIT)
        except queue.Empty:
            return None

    def end(self) -> str:
        """Ends the process, if it has not ended by itself; returns how it ended."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "timeout"
        return "timeout" if code == -signal.SIGPROF else "crashed"


def posterior_cases(name: str, cases: list[tuple[str, str]], automatic: dict) -> list[dict]:
    """The records of these cases. A process that is too slow or ends is replaced, and goes on after that case."""
    found, left = [], list(cases)
    while left:
        process = Worker(name, left, automatic)
        line = process.line()
        while left and line is not None:
            line = process.line()
            record = _lost(name, left[0], process.end()) if line is None else json.loads(line)
            found.append(record)
            left = left[1:]
            if "automatic" in record:
                automatic = automatic | {record["method"]: record["automatic"]}
        process.end()
    return found


def _lost(name: str, case: tuple[str, str], outcome: str) -> dict:
    return {"posterior": name, "method": case[0], "setting": case[1], "outcome": outcome, "seconds": LIMIT}


def stored() -> dict:
    """What was measured so far: records by posterior, method and setting."""
    path = RESULTS / "trust.json"
    fits = json.loads(path.read_text())["figures"]["fits"] if path.exists() else []
    return {(fit["posterior"], fit["method"], fit["setting"]): fit for fit in fits}


def figures_of(fits: dict) -> dict:
    """All records, ordered, and the totals."""
    ordered = [fits[key] for key in sorted(fits)]
    return {"totals": trust_table.totals(ordered), "fits": ordered}


def write(fits: dict, about: dict) -> None:
    """Writes the results, a record a line."""
    figures = figures_of(fits)
    minutes = sum(fit["seconds"] for fit in figures["fits"]) / 60
    head = json.dumps(about | {"minutes": minutes, "figures": {"totals": figures["totals"]}}, indent=2)
    lines = ",\n".join(f"      {json.dumps(fit)}" for fit in figures["fits"])
    text = head.removesuffix("\n  }\n}") + f',\n    "fits": [\n{lines}\n    ]\n  }}\n}}\n'
    (RESULTS / "trust.json").write_text(text)


def with_reference(work: dict) -> dict:
    """The work on posteriors whose answer is known; names the others."""
    from gallery import REFERENCES, REGISTRY

    known = json.loads(REFERENCES.read_text())
    missing = [name for name in work if REGISTRY[name]().reference is None and name not in known]
    for name in missing:
        print(f"{name} has no reference yet: python benchmarks/references.py {name}", flush=True)
    return {name: cases for name, cases in work.items() if name not in missing}


def run(work: dict[str, list[tuple[str, str]]], fits: dict, jobs: int, keep: bool) -> dict:
    """Runs the cases of each posterior, several posteriors side by side; merges and writes as they come."""
    check_source()
    about, lock = machine.describe(), threading.Lock()

    def one(name: str) -> None:
        automatic = {
            method: fit["automatic"] for (of, method, _), fit in fits.items() if of == name and "automatic" in fit
        }
        records = posterior_cases(name, work[name], automatic)
        with lock:
            fits.update({(fit["posterior"], fit["method"], fit["setting"]): fit for fit in records})
            print(trust_table.line(name, records), flush=True)
            if keep:
                write(fits, about)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [name for name in work if work[name]]))
    return fits


def measure(quick: bool) -> dict:
    """All of it anew, as many posteriors side by side as there are cores; or a few."""
    import references  # noqa: F401
    from gallery import REGISTRY

    methods = ["nuts", "sgld", "sghmc", "vi"] if quick else list(SETTINGS)
    work = {
        name: cases_of(REGISTRY[name](), methods, ["default"] if quick else [])
        for name in (QUICK if quick else REGISTRY)
    }
    return figures_of(run(with_reference(work), {}, os.cpu_count() or 1, keep=not quick))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="some of the posteriors")
    parser.add_argument("--methods", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--settings", nargs="+", default=[], help='some of the settings, such as "default"')
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--quick", action="store_true", help="few posteriors, four methods at defaults; writes nothing")
    parser.add_argument("--jobs", type=int, default=1, help="posteriors side by side")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    if options.quick:
        print(trust_table.trust(measure(True)))
        return
    import references  # noqa: F401
    from gallery import REGISTRY

    unknown = set(options.only) - set(REGISTRY)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(REGISTRY)}")
    fits = stored()
    work = {name: cases_of(REGISTRY[name](), options.methods, options.settings) for name in options.only or REGISTRY}
    work = with_reference(work)
    if not options.again:
        work = {name: [case for case in cases if (name, *case) not in fits] for name, cases in work.items()}
    run(work, fits, options.jobs, keep=True)
    print(trust_table.trust(figures_of(fits)))


if __name__ == "__main__":
    main()
