"""The contestants of nuts.py: each prepares a problem, and then runs it with a seed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import nuts_peer_nutpie as nutpie
from programs import Problem

NUM_CHAINS = nutpie.NUM_CHAINS
OUR_SETTINGS: dict[str, tuple[dict, dict]] = {"stochastic_volatility": ({"metric": "lowrank"}, {"noncentred": True})}
"""Arguments of `lv.NUTS` and of `lv.fit` for problems that are not run with their defaults."""


class Drawn(NamedTuple):
    """What one run brings: draws by name, of shape (chains, draws, ...); gradients and divergences of the draws."""

    draws: dict[str, np.ndarray]
    gradients: int
    divergences: int


Run = Callable[[int], Drawn]
"""Takes a seed."""
Prepare = Callable[[Problem, int, int], Run]
"""Takes the problem, and the steps of warm-up and the draws of a chain."""


def our_nuts() -> Prepare:
    """`lv.fit(model, data, "nuts")`; the name is imported here because `import langevin` alone loads nothing."""
    from langevin import fit as lv_fit

    def prepare(problem: Problem, num_warmup: int, num_draws: int) -> Run:
        of_nuts, of_fit = OUR_SETTINGS.get(problem.name, ({}, {}))
        method = "nuts"
        if of_nuts:
            from langevin import NUTS

            method = NUTS(**of_nuts)
        counts = {"num_chains": NUM_CHAINS, "num_warmup": num_warmup, "num_draws": num_draws}
        settings = counts | of_fit | {"constants": problem.constants, "progress": False}
        settings["cache"] = os.environ.get("JAX_COMPILATION_CACHE_DIR", False)

        def run(seed: int) -> Drawn:
            fit = lv_fit(problem.model, problem.data, method, **settings, seed=seed)
            draws = {name: fit.posterior[name].values for name in problem.reported}
            return Drawn(draws, int(fit.stats["n_steps"].sum()), int(fit.stats["diverging"].sum()))

        return run

    return prepare


def numpyro_nuts(parallel: bool) -> Prepare:
    """NumPyro's NUTS: its chains vectorised, or a device each.

    `mcmc.run` compiles anew each time it is called. So it is inside one compiled function, as the documentation of
    `MCMC` shows with `pmap`: as quick at first, and much quicker the second time.
    """
    import numpyro

    if parallel:
        numpyro.set_host_device_count(NUM_CHAINS)
    import jax
    from numpyro.infer import MCMC, NUTS

    def prepare(problem: Problem, num_warmup: int, num_draws: int) -> Run:
        counts = {"num_warmup": num_warmup, "num_samples": num_draws, "progress_bar": False}

        def mcmc(num_chains: int) -> MCMC:
            method = "parallel" if parallel else "vectorized"
            kernel = NUTS(problem.for_peers, init_strategy=start_of(problem))
            return MCMC(kernel, **counts, num_chains=num_chains, chain_method=method)

        def sample(runner: MCMC, key: jax.Array) -> tuple[dict, dict]:
            runner.run(key, **problem.arguments, extra_fields=("num_steps",))
            grouped = runner.num_chains > 1
            draws = runner.get_samples(group_by_chain=grouped)
            return {name: draws[name] for name in problem.reported}, runner.get_extra_fields(group_by_chain=grouped)

        if parallel:
            chains = jax.pmap(lambda key: sample(mcmc(1), key))
            call = lambda key: chains(jax.random.split(key, NUM_CHAINS))  # noqa: E731
        else:
            call = jax.jit(lambda key: sample(mcmc(NUM_CHAINS), key))

        def run(seed: int) -> Drawn:
            draws, extra = jax.tree.map(np.asarray, call(jax.random.key(seed)))
            return Drawn(draws, int(extra["num_steps"].sum()), int(extra["diverging"].sum()))

        return run

    return prepare


def start_of(problem: Problem) -> Callable:
    """NumPyro's strategy to start: its default, or at given values."""
    from numpyro.infer import init_to_uniform, init_to_value

    return init_to_value(values=problem.start) if problem.start else init_to_uniform


def blackjax_nuts() -> Prepare:
    """BlackJAX's NUTS after its window adaptation, on a NumPyro program as its documentation shows.

    Each chain adapts by itself; all are in one compiled function, vectorised. They start where
    NumPyro's would: uniformly within two units of zero on the unconstrained scale, or at given values.
    """
    import blackjax
    import jax
    from numpyro.infer.util import initialize_model

    def prepare(problem: Problem, num_warmup: int, num_draws: int) -> Run:
        strategy = start_of(problem)
        found = initialize_model(
            jax.random.key(0), problem.for_peers, init_strategy=strategy, model_kwargs=problem.arguments
        )

        def log_density(position: dict) -> jax.Array:
            return -found.potential_fn(position)

        def start(key: jax.Array) -> dict:
            if problem.start:
                return found.param_info.z
            leaves, tree = jax.tree.flatten(found.param_info.z)
            keys = jax.random.split(key, len(leaves))
            uniform = functools.partial(jax.random.uniform, minval=-2.0, maxval=2.0)
            return tree.unflatten([uniform(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)])

        def one_chain(key: jax.Array) -> tuple[dict, jax.Array, jax.Array]:
            start_key, warm_key, draw_key = jax.random.split(key, 3)
            warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
            (state, parameters), _ = warmup.run(warm_key, start(start_key), num_steps=num_warmup)
            step = blackjax.nuts(log_density, **parameters).step

            def one_step(state, key):
                state, info = step(key, state)
                return state, (state.position, info.num_integration_steps, info.is_divergent)

            keys = jax.random.split(draw_key, num_draws)
            positions, steps, diverging = jax.lax.scan(one_step, state, keys)[1]
            draws = jax.vmap(found.postprocess_fn)(positions)
            return {name: draws[name] for name in problem.reported}, steps.sum(), diverging.sum()

        chains = jax.jit(jax.vmap(one_chain))

        def run(seed: int) -> Drawn:
            keys = jax.random.split(jax.random.key(seed), NUM_CHAINS)
            draws, steps, diverging = jax.tree.map(np.asarray, chains(keys))
            return Drawn(draws, int(steps.sum()), int(diverging.sum()))

        return run

    return prepare


CONTESTANTS: dict[str, Callable[[], Prepare]] = {
    "langevin": our_nuts,
    "numpyro, vectorised": lambda: numpyro_nuts(parallel=False),
    "numpyro, parallel": lambda: numpyro_nuts(parallel=True),
    "blackjax": blackjax_nuts,
    "nutpie": nutpie.nutpie_nuts,
}
