"""Compiled programs, kept while the process lives.

A program is known by its text: everything that it does, with all its constants; and by the gist of the model in it,
which is found much faster. So a second fit of the same model traces the model again, and finds that nothing need be
compiled; and a model whose function has changed in the meantime is compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from langevin.run.cache import default_cache

MOST_KEPT = 64
MOST_FOR_QUICK = 8192
# On a CPU these halve the time of compilation; a loop over 10,000 elements with logarithms then takes twice the time.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
# In a step of a network, Eigen's matrix products are faster than those of the library that JAX 0.10 uses, and without
# looking at regions XLA copies weights in every step: 300 steps of the VAE demo took 0.72 s with both, and without 0.83
# (medians of three alternating processes).
LARGE = {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_copy_insertion_use_region_analysis": True}
BESIDE = ("xarray", "arviz_stats")
_kept: OrderedDict[tuple[tuple[Any, str], str], Any] = OrderedDict()
# Several threads compile; only what is kept is guarded, not the compilation.
_LOCK = threading.Lock()


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
    function: Callable[..., Any],
    static: Any,
    *arguments: Any,
    model: Callable[[], str | None] = lambda: None,
    largest: int | None = None,
) -> Callable[..., Any]:
    """`function(static, *arguments)` compiled for arguments like these, as a function of `arguments`.

    Args:
        function: What to compile.
        static: Its first argument, which is not an array; its representation says all of it.
        arguments: Its other arguments, or their shapes.
        model: Gives the gist of what is in the program besides `function` and `static`, if it is known.
        largest: About how many elements the largest array in its inner loop has, if that is known. If few, the program
            is compiled quickly: a loop over few elements is not worth optimising.
    """
    leaves, structure = jax.tree.flatten(arguments)
    described = repr(static)
    around = (function, f"{described} {jax.devices()} {_paths(arguments)} {_shapes(leaves)}")
    # An address says nothing of what is there: then only the text of the program does.
    model = model if " at 0x" not in described else lambda: None
    # The first program of its kind is not worth the time to look for another.
    gist = model() if _has(around) else None
    program = None if gist is None else _get((around, gist))
    if program is None:

        def flat(*leaves: Any) -> Any:
            return function(static, *jax.tree.unflatten(structure, leaves))

        lowered = jax.jit(flat).lower(*leaves)
        text = _text(lowered)
        program = _get((around, text))
        if program is None:
            import_beside()
            with ThreadPoolExecutor(1) as aside:
                compiling = aside.submit(_compile, lowered, _options(largest))
                gist = model() if gist is None else gist
                program = compiling.result()
            _keep((around, text), program)
        if gist is not None:
            _keep((around, gist), program)
    found = program
    return lambda *arguments: found(*jax.tree.leaves(arguments))


class Programs:
    """The compiled programs of one run, each made at its first call. Later calls have arguments of the same shapes.

    Args:
        model: Gives the gist of the model, from which all of them are made; asked for once.
        largest: As in `compiled`.
    """

    def __init__(self, model: Callable[[], str | None], largest: int | None = None) -> None:
        self._model = functools.cache(model)
        self._largest = largest
        self._made: dict[Any, Callable[..., Any]] = {}

    def __call__(self, function: Callable[..., Any], static: Any, *arguments: Any) -> Any:
        """`function(static, *arguments)`."""
        key = (function, repr(static), _paths(arguments))
        if key not in self._made:
            self._made[key] = compiled(function, static, *arguments, model=self._model, largest=self._largest)
        return self._made[key](*arguments)

    def digest(self, function: Callable[..., Any], static: Any, *arguments: Any) -> str:
        """A digest of the text of `function(static, *arguments)`, the same in another process."""
        leaves, structure = jax.tree.flatten(arguments)
        lowered = jax.jit(lambda *leaves: function(static, *jax.tree.unflatten(structure, leaves))).lower(*leaves)
        return _text(lowered)

    def aside(self, function: Callable[..., Any], static: Any, *arguments: Any) -> Callable[..., Any]:
        """The same program for arguments like these, compiled in another thread while the caller goes on."""
        # A thread does not know the precision that a context manager set in another.
        double = jax.config.values["jax_enable_x64"] or any(
            getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(arguments)
        )

        def compile_there() -> Callable[..., Any]:
            with jax.enable_x64(double):
                return compiled(function, static, *arguments, model=self._model, largest=0)

        thread = ThreadPoolExecutor(1)
        future = thread.submit(compile_there)
        thread.shutdown(wait=False)
        return lambda *given: future.result()(*given)


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, compiled quickly, since it is called once; where its text is known, not even that."""
    return prepared(function, *arguments)(*arguments)


def prepared(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Compiles `function` quickly, for repeated calls with arguments like these."""
    leaves, structure = jax.tree.flatten(arguments)
    lowered = jax.jit(lambda *leaves: function(*jax.tree.unflatten(structure, leaves))).lower(*leaves)
    key = ((prepared, f"{jax.devices()} {_shapes(leaves)}"), _text(lowered))
    program = _get(key)
    if program is None:
        program = _compile(lowered, _options(0))
        _keep(key, program)
    found = program
    return lambda *arguments: found(*jax.tree.leaves(arguments))


def _paths(arguments: Any) -> tuple[str, ...]:
    """Where the leaves are: a structure without what is static in it, which the gist of a model knows."""
    return tuple(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(arguments)[0])


def _shapes(leaves: list[Any]) -> list[Any]:
    """The text of a program leaves out arguments that nothing uses, but their shapes are checked at each call."""
    return [(np.shape(leaf), getattr(leaf, "dtype", None), getattr(leaf, "sharding", None)) for leaf in leaves]


def _text(lowered: Any) -> str:
    return hashlib.sha256(f"{lowered.out_tree} {lowered.as_text()}".encode()).hexdigest()


def _has(around: tuple[Any, str]) -> bool:
    with _LOCK:
        return any(key[0] == around for key in _kept)


def _get(key: tuple[tuple[Any, str], str]) -> Any:
    with _LOCK:
        if key in _kept:
            _kept.move_to_end(key)
        return _kept.get(key)


def _keep(key: tuple[tuple[Any, str], str], program: Any) -> None:
    with _LOCK:
        _kept[key] = program
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)


def _options(largest: int | None) -> dict[str, Any] | None:
    if largest is None or jax.default_backend() != "cpu":
        return None
    return QUICK if largest <= MOST_FOR_QUICK else LARGE


def _compile(lowered: Any, options: dict[str, Any] | None) -> Any:
    try:
        return lowered.compile(options)
    except jax.errors.JaxRuntimeError:
        # Another version of XLA may not know these options.
        if options is None:
            raise
        return lowered.compile()
