"""Runs that survive, for EVERY method in the registry: the same bits however they are cut, killed, stored, loaded."""

import errno
import itertools

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import compilations
from targets import linear_regression

import langevin as lv
from langevin.methods import BY_NAME, describe, from_description
from langevin.run import drive, integrity

# Few draws are flagged, which is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

TARGET = linear_regression()
SETTINGS = {"num_chains": 2, "num_warmup": 60, "num_draws": 40, "progress": False, "seed": 3}
# Settings of a method that make its run short; all others have their defaults.
SHORT = {
    "map": lv.MAP(num_steps=150),
    "laplace": lv.Laplace(climb=lv.MAP(num_steps=150)),
    "vi": lv.VI("fullrank", num_steps=300),
    "ensemble": lv.Ensemble(lv.MAP(num_steps=150), 3),
    "swag": lv.SWAG(5, climb=lv.MAP(num_steps=150)),
}


def method_of(name):
    return SHORT.get(name, BY_NAME[name]())


def batch_size(method):
    return None if method.needs.minibatches == "none" else 50


def fit(name, **more):
    method = method_of(name)
    return lv.fit(TARGET.model, TARGET.data, method, batch_size=batch_size(method), **SETTINGS | more)


def assert_same(a, b):
    assert set(a.tree.groups) == set(b.tree.groups)
    for group in a.tree.groups:
        one, other = a.tree[group].to_dataset(), b.tree[group].to_dataset()
        assert set(one.variables) == set(other.variables), group
        for name in one.variables:
            np.testing.assert_array_equal(one[name].values, other[name].values, err_msg=f"{group} {name}")
            assert one[name].dtype == other[name].dtype, (group, name)
            assert one[name].dims == other[name].dims, (group, name)
    ours, theirs = a.settings, b.settings
    assert ours == theirs


def cut(monkeypatch, limits):
    """Makes the one loop take so many steps at a time."""
    limits = itertools.cycle(limits)
    monkeypatch.setattr(drive._Clock, "decide", lambda self, phase: (next(limits), True))


@pytest.mark.parametrize("name", BY_NAME)
def test_one_cut_or_many(name, monkeypatch):
    whole = fit(name)
    for limits in ([2**30], [1, 2, 3, 7, 50]):
        with monkeypatch.context() as patch:
            cut(patch, limits)
            assert_same(fit(name), whole)


class Killed(BaseException):
    """What ends a run at once, as a kill does: nothing catches it."""


def killed_at(monkeypatch, number):
    """Makes a run die before its chunk of this number, with checkpoints that lag behind."""
    clock = itertools.count()

    def decide(self, phase):
        now = next(clock)
        if now == number:
            raise Killed
        return [1, 5, 40, 200][now % 4], now % 3 == 0

    monkeypatch.setattr(drive._Clock, "decide", decide)


@pytest.mark.parametrize("name", BY_NAME)
def test_killed_and_resumed(name, monkeypatch, tmp_path):
    whole = fit(name)
    for number in (0, 1, 4, 11, 23):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_at(patch, number)
            fit(name, store=path)
            raise Killed  # a run that was over before
        with monkeypatch.context() as patch:
            cut(patch, [3, 64, 300])
            resumed = lv.resume(path, TARGET.model, TARGET.data, progress=False)
        assert_same(resumed, whole)


@pytest.mark.parametrize("name", BY_NAME)
def test_saved_and_loaded(name, tmp_path):
    whole = fit(name)
    whole.save(tmp_path / "saved")
    assert_same(lv.load(tmp_path / "saved"), whole)
    assert_same(fit(name, store=tmp_path / "run"), whole)
    assert_same(lv.load(tmp_path / "run"), whole)
    assert repr(lv.load(tmp_path / "run")) == repr(whole)


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("map", "ensemble")])
def test_more_draws_are_those_of_a_longer_run(name, tmp_path):
    longer = fit(name, num_draws=80, thin=2) if "cyclical" not in name else None
    first = fit(name, store=tmp_path / "run", thin=2)
    more = lv.resume(tmp_path / "run", TARGET.model, TARGET.data, num_draws=80, progress=False)
    assert more.posterior.sizes["draw"] == 80
    for site in first.posterior:
        np.testing.assert_array_equal(more.posterior[site][:, :40], first.posterior[site])
        if longer is not None:
            np.testing.assert_array_equal(more.posterior[site], longer.posterior[site])
    # Asked for once, it stays asked for.
    again = lv.resume(tmp_path / "run", TARGET.model, TARGET.data, progress=False)
    assert again.posterior.sizes["draw"] == 80


@pytest.mark.parametrize("name", BY_NAME)
def test_every_method_can_be_rebuilt_from_its_description(name):
    method = BY_NAME[name]()
    assert from_description(describe(method)) == method


@pytest.mark.parametrize("name", BY_NAME)
def test_a_second_fit_compiles_nothing(name):
    fit(name)
    with compilations() as seen:
        fit(name, seed=4)
    assert seen == []


def interrupted_at(monkeypatch, phase, number):
    """Makes Ctrl-C come before the chunk of this number in a phase."""
    clock = itertools.count()

    def decide(self, now):
        if now == phase and next(clock) == number:
            raise KeyboardInterrupt
        return 40, True

    monkeypatch.setattr(drive._Clock, "decide", decide)


LAST_PHASE = {
    "vi": "fitting",
    "cavi": "ascent",
    "map": "climbing",
    "laplace": "climbing",
    "ensemble": "climbing",
    "swag": "averaging",
}


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("number", [2, 3])
def test_ctrl_c_in_memory_returns_what_there_is(name, number, monkeypatch):
    """Samplers have the draws so far; a fit of q or a climb has something after its first steps."""
    phase = LAST_PHASE.get(name, "sampling")
    more = {"num_draws": 400, "thin": 1} if phase == "sampling" else {}
    whole = fit(name, **more)
    interrupted_at(monkeypatch, phase, number)
    part = fit(name, **more)
    assert part.verdict[0].code == "interrupted"
    assert "interrupted" in repr(part)
    if phase == "sampling":
        count = part.posterior.sizes["draw"]
        assert 0 < count < 400
        for site in part.posterior:
            np.testing.assert_array_equal(part.posterior[site], whole.posterior[site][:, :count])


def out_of_time_at(monkeypatch, phase, number):
    """Makes the time be over before the chunk of this number in a phase."""
    clock, phases = itertools.count(), []

    def decide(self, now):
        phases.append(now)
        return 40, False

    monkeypatch.setattr(drive._Clock, "decide", decide)
    over = lambda self, limit: limit is not None and phase in phases[-1:] and next(clock) >= number  # noqa: E731
    monkeypatch.setattr(drive._Clock, "is_over", over)


@pytest.mark.parametrize("name", BY_NAME)
def test_when_the_time_is_over_there_is_what_there_is(name, monkeypatch):
    phase = LAST_PHASE.get(name, "sampling")
    more = {"num_draws": 400, "thin": 1} if phase == "sampling" else {}
    out_of_time_at(monkeypatch, phase, 2)
    part = fit(name, max_seconds=50, **more)
    assert part.verdict[0].code == "out of time"
    assert phase != "sampling" or 0 < part.posterior.sizes["draw"] < 400


@pytest.mark.parametrize("name", ["nuts", "sgld"])
def test_when_the_time_is_over_on_disk_it_can_go_on(name, monkeypatch, tmp_path):
    more = {"num_draws": 400, "thin": 1}
    whole = fit(name, **more)
    with monkeypatch.context() as patch:
        out_of_time_at(patch, "sampling", 2)
        part = fit(name, store=tmp_path / "run", max_seconds=50, **more)
    assert part.verdict[0].code == "out of time"
    count = part.posterior.sizes["draw"]
    assert 0 < count < 400
    assert lv.load(tmp_path / "run").posterior.sizes["draw"] == count
    assert_same(lv.resume(tmp_path / "run", TARGET.model, TARGET.data, progress=False), whole)


def test_time_is_a_positive_number():
    with pytest.raises(lv.SettingError, match="`max_seconds` must be > 0"):
        fit("nuts", max_seconds=0)


@pytest.mark.parametrize("name", ["nuts", "sgld"])
def test_ctrl_c_before_the_first_draw_says_so(name, monkeypatch):
    interrupted_at(monkeypatch, "start", 0)
    with pytest.raises(KeyboardInterrupt, match="before its first draw"):
        fit(name)


@pytest.mark.parametrize("name", BY_NAME)
def test_ctrl_c_on_disk_says_how_to_continue(name, monkeypatch, tmp_path):
    whole = fit(name)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=r"continue with lv\.resume\('.*run'"):
        interrupted_at(patch, LAST_PHASE.get(name, "sampling"), 0)
        fit(name, store=tmp_path / "run")
    assert_same(lv.resume(tmp_path / "run", TARGET.model, TARGET.data, progress=False), whole)


def started(tmp_path, **more):
    """A run on disk that was killed early."""
    path = tmp_path / "run"
    settings = {"num_warmup": 60, "num_draws": 40, "num_chains": 2, "progress": False} | more
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 3)
        lv.fit(TARGET.model, TARGET.data, settings.pop("method", "nuts"), store=path, **settings)
    return path


def changed_model(x, y=None):
    """Like the target's, with another prior."""
    w = numpyro.sample("w", dist.Normal(0, 1.7).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_change_is_noticed_and_said(tmp_path, monkeypatch):
    import importlib.metadata

    path, data = started(tmp_path), TARGET.data
    other = {name: np.array(values) for name, values in data.items()}
    other["y"][7] += 1e-3
    with pytest.raises(lv.SettingError, match=r"`data\['y'\]` has other values"):
        lv.resume(path, TARGET.model, other)
    with pytest.raises(lv.SettingError, match="model has changed"):
        lv.resume(path, changed_model, data)
    with pytest.raises(lv.SettingError, match="begun with.*NUTS"):
        lv.resume(path, TARGET.model, data, lv.NUTS(target_accept=0.9))
    with pytest.raises(lv.SettingError, match="begun with 40; got 10"):
        lv.resume(path, TARGET.model, data, num_draws=10)
    with pytest.raises(lv.SettingError, match="Give the same `keep` again"):
        lv.resume(path, TARGET.model, data, keep="w")
    with jax.enable_x64(True), pytest.raises(lv.SettingError, match="precision|other values"):
        lv.resume(path, TARGET.model, data)
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0" if name == "jax" else version(name))
    with pytest.raises(lv.SettingError, match=r"begun with jax .*, and this is 99\.0"):
        lv.resume(path, TARGET.model, data)


def test_a_method_with_a_function_is_given_again(tmp_path):
    method = lv.SGLD(step_size=lambda step: 1e-3 / (1 + step) ** 0.6)
    path = started(tmp_path, method=method)
    with pytest.raises(lv.SettingError, match="Give the same method again"):
        lv.resume(path, TARGET.model, TARGET.data)
    resumed = lv.resume(path, TARGET.model, TARGET.data, method, progress=False)
    whole = lv.fit(TARGET.model, TARGET.data, method, num_warmup=60, num_draws=40, num_chains=2, progress=False)
    assert_same(resumed, whole)


def test_a_run_that_starts_from_another_fit(tmp_path):
    first = fit("vi")
    path = started(tmp_path, init=first)
    resumed = lv.resume(path, TARGET.model, TARGET.data, progress=False)
    whole = lv.fit(TARGET.model, TARGET.data, init=first, num_warmup=60, num_draws=40, num_chains=2, progress=False)
    assert_same(resumed, whole)


@pytest.mark.parametrize("name", ["nuts", "sgld", "vi", "map"])
def test_what_is_kept_of_a_draw(name, tmp_path):
    whole = fit(name)
    some = fit(name, keep="w")
    assert list(some.posterior) == ["w"]
    assert "unconstrained_posterior" not in some.data_tree
    np.testing.assert_array_equal(some.posterior["w"], whole.posterior["w"])
    with pytest.raises(lv.SettingError, match="no unconstrained positions"):
        lv.fit(TARGET.model, TARGET.data, init=some)
    norm = fit(name, keep=lambda sites: {"norm": (sites["w"] ** 2).sum()})
    assert list(norm.posterior) == ["norm"]
    np.testing.assert_allclose(norm.posterior["norm"], (whole.posterior["w"] ** 2).sum("w_dim_0"), rtol=1e-5)
    half = fit(name, keep=lv.Keep(precision="half"), store=tmp_path / "half")
    assert half.posterior["w"].dtype == np.float16
    np.testing.assert_allclose(half.posterior["w"], whole.posterior["w"], rtol=1e-3)
    assert lv.load(tmp_path / "half").posterior["w"].dtype == np.float16
    with pytest.raises(lv.SettingError, match="there is no site 'v'"):
        fit(name, keep="v")


def test_a_full_disk_loses_nothing(monkeypatch, tmp_path):
    """The disk is full after some blocks: a sentence, and the run goes on to the same bits when there is room again."""
    more = {"num_draws": 3000, "thin": 1}
    whole = fit("sgld", **more)
    written, put = itertools.count(), integrity.put

    def full(*arguments, **named):
        if next(written) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(*arguments, **named)

    with monkeypatch.context() as patch:
        cut(patch, [100])
        patch.setattr(integrity, "put", full)
        with pytest.raises(lv.StoreError, match=r"disk is full.*lv\.resume"):
            fit("sgld", store=tmp_path / "run", **more)
    assert_same(lv.resume(tmp_path / "run", TARGET.model, TARGET.data, progress=False), whole)


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lv.StoreError, match="cannot be written"):
        fit("nuts", store=tmp_path / "file" / "run")
    (tmp_path / "taken").mkdir()
    with pytest.raises(lv.SettingError, match=r"exists already.*lv\.resume"):
        fit("nuts", store=tmp_path / "taken")


@pytest.mark.parametrize("damage", ["missing", "truncated", "zeroed"])
def test_a_torn_block_is_named(damage, tmp_path):
    """Also when the run is continued, and not only when it is loaded."""
    path = tmp_path / "run"
    fit("nuts", store=path, num_draws=6000)
    block = next(file for file in sorted((path / "sample_stats" / "diverging").iterdir()) if file.name[0] == "0")
    content = block.read_bytes()
    if damage == "missing":
        block.unlink()
    else:
        block.write_bytes(content[: len(content) // 2] if damage == "truncated" else bytes(len(content)))
    with pytest.raises(lv.DataError, match=f"diverging.{block.name}"):
        lv.load(path)
    with pytest.raises(lv.StoreError, match=f"diverging.{block.name}"):
        lv.resume(path, TARGET.model, TARGET.data)


def test_a_killed_process(tmp_path):
    """As tests/kill.py does it, which is the long version: SIGKILL, then another process."""
    import kill

    assert kill.survive("sghmc", kills=1, seed=1) == (1, 1)
