"""The section of docs/benchmarks.md about trust, from the records of trust.py."""

from __future__ import annotations

from collections import Counter

from page import table
from trust_cases import SETTINGS

SYMBOLS = {
    "right, trustworthy": "+",
    "right, flagged": "o",
    "wrong, flagged": "-",
    "wrong, trustworthy": "X",
    "best of family, trustworthy": "m",
    "best of family, flagged": "m",
    "refused": "r",
    "timeout": "t",
    "no step": ".",
    "failed": "E",
    "crashed": "E",
}
MOST_LISTED = 60


def kind(fit: dict) -> str:
    """What became of a case, as in `SYMBOLS`."""
    if fit["outcome"] != "fit":
        return fit["outcome"]
    truth = "right" if fit["right"] else "best of family" if fit["best_of_family"] else "wrong"
    return f"{truth}, {'trustworthy' if fit['word'] == 'trustworthy' else 'flagged'}"


def totals(fits: list[dict]) -> dict:
    """How many of each kind; the two headline figures, of all cases and of those at defaults."""

    def headline(some: list[dict]) -> dict:
        counts = Counter(map(kind, some))
        right = counts["right, trustworthy"] + counts["right, flagged"]
        share = counts["right, trustworthy"] / right if right else None
        return {
            "wrong_called_trustworthy": counts["wrong, trustworthy"],
            "wrong": counts["wrong, trustworthy"] + counts["wrong, flagged"],
            "share_of_right_called_so": share,
            "right": right,
            "counts": dict(sorted(counts.items())),
        }

    defaults = [fit for fit in fits if fit["setting"] == "default"]
    return {"all": headline(fits), "defaults": headline(defaults)}


def line(name: str, fits: list[dict]) -> str:
    """One posterior's cases on a line, for the terminal."""
    return f"{name}: " + " ".join(f"{method} {cell}" for method, cell in cells(fits).items())


def cells(fits: list[dict]) -> dict[str, str]:
    """For each method the symbols of its settings, in their order."""
    found: dict[str, str] = {}
    for fit in _ordered(fits):
        found[fit["method"]] = found.get(fit["method"], "") + SYMBOLS[kind(fit)]
    return found


def _ordered(fits: list[dict]) -> list[dict]:
    methods = list(SETTINGS)
    return sorted(fits, key=lambda x: (methods.index(x["method"]), SETTINGS[x["method"]].index(x["setting"])))


def _case(fit: dict) -> str:
    return f"{fit['posterior']}, {fit['method']}, {fit['setting']}"


def trust(figures: dict) -> str:
    """The headline figures, the table of posteriors and methods, and the cases that matter."""
    fits = figures["fits"]
    methods = list(cells(fits))
    by_posterior: dict[str, list[dict]] = {}
    for fit in fits:
        by_posterior.setdefault(fit["posterior"], []).append(fit)
    rows = [[name, *(cells(some).get(m, "") for m in methods)] for name, some in by_posterior.items()]
    settings = {fit["method"]: [] for fit in _ordered(fits)}
    for fit in _ordered(fits):
        if fit["setting"] not in settings[fit["method"]]:
            settings[fit["method"]].append(fit["setting"])
    order = "; ".join(f"{method}: {', '.join(some)}" for method, some in settings.items())
    return f"""## Can the verdict be trusted?

{len(by_posterior)} posteriors whose means and sds are known (in closed form, by quadrature, by exact draws, or from
long runs of NumPyro's NUTS in double precision), each fitted by every method, at its defaults and at bad settings. A
fit is right if every mean is within 0.2 sds and every sd within 15 %, plus three Monte Carlo errors (at most those of a
hundred effective draws).

{_headline(figures["totals"])}

{_missing(by_posterior)}

A cell has one symbol for each setting, in this order: {order}. A posterior without sites to non-centre has one less.
`+` right, and called trustworthy; `o` right, but not called so; `-` wrong, and not called trustworthy; `X` wrong, and
called trustworthy; `m` not the posterior, but the best of the mean-field family; `r` refused with a sentence; `t`
stopped at the time limit; `E` another error; `.` no automatic step to make too long.

{table(["posterior", *methods], rows)}

{_listed("Wrong, and called trustworthy", [fit for fit in fits if kind(fit) == "wrong, trustworthy"], _how_wrong)}

{_listed("Right, but not called so", [fit for fit in fits if kind(fit) == "right, flagged"], _codes)}

{_listed("Errors that are not langevin's own", [fit for fit in fits if SYMBOLS[kind(fit)] == "E"], _told)}"""


def _headline(totals: dict) -> str:
    rows = []
    for name, found in totals.items():
        share = found["share_of_right_called_so"]
        wrong = f"{found['wrong_called_trustworthy']} of {found['wrong']}"
        right = "-" if share is None else f"{100 * share:.1f} % of {found['right']}"
        rows.append([{"all": "all settings", "defaults": "defaults"}[name], wrong, right])
    rows.append(["wanted", "0", "at least 85 %"])
    return table(["", "wrong fits called trustworthy", "right fits called so"], rows)


def _missing(by_posterior: dict[str, list[dict]]) -> str:
    """Says if cases of these posteriors are still to run; that a posterior can be non-centred is not told here."""
    every = {(method, setting) for method, some in SETTINGS.items() for setting in some if setting != "noncentred"}
    missing = sum(len(every - {(x["method"], x["setting"]) for x in fits}) for fits in by_posterior.values())
    fits = sum(map(len, by_posterior.values()))
    return f"Not complete: {missing} cases of these posteriors have not been run." if missing else f"{fits} cases."


def _listed(title: str, fits: list[dict], describe) -> str:
    if not fits:
        return f"{title}: none."
    shown = "\n".join(f"- {_case(fit)}: {describe(fit)}" for fit in fits[:MOST_LISTED])
    rest = f"\n- and {len(fits) - MOST_LISTED} more, in results/trust.json" if len(fits) > MOST_LISTED else ""
    return f"{title}:\n\n{shown}{rest}"


def _how_wrong(fit: dict) -> str:
    return f"mean of {fit['mean_of']} off by {fit['mean_error']} sds, sd of {fit['sd_of']} {fit['sd_ratio']} times"


def _codes(fit: dict) -> str:
    return ", ".join(fit["codes"])


def _told(fit: dict) -> str:
    return fit.get("told", fit["outcome"])
