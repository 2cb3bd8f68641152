import importlib.util
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import xarray as xr

import langevin as lv
from langevin import store
from langevin.errors import StoreError
from langevin.result import Fit
from langevin.run import integrity, tree

SETTINGS = {"method": {"name": "SGLD"}, "approximation": "", "scrutiny": {}}


def made(settings=SETTINGS):
    generator = np.random.default_rng(0)
    coords = {"chain": np.arange(2), "draw": np.arange(50)}
    draws = {
        "w": (("chain", "draw", "k"), generator.normal(size=(2, 50, 3))),
        "a": (("chain", "draw"), np.ones((2, 50))),
    }
    stats = {
        "weight": (("chain", "draw"), np.ones((2, 50))),
        "diverging": (("chain", "draw"), draws["w"][1][..., 0] > 0),
    }
    groups = {
        "posterior": xr.Dataset(draws, {**coords, "k": ["x", "y", "z"]}, {"names": ["w", "a"]}),
        "sample_stats": xr.Dataset({**stats, "stopped": (("chain",), np.array([-1, -1]))}, coords),
        "unconstrained_posterior": xr.Dataset({"u": draws["a"]}, coords, {"leaves": ["u"]}),
    }
    data_tree = xr.DataTree.from_dict(groups)
    data_tree.attrs["settings"] = json.dumps(settings)
    return Fit(data_tree)


@pytest.fixture
def path(tmp_path):
    store.save(made(), tmp_path / "fit.zarr")
    return tmp_path / "fit.zarr"


def rewrite(path, *steps, value):
    """Changes metadata of a store as a careless program would, in both places, and seals it again."""
    *group, key = steps
    for name, where in (
        (path.joinpath(*group, ".zattrs"), ()),
        (path / ".zmetadata", ("metadata", "/".join([*group, ".zattrs"]))),
    ):
        content = json.loads(name.read_text())
        inner = content
        for step in where:
            inner = inner[step]
        if value is None:
            del inner[key]
        else:
            inner[key] = value
        name.write_text(json.dumps(content))
    integrity.seal(path)


def test_a_fit_comes_back(path, tmp_path):
    fit, again = made(), lv.load(path)
    for group in ("posterior", "sample_stats", "unconstrained_posterior"):
        xr.testing.assert_identical(again.data_tree[group].to_dataset(), fit.data_tree[group].to_dataset())
    assert list(again.posterior) == ["w", "a"]
    assert again.settings == SETTINGS
    assert "format" not in fit.data_tree.attrs
    assert [file.name for file in tmp_path.iterdir()] == ["fit.zarr"]
    store.save(again, tmp_path / "again.zarr")
    xr.testing.assert_identical(lv.load(tmp_path / "again.zarr").posterior, fit.posterior)
    integrity.seal(path)  # Sealing what is sealed changes nothing.
    assert lv.load(path).settings == SETTINGS


def names(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_every_file_is_guarded(path):
    for name in names(path):
        file = path / name
        data = file.read_bytes()
        half = len(data) // 2
        file.unlink()
        with pytest.raises(lv.DataError, match=rf"{name} is missing|manifest.jsonl is missing"):
            lv.load(path)
        for damaged in (data[:-1], b"", bytes(len(data)), data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]):
            file.write_bytes(damaged)
            with pytest.raises(lv.DataError, match=rf"`load`: .*{name} is damaged.*Restore it from a copy"):
                lv.load(path)
        file.write_bytes(data)
    assert lv.load(path).settings == SETTINGS


def test_missing_divergences_do_not_become_none(path):
    (path / "sample_stats" / "diverging" / "0.0").unlink()
    with pytest.raises(lv.DataError, match="sample_stats/diverging/0.0 is missing"):
        lv.load(path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "must be a dict; got \\[\\]"),
        (3, "must be a dict; got 3"),
        ({}, "must have 'method', a dict"),
        ({"method": {"name": "SGLD"}}, "must have 'approximation', a str"),
        ({**SETTINGS, "method": {}}, "do not name their method"),
        ({**SETTINGS, "evidence": []}, "must be a dict of dicts"),
        ({**SETTINGS, "evidence": {"mixing": 3}}, "must be a dict of dicts"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, settings, sentence):
    store.save(made(settings), tmp_path / "fit")
    with pytest.raises(lv.DataError, match=f"`load`: .*{sentence}"):
        lv.load(tmp_path / "fit")


def test_settings_that_are_not_json(path):
    rewrite(path, "settings", value="{'a'")
    with pytest.raises(lv.DataError, match="'settings' of .* is not JSON: \"{'a'\""):
        lv.load(path)
    rewrite(path, "settings", value=None)
    with pytest.raises(lv.DataError, match="'settings' of .* is not JSON: None"):
        lv.load(path)


@pytest.mark.parametrize("real", [False, True])
def test_evidence_of_a_later_version(tmp_path, monkeypatch, real):
    if not real:
        module = types.ModuleType("langevin.diagnostics.evidence")
        vars(module)["FINDERS"] = {"mixing": None}
        monkeypatch.setitem(sys.modules, "langevin.diagnostics.evidence", module)
        store.save(made({**SETTINGS, "evidence": {"mixing": {"rhat": 1.0}}}), tmp_path / "known")
        assert lv.load(tmp_path / "known").settings["evidence"] == {"mixing": {"rhat": 1.0}}
    elif importlib.util.find_spec("langevin.diagnostics.evidence") is None:
        pytest.skip("there are no finders yet")
    store.save(made({**SETTINGS, "evidence": {"astrology": {}}}), tmp_path / "fit")
    with pytest.raises(lv.DataError, match="evidence of the kind 'astrology', which this version does not know"):
        lv.load(tmp_path / "fit")


@pytest.mark.parametrize(
    ("group", "key", "value", "sentence"),
    [
        ("posterior", "names", None, "posterior must have an attribute 'names'"),
        ("posterior", "names", "w", "posterior must have an attribute 'names'"),
        ("posterior", "names", ["w", "b"], "posterior has no variable 'b', which its attribute 'names' names"),
        ("posterior", "names", ["draw"], "posterior has no variable 'draw'"),
        ("unconstrained_posterior", "leaves", [1], "must have an attribute 'leaves'"),
        ("unconstrained_posterior", "leaves", ["v"], "has no variable 'v'"),
    ],
)
def test_names_that_are_wrong(path, group, key, value, sentence):
    rewrite(path, group, key, value=value)
    with pytest.raises(lv.DataError, match=f"`load`: .*{sentence}"):
        lv.load(path)


@pytest.mark.parametrize("group", ["posterior", "sample_stats"])
def test_a_group_that_is_missing(tmp_path, group):
    fit = made()
    del fit.tree[group]
    store.save(fit, tmp_path / "fit")
    with pytest.raises(lv.DataError, match=f"has no group '{group}', which every fit has"):
        lv.load(tmp_path / "fit")


def test_other_formats(path, tmp_path):
    rewrite(path, "format", value="langevin fit 3")
    with pytest.raises(lv.DataError, match="'langevin fit 3', of a later version .* reads 'langevin fit 2'"):
        lv.load(path)
    old = made().data_tree
    old.attrs["format"] = "langevin fit 1"
    old.to_zarr(tmp_path / "old", zarr_format=2, consolidated=True)
    with pytest.raises(lv.DataError, match="'langevin fit 1', which has no checksums"):
        lv.load(tmp_path / "old")
    (tmp_path / "file").write_text("")
    for other in (tmp_path, tmp_path / "file"):
        with pytest.raises(lv.DataError, match="is not a fit that langevin saved"):
            lv.load(other)
    with pytest.raises(lv.DataError, match="there is nothing at"):
        lv.load(tmp_path / "missing")


def test_a_run_without_draws_is_not_a_fit(tmp_path):
    from langevin.run.store import Store

    Store.create(tmp_path / "run", {}, 1)
    with pytest.raises(lv.DataError, match=r"is a run that is not finished. Continue it with lv.resume\('"):
        lv.load(tmp_path / "run")


def test_paths_that_cannot_be_written(path, tmp_path, monkeypatch):
    with pytest.raises(lv.SettingError, match="exists already"):
        store.save(made(), path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="`save`: .*file/fit cannot be written .a folder in its path is a file"):
        store.save(made(), tmp_path / "file" / "fit")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(xr.DataTree, "to_zarr", refuse)
    with pytest.raises(StoreError, match="it is not permitted"):
        store.save(made(), tmp_path / "fit")


def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted")
    try:
        with pytest.raises(StoreError, match="`save`: .*the disk is full.* free some space"):
            store.save(made(), disk / "fit")
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StoreError, match="`save`: .*the disk is read-only"):
            store.save(made(), disk / "fit")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_save_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "seal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(made(), tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 4}]},
        {"dtype": "|O", "filters": [{"id": "json2"}]},
        {"filters": [{"id": "pickle", "protocol": 4}]},
        {"compressor": {"id": "pickle", "protocol": 4}},
        {"dtype": [["x", "|O"]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", [".zmetadata", "posterior/a/.zarray"])
def test_objects_are_refused_and_nothing_executes(path, tmp_path, change, where):
    import pickle

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    (path / "posterior/a/0.0").write_bytes(pickle.dumps(Trap()))
    content = json.loads((path / where).read_text())
    about = content["metadata"]["posterior/a/.zarray"] if where == ".zmetadata" else content
    about.update({"compressor": None} | change)
    (path / where).write_text(json.dumps(content))
    integrity.seal(path)
    with pytest.raises(lv.DataError, match=f"{where} has an array of the type .*, which is not plain numbers"):
        lv.load(path)
    assert not (tmp_path / "executed").exists()


def test_strings_are_not_objects(tmp_path):
    fit = made()
    labels = fit.tree["posterior"].to_dataset().assign_coords(k=np.array(["x", "y", "long"], object))
    fit.tree["posterior"] = xr.DataTree(labels)
    store.save(fit, tmp_path / "fit")
    assert lv.load(tmp_path / "fit").posterior["k"].values.tolist() == ["x", "y", "long"]


def test_large_fits_stay_on_disk(path, monkeypatch):
    in_memory = lv.load(path)
    monkeypatch.setattr(tree, "MOST_IN_MEMORY", 100)
    lazy = lv.load(path)
    assert not lazy.posterior["w"].variable._in_memory
    assert in_memory.posterior["w"].variable._in_memory
    lazy.posterior["w"].values  # noqa: B018
    assert not lazy.posterior["w"].variable._in_memory  # What was read is not kept.
    xr.testing.assert_identical(lazy.posterior, in_memory.posterior)
