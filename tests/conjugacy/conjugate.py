"""Programs as a user writes them, with small data: what coordinate ascent and Gibbs sampling are tested on."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density

from langevin.conjugacy.augmentation import random_value
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Needs
from langevin.models.arguments import brought
from langevin.models.build import target_of
from langevin.run.compilation import run


class Case(NamedTuple):
    """A program, its rows, and arguments that are passed whole."""

    model: Any
    data: Any = None
    constants: Any = None

    @property
    def name(self):
        return self.model.__name__


def joint_of(case, minibatch=False):
    """The joint distribution that engines see."""
    table, constants = brought(case.model, case.data, case.constants or {}, minibatch=minibatch)
    needs = Needs("joint")
    return target_of(
        case.model, table, constants=constants, rows=None, noncentred=False, needs=needs, minibatch=minibatch
    )


def conditionals_of(case, **settings):
    """The conditionals of all sites."""
    joint = joint_of(case)
    return Conditionals(joint, joint.num_data, **settings)


def normal_gamma(x):
    """The example of text 003: the mean and the precision have independent priors."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    gamma = numpyro.sample("gamma", dist.Gamma(2.0, 1.5))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("x", dist.Normal(mu, 1 / jnp.sqrt(gamma)), obs=x)


def regression(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(1.0, 0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(intercept + x @ slopes, noise**-0.5), obs=y)


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(3, 2.0)))
    with numpyro.plate("clusters", 3):
        means = numpyro.sample("means", dist.Normal(0.0, 10.0))
        precisions = numpyro.sample("precisions", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(means[z], precisions[z] ** -0.5), obs=x)


def beta_binomial(tried, hits, group, num_group):
    with numpyro.plate("groups", num_group):
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    with numpyro.plate("rows", len(hits)):
        numpyro.sample("hits", dist.Binomial(tried, p[group]), obs=hits)


def poisson_gamma(y, group, num_group):
    scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    with numpyro.plate("groups", num_group):
        rate = numpyro.sample("rate", dist.Gamma(3.0, scale))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate[group]), obs=y)


def factorisation(user, item, rating, num_user, num_item):
    """Probabilistic matrix factorisation."""
    with numpyro.plate("users", num_user):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("items", num_item):
        v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(rating)):
        numpyro.sample("rating", dist.Normal(jnp.sum(u[user] * v[item], -1), noise**-0.5), obs=rating)


def hidden_markov(series):
    with numpyro.plate("states", 2):
        onward = numpyro.sample("onward", dist.Dirichlet(jnp.asarray([2.0, 1.0])))
        means = numpyro.sample("means", dist.Normal(0.0, 5.0))
        precisions = numpyro.sample("precisions", dist.Gamma(2.0, 2.0))

    def step(before, y):
        z = numpyro.sample("z", dist.Categorical(onward[before]))
        numpyro.sample("y", dist.Normal(means[z], precisions[z] ** -0.5), obs=y)
        return z, None

    scan(step, 0, series)


def state_space(series):
    moves = numpyro.sample("moves", dist.Gamma(2.0, 0.5))
    errors = numpyro.sample("errors", dist.Gamma(2.0, 0.5))

    def step(before, y):
        x = numpyro.sample("x", dist.Normal(0.9 * before, 1 / jnp.sqrt(moves)))
        numpyro.sample("y", dist.Normal(x, 1 / jnp.sqrt(errors)), obs=y)
        return x, None

    scan(step, 0.0, series)


def topics(document, word, num_document, num_words):
    """Latent Dirichlet allocation, a row for each word of the text."""
    with numpyro.plate("topics", 2):
        phi = numpyro.sample("phi", dist.Dirichlet(jnp.full(num_words, 0.5)))
    with numpyro.plate("documents", num_document):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(2, 0.8)))
    with numpyro.plate("rows", len(word)):
        z = numpyro.sample("z", dist.Categorical(theta[document]))
        numpyro.sample("word", dist.Categorical(phi[z]), obs=word)


def _cases():
    rng = np.random.default_rng(20230922)
    group = np.sort(rng.integers(6, size=40)).astype(np.int32)
    group[:6] = np.arange(6)
    x = rng.normal(size=(40, 2))
    slopes = x @ [1.5, -0.7] + 0.4
    tried = rng.integers(5, 20, size=40)
    left = rng.normal(size=(12, 2)), rng.normal(size=(9, 2))
    user, item = np.repeat(np.arange(12), 5), rng.integers(9, size=60)
    item[:9] = np.arange(9)
    states = (np.cumsum(rng.random(50) < 0.15) % 2).astype(int)
    level = np.zeros(40)
    for t in range(40):
        level[t] = 0.9 * (level[t - 1] if t else 0.0) + 0.5 * rng.normal()
    shares = rng.dirichlet([0.3, 0.3], size=8)
    words = np.array([[0.4, 0.3, 0.2, 0.05, 0.03, 0.02], [0.02, 0.03, 0.05, 0.2, 0.3, 0.4]])
    document = np.repeat(np.arange(8), 20)
    word = np.array([rng.choice(6, p=shares[d] @ words) for d in document])
    clusters = np.concatenate([rng.normal(-4, 0.5, 20), rng.normal(0, 1, 30), rng.normal(5, 0.8, 10)])
    return {
        "normal_gamma": Case(normal_gamma, {"x": rng.normal(1.5, 2.0, 30)}),
        "regression": Case(regression, {"x": x, "y": slopes + 0.5 * rng.normal(size=40)}),
        "mixture": Case(mixture, {"x": rng.permutation(clusters)}),
        "beta_binomial": Case(
            beta_binomial,
            {"tried": tried, "hits": rng.binomial(tried, rng.uniform(0.2, 0.8, 6)[group]), "group": group},
            {"num_group": 6},
        ),
        "poisson_gamma": Case(
            poisson_gamma, {"y": rng.poisson(rng.gamma(3, 1, 6)[group]), "group": group}, {"num_group": 6}
        ),
        "factorisation": Case(
            factorisation,
            {
                "user": user,
                "item": item,
                "rating": np.sum(left[0][user] * left[1][item], -1) + 0.3 * rng.normal(size=60),
            },
            {"num_user": 12, "num_item": 9},
        ),
        "hidden_markov": Case(
            hidden_markov, None, {"series": np.array([-1.0, 2.0])[states] + 0.6 * rng.normal(size=50)}
        ),
        "state_space": Case(state_space, None, {"series": level + 0.3 * rng.normal(size=40)}),
        "topics": Case(topics, {"document": document, "word": word}, {"num_document": 8, "num_words": 6}),
    }


CASES = _cases()


def random_values(conditionals, seed):
    """Values of all sites of the program, somewhere in their supports."""
    generator = np.random.default_rng(seed)
    return {name: random_value(latent, generator) for name, latent in conditionals.latents.items()}


def log_joints(case, conditionals, values):
    """The log joint density at values of the sites: of the equations, and as NumPyro computes it."""
    rows = conditionals.joint.rows
    arguments = {**(case.data or {}), **(case.constants or {})}

    def both(values):
        ours = conditionals.at(rows).log_joint(conditionals.statistics(values))
        return ours, log_density(case.model, (), arguments, values)[0]

    return tuple(map(float, run(both, values)))
