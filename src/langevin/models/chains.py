"""Discrete sites inside NumPyro's `scan`: a hidden Markov chain, summed out step by step (the forward algorithm).

    alpha_t(z) = log sum over z' of  exp( alpha_{t-1}(z') + log p(z_t = z, what is observed at t | z_{t-1} = z') )

The body of the scan is run for every pair of states z' (in what it is handed on) and z (of its own sites). Several
discrete sites of one body make one joint state.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.contrib.control_flow.scan import scan_wrapper
from numpyro.ops.provenance import eval_provenance
from numpyro.ops.pytree import PytreeTrace
from numpyro.primitives import Messenger

from langevin.errors import ModelError
from langevin.models.elimination import MOST_COMBINATIONS, Factor, LogSum, product
from langevin.models.wrappers import unwrapped

BEFORE, NOW = "_before", "_now"
Trace = dict[str, dict[str, Any]]


class Chain(NamedTuple):
    """What is known of the discrete sites of one scan before it runs.

    Attributes:
        labels: Their names.
        sizes: How many values each has.
    """

    labels: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """A name for what is left of the chain when it is summed out."""
        return f"_chain_of_{'_'.join(self.labels)}"

    @property
    def num_states(self) -> int:
        """How many joint states there are."""
        return math.prod(self.sizes)


class Site(NamedTuple):
    """What is static of a term of the log-density.

    Attributes:
        plates: For each axis from the right that is a plate's, its name.
        sizes: The sizes of those plates.
        observed: Whether it is part of the likelihood.
        length: The number of steps, for a chain; 0 for others.
    """

    plates: Mapping[int, str]
    sizes: Mapping[str, int]
    observed: bool
    length: int = 0


def label_value(site: Mapping[str, Any], index: Any, *, compact: bool) -> jax.Array:
    """One value of a discrete site, the same for all of its elements.

    Args:
        site: As NumPyro's handlers see it.
        index: Which value.
        compact: Whether the axes of plates have size 1: most programs broadcast, and then compute far less.
    """
    shape = site["fn"].shape()
    return jnp.broadcast_to(jnp.asarray(support_of(site["fn"]))[index], (1,) * len(shape) if compact else shape)


def support_of(distribution: Any) -> np.ndarray:
    """The values that a discrete distribution can have, which no other site may change."""
    with jax.ensure_compile_time_eval():
        return np.asarray(unwrapped(distribution).enumerate_support(expand=False)).reshape(-1)


def factor_of(array: jax.Array, labels: tuple[str, ...], site: Site, kept: frozenset[str] | None = None) -> Factor:
    """A table by labels, then by the axes of a site, as a factor: axes that are no plate's are summed.

    Args:
        array: The table.
        labels: The names of its first axes.
        site: What its other axes are.
        kept: Names of the plates to keep; None for all.
    """
    num_axes = jnp.ndim(array) - len(labels)
    named = {axis: name for axis, name in site.plates.items() if -axis <= num_axes and (kept is None or name in kept)}
    gone = tuple(axis for axis in range(-num_axes, 0) if axis not in named)
    return Factor(jnp.sum(array, axis=gone), (*labels, *(named[axis] for axis in sorted(named))))


class Chains(Messenger):
    """Runs the scans that have discrete sites in this way, and keeps what is left of them.

    Args:
        chains: Those scans, by their place among the program's.
        terms_of: The log-probabilities of a trace that count, with what is static of them.
        log_sum: How a variable is summed out.
        tilts: For each chain, what is added to the log-probability of each state at each step; for drawing.
        known: What was learned of a chain in an earlier run; filled where it is missing.

    Attributes:
        terms: After the run, the log-probabilities, by name.
        sites: What is static of them.
    """

    def __init__(
        self,
        chains: Mapping[int, Chain],
        terms_of: Callable[[Trace], Iterable[tuple[str, jax.Array, Site]]],
        log_sum: LogSum,
        tilts: Mapping[str, jax.Array],
        known: dict[str, frozenset[str]],
    ) -> None:
        super().__init__()
        self._chains, self._terms_of, self._log_sum = chains, terms_of, log_sum
        self._tilts, self._known = tilts, known
        self._count = -1
        self.terms: dict[str, jax.Array] = {}
        self.sites: dict[str, Site] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Puts the forward algorithm in the place of a scan."""
        if msg["type"] != "control_flow":
            return
        self._count += 1
        chain = self._chains.get(self._count)
        if chain is None:
            return
        if msg["fn"] is not scan_wrapper:
            raise ModelError(
                f"Discrete site {chain.labels[0]!r} is inside a `cond`, where it cannot be summed out. Write the "
                "choice with jnp.where."
            )
        msg["fn"] = functools.partial(self._summed, chain)

    def _summed(
        self, chain: Chain, function: Any, init: Any, xs: Any, length: int | None, reverse: bool, **settings: Any
    ) -> Any:
        """In place of NumPyro's `scan_wrapper`."""
        length = jnp.shape(jax.tree.leaves(xs)[0])[0] if length is None else length
        init = jax.tree.map(jnp.asarray, init)
        sites: dict[str, Site] = {}
        body = functools.partial(self._body, chain, function, settings, sites)
        if chain.name not in self._known:
            self._known[chain.name] = _tied(chain, body, init, xs)
        tied, num_states = self._known[chain.name], chain.num_states
        states = jnp.arange(num_states)
        over_states = jax.vmap(jax.vmap(body, (None, None, None, 0)), (None, 0, None, None))
        spread = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_states, *leaf.shape)), init)
        # One abstract step says what the sites are: which plates the states are in.
        first = None if xs is None else jax.tree.map(lambda leaf: leaf[0], xs)
        jax.eval_shape(over_states, 0, spread, first, states)
        plates = _plates_of(chain, tied, sites)
        axes = (BEFORE, NOW, *plates)

        def step(carried: Any, inputs: Any) -> Any:
            i, carries, alpha = carried
            x, tilt = inputs
            moved, y, terms = over_states(i, carries, x, states)
            moves = product(
                [factor_of(terms[name], (BEFORE, NOW), sites[name], frozenset(plates)) for name in sorted(tied)]
            ).aligned(axes)
            if tilt is not None:
                moves = moves + tilt[None]
            alpha = self._log_sum(alpha[:, None] + moves, 0, i)
            # What is handed on is the same whatever the state before was: `_tied` saw to it.
            kept = jax.tree.map(lambda new, old: jnp.reshape(new[0], old.shape).astype(old.dtype), moved, carries)
            plain = {name: term[0, 0] for name, term in terms.items() if name not in tied}
            return (i + 1, kept, alpha), (jax.tree.map(lambda leaf: leaf[0, 0], y), plain)

        shape = (num_states, *plates.values())
        # The first step follows the same `init` whatever its state before is: each counts in equal parts.
        alpha = jnp.full(shape, -math.log(num_states), jnp.result_type(float))
        carried = (jnp.asarray(0), spread, alpha)
        inputs = (xs, self._tilts.get(chain.name))
        (_, carries, alpha), (ys, plain) = jax.lax.scan(step, carried, inputs, length=length, reverse=reverse)
        self.terms |= {name: jnp.sum(term, axis=0) for name, term in plain.items()}
        self.sites |= {name: sites[name] for name in plain}
        self.terms[chain.name] = self._log_sum(alpha, 0, length)
        axis_names = {axis - len(plates): name for axis, name in enumerate(plates)}
        observed = any(sites[name].observed for name in tied)
        self.sites[chain.name] = Site(axis_names, plates, observed, length)
        last = jax.tree.map(lambda leaf: leaf[0], carries)
        return (length, settings.get("rng_key"), last), (PytreeTrace({}), ys)

    def _body(
        self,
        chain: Chain,
        function: Any,
        settings: Mapping[str, Any],
        sites: dict[str, Site],
        i: Any,
        carry: Any,
        x: Any,
        state: Any,
    ) -> tuple[Any, Any, dict[str, jax.Array]]:
        """One step in one state: what is handed on, what comes out, and the log-probabilities of its sites."""
        index = dict(zip(chain.labels, jnp.unravel_index(state, chain.sizes), strict=True))

        def place(site: dict[str, Any]) -> Any:
            if site["type"] != "sample" or site["name"] not in index:
                return None
            return label_value(site, index[site["name"]], compact=False)

        run = handlers.substitute(function, substitute_fn=place)
        run = handlers.infer_config(run, config_fn=lambda site: {"_scan_current_index": i})
        if settings.get("rng_key") is not None:
            run = handlers.seed(run, settings["rng_key"])
        for kind, given in settings.get("substitute_stack", ()):
            at = functools.partial(_at_time, given, i)
            if kind == "condition":
                run = handlers.condition(run, condition_fn=at)
            else:
                run = handlers.substitute(run, substitute_fn=at)
        with handlers.block(), handlers.trace() as trace:
            carry, y = run(carry, x)
        terms = {}
        for name, log_prob, static in self._terms_of(trace):
            terms[name], sites[name] = log_prob, static
        return carry, y, terms


def _at_time(given: Any, i: Any, site: dict[str, Any]) -> Any:
    """The value that a handler around the scan gives a site at step i."""
    if site["type"] != "sample":
        return None
    value = given(site) if callable(given) else given.get(site["name"])
    if value is None:
        return None
    return value[i] if jnp.ndim(value) > len(site["fn"].shape()) else value


def _tied(chain: Chain, body: Callable[..., Any], init: Any, xs: Any) -> frozenset[str]:
    """The names of the body's sites that depend on the states.

    Raises:
        ModelError: If a state is handed on further than to the next step, or there are too many.
    """
    if chain.num_states**2 > MOST_COMBINATIONS:
        raise ModelError(
            f"The discrete sites {', '.join(map(repr, chain.labels))} inside a `scan` have {chain.num_states} joint "
            f"states, so {chain.num_states**2} transitions at each step; at most {MOST_COMBINATIONS} are computed."
        )
    leaves, structure = jax.tree.flatten(init)
    first = None if xs is None else jax.tree.map(lambda leaf: leaf[0], xs)

    def run(state: Any, **carried: Any) -> Any:
        carry = jax.tree.unflatten(structure, [carried[f"carry_{j}"] for j in range(len(leaves))])
        moved, _, terms = body(0, carry, first, state)
        return jax.tree.leaves(moved), terms

    on = eval_provenance(run, state=jnp.asarray(0), **{f"carry_{j}": leaf for j, leaf in enumerate(leaves)})
    handed_on = {f"carry_{j}" for j, depends in enumerate(on[0]) if "state" in depends}
    if any(depends & handed_on for depends in on[0]):
        raise ModelError(
            f"Discrete site {chain.labels[0]!r} inside a `scan` is handed on further than to the next step (a chain of "
            "second order, a count of visits), and is summed out only where the next step alone depends on it. Make "
            "the pair of states one site with more values."
        )
    return frozenset(name for name, depends in on[1].items() if depends & {"state", *handed_on})


def _plates_of(chain: Chain, tied: frozenset[str], sites: Mapping[str, Site]) -> dict[str, int]:
    """The plates that the states are in, with their sizes."""
    plates = dict(sites[chain.labels[0]].sizes)
    for name in sorted(tied):
        missing = sorted(set(plates) - set(sites[name].sizes))
        if missing or (name in chain.labels and dict(sites[name].sizes) != plates):
            raise ModelError(
                f"Site {name!r} inside a `scan` depends on the discrete site {chain.labels[0]!r}, and is in other "
                f"plates ({', '.join(map(repr, sites[name].sizes)) or 'none'}; {', '.join(map(repr, plates))}). Put "
                "both into the same."
            )
    return plates
