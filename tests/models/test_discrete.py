"""Discrete latent sites summed out: against the same programs with the sums written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from labelled import BY_ROW, GROUPED, PAIRS, Y, mixture, plate, transitions, weights_and_means
from numpyro.contrib.control_flow import scan

from langevin.data.table import as_table
from langevin.errors import ModelError
from langevin.models.program import Program

pytestmark = pytest.mark.usefixtures("quick_compilation")


def posterior(model, data, *, minibatch=False, **settings):
    return Program(model, **settings).posterior(as_table(data), minibatch=minibatch)


def pair(name, *, minibatch=False):
    model, by_hand, data = PAIRS[name]
    return posterior(model, data, minibatch=minibatch), posterior(by_hand, data, minibatch=minibatch)


def densities(summed, by_hand, positions):
    """The log-densities and gradients of both."""
    both = jax.jit(jax.vmap(lambda x: [jax.value_and_grad(target.log_density)(x) for target in (summed, by_hand)]))
    return jax.tree.map(np.asarray, both(positions))


def positions_of(target, count=3):
    starts = [target.start(np.random.default_rng(i)) for i in range(count)]
    return jax.tree.map(lambda *leaves: np.stack(leaves) / 2, *starts)


@pytest.mark.parametrize("name", PAIRS)
def test_the_log_density_and_its_gradient_by_hand(name):
    with jax.enable_x64(True):
        summed, by_hand = pair(name)
        positions = positions_of(by_hand)
        found, expected = densities(summed, by_hand, positions)
    for value, truth in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(value - truth).max() <= 1e-10 * max(1.0, np.abs(truth).max())


@pytest.mark.parametrize("name", ["mixture", "hidden Markov"])
def test_the_log_density_in_single_precision(name):
    summed, by_hand = pair(name)
    found, expected = densities(summed, by_hand, positions_of(by_hand))
    assert found[0].dtype == np.float32
    assert np.abs(found[0] / expected[0] - 1).max() < 1e-5


@pytest.mark.parametrize("name", BY_ROW)
def test_one_value_a_row_and_minibatches_that_are_scaled(name):
    with jax.enable_x64(True):
        summed, by_hand = pair(name, minibatch=True)
        position = by_hand.start(np.random.default_rng(5))
        batch = {column: np.asarray(values)[2:5] for column, values in summed.data.items()}

        @jax.jit
        def both(position):
            return [
                (target.terms(position, target.rows), target.log_density(position, batch))
                for target in (summed, by_hand)
            ]

        ((log_prior, log_likelihood), by_batch), (expected, _) = jax.tree.map(np.asarray, both(position))
    assert np.allclose(log_prior, expected[0], rtol=1e-9)
    assert np.allclose(log_likelihood, expected[1], rtol=1e-9)
    scale = summed.num_data / 3
    assert np.isclose(by_batch, expected[0] + scale * expected[1][2:5].sum(), rtol=1e-9)


def test_what_is_summed_out_and_what_is_reported():
    def model(y):
        w, m = weights_and_means(3)
        numpyro.deterministic("gap", m[1] - m[0])
        with plate(y):
            z = numpyro.sample("z", dist.Categorical(w))
            mean = numpyro.deterministic("mean", m[z])
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    target = posterior(model, {"y": Y})
    assert target.summed_out == ("z",)
    assert [name for name, _ in target.dims] == ["w", "m", "gap"]
    assert set(target.constrain(target.init(jax.random.key(0)))) == {"w", "m", "gap"}


def test_priors_and_centring_of_what_depends_on_a_label():
    """Given its label, `level` has a location; without, it has not."""

    def model(y):
        which = numpyro.sample("which", dist.Bernoulli(0.3))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        level = numpyro.sample("level", dist.Normal(2.0 * which, s))
        other = numpyro.sample("other", dist.Normal(0.0, s))
        with plate(y):
            numpyro.sample("y", dist.Normal(level + other, 1.0), obs=y)

    assert posterior(model, {"y": Y}, noncentred="auto").adjustable == ("other",)
    centred, noncentred = (posterior(model, {"y": Y}, noncentred=asked) for asked in (False, True))
    position = {"s": 0.3, "level": 0.5, "other": 0.2}
    assert set(centred.priors(position)) == {"other"}
    moved = position | {"other": 0.2 / np.exp(0.3)}
    assert np.isclose(noncentred.log_density(moved), centred.log_density(position) + 0.3, rtol=1e-5)
    with pytest.raises(ModelError, match="site 'level' has no location and scale"):
        posterior(model, {"y": Y}, noncentred=("level",))


def test_the_reason_for_a_density_that_is_not_finite():
    def model(y):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with plate(y):
            z = numpyro.sample("z", dist.Bernoulli(p))
            numpyro.sample("y", dist.LogNormal(1.0 * z, 1.0, validate_args=False), obs=y)

    target = posterior(model, {"y": np.array([1.0, -1.0, 2.0])})
    assert target.explain({"p": jnp.zeros(())}, target.data).startswith("the log-probability of observed site 'y' is")


def counted(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with plate(y):
        n = numpyro.sample("n", dist.Poisson(rate))
        numpyro.sample("y", dist.Normal(n, 1.0), obs=y)


def one_event(y):
    w, m = weights_and_means(3)
    z = numpyro.sample("z", dist.Categorical(w).expand([len(y)]).to_event(1))
    with plate(y):
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def outside_its_plate(y):
    w, m = weights_and_means(2)
    with numpyro.plate("groups", 3):
        z = numpyro.sample("z", dist.Categorical(w))
    with plate(y):
        numpyro.sample("y", dist.Normal(m[z].sum(), 1.0), obs=y)


def neighbours(y):
    w, m = weights_and_means(2)
    with plate(y):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(m[jnp.roll(z, 1)], 1.0), obs=y)


def rows_and_columns(y):
    w, m = weights_and_means(2)
    down, across = numpyro.plate("down", y.shape[0], dim=-2), numpyro.plate("across", y.shape[1], dim=-1)
    with down:
        a = numpyro.sample("a", dist.Categorical(w))
    with across:
        b = numpyro.sample("b", dist.Categorical(w))
    with down, across:
        numpyro.sample("y", dist.Normal(m[a] * m[b], 1.0), obs=y)


def second_order(y):
    p, m = transitions()

    def step(states, y):
        before, last = states
        z = numpyro.sample("z", dist.Categorical(p[(before + last) % 3]))
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)
        return (last, z), None

    scan(step, (0, 0), y)


def after_the_scan(y):
    p, m = transitions()

    def step(z, _):
        z = numpyro.sample("z", dist.Categorical(p[z]))
        return z, z

    _, states = scan(step, 0, None, length=len(y))
    numpyro.sample("y", dist.Normal(m[states], 1.0), obs=y)


def too_many(y):
    labels = [numpyro.sample(f"z_{i}", dist.Categorical(jnp.ones(11) / 11)) for i in range(4)]
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with plate(y):
        numpyro.sample("y", dist.Normal(m + sum(labels), 1.0), obs=y)


def support_by_label(y):
    which = numpyro.sample("which", dist.Bernoulli(0.3))
    m = numpyro.sample("m", dist.Uniform(0.0, 1.0 + which))
    with plate(y):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (counted, Y, r"'n' is a discrete latent variable.*infinite or not known.*lv\.VI"),
        (one_event, Y, r"'z' is a discrete latent variable.*one event.*numpyro\.plate.*to_event"),
        (outside_its_plate, Y, r"'z' is in the plate 'groups', and something that is not in that plate"),
        (neighbours, Y, r"Site 'y' depends on other elements of the discrete site 'z' than its own.*scan"),
        (rows_and_columns, GROUPED, r"'a' and 'b' meet in one site, and are in different plates \('down'; 'across'\)"),
        (second_order, Y, r"'z' inside a `scan` is handed on further than to the next step"),
        (after_the_scan, Y, r"Site 'y' depends on the discrete site 'z' of a `scan` that it is not in"),
        (too_many, Y, r"14641 combinations of values of 'z_0', 'z_1', 'z_2', 'z_3'.*at most 10000"),
        (support_by_label, Y, r"Which values site 'm' can have depends on the discrete site 'which'"),
    ],
)
def test_what_cannot_be_summed_out(model, data, words):
    with pytest.raises(ModelError, match=words):
        posterior(model, {"y": data})


@pytest.mark.parametrize("name", ["change point", "groups", "topics"])
def test_labels_outside_the_rows_need_all_rows(name):
    model, _, data = PAIRS[name]
    words = r"'(when|z|which)' is a discrete latent variable.*outside the plate over the rows.*Leave `batch_size` out"
    with pytest.raises(ModelError, match=words):
        posterior(model, data, minibatch=True, rows="members" if name == "groups" else None)


def test_a_second_program_of_the_same_kind_is_checked_again():
    """Nothing that was learned of one program is used for another."""
    first, second = posterior(mixture, {"y": Y}), posterior(mixture, {"y": Y[:7]})
    position = first.init(jax.random.key(0))
    parts = first.log_likelihood(position)
    assert np.allclose(second.log_likelihood(position), parts[:7], rtol=1e-5)
