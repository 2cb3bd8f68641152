"""Compiled programs, kept while the process lives.

A program is known by its text: everything that it does, with all its constants. So a second fit of the same model
traces it again, which takes a fraction of a second, and finds that it need not be compiled again; and a model whose
function or data has changed in the meantime is compiled anew.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

MOST_KEPT = 32
_kept: OrderedDict[bytes, Any] = OrderedDict()


def compiled(function: Callable[..., Any], static: Any, *arguments: Any) -> Callable[..., Any]:
    """`function(static, *arguments)` compiled for arguments like these, as a function of `arguments`."""
    leaves, structure = jax.tree.flatten(arguments)

    def flat(*leaves: Any) -> Any:
        return function(static, *jax.tree.unflatten(structure, leaves))

    lowered = jax.jit(flat).lower(*leaves)
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=False)
    known = hashlib.sha256(f"{jax.devices()} {lowered.out_tree} {text}".encode()).digest()
    if known not in _kept:
        _kept[known] = lowered.compile()
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(known)
    program = _kept[known]
    return lambda *arguments: program(*jax.tree.leaves(arguments))
