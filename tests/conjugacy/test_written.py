"""Conditionals as a person would write them."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

DATA = {"y": np.array([0.5, -1.0, 2.0, 0.3]), "g": np.array([0, 1, 1, 0])}


def groups(y, g):
    centre = numpyro.sample("centre", dist.Normal(0, 5))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("groups", 2):
        effect = numpyro.sample("effect", dist.Normal(centre, 0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(effect[g], precision**-0.5), obs=y)


def test_each_site_has_its_family_and_parameters(capsys):
    lv.show_conditionals(groups, DATA)
    shown = capsys.readouterr().out
    assert "effect, centre | rest ~ MultivariateNormal of 3" in shown or "centre, effect | rest" in shown
    assert "precision[effect[i]] = 4 + sum_n [g[n] = i] precision" in shown
    assert "precision * mean[effect[i]] = sum_n [g[n] = i] precision y[n]" in shown
    # Two rows of each group, so half of four beside the prior's 2.
    assert "precision | rest ~ Gamma\n    concentration = 4\n" in shown
    rate = "rate = 1 + 0.5 sum_n effect[g[n]]^2 - sum_n effect[g[n]] y[n] + 0.5 sum_n y[n]^2"
    assert rate in shown


def test_blocks_by_hand(capsys):
    lv.show_conditionals(groups, DATA, blocks="sites")
    shown = capsys.readouterr().out
    assert "centre | rest ~ Normal\n    precision = 8.04\n    precision * mean = sum_i 4 effect[i]" in shown.replace(
        "4 sum_i effect[i]", "sum_i 4 effect[i]"
    )
    assert "effect | rest ~ Normal, 2 of them" in shown


def test_labels_and_logistic(capsys):
    def mixture(y):
        weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("kinds", 2):
            mean = numpyro.sample("mean", dist.Normal(0, 3))
        with numpyro.plate("rows", len(y)):
            z = numpyro.sample("z", dist.Categorical(weight))
            numpyro.sample("y", dist.Normal(mean[z], 1), obs=y)

    lv.show_conditionals(mixture, {"y": DATA["y"]})
    shown = capsys.readouterr().out
    assert "concentration[i] = 1 + sum_n [z[n] = i]" in shown
    assert "log probability[i, n] = log weight[i]" in shown
    assert "- 0.5 mean[i]^2 + mean[i] y[n]" in shown

    def logistic(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)

    data = {"x": DATA["y"], "y": DATA["g"]}
    with pytest.raises(lv.NotConjugateError, match="logistic function"):
        lv.show_conditionals(logistic, data)
    lv.show_conditionals(logistic, data, logistic="polya-gamma")
    assert "y_omega | rest ~ PolyaGamma" in capsys.readouterr().out
