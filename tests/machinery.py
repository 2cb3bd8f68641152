"""What the tests of the exact kernels share.

Targets with gradients by hand, steppers fed with given random numbers, and the check that a kernel leaves its target as
it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import langevin as lv
from langevin.kernels import Dense, Diagonal, LowRank
from langevin.kernels.metrics import Wheel
from langevin.kernels.steppers import NUM_UNIFORMS, Inputs, evaluator


class Target(NamedTuple):
    """A log-density for JAX and NumPy alike, its gradient by hand, and independent draws from it."""

    log_density: Callable[[Any], Any]
    gradient: Callable[[np.ndarray], np.ndarray]
    draws: Callable[[np.random.Generator, int], np.ndarray]


def gaussian(size: int) -> Target:
    """Correlated, with sds from 0.5 to 2."""
    sds = np.linspace(0.5, 2.0, size)
    factor = np.linalg.cholesky(np.where(np.eye(size) > 0, 1.0, 0.7) * np.outer(sds, sds))
    precision = np.linalg.inv(factor @ factor.T)
    return Target(
        lambda x: -0.5 * x @ precision @ x,
        lambda x: -precision @ x,
        lambda generator, count: generator.normal(size=(count, size)) @ factor.T,
    )


def banana() -> Target:
    """Rosenbrock's: curved, so that long steps lose the energy."""

    def log_density(x):
        return -0.5 * (x[0] / 2) ** 2 - 2 * (x[1] - 0.3 * x[0] ** 2) ** 2

    def gradient(x):
        bend = x[1] - 0.3 * x[0] ** 2
        return np.array([-x[0] / 4 + 2.4 * bend * x[0], -4 * bend])

    def draws(generator, count):
        first, second = generator.normal(size=(2, count))
        return np.stack([2 * first, 0.3 * (2 * first) ** 2 + second / 2], axis=1)

    return Target(log_density, gradient, draws)


def metric_and_root(kind: str, size: int) -> tuple[Any, np.ndarray]:
    """A metric of this kind, and its R as a matrix."""
    scale = np.linspace(0.6, 1.4, size)
    if kind == "unit":
        return None, np.eye(size)
    if kind == "diagonal":
        return Diagonal(scale**2), np.diag(scale)
    if kind == "dense":
        root = np.tril(0.3 * np.ones((size, size))) + np.diag(scale)
        return Dense(root), root
    if kind == "wheel":
        return wheel(scale)
    vectors = np.linalg.qr(np.random.default_rng(4).normal(size=(size, 2)))[0]
    vectors[:, 1] = 0
    stretched = np.eye(size) + 1.5 * np.outer(vectors[:, 0], vectors[:, 0])
    return low_rank(scale, vectors, np.array([2.5, 1.0])), np.diag(scale) @ stretched


def wheel(scale: np.ndarray) -> tuple[Wheel, np.ndarray]:
    """One global coordinate, the second, and groups of one coordinate each."""
    others = np.delete(np.arange(len(scale)), 1)
    root = np.diag(scale)
    root[others, 1] = onto = np.linspace(-0.5, 0.8, len(others))
    own = scale[others][:, None, None]
    return Wheel(np.array([1]), scale[1:2, None], (others[:, None],), (onto[:, None, None],), (own,)), root


def low_rank(scale: np.ndarray, vectors: np.ndarray, stretches: np.ndarray) -> LowRank:
    """R = diag(scale) (I + vectors diag(stretches - 1) vectors^T)."""
    return LowRank(scale=scale, vectors=vectors, stretches=stretches)


class Run(NamedTuple):
    """What went into the stepper, and its report of every step: arrays of (cases, steps, ...)."""

    step_sizes: np.ndarray
    noise: np.ndarray
    uniforms: np.ndarray
    reports: Any

    def trajectories(self):
        """The case of each trajectory, the step with which it began, and the one with which it ended."""
        for case, done in enumerate(self.reports.done):
            ends = np.flatnonzero(done)
            yield from ((case, begun, end) for begun, end in zip([0, *ends], ends, strict=False))


def run(stepper: Any, target: Target, metric: Any, step_sizes: tuple[float, ...], num_steps: int) -> Run:
    """Runs a stepper in double precision from draws of the target, several times with each step size."""
    generator = np.random.default_rng(0)
    steps = np.tile(step_sizes, 3)
    starts = target.draws(generator, len(steps))
    noise = generator.normal(size=(len(steps), num_steps, starts.shape[1]))
    uniforms = generator.uniform(size=(len(steps), num_steps, NUM_UNIFORMS))

    def one_case(start, step_size, noise, uniforms):
        step = lambda state, given: stepper.step(state, Inputs(evaluate, step_size, metric, *given))  # noqa: E731
        return jax.lax.scan(step, stepper.idle(start), (noise, uniforms))[1]

    with jax.enable_x64(True):
        posterior = lv.Density(target.log_density, init=starts[0]).posterior()
        evaluate = evaluator(stepper, posterior, lambda flat: flat, metric)
        reports = jax.jit(jax.vmap(one_case))(starts, steps, noise, uniforms)
    return Run(steps, noise, uniforms, jax.tree.map(np.asarray, reports))


def check_stationary(
    make_kernel: Callable[[Any], Any], target: Target, count: int = 160_000, most: float = 4.5
) -> None:
    """Independent draws of the target must be draws of the target after a step of the kernel.

    Moments may differ by so many standard errors, which are those of the change that the step makes.
    """
    before = target.draws(np.random.default_rng(1), count).astype(np.float32)
    posterior = lv.Density(target.log_density, init=before[0]).posterior()
    kernel = make_kernel(posterior)

    def move(key, position):
        first, second = jax.random.split(key)
        state, info = kernel.step(second, kernel.init(first, position, None), None)
        return state.position, info.acceptance_rate

    after, acceptance = jax.jit(jax.vmap(move))(jax.random.split(jax.random.key(2), count), before)
    assert 0.2 < np.mean(acceptance) < 0.95, f"a step of another length says more: acceptance {np.mean(acceptance)}"
    centre, scale = before.mean(axis=0), before.std(axis=0)
    change = _moments((np.asarray(after) - centre) / scale) - _moments((before - centre) / scale)
    distance = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(count))
    assert (np.abs(distance) < most).all(), f"moments change by {distance} standard errors"


def _moments(draws: np.ndarray) -> np.ndarray:
    """Means, variances, covariances, and how much is in the middle and far out."""
    size = draws.shape[1]
    products = [draws[:, i] * draws[:, j] for i in range(size) for j in range(i + 1)]
    within = [np.abs(draws[:, i]) < width for i in range(size) for width in (0.5, 2.0)]
    return np.stack([*draws.T, *products, *within], axis=1).astype(np.float64)
