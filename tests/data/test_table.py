"""Data of many kinds, turned into named arrays."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from langevin.data.table import as_arrays, as_table
from langevin.errors import DataError, LangevinWarning

COLUMNS = {"x": [0.5, 1.5, -2.0], "k": [1, 2, 3], "b": [True, False, True]}


@pytest.mark.parametrize(
    "data",
    [
        COLUMNS,
        {name: np.array(column) for name, column in COLUMNS.items()},
        {name: jnp.array(column) for name, column in COLUMNS.items()},
        {name: tuple(column) for name, column in COLUMNS.items()},
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, index=[7, 3, 5]),
        pl.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS).to_xarray()[["x", "k", "b"]],
    ],
    ids=["lists", "numpy", "jax", "tuples", "pandas", "indexed pandas", "polars", "xarray"],
)
def test_every_source_gives_the_same_table(data):
    columns, num_rows, *_ = as_table(data)
    assert num_rows == 3
    assert list(columns) == ["x", "k", "b"]
    assert [column.dtype for column in columns.values()] == [np.float32, np.int32, np.bool_]
    for name, column in columns.items():
        np.testing.assert_array_equal(column, np.array(COLUMNS[name], column.dtype))


def test_pyarrow_tables():
    pyarrow = pytest.importorskip("pyarrow")
    columns, num_rows, *_ = as_table(pyarrow.table(COLUMNS))
    assert num_rows == 3
    np.testing.assert_array_equal(columns["k"], [1, 2, 3])


def test_no_data():
    assert as_table(None)[:2] == ({}, 0)


def test_higher_axes_are_kept():
    columns, num_rows, *_ = as_table({"x": np.zeros((4, 2, 3)), "y": np.zeros(4)})
    assert num_rows == 4
    assert columns["x"].shape == (4, 2, 3)


@settings(max_examples=50, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from(
            [np.float32, np.float64, np.float16, np.int8, np.int32, np.int64, np.uint8, np.uint64, np.bool_]
        ),
        arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements=st.integers(0, 1),
    )
)
def test_numbers_keep_their_value_in_jax_precision(array):
    column = as_table({"x": array}).columns["x"]
    assert column.dtype == jnp.asarray(array).dtype
    np.testing.assert_array_equal(column, array)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(1, 20), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_is_named_by_column_and_row(data, num_rows, bad):
    rows = data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1))
    values = np.zeros((num_rows, 2))
    values[sorted(rows), 1] = bad
    culprit = rf"`data\['broken'\]` has {bad} at row {min(rows)} \({len(rows)} such row"
    if np.isnan(bad):
        first = "first in row" if len(rows) > 1 else "row"
        culprit = rf"`data` lacks values, of {num_rows} rows: 'broken' in {len(rows)} \({first} {min(rows)}\)\. "
    with pytest.raises(DataError, match=culprit):
        as_table({"fine": np.zeros(num_rows), "broken": values})


@pytest.mark.parametrize(
    ("values", "culprit"),
    [
        (["a", 1.0], "holds float and str, which are neither all numbers nor all names.*pd.to_numeric"),
        ([object(), 1.0], "holds float and object"),
        ([1j, 2j], "holds complex128, neither numbers nor names"),
        ([2**70, 1], "integers that do not fit in 64 bits"),
        (["1.5", "2"], r"holds numbers as text, such as '1\.5'\. .*pd\.to_numeric.*pd\.Categorical"),
        (["NA", "-2e3"], r"holds numbers as text, such as '-2e3' \(and 'NA' where there is none\)"),
        (["1,5", "1,000.5"], "holds numbers as text"),
        (np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), r"holds datetime64.*t - t\.min\(\)"),
        (scipy.sparse.csr_matrix(np.eye(2)), r"sparse matrix.*toarray\(\)"),
        (scipy.sparse.coo_array(np.eye(2)), r"sparse matrix.*toarray\(\)"),
        ([[1.0], [1.0, 2.0]], "not a regular array"),
        (3.0, "single value.*`constants`"),
        (np.float32(3.0), "single value"),
        ([1e300, 0.0], r"has 1e\+300 at row 0, which does not fit in float32.*jax_enable_x64"),
        ([0, 2**31], "integers that do not fit in int32.*jax_enable_x64"),
        ([0, -(2**31) - 1], "integers that do not fit in int32"),
        (np.array([0, 2**32], np.uint64), "integers that do not fit in uint32"),
    ],
)
def test_bad_columns_are_named(values, culprit):
    with pytest.raises(DataError, match=rf"`data\['broken'\]`.*{culprit}"):
        as_table({"fine": [1.0, 2.0], "broken": values})


def test_integers_at_the_limits_fit():
    limits = [-(2**31), 2**31 - 1]
    np.testing.assert_array_equal(as_table({"x": limits}).columns["x"], limits)


def test_64_bits_are_kept_where_enabled():
    with jax.enable_x64(True):
        columns = as_table({"x": [1e300, 0.1], "k": [2**40, 1]}).columns
    assert columns["x"].dtype == np.float64
    assert columns["k"].dtype == np.int64
    assert columns["x"][0] == 1e300


def test_masked_array_with_nothing_masked():
    column = as_table({"x": np.ma.array([1.0, 2.0], mask=False)}).columns["x"]
    np.testing.assert_array_equal(column, [1.0, 2.0])


@pytest.mark.parametrize(
    ("frame", "culprit"),
    [
        (pd.DataFrame({"x": [1.0, None]}), r"lacks values, of 2 rows: 'x' in 1 \(row 1\)"),
        (pd.DataFrame({"x": pd.array([1, None], dtype="Int64")}), r"lacks values, of 2 rows: 'x' in 1 \(row 1\)"),
        (pl.DataFrame({"x": [1, None]}), r"lacks values, of 2 rows: 'x' in 1 \(row 1\)"),
        (pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]), "two columns named 'x'"),
        (pd.DataFrame({"x": []}), "`data` is empty: 'x'"),
        (pd.DataFrame(), "`data` has no columns"),
    ],
    ids=["nan", "NA", "polars null", "twice", "no rows", "no columns"],
)
def test_bad_frames(frame, culprit):
    with pytest.raises(DataError, match=culprit):
        as_table(frame)


def test_column_names_become_text():
    assert set(as_table(pd.DataFrame(np.zeros((2, 2)))).columns) == {"0", "1"}
    with pytest.raises(DataError, match="two columns named '0'"):
        as_table({0: [1.0], "0": [2.0]})


def test_different_numbers_of_rows():
    with pytest.raises(DataError, match=r"'x' has 3, 'y' has 2.*`constants`"):
        as_table({"x": np.zeros(3), "y": np.zeros(2)})


@pytest.mark.parametrize("data", [{"x": []}, {"x": np.zeros((0, 3)), "y": np.zeros(0)}])
def test_no_rows(data):
    with pytest.raises(DataError, match="`data` is empty: 'x'"):
        as_table(data)


@pytest.mark.parametrize("data", [np.zeros(3), [1.0, 2.0], "file.csv", 3, pd.Series([1.0])])
def test_what_has_no_names_is_refused(data):
    with pytest.raises(DataError, match=f"dict of arrays or a frame; got {type(data).__name__}"):
        as_table(data)


def test_no_fit_inside_a_compiled_function():
    with pytest.raises(DataError, match=r"`data\['y'\]` has no values yet.*jax\.jit"):
        jax.jit(lambda y: as_table({"y": y}).columns["y"])(np.zeros(3))


@pytest.mark.parametrize("values", [[1, 2, 3], [1, 2.5, np.float32(3)], [True, False, True]])
def test_objects_that_are_numbers(values):
    column = as_table(pd.DataFrame({"x": pd.Series(values, dtype=object)})).columns["x"]
    assert column.dtype == as_table({"x": values}).columns["x"].dtype
    np.testing.assert_array_equal(column, values)


SECONDS = np.arange(1000.0)


@pytest.mark.parametrize(
    "values",
    [
        1.7e9 + SECONDS,
        (1.7e9 + SECONDS).astype(int),
        np.stack([SECONDS, 1.7e9 + SECONDS], axis=1),
        1e6 + 1e-4 * SECONDS,
        # What is lost in another package is lost all the same.
        (1.7e9 + SECONDS).astype(np.float32),
    ],
    ids=["seconds", "integers", "one of two", "small", "lost before"],
)
def test_numbers_that_lose_their_resolution_are_named(values):
    with pytest.warns(LangevinWarning, match=r"`data\['t'\]` loses its resolution.*Subtract an offset"):
        as_table({"t": values})
    with jax.enable_x64(True):
        as_table({"t": values})


@pytest.mark.parametrize(
    "values",
    [
        SECONDS,
        1.7e9 + 1e5 * SECONDS,
        1e30 * SECONDS,
        1e-30 * SECONDS,
        np.full(9, 0.1),
        np.arange(9) / 3 * 3 / 7,
        [2**30],
    ],
)
def test_numbers_that_keep_their_resolution(values):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        as_table({"t": values})
    assert not seen


def test_no_columns():
    with pytest.raises(DataError, match="no columns"):
        as_table({})


def test_copies_are_independent():
    x = np.zeros(4096, np.float32)
    copied = as_arrays(as_table({"x": x}), copy=True)["x"]
    x[:] = 1.0
    assert float(copied.max()) == 0.0
