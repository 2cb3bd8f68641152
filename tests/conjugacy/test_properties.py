"""At random points: the log joint, its expectation, and the natural parameters, for many programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conjugate import conditionals_of, random_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpyro.infer.util import log_density
from wider import ALL

from langevin.conjugacy.conditionals import Equations
from langevin.conjugacy.families.base import inner
from langevin.run.compilation import prepared

NUM_DRAWS, MOST_ERRORS = 200, 5
SETTINGS = settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Checked:
    """A program's equations at random points, in one compiled function.

    A q is that of every block's conditional at random values of the others; it is no optimum.
    """

    def __init__(self, case):
        self.conditionals = conditionals_of(case)
        arguments = {**(case.data or {}), **(case.constants or {})}
        self._theirs = lambda values: log_density(case.model, (), arguments, values)[0]
        self._run = prepared(self._compute, *self._arguments(0))

    def at(self, seed):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, self._run(*self._arguments(seed)))

    def _arguments(self, seed):
        values = [random_values(self.conditionals, [seed, number]) for number in range(2)]
        return *values, jax.random.PRNGKey(seed)

    def _compute(self, values, others, key):
        conditionals = self.conditionals
        blocks, equations = conditionals.blocks, conditionals.at(conditionals.joint.rows)
        statistics, elsewhere = conditionals.statistics(values), conditionals.statistics(others)
        ours = equations.log_joint(statistics)
        naturals = {block.name: equations.natural(block.name, statistics) for block in blocks}
        # F is linear in each block's statistics: a difference of any length is the derivative along it.
        slopes = [
            inner(naturals[name], jax.tree.map(jnp.subtract, elsewhere[name], own)) for name, own in statistics.items()
        ]
        differences = [equations.log_joint({**statistics, name: elsewhere[name]}) - ours for name in statistics]
        expected = {block.name: block.family.expected(naturals[block.name]) for block in blocks}

        def drawn(key):
            found = {}
            for number, block in enumerate(blocks):
                draw = block.family.sample(jax.random.fold_in(key, number), naturals[block.name])
                found |= block.from_value(draw)
            return self._theirs(found)

        draws = jax.lax.map(drawn, jax.random.split(key, NUM_DRAWS))
        return {
            "ours": ours,
            "theirs": self._theirs(values),
            "slopes": jnp.stack(slopes),
            "differences": jnp.stack(differences),
            "expected": equations.log_joint(expected),
            "draws": draws,
            "proper": jnp.stack([block.family.proper(naturals[block.name]) for block in blocks]).all(),
        }


@pytest.fixture(scope="module", params=ALL)
def checked(request):
    with jax.enable_x64(True):
        return Checked(ALL[request.param])


def assert_right(at):
    assert at["proper"]
    size = 1 + abs(at["theirs"])
    np.testing.assert_allclose(at["ours"], at["theirs"], atol=1e-8 * size)
    np.testing.assert_allclose(at["slopes"], at["differences"], rtol=1e-7, atol=1e-8 * size)
    error = at["draws"].std(ddof=1) / np.sqrt(NUM_DRAWS)
    assert abs(at["draws"].mean() - at["expected"]) < MOST_ERRORS * error + 1e-8 * size


@given(seed=st.integers(0, 2**31))
@SETTINGS
def test_equations_are_those_of_the_program(checked, seed):
    assert_right(checked.at(seed))


def wrong_sign(patch):
    own = Equations.natural
    patch.setattr(Equations, "natural", lambda self, name, t: _x(own(self, name, t), -1.0))


def forgotten_half(patch):
    own = Equations.natural
    patch.setattr(Equations, "natural", lambda self, name, t: _x(own(self, name, t), 2.0))


def _x(eta, factor):
    return {name: factor * leaf if name == "x" else leaf for name, leaf in eta.items()}


@pytest.mark.parametrize("bug", [wrong_sign, forgotten_half])
def test_wrong_equations_are_seen(bug, monkeypatch):
    with jax.enable_x64(True):
        bug(monkeypatch)
        with pytest.raises(AssertionError):
            assert_right(Checked(ALL["regression"]).at(0))
