"""What tests need to know of compilation: how much of it there was, and a start without any of it kept."""

import contextlib

import jax

from langevin.run import compilation


@contextlib.contextmanager
def compilations():
    """A list that grows by one with every program that XLA compiles."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def forget():
    """Forgets compiled programs: they are known by their model, which a bug that is put in leaves as it is."""
    jax.clear_caches()
    compilation._kept.clear()
