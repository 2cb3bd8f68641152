import contextlib
import errno
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import xarray as xr

import langevin as lv
from langevin.contracts import Group
from langevin.errors import SettingError, StoreError
from langevin.run import integrity, layout
from langevin.run.memory import Memory
from langevin.run.store import Store
from langevin.run.weights import with_weights

ATTRIBUTES = {"settings": '{"method": {"name": "SGLD"}, "approximation": ""}'}
DIMS = {"weight": ("feature",), "level": ()}


def drawn(start, stop, chain):
    """Draws of a chain: the same bits however they are cut."""
    everything = np.random.default_rng(chain).normal(size=(2000, 5)).astype(np.float32)[start:stop]
    return {
        "posterior": {"level": everything[:, 0], "weight": everything[:, :3]},
        "unconstrained_posterior": {"level": everything[:, 1].astype(np.float16), "none": everything[:, :0]},
        "sample_stats": {
            "log_density": everything[:, 4].astype(np.float64),
            "step_size": np.full(stop - start, 0.1, np.float32) + np.arange(start, stop, dtype=np.float32),
            "valid": np.arange(start, stop) >= chain,
        },
    }


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_BYTES", 12 * 32)  # 32 draws to a block.
    return Store.create(tmp_path / "deep" / "run", {"seed": 3, "pair": [1, 2.5]}, num_chains=2)


def feed(store, *stops, chains=(0, 1)):
    for stop in stops:
        store.add(tuple(drawn(store.counts[c], stop, c) if c in chains else {} for c in (0, 1)))


def files(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def finish(store, num_draws, **changes):
    settings = {"dims": DIMS, "attributes": ATTRIBUTES, "groups": {}, "by_chain": {"stopped": np.array([-1, -1])}}
    store.finish(num_draws, **(settings | changes))
    return store.tree()


def check(tree, num_draws):
    for chain in (0, 1):
        expected = drawn(0, num_draws, chain)
        for group, name in (("posterior", "level"), ("posterior", "weight"), ("unconstrained_posterior", "level")):
            values = tree[group][name].values[chain]
            assert values.dtype == expected[group][name].dtype
            np.testing.assert_array_equal(values, expected[group][name])
        np.testing.assert_array_equal(tree["sample_stats"]["lp"][chain], expected["sample_stats"]["log_density"])
    assert tree["unconstrained_posterior"]["none"].shape == (2, num_draws, 0)


def test_a_finished_run_is_read_by_xarray_and_by_load(store):
    feed(store, 7, 100, 101, 150)
    assert store.counts == (150, 150)
    assert store.draws_to_a_block == 32
    groups = {
        "optimisation": Group(
            {"elbo": (("step",), np.arange(3.0)), "site": (("k",), np.array(["a", "bc"]))}, {"best": 1}
        )
    }
    store.checkpoint({"phase": "done"})
    tree = finish(store, 150, groups=groups)
    check(tree, 150)
    plain = xr.open_datatree(store.path, engine="zarr")
    check(plain, 150)
    assert plain["posterior"]["weight"].dims == ("chain", "draw", "feature")
    assert plain["unconstrained_posterior"]["none"].dims == ("chain", "draw", "none_unconstrained_dim_0")
    assert plain["posterior"].attrs["names"] == ["weight", "level"]
    assert plain["unconstrained_posterior"].attrs["leaves"] == ["level", "none"]
    assert plain["posterior"]["draw"].values.tolist() == list(range(150))
    assert plain["optimisation"]["site"].values.tolist() == ["a", "bc"]
    assert plain["optimisation"].attrs == {"best": 1}
    fit = lv.load(store.path)
    check(fit.tree, 150)
    assert list(fit.posterior) == ["weight", "level"]
    assert fit.stopped.tolist() == [-1, -1]
    xr.testing.assert_identical(fit.tree.to_dataset(), tree.to_dataset())
    copy = store.path.parent / "copy"
    fit.save(copy)
    xr.testing.assert_identical(lv.load(copy).stats, fit.stats)
    xr.testing.assert_identical(lv.load(copy).posterior, fit.posterior)


def test_weights_are_step_sizes_of_valid_draws(store):
    feed(store, 50)
    stats = finish(store, 50)["sample_stats"].to_dataset()
    steps = np.arange(50, dtype=np.float32) + np.float32(0.1)
    expected = np.stack([steps, np.where(np.arange(50) >= 1, steps, 0)]).astype(np.float64)
    assert stats["weight"].dtype == np.float64
    np.testing.assert_allclose(stats["weight"], expected / expected.mean(), rtol=1e-12)
    assert "valid" not in stats
    tree = xr.DataTree.from_dict({"sample_stats": stats.drop_vars("weight")})
    assert (with_weights(tree)["sample_stats"]["weight"] == 1).all()
    weighted = with_weights(tree)
    assert with_weights(weighted) is weighted
    assert "weight" not in tree["sample_stats"]


def test_memory_holds_the_same_draws(store):
    memory = Memory(2)
    for sink in (store, memory):
        feed(sink, 40)
        feed(sink, 70, chains=(0,))
        sink.add(())
        feed(sink, 75)
        sink.checkpoint({"phase": "x"})
        assert sink.counts == (75, 75)
    with pytest.raises(SettingError, match="75, 75"):
        memory.arrays(76)
    arrays = memory.arrays(60)
    tree = finish(store, 60)
    np.testing.assert_array_equal(arrays["posterior"]["weight"], tree["posterior"]["weight"])
    np.testing.assert_array_equal(arrays["sample_stats"]["log_density"], tree["sample_stats"]["lp"])
    again = memory.arrays(60)
    np.testing.assert_array_equal(again["posterior"]["weight"], arrays["posterior"]["weight"])


def test_draws_after_the_checkpoint_are_made_again_with_the_same_bytes(store):
    feed(store, 20, 70)
    store.checkpoint({"phase": "sampling", "key": np.arange(2, dtype=np.uint32)})
    kept = files(store.path)
    feed(store, 90, 200)
    with open(store.path / "blocks.log", "ab") as log:  # As if it had been killed in the middle of the next checkpoint.
        log.write(b'["posterior/level/0.2", 5, 7]\n["poster')
    longer = files(store.path)
    assert len(longer) > len(kept)
    again = Store.open(store.path)
    assert again.counts == (70, 70)
    assert again.record == {"seed": 3, "pair": [1, 2.5]}
    assert again.state["key"].tolist() == [0, 1]
    assert (store.path / "blocks.log").read_bytes() == kept["blocks.log"]
    feed(again, 71, 150, 200)
    blocks = {name: data for name, data in files(store.path).items() if "/" in name}
    assert blocks == {name: data for name, data in longer.items() if "/" in name}
    again.checkpoint({"phase": "sampling"})
    assert len(files(store.path)["blocks.log"].splitlines()) == len(blocks)
    check(finish(again, 200), 200)
    assert Store.open(store.path).counts == (200, 200)


def test_a_run_without_a_checkpoint_begins_anew(store):
    feed(store, 100)
    again = Store.open(store.path)
    assert again.state is None
    assert again.counts == (0, 0)
    feed(again, 130)
    again.checkpoint({"phase": "x"})
    check(finish(again, 130), 130)


def test_a_block_is_written_once_and_whole(store, monkeypatch):
    written = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (written.append(str(b)), replace(a, b)))
    feed(store, *range(10, 200, 10))
    store.checkpoint({"phase": "x"})
    blocks = [name for name in written if "posterior/" in name or "sample_stats/" in name]
    assert len(blocks) == len(set(blocks)) == 2 * 5 * 6  # Chains, blocks, variables that have a size.
    assert not any("partial" in name for name in files(store.path))


def test_compression_gives_the_same_bytes_every_time(tmp_path, monkeypatch):
    import numcodecs.blosc

    from langevin.run.hierarchy import write_block

    monkeypatch.setattr(numcodecs.blosc, "use_threads", True)
    values = np.random.default_rng(0).normal(size=(1 << 19,))
    assert len({write_block(tmp_path, "x", values).crc32 for _ in range(10)}) == 1


def test_chains_of_different_lengths_and_extension(store):
    feed(store, 40)
    feed(store, 100, chains=(0,))
    assert store.counts == (100, 40)
    with pytest.raises(SettingError, match="100, 40; got 41"):
        finish(store, 41)
    store.checkpoint({"phase": "done"})
    check(finish(store, 40), 40)
    assert lv.load(store.path).posterior.sizes["draw"] == 40
    again = Store.open(store.path)
    assert again.counts == (100, 40)
    again.add(({}, drawn(40, 90, 1)))
    with pytest.raises(lv.DataError, match=r"not finished. Continue it with lv.resume\('.*', model, data\)"):
        lv.load(store.path)
    with pytest.raises(StoreError, match="not finished"):
        again.tree()
    # A kill here has replaced the last block of the result, which was not full; it is not part of the checkpoint.
    again = Store.open(store.path)
    assert again.counts == (100, 40)
    again.add(({}, drawn(40, 90, 1)))
    again.checkpoint({"phase": "done"})
    check(finish(again, 90), 90)
    check(lv.load(store.path).tree, 90)
    check(finish(again, 33), 33)


@pytest.mark.parametrize(
    ("name", "harm", "sentence"),
    [
        ("posterior/weight/1.0.0", "flip", "weight/1.0.0 is damaged: its checksum"),
        ("sample_stats/valid/0.1", "cut", "valid/0.1 is damaged: it has .* bytes"),
        ("sample_stats/lp/0.0", "zero", "lp/0.0 is damaged: its checksum"),
        ("sample_stats/lp/0.0", "remove", "lp/0.0 is missing"),
        ("checkpoint.npz", "flip", "checkpoint.npz is damaged.*Restore"),
        ("checkpoint.npz", "remove", "checkpoint.npz cannot be read"),
        ("blocks.log", "flip", "blocks.log is damaged"),
        ("blocks.log", "cut", "blocks.log is damaged"),
        ("blocks.log", "remove", "blocks.log cannot be opened"),
        ("run.json", "flip", "run.json is damaged"),
        ("run.json", "cut", "run.json is damaged"),
        ("run.json", "remove", "not the folder of a run"),
    ],
)
def test_damage_is_named(store, name, harm, sentence):
    feed(store, 70)
    store.checkpoint({"phase": "x"})
    path = store.path / name
    data = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        half = len(data) // 2
        flipped = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
        path.write_bytes({"flip": flipped, "cut": data[:-3], "zero": bytes(len(data))}[harm])
    with pytest.raises(StoreError, match=sentence):
        Store.open(store.path)


def test_paths_that_cannot_be_used(store, tmp_path, monkeypatch):
    with pytest.raises(SettingError, match=r"exists already. To continue a run: lv.resume\(.*choose another path"):
        Store.create(store.path, {}, 1)
    (tmp_path / "file").write_text("")
    for below in ("file/run", "file/deep/run"):
        with pytest.raises(
            StoreError, match="cannot be written .a folder in its path is a file.. Nothing was computed"
        ):
            Store.create(tmp_path / below, {}, 1)
    with pytest.raises(StoreError, match="nothing at"):
        Store.open(tmp_path / "missing")
    with pytest.raises(TypeError):
        Store.create(tmp_path / "new", {"x": object()}, 1)
    monkeypatch.setattr(integrity, "put", no_space)
    with pytest.raises(StoreError, match="the disk is full"):
        Store.create(tmp_path / "new", {}, 1)
    assert not (tmp_path / "new").exists()


def test_a_changed_record_is_noticed(store):
    path = store.path / "run.json"
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(StoreError, match="run.json is damaged: its checksum"):
        Store.open(store.path)


def test_the_blocks_of_a_finished_run_are_guarded(store):
    feed(store, 100)
    store.checkpoint({"phase": "done"})
    feed(store, 140)  # Some blocks are in the log, and some are not yet.
    finish(store, 110)
    for name in ("posterior/weight/0.0.0", "sample_stats/valid/1.3", "posterior/level/0.1", "posterior/level/.zarray"):
        data = (store.path / name).read_bytes()
        (store.path / name).unlink()
        with pytest.raises(lv.DataError, match=f"{name} is missing"):
            lv.load(store.path)
        (store.path / name).write_bytes(data)
    check(lv.load(store.path).tree, 110)


def test_a_later_format_is_refused(store):
    path = store.path / "run.json"
    path.write_text(path.read_text().replace("langevin run 1", "langevin run 2"))
    with pytest.raises(StoreError, match="'langevin run 2'; this version continues 'langevin run 1'"):
        Store.open(store.path)


def no_space(file, data):
    file.write(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["add", "checkpoint", "finish"])
def test_a_full_disk(store, monkeypatch, when):
    feed(store, 50)
    store.checkpoint({"phase": "sampling"})
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "put", no_space)
        with pytest.raises(
            StoreError, match=r"disk is full.*last checkpoint is safe. Free some space, then .*lv.resume\('"
        ):
            {
                "add": lambda: feed(store, 100),
                "checkpoint": lambda: store.checkpoint({"phase": "later"}),
                "finish": lambda: finish(store, 50),
            }[when]()
    assert not any("partial" in name for name in files(store.path))
    again = Store.open(store.path)
    assert again.counts == (50, 50)
    assert again.state == {"phase": "sampling"}
    feed(again, 100)
    check(finish(again, 100), 100)


def test_an_interruption_leaves_all_or_nothing(store, monkeypatch):
    feed(store, 50)
    calls = []

    def interrupted(file, data):
        calls.append(data)
        if len(calls) == 4:
            raise KeyboardInterrupt
        file.write(data)

    with monkeypatch.context() as patch:
        patch.setattr(integrity, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed(store, 120)
    assert store.counts == (50, 50)
    feed(store, 120)
    store.checkpoint({"phase": "x"})
    check(finish(store, 120), 120)
    assert Store.open(store.path).counts == (120, 120)


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 400 kB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_really_full(small_disk, monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_BYTES", 12 * 32)
    store = Store.create(small_disk / "run", {}, 2)
    feed(store, 64)
    store.checkpoint({"phase": "x"})
    with open(small_disk / "ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    with pytest.raises(StoreError, match="the disk is full"):
        feed(store, 200)
    with pytest.raises(StoreError, match="the disk is full"):
        Store.create(small_disk / "other", {}, 2)
    (small_disk / "ballast").unlink()
    again = Store.open(small_disk / "run")
    assert again.counts == (64, 64)
    feed(again, 100)
    check(finish(again, 100), 100)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="the disk is read-only"):
        Store.create(small_disk / "other", {}, 2)
    check(lv.load(small_disk / "run").tree, 100)


@pytest.mark.parametrize(("size", "block"), [(1, 4096), (100, 2621), (262144, 1), (10**6, 1)])
def test_a_block_is_about_a_megabyte(size, block):
    draws = {"posterior": {"w": np.zeros((1, size), np.float32), "a": np.zeros(1)}}
    assert layout.layout_of(draws).block == block


def test_memory_stays_flat(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "BLOCK_BYTES", 300_000)
    store = Store.create(tmp_path / "run", {}, 2)
    piece = {"posterior": {"w": np.zeros((400, 200), np.float32)}}

    def growth(times):
        tracemalloc.start()
        for _ in range(times):
            store.add((piece, piece))
        store.checkpoint({"phase": "x"})
        peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    growth(2)
    _, short = growth(15)
    left, long = growth(60)
    assert long < 1.2 * short
    assert left < 1_000_000  # Of 38 MB that were added.


def test_what_waits_is_no_view_of_what_came(store):
    big = np.zeros((10**6, 1), np.float32)
    store.add(({"posterior": {"w": big[:3]}},) * 2)
    assert store._written.chains[0].pending[0]["posterior", "w"].base is None


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a/b", "a.b"),
        ("../../x", "%2E.....x"),
        ("..", "%2E%2E"),
        (".zattrs", "%2Ezattrs"),
        ("a\0b\n", "a%00b%0A"),
        ("β", "β"),
    ],
)
def test_names_stay_within_the_folder(store, name, stored):
    before = files(store.path.parent.parent).keys()
    store.add(({"posterior": {name: np.arange(40.0)}},) * 2)
    tree = finish(store, 40)
    assert list(tree["posterior"].data_vars) == [stored]
    np.testing.assert_array_equal(tree["posterior"][stored][1], np.arange(40.0))
    new = files(store.path.parent.parent).keys() - before
    assert all(path.startswith("deep/run/") for path in new)
    assert list(lv.load(store.path).posterior) == [stored]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a/b", "a.b"], "'a/b' and 'a.b' are both 'a.b' on disk"),
        (["x" * 300], "too long"),
        ([""], "is empty"),
        (["draw"], "name of a dimension"),
    ],
)
def test_names_that_are_refused(store, names, sentence):
    with pytest.raises(SettingError, match=sentence):
        store.add(({"posterior": {name: np.zeros(2) for name in names}},) * 2)


def test_draws_must_be_alike(store):
    feed(store, 5)
    with pytest.raises(ValueError, match="same arrays; these differ in .*'other'"):
        store.add(({"posterior": {"other": np.zeros(2)}}, {}))
    wrong = drawn(5, 9, 0)
    wrong["posterior"]["level"] = wrong["posterior"]["level"].astype(np.float64)
    with pytest.raises(ValueError, match="posterior 'level' is float64"):
        store.add((wrong, {}))
    with pytest.raises(ValueError, match="2 chains; draws of 1"):
        store.add((drawn(5, 9, 0),))
    with pytest.raises(TypeError, match="array of object"):
        Store.create(store.path / "x", {}, 1).add(({"posterior": {"o": np.array([None])}},))
    assert store.counts == (5, 5)


def test_dimensions_that_do_not_fit_are_numbered(store):
    draws = {
        "posterior": {"a": np.zeros((9, 3)), "b": np.zeros((9, 2)), "c": np.zeros((9, 4)), "d": np.zeros((9, 2, 2))}
    }
    store.add((draws, draws))
    tree = finish(store, 9, dims={"a": ("k",), "b": ("k",), "c": ("draw",), "d": ("k",)})
    dims = {name: variable.dims[2:] for name, variable in tree["posterior"].data_vars.items()}
    assert dims == {"a": ("k",), "b": ("b_dim_0",), "c": ("c_dim_0",), "d": ("d_dim_0", "d_dim_1")}


def test_half_precision_of_jax_is_stored_as_single(store):
    import jax.numpy as jnp

    store.add(({"posterior": {"w": np.asarray(jnp.arange(9, dtype=jnp.bfloat16))}},) * 2)
    values = finish(store, 9)["posterior"]["w"]
    assert values.dtype == np.float32
    assert values[0].values.tolist() == list(range(9))


def test_an_open_tree_reads_no_draws(store):
    feed(store, 100)
    finish(store, 100)
    (store.path / "posterior" / "weight" / "0.0.0").write_bytes(b"not read")
    tree = store.tree()
    expected = drawn(0, 100, 1)["posterior"]["weight"][70:80]
    np.testing.assert_array_equal(tree["posterior"]["weight"].isel(chain=1, draw=slice(70, 80)), expected)


def test_a_program_that_is_killed(tmp_path):
    """A real kill, at whatever point the program is: the run goes on from the last checkpoint."""
    program = f"""
import sys
sys.path.insert(0, {str(os.path.dirname(__file__))!r})
from test_store import Store, drawn, layout
layout.BLOCK_BYTES = 12 * 32
store = Store.create({str(tmp_path / "run")!r}, {{}}, 2)
for stop in range(10, 2000, 10):
    store.add(tuple(drawn(store.counts[c], stop, c) for c in (0, 1)))
    if stop % 70 == 0:
        store.checkpoint({{"phase": "x", "stop": stop}})
        print(stop, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        told = [int(process.stdout.readline()) for _ in range(5)]
        time.sleep(0.013)
        process.kill()
    again = Store.open(tmp_path / "run")
    assert again.counts == (again.state["stop"],) * 2
    assert told[-1] <= again.state["stop"] < 2000
    assert again.draws_to_a_block == 32
    feed(again, 1990)
    again.checkpoint({"phase": "x"})
    check(finish(again, 1990), 1990)
    check(lv.load(again.path).tree, 1990)
