"""Compiled programs, kept while the process lives.

A program is known by its text: everything that it does, with all its constants. So a second fit of the same model
traces it again, which takes a fraction of a second, and finds that it need not be compiled again; and a model whose
function or data has changed in the meantime is compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from langevin.cache import default_cache

MOST_KEPT = 32
MOST_FOR_QUICK = 8192
# On a CPU these halve the time of compilation; a loop over 10,000 elements with logarithms then takes twice the time.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
BESIDE = ("xarray", "arviz_stats")
_kept: OrderedDict[bytes, Any] = OrderedDict()


@functools.cache
def import_beside() -> None:
    """Imports what the end of a run needs, in a thread of its own: it takes a second, in which XLA compiles."""
    threading.Thread(target=lambda: [importlib.import_module(name) for name in BESIDE], daemon=True).start()


def keep_on_disk(folder: str | Path | None = None) -> None:
    """Turns JAX's compilation cache on: what is compiled from now on is kept in a folder, also for other processes.

    Args:
        folder: The folder; by default `default_cache()`.
    """
    from jax.experimental.compilation_cache import compilation_cache

    folder = str(default_cache() if folder is None else folder)
    if jax.config.values["jax_compilation_cache_dir"] == folder and jax.config.values["jax_enable_compilation_cache"]:
        return
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX looks once, at the first compilation, whether there is a cache.
    compilation_cache.reset_cache()


def compiled(
    function: Callable[..., Any], static: Any, *arguments: Any, largest: int | None = None
) -> Callable[..., Any]:
    """`function(static, *arguments)` compiled for arguments like these, as a function of `arguments`.

    Args:
        function: What to compile.
        static: Its first argument, which is not an array.
        arguments: Its other arguments, or their shapes.
        largest: About how many elements the largest array in its inner loop has. If few, the program is compiled
            quickly: a loop over few elements is not worth optimising.
    """
    leaves, structure = jax.tree.flatten(arguments)

    def flat(*leaves: Any) -> Any:
        return function(static, *jax.tree.unflatten(structure, leaves))

    lowered = jax.jit(flat).lower(*leaves)
    text = lowered.as_text()
    # The text leaves out arguments that nothing uses, but their shapes are checked at each call.
    shapes = [(np.shape(leaf), leaf.dtype) for leaf in leaves]
    known = hashlib.sha256(f"{jax.devices()} {shapes} {lowered.out_tree} {text}".encode()).digest()
    if known not in _kept:
        import_beside()
        _kept[known] = _compile(lowered, quickly=largest is not None and largest <= MOST_FOR_QUICK)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(known)
    program = _kept[known]
    return lambda *arguments: program(*jax.tree.leaves(arguments))


def _compile(lowered: Any, *, quickly: bool) -> Any:
    if quickly and jax.default_backend() == "cpu":
        try:
            return lowered.compile(QUICK)
        except jax.errors.JaxRuntimeError:
            # Another version of XLA may not know these options.
            return lowered.compile()
    return lowered.compile()
