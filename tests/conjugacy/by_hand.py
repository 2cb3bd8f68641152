"""Coordinate ascent derived by hand, in NumPy: for each program of `programs.CASES` the update of every factor of q.

A q is a dictionary of parameters, by the names of a fit's group "parameters". An update takes the q of all factors and
the data, and returns the parameters of its own.
"""

import numpy as np
from scipy.special import digamma, gammaln
from scipy.stats import beta, dirichlet, gamma

LOG_2_PI = np.log(2 * np.pi)


def mean_of_gamma(q, name):
    return q[f"{name}.concentration"] / q[f"{name}.rate"]


def log_of_gamma(q, name):
    return digamma(q[f"{name}.concentration"]) - np.log(q[f"{name}.rate"])


def log_of_dirichlet(concentration):
    return digamma(concentration) - digamma(concentration.sum(-1, keepdims=True))


def as_gamma(name, concentration, rate):
    return {f"{name}.concentration": concentration, f"{name}.rate": rate}


def as_normal(name, precision, linear):
    return {f"{name}.loc": (linear / precision)[..., None], f"{name}.scale": (precision**-0.5)[..., None]}


def shares(logits):
    raw = np.exp(logits - logits.max(-1, keepdims=True))
    return raw / raw.sum(-1, keepdims=True)


def sum_by(group, values, size):
    return np.stack([values[group == g].sum(0) for g in range(size)])


def spread(q, name, x):
    """E (x - m)^2."""
    return (x - q[f"{name}.loc"][..., 0]) ** 2 + q[f"{name}.scale"][..., 0] ** 2


def entropy_of_normal(scale):
    return np.sum(np.log(scale) + 0.5 * (1 + LOG_2_PI))


def entropy_of_gamma(q, name):
    return np.sum(gamma.entropy(q[f"{name}.concentration"], scale=1 / q[f"{name}.rate"]))


def expected_gamma_prior(q, name, concentration, rate):
    """E log Gamma(z; concentration, rate)."""
    own = concentration * np.log(rate) - gammaln(concentration)
    return np.sum(own + (concentration - 1) * log_of_gamma(q, name) - rate * mean_of_gamma(q, name))


class NormalGamma:
    def mu(self, q, x):
        expected = mean_of_gamma(q, "gamma")
        return as_normal("mu", np.array(1 / 9 + len(x) * expected), expected * x.sum())

    def gamma(self, q, x):
        return as_gamma("gamma", 2 + len(x) / 2, 1.5 + 0.5 * spread(q, "mu", x).sum())

    def bound(self, q, x):
        likelihood = 0.5 * len(x) * (log_of_gamma(q, "gamma") - LOG_2_PI)
        likelihood -= 0.5 * mean_of_gamma(q, "gamma") * spread(q, "mu", x).sum()
        prior = -0.5 * spread(q, "mu", 0.0).sum() / 9 - 0.5 * LOG_2_PI - np.log(3)
        prior += expected_gamma_prior(q, "gamma", 2, 1.5)
        return likelihood + prior + entropy_of_normal(q["mu.scale"]) + entropy_of_gamma(q, "gamma")


PRIOR = np.diag([1 / 25, 1 / 4, 1 / 4])


class Regression:
    def intercept_and_slopes(self, q, x, y):
        design = np.column_stack([np.ones(len(y)), x])
        covariance = np.linalg.inv(PRIOR + mean_of_gamma(q, "noise") * design.T @ design)
        loc = covariance @ design.T @ y * mean_of_gamma(q, "noise")
        return {"intercept+slopes.loc": loc, "intercept+slopes.covariance_matrix": covariance}

    def squares(self, q, x, y):
        design = np.column_stack([np.ones(len(y)), x])
        loc, covariance = q["intercept+slopes.loc"], q["intercept+slopes.covariance_matrix"]
        return np.sum((y - design @ loc) ** 2) + np.trace(design @ covariance @ design.T)

    def noise(self, q, x, y):
        return as_gamma("noise", 1 + len(y) / 2, 0.5 + 0.5 * self.squares(q, x, y))

    def bound(self, q, x, y):
        loc, covariance = q["intercept+slopes.loc"], q["intercept+slopes.covariance_matrix"]
        value = 0.5 * len(y) * (log_of_gamma(q, "noise") - LOG_2_PI)
        value -= 0.5 * mean_of_gamma(q, "noise") * self.squares(q, x, y)
        value += 0.5 * np.linalg.slogdet(PRIOR)[1] - 1.5 * LOG_2_PI
        value -= 0.5 * np.trace(PRIOR @ (covariance + np.outer(loc, loc)))
        value += expected_gamma_prior(q, "noise", 1, 0.5) + entropy_of_gamma(q, "noise")
        return value + 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]


class Mixture:
    def weights(self, q, x):
        return {"weights.concentration": 2 + q["z.probs"].sum(0)}

    def means(self, q, x):
        expected, r = mean_of_gamma(q, "precisions"), q["z.probs"]
        return as_normal("means", 0.01 + expected * r.sum(0), expected * (r * x[:, None]).sum(0))

    def precisions(self, q, x):
        r = q["z.probs"]
        return as_gamma("precisions", 2 + r.sum(0) / 2, 1 + 0.5 * (r * spread(q, "means", x[:, None])).sum(0))

    def logits(self, q, x):
        logs = log_of_dirichlet(q["weights.concentration"]) + 0.5 * (log_of_gamma(q, "precisions") - LOG_2_PI)
        return logs - 0.5 * mean_of_gamma(q, "precisions") * spread(q, "means", x[:, None])

    def z(self, q, x):
        return {"z.probs": shares(self.logits(q, x))}

    def bound(self, q, x):
        r, concentration = q["z.probs"], q["weights.concentration"]
        value = np.sum(r * self.logits(q, x)) - np.sum(np.where(r > 0, r * np.log(np.where(r > 0, r, 1)), 0))
        value += np.sum(log_of_dirichlet(concentration)) + gammaln(6) - 3 * gammaln(2)
        value += dirichlet.entropy(concentration)
        value += np.sum(-0.5 * spread(q, "means", 0.0) / 100 - 0.5 * LOG_2_PI - np.log(10))
        value += expected_gamma_prior(q, "precisions", 2, 1)
        return value + entropy_of_normal(q["means.scale"]) + entropy_of_gamma(q, "precisions")


class BetaBinomial:
    def p(self, q, tried, hits, group, num_group):
        ones, all_ = sum_by(group, hits, num_group), sum_by(group, tried, num_group)
        return {"p.concentration1": 2 + ones, "p.concentration0": 3 + all_ - ones}

    def bound(self, q, tried, hits, group, num_group):
        a, b = q["p.concentration1"], q["p.concentration0"]
        logs, rest = digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)
        ways = gammaln(tried + 1) - gammaln(hits + 1) - gammaln(tried - hits + 1)
        value = np.sum(ways + hits * logs[group] + (tried - hits) * rest[group])
        return value + np.sum(logs + 2 * rest + np.log(12)) + np.sum(beta.entropy(a, b))


class PoissonGamma:
    def scale(self, q, y, group, num_group):
        return as_gamma("scale", 2 + 3 * num_group, 1 + mean_of_gamma(q, "rate").sum())

    def rate(self, q, y, group, num_group):
        counts = sum_by(group, np.ones(len(y)), num_group)
        return as_gamma("rate", 3 + sum_by(group, y, num_group), mean_of_gamma(q, "scale") + counts)


class Factorisation:
    """Of one side given the other, and the noise given both."""

    def side(self, q, own, other, mine, theirs, size, rating):
        loc = q[f"{other}.loc"]
        second = q[f"{other}.covariance_matrix"] + loc[:, :, None] * loc[:, None, :]
        expected = mean_of_gamma(q, "noise")
        precision = np.eye(2) + expected * sum_by(mine, second[theirs], size)
        linear = expected * sum_by(mine, rating[:, None] * loc[theirs], size)
        covariance = np.linalg.inv(precision)
        return {f"{own}.loc": np.einsum("nij,nj->ni", covariance, linear), f"{own}.covariance_matrix": covariance}

    def u(self, q, user, item, rating, num_user, num_item):
        return self.side(q, "u", "v", user, item, num_user, rating)

    def v(self, q, user, item, rating, num_user, num_item):
        return self.side(q, "v", "u", item, user, num_item, rating)

    def noise(self, q, user, item, rating, num_user, num_item):
        seconds, means = [], []
        for name, index in (("u", user), ("v", item)):
            loc = q[f"{name}.loc"][index]
            means.append(loc)
            seconds.append(q[f"{name}.covariance_matrix"][index] + loc[:, :, None] * loc[:, None, :])
        fitted = np.sum(means[0] * means[1], -1)
        squares = rating**2 - 2 * rating * fitted + np.sum(seconds[0] * seconds[1], (-1, -2))
        return as_gamma("noise", 2 + len(rating) / 2, 1 + 0.5 * squares.sum())


class HiddenMarkov:
    """The path begins as if the state before it were 0."""

    def pairs(self, q):
        return q["z.probs"][:-1, :, None] * q["z.transition_probs"]

    def onward(self, q, series):
        counts = self.pairs(q).sum(0)
        counts[0] += q["z.probs"][0]
        return {"onward.concentration": np.array([2.0, 1.0]) + counts}

    def means(self, q, series):
        expected, r = mean_of_gamma(q, "precisions"), q["z.probs"]
        return as_normal("means", 1 / 25 + expected * r.sum(0), expected * (r * series[:, None]).sum(0))

    def precisions(self, q, series):
        r = q["z.probs"]
        return as_gamma("precisions", 2 + r.sum(0) / 2, 2 + 0.5 * (r * spread(q, "means", series[:, None])).sum(0))

    def z(self, q, series):
        logs = 0.5 * (log_of_gamma(q, "precisions") - LOG_2_PI)
        seen = np.exp(logs - 0.5 * mean_of_gamma(q, "precisions") * spread(q, "means", series[:, None]))
        move = np.exp(log_of_dirichlet(q["onward.concentration"]))
        length = len(series)
        forward, backward = np.zeros((length, 2)), np.ones((length, 2))
        for t in range(length):
            forward[t] = (forward[t - 1] @ move if t else move[0]) * seen[t]
            forward[t] /= forward[t].sum()
        for t in range(length - 2, -1, -1):
            backward[t] = move @ (seen[t + 1] * backward[t + 1])
            backward[t] /= backward[t].sum()
        probs = forward * backward
        onward = move * (seen[1:] * backward[1:])[:, None, :]
        return {
            "z.probs": probs / probs.sum(-1, keepdims=True),
            "z.transition_probs": onward / onward.sum(-1, keepdims=True),
        }


class StateSpace:
    def steps(self, series):
        size = len(series)
        differences = np.eye(size) - 0.9 * np.eye(size, k=-1)
        return differences.T @ differences

    def x(self, q, series):
        precision = mean_of_gamma(q, "moves") * self.steps(series) + mean_of_gamma(q, "errors") * np.eye(len(series))
        covariance = np.linalg.inv(precision)
        return {
            "x.loc": (covariance @ series * mean_of_gamma(q, "errors"))[:, None],
            "x.covariance_matrix": np.diagonal(covariance)[:, None, None],
            "x.lagged_covariance": np.diagonal(covariance, 1)[:, None, None],
        }

    def moves(self, q, series):
        loc = q["x.loc"][:, 0]
        second = np.diag(q["x.covariance_matrix"][:, 0, 0])
        lagged = np.diag(q["x.lagged_covariance"][:, 0, 0], 1)
        second = second + lagged + lagged.T
        squares = loc @ self.steps(series) @ loc + np.sum(self.steps(series) * second)
        return as_gamma("moves", 2 + len(series) / 2, 0.5 + 0.5 * squares)

    def errors(self, q, series):
        squares = np.sum((series - q["x.loc"][:, 0]) ** 2) + q["x.covariance_matrix"].sum()
        return as_gamma("errors", 2 + len(series) / 2, 0.5 + 0.5 * squares)


class Topics:
    def phi(self, q, document, word, num_document, num_words):
        return {"phi.concentration": 0.5 + sum_by(word, q["z.probs"], num_words).T}

    def theta(self, q, document, word, num_document, num_words):
        return {"theta.concentration": 0.8 + sum_by(document, q["z.probs"], num_document)}

    def z(self, q, document, word, num_document, num_words):
        logs = log_of_dirichlet(q["theta.concentration"])[document]
        return {"z.probs": shares(logs + log_of_dirichlet(q["phi.concentration"])[:, word].T)}


BY_HAND = {
    "normal_gamma": NormalGamma(),
    "regression": Regression(),
    "mixture": Mixture(),
    "beta_binomial": BetaBinomial(),
    "poisson_gamma": PoissonGamma(),
    "factorisation": Factorisation(),
    "hidden_markov": HiddenMarkov(),
    "state_space": StateSpace(),
    "topics": Topics(),
}


def updated(name, block, q, arguments):
    """The parameters of one factor, given those of all others."""
    return getattr(BY_HAND[name], block.replace("+", "_and_"))(q, **arguments)
