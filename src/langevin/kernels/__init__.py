"""Markov kernels, one a file, for those who write their own loop.

kernel = lv.kernels.sgld(posterior, 1e-4)
state = kernel.init(key, position, batch)
state, info = kernel.step(key, state, batch)
"""

from langevin.kernels.ascent import ascent
from langevin.kernels.base import Kernel
from langevin.kernels.gradients import control_variate, minibatch, svrg
from langevin.kernels.metrics import Dense, Diagonal
from langevin.kernels.preconditioners import fixed, rmsprop
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.kernels.sgnht import sgnht

__all__ = [
    "Dense",
    "Diagonal",
    "Kernel",
    "ascent",
    "control_variate",
    "fixed",
    "minibatch",
    "rmsprop",
    "sghmc",
    "sgld",
    "sgnht",
    "svrg",
]
