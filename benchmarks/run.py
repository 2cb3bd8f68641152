"""Runs the benchmarks, writes benchmarks/results/NAME.json, and makes docs/benchmarks.md from them.

    python benchmarks/run.py [NAME ...] [--quick]

A quick run is a trial on little data: it prints what it found and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time

import machine
import tables


def run(name: str, quick: bool) -> dict:
    """The figures of one benchmark, with the machine they were measured on."""
    about = machine.describe()
    began = time.perf_counter()
    figures = importlib.import_module(name).measure(quick)
    about["versions"] |= figures.pop("versions", {})
    return about | {"minutes": (time.perf_counter() - began) / 60, "figures": figures}


def main() -> None:
    """All benchmarks, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(tables.NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a trial on little data; writes nothing")
    options = parser.parse_args()
    unknown = set(options.names) - set(tables.NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    results = {}
    for name in options.names or tables.NAMES:
        print(f"{name} ...", flush=True)
        results[name] = run(name, options.quick)
        if not options.quick:
            tables.RESULTS.mkdir(exist_ok=True)
            (tables.RESULTS / f"{name}.json").write_text(json.dumps(results[name], indent=2) + "\n")
    if options.quick:
        print(tables.render(results))
    else:
        tables.main()


if __name__ == "__main__":
    main()
