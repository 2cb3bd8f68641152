"""A NumPyro guide as an approximation: automatic or hand-written, with parameters, plates and networks.

Sites that the guide leaves to us get a family over their unconstrained values. The gradient of a site passes its draw
where its distribution has a pathwise one; otherwise it is by the score function. With the pathwise gradient, the
divergence of a site is in closed form where NumPyro has one, and where no parent of the site in the program was drawn
from its value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro.distributions import biject_to

from langevin.errors import SettingError
from langevin.models.joint import Joint, Trace
from langevin.models.outline import is_observed, unscaled_log_prob
from langevin.posterior import Batch, Key
from langevin.run import compilation
from langevin.variational.elbo import Sampled, Wiring
from langevin.variational.families import Family, Parameters
from langevin.variational.objective import FIRST_SCALE

REST = "the other sites"
START_RADIUS = 2.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfSites:
    """A guide and a family for what it leaves, as an objective.

    Attributes:
        joint: The program.
        guide: The guide, called as the program is; None if the family has all sites.
        family: Over the raveled unconstrained values of the sites in `rest`; None if there are none.
        rest: These sites, with their unconstrained shapes.
        constraints: For each parameter of the program and the guide, where it may be.
        closed: The sites whose divergence is in closed form.
        wiring: Which sites have their gradient by the score function.
        gradient: "pathwise", "stl" or "score".
        rows_a_call: How many rows the program and the guide are called with.
        points: The sites to which the guide gives a single value.
    """

    joint: Joint
    guide: Callable[..., Any] | None = dataclasses.field(metadata={"static": True})
    family: Family | None = dataclasses.field(metadata={"static": True})
    rest: tuple[tuple[str, tuple[int, ...]], ...] = dataclasses.field(metadata={"static": True})
    constraints: Mapping[str, Any] = dataclasses.field(metadata={"static": True})
    closed: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    wiring: Wiring = dataclasses.field(metadata={"static": True})
    gradient: str = dataclasses.field(metadata={"static": True})
    rows_a_call: int = dataclasses.field(metadata={"static": True})
    points: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    @property
    def data(self) -> Batch:
        """Arrays whose leading axis is the rows."""
        return self.joint.data

    @property
    def num_data(self) -> int:
        """How many rows there are."""
        return self.joint.num_data

    @property
    def family_size(self) -> int:
        """How many numbers the family is over."""
        return sum(math.prod(shape) for _, shape in self.rest)

    @property
    def identified(self) -> bool:
        """False: a guide may be over-parameterised."""
        return False

    def init(self, generator: np.random.Generator) -> Parameters:
        """The values that the parameters have in a first run, unconstrained; of the family, a narrow q at random."""
        key = jax.random.key(int(generator.integers(2**31)))
        batch = jax.tree.map(lambda array: array[: self.rows_a_call], self.data)
        parameters = {"params": compilation.run(self._first_params, key, batch)}
        if self.family is not None:
            centre = generator.uniform(-START_RADIUS, START_RADIUS, self.family_size).astype(jnp.result_type(float))
            parameters["rest"] = self.family.init(generator, centre, FIRST_SCALE)
        return parameters

    def noise(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> dict[str, np.ndarray]:
        """A key for the guide, and standard normal noise for the family."""
        noise = {"key": generator.integers(2**32, size=(*shape, 2), dtype=np.uint32)}
        if self.family is not None:
            noise["rest"] = generator.standard_normal((*shape, self.family.noise_size), dtype)
        return noise

    def sample(self, parameters: Parameters, noise: Any, batch: Batch | None) -> Sampled:
        """The terms of the bound at one draw."""
        batch = self.joint.rows if batch is None else batch
        scored = self.wiring.scored
        params, key = self.constrained(parameters), jax.random.wrap_key_data(noise["key"])
        guide_trace = self.guide_trace(params, key, batch)
        values = drawn(guide_trace)
        log_q_trace = guide_trace
        if self.gradient == "stl" and self.guide is not None:
            stopped = jax.lax.stop_gradient(params)
            log_q_trace = self.joint.trace(self.guide, batch, values | stopped, key)
        log_p, log_q, scores = {}, {}, {}
        x, rest_terms = self._draw_rest(parameters, noise)
        model_trace = self.model_trace(params, values, x, key, batch)
        for name, site in log_q_trace.items():
            if site["type"] != "sample" or is_observed(site):
                continue
            scale = self.joint.scale(site, batch)
            if name in scored:
                scores[name] = unscaled_log_prob(guide_trace[name])
            if name in self.closed:
                divergence = dist.kl_divergence(site["fn"], model_trace[name]["fn"])
                log_p[f"-divergence of {name}"] = -scale * divergence
            else:
                log_q[name] = scale * unscaled_log_prob(site)
        if rest_terms is not None:
            log_q[REST] = rest_terms
            if REST in scored:
                scores[REST] = rest_terms
        for name, site in model_trace.items():
            if site["type"] == "sample" and name not in self.closed:
                log_p[name] = self.joint.scale(site, batch) * unscaled_log_prob(site)
        nothing = jnp.zeros((), jnp.result_type(float))
        return Sampled(log_p, log_q, nothing, scores)

    def rate_units(self, parameters: Parameters) -> Parameters:
        """The units of the family, for what the guide leaves; 1 for the guide's parameters."""
        units = jax.tree.map(lambda _: 1.0, parameters)
        return units if self.family is None else units | {"rest": self.family.units(parameters["rest"])}

    def units(self, parameters: Parameters, noise: Any) -> Parameters | None:
        """Of the guide's parameters 1 / sqrt(information), infinite for those of the program.

        None where a guide has sites of every row.
        """
        if self.joint.structure.local or (self.family is not None and not self.family.identified):
            return None
        with np.errstate(divide="ignore"):
            found = compilation.run(_information, self, parameters["params"], noise["key"])
            units = {"params": jax.tree.map(lambda leaf: 1 / np.sqrt(np.asarray(leaf, np.float64)), found)}
        return units if self.family is None else units | {"rest": self.family.units(parameters["rest"])}

    def with_data(self, data: Batch) -> OfSites:
        """The same with other data."""
        return dataclasses.replace(self, joint=dataclasses.replace(self.joint, data=data))

    def explain(self, parameters: Parameters, noise: Any) -> str:
        """Says which term of the bound is not finite at a draw."""
        batch = jax.tree.map(lambda array: array[: self.rows_a_call], self.data)
        # Compiled: on numbers, NumPyro would raise an error at a bad parameter, and not say of which site.
        sampled = compilation.run(self.sample, parameters, noise, batch)
        for kind, terms in (("the program", sampled.log_p), ("the guide", sampled.log_q)):
            for name, value in terms.items():
                bad = np.asarray(value)[~np.isfinite(value)]
                if bad.size:
                    return f"the log-probability of {name!r} in {kind} is {bad.flat[0]}"
        return "every site is finite at a draw, but the gradient is not"

    def constrained(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters of the program and the guide, where they may be."""
        return {
            name: jax.tree.map(biject_to(self.constraints[name]), value) for name, value in parameters["params"].items()
        }

    def guide_trace(self, params: Mapping[str, Any], key: Key, batch: Batch) -> Trace:
        """A run of the guide."""
        if self.guide is None:
            return {}
        return self.joint.trace(self.guide, batch, params, key, stopped=self.wiring.scored)

    def model_trace(
        self, params: Mapping[str, Any], values: Mapping[str, Any], x: jax.Array | None, key: Key, batch: Batch
    ) -> Trace:
        """A run of the program: at these values, and with the other sites at an unconstrained vector."""
        position = None
        if x is not None:
            example = {name: jnp.zeros(shape, x.dtype) for name, shape in self.rest}
            position = ravel_pytree(example)[1](x)
        return self.joint.trace(self.joint.function, batch, {**params, **values}, key, position=position)

    def values(self, parameters: Parameters, noise: Any, batch: Batch | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """One draw: what is reported of it, and the unconstrained values of the sites that are not discrete."""
        batch = self.joint.rows if batch is None else batch
        params, key = self.constrained(parameters), jax.random.wrap_key_data(noise["key"])
        values = drawn(self.guide_trace(params, key, batch))
        trace = self.model_trace(params, values, self._draw_rest(parameters, noise)[0], key, batch)
        structure = self.joint.structure
        unconstrained = {
            name: biject_to(trace[name]["fn"].support).inv(trace[name]["value"])
            for name in structure.shapes
            if name not in structure.discrete
        }
        return {name: jnp.asarray(trace[name]["value"]) for name in structure.reported}, unconstrained

    def log_terms(self, parameters: Parameters, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Log p and log q of one draw, on all rows: nothing in closed form."""
        sampled = dataclasses.replace(self, closed=()).sample(parameters, noise, None)
        log_p, log_q = (sum(map(jnp.sum, part.values()), jnp.zeros(())) for part in (sampled.log_p, sampled.log_q))
        return log_p, log_q

    @property
    def has_ratios(self) -> bool:
        """Not where every row has continuous sites of its own; and a single value has no density to compare with.

        The labels of rows are drawn from q, and the ratio is that of the joint distributions of labels and all else.
        """
        structure = self.joint.structure
        return not self.points and set(structure.local) <= set(structure.discrete)

    @property
    def local(self) -> Mapping[str, int]:
        """The sites that every row has its own of, and how many numbers of each a draw has."""
        structure = self.joint.structure
        return {name: math.prod(structure.shapes[name]) for name in structure.local}

    @property
    def draw_size(self) -> int:
        """How many numbers a draw has of the sites that all rows share."""
        structure = self.joint.structure
        return sum(math.prod(shape) for name, shape in structure.shapes.items() if name not in structure.local)

    def named(self, parameters: Parameters) -> dict[str, Any]:
        """`numpyro.param` sites by their name, and the parameters of the family."""
        return self.constrained(parameters) | parameters.get("rest", {})

    def log_prob(self, parameters: Parameters, draw: Any, data: Batch | None) -> float:
        """Log q of the values of the guide's sites.

        Raises:
            SettingError: If a site has no value, or the family has sites too.
        """
        if self.guide is None or self.family is not None:
            raise SettingError(
                "`Guide.log_prob` of a family inside a program is not known for sites; use the fit's stats."
            )
        batch = self.joint.rows if data is None else data
        trace = self.joint.trace(self.guide, batch, self.constrained(parameters) | dict(draw), jax.random.key(0))
        missing = [name for name in drawn(trace) if name not in draw]
        if missing:
            raise SettingError(f"`Guide.log_prob` needs the value of {missing[0]!r}, which the guide draws.")
        return float(sum(jnp.sum(unscaled_log_prob(trace[name])) for name in drawn(trace)))

    def _first_params(self, key: Key, batch: Batch) -> dict[str, Any]:
        guide_trace = self.guide_trace({}, key, batch)
        x = None if self.family is None else jnp.zeros(self.family_size)
        model_trace = self.model_trace({}, drawn(guide_trace), x, jax.random.fold_in(key, 1), batch)
        return {
            name: jax.tree.map(lambda leaf, c=constraint: biject_to(c).inv(jnp.asarray(leaf, float)), site["value"])
            for name, constraint in self.constraints.items()
            for site in [guide_trace.get(name) or model_trace[name]]
        }

    def _draw_rest(self, parameters: Parameters, noise: Any) -> tuple[jax.Array | None, jax.Array | None]:
        """The unconstrained values of the sites that the guide leaves, as one vector, and the terms of log q."""
        if self.family is None:
            return None, None
        x, log_q = self.family.draw(parameters["rest"], noise["rest"])
        if self.gradient == "stl":
            return x, self.family.held(parameters["rest"], x, noise["rest"])
        if REST in self.wiring.scored:
            x = jax.lax.stop_gradient(x)
            return x, self.family.log_parts(parameters["rest"], x)
        return x, log_q


def drawn(trace: Trace) -> dict[str, Any]:
    """The values of the sites that a guide drew."""
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample" and not is_observed(site)}


def _information(objective: OfSites, params: Mapping[str, Any], words: jax.Array) -> Any:
    """The mean square, over draws, of the derivative of log q by each parameter: Fisher's information, diagonal.

    It says by how much a parameter can be off until q is another distribution. Of the program's own parameters it is
    zero.

    Args:
        objective: The guide.
        params: Its parameters, unconstrained.
        words: Of a key for each draw.
    """
    batch = jax.tree.map(lambda array: array[: objective.rows_a_call], objective.data)

    def square(key: Key) -> Any:
        values = drawn(objective.guide_trace(objective.constrained({"params": params}), key, batch))
        values = jax.lax.stop_gradient(values)

        def log_q(params: Mapping[str, Any]) -> jax.Array:
            given = objective.constrained({"params": params}) | values
            trace = objective.joint.trace(objective.guide, batch, given, key) if objective.guide is not None else {}
            sites = (site for name, site in trace.items() if name in values)
            return sum((jnp.sum(unscaled_log_prob(site)) for site in sites), jnp.zeros(()))

        return jax.tree.map(jnp.square, jax.grad(log_q)(params))

    squares = jax.lax.map(square, jax.random.wrap_key_data(words), batch_size=16)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), squares)
