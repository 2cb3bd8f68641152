"""Rows that are read in pieces."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.data.batches import Batches
from langevin.data.pieces import LayoutOfPieces
from langevin.run.seeds import Seed

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def piece(number):
    return {"y": np.random.default_rng(number).normal(3, 2, 500).astype(np.float32)}


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    precision = numpyro.sample("precision", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, precision**-0.5), obs=y)


def test_every_row_comes_once_in_a_pass_over_the_pieces():
    pieces = lv.Pieces(lambda number: {"y": np.arange(6.0) + 10 * number}, [6, 6, 6])
    layout = LayoutOfPieces(Batches(2, "sweep"), pieces, pieces.columns(0), Seed.of(1))
    seen = [layout.at(3 * number)[0]["y"][:6] for number in range(3)]
    assert sorted(np.concatenate(seen)) == sorted(np.concatenate([pieces.columns(i)["y"] for i in range(3)]))
    assert layout.at(4)[1] == 2
    again = LayoutOfPieces(Batches(2, "sweep"), pieces, pieces.columns(0), Seed.of(1))
    np.testing.assert_array_equal(again.at(5)[0]["y"], layout.at(5)[0]["y"])


@pytest.mark.parametrize("sizes", [[7, 7, 3], [2, 9, 1, 4], [50, 1]])
def test_pieces_of_unequal_sizes_are_used_to_their_last_rows(sizes):
    begins = np.cumsum([0, *sizes])
    pieces = lv.Pieces(lambda number: {"y": begins[number] + np.arange(float(sizes[number]))}, sizes)
    layout = LayoutOfPieces(Batches(2, "sweep"), pieces, pieces.columns(0), Seed.of(1))
    blocks = layout.num_steps // (-(-layout.num_rows // 2))
    assert layout.num_rows <= max(sizes)
    for passed in range(3):
        steps = passed * layout.num_steps + layout.num_steps // blocks * np.arange(blocks)
        seen = np.concatenate([layout.at(int(step))[0]["y"][: layout.num_rows] for step in steps])
        assert len(set(seen)) == len(seen) > sum(sizes) - blocks


def grouped(y, group, num_group):
    precision = numpyro.sample("precision", dist.Gamma(1.0, 1.0))
    with numpyro.plate("groups", num_group):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean[group], precision**-0.5), obs=y)


def named(number, num_rows=400):
    """The names of the last piece come in another order, and some are missing there."""
    names = np.array(["c", "a"] if number == 3 else ["a", "b", "c"])
    group = names[np.random.default_rng([1, number]).integers(len(names), size=num_rows)]
    means = {"a": -2.0, "b": 0.0, "c": 3.0}
    return {"group": group, "y": np.array([means[name] for name in group]) + piece(number)["y"][:num_rows] - 3}


def test_names_have_the_same_codes_in_every_piece():
    fit = lv.fit(grouped, lv.Pieces(named, [400] * 4), "cavi", batch_size=100, progress=False)
    assert list(fit.levels["group"]) == ["a", "b", "c"]
    np.testing.assert_allclose(fit.posterior["mean"].values.mean((0, 1)), [-2, 0, 3], atol=0.4)


def with_counts(y, group):
    with numpyro.plate("groups", 3):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate[group]), obs=y)


def counted(change):
    def read(number):
        columns = {"y": np.full(50, 2), "group": np.arange(50) % 3}
        return columns | (change if number == 1 else {})

    return lv.Pieces(read, [50, 50])


@pytest.mark.parametrize(
    ("model", "pieces", "said"),
    [
        (grouped, lambda n: named(n) | ({"group": np.full(400, "d")} if n else {}), "Piece 1: .*'d'"),
        (grouped, lambda n: named(n) | ({"y": np.full(400, np.nan)} if n else {}), "Piece 1: .*'y'"),
        (with_counts, {"group": np.full(50, 3)}, "Piece 1: .*'group'"),
        (with_counts, {"y": np.full(50, -1)}, "Piece 1: .*'y'"),
    ],
    ids=["name", "missing", "code", "support"],
)
def test_a_piece_that_is_not_like_the_largest_is_refused_by_its_number(model, pieces, said):
    pieces = counted(pieces) if isinstance(pieces, dict) else lv.Pieces(pieces, [400] * 2)
    with pytest.raises(lv.DataError, match=said):
        lv.fit(model, pieces, "cavi", batch_size=50, progress=False)


def test_the_fit_is_that_of_all_rows():
    fit = lv.fit(normal, lv.Pieces(piece, [500] * 8), "cavi", batch_size=100, progress=False)
    whole = lv.fit(normal, {"y": np.concatenate([piece(i)["y"] for i in range(8)])}, "cavi", progress=False)
    assert fit.settings["num_data"] == 4000
    sd = float(whole.posterior["mean"].std())
    assert abs(float(fit.posterior["mean"].mean() - whole.posterior["mean"].mean())) < 0.5 * sd
    assert abs(float(fit.posterior["mean"].std()) / sd - 1) < 0.1


def test_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {"y": np.arange(10.0), "unused": np.zeros(10)}
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=5)
    pieces = lv.Pieces.parquet(tmp_path / "rows.parquet", ["y"])
    assert pieces.sizes == (5, 5)
    assert list(pieces.columns(1)) == ["y"]
    assert pieces.columns(1)["y"].tolist() == [5, 6, 7, 8, 9]


def test_mistakes():
    pieces = lv.Pieces(piece, [500] * 2)
    with pytest.raises(lv.SettingError, match=r"holds all rows in memory.*lv\.CAVI"):
        lv.fit(normal, pieces, "nuts", progress=False)
    with pytest.raises(lv.SettingError, match="needs a `batch_size`"):
        lv.fit(normal, pieces, "cavi", progress=False)
    with pytest.raises(lv.SettingError, match="Leave rows out in `read`"):
        lv.fit(normal, pieces, "cavi", batch_size=10, missing="drop", progress=False)
    with pytest.raises(lv.DataError, match="`sizes` says 400"):
        lv.fit(normal, lv.Pieces(piece, [400]), "cavi", batch_size=10, progress=False)
    with pytest.raises(lv.SettingError, match="must be a function"):
        lv.Pieces([1, 2], [3])
