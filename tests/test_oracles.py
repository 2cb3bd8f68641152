"""lv.fit with "nuts" against NumPyro's NUTS, BlackJAX's NUTS and closed forms, on the programs of the benchmarks."""

import functools

import blackjax
import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model
from programs import PROBLEMS
from scipy import stats
from targets import Target, check_within_errors, moments

import langevin as lv
from langevin.data.table import as_table
from langevin.demos import mixture
from langevin.models.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")]

NUM_CHAINS = 4
# How likely a right sampler is to fail one of these tests by chance, whatever the number of its coordinates.
CHANCE = 1e-5


def compiled(function):
    """Compiled as a whole, and quickly: most of the time of these tests would be XLA's."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 1})


def numpyro_nuts(problem, count, target_accept):
    """Draws (chain, draw, ...) by name."""

    def run(key):
        kernel = NUTS(problem.model, target_accept_prob=target_accept)
        counts = {"num_warmup": count, "num_samples": count, "num_chains": NUM_CHAINS}
        mcmc = MCMC(kernel, **counts, chain_method="vectorized", progress_bar=False)
        mcmc.run(key, **problem.arguments)
        return mcmc.get_samples(group_by_chain=True)

    return compiled(run)(jax.random.key(1))


def blackjax_nuts(problem, count, target_accept):
    """The same, from NumPyro's log-density; each chain adapts by itself."""

    def one_chain(key, found):
        start_key, warm_key, draw_key = jax.random.split(key, 3)
        leaves, tree = jax.tree.flatten(found.param_info.z)
        keys = jax.random.split(start_key, len(leaves))
        start = [jax.random.uniform(k, x.shape, minval=-2.0, maxval=2.0) for k, x in zip(keys, leaves, strict=True)]
        log_density = lambda position: -found.potential_fn(position)  # noqa: E731
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=target_accept)
        (state, settings), _ = warmup.run(warm_key, tree.unflatten(start), num_steps=count)
        kernel = blackjax.nuts(log_density, **settings)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        positions = jax.lax.scan(step, state, jax.random.split(draw_key, count))[1]
        return jax.vmap(found.postprocess_fn)(positions)

    def run(keys):
        found = initialize_model(keys[0], problem.model, model_kwargs=problem.arguments, validate_grad=False)
        return jax.vmap(lambda key: one_chain(key, found))(keys)

    return compiled(run)(jax.random.split(jax.random.key(2), NUM_CHAINS))


def our_nuts(problem, target_accept=0.8, **settings):
    """Our fit."""
    method = lv.NUTS(target_accept=target_accept)
    settings = {"constants": problem.constants, "num_draws": 2000, "seed": 3, "progress": False} | settings
    return lv.fit(problem.model, problem.data, method, **settings)


def together(draws, names):
    """Every coordinate of these sites, as (chain, draw, coordinate)."""
    parts = [np.asarray(draws[name]) for name in names]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def most_errors(num_coordinates):
    """How far the worst of as many means and sds may be."""
    return stats.norm.isf(CHANCE / (2 * 2 * num_coordinates))


def check_agreement(ours, theirs, least_size=0.06):
    """Means and sds agree within their errors, and these errors are small enough to say something."""
    one, other = moments(ours), moments(theirs)
    sd = one["sd"][0]
    for kind in ("mean", "sd"):
        (a, a_error), (b, b_error) = one[kind], other[kind]
        error = np.hypot(a_error, b_error)
        assert np.max(error / sd) < least_size, f"{kind}: the chains are too short, {np.max(error / sd)}"
        distance = np.abs(a - b) / error
        assert distance.max() < most_errors(len(sd)), (
            f"{kind} of coordinate {distance.argmax()}: {distance.max()} errors apart"
        )


ORACLES = {"numpyro": numpyro_nuts, "blackjax": blackjax_nuts}
# Draws of an oracle's chain, and the acceptance that all samplers aim at.
SETTINGS = {
    "gaussian": (400, 0.8),
    "eight_schools_noncentred": (1000, 0.9),
    "logistic": (1000, 0.8),
    "horseshoe": (500, 0.95),
    "dirichlet_lkj": (1000, 0.8),
}


@functools.cache
def our_fit(name):
    """Two tests look at one of them."""
    return our_nuts(PROBLEMS[name], SETTINGS[name][1])


@pytest.mark.parametrize("name", SETTINGS)
def test_means_and_sds_agree(name):
    problem, (count, target_accept) = PROBLEMS[name], SETTINGS[name]
    ours = together(our_fit(name).posterior, problem.reported)
    for oracle in ORACLES.values():
        check_agreement(ours, together(oracle(problem, count, target_accept), problem.reported))


def test_gaussian_in_closed_form():
    problem = PROBLEMS["gaussian"]
    fit = our_fit("gaussian")
    sds = np.linalg.norm(problem.constants["scale_tril"], axis=1)
    for (found, error), exact in zip(
        moments(fit.posterior["x"]).values(), (problem.constants["mean"], sds), strict=True
    ):
        assert (np.abs(found - exact) / error).max() < most_errors(100)
    assert fit.verdict == ()


@pytest.mark.parametrize("noncentred", [False, True])
def test_centred_eight_schools_agree_with_the_non_centred(noncentred):
    """The posterior is the same, and its centred form is a funnel: it takes small steps and many draws to mix."""
    problem = PROBLEMS["eight_schools_centred"]
    settings = {} if noncentred else {"target_accept": 0.99, "num_chains": 16, "num_draws": 3000}
    ours = together(our_nuts(problem, noncentred=noncentred, **settings).posterior, problem.reported)
    theirs = together(numpyro_nuts(PROBLEMS["eight_schools_noncentred"], 1000, 0.9), problem.reported)
    check_agreement(ours, theirs)


@pytest.mark.parametrize("log_tau", [0.0, -5.0, -10.0, -15.0, -20.0, -25.0])
def test_non_centred_schools_have_the_density_of_the_program_that_is_written_so(log_tau):
    """Also where tau is lost in the rounding of mu + tau z: a density that forgets z there has a mode that is not."""
    centred, by_hand = PROBLEMS["eight_schools_centred"], PROBLEMS["eight_schools_noncentred"]
    z = np.random.default_rng(0).normal(size=8).astype(np.float32)
    ours = Program(centred.model, noncentred=("theta",)).posterior(as_table(centred.data))
    theirs = Program(by_hand.model).posterior(as_table(by_hand.data))
    position = {"mu": np.float32(3.5), "tau": np.float32(log_tau)}
    found, gradient = jax.value_and_grad(ours.log_density)(position | {"theta": z})
    expected, slope = jax.value_and_grad(theirs.log_density)(position | {"z": z})
    assert float(found) == pytest.approx(float(expected), abs=0.01)
    np.testing.assert_allclose(gradient["theta"], slope["z"], atol=0.01)
    np.testing.assert_allclose(gradient["tau"], slope["tau"], atol=0.01)


def test_funnel_in_closed_form():
    """v ~ N(0, 3), and x / exp(v / 2) ~ N(0, 1). Non-centred it is a Gaussian."""
    fit = our_nuts(PROBLEMS["funnel"], noncentred=True, num_chains=16)
    check_within_errors(fit, Target(None, {}, {"v": 0.0}, {"v": np.array(3.0)}))
    noise = fit.posterior["x"].values * np.exp(-fit.posterior["v"].values / 2)[..., None]
    np.testing.assert_allclose(noise.std((0, 1)), 1, atol=0.03)
    assert fit.verdict == ()


def test_centred_funnel_warns():
    """Nobody's NUTS reaches the neck: v comes out too large and too narrow. What matters is that the fit says so."""
    fit = our_nuts(PROBLEMS["funnel"], 0.95, num_warmup=500, noncentred=False)
    assert {"diverging", "energy", "not mixed"} & {finding.code for finding in fit.verdict}
    assert "Non-centre" in repr(fit)


def test_mixture_against_the_grid():
    problem = PROBLEMS["mixture"]
    truth = mixture.exact(problem.data["x"], points=601)[0]
    fit = our_nuts(problem, num_chains=16, num_draws=4000)
    names = problem.reported
    exact = Target(
        None, {}, dict(zip(names, truth.means, strict=True)), dict(zip(names, np.array(truth.sds), strict=True))
    )
    check_within_errors(fit, exact)
    for oracle in ORACLES.values():
        check_agreement(together(fit.posterior, names), together(oracle(problem, 1000, 0.8), names), least_size=0.2)
