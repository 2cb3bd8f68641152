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
    with pytest.raises(lv.DataError, match="`sizes` says 400"):
        lv.fit(normal, lv.Pieces(piece, [400]), "cavi", batch_size=10, progress=False)
    with pytest.raises(lv.SettingError, match="must be a function"):
        lv.Pieces([1, 2], [3])
