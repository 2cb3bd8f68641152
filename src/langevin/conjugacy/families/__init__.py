"""Exponential families, one a file: p(z) = exp(<eta, t(z)> - A(eta))."""

from langevin.conjugacy.families.base import Family
from langevin.conjugacy.families.beta import Beta
from langevin.conjugacy.families.categorical import Categorical
from langevin.conjugacy.families.categorical_chain import CategoricalChain
from langevin.conjugacy.families.dirichlet import Dirichlet
from langevin.conjugacy.families.gaussian import Gaussian
from langevin.conjugacy.families.gaussian_chain import GaussianChain
from langevin.conjugacy.families.polya_gamma import PolyaGamma
from langevin.conjugacy.families.powered_gamma import PoweredGamma
from langevin.conjugacy.families.wishart import Wishart

__all__ = [
    "Beta",
    "Categorical",
    "CategoricalChain",
    "Dirichlet",
    "Family",
    "Gaussian",
    "GaussianChain",
    "PolyaGamma",
    "PoweredGamma",
    "Wishart",
]
