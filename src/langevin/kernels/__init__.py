"""Markov kernels, one a file, for those who write their own loop.

kernel = lv.kernels.sgld(posterior, 1e-4)
state = kernel.init(key, position, batch)
state, info = kernel.step(key, state, batch)
"""

from langevin.kernels.ascent import ascent
from langevin.kernels.base import Kernel
from langevin.kernels.gradients import control_variate, minibatch, svrg
from langevin.kernels.hmc import hmc
from langevin.kernels.mala import mala
from langevin.kernels.metrics import Dense, Diagonal, LowRank
from langevin.kernels.nuts import nuts
from langevin.kernels.preconditioners import fixed, rmsprop
from langevin.kernels.rwm import rwm
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.kernels.sgnht import sgnht

__all__ = [
    "Dense",
    "Diagonal",
    "Kernel",
    "LowRank",
    "ascent",
    "control_variate",
    "fixed",
    "hmc",
    "mala",
    "minibatch",
    "nuts",
    "rmsprop",
    "rwm",
    "sghmc",
    "sgld",
    "sgnht",
    "svrg",
]
