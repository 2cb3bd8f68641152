"""Programs with discrete latent sites, each with a version that has them summed out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import logsumexp
from numpyro.contrib.control_flow import scan

RNG = np.random.default_rng(0)
NUM_ROWS = 40
X = RNG.normal(size=NUM_ROWS)
Y = RNG.normal(size=NUM_ROWS) * 2
COUNTS = RNG.poisson(2.0, NUM_ROWS) * (RNG.random(NUM_ROWS) < 0.7)
GROUPED = RNG.normal(size=(6, 5)) + np.repeat([-1.0, 1.0], 3)[:, None]
SERIES = RNG.normal(size=(7, 12))


def plate(values):
    return numpyro.plate("rows", len(values))


def weights_and_means(k):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(k)))
    m = numpyro.sample("m", dist.Normal(0.0, 3.0).expand([k]).to_event(1))
    return w, m


def mixture(y):
    w, m = weights_and_means(3)
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with plate(y):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(m[z], s), obs=y)


def mixture_by_hand(y):
    w, m = weights_and_means(3)
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with plate(y):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(m, s)), obs=y)


def zero_inflated(x, counts):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with plate(x):
        empty = numpyro.sample("empty", dist.Bernoulli(share))
        numpyro.sample("counts", dist.Poisson(jnp.where(empty, 1e-20, jnp.exp(a + b * x))), obs=counts)


def zero_inflated_by_hand(x, counts):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with plate(x):
        numpyro.sample("counts", dist.ZeroInflatedPoisson(share, jnp.exp(a + b * x)), obs=counts)


def regressions(x, y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    with plate(y):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal((jnp.stack([jnp.ones_like(x), x], -1) * b[z]).sum(-1), 1.0), obs=y)


def regressions_by_hand(x, y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    with plate(y):
        lines = dist.Normal(b[:, 0] + x[:, None] * b[:, 1], 1.0)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), lines), obs=y)


def two_labels(x, y):
    """The second label depends on the first, and the row on both; it indexes rows, and so needs labels in full."""
    w, m = weights_and_means(3)
    q = numpyro.sample("q", dist.Beta(1.0, 1.0).expand([3]).to_event(1))
    with plate(y):
        z = numpyro.sample("z", dist.Categorical(w))
        outlier = numpyro.sample("outlier", dist.Bernoulli(q[z]))
        scale = jax.vmap(lambda flag: jnp.where(flag == 1, 5.0, 1.0))(outlier)
        numpyro.sample("y", dist.Normal(m[z], scale), obs=y)


def two_labels_by_hand(x, y):
    w, m = weights_and_means(3)
    q = numpyro.sample("q", dist.Beta(1.0, 1.0).expand([3]).to_event(1))
    narrow = jnp.log1p(-q) + dist.Normal(m, 1.0).log_prob(y[:, None])
    wide = jnp.log(q) + dist.Normal(m, 5.0).log_prob(y[:, None])
    with plate(y):
        numpyro.factor("y", logsumexp(jnp.log(w) + jnp.logaddexp(narrow, wide), axis=1))


def transitions():
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones((3, 3))).to_event(1))
    m = numpyro.sample("m", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    return p, m


def hidden_markov(y):
    p, m = transitions()

    def step(z, y):
        z = numpyro.sample("z", dist.Categorical(p[z]))
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)
        return z, z

    scan(step, 0, y)


def hidden_markov_loop(y):
    """The same in a Python loop, over the first rows."""
    p, m = transitions()
    z = 0
    for t in range(5):
        z = numpyro.sample(f"z_{t}", dist.Categorical(p[z]))
        numpyro.sample(f"y_{t}", dist.Normal(m[z], 1.0), obs=y[t])


def forward(p, m, y, first):
    """The forward algorithm, over the last axis of y."""
    emitted = dist.Normal(m, 1.0).log_prob(y[..., None])
    return logsumexp(_forward(p, jnp.moveaxis(emitted, -2, 0), jnp.log(first)), axis=-1)


def _forward(p, emitted, first):
    def step(alpha, now):
        return logsumexp(alpha[..., :, None] + jnp.log(p), axis=-2) + now, None

    return jax.lax.scan(step, first + emitted[0], emitted[1:])[0]


def hidden_markov_by_hand(y):
    p, m = transitions()
    numpyro.factor("y", forward(p, m, y, p[0]))


def hidden_markov_loop_by_hand(y):
    p, m = transitions()
    numpyro.factor("y", forward(p, m, y[:5], p[0]))


def many_series(y):
    """A chain for each row, whose first state is a site outside the scan."""
    p, m = transitions()
    with plate(y):
        start = numpyro.sample("start", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))

    def step(z, y):
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(p[z]))
            numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)
        return z, None

    scan(step, start, y.T)


def many_series_by_hand(y):
    p, m = transitions()
    with plate(y):
        numpyro.factor("y", forward(p, m, y, jnp.array([0.2, 0.3, 0.5]) @ p))


def walk_and_regime(y):
    """Continuous sites inside the scan, which the regimes change."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))

    def step(carry, y):
        z, level = carry
        z = numpyro.sample("z", dist.Categorical(p[z]))
        level = numpyro.sample("level", dist.Normal(level, s))
        numpyro.sample("y", dist.Normal(level, jnp.array([0.5, 3.0])[z]), obs=y)
        return (z, level), None

    scan(step, (1, 0.0), y)


def walk_and_regime_by_hand(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))

    def step(level, y):
        level = numpyro.sample("level", dist.Normal(level, s))
        return level, dist.Normal(level, jnp.array([0.5, 3.0])).log_prob(y)

    _, emitted = scan(step, 0.0, y)
    numpyro.factor("y", logsumexp(_forward(p, emitted, jnp.log(p[1]))))


def groups(y):
    """A label for each group, whose members are the columns of y."""
    w, m = weights_and_means(2)
    with numpyro.plate("groups", y.shape[1], dim=-1):
        z = numpyro.sample("z", dist.Categorical(w))
        with numpyro.plate("members", y.shape[0], dim=-2):
            numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def groups_by_hand(y):
    w, m = weights_and_means(2)
    by_group = dist.Normal(m, 1.0).log_prob(y[..., None]).sum(0)
    numpyro.factor("y", logsumexp(jnp.log(w) + by_group, axis=-1).sum())


def change_point(y):
    """One label for all rows: when the mean changed."""
    m = numpyro.sample("m", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    when = numpyro.sample("when", dist.DiscreteUniform(1, 39))
    with plate(y):
        after = jnp.arange(len(y)) >= when
        numpyro.sample("y", dist.Normal(jnp.where(after, m[1], m[0]), 1.0), obs=y)


def change_point_by_hand(y):
    m = numpyro.sample("m", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    after = jnp.arange(len(y)) >= jnp.arange(1, 40)[:, None]
    by_when = dist.Normal(jnp.where(after, m[1], m[0]), 1.0).log_prob(y).sum(-1)
    numpyro.factor("y", logsumexp(by_when) - jnp.log(39.0))


def topics(y):
    """A label of all rows, a label of each that depends on it, and a continuous site that depends on the first."""
    which = numpyro.sample("which", dist.Bernoulli(0.3))
    level = numpyro.sample("level", dist.Normal(2.0 * which, 1.0))
    with plate(y):
        z = numpyro.sample("z", dist.Bernoulli(jnp.where(which, 0.9, 0.2)))
        numpyro.sample("y", dist.Normal(level * z, 1.0), obs=y)


def topics_by_hand(y):
    level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
    total = []
    for which, log_p in ((0, jnp.log(0.7)), (1, jnp.log(0.3))):
        share = 0.9 if which else 0.2
        off, on = (dist.Normal(level * z, 1.0).log_prob(y) for z in (0, 1))
        by_row = jnp.logaddexp(jnp.log(1 - share) + off, jnp.log(share) + on)
        total.append(log_p + dist.Normal(2.0 * which, 1.0).log_prob(level) + by_row.sum())
    numpyro.factor("y", logsumexp(jnp.stack(total)))


def unplated(y):
    """Labels that are in no plate are independent all the same."""
    w, m = weights_and_means(3)
    z = numpyro.sample("z", dist.Categorical(w).expand([len(y)]))
    numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def unplated_by_hand(y):
    w, m = weights_and_means(3)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(m, 1.0)), obs=y)


PAIRS = {
    "mixture": (mixture, mixture_by_hand, {"y": Y}),
    "zero inflation": (zero_inflated, zero_inflated_by_hand, {"x": X, "counts": COUNTS}),
    "regressions": (regressions, regressions_by_hand, {"x": X, "y": Y}),
    "two labels": (two_labels, two_labels_by_hand, {"x": X, "y": Y}),
    "hidden Markov": (hidden_markov, hidden_markov_by_hand, {"y": Y}),
    "hidden Markov loop": (hidden_markov_loop, hidden_markov_loop_by_hand, {"y": Y}),
    "many series": (many_series, many_series_by_hand, {"y": SERIES}),
    "walk and regime": (walk_and_regime, walk_and_regime_by_hand, {"y": Y}),
    "groups": (groups, groups_by_hand, {"y": GROUPED.T}),
    "change point": (change_point, change_point_by_hand, {"y": Y}),
    "topics": (topics, topics_by_hand, {"y": Y}),
    "no plate": (unplated, unplated_by_hand, {"y": Y}),
}
BY_ROW = ("mixture", "zero inflation", "regressions", "two labels", "many series")
