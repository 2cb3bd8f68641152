"""Exponential families, one a file: p(z) = exp(<eta, t(z)> - A(eta))."""

from langevin.conjugacy.families.base import Family
from langevin.conjugacy.families.beta import Beta
from langevin.conjugacy.families.categorical import Categorical
from langevin.conjugacy.families.dirichlet import Dirichlet
from langevin.conjugacy.families.gaussian import Gaussian
from langevin.conjugacy.families.powered_gamma import PoweredGamma

__all__ = ["Beta", "Categorical", "Dirichlet", "Family", "Gaussian", "PoweredGamma"]
