"""Minibatches: exact sizes, every row equally likely, one compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langevin.data.batches import LEAST_SLICES, Batches, Layout
from langevin.errors import SettingError
from langevin.run.seeds import Seed

KEY = jax.random.key(0)


def laid_out(batches, num_data, seed=0):
    """Rows numbered by their place in the layout, so that a minibatch shows where it came from."""
    return {"row": batches.lay_out({"row": np.arange(num_data)}, num_data, seed)["row"]}


def take_many(batches, num_data, num_steps, key=KEY, first=0):
    data = laid_out(batches, num_data)

    @jax.jit
    def run(data, key):
        steps = jnp.arange(first, first + num_steps)
        return jax.vmap(lambda step: batches.take(data, num_data, key, step)["row"])(steps)

    return np.asarray(run(data, key))


SIZES = st.integers(1, 12).flatmap(lambda num_data: st.tuples(st.just(num_data), st.integers(1, num_data)))


@settings(max_examples=15, deadline=None)
@given(SIZES)
def test_layout_holds_every_row_once_and_then_the_first_again(sizes):
    num_data, size = sizes
    rows = np.asarray(laid_out(Batches(size), num_data)["row"])
    assert len(rows) == num_data + size
    assert sorted(rows[:num_data]) == list(range(num_data))
    np.testing.assert_array_equal(rows[num_data:], rows[:size])


def test_layout_follows_the_seed():
    batches = Batches(3)
    first, again, other = (np.asarray(laid_out(batches, 50, seed)["row"]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_columns_stay_together():
    batches = Batches(3, "rows")
    columns = {"x": np.arange(20.0), "y": 10 * np.arange(20), "z": np.arange(40).reshape(20, 2)}
    data = batches.lay_out(columns, 20, 0)
    for order in ("rows", "slices", "sweep"):
        batch = Batches(3, order).take(data, 20, KEY, 5)
        np.testing.assert_array_equal(batch["y"], 10 * batch["x"])
        np.testing.assert_array_equal(batch["z"][:, 0], 2 * batch["x"])


@pytest.mark.parametrize(("num_data", "size"), [(1, 1), (10, 10), (10, 1), (10, 5), (10, 3), (11, 4), (7, 6)])
def test_a_sweep_sees_every_row_in_every_epoch(num_data, size):
    batches = Batches(size, "sweep")
    epoch = batches.num_slices(num_data)
    assert epoch == -(-num_data // size)
    rows = take_many(batches, num_data, 8 * epoch).reshape(8, epoch * size)
    for seen in rows:
        counts = np.bincount(seen, minlength=num_data)
        assert counts.min() == 1
        assert counts.max() <= 2
        assert counts.sum() - num_data == epoch * size - num_data


@pytest.mark.parametrize("order", ["sweep", "slices"])
def test_slices_never_repeat_a_row(order):
    for num_data, size in ((10, 3), (10, 10), (9, 8)):
        for rows in take_many(Batches(size, order), num_data, 40):
            assert len(set(rows)) == size


@pytest.mark.parametrize("order", ["sweep", "slices", "rows"])
@pytest.mark.parametrize(("num_data", "size"), [(10, 3), (24, 8)])
def test_every_row_is_equally_likely(order, num_data, size):
    """The first row of each independent minibatch (one an epoch) is uniform, and so is its last."""
    batches = Batches(size, order)
    stride = batches.num_slices(num_data) if order == "sweep" else 1
    num_batches = 4000
    rows = take_many(batches, num_data, num_batches * stride).reshape(num_batches, stride, size)
    for place in (rows[:, 0, 0], rows[:, -1, -1]):
        counts = np.bincount(place, minlength=num_data)
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("order", ["slices", "rows"])
def test_minibatches_are_independent_between_steps(order):
    """The joint distribution of successive places is that of independent ones."""
    num_data = 8
    starts = take_many(Batches(2, order), num_data, 12_801)[:, 0]
    table = np.zeros((num_data, num_data))
    np.add.at(table, (starts[:-1], starts[1:]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3
    assert stats.chisquare(table.ravel()).pvalue > 1e-3


def test_offsets_of_successive_epochs_are_independent():
    starts = take_many(Batches(4, "sweep"), 8, 12_802)[::2, 0]
    table = np.zeros((8, 8))
    np.add.at(table, (starts[:-1], starts[1:]), 1)
    assert stats.chisquare(table.ravel()).pvalue > 1e-3


def test_rows_are_drawn_with_replacement():
    rows = take_many(Batches(10, "rows"), 10, 200)
    assert any(len(set(batch)) < 10 for batch in rows)
    distinct = np.mean([len(set(batch)) for batch in rows])
    np.testing.assert_allclose(distinct, 10 * (1 - 0.9**10), atol=0.3)
    assert rows.max() < 10


@pytest.mark.parametrize("order", ["sweep", "slices", "rows"])
def test_same_key_same_batches_and_other_keys_others(order):
    batches = Batches(5, order)
    first, again, other = (take_many(batches, 1000, 50, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first[:, 0] == other[:, 0]) < 0.1


def test_a_step_does_not_depend_on_the_steps_before():
    batches = Batches(3, "sweep")
    np.testing.assert_array_equal(take_many(batches, 10, 20)[7:], take_many(batches, 10, 13, first=7))


def test_chains_get_their_own_minibatches():
    batches = Batches(4, "sweep")
    data = laid_out(batches, 1000)
    keys = jax.random.split(KEY, 8)
    rows = jax.vmap(lambda key: batches.take(data, 1000, key, 0)["row"])(keys)
    assert rows.shape == (8, 4)
    assert len({tuple(row) for row in np.asarray(rows).tolist()}) == 8


@pytest.mark.parametrize(("num_data", "size"), [(10, 3), (10, 5), (7, 7), (11, 2)])
def test_estimates_are_unbiased(num_data, size):
    """Over all places where a slice may start, its scaled sums average to the sum of all rows, exactly."""
    data = laid_out(Batches(size), num_data)
    values = np.random.default_rng(1).integers(-50, 50, num_data)
    starts = {int(rows[0]): rows for rows in take_many(Batches(size, "slices"), num_data, 400)}
    assert sorted(starts) == list(range(num_data))
    total = sum(values[rows].sum() for rows in starts.values())
    assert total * num_data == values.sum() * size * len(starts)
    order = np.asarray(data["row"])
    for place in range(num_data):
        np.testing.assert_array_equal(starts[int(order[place])], order[place : place + size])


@pytest.mark.parametrize("order", ["sweep", "slices", "rows"])
def test_one_compilation_serves_all_steps(order):
    batches, traces = Batches(3, order), []
    data = laid_out(batches, 10)

    @jax.jit
    def take(key, step):
        traces.append(step)
        return batches.take(data, 10, key, step)["row"]

    rows = [take(jax.random.fold_in(KEY, step % 2), step) for step in range(12)]
    assert len(traces) == 1
    assert {row.shape for row in rows} == {(3,)}


def test_late_steps_do_not_overflow():
    batches = Batches(1000, "sweep")
    num_data = 1_000_000
    data = {"row": jnp.arange(num_data + 1000, dtype=jnp.int32)}
    for step in (2**31 - 1, 2**31 - 2):
        rows = np.asarray(batches.take(data, num_data, KEY, jnp.asarray(step, jnp.int32))["row"])
        np.testing.assert_array_equal(np.diff(rows), 1)
        assert 0 <= rows[0] < num_data


def test_what_is_laid_out_can_be_laid_out_anew():
    batches = Batches(3)
    before = laid_out(batches, 40)
    after = np.asarray(batches.lay_out({"row": np.asarray(before["row"])}, 40, 1)["row"])
    assert sorted(after[:40]) == list(range(40))
    np.testing.assert_array_equal(after[40:], after[:3])
    assert not np.array_equal(after, before["row"])


@pytest.mark.parametrize(("num_data", "size"), [(40, 3), (3000, 7)])
@pytest.mark.parametrize("order", ["sweep", "slices"])
def test_rows_get_another_order_after_every_period(num_data, size, order):
    """A function of the step alone: also of a layout that begins there, or goes back."""
    batches, data = Batches(size, order), {"row": np.arange(num_data)}
    period = batches.reshuffle_period(num_data)
    layout, seen = Layout(batches, data, Seed.of(0)), {}
    for step in (0, 1, period - 1, period, 2 * period + 5, 7 * period - 1, period + 3, 0):
        rows, left = layout.at(step)
        assert left == period - step % period
        assert sorted(np.asarray(rows["row"])[:num_data]) == list(range(num_data))
        np.testing.assert_array_equal(rows["row"], seen.setdefault(step // period, rows["row"]))
        np.testing.assert_array_equal(rows["row"], Layout(batches, data, Seed.of(0)).at(step)[0]["row"])
    assert len({tuple(np.asarray(rows).tolist()) for rows in seen.values()}) == len(seen) == 4
    assert not np.array_equal(Layout(batches, data, Seed.of(1)).at(0)[0]["row"], seen[0])


def test_scattered_rows_keep_their_order():
    layout = Layout(Batches(3, "rows"), {"row": np.arange(40)}, Seed.of(0))
    (first, left), (later, still_left) = layout.at(0), layout.at(10**6)
    np.testing.assert_array_equal(first["row"], later["row"])
    assert min(left, still_left) >= 2**30


def test_automatic_order():
    assert Batches(10).resolved(100, independent=False).order == "sweep"
    assert Batches(10).resolved(10 * LEAST_SLICES, independent=True).order == "slices"
    assert Batches(10).resolved(10 * LEAST_SLICES - 10, independent=True).order == "rows"
    assert Batches(10, "rows").resolved(100, independent=False).order == "rows"


@pytest.mark.parametrize("size", [0, -1, 1.0, 2.5, "10", None, True, np.nan])
def test_bad_sizes(size):
    with pytest.raises(SettingError, match=r"`batch_size` must be a whole number.*got"):
        Batches(size)


def test_numpy_sizes_become_python_numbers():
    assert type(Batches(np.int64(4)).size) is int


def test_bad_order():
    with pytest.raises(SettingError, match=r"`order` must be one of .*'sweep'.*got 'shuffled'"):
        Batches(3, "shuffled")


def test_a_sweep_is_refused_where_minibatches_must_be_independent():
    with pytest.raises(SettingError, match="order='sweep'"):
        Batches(3, "sweep").resolved(100, independent=True)


def test_size_against_data():
    Batches(5).check(5)
    with pytest.raises(SettingError, match=r"`batch_size` is 6, but the data has 5 rows"):
        Batches(6).check(5)
    with pytest.raises(SettingError, match=r"`batch_size=6` needs rows"):
        Batches(6).check(0)
