"""The cases of trust.py: methods at their defaults and at bad settings."""

from __future__ import annotations

import dataclasses
from typing import Any

LONG_STEPS = {"step x 3": 3.0, "step x 10": 10.0}
RUNS = {"few draws": {"num_draws": 20, "num_warmup": 50}, "one chain": {"num_chains": 1}}
# The power of the narrowest sd that a step is measured in; of the others, the metric is adapted all the same.
UNITS = {"sgld": 2.0, "cyclicalsgld": 2.0, "sghmc": 1.0, "sgnht": 1.0, "cyclicalsghmc": 1.0}
SETTINGS = {
    "nuts": ("default", "step x 10", "few draws", "max_depth=2"),
    "hmc": ("default", "step x 10", "one step"),
    "mala": ("default", "step x 10"),
    "rwm": ("default", "few draws"),
    "sgld": ("default", "step x 3", "step x 10", "few draws", "one chain", "noncentred"),
    "psgld": ("default", "step x 10"),
    "sghmc": ("default", "step x 3", "step x 10", "few draws"),
    "sgnht": ("default", "step x 10"),
    "cyclicalsgld": ("default", "step x 10"),
    "cyclicalsghmc": ("default", "step x 10"),
    "map": ("default",),
    "vi": ("default", "meanfield", "fullrank", "20 steps", "200 steps", "rate 5"),
}
CHANGES: dict[tuple[str, str], dict[str, Any]] = {
    ("nuts", "max_depth=2"): {"max_depth": 2},
    ("hmc", "one step"): {"num_steps": 1},
    ("vi", "meanfield"): {"family": "meanfield"},
    ("vi", "fullrank"): {"family": "fullrank"},
    ("vi", "20 steps"): {"num_steps": 20},
    ("vi", "200 steps"): {"num_steps": 200},
    ("vi", "rate 5"): {"learning_rate": 5.0},
}


def fitted(posterior: Any, method: str, setting: str, automatic: dict) -> Any:
    """The fit of a case. `automatic` is what the method chose at its defaults: step size, thinning, narrowest sd."""
    import langevin as lv
    from langevin.methods import BY_NAME

    made = BY_NAME[method]()
    if made.needs.minibatches != "none":
        run: dict[str, Any] = {"batch_size": posterior.batch_size}
    else:
        run = {}
    if setting in LONG_STEPS:
        # A step that is given goes with the identity as metric: the automatic one is in units of the posterior's.
        unit = automatic["narrowest"] ** UNITS.get(method, 0.0)
        made = dataclasses.replace(made, step_size=LONG_STEPS[setting] * automatic["step_size"] * unit)
        run["thin"] = automatic["thin"]
    made = dataclasses.replace(made, **CHANGES.get((method, setting), {}))
    run |= RUNS.get(setting, {})
    if setting == "noncentred":
        run["noncentred"] = posterior.noncentred
    return lv.fit(posterior.model, posterior.data, made, constants=posterior.constants, progress=False, **run)


def cases_of(posterior: Any, methods: list[str], settings: list[str]) -> list[tuple[str, str]]:
    """The cases of a posterior, defaults before the steps that are multiples of theirs."""
    every = [(method, setting) for method in methods for setting in SETTINGS[method]]
    if not posterior.noncentred:
        every = [case for case in every if case[1] != "noncentred"]
    return [case for case in every if not settings or case[1] in settings]
