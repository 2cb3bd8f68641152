"""One root of randomness: children that differ, counters, keys of any kind, and streams that are read from anywhere."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import langevin as lv
from langevin.run.seeds import Seed, Stream, key_of

IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]
ROOT = Seed.of(0)


def test_children_differ():
    """By their names, their number, their kind and their parents; and by the order of these."""
    names = ["noise", "starts", "", 0, 1, "0", "noise0"]
    paths = [path for length in (1, 2) for path in itertools.product(names, repeat=length)]
    roots = [Seed.of(seed) for seed in (0, 1, 2**32, -1)]
    children = {root.child(*path).words for root in roots for path in paths}
    assert len(children) == len(roots) * len(paths)
    assert not children & {root.words for root in roots}


def test_a_child_of_several_names_is_the_child_of_the_child():
    assert ROOT.child("burn-in", 2) == ROOT.child("burn-in").child(2)
    assert ROOT.child("noise") == Seed.of(0).child("noise")


def test_seeds_stay_what_they_are():
    """A run that is continued by a later version must draw the same numbers."""
    assert ROOT.child("noise").words == (3605009745, 838998597, 3607717829, 3923395244)
    assert ROOT.child("noise").generator(5).integers(2**32) == 2184445275


def test_seeds_beyond_32_bits_differ():
    seeds = (0, 1, 2**32, 2**33, -1, 2**63 - 1, -(2**63))
    assert len({Seed.of(seed).words for seed in seeds}) == len(seeds)
    assert Seed.of(np.int64(5)) == Seed.of(5)


@pytest.mark.parametrize(
    "seed", [1.0, True, None, "0", 2**63, -(2**63) - 1, np.arange(2), jax.random.split(jax.random.key(0))]
)
def test_what_is_no_seed(seed):
    with pytest.raises(lv.SettingError, match="`seed` must be a whole number of 64 bits, or one key"):
        Seed.of(seed)


def test_keys_of_every_kind_are_seeds_of_their_own():
    keys = [jax.random.key(seed, impl=impl) for impl in IMPLS for seed in (0, 1)]
    assert len({Seed.of(key).words for key in keys}) == len(keys)
    assert all(Seed.of(key) == Seed.of(jax.random.clone(key)) for key in keys)


def test_a_usual_key_is_the_number_that_it_was_made_from():
    assert Seed.of(jax.random.key(7)) == Seed.of(7)


def test_words_become_keys_whatever_the_default_is():
    words = ROOT.key_words()
    with jax.default_prng_impl("rbg"):
        key = jax.jit(key_of)(words)
    assert str(jax.random.key_impl(key)) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.key_data(key), words)
    np.testing.assert_array_equal(jax.random.key_data(ROOT.key()), words)


def test_keys_of_chains_do_not_depend_on_their_number():
    keys = ROOT.keys(20)
    assert keys.shape == (20, 2)
    assert len(np.unique(keys, axis=0)) == 20
    np.testing.assert_array_equal(ROOT.keys(5), keys[:5])


def test_generators_differ_by_their_counters():
    """And their numbers are as good as independent: no two of 40 streams are correlated more than chance allows."""
    numbers = [ROOT.child(name).generator(counter).normal(size=1000) for name in ("a", "b") for counter in range(20)]
    correlations = np.corrcoef(numbers)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < stats.norm.isf(1e-3 / len(correlations) / 2) / np.sqrt(1000)
    again = ROOT.child("a").generator(7).normal(size=1000)
    np.testing.assert_array_equal(again, numbers[7])


def make(generator, rows):
    return {"normal": generator.normal(size=(rows, 2)), "word": generator.integers(2**32, size=rows)}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 40))
def test_a_stream_has_the_same_numbers_however_it_is_cut(block, counts, start):
    """From any place, in any parts, forwards or backwards, by a stream that has read others before or none."""
    cuts = [(start + sum(counts[:i]), min(count, block)) for i, count in enumerate(counts)]
    last = max(place + count for place, count in cuts)
    blocks = [make(ROOT.generator(number), block) for number in range(-(-last // block))]
    whole = {name: np.concatenate([made[name] for made in blocks]) for name in ("normal", "word")}
    stream = Stream(ROOT, block, make)
    for place, count in [*cuts, *reversed(cuts)]:
        for reader in (stream, Stream(ROOT, block, make)):
            found = reader.read(place, count)
            for name, values in whole.items():
                np.testing.assert_array_equal(found[name], values[place : place + count])


def test_a_stream_makes_each_block_once_when_it_is_read_in_order():
    made = []
    stream = Stream(ROOT, 10, lambda generator, rows: made.append(rows) or generator.normal(size=rows))
    for place in range(0, 95, 5):
        stream.read(place, 10)
    assert len(made) == 10


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("method", ["nuts", lv.SGLD(step_size=0.01), lv.VI(num_steps=200), lv.MAP(num_steps=50)])
def test_every_method_takes_keys_of_every_kind(method, impl):
    """Also where the key's kind is JAX's default."""
    density = lv.Density(lambda m: -(m**2) / 2, lambda m, rows: -((rows["x"] - m) ** 2) / 2, init=0.0)
    batch_size = 5 if method != "nuts" else None

    def fit(seed):
        settings = {"num_chains": 2, "num_warmup": 20, "num_draws": 20, "batch_size": batch_size, "progress": False}
        return lv.fit(density, {"x": np.linspace(0, 1, 30)}, method, seed=seed, **settings).posterior["position"].values

    draws = fit(jax.random.key(0, impl=impl))
    assert np.isfinite(draws).all()
    with jax.default_prng_impl(impl):
        np.testing.assert_array_equal(fit(jax.random.key(0)), draws)
    assert (fit(jax.random.key(1, impl=impl)) != draws).any()


def test_steps_of_compiled_code_have_keys_of_their_own():
    """The words of a key go into compiled code; they are the same numbers there."""
    words = ROOT.key_words()
    inside = jax.jit(lambda words: jax.random.normal(key_of(words), (5,)))(words)
    np.testing.assert_array_equal(inside, jax.random.normal(ROOT.key(), (5,)))
    assert inside.dtype == jnp.float32
