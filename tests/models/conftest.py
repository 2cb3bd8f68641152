"""Shared by the tests of models."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
    """For programs that run once each: their time is XLA's."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
