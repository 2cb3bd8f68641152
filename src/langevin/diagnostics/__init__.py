"""Arrays -> numbers; numbers -> findings."""

from langevin.diagnostics.stein import kernel_stein_discrepancy

__all__ = ["kernel_stein_discrepancy"]
