"""The command: thin. Parse, call, print.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib.metadata
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from langevin.errors import LangevinError
from langevin.run.cache import keep_by_environment

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Bayesian inference at the price of SGD.")


class Demo(StrEnum):
    """The reference experiments that can be run."""

    MIXTURE = "mixture"
    REGRESSION = "regression"
    GAUSSIAN = "gaussian"
    VAE = "vae"
    NETWORK = "network"
    CLASSIFY = "classify"
    MNIST = "mnist"
    TOPICS = "topics"
    VOLATILITY = "volatility"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"langevin {importlib.metadata.version('langevin')}")
        raise typer.Exit


@app.callback()
def langevin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Keep compiled programs on disk, for the next run.")] = True,
) -> None:
    """Bayesian inference at the scale and price of stochastic gradient descent."""
    del version  # its callback has answered
    if cache:
        keep_by_environment()


@app.command()
def demo(
    name: Annotated[Demo, typer.Argument(help="Which experiment.")],
    out: Annotated[Path, typer.Option(help="The folder that the pictures go to.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same bits.")] = 0,
    progress: Annotated[bool, typer.Option(help="Show progress bars.")] = True,
    data: Annotated[
        Path | None,
        typer.Option(help="For vae and mnist: the folder with MNIST's files; for volatility: a CSV of prices."),
    ] = None,
) -> None:
    """Run a reference experiment: print its table and write its pictures."""
    import importlib

    from langevin import plots

    if data is not None and name not in (Demo.VAE, Demo.MNIST, Demo.VOLATILITY):
        raise typer.BadParameter(f"the demo {name.value!r} makes its own data", param_hint="--data")
    more = {} if data is None else {"data": data}
    try:
        # Before JAX and the run: a minute's work would be for nothing.
        plots.check()
        importlib.import_module(f"langevin.demos.{name.value}").run(out, seed=seed, progress=progress, **more)
    except LangevinError as error:
        typer.echo(f"langevin demo {name.value}: {error}", err=True)
        raise typer.Exit(1) from error


def main() -> None:
    """The entry point."""
    app()
