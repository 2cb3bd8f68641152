"""Where the posterior is and what shape it has, for every engine: a Gaussian q in its typical set, and a centring.

Stages, with few coordinates:

1. "mode": every start climbs by damped Newton steps on a sample of the rows (`climbing`); the highest then on all rows.
2. "shape": from the Gaussian that the curvature there makes, natural gradients lead to the one that is nearest to the
   posterior (`gaussian`). The mode of a hierarchy may be far from where its mass is: so the mode is not the end.

With more, "mode" is a fit of independent Gaussians by minibatches, and "shape" goes on with a control variate
(`online`), all starts side by side: what they disagree in is the error.

Where globals and group effects are to have a covariance, natural gradients on all rows find it then ("groups": see
`wheel`).

Sites whose centring can be chosen begin non-centred. After "mode", or a first "shape", the variance v of an element's
noise tells how far to centre it: by 1 - v. Then the shape is found anew, and the form with the higher bound is kept
(for many coordinates, the latter). All control state is plain.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from langevin.contracts import State
from langevin.data.batches import Batches
from langevin.geometry import beyond, climbing, evaluating, gaussian, online, recentring, wheel
from langevin.geometry.starts import flattened
from langevin.models.spokes import Layout, layout_of
from langevin.posterior import Centring, Position, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

# A full covariance: with up to so many coordinates where it is cheap or asked for, and else only with few of them.
MOST_DENSE = 512
FEW = 128
CHEAP = 600_000
STEPS_A_ROUND = 4000
STEPS_A_CALL = 500
# So many, and more while some fit is still on its way.
ROUNDS, MOST_ROUNDS = 5, 12
MOST_DISAGREEMENT = 0.02
# Gradients of a row that the looks at q may take, and how many looks there are in any case.
MOST_LOOKED_AT = 400_000_000
FEW_LOOKS = 3
MOST_RETRIES = 3
# With more of them in a look at q, a hierarchy's shape is found by minibatches.
MOST_A_LOOK = 20_000_000
# In so many units of q a start's mode is another one; and it counts if its mass is not smaller by this factor (log).
FAR = 4.0
FAINT = 7.0
LOWEST = -1e300


class Found(NamedTuple):
    """What was found.

    Attributes:
        centring: For each site whose centring can be chosen.
        centre: The mean of q, flat.
        factor: R with covariance R R^T, (size, size); or the scales of independent coordinates, (size,).
        modes: For each start the mode that it belongs to, flat: the centre of q, or far from it.
        error: The largest error of a mean of q, in scales, or of a scale, as a ratio.
        bounds: The bound at every look.
        beyond: What a look beyond q saw: second moments in units of q, and their errors, (2, size); empty if there was
            none (see `langevin.geometry.beyond`).
        groups: Of a hierarchy with many coordinates, R in parts (see `langevin.geometry.wheel.as_plain`).
    """

    centring: Centring
    centre: np.ndarray
    factor: np.ndarray
    modes: np.ndarray
    error: float
    bounds: np.ndarray
    beyond: np.ndarray
    groups: Any = None


def has_affordable_covariance(target: Posterior, size: int, *, at_most: int = MOST_DENSE) -> bool:
    """Whether a full covariance is found in reasonable time: of few coordinates; of more, if curvature is cheap.

    Group effects need many looks: then rows must not be too many.
    """
    if target.adjustable and 2 * size * target.num_data > MOST_A_LOOK:
        return False
    return size <= min(at_most, MOST_DENSE if size * target.num_data <= CHEAP else FEW)


class Finder:
    """Finds them for one target. What changes is in a plain state.

    Args:
        target: The posterior, its rows in random order if there are minibatches.
        example: A position, for its shape.
        batches: How minibatches are drawn; None for all rows.
        programs: The compiled programs of the run.
        seed: Everything random is a function of it.
        covariance: "independent" coordinates, "full", or "affordable": full where that is found in reasonable time;
            or the layout of a hierarchy (see `wheel`).
    """

    def __init__(
        self,
        target: Posterior,
        example: Position,
        batches: Batches | None,
        programs: Programs,
        seed: Seed,
        *,
        covariance: Literal["affordable", "full", "independent"] | Layout = "affordable",
    ) -> None:
        self._target, self._example, self._batches = target, example, batches
        self._programs, self._seed = programs, seed
        self._size, self._dtype = flattened(example).size, flattened(example).dtype
        self._with_groups = isinstance(covariance, Layout)
        self._independent = covariance == "independent" or self._with_groups
        self._adjusted = recentring.adjusted(target, example)
        at_most = FEW if self._independent else MOST_DENSE
        affordable = covariance == "full" or has_affordable_covariance(target, self._size, at_most=at_most)
        self.is_dense = affordable and not self._with_groups and self._size <= MOST_DENSE
        self._layout = covariance if isinstance(covariance, Layout) else None
        if covariance == "affordable" and not self.is_dense:
            self._layout = layout_of(target, example)
        self._sample = evaluating.row_sample(target) if self.is_dense else None

    def begin(self, starts: np.ndarray) -> State:
        """From flat starts (starts, size) with finite log-densities."""
        nothing = {name: np.zeros(leaf.shape) for name, leaf in self._target.model.adjustable.items()}
        state = {"stage": "mode", "starts": starts, "centring": nothing, "placed": not nothing, "found": None}
        if self.is_dense:
            # Where columns are in raw units, the origin is nearer to the mode than any random start.
            both = np.concatenate([starts, np.zeros_like(starts[:1])])
            climb = {"climb": climbing.begin(both), "most_climbs": climbing.MOST_CLIMBS, "retried": 0}
            return state | climb | {"on_all_rows": self._sample is None}
        return (
            state
            | {"bounds": np.zeros(0), "rounds": ()}
            | self._next_round(0, online.begin(starts.astype(self._dtype)))
        )

    def advance(self, state: State, limit: int) -> tuple[State, int, int, int]:
        """At most so many steps; the state, how many there were, how many of the stage are done, and of how many."""
        if self._layout is not None and state["stage"] == "groups":
            state = self._looked_at_groups(self._layout, state)
            return state, 1, state["q"]["number"], wheel.MOST_LOOKS
        if not self.is_dense:
            return self._advance_online(state, limit)
        if state["stage"] == "mode":
            state = self._climbed(state)
            return state, 1, state["climb"]["count"], climbing.MOST_CLIMBS
        state = self._looked(state)
        return state, 1, state["q"]["number"], gaussian.MOST_LOOKS

    @staticmethod
    def found(state: State) -> Found | None:
        """What was found; None if there is more to do."""
        return None if state["found"] is None else Found(**state["found"])

    def target(self, state: State) -> Posterior:
        """The posterior with the centring so far."""
        return self._target.with_centring(state["centring"])

    # Few coordinates.

    def _climbed(self, state: State) -> State:
        climb, target = state["climb"], self.target(state)
        tried, on_all_rows = climb["tried"].astype(self._dtype), state["on_all_rows"]
        part, rows = None, self._sample
        if on_all_rows:
            part, rows = evaluating.rows_of_curvature(target, self._size), None
        found = self._programs(evaluating.curvatures, part, target, tried, self._example, rows)
        climb = climbing.climbed(climb, evaluating.summed(found))
        state = state | {"climb": climb}
        if not climb["arrived"].all() and climb["count"] < state["most_climbs"]:
            return state
        best = int(np.argmax(climb["height"]))
        count = len(state["starts"])
        if len(climb["here"]) > count:
            masses = climbing.log_masses(climb)
            state |= {"tops": climb["here"][:count], "fainter": masses.max(initial=LOWEST) - masses[:count]}
        if not on_all_rows:
            best = climbing.begin(climb["here"][best : best + 1])
            return state | {"climb": best, "on_all_rows": True, "most_climbs": climbing.MOST_ON_ALL_ROWS}
        state |= {"tops": np.concatenate([climb["here"][best : best + 1], state["tops"]])}
        return self._with_q(state, climb["here"][best], climb["curvature"][best])

    def _with_q(self, state: State, mode: np.ndarray, curvature: np.ndarray) -> State:
        factor = climbing.factor(curvature)
        if self._independent:
            diagonal = np.abs(np.diagonal(curvature))
            factor = 1 / np.sqrt(np.where(diagonal < 1e-30, 1.0, diagonal))
        return state | {"stage": "shape", "q": gaussian.begin(mode, factor)}

    def _looked(self, state: State) -> State:
        q, target = state["q"], self.target(state)
        generator = self._seed.child("shape").generator(len(q["bounds"]))
        rows = gaussian.directions(generator, self._size)
        at = gaussian.points(q, rows)
        part = evaluating.parts(target, len(at))
        found = self._programs(evaluating.slopes, part, target, at.astype(self._dtype), self._example, None)
        q = gaussian.improved(q, rows, evaluating.summed(found))
        state = state | {"q": q}
        if q["caution"] >= gaussian.MOST_CAUTION and q["bound"] == -np.inf and state["retried"] < MOST_RETRIES:
            return self._from_a_start(state)
        if not gaussian.is_found(q, *self._looks(len(at))):
            return state
        return self._with_found(state) if state["placed"] else self._placed(state)

    def _looks(self, num_points: int) -> tuple[int, int]:
        """How many looks there are at most and at least: few where rows are many, and the posterior nearly Gaussian."""
        affordable = MOST_LOOKED_AT // (num_points * max(self._target.num_data, 1))
        most = int(np.clip(affordable, FEW_LOOKS, gaussian.MOST_LOOKS))
        return most, min(gaussian.LEAST_LOOKS, most)

    def _from_a_start(self, state: State) -> State:
        """The mode has no q around it: the density may have no top there. From a start, then, where q is small."""
        number = state["retried"]
        start = state["starts"][number % len(state["starts"])].astype(np.float64)
        scale = np.full(self._size, online.FIRST_SCALE)
        q = gaussian.begin(start, scale if self._independent else np.diag(scale))
        return state | {"q": q, "retried": number + 1, "fainter": np.full(len(state["starts"]), np.inf)}

    def _placed(self, state: State) -> State:
        """With the centring chosen, and q moved there."""
        q, target = state["q"], self.target(state)
        variance = np.diagonal(_covariance(q["factor"]))
        noise = self._seed.child("centring").generator().standard_normal((recentring.NUM_DRAWS, self._size))
        noises = q["centre"] + (noise @ q["factor"].T if q["factor"].ndim == 2 else noise * q["factor"])
        centring = self._centring(target, noises, variance)
        state = state | {"placed": True}
        if not any(values.any() for values in centring.values()):
            return self._with_found(state)
        points = np.stack([q["centre"], q["centre"]])
        points[1] += np.where(self._adjusted, np.sqrt(variance), 0.0)
        here, there = self._moved(target, points, centring)
        ratio = np.where(self._adjusted, np.abs(there - here) / np.sqrt(variance), 1.0)
        factor = q["factor"] * (ratio[:, None] if q["factor"].ndim == 2 else ratio)
        tops = self._moved(target, state["tops"], centring)
        state = state | {"centring": centring, "tops": tops, "noncentred": (q, state["tops"])}
        state["q"] = gaussian.begin(here, factor) | {"bounds": q["bounds"]}
        return state

    def _with_found(self, state: State) -> State:
        q, tops = state["q"], state["tops"]
        if "noncentred" in state and gaussian.mean_bound(state["noncentred"][0]) > gaussian.mean_bound(q):
            # The bound decides in which form q is nearer.
            q, tops = state["noncentred"]
            state = state | {"centring": {name: np.zeros_like(value) for name, value in state["centring"].items()}}
        covariance = _covariance(q["factor"])
        gaps = tops - q["centre"]
        squares = np.einsum("ci,ij,cj->c", gaps, np.linalg.inv(covariance), gaps)
        far = squares > self._size + FAR * np.sqrt(2 * self._size)
        # Where the mode that q began at is far from it, modes are not where the mass is, and tell of no other.
        others = far[1:] & (state["fainter"] < FAINT) & ~far[0]
        modes = np.where(others[:, None], tops[1:], q["centre"])
        factor = q["factor"] if q["factor"].ndim == 1 else np.linalg.cholesky(covariance)
        error = gaussian.error(q, FEW_LOOKS)
        seen = self._beyond(self.target(state), q["centre"], factor)
        found = Found(state["centring"], q["centre"], factor, modes, error, q["bounds"], seen)
        return state | {"found": found._asdict()}

    def _beyond(self, target: Posterior, centre: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """A look beyond q, by the program that looks at q."""
        if not beyond.is_affordable(self._size, target.num_data):
            return np.zeros((2, 0))
        count = 2 * gaussian.num_directions(self._size)
        z = beyond.directions(self._seed.child("beyond").generator(), self._size, count)
        at = (centre + (z @ factor.T if factor.ndim == 2 else z * factor)).astype(self._dtype)
        part = evaluating.parts(target, count)
        heights = [
            evaluating.summed(self._programs(evaluating.slopes, part, target, some, self._example, None))[0]
            for some in np.split(at, len(at) // count)
        ]
        return beyond.second_moments(z, np.concatenate(heights))

    # Many coordinates.

    def _next_round(self, number: int, fits: online.Fits, slope: np.ndarray | None = None) -> State:
        mean = np.asarray(fits.mean)
        slope = np.zeros_like(mean) if slope is None else slope
        return {"round": number, "step": 0, "fits": tuple(jax.tree.leaves(fits)), "anchor": mean, "slope": slope}

    def _fits(self, state: State) -> online.Fits:
        like = online.begin(np.zeros((1, self._size), self._dtype))
        return jax.tree.unflatten(jax.tree.structure(like), state["fits"])

    def _advance_online(self, state: State, limit: int) -> tuple[State, int, int, int]:
        step, number = state["step"], state["round"]
        average_from = STEPS_A_ROUND - int(online.AVERAGED * STEPS_A_ROUND)
        fits = self._fits(state)
        if step == average_from:
            zeros = np.zeros_like(state["anchor"])
            fits = fits._replace(origin=(fits.mean, fits.log_scale), sums=(zeros, zeros))
        count = min(limit, STEPS_A_CALL - step % STEPS_A_CALL)
        schedule = np.zeros((STEPS_A_CALL, 3), self._dtype)
        schedule[:count] = online.schedule(number, (step + np.arange(count)) / STEPS_A_ROUND)
        seed = self._seed.child("online", number)
        words = np.stack([seed.child("rows").key_words(), seed.child("noise").key_words()])
        fits = self._programs(
            online.steps,
            (self._batches, number > 0),
            self.target(state),
            self._example,
            fits,
            online.Round(state["anchor"], state["slope"], words),
            schedule,
            np.asarray([count, step], np.int32),
        )
        step += count
        late = np.asarray(fits.bound, np.float64) / STEPS_A_CALL
        if step % STEPS_A_CALL == 0:
            state = state | {"bounds": np.append(state["bounds"], late.max())}
            fits = fits._replace(bound=np.zeros_like(np.asarray(fits.bound)))
        state = state | {"step": step, "fits": tuple(jax.tree.leaves(fits))}
        if step == STEPS_A_ROUND:
            state = self._after_round(state, fits, late)
        return state, count, number * STEPS_A_ROUND + step, MOST_ROUNDS * STEPS_A_ROUND

    def _after_round(self, state: State, fits: online.Fits, late: np.ndarray) -> State:
        """What was found, or another round. `late` has the bound of each fit of late."""
        averaged = int(online.AVERAGED * STEPS_A_ROUND)
        mean, log_scale = (
            np.asarray(origin, np.float64) + np.asarray(total, np.float64) / averaged
            for origin, total in zip(fits.origin, fits.sums, strict=True)
        )
        target, number = self.target(state), state["round"]
        # A fit that is far lower than the best would take long to arrive: it goes on from there.
        behind = late < late.max() - FAINT - 0.02 * self._size
        mean, log_scale = (np.where(behind[:, None], part[np.argmax(late)], part) for part in (mean, log_scale))
        scale = np.exp(log_scale)
        if not state["placed"]:
            noise = self._seed.child("centring").generator().standard_normal((recentring.NUM_DRAWS, self._size))
            centring = self._centring(target, mean[0] + scale[0] * noise, np.mean(scale**2, axis=0))
            state = state | {"placed": True, "centring": centring}
            points = np.concatenate([mean, mean + np.where(self._adjusted, scale, 0.0)])
            here, there = np.split(self._moved(target, points, centring), 2)
            scale = np.where(self._adjusted, np.abs(there - here), scale)
            mean, target = here, target.with_centring(centring)
        error = np.inf
        if number > 0 and not behind.any():
            apart = np.abs(mean - state["anchor"]) / scale
            # What there is of rounds before counts too: the noise of scales is averaged over all of them.
            state = state | {"rounds": (*state["rounds"], (mean, np.log(scale)))}
            mean, log_scale = (np.mean(part, axis=0) for part in zip(*state["rounds"], strict=True))
            scale = np.exp(log_scale)
            error = float(max(_spread(mean / scale.mean(axis=0)), _spread(log_scale), apart.mean(axis=0).max() / 4))
        if number > 0 and (error < MOST_DISAGREEMENT or number + 1 >= (MOST_ROUNDS if behind.any() else ROUNDS)):
            centre, scale = mean.mean(axis=0), np.exp(np.log(scale).mean(axis=0))
            found = Found(state["centring"], centre, scale, mean, error, state["bounds"], np.zeros((2, 0)))
            if self._layout is not None:
                return state | {
                    "stage": "groups",
                    "before": found._asdict(),
                    "q": wheel.begin(self._layout, centre, scale),
                }
            return state | {"found": found._asdict()}
        at = mean.astype(self._dtype)
        part = evaluating.parts(target, len(at))
        slope = evaluating.summed(self._programs(evaluating.slopes, part, target, at, self._example, None))[1]
        slope = slope.astype(self._dtype)
        return state | {"stage": "shape"} | self._next_round(number + 1, online.begin(at, scale), slope)

    def _looked_at_groups(self, layout: Layout, state: State) -> State:
        """From independent coordinates to the nearest q in which effects depend on globals."""
        seed, target = self._seed.child("groups"), self.target(state)
        q = wheel.looked(self._programs, layout, target, self._example, state["q"], seed)
        state = state | {"q": q}
        if not wheel.is_found(layout, q, target.num_data):
            return state
        found = Found(**state["before"])
        bounds = np.append(found.bounds, q["bounds"])
        error = gaussian.error(q, FEW_LOOKS)
        modes = found.modes + q["centre"] - found.centre
        groups = wheel.as_plain(layout, q["factor"])
        found = found._replace(centre=q["centre"], modes=modes, error=error, bounds=bounds, groups=groups)
        return state | {"found": found._asdict()}

    # Both.

    def _centring(self, target: Posterior, noises: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
        at = noises.astype(self._dtype)
        return recentring.chosen(self._programs, target, self._example, at, variance, len(at))

    def _moved(self, target: Posterior, points: np.ndarray, centring: Centring) -> np.ndarray:
        at = points.astype(self._dtype)
        moved = recentring.moved(self._programs, target, self._example, at, centring, len(points))
        return moved.astype(np.float64)


def _covariance(factor: np.ndarray) -> np.ndarray:
    return factor @ factor.T if factor.ndim == 2 else np.diag(factor**2)


def _spread(values: np.ndarray) -> float:
    """The largest standard error of the mean over fits."""
    return float((values.std(axis=0, ddof=1) / np.sqrt(len(values))).max()) if len(values) > 1 else np.inf
