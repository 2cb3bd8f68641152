"""Programs of many kinds, on a few rows."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, log_density, potential_energy

from langevin.data.table import as_table
from langevin.models.program import Program

NUM_ROWS = 6
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32),
    "y": RNG.normal(size=NUM_ROWS).astype(np.float32),
    "group": np.array([0, 1, 2, 0, 1, 2]),
}


def make(model, data=DATA, *, minibatch=False, constants=None, rows=None):
    return Program(model, constants or {}, rows).posterior(as_table(data), minibatch=minibatch)


def rows(x):
    return numpyro.plate("rows", x.shape[0])


def scalars(x, y, group):
    m = numpyro.sample("m", dist.Normal(1.0, 2.0))
    s = numpyro.sample("s", dist.HalfNormal(0.7))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def vectors(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))
    with rows(x):
        numpyro.sample("y", dist.Normal(x @ w, s[0] + s[1]), obs=y)


def event_rows(x, y, group):
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    with rows(x):
        numpyro.sample("x", dist.Normal(0.0, s).expand([2]).to_event(1), obs=x)


def nested_plates(x, y, group):
    with numpyro.plate("groups", 3, dim=-2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("features", 2, dim=-1):
            b = numpyro.sample("b", dist.Exponential(1.5))
    with rows(x):
        numpyro.sample("y", dist.Normal(a[group, 0] + (x * b[group]).sum(-1), 1.0), obs=y)


def plate_inside_rows(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("features", 2, dim=-1):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def derived(x, y, group):
    s = numpyro.sample("s", dist.HalfCauchy(1.0))
    v = numpyro.deterministic("v", s**2)
    with rows(x):
        numpyro.sample("y", dist.Normal(0.0, v), obs=y)


def factors(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.factor("penalty", -3.0 * s)
    with rows(x):
        numpyro.factor("soft", -jnp.abs(y - s))
        numpyro.factor("constant", -0.5 * s)


def correlated(x, y, group):
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 1.5))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with rows(x):
        numpyro.sample("x", dist.MultivariateNormal(0.0, scale_tril=scale[:, None] * factor), obs=x)


def simplex(x, y, group):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("kinds", 2):
        q = numpyro.sample("q", dist.Dirichlet(jnp.ones(3)))
    with rows(x):
        numpyro.sample("group", dist.Categorical(probs=(p + q.sum(0)) / 3), obs=group)


def ordered(x, y, group):
    cuts = numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), event_shape=(2,)))
    base = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    more = numpyro.sample("more", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    with rows(x):
        numpyro.sample("group", dist.OrderedLogistic(y + more[0], cuts), obs=group)


def moving_supports(x, y, group):
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    width = numpyro.sample("width", dist.HalfNormal(2.0))
    m = numpyro.sample("m", dist.Uniform(low, low + width))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, width), obs=y)


def matrices(x, y, group):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    tril = jnp.array([[1.0, 0.0], [0.5, 1.0]])
    b = numpyro.sample("b", dist.MatrixNormal(jnp.zeros((2, 2)), tril, tril))
    c = numpyro.sample("c", dist.Wishart(4.0, jnp.eye(2)))
    with rows(x):
        numpyro.sample("y", dist.Normal((x @ a).sum(-1) + (x @ b @ c).sum(-1), 1.0), obs=y)


def two_plates(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, s), obs=y)
    with numpyro.plate("again", x.shape[0]):
        numpyro.sample("x0", dist.Normal(m, 2 * s), obs=x[:, 0])


def masked(x, y, group):
    with handlers.mask(mask=jnp.array([True, False])), numpyro.plate("pair", 2):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x), handlers.mask(mask=y > 0):
        numpyro.sample("y", dist.Normal(0.0, s.sum()), obs=y)


def scaled(x, y, group):
    with handlers.scale(scale=0.3):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x), handlers.scale(scale=2.5):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def scaled_positive(x, y, group):
    with handlers.scale(scale=0.3):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)


def reparametrised(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with handlers.reparam(config={"m": LocScaleReparam(0.0)}), numpyro.plate("groups", 3):
        m = numpyro.sample("m", dist.Normal(0.0, s))
    with rows(x):
        numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


def row_local(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        z = numpyro.sample("z", dist.HalfNormal(s))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def time_series(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))

    def step(level, observed):
        jump = numpyro.sample("jump", dist.HalfNormal(s))
        level = numpyro.sample("level", dist.Normal(level + jump, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=observed)
        return level, None

    scan(step, 0.0, y)


def no_plate(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


BY_ROWS = [
    scalars,
    vectors,
    event_rows,
    nested_plates,
    plate_inside_rows,
    derived,
    factors,
    correlated,
    simplex,
    ordered,
    moving_supports,
    matrices,
    two_plates,
    masked,
    scaled,
    scaled_positive,
    reparametrised,
]
FULL_ONLY = [row_local, time_series, no_plate]


def name_of(model):
    return model.__name__


def numpyros(model, position, data=DATA):
    return -potential_energy(model, (), data, position)


def independent_terms(model, position, data):
    """The log-probability of all but the rows, with the Jacobians, and that of the rows, by NumPyro alone."""
    total = numpyros(model, position, data)
    constrained = constrain_fn(model, (), data, position)
    _, trace = log_density(model, (), data, constrained)
    likelihood = 0.0
    for site in trace.values():
        inside = any(frame.name in ("rows", "again") for frame in site.get("cond_indep_stack", ()))
        if site["type"] == "sample" and site["is_observed"] and inside:
            likelihood += jnp.sum((site["scale"] or 1.0) * site["fn"].log_prob(site["value"]))
    return total - likelihood, likelihood
