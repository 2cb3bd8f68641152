"""Whether this process is a fork of one in which JAX was at work.

A fork copies the memory of a process and only one of its threads. JAX waits for the others, which are gone: a fit would
wait forever. So a fork is noted when it is made, which costs nothing, and `lv.fit` says so before it waits.
"""

from __future__ import annotations

import os
import sys

from langevin.errors import SettingError

_noted: list[int] = []


def check_not_forked() -> None:
    """Raises a SettingError in a fork of a process that had used JAX."""
    if os.getpid() in _noted:
        raise SettingError(
            "This process is a fork of one that had used JAX, whose threads a fork does not have: a fit would wait for "
            "them forever. Start processes afresh: multiprocessing.get_context('spawn'), or "
            "ProcessPoolExecutor(mp_context=...) with it; or fit in threads."
        )


def _note() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    # Without a backend there are no threads: a process that only imported JAX can be forked.
    if bridge is not None and getattr(bridge, "backends_are_initialized", lambda: False)():
        _noted.append(os.getpid())


# Windows has no forks.
if "register_at_fork" in dir(os):
    os.register_at_fork(after_in_child=_note)
