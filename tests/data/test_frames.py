"""Frames as people have them: every kind of column, in every package, is read as the same numbers or names."""

import datetime
import decimal
import fractions

import numpy as np
import pandas as pd
import polars as pl
import pytest

from langevin.data.again import table_again
from langevin.data.table import as_table
from langevin.errors import DataError, SettingError

pa = pytest.importorskip("pyarrow")

COLUMNS = {
    "name": ["UA", "AA", "UA", "B6"],
    "number": [0.5, 1.5, -2.0, 3.0],
    "code": [3, 0, 1, 2],
    "flag": [True, False, True, True],
    "exact": [decimal.Decimal("1.25"), decimal.Decimal(2), decimal.Decimal(3), decimal.Decimal(4)],
}
HOLED = {name: [*values[:2], None, values[3]] for name, values in COLUMNS.items()}
DTYPES = {"name": np.int32, "number": np.float32, "code": np.int32, "flag": np.bool_, "exact": np.float32}


def frames(columns):
    pandas = pd.DataFrame(columns)
    return {
        "dict": columns,
        "series": {name: pandas[name] for name in columns},
        "objects": pandas.astype(object),
        "nullable": pandas.convert_dtypes(),
        "arrow-backed": pandas.convert_dtypes(dtype_backend="pyarrow"),
        "polars": pl.DataFrame(columns),
        "lazy": pl.LazyFrame(columns),
        "arrow": pa.table(columns),
        "record batch": pa.RecordBatch.from_pydict(columns),
        "chunks": pa.concat_tables([pa.table(columns).slice(0, 3), pa.table(columns).slice(3)]),
    }


@pytest.mark.parametrize("kind", frames(COLUMNS))
def test_every_package_gives_the_same_table(kind):
    table = as_table(frames(COLUMNS)[kind])
    assert {name: column.dtype for name, column in table.columns.items()} == DTYPES
    assert table.levels == {"name": ("AA", "B6", "UA")}
    np.testing.assert_array_equal(table.columns["name"], [2, 0, 2, 1])
    for name in ("number", "code", "flag", "exact"):
        np.testing.assert_array_equal(table.columns[name], np.array(COLUMNS[name], DTYPES[name]))
    assert (table.kept, table.left_out) == (None, "")


@pytest.mark.parametrize("kind", frames(HOLED))
def test_missing_values_are_counted_by_column(kind):
    listed = ", ".join(rf"'{name}' in 1 \(row 2\)" for name in HOLED)
    with pytest.raises(DataError, match=rf"^`data` lacks values, of 4 rows: {listed}\. .*missing='drop'.*'unknown'"):
        as_table(frames(HOLED)[kind])


@pytest.mark.parametrize("kind", frames(HOLED))
def test_rows_that_lack_a_value_are_left_out(kind):
    table = as_table(frames(HOLED)[kind], missing="drop")
    # pandas itself makes floating-point numbers of integers among which one is missing.
    by_pandas = {"code": np.float32} if kind in ("series", "objects") else {}
    assert {name: column.dtype for name, column in table.columns.items()} == DTYPES | by_pandas
    assert table.levels == {"name": ("AA", "B6", "UA")}
    np.testing.assert_array_equal(table.kept, [0, 1, 3])
    np.testing.assert_array_equal(table.columns["exact"], [1.25, 2, 4])
    np.testing.assert_array_equal(table.columns["name"], [2, 0, 1])
    assert table.left_out.startswith("1 of 4 rows lack values and were left out: 'name' in 1, 'number' in 1")


@pytest.mark.parametrize("kind", frames(HOLED))
def test_missing_numbers_are_kept_where_asked_for(kind):
    table = as_table(frames(HOLED)[kind], missing="keep", wanted=frozenset(["number", "code", "flag", "exact"]))
    for name, column in table.columns.items():
        np.testing.assert_array_equal(np.isnan(column), [False, False, True, False], err_msg=name)
        assert list(table.lacking[name]) == [2]
    with pytest.raises(DataError, match=r"'name' in 1 \(row 2\)\. .*fillna\('unknown'\), for 'name'\)\.$"):
        as_table(frames(HOLED)[kind], missing="keep")


def test_a_column_may_lack_values_while_others_may_not():
    data = {"x": [1.0, np.nan, 3.0], "y": [1.0, 2.0, np.nan]}
    with pytest.raises(DataError, match=r"of 3 rows: 'y' in 1 \(row 2\)\. "):
        as_table(data, may_lack=frozenset("x"))
    table = as_table(data, missing="drop", may_lack=frozenset("x"))
    np.testing.assert_array_equal(table.columns["x"], np.array([1.0, np.nan], np.float32))
    assert list(table.lacking["x"]) == [1]
    # A column of that name is an indicator of the user's own, and says nothing of langevin.
    with pytest.raises(DataError, match=r"'x' in 1 \(row 1\)"):
        as_table(data | {"x_missing": [0, 1, 0]}, may_lack=frozenset("x"))


def test_every_row_lacks_something():
    with pytest.raises(DataError, match=r"of its 2 rows none has all values; missing are 'x' in 1 .*, 'y' in 1"):
        as_table({"x": [None, 1.0], "y": [1.0, None]}, missing="drop")


def test_vectors_that_lack_an_element():
    data = {"x": [[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]], "k": np.ma.array([1, 2, 3], mask=[True, False, False])}
    with pytest.raises(DataError, match=r"'x' in 1 \(row 1\), 'k' in 1 \(row 0\)"):
        as_table(data)
    np.testing.assert_array_equal(as_table(data, missing="drop").columns["x"], [[4.0, 5.0]])
    np.testing.assert_array_equal(as_table(data, missing="keep").columns["k"], np.array([np.nan, 2, 3], np.float32))


def test_a_policy_that_there_is_not():
    with pytest.raises(SettingError, match="`missing` must be one of 'error', 'drop', 'keep'; got 'ignore'"):
        as_table({"x": [1.0]}, missing="ignore")


SIZES = ["small", "large", "medium"]


@pytest.mark.parametrize(
    ("column", "levels"),
    [
        (pd.Categorical(["medium", "small", None], SIZES), SIZES),
        (pd.Series(["medium", "small", None], dtype=pd.CategoricalDtype(SIZES, ordered=True)), SIZES),
        (pl.Series(["medium", "small", None], dtype=pl.Enum(SIZES)), SIZES),
        (pa.DictionaryArray.from_arrays(pa.array([2, 0, None]), pa.array(SIZES)), SIZES),
        (pd.Series(pd.Categorical([30, 10, None], [10, 20, 30])), [10, 20, 30]),
        (pd.cut(pd.Series([2.5, 0.5, np.nan]), [0, 1, 2, 3]), ["(0, 1]", "(1, 2]", "(2, 3]"]),
    ],
    ids=["categorical", "ordered", "enum", "dictionary", "numbers", "intervals"],
)
def test_categories_keep_their_order_and_those_that_no_row_has(column, levels):
    table = as_table({"size": column}, missing="drop")
    assert table.levels == {"size": tuple(levels)}
    assert table.columns["size"].dtype == np.int32
    np.testing.assert_array_equal(table.columns["size"], [2, 0])


def test_chunks_with_dictionaries_of_their_own():
    chunks = pa.chunked_array([pa.array(["b", "a"]).dictionary_encode(), pa.array(["c", "b"]).dictionary_encode()])
    table = as_table({"x": chunks})
    assert [table.levels["x"][code] for code in table.columns["x"]] == ["b", "a", "c", "b"]


def test_names_of_polars_are_in_alphabetical_order():
    pl.Series(["z", "y"], dtype=pl.Categorical)  # the process has met these first
    table = as_table({"x": pl.Series(["z", "a", "y"], dtype=pl.Categorical)})
    assert table.levels == {"x": ("a", "y", "z")}
    np.testing.assert_array_equal(table.columns["x"], [2, 0, 1])


def test_levels_that_only_dropped_rows_have_are_dropped():
    data = {"dest": ["LGA", "BOS", "ATL"], "delay": [None, 1.0, 2.0]}
    table = as_table(data, missing="drop")
    assert table.levels == {"dest": ("ATL", "BOS")}
    np.testing.assert_array_equal(table.columns["dest"], [1, 0])


@pytest.mark.parametrize("values", [["1", "2"], np.array(["1", "2"]), pl.Series(["1", "2"]), pa.array(["1", "2"])])
def test_numbers_as_text(values):
    with pytest.raises(DataError, match=r"`data\['x'\]` holds numbers as text, such as '1'"):
        as_table({"x": values})
    assert as_table({"x": pd.Categorical(np.asarray(values))}).levels == {"x": ("1", "2")}


def test_names_that_look_like_numbers():
    assert as_table({"zip": ["02138", "10001"]}).levels == {"zip": ("02138", "10001")}
    assert as_table({"bus": ["1", "M15"]}).levels == {"bus": ("1", "M15")}
    assert as_table({"x": ["?", "NA"]}).levels == {"x": ("?", "NA")}


DAYS = [datetime.date(2013, 1, 1), datetime.date(2013, 1, 2)]
HOURS = [datetime.datetime(2013, 1, 1, 5), datetime.datetime(2013, 1, 1, 6)]


@pytest.mark.parametrize(
    "column",
    [
        DAYS,
        HOURS,
        [HOURS[1] - HOURS[0]] * 2,
        pd.Series(HOURS),
        pd.Series(HOURS).dt.tz_localize("UTC"),
        pd.Series(DAYS, dtype=object),
        pd.Series(HOURS).dt.to_period("h"),
        pd.Series(HOURS, dtype="timestamp[ns][pyarrow]"),
        pl.Series(DAYS),
        pl.Series(HOURS),
        pa.array(DAYS),
        np.array(HOURS, "datetime64[s]"),
    ],
)
def test_times_are_refused_with_what_to_do(column):
    with pytest.raises(DataError, match=r"`data\['when'\]` holds .*, times and not numbers\. Count from .* instance"):
        as_table({"when": column, "x": [1.0, 2.0]})


def test_only_what_is_wanted_is_read():
    class Untouchable:
        def __array__(self, *args, **kwargs):
            raise AssertionError("read")

    frame = pd.DataFrame({"x": [1.0, 2.0], "when": HOURS, "odd": [object(), object()], "gone": [np.nan, np.nan]})
    frame = pd.concat([frame, frame[["odd"]]], axis=1)
    for data in (frame, {"x": [1.0, 2.0], "odd": Untouchable(), "one": 3.0, "ragged": [[1], [1, 2]]}):
        table = as_table(data, wanted=frozenset(["x", "y"]))
        assert list(table.columns) == ["x"]
        assert "odd" in table.left
    lazy = pl.LazyFrame({"x": [1.0, 2.0], "z": ["a", "b"]}).with_columns(bad=pl.col("z").cast(pl.Int64))
    assert list(as_table(lazy, wanted=frozenset("x")).columns) == ["x"]
    with pytest.raises(pl.exceptions.InvalidOperationError):
        as_table(lazy, wanted=frozenset(["bad"]))


def test_a_frame_of_which_all_is_wanted_leaves_out_what_can_be_no_numbers():
    frame = pd.DataFrame({"x": [1.0, 2.0], "when": HOURS, "odd": [object(), object()], "name": ["a", "b"]})
    table = as_table(frame)
    assert (list(table.columns), table.left) == (["x", "name"], ("when", "odd"))
    with pytest.raises(DataError, match="'when'"):
        as_table(dict(frame))


def test_an_index_is_a_column_where_it_is_asked_for():
    frame = pd.DataFrame({"carrier": ["UA", "AA"], "x": [1.0, 2.0]}).set_index("carrier")
    assert as_table(frame, wanted=frozenset(["x", "carrier"])).levels == {"carrier": ("AA", "UA")}
    assert list(as_table(frame).columns) == ["x"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([fractions.Fraction(1, 2), 1], [0.5, 1.0]),
        ([True, 2], [1, 2]),
        (np.array([b"a", b"b"]), [0, 1]),
        (pd.Series([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]]),
        (pl.Series([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]]),
        (pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2)), [[1, 2], [3, 4]]),
        (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)), [[1, 2], [3, 4]]),
        (pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.0]}), [[1, 2], [3, 4]]),
        (pl.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.0]}), [[1, 2], [3, 4]]),
        (pd.Series(pd.arrays.SparseArray([0.0, 1.0])), [0, 1]),
        (pa.array([1.5, 2.5], pa.float16()), [1.5, 2.5]),
        (np.array([["b", "a"], ["a", "c"]]), [[1, 0], [0, 2]]),
    ],
    ids=[
        "fractions",
        "booleans and numbers",
        "bytes",
        "lists",
        "polars lists",
        "polars arrays",
        "arrow lists",
        "block",
        "polars block",
        "sparse",
        "halves",
        "a block of names",
    ],
)
def test_odd_columns(column, expected):
    np.testing.assert_array_equal(as_table({"x": column}).columns["x"], expected)


def test_lists_that_lack_a_row():
    data = {"x": pd.Series([[1.0, 2.0], None, [3.0, 4.0]])}
    with pytest.raises(DataError, match=r"'x' in 1 \(row 1\)"):
        as_table(data)
    np.testing.assert_array_equal(as_table(data, missing="drop").columns["x"], [[1, 2], [3, 4]])


def test_what_speaks_arrow():
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)

    assert as_table(Stream()).levels == {"name": ("AA", "B6", "UA")}


LEVELS = {"carrier": ["AA", "B6", "UA"]}


@pytest.mark.parametrize(
    "column",
    [
        ["UA", "AA"],
        pd.Categorical(["UA", "AA"], ["ZZ", "UA", "AA"]),
        pl.Series(["UA", "AA"], dtype=pl.Enum(["UA", "AA"])),
        pa.array(["UA", "AA"]).dictionary_encode(),
    ],
)
def test_names_have_the_codes_of_the_fit(column):
    table, new = table_again({"carrier": column, "x": [1.0, 2.0]}, LEVELS)
    np.testing.assert_array_equal(table.columns["carrier"], [2, 0])
    assert new == {}
    assert table.levels == {"carrier": ("AA", "B6", "UA")}


def test_numbers_that_were_names_in_the_fit():
    table, _ = table_again({"k": [30, 10]}, {"k": [10, 20, 30]})
    np.testing.assert_array_equal(table.columns["k"], [2, 0])
    with pytest.raises(
        DataError, match=r"`data\['k'\]` has a level that the fit did not see: 40\. It saw 10, 20, 30\."
    ):
        table_again({"k": [30, 40]}, {"k": [10, 20, 30]})


def test_names_that_were_numbers_in_the_fit():
    with pytest.raises(DataError, match=r"`data\['x'\]` holds names, such as 'a'; the fit was made with numbers there"):
        table_again({"x": ["a", "b"]}, LEVELS)


def test_levels_that_the_fit_did_not_see():
    data = {"carrier": ["UA", "YX", "9E", "YX", "AA"], "x": np.zeros(5)}
    with pytest.raises(
        DataError, match=r"`data\['carrier'\]` has levels that the fit did not see: '9E', 'YX'\. .*draw"
    ):
        table_again(data, LEVELS)
    table, new = table_again(data, LEVELS, unseen="draw")
    np.testing.assert_array_equal(table.columns["carrier"], [2, 4, 3, 4, 0])
    assert new == {"carrier": 2}
    many = {"carrier": [f"{i:02}" for i in range(9)]}
    with pytest.raises(DataError, match=r"'00', '01', '02', '03', '04' and 4 more\. It saw 'AA', 'B6', 'UA'"):
        table_again(many, LEVELS)


def test_levels_of_rows_that_lack_a_name():
    with pytest.raises(DataError, match=r"lacks values, of 2 rows: 'carrier' in 1 \(row 1\)"):
        table_again({"carrier": ["UA", None]}, LEVELS)
    table, _ = table_again({"carrier": ["UA", None]}, LEVELS, missing="drop")
    assert (table.columns["carrier"].tolist(), table.levels["carrier"]) == ([2], ("AA", "B6", "UA"))


def test_groups_beyond_those_that_the_fit_saw():
    data = {"group": [0, 9, 2, 7, 9], "x": np.zeros(5)}
    with pytest.raises(DataError, match=r"`data\['group'\]` has groups that the fit did not see: 7, 9\. It saw 0 to 2"):
        table_again(data, {}, counts={"num_group": 3})
    table, new = table_again(data, {}, counts={"num_group": 3, "num_other": 2}, unseen="draw")
    np.testing.assert_array_equal(table.columns["group"], [0, 4, 2, 3, 4])
    assert new == {"group": 2}
    assert table_again({"group": [2, 0]}, {}, counts={"num_group": 3})[1] == {}
    with pytest.raises(DataError, match="did not see: -1"):
        table_again({"group": [-1, 0]}, {}, counts={"num_group": 3}, unseen="draw")
