"""NumPyro's stack of handlers, one for each thread.

NumPyro keeps the handlers that are at work in one list for the whole process. Programs that run in two threads at a
time then get each other's values: two fits, or a fit beside `numpyro.infer.MCMC`. Here that list is replaced by one
that each thread has to itself. In one thread nothing changes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, MutableSequence
from typing import Any

import numpyro.primitives as primitives

NAME = "_PYRO_STACK"
MOST_WAITS, WAIT = 100, 0.05


class ThreadStack(MutableSequence[Any]):
    """A list with other elements in every thread.

    Example:
        >>> stack = ThreadStack([1])
        >>> stack.append(2)
        >>> thread = threading.Thread(target=lambda: stack.append(3))
        >>> thread.start(), thread.join(), list(stack)
        (None, None, [1, 2])
    """

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._local = threading.local()
        self._local.elements = list(elements)

    @property
    def _elements(self) -> list[Any]:
        try:
            return self._local.elements
        except AttributeError:
            self._local.elements = []
            return self._local.elements

    def __getitem__(self, index: Any) -> Any:
        return self._elements[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._elements[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._elements[index]

    def __len__(self) -> int:
        return len(self._elements)

    def insert(self, index: int, value: Any) -> None:
        """As a list does."""
        self._elements.insert(index, value)


def stack() -> MutableSequence[Any]:
    """The handlers that are at work in this thread, by a stack of each thread's own from now on.

    NumPyro's own stack is left in place while it is in use, and where a version of NumPyro keeps it elsewhere.
    """
    shared = getattr(primitives, NAME, None)
    for _ in range(MOST_WAITS):
        # Handlers are at work while a program is traced, which another thread may be about to end.
        if type(shared) is not list or not shared or threading.active_count() == 1:
            break
        time.sleep(WAIT)
    if type(shared) is list and not shared:
        own = ThreadStack()
        # Some modules have imported the list itself.
        for module in [module for name, module in sys.modules.items() if name.startswith("numpyro.")]:
            if getattr(module, NAME, None) is shared:
                setattr(module, NAME, own)
        return own
    return [] if shared is None else shared
