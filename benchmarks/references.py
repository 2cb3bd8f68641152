"""Makes benchmarks/results/references.json: the moments of the posteriors that have no closed form.

    python benchmarks/references.py [NAME ...]

Long runs of NumPyro's NUTS in double precision, with sites non-centred where that is better. A run whose R-hat is over
1.01, or that diverges at more than one draw in a thousand, even with steps for an acceptance of 0.995, is refused.
"""

from __future__ import annotations

import json
import sys
import time

import gallery_groups  # noqa: F401
import gallery_rows  # noqa: F401
import gallery_shapes  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from gallery import REFERENCES, REGISTRY, Arrays, Posterior
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam, Reparam

NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 4, 1500, 4000
ACCEPTANCES = (0.95, 0.995)
MOST_RHAT, MOST_DIVERGING, MOST_ERROR = 1.01, 0.001, 0.04


class WalkReparam(Reparam):
    """A random walk by its noise."""

    def __call__(self, name, fn, obs):
        """The walk, which is no site of its own any more."""
        del obs
        noise = numpyro.sample(f"{name}_noise", dist.Normal(0, 1).expand([fn.num_steps]).to_event(1))
        return None, fn.scale * jnp.cumsum(noise)


def noncentred(posterior: Posterior):
    """The program, with its sites non-centred."""

    def reparam(site: dict):
        if site["name"] not in posterior.noncentred:
            return None
        return WalkReparam() if isinstance(site["fn"], dist.GaussianRandomWalk) else LocScaleReparam(0)

    return numpyro.handlers.reparam(posterior.model, config=reparam) if posterior.noncentred else posterior.model


def long_run(posterior: Posterior, acceptance: float) -> tuple[Arrays, int]:
    """Draws of every site, and how many diverged."""
    kernel = NUTS(noncentred(posterior), target_accept_prob=acceptance, dense_mass=_size(posterior) <= 40)
    settings = {"num_warmup": NUM_WARMUP, "num_samples": NUM_DRAWS, "num_chains": NUM_CHAINS}
    mcmc = MCMC(kernel, **settings, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0), **(posterior.data or {}), **posterior.constants, extra_fields=("diverging",))
    draws = {name: np.asarray(x) for name, x in mcmc.get_samples(group_by_chain=True).items()}
    return draws, int(np.sum(mcmc.get_extra_fields()["diverging"]))


def _size(posterior: Posterior) -> int:
    arguments = {**(posterior.data or {}), **posterior.constants}
    trace = numpyro.handlers.trace(numpyro.handlers.seed(posterior.model, 0)).get_trace(**arguments)
    latent = (site for site in trace.values() if site["type"] == "sample" and not site["is_observed"])
    return sum(np.size(site["value"]) for site in latent)


def make(name: str, posterior: Posterior) -> dict:
    """The moments of the view, rounded.

    Raises:
        RuntimeError: If the run cannot be relied on.
    """
    from langevin.diagnostics import weighted

    began = time.perf_counter()
    diverging = 0
    if posterior.sampler is not None:
        draws = posterior.sampler(np.random.default_rng(0))
    else:
        for acceptance in ACCEPTANCES:
            draws, diverging = long_run(posterior, acceptance)
            if diverging <= MOST_DIVERGING * NUM_CHAINS * NUM_DRAWS:
                break
    viewed = posterior.view(draws)
    uniform = np.ones(next(iter(viewed.values())).shape[:2])
    rhat = max(float(np.max(weighted.rhat(x, uniform))) for x in viewed.values())
    mean, sd = ({n: statistic(x, axis=(0, 1)) for n, x in viewed.items()} for statistic in (np.mean, np.std))
    error = max(float(np.max(weighted.mcse(x, uniform) / sd[n])) for n, x in viewed.items())
    seconds = time.perf_counter() - began
    print(f"{name}: R-hat {rhat:.4f}, error {error:.4f} sds, {diverging} diverging, {seconds:.0f} s", flush=True)
    if rhat > MOST_RHAT or error > MOST_ERROR or diverging > MOST_DIVERGING * NUM_CHAINS * NUM_DRAWS:
        raise RuntimeError(f"The run of {name} cannot be relied on.")
    short = np.vectorize(lambda value: float(f"{value:.5g}"))
    mean, sd = ({n: short(x).tolist() for n, x in part.items()} for part in (mean, sd))
    return {"mean": mean, "sd": sd, "error": round(error, 4), "rhat": round(rhat, 4)}


def main() -> None:
    """Those that are missing, or those named."""
    numpyro.enable_x64()
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    missing = [name for name, make_one in REGISTRY.items() if name not in stored]
    for name in sys.argv[1:] or missing:
        posterior = REGISTRY[name]()
        if posterior.reference is not None:
            continue
        try:
            stored[name] = make(name, posterior)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        lines = (f"{json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored))
        REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
