"""Compiled programs: kept in the process by what they do, and on disk between processes."""

import subprocess
import sys
import textwrap

from typer.testing import CliRunner

PROGRAM = """
    import jax
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
    import langevin as lv
    density = lv.Density(lambda x: -(x**2) / 2, init=0.0)
    lv.fit(density, num_warmup=20, num_draws=20, num_chains=4, progress=False, cache={folder!r})
    print(sum("cache_hits" in event for event in hits), sum("cache_misses" in event for event in hits))
"""


def test_second_process_finds_what_the_first_compiled(tmp_path):
    program = textwrap.dedent(PROGRAM.format(folder=str(tmp_path / "cache")))
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
        )
        counts.append([int(word) for word in done.stdout.split()])
    (first_hits, first_misses), (second_hits, second_misses) = counts
    assert first_hits == 0
    assert first_misses >= 2
    assert second_hits == first_misses
    assert second_misses == 0


def test_the_command_keeps_programs_unless_told_not_to(monkeypatch):
    from langevin import cli

    seen = {}
    monkeypatch.setattr(cli, "keep_by_environment", lambda: seen.setdefault("kept", True))
    monkeypatch.setattr("langevin.demos.mixture.run", lambda *_, **__: None)
    runner = CliRunner()
    assert runner.invoke(cli.app, ["--no-cache", "demo", "mixture"]).exit_code == 0
    assert not seen
    assert runner.invoke(cli.app, ["demo", "mixture"]).exit_code == 0
    assert seen


def test_default_folder(monkeypatch, tmp_path):
    import os

    from langevin.run.cache import default_cache, keep_by_environment

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "langevin"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    keep_by_environment()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
