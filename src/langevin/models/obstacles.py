"""What stands in the way of a log-density over unconstrained positions: sites that it cannot have, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langevin.models.outline import Outline, row_dim


def obstacles_of(outline: Outline, minibatched: tuple[str, ...], *, local: bool = False) -> Iterator[str]:
    """What stands in the way of a log-density, where minibatches are taken of these plates.

    Args:
        outline: The program.
        minibatched: The plates over the rows, if there are minibatches.
        local: Whether continuous sites of every row are allowed.
    """
    for name in outline.shapes:
        if outline.sites[name]["discrete"]:
            yield from _obstacle_of_discrete(name, outline.sites[name], minibatched)
    if outline.shapes and all(outline.sites[name]["discrete"] for name in outline.shapes):
        name = next(iter(outline.shapes))
        yield (
            f"Every latent site of the program is discrete ({', '.join(map(repr, outline.shapes))}): when they are "
            "summed out, nothing is left to infer. Fit them by `lv.VI` with distributions of their own: "
            f"lv.VI({{{name!r}: dist.Categorical}})."
        )
    for name in outline.params:
        yield (
            f"Site {name!r} is a `numpyro.param`, which has no prior. Make it a `numpyro.sample` site, or fit the "
            "program by `lv.VI`, which finds its value."
        )
    for name in () if local else outline.shapes:
        if row_dim(outline.sites[name], minibatched) is not None and not outline.sites[name]["discrete"]:
            yield (
                f"Site {name!r} is latent and inside the plate over the rows: each row has its own, and a minibatch "
                "sees only a few of them. Integrate it out of the program, leave `batch_size` out, or fit by `lv.VI` "
                "with an amortised guide (an encoder), which computes it from the row."
            )


def _obstacle_of_discrete(name: str, site: Mapping[str, Any], minibatched: tuple[str, ...]) -> Iterator[str]:
    """Why a discrete site cannot be summed out, if it cannot."""
    what = f"Site {name!r} is a discrete latent variable, which has no gradient"
    if site["event_dim"]:
        yield (
            f"{what}, and its elements are declared as one event, so it cannot be summed out element by element. Put "
            "it into a `numpyro.plate` in place of `to_event`, or fit it by `lv.VI` with a guide."
        )
    elif site["choices"] is None:
        yield (
            f"{what}, and the number of its values is infinite or not known beforehand, so it cannot be summed out. "
            "Give it finitely many values (`dist.Categorical` over those that matter), observe it, or fit it by "
            "`lv.VI` with a guide."
        )
    elif minibatched and row_dim(dict(site), minibatched) is None:
        yield (
            f"{what}, and it is outside the plate over the rows ({minibatched[0]!r}): summing it out takes all rows at "
            "once, and a minibatch has only a few. Leave `batch_size` out, give every row its own inside the plate, or "
            "fit it by `lv.VI` with a guide."
        )
