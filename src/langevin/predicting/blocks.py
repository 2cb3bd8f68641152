"""Predictions batch by batch: a program called on a batch of rows at many draws at once, compiled once.

A block is all draws on a batch of rows. Where rows depend on one another there is one batch, and the draws come in
parts. What a block takes besides its results is asked of the compiler: a block that would take more than
`MOST_BYTES` is made smaller. Where the draws themselves are large, as those of a network, a block has few of them at a
time, which are read then, and many rows. So the memory that a prediction takes besides the fit, the rows and the result
does not grow with the number of rows or draws: at most two blocks at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from langevin.predicting.predictor import Predictor
from langevin.predicting.reduction import What, reduced
from langevin.predicting.sites import Site
from langevin.predicting.values import Read

# How many numbers of a site a block has, about; and how many bytes a block may take.
NUMBERS_A_BLOCK = 500_000
MOST_BYTES = 200_000_000
# Where the values of a draw are large, rows come together as long as all their draws are at most so many numbers.
MOST_NUMBERS = 25_000_000


class Piece(NamedTuple):
    """What a block says of one site: rows in front, where it has rows.

    Attributes:
        mean: The predictive mean.
        aleatoric: The mean, over draws, of the conditional variance; None if it is unknown.
        epistemic: The variance, over draws, of the conditional mean.
        probabilities: Of the classes, at the end.
        entropy: The mean, over draws, of the entropy of the classes given the draw; None if it is unknown.
        draws: One value for each draw, at the end; whole numbers of `unit`, from the mean, if there is a unit.
        unit: What the draws are counted in, where they are codes.
        log_density: Of what is observed: the logarithm of the mean density, one value a row.
        spread: The variance, over draws, of the probabilities.
    """

    mean: np.ndarray | None = None
    aleatoric: np.ndarray | None = None
    epistemic: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    entropy: np.ndarray | None = None
    draws: np.ndarray | None = None
    unit: np.ndarray | None = None
    log_density: np.ndarray | None = None
    spread: np.ndarray | None = None


class Block(NamedTuple):
    """Rows `start, ..., stop - 1`, and what is said of their sites."""

    start: int
    stop: int
    pieces: dict[str, Piece]


def blocks_of(predictor: Predictor, what: What, batch_size: int | None = None) -> Iterator[Block]:
    """Predicts, batch by batch.

    Args:
        predictor: The fit and the rows.
        what: What is computed.
        batch_size: Rows in a batch; by default as many as go into the memory that is allowed.
    """
    made = _Made(predictor, what, batch_size)
    columns = predictor.columns
    pending = None
    for number, start in enumerate(range(0, columns.num_rows, made.num_rows)):
        stop = min(start + made.num_rows, columns.num_rows)
        parts = made.parts(number, start, stop)
        # The next block is computed while this one is looked at.
        if pending is not None:
            yield made.block(*pending)
        pending = (start, stop, parts)
    if pending is not None:
        yield made.block(*pending)


class _Made:
    """The compiled program of a prediction, and its sizes.

    Attributes:
        num_rows: Rows in a batch.
        num_draws: Draws in a part.
    """

    def __init__(self, predictor: Predictor, what: What, batch_size: int | None) -> None:
        self._predictor, self._what = predictor, what
        # A draw of the posterior is there several times for the sake of quantiles; classes have none.
        several = what.draws == "joint" or (what.draws and not all(site.classes for site in predictor.asked))
        self._chosen = predictor.chosen if several else predictor.chosen.once()
        total, count = predictor.columns.num_rows, len(self._chosen.index)
        width = max((math.prod(site.shape) // total if site.row_axis is not None else 1) for site in predictor.asked)
        self.num_draws, self.num_rows = count, total
        if predictor.by_rows:
            most = max(NUMBERS_A_BLOCK // (count * max(width, 1)), 1) if batch_size is None else batch_size
            self.num_rows = most if most < total else _rounded(total)
        else:
            self.num_draws = int(np.clip(NUMBERS_A_BLOCK // max(total * width, 1), 1, count))
        bytes_a_draw = sum(4 * math.prod(value.shape[1:]) for value in predictor.values.values())
        self._heavy = count // self._chosen.times * bytes_a_draw > MOST_BYTES // 4
        if self._heavy:
            # A draw is read once for many rows, and so few at a time that they go into memory.
            if predictor.by_rows and batch_size is None:
                # A row too many is one for every draw: few of them.
                most, enough = max(MOST_NUMBERS // (count * max(width, 1)), 1), _rounded(total, steps=8)
                self.num_rows = most if most < total else enough
            most = min(NUMBERS_A_BLOCK // max(self.num_rows * width, 1), MOST_BYTES // 2 // bytes_a_draw)
            self.num_draws = int(np.clip(most, 1, count))
        self.num_draws = self._whole(self.num_draws)
        permuted = predictor.seed.child("levels").generator().permutation(count)
        self._levels = ((permuted + 0.5) / count).astype(np.float32)
        self._compiled = self._fit_into_memory(batch_size)

    def _fit_into_memory(self, batch_size: int | None) -> Callable[..., Any]:
        while True:
            compiled = self._compile()
            shrink = math.ceil(_bytes_of(compiled) / MOST_BYTES)
            rows = self._predictor.by_rows and self.num_rows > 1 and batch_size is None
            draws = self.num_draws > self._chosen.times
            if shrink < 2 or not (rows or draws):
                return compiled
            if draws and (self._heavy or not rows):
                self.num_draws = self._whole(self.num_draws // shrink)
            else:
                self.num_rows = max(self.num_rows // shrink, 1)

    def _whole(self, num_draws: int) -> int:
        """So many draws, or a few less: a draw that is there several times is in one part."""
        times = self._chosen.times
        return max(num_draws // times, 1) * times

    def _compile(self) -> Any:
        predictor = self._predictor
        # A compiled program knows its sites, but not how many rows there are in all.
        asked = tuple(site._replace(shape=()) for site in predictor.asked)
        sizes = (
            self.num_rows,
            self.num_draws,
            self._chosen.times,
            tuple((name, v.shape[1:]) for name, v in predictor.values.items()),
        )
        return predictor.source.once((self._asked_for, sizes, predictor.likeness, asked), self._lowered)

    @property
    def _asked_for(self) -> What:
        """What is computed: parts of the draws have no mean in common, so that their draws are not codes around it."""
        return self._what._replace(codes=self._what.codes and self.num_draws == len(self._chosen.index))

    def _lowered(self) -> Any:
        function = functools.partial(reduced, self._predictor, self._asked_for)
        return (
            jax.jit(function)
            .lower(*self._arguments(0, 0, min(self.num_rows, self._predictor.columns.num_rows), 0))
            .compile()
        )

    def _arguments(self, number: int, start: int, stop: int, first: int) -> tuple[Any, ...]:
        """Of the compiled program: rows that are missing repeat the last, draws that are missing have no share."""
        predictor = self._predictor
        last = min(first + self.num_draws, len(self._chosen.index))
        draws = np.minimum(np.arange(first, first + self.num_draws), last - 1)
        shares = np.where(np.arange(first, first + self.num_draws) < last, self._chosen.shares[draws], 0.0)
        # Where one batch has all rows, their number is the program's.
        rows = np.minimum(np.arange(start, start + self.num_rows), stop - 1)
        whole = len(rows) == predictor.columns.num_rows and start == 0

        def taken(column: Any) -> Any:
            return column if whole else column[start:stop] if len(rows) == stop - start else column[rows]

        inputs = {name: taken(column) for name, column in predictor.columns.inputs.items()}
        held = {name: taken(column) for name, column in predictor.columns.held.items()} if self._what.density else {}
        # Of a draw that is there several times there is one value.
        places = draws[:: self._chosen.times] // self._chosen.times

        def at_draws(value: np.ndarray | Read) -> np.ndarray:
            return value if isinstance(value, np.ndarray) and len(places) == len(value) else value[places]

        values = {name: at_draws(value) for name, value in predictor.values.items()}
        own = {}
        for name, value in predictor.own.items():
            some = at_draws(value)
            axis = predictor.sites.all[name].row_axis
            own[name] = some if whole or axis is None else np.take(some, rows, axis=axis + 1)
        words = predictor.seed.child("whole").key_words(), predictor.seed.child("rows", number).key_words()
        numbers = draws.astype(np.int32), shares.astype(np.float32), self._levels[draws]
        if self._chosen.times > 1:
            numbers = tuple(array.reshape(-1, self._chosen.times) for array in numbers)
        return inputs, held, {**values, **own}, predictor.params, words, numbers

    def parts(self, number: int, start: int, stop: int) -> list[tuple[int, Any]]:
        """What the program says of these rows, a part of the draws after the other; not waited for if it is one."""
        count = len(self._chosen.index)
        parts = []
        for first in range(0, count, self.num_draws):
            out = self._compiled(*self._arguments(number, start, stop, first))
            parts.append(
                (min(self.num_draws, count - first), out if self.num_draws == count else jax.tree.map(np.asarray, out))
            )
        return parts

    def block(self, start: int, stop: int, parts: list[tuple[int, Any]]) -> Block:
        """The parts as one, without the rows that were repeated."""
        pieces = {}
        for site in self._predictor.asked:
            pieces[site.name] = self._piece(site, stop - start, [(count, out[site.name]) for count, out in parts])
        return Block(start, stop, pieces)

    def _piece(self, site: Site, num_rows: int, parts: list[tuple[int, dict[str, Any]]]) -> Piece:
        def cut(value: Any) -> np.ndarray:
            return np.asarray(value)[:num_rows] if site.row_axis is not None else np.asarray(value)

        found: dict[str, Any] = {}
        names = set(parts[0][1])
        # As numbers: arithmetic with an array of JAX's would be dispatched, and compiled, op by op.
        shares = [float(part["share"]) for _, part in parts]
        if "mean" in names:
            moments = [(share, cut(p["mean"]), cut(p["scatter"])) for share, (_, p) in zip(shares, parts, strict=True)]
            merged = functools.reduce(_merged, moments)
            found |= {"mean": merged[1], "epistemic": merged[2] / (self._predictor.chosen.correction or 1.0)}
        for name in names & {"aleatoric", "probabilities", "entropy"}:
            weighed = [cut(p[name]) * (share / sum(shares)) for share, (_, p) in zip(shares, parts, strict=True)]
            found[name] = sum(weighed[1:], weighed[0])
        if site.classes == 2 and "mean" in found:
            found["probabilities"] = np.stack([1 - found["mean"], found["mean"]], axis=-1)
            found["spread"] = np.stack([found["epistemic"]] * 2, axis=-1) if "aleatoric" in found else None
        elif "probability_scatter" in names:
            moments = [
                (share, cut(p["probabilities"]), cut(p["probability_scatter"]))
                for share, (_, p) in zip(shares, parts, strict=True)
            ]
            found["spread"] = functools.reduce(_merged, moments)[2] / (self._predictor.chosen.correction or 1.0)
        if "unit" in names:
            found["unit"] = cut(parts[0][1]["unit"])
        if "log_density" in names:
            found["log_density"] = functools.reduce(np.logaddexp, [cut(part["log_density"]) for _, part in parts])
        if "draws" in names:
            found["draws"] = (
                np.concatenate([cut(part["draws"])[..., :count] for count, part in parts], axis=-1)
                if len(parts) > 1
                else cut(parts[0][1]["draws"])
            )
        return Piece(**found)


def _bytes_of(compiled: Any) -> int:
    """What a program takes for its results and in between; 0 if the device does not say."""
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def _merged(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Shares, means and scatters of two parts of the draws as those of both (Chan et al. 1983)."""
    total = one[0] + other[0]
    gap = other[1] - one[1]
    mean = one[1] + gap * (other[0] / total)
    return total, mean, one[2] + other[2] + gap**2 * (one[0] * other[0] / total)


def _rounded(count: int, steps: int = 1) -> int:
    """The next power of two, or of so many steps to it: other numbers of rows are then served by the same program."""
    above = max(8, 1 << (count - 1).bit_length())
    step = max(above // (2 * steps), 1) if steps > 1 else above
    return -(-count // step) * step
