"""Where compiled programs are kept on disk. Imports nothing heavy, so that the command can set it before JAX starts."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """The folder for compiled programs: `langevin` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "langevin"


def keep_by_environment() -> None:
    """Makes JAX, when it is imported, keep compiled programs on disk, unless the user has decided otherwise."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(default_cache()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
