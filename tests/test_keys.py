"""Keys of steps, and of those who count them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from langevin.keys import at_step


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_every_step_has_a_stream_of_its_own(impl):
    key = jax.random.fold_in(jax.random.key(0, impl=impl), 7)
    keys = [key, *(jax.jit(at_step)(key, jnp.uint32(step)) for step in range(1, 4))]
    bits = np.concatenate([np.asarray(jax.random.bits(one, (500,))) for one in keys])
    # Of 2,000 words, some pair is the same by chance once in 2,000 times.
    assert len(np.unique(bits)) == len(bits)
    assert all(jax.random.key_impl(one) == jax.random.key_impl(key) for one in keys)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_other_kinds_of_keys_are_not_counted_from(impl):
    """The words of these are a key and a counter, whose layout is the device's."""
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    words = jax.random.key_data(jax.vmap(lambda key: at_step(key, 5))(keys))
    expected = jax.random.key_data(jax.vmap(lambda key: jax.random.fold_in(key, 5))(keys))
    np.testing.assert_array_equal(words, expected)
