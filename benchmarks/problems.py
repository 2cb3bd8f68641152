"""The data and the models that the benchmarks share."""

from __future__ import annotations

import numpy as np

BLOCK = 1_000_000


def logistic_data(num_rows: int, num_columns: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal columns, labels from a logistic model, and the weights they came from; all float32.

    It is made in blocks, so that ten million rows need no second copy.
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=num_columns).astype(np.float32) / np.float32(np.sqrt(num_columns))
    x = np.empty((num_rows, num_columns), np.float32)
    y = np.empty(num_rows, np.float32)
    for start in range(0, num_rows, BLOCK):
        rows = slice(start, min(start + BLOCK, num_rows))
        rng.standard_normal(dtype=np.float32, out=x[rows])
        y[rows] = rng.random(rows.stop - start, np.float32) < 1 / (1 + np.exp(-x[rows] @ weights))
    return x, y, weights


def badly_scaled_data(num_rows: int, num_columns: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns scaled from 1e-3 to 1e3, the two in the middle correlated at 0.9, and an intercept in the model."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_columns))
    middle = num_columns // 2
    x[:, middle] = 0.9 * x[:, middle - 1] + np.sqrt(1 - 0.9**2) * x[:, middle]
    logits = x @ rng.normal(size=num_columns) / np.sqrt(num_columns) - 0.5
    y = rng.random(num_rows) < 1 / (1 + np.exp(-logits))
    return (x * np.logspace(-3, 3, num_columns)).astype(np.float32), y.astype(np.float32)


def linear_data(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three standard normal columns, and a response with noise of sd 0.5."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 3)).astype(np.float32)
    y = x @ np.array([1.0, -0.5, 0.25]) + 0.5 * rng.normal(size=num_rows)
    return x, y.astype(np.float32)


def logistic_model(x, y=None):
    """Logistic regression with a standard normal prior: a NumPyro program."""
    import numpyro
    from numpyro import distributions as dist

    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def wide_logistic_model(x, y=None, prior=10.0):
    """Logistic regression with an intercept and a prior of sd 10, or as given: a NumPyro program."""
    import numpyro
    from numpyro import distributions as dist

    a = numpyro.sample("a", dist.Normal(0, 10))
    w = numpyro.sample("w", dist.Normal(0, prior).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + x @ w), obs=y)


def linear_model(x, y=None):
    """Linear regression with unknown noise: a NumPyro program."""
    import numpyro
    from numpyro import distributions as dist

    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)
