"""Programs that look conjugate, or do something unusual with labels, sites, handlers and chains."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam

RNG = np.random.default_rng(15)
Y = RNG.normal(size=9)
TABLE = RNG.normal(size=(5, 3))
MASK = RNG.random(9) < 0.6
GROUP = np.array([0, 1, 2, 0, 1, 2, 0, 0, 2])
ROWS = {"y": Y}
YEARS = {"count": RNG.poisson(2, size=9), "year": np.arange(1851, 1860)}
SERIES = {"series": Y}


def means(size=3):
    with numpyro.plate("clusters", size):
        return numpyro.sample("m", dist.Normal(0.0, 2.0))


def label(size=3):
    return numpyro.sample("z", dist.Categorical(jnp.arange(1.0, size + 1) / jnp.sum(jnp.arange(1.0, size + 1))))


def rows(y):
    return numpyro.plate("rows", len(y))


# Labels.


def as_number(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with rows(y):
        z = label()
        numpyro.sample("y", dist.Normal(a * z + (z - 1) ** 2, 1.0), obs=y)


def compared(y):
    m = means(2)
    with rows(y):
        numpyro.sample("y", dist.Normal(jnp.where(label() == 1, m[0], m[1]), 1.0), obs=y)


def one_hot(y):
    m = means()
    with rows(y):
        numpyro.sample("y", dist.Normal(jax.nn.one_hot(label(), 3) @ m, 1.0), obs=y)


def from_two(y):
    m = means()
    with rows(y):
        z = numpyro.sample("z", dist.DiscreteUniform(2, 4))
        numpyro.sample("y", dist.Normal(m[z - 2] * z, 1.0), obs=y)


def bernoulli(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    m = means(2)
    with rows(y):
        z = numpyro.sample("z", dist.Bernoulli(p))
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def binomial(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    with rows(y):
        z = numpyro.sample("z", dist.Binomial(3, p))
        numpyro.sample("y", dist.Normal(1.0 * z, 1.0), obs=y)


def logits_of_data(y):
    m = means()
    with rows(y):
        z = numpyro.sample("z", dist.Categorical(logits=jnp.stack([y, 2 * y, 0 * y], -1)))
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def two_labels(y):
    m, other = means(), numpyro.sample("o", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    with rows(y):
        z = label()
        w = numpyro.sample("w", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(m[z] + other[z, w], 1.0), obs=y)


def label_of_label(y):
    onward = numpyro.sample("onward", dist.Dirichlet(jnp.ones((3, 2))).to_event(1))
    m = means(2)
    with rows(y):
        z = label()
        w = numpyro.sample("w", dist.Categorical(onward[z]))
        numpyro.sample("y", dist.Normal(m[w], 1.0), obs=y)


def global_label(y):
    m = means()
    z = label()
    with rows(y):
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def label_of_columns(y):
    m = means()
    with numpyro.plate("columns", 3, dim=-1):
        z = label()
        with numpyro.plate("rows", len(y), dim=-2):
            numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def label_of_rows(y):
    m = means()
    with numpyro.plate("rows", len(y), dim=-2):
        z = label()
        with numpyro.plate("columns", 3, dim=-1):
            numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def label_and_local(y):
    m = means()
    with rows(y):
        x = numpyro.sample("x", dist.Normal(m[label()], 1.0))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def product_of_labels(y):
    with rows(y):
        z = label()
        w = numpyro.sample("w", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(1.0 * z * w, 1.0), obs=y)


def single_row(y):
    m = means()
    with rows(y[:1]):
        numpyro.sample("y", dist.Normal(m[label()], 1.0), obs=y[:1])


def outside_its_plate(y):
    m = means()
    with rows(y):
        z = label()
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)
    numpyro.sample("total", dist.Normal(jnp.sum(m[z]), 1.0), obs=1.0)


def first_of_them(y):
    m = means()
    with rows(y):
        z = label()
    with numpyro.plate("again", len(y)):
        numpyro.sample("y", dist.Normal(m[z[0]], 1.0), obs=y)


def rolled(y):
    m = means()
    with rows(y):
        numpyro.sample("y", dist.Normal(m[jnp.roll(label(), 1)], 1.0), obs=y)


def counted(y):
    m = means()
    with rows(y):
        z = label()
        numpyro.sample("y", dist.Normal(m[z] + jnp.sum(z == 0), 1.0), obs=y)


def averaged(y):
    m = means()
    with rows(y):
        z = label()
        numpyro.sample("y", dist.Normal(m[z] - jnp.mean(m[z]), 1.0), obs=y)


def label_by_index(y, group):
    m = means()
    with numpyro.plate("groups", 3):
        z = label()
    with rows(y):
        numpyro.sample("y", dist.Normal(m[z[group]], 1.0), obs=y)


def sorted_labels(y):
    m = means()
    with rows(y):
        numpyro.sample("y", dist.Normal(m[jnp.sort(label())], 1.0), obs=y)


def label_of_columns_in_events(y):
    m = means()
    with numpyro.plate("columns", 3, dim=-1):
        z = label()
    with numpyro.plate("rows", len(y), dim=-1):
        numpyro.sample("y", dist.Normal(m[z], 1.0).to_event(1), obs=y)


# Real sites.


def neighbours(y):
    with rows(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x - 0.5 * jnp.roll(x, 1), 1.0), obs=y)


def centred(y):
    with numpyro.plate("groups", 3):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal((x - jnp.mean(x))[GROUP], 1.0), obs=y)


def where_data_says(y, mask):
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with rows(y):
        numpyro.sample("y", dist.Normal(jnp.where(mask, a, 2 * b), 1.0), obs=y)


def either_precision(y, mask):
    t, u = (numpyro.sample(name, dist.Gamma(3.0, 2.0)) for name in "tu")
    with rows(y):
        numpyro.sample("y", dist.Normal(0.0, jnp.where(mask, t, 2 * u) ** -0.5), obs=y)


def outliers(y):
    m, t = numpyro.sample("m", dist.Normal(0.0, 1.0)), numpyro.sample("t", dist.Gamma(3.0, 2.0))
    with rows(y):
        wild = numpyro.sample("wild", dist.Bernoulli(0.2))
        numpyro.sample("y", dist.Normal(jnp.where(wild == 1, 0.5, m), jnp.where(wild == 1, 4.0, t**-0.5)), obs=y)


def nested_choices(y, mask):
    t, u = (numpyro.sample(name, dist.Gamma(3.0, 2.0)) for name in "tu")
    with rows(y):
        wild = numpyro.sample("wild", dist.Bernoulli(0.2))
        scale = jnp.where(wild == 1, 4.0, jnp.where(mask, t**-0.5, u**-0.5))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)


def change_of_years(count, year):
    early, late = (numpyro.sample(name, dist.Gamma(3.0, 2.0)) for name in ("early", "late"))
    when = numpyro.sample("when", dist.DiscreteUniform(1851, 1858))
    with rows(year):
        numpyro.sample("count", dist.Poisson(jnp.where(year < when, early, late)), obs=count)


def choice_at_two_places(y, mask):
    """Both are of the choice, read at different rows: no choice between two precisions."""
    t, u = (numpyro.sample(name, dist.Gamma(3.0, 2.0)) for name in "tu")
    either = jnp.where(mask, t, u)
    with rows(y):
        numpyro.sample("y", dist.Normal(0.0, (either + either[::-1]) ** -0.5), obs=y)


def rate_times_label(count):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    with rows(count):
        numpyro.sample("count", dist.Poisson(rate * numpyro.sample("z", dist.Bernoulli(0.7))), obs=count)


def spike_and_slab(y, table):
    with numpyro.plate("columns", 2):
        slab = numpyro.sample("slab", dist.Bernoulli(0.5)) * numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(table @ slab, 1.0), obs=y)


def deterministic(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    doubled = numpyro.deterministic("doubled", 2 * a)
    with rows(y):
        numpyro.sample("y", dist.Normal(doubled + 1, 1.0), obs=y)


def factored(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.factor("more", -0.5 * jnp.sum((y - a) ** 2))


def put_together(y):
    parts = [numpyro.sample(name, dist.Normal(0.0, 1.0).expand([2])) for name in "ab"]
    together = jnp.concatenate(parts)[::-1]
    with rows(y):
        numpyro.sample("y", dist.Normal(together[GROUP], 1.0), obs=y)


def expanded(y):
    with numpyro.plate("columns", 3, dim=-1):
        a = numpyro.sample("a", dist.Normal(jnp.arange(3.0), 1.0))
        with numpyro.plate("rows", len(y), dim=-2):
            s = numpyro.sample("s", dist.Gamma(2.0, 1.0))
            numpyro.sample("y", dist.Normal(a, 1 / jnp.sqrt(s)), obs=y)


def events(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0).to_event(1), obs=y)


def reparametrised(y):
    with handlers.reparam(config={"a": LocScaleReparam(0.0)}):
        a = numpyro.sample("a", dist.Normal(2.0, 3.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


# Handlers.


def masked(y, mask):
    m = means()
    with rows(y), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(m[label()], 1.0), obs=y)


def masked_distribution(y, mask):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(a, 1.0).mask(mask), obs=y)


def missing(y, mask):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with rows(y):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y, obs_mask=mask)


def scaled(y):
    m = means()
    with rows(y), handlers.scale(scale=3.0):
        z = label()
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def scaled_by_row(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with rows(y), handlers.scale(scale=jnp.arange(1.0, len(y) + 1)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def scaled_and_masked(y, mask):
    s = numpyro.sample("s", dist.Gamma(2.0, 1.0))
    with rows(y), handlers.scale(scale=0.5), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(0.0, s**-0.5), obs=y)


# Constants in single precision.

SHAPE, DESIGN = jnp.asarray([0.3, 1.7]), jnp.asarray(RNG.normal(size=(9, 2)))


def single_constants(y):
    w = numpyro.sample("w", dist.Normal(0.0, SHAPE[0]).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.Gamma(SHAPE[0], SHAPE[1]))
    with rows(y):
        numpyro.sample("y", dist.Normal(DESIGN @ w, 1 / jnp.sqrt(s)), obs=y)


# Chains.


def label_before_the_chain(series):
    m = means()
    first = label()

    def step(before, y):
        z = numpyro.sample(
            "after", dist.Categorical(jnp.asarray([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [1 / 3] * 3])[before])
        )
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)
        return z, None

    scan(step, first, series)


def emission_of_both(series):
    m = means(2)

    def step(before, y):
        z = numpyro.sample("z", dist.Bernoulli(0.2 + 0.5 * before))
        numpyro.sample("y", dist.Normal(m[z] - 0.5 * m[before], 1.0), obs=y)
        return z, None

    scan(step, 0, series)


def running_sum(series):
    def step(total, y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(total + x, 1.0), obs=y)
        return total + x, None

    scan(step, 0.0, series)


def autoregressive(series):
    """What is handed on is data, and a count of the steps."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))

    def step(carried, y):
        before, number = carried
        numpyro.sample("y", dist.Normal(a * before + 0.1 * number, 1.0), obs=y)
        return (y, number + 1), None

    scan(step, (0.0, 0), series)
