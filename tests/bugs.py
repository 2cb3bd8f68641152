"""Bugs that are put in on purpose into what many methods share."""

import numpyro

from langevin.models import placing
from langevin.posterior import Posterior


def drop_the_scaling(patch):
    """N/B is missing."""

    def log_density(self, position, batch=None):
        log_prior, log_likelihood = self.terms(position, self.rows if batch is None else batch)
        return log_prior + log_likelihood.sum()

    patch.setattr(Posterior, "log_density", log_density)


def forget_the_jacobian(patch):
    """Unconstrained positions have the density of constrained ones."""

    class Forgetful:
        def __getattr__(self, name):
            return getattr(numpyro, name)

        def factor(self, name, value):
            return None

    patch.setattr(placing, "numpyro", Forgetful())
