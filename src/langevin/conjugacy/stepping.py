"""NumPyro's `scan`, read as all its steps side by side.

Where every latent site has a value, a step depends on those before it only through what they hand on. If that is made
from the values of the step before alone (a chain of first order), all steps can be run at once:

    step 0 with the start of the scan, and steps 1, 2, ... with what step t - 1 hands on, a function of its own values
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from numpyro import handlers
from numpyro.contrib.control_flow.scan import scan_wrapper
from numpyro.ops.provenance import eval_provenance
from numpyro.ops.pytree import PytreeTrace
from numpyro.primitives import Messenger

from langevin.conjugacy.interpreter import Interpreter
from langevin.errors import ModelError

FIRST, LATER = "first", "later"
Told = Callable[[str, dict[str, Any]], tuple[Any, dict[str, Any]]]
ValueAt = Callable[[str, str], Any]


class Inside(Messenger):
    """Notes which sites are inside a `scan`.

    Attributes:
        names: Their names, after the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        """Looks at what a scan returns."""
        if msg["type"] != "control_flow":
            return
        function = msg["fn"]

        def run(*arguments: Any, **settings: Any) -> Any:
            returned = function(*arguments, **settings)
            self.names |= set(returned[1][0].trace)
            return returned

        msg["fn"] = run


class Unrolled(Messenger):
    """Puts all steps of a scan side by side, and keeps what their sites are given.

    Args:
        values: For each latent site inside a scan, its values at all steps; of a discrete one, of which all values are
            wanted, a pair: those of this step and those of the step before, which are the same at all steps.
        told: What is kept of a site of a step.

    Attributes:
        sites: What was kept: name -> (which steps, static, arrays), in the order of the program.
    """

    def __init__(self, values: Mapping[str, Any], told: Told) -> None:
        super().__init__()
        self._values, self._told = values, told
        self.sites: list[tuple[str, str, Any, dict[str, Any]]] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        """Takes the place of a scan."""
        if msg["type"] != "control_flow":
            return
        if msg["fn"] is not scan_wrapper:
            raise ModelError(
                "The program has a `cond`, which has no conditionals that can be computed. Write the choice with "
                "jnp.where."
            )
        msg["fn"] = self._side_by_side

    def _side_by_side(
        self, function: Any, init: Any, xs: Any, length: int | None, reverse: bool, **settings: Any
    ) -> Any:
        length = jnp.shape(jax.tree.leaves(xs)[0])[0] if length is None else length
        if reverse:
            raise ModelError("The program has a `scan` that runs backwards. Turn its rows round.")
        init = jax.tree.map(jnp.asarray, init)
        static: dict[str, Any] = {}
        key = settings.get("rng_key")
        body = functools.partial(self._body, function, key, static)
        at = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)  # noqa: E731
        parted = {name: value for name, value in self._values.items() if not isinstance(value, tuple)}
        now = {name: value[0] for name, value in self._values.items() if isinstance(value, tuple)}
        before = {name: value[1] for name, value in self._values.items() if isinstance(value, tuple)}
        carried, y, given = body(init, at(xs, 0), at(parted, 0) | now)
        self._keep(FIRST, static, given)
        first_y = y
        if length == 1:
            return self._returned(length, key, carried, jax.tree.map(lambda leaf: leaf[None], first_y))
        earlier, later = (jax.tree.map(lambda leaf, s=s: leaf[s], (xs, parted)) for s in (slice(-1), slice(1, None)))
        plain = self._plain(body, init, xs, parted, before, length)
        handed = jax.vmap(lambda x, v, c: body(c, x, v | before)[0])(*earlier, plain)
        _, y, given = jax.vmap(lambda x, v, c: body(c, x, v | now))(*later, handed)
        self._keep(LATER, static, given)
        last = jax.tree.map(lambda leaf: leaf[-1], handed)
        both = jax.tree.map(lambda one, rest: jnp.concatenate([_like(one, rest), rest]), first_y, y)
        return self._returned(length, key, last, both)

    def _returned(self, length: int, key: Any, last: Any, ys: Any) -> Any:
        return (length, key, last), (PytreeTrace({}), ys)

    def _keep(self, which: str, static: dict[str, Any], given: dict[str, dict[str, Any]]) -> None:
        self.sites += [(name, which, static[name], arrays) for name, arrays in given.items()]

    def _body(self, function: Any, key: Any, static: dict[str, Any], carry: Any, x: Any, values: dict[str, Any]) -> Any:
        run = handlers.substitute(function, data=values)
        run = handlers.seed(run, jax.random.key(0) if key is None else key)
        with handlers.block(), handlers.trace() as trace:
            carry, y = run(carry, x)
        given: dict[str, dict[str, Any]] = {}
        for name, site in trace.items():
            if site["type"] == "sample":
                static[name], given[name] = self._told(name, site)
        return carry, y, given

    def _plain(self, body: Any, init: Any, xs: Any, parted: dict[str, Any], before: dict[str, Any], length: int) -> Any:
        """What a step gets from the steps before, at each step, as far as it is no latent site that it gets.

        Raises:
            ModelError: If what a latent site has to do with is handed on further than to the next step.
        """
        leaves, structure = jax.tree.flatten(init)
        first = jax.tree.map(lambda leaf: leaf[0], (xs, parted))

        def once(values: Any, **carried: Any) -> Any:
            carry = jax.tree.unflatten(structure, [carried[f"carry_{j}"] for j in range(len(leaves))])
            return jax.tree.leaves(body(carry, first[0], values)[0])

        on = eval_provenance(
            once, values=first[1] | before, **{f"carry_{j}": jnp.asarray(leaf) for j, leaf in enumerate(leaves)}
        )
        of_sites = {f"carry_{j}" for j, depends in enumerate(on) if "values" in depends}
        for _ in leaves:
            of_sites |= {f"carry_{j}" for j, depends in enumerate(on) if depends & of_sites}
        for j, depends in enumerate(on):
            if depends & of_sites:
                raise ModelError(
                    "In a `scan`, a latent site is handed on further than to the next step (a chain of second order, a "
                    f"running sum), by part {j} of what is carried. Conditionals are found of chains of first order: "
                    "make the values of two steps one site."
                )
        numbers = [j for j in range(len(leaves)) if f"carry_{j}" not in of_sites]
        if not any(on[j] & {f"carry_{i}" for i in numbers} for j in range(len(leaves))):
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (length - 1, *jnp.shape(leaf))), init)

        def moved(carried: Any, x: Any) -> Any:
            leaves = jax.tree.leaves(body(jax.tree.unflatten(structure, carried), x, first[1] | before)[0])
            return [leaves[j] for j in numbers]

        start = [jnp.asarray(leaf) for leaf in leaves]
        # The rest of a step, which may depend on sites outside of the scan, is left out.
        needed = jax.make_jaxpr(moved)(start, first[0])

        def step(carried: Any, x: Any) -> Any:
            kept = list(carried)
            for j, value in zip(numbers, Interpreter().run(needed, jax.tree.leaves((carried, x))), strict=True):
                kept[j] = jnp.asarray(value, carried[j].dtype)
            return kept, carried

        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((start, xs)))
        with contextlib.nullcontext() if is_traced else jax.ensure_compile_time_eval():
            _, sequence = jax.lax.scan(step, start, jax.tree.map(lambda leaf: leaf[: length - 1], xs), length - 1)
        return jax.tree.unflatten(structure, sequence)


def _like(one: Any, rest: Any) -> Any:
    """The first of a series, with the shape of the others."""
    return jnp.broadcast_to(jnp.asarray(one), jnp.shape(rest)[1:])[None].astype(jnp.result_type(rest))
