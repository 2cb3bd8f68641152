"""Bayes by backprop: a mean-field q over the weights of a network (Blundell, Cornebise, Kavukcuoglu & Wierstra 2015).

    bound = (num_data / rows) sum_i E_q[log p(y_i | net(w, x_i))] - KL(q, prior)

The divergence is in closed form where the prior of a weight is Gaussian; else log prior is sampled, at one draw of the
weights. The likelihood is sampled with noise of its own for each row (see `langevin.models.networks.noisy`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import SettingError
from langevin.models.networks.noisy import Layer, layers_of, normals, outputs
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch, Position, Posterior, num_rows
from langevin.run.seeds import key_of
from langevin.variational.elbo import Sampled
from langevin.variational.families import LOG_2PI, FullRank, LowRankGaussian, MeanField, Parameters
from langevin.variational.objective import FIRST_SCALE, OfPositions

if TYPE_CHECKING:
    from langevin.methods.variational import VI
    from langevin.variational.families import Family

RATE = 1e-3
# By how much faster scales move than means.
SCALES_FASTER = {"log_scale": 10.0}
EPOCHS = 60
LEAST_STEPS, MOST_STEPS = 10_000, 100_000
# Importance ratios of more weights have never been seen to tell anything, and take as long as the fit.
MOST_JUDGED = 1000


def num_steps_of(num_data: int, batch_size: int | None) -> int:
    """How many steps a network is trained for: 60 passes over the rows, but between 10,000 and 100,000 steps."""
    slices = 1 if batch_size is None else -(-num_data // batch_size)
    return int(np.clip(EPOCHS * slices, LEAST_STEPS, MOST_STEPS))


def network_of(target: Any) -> Any:
    """The network that a target is; None if it is none, or some of its sites are fixed."""
    return target.model.network if isinstance(target, Posterior) and not target.fixed else None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfNetwork(OfPositions):
    """A family over the weights of a network. Noise is a key: half a million numbers are made where they are used.

    Attributes:
        layers: Those whose noise is by rows.
    """

    layers: tuple[Layer, ...] = dataclasses.field(default=(), metadata={"static": True})

    def init(self, generator: np.random.Generator) -> Parameters:
        """A q around an initialisation, a tenth as wide as the prior or as what keeps the size of activations."""
        parameters = super().init(generator)
        if not isinstance(self.family, MeanField | FullRank | LowRankGaussian):
            # A flow begins as wide as its noise.
            return parameters
        network = self.posterior.model.network
        widths = {name: np.full(np.shape(leaf), math.log(FIRST_SCALE)) for name, leaf in self.example.items()}
        for name, prior in network.priors.items():
            scale = np.minimum(_sd_of(prior), 1 / math.sqrt(max(network.net.fan_ins[name], 1)))
            widths[name] += np.log(scale)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(widths)])
        return parameters | {"log_scale": flat.astype(parameters["mean"].dtype)}

    def noise(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The words of keys."""
        del dtype
        return generator.integers(0, 2**32, (*shape, 2), np.uint32)

    def sample(self, parameters: Parameters, noise: jax.Array, batch: Batch | None) -> Sampled:
        """The terms of the bound at one draw."""
        if not (self.closed_forms and self.gradient == "pathwise" and isinstance(self.family, MeanField)):
            return super().sample(parameters, self._vector(noise), batch)
        network, rows = self.posterior.model.network, self.posterior.rows if batch is None else batch
        means, scales = (self.unravel(v) for v in (parameters["mean"], jnp.exp(parameters["log_scale"])))
        gaussian = {name: prior for name, prior in network.priors.items() if _is_normal(prior)}
        by_row = {name for layer in self.layers for name in (layer.weight, layer.bias)}
        of_draw, of_layers = jax.random.split(key_of(noise))
        # Of the other weights neither the likelihood nor the divergence asks for a draw.
        names = [name for name in means if name not in by_row or name not in gaussian]
        made = dict(zip(names, normals(of_draw, [means[name].shape for name in names]), strict=True))
        draw = {name: means[name] + scales[name] * made[name].astype(means[name].dtype) for name in names}
        values, log_prior, log_det = self._others(draw)
        closed = 0.0
        for name, prior in network.priors.items():
            if name in gaussian:
                closed = closed + _expected(unwrapped(prior), means[name], scales[name])
            else:
                log_prior = log_prior + jnp.sum(prior.log_prob(draw[name]))
        shared = {name: value for name, value in draw.items() if name in network.priors and name not in by_row}
        output = outputs(network.net, self.layers, shared, means, scales, network.rows(rows), of_layers)
        log_likelihood = network.log_likelihood(output, values, rows[network.outcome])
        # What is tempered is the density of the sites, and not the map to the real line.
        cold, by_size = 1 / network.temperature, 1.0 if batch is None else self.num_data / num_rows(batch)
        terms = {
            "log_likelihood": by_size * jnp.sum(log_likelihood),
            "log_prior": jnp.asarray(cold * log_prior + log_det, parameters["mean"].dtype),
        }
        return Sampled(terms, {}, self.family.entropy(parameters) + cold * closed, {})

    def rate_units(self, parameters: Parameters) -> Parameters:
        """Scales are relative, and go a long way: those of weights that the rows say nothing of, to the prior's.

        Means are not in units of the scales, which are small beside the way that weights have to go.
        """
        return {name: jax.tree.map(lambda _, u=SCALES_FASTER.get(name, 1.0): u, p) for name, p in parameters.items()}

    def explain(self, parameters: Parameters, noise: Any) -> str:
        """Says which part of the log-density is not finite at a draw."""
        return super().explain(parameters, self._vector(noise))

    def values(self, parameters: Parameters, noise: Any, batch: Batch | None) -> tuple[dict[str, Any], Position]:
        """One draw: what is reported of it, and its position."""
        return super().values(parameters, self._vector(noise), batch)

    def log_terms(self, parameters: Parameters, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Log p and log q of one draw, on all rows."""
        return super().log_terms(parameters, self._vector(noise))

    @property
    def has_ratios(self) -> bool:
        """Not of many weights."""
        return self.draw_size <= MOST_JUDGED

    def _vector(self, words: jax.Array) -> jax.Array:
        """Standard normal noise of a family."""
        dtype = jnp.result_type(*jax.tree.leaves(self.example))
        return jax.random.normal(key_of(words), (self.family.noise_size,), dtype)

    def _others(self, draw: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], Any, Any]:
        """The unknowns of the likelihood where they may be, their log prior density, and the Jacobian's logarithm."""
        from numpyro.distributions import biject_to

        values, log_prior, log_det = {}, 0.0, 0.0
        for name, prior in self.posterior.model.network.likelihood.sites.items():
            transform = biject_to(prior.support)
            values[name] = transform(draw[name])
            log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(draw[name], values[name]))
            log_prior = log_prior + jnp.sum(prior.log_prob(values[name]))
        return values, log_prior, log_det


def of_network(settings: VI, target: Posterior, example: Any, family: Family, closed_forms: bool) -> OfNetwork:
    """The approximation of a network that the settings ask for.

    Raises:
        SettingError: If they ask for noise by rows, and it cannot be.
    """
    asked, network, layers = settings.perturbation, target.model.network, ()
    if asked != "shared":
        by_rows = isinstance(family, MeanField) and settings.gradient == "pathwise" and settings.bound == "elbo"
        if by_rows and network.net.is_module:
            few = network.rows(jax.tree.map(lambda column: column[:1], target.data))
            layers = layers_of(network.net, few[0], "local" if asked == "auto" else asked)
        if not layers and asked != "auto":
            raise SettingError(f"`VI(perturbation={asked!r})`: {_obstacle(network, by_rows)}")
    return OfNetwork(target, example, family, settings.gradient, closed_forms, layers)


def _obstacle(network: Any, by_rows: bool) -> str:
    if not by_rows:
        return "it goes with family='meanfield', gradient='pathwise' and bound='elbo' only. Leave it out."
    if not network.net.is_module:
        return "the layers of a pair (params, apply) cannot be told. Give an Equinox module, or leave it out."
    return "the network has no eqx.nn.Linear or Conv that it calls and that is not frozen. Leave it out."


def _is_normal(prior: Any) -> bool:
    from numpyro import distributions as dist

    return type(unwrapped(prior, masks=False)) is dist.Normal


def _expected(prior: Any, mean: jax.Array, scale: jax.Array) -> jax.Array:
    """The mean of the log-density of a Gaussian prior under a Gaussian q, summed over the weights."""
    square = ((mean - prior.loc) ** 2 + scale**2) / prior.scale**2
    return -jnp.sum(square / 2 + jnp.log(prior.scale) + LOG_2PI / 2)


def _sd_of(prior: Any) -> Any:
    """Of a weight; infinite if the prior has none, or does not say."""
    try:
        variance = np.asarray(prior.variance)
    except NotImplementedError:
        return math.inf
    return np.sqrt(np.where(np.isfinite(variance) & (variance > 0), variance, math.inf))
