"""The Gaussian q that is nearest to a hierarchy: globals of any covariance, and group effects that are linear in them.

    x_h = m_h + L e_h,    x_j = m_j + W_j e_h + C_j e_j    for each group j;    together x = m + R e

Given the hub h, groups are independent, in q as in the model: so the precision of q may be other than zero wherever the
Hessian H of log p is, and the q that maximises the bound has E[-R^T H R] = I there (Opper & Archambeau 2009; for such
precisions Tan & Nott 2018). Products of H with R's columns of the hub, and with one column of all groups at once, tell
all of it. In these units, with A = E[-R^T H R], D its blocks of groups, and S its complement in the hub,

    S = A_hh - sum_j A_hj D_j^-1 A_jh,    R <- R A^(-1/2) by blocks,    m <- m + R A^-1 E[R^T grad log p]

Of crossed groupings the smaller ones belong to the hub. Where they are too many for it, they count as independent of
the others given the hub, which they are not: an approximation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.contracts import State
from langevin.geometry import evaluating, gaussian
from langevin.geometry.starts import flattened
from langevin.models.spokes import Layout
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

MOST_LOOKS = 60
LEAST_PAIRS, MOST_PAIRS = 2, 48
# Products of a row's Hessian that a look may take, and all of them together.
MOST_A_LOOK = 200_000_000
MOST_LOOKED_AT = 8_000_000_000
LEAST_LOOKS = 8
# Steps get as short as in an average: few points a look make them noisy.
LEAST_SHARE = 0.02
TOLERANCE = 0.05


def begin(layout: Layout, centre: np.ndarray, scale: np.ndarray) -> State:
    """A q of independent coordinates."""
    spokes = tuple(
        (np.zeros((part.num_groups, part.width, len(layout.hub))), scale[part.grid][:, :, None] * np.eye(part.width))
        for part in layout.spokes
    )
    return gaussian.begin(centre, {"hub": np.diag(scale[list(layout.hub)]), "spokes": spokes})


def looked(programs: Programs, layout: Layout, target: Posterior, example: Position, q: State, seed: Seed) -> State:
    """The q after a look at it on all rows."""
    dtype = flattened(example).dtype
    generator = seed.generator(q["number"])
    noise = generator.standard_normal((num_pairs(layout, target.num_data), layout.size))
    at = points(layout, q, noise).astype(dtype)
    part = evaluating.products_of(target, len(at), layout.num_vectors)
    signs = tuple(generator.choice([-1.0, 1.0], groups.num_groups) for groups in layout.spokes)
    along = vectors(layout, q["factor"], signs).astype(dtype)
    seen, products = programs(evaluating.products, part, target, at, along, example)
    return improved(layout, q, noise, signs, (*evaluating.summed(seen), np.asarray(products, np.float64)))


def is_found(layout: Layout, q: State, num_data: int) -> bool:
    """Whether q is known well enough, or there were enough looks."""
    a_look = 2 * num_pairs(layout, num_data) * layout.num_vectors * max(num_data, 1)
    most = int(np.clip(MOST_LOOKED_AT // a_look, LEAST_LOOKS, MOST_LOOKS))
    return gaussian.is_found(q, most, LEAST_LOOKS, TOLERANCE)


def num_pairs(layout: Layout, num_data: int) -> int:
    """How many pairs of points a look takes."""
    return int(np.clip(MOST_A_LOOK // (2 * layout.num_vectors * max(num_data, 1)), LEAST_PAIRS, MOST_PAIRS))


def points(layout: Layout, q: State, noise: np.ndarray) -> np.ndarray:
    """Where to look: x+ of each row of noise, then x-."""
    ahead = times(layout, q["factor"], noise)
    return np.concatenate([q["centre"] + ahead, q["centre"] - ahead])


def vectors(layout: Layout, factor: Any, signs: Any = None) -> np.ndarray:
    """Rows v, of which products with the Hessian tell all: R's columns of the hub, and each column of all groups.

    With signs of groups: where a Hessian mixes groups after all, what it mixes has no bias then.
    """
    rows = np.zeros((layout.num_vectors, layout.size))
    num_hub = len(layout.hub)
    rows[:num_hub, list(layout.hub)] = factor["hub"].T
    at = num_hub
    for number, (part, (onto, own)) in enumerate(zip(layout.spokes, factor["spokes"], strict=True)):
        rows[:num_hub, part.grid] = np.moveaxis(onto, 2, 0)
        for column in range(part.width):
            sign = 1.0 if signs is None else signs[number][:, None]
            rows[at, part.grid] = sign * own[:, :, column]
            at += 1
    return rows


def times(layout: Layout, factor: Any, noise: np.ndarray) -> np.ndarray:
    """R e, for rows e."""
    of_hub = noise[..., list(layout.hub)]
    moved = np.zeros_like(noise)
    moved[..., list(layout.hub)] = of_hub @ factor["hub"].T
    for part, (onto, own) in zip(layout.spokes, factor["spokes"], strict=True):
        index = part.grid
        moved[..., index] = np.einsum("jab,...jb->...ja", own, noise[..., index]) + np.einsum(
            "jah,...h->...ja", onto, of_hub
        )
    return moved


def variances(layout: Layout, factor: Any) -> np.ndarray:
    """Of each coordinate."""
    found = np.zeros(layout.size)
    found[list(layout.hub)] = np.sum(factor["hub"] ** 2, axis=1)
    for part, (onto, own) in zip(layout.spokes, factor["spokes"], strict=True):
        found[part.grid] = np.sum(onto**2, axis=2) + np.sum(own**2, axis=2)
    return found


def improved(layout: Layout, q: State, noise: np.ndarray, signs: Any, found: Any) -> State:
    """The q after a look.

    Args:
        layout: Which coordinate is where.
        q: The q before.
        noise: That the points were made of.
        signs: Of groups, for each plate, in `vectors`.
        found: Log-densities and gradients at the points, and the mean of the products of the Hessian with `vectors`.
    """
    heights, gradients, products = found
    factor = q["factor"]
    # In place of its mean, the noise of each point: where q is near, nearly all of the scatter cancels.
    lengths = np.sum(noise**2, axis=1)
    bound = np.mean(heights + np.concatenate([lengths, lengths]) / 2) - layout.size / 2 + _log_det(factor)
    q = q | {"number": q["number"] + 1, "bounds": np.append(q["bounds"], bound)}
    lost = not np.isfinite(bound) or not np.isfinite(gradients).all() or not np.isfinite(products).all()
    if lost or bound < q["bound"] - gaussian.NOISE:
        centre, before = q["before"]
        halfway = _combined(lambda a, b: (a + b) / 2, factor, before)
        return q | {"centre": (q["centre"] + centre) / 2, "factor": halfway, "caution": q["caution"] + 1}
    curvature, slope = _white(layout, factor, signs, products, gradients.mean(axis=0))
    sds = np.sqrt(variances(layout, factor))
    ahead, whole = _step(layout, factor, curvature, slope, 1.0)
    move, stretch = ahead / sds, np.log(np.sqrt(variances(layout, whole)) / sds)
    turns = q["turns"] + gaussian.turns_back(q, move, stretch)
    share = gaussian.share_of(q, turns, LEAST_SHARE)
    ahead, factor = _step(layout, factor, curvature, slope, share)
    far = np.abs(ahead / sds).max()
    centre = q["centre"] + ahead * min(1.0, gaussian.MOST_MOVE / max(far, 1e-12))
    return gaussian.kept(q, bound, turns, (centre, factor), (move, stretch))


def _white(layout: Layout, factor: Any, signs: Any, products: np.ndarray, slope: np.ndarray) -> tuple[Any, Any]:
    """A where it is not zero, and R^T of the mean gradient."""
    num_hub = len(layout.hub)
    along = vectors(layout, factor)[:num_hub]
    curvature_hub = -products[:num_hub] @ along.T
    spokes, slopes, at = [], [], num_hub
    for part, (_, own), sign in zip(layout.spokes, factor["spokes"], signs, strict=True):
        index = part.grid
        cross = -np.einsum("jab,hja->jbh", own, products[:num_hub][:, index])
        columns = sign[:, None] * products[at : at + part.width][:, index]
        block = -np.einsum("jab,sja->jbs", own, columns)
        spokes.append((cross, (block + np.swapaxes(block, 1, 2)) / 2))
        slopes.append(np.einsum("jab,ja->jb", own, slope[index]))
        at += part.width
    return ((curvature_hub + curvature_hub.T) / 2, spokes), (along @ slope, slopes)


def _step(layout: Layout, factor: Any, curvature: Any, slope: Any, share: float) -> tuple[np.ndarray, Any]:
    """A part of the way in natural parameters: how far to go, and the R there."""
    hub, spokes = curvature
    of_hub, of_spokes = slope
    complement = np.eye(len(hub)) + share * (hub - np.eye(len(hub)))
    right = of_hub
    solved = []
    for (cross, block), own_slope in zip(spokes, of_spokes, strict=True):
        cross = share * cross
        block = np.eye(block.shape[-1]) + share * (block - np.eye(block.shape[-1]))
        values, turn = np.linalg.eigh(block)
        values = np.clip(values, gaussian.MOST_STRETCH**-2, gaussian.MOST_STRETCH**2)
        inverse = np.einsum("jab,jb,jcb->jac", turn, 1 / values, turn)
        root = np.einsum("jab,jb,jcb->jac", turn, values**-0.5, turn)
        pull = np.einsum("jab,jbh->jah", inverse, cross)
        complement = complement - np.einsum("jah,jak->hk", cross, pull)
        right = right - np.einsum("jah,ja->h", pull, own_slope)
        solved.append((pull, inverse, root, own_slope))
    values, turn = np.linalg.eigh((complement + complement.T) / 2)
    values = np.clip(values, gaussian.MOST_STRETCH**-2, gaussian.MOST_STRETCH**2)
    root_hub = (turn * values**-0.5) @ turn.T
    white = np.zeros(layout.size)
    step_hub = turn @ ((turn.T @ right) / values)
    white[list(layout.hub)] = step_hub
    new_spokes = []
    for part, (onto, own), (pull, inverse, root, own_slope) in zip(
        layout.spokes, factor["spokes"], solved, strict=True
    ):
        white[part.grid] = np.einsum("jab,jb->ja", inverse, own_slope) - pull @ step_hub
        new_spokes.append(((onto - np.einsum("jab,jbh->jah", own, pull)) @ root_hub, own @ root))
    moved = share * times(layout, factor, white)
    return moved, {"hub": factor["hub"] @ root_hub, "spokes": tuple(new_spokes)}


def _log_det(factor: Any) -> float:
    own = [np.sum(np.linalg.slogdet(own)[1]) for _, own in factor["spokes"]]
    return float(np.linalg.slogdet(factor["hub"])[1] + np.sum(own))


def _combined(combine: Any, one: Any, other: Any) -> Any:
    pairs = zip(one["spokes"], other["spokes"], strict=True)
    spokes = tuple((combine(a, c), combine(b, d)) for (a, b), (c, d) in pairs)
    return {"hub": combine(one["hub"], other["hub"]), "spokes": spokes}


def as_plain(layout: Layout, factor: Any) -> State:
    """R with triangular L and C_j, and where their coordinates are: as `langevin.kernels.metrics.Wheel` has them."""
    factor = triangular(factor)
    return {
        "hub": np.asarray(layout.hub, np.int32),
        "factor": factor["hub"],
        "groups": tuple(part.grid.astype(np.int32) for part in layout.spokes),
        "onto": tuple(onto for onto, _ in factor["spokes"]),
        "own": tuple(own for _, own in factor["spokes"]),
    }


def triangular(factor: Any) -> Any:
    """The same covariance with triangular L and C_j."""
    hub = np.linalg.cholesky(factor["hub"] @ factor["hub"].T)
    turn = np.linalg.solve(hub, factor["hub"])
    spokes = tuple((onto @ turn.T, np.linalg.cholesky(own @ np.swapaxes(own, 1, 2))) for onto, own in factor["spokes"])
    return {"hub": hub, "spokes": spokes}
