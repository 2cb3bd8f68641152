"""The posterior that a fit is of, to be looked at again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langevin.contracts import Needs
from langevin.errors import SettingError
from langevin.models.arguments import brought_again
from langevin.models.build import target_of
from langevin.posterior import Posterior

if TYPE_CHECKING:
    from langevin.result import Fit


def target_for(fit: Fit, data: Any, who: str) -> Posterior:
    """The posterior of a fit, with its rows in the order of the user.

    A fit that was just made has it. That of a loaded fit, or of one by a guide, is made from the model and the rows. It
    has no centring, and so is not for the unconstrained positions of a program.

    Args:
        fit: The fit.
        data: The rows, if the fit does not know them.
        who: The function that asks, for messages.

    Raises:
        SettingError: If the model or the rows are missing.
        ModelError: If the program has no log-density.
    """
    if data is None and fit.target is not None:
        return fit.target
    if fit.source is None:
        raise SettingError(
            f"`{who}` needs the model, which is not stored with a fit. Load it with the model, lv.load(path, model), "
            f"and give its rows: fit.{who}(..., data=data)."
        )
    table, constants = fit.source.table, fit.source.constants
    if data is not None:
        counts, missing = fit.settings.get("counts", {}), fit.settings.get("missing", "error")
        table, constants = brought_again(fit.source.model, data, constants, fit.levels, counts, missing=missing)
    if table is None:
        raise SettingError(
            f"`{who}` needs the rows that the model was fitted to, and they are not stored with a fit. Give them: "
            f"fit.{who}(..., data=data)."
        )
    if table.num_rows != fit.settings["num_data"]:
        raise SettingError(
            f"`{who}`: `data` has {table.num_rows} rows, and the fit is of {fit.settings['num_data']}. Give the rows "
            "of the fit."
        )
    target = target_of(
        fit.source.model,
        table,
        constants=constants,
        rows=None,
        noncentred=False,
        needs=Needs("density", "none"),
        minibatch=False,
    )
    assert isinstance(target, Posterior)
    return target
