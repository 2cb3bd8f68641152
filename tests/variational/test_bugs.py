"""The checks of the estimators must fail when these are wrong: each bug is put in on purpose."""

import jax.numpy as jnp
import pytest
import test_elbo
import test_guides
from bugs import drop_the_scaling
from compilation import forget
from numpyro import distributions as dist

from langevin.models import joint
from langevin.variational import elbo, sites
from langevin.variational.families import MeanField


def forget_the_entropy(patch):
    patch.setattr(MeanField, "entropy", lambda self, parameters: jnp.zeros(()))


def differentiate_through_scored_draws(patch):
    patch.setattr(joint._Stopped, "postprocess_message", lambda self, msg: None)


def forget_own_log_q(patch):
    real = elbo._cost

    def cost(sampled, wiring, name, score, rao_blackwell):
        return real(sampled, wiring, name, score, rao_blackwell) + sampled.log_q[name]

    patch.setattr(elbo, "_cost", cost)


def count_oneself_in_the_baseline(patch):
    """The mean of all particles without the correction: S / (S - 1) is missing."""
    real = jnp.mean

    class Numbers:
        def __getattr__(self, name):
            return getattr(jnp, name)

        @staticmethod
        def mean(values, axis=None):
            # c - (c + (m - c)) would be all; what is left over is (S - 1) / S of the right one.
            found = real(values, axis=axis)
            return found if axis is None else found + (values - found) / values.shape[0]

    patch.setattr(elbo, "jnp", Numbers())


def flip_the_divergence(patch):
    patch.setattr(sites.dist, "kl_divergence", lambda q, p: -dist.kl.kl_divergence(q, p))


def scale_the_score_too(patch):
    real = sites.OfSites.sample

    def sample(self, parameters, noise, batch):
        found = real(self, parameters, noise, batch)
        return found._replace(scores={name: found.log_q.get(name, s) for name, s in found.scores.items()})

    patch.setattr(sites.OfSites, "sample", sample)


def unbiased(gradient, batch_size=None):
    return lambda: test_elbo.test_estimates_are_unbiased("meanfield", gradient, batch_size)


def guides_agree():
    test_guides.test_score_function_of_everything_agrees_with_the_mixed_one(test_guides.mixture_guide)


def divergences_agree():
    test_guides.test_closed_forms_are_used_where_they_hold()


BUGS = {
    "N/B dropped": (drop_the_scaling, unbiased("pathwise", 5)),
    "N/B dropped, score": (drop_the_scaling, unbiased("score", 5)),
    "entropy forgotten": (forget_the_entropy, unbiased("pathwise")),
    "own log q forgotten": (forget_own_log_q, test_elbo.test_one_draw_by_hand),
    "oneself in the baseline": (count_oneself_in_the_baseline, unbiased("score")),
    "path through scored draws": (differentiate_through_scored_draws, guides_agree),
    "divergence flipped": (flip_the_divergence, divergences_agree),
    "score scaled by N/B": (scale_the_score_too, test_guides.test_minibatches_of_an_amortised_guide_are_unbiased),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    put_in, check = BUGS[bug]
    forget()
    put_in(monkeypatch)
    with pytest.raises(AssertionError):
        check()
    forget()
