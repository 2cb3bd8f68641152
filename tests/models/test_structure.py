"""What a program must be like, and what it is told if it is not."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from examples import DATA, NUM_ROWS, make, name_of, nested_plates, no_plate, row_local, rows, scalars
from numpyro import handlers

from langevin.errors import ModelError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def pairs(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("left", x.shape[0], dim=-2), numpyro.plate("right", x.shape[0], dim=-1):
        numpyro.sample("z", dist.Normal(m, 1.0), obs=y[:, None] * y)


def test_nested_plates_of_the_size_of_the_data_are_ambiguous_until_named():
    with pytest.raises(ModelError, match=r"'(left|right)' and '(left|right)' both have the size.*`rows="):
        make(pairs)
    posterior = make(pairs, rows="left")
    position = {"m": jnp.array(0.4)}
    by_row = dist.Normal(0.4, 1.0).log_prob(DATA["y"][:, None] * DATA["y"]).sum(1)
    np.testing.assert_allclose(posterior.log_likelihood(position), by_row, rtol=1e-5)


@pytest.mark.parametrize("named", [None, "left"])
def test_pairs_of_rows_cannot_be_minibatched(named):
    with pytest.raises(ModelError, match=r"Site 'z'.*pairs of rows.*`batch_size`"):
        make(pairs, minibatch=True, rows=named)


def test_rows_must_name_a_plate_over_the_rows():
    with pytest.raises(ModelError, match=r"`rows='nowhere'`.*no such plate.*'rows'"):
        make(scalars, rows="nowhere")
    with pytest.raises(ModelError, match=r"`rows='groups'`.*size 3.*6 rows.*'rows'"):
        make(nested_plates, minibatch=True, rows="groups")


def test_discrete_latent():
    def model(y):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"Every latent site of the program is discrete \('k'\).*lv.VI"):
        make(model, {"y": DATA["y"]})


def test_support_without_a_bijection():
    def model(y):
        v = numpyro.sample("v", dist.ProjectedNormal(jnp.ones(3)))
        numpyro.sample("y", dist.Normal(v[0], 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'v' has the support.*reparam"):
        make(model, {"y": DATA["y"]})


def test_row_local_latent_under_minibatch():
    with pytest.raises(ModelError, match=r"'z' is latent and inside the plate over the rows.*`batch_size`"):
        make(row_local, minibatch=True)


def test_latent_whose_shape_follows_the_rows():
    def model(x, y, group):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
        with rows(x):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"shape of latent site 'z' follows the number of rows.*`batch_size`"):
        make(model, minibatch=True)


def test_site_that_exists_only_for_many_rows():
    def model(x, y, group):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        if x.shape[0] > 4:
            m = m + numpyro.sample("extra", dist.Normal(0.0, 1.0))
        with rows(x):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"site 'extra' follows the number of rows.*`constants`"):
        make(model, minibatch=True)


def outside(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("total", dist.Normal(m, 1.0), obs=y.sum())
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def outside_times_latent(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.factor("total", m * y.sum())  # does not depend on the rows at m = 0
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("model", [outside, outside_times_latent], ids=name_of)
def test_observed_site_outside_the_plate_under_minibatch(model):
    with pytest.raises(ModelError, match=r"'total' depends on the rows but is outside.*'rows'.*Move it inside"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def prior_of_data(x, y, group):
    m = numpyro.sample("m", dist.Normal(y.mean(), 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def prior_of_data_times_latent(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    m = numpyro.sample("m", dist.Normal(w * y.mean(), 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def prior_of_size(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1 / x.shape[0]))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("model", [prior_of_data, prior_of_data_times_latent, prior_of_size], ids=name_of)
def test_prior_that_depends_on_the_data(model):
    with pytest.raises(ModelError, match=r"prior of site 'm' depends on the rows.*`constants`"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def centred(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(w * (x[:, 0] - x[:, 0].mean()), 1.0), obs=y)


def averaged(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x), handlers.scale(scale=1 / x.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.mark.parametrize("model", [centred, averaged], ids=name_of)
def test_rows_that_depend_on_each_other(model):
    with pytest.raises(ModelError, match=r"'y': the log-likelihood of a row depends on the other rows.*`constants`"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


@pytest.mark.parametrize("minibatch", [False, True])
def test_a_column_of_observations_against_a_row_of_distributions(minibatch):
    data = DATA | {"y": DATA["y"][:, None]}
    with pytest.raises(ModelError, match=r"'y': values of shape \(6, 1\) meet .* \(6,\)"):
        make(scalars, data, minibatch=minibatch)


def test_no_row_plate():
    with pytest.raises(ModelError, match=r"No plate of the program is over the 6 rows.*numpyro.plate"):
        make(no_plate, minibatch=True)


def test_nothing_observed_in_the_row_plate():
    def model(x, y, group):
        numpyro.sample("m", dist.Normal(0.0, 1.0))
        with rows(x):
            numpyro.deterministic("d", y)

    with pytest.raises(ModelError, match="Nothing is observed inside the plate over the rows, 'rows'"):
        make(model, minibatch=True)


def test_nothing_to_infer():
    with pytest.raises(ModelError, match="no latent site"):
        make(lambda y: numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y), {"y": DATA["y"]})


def test_subsample_size():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0], subsample_size=2) as index:
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y[index])

    with pytest.raises(ModelError, match=r"Plate 'rows' has a `subsample_size`\. Leave it out"):
        make(model, {"y": DATA["y"]})


def test_param():
    def model(y):
        m = numpyro.param("m", 0.0)
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'m' is a `numpyro.param`.*`numpyro.sample`"):
        make(model, {"y": DATA["y"]})


@pytest.mark.parametrize(
    "look",
    [lambda group: int(group.max()), lambda group: range(group[0]), np.asarray, lambda group: group[group > 0].sum()],
    ids=["int", "range", "numpy", "boolean index"],
)
def test_program_that_looks_at_values(look):
    def model(group):
        numpyro.sample("m", dist.Normal(0.0, 1.0))
        look(group)

    with pytest.raises(ModelError, match=r"asks for a value of the data.*line \d+.*`constants`"):
        make(model, {"group": DATA["group"]})


@pytest.mark.parametrize(
    ("look", "remedy"),
    [(np.exp, "jnp.exp"), (float, "leave the conversion out"), (lambda z: z if z > 0 else -z, "jnp.where")],
    ids=["numpy", "float", "if"],
)
def test_program_that_looks_at_values_of_latent_sites(look, remedy):
    def model(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(look(z), 1.0), obs=y)

    with pytest.raises(ModelError, match=rf"a value of a latent site.*line \d+: .*{remedy}"):
        make(model, {"y": DATA["y"]})


def column_of_parameters(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(w * x[:, :1], 1.0), obs=y)


def column_of_values(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y[:, None])


def events_against_rows(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(w * x[:, None], 1.0).to_event(1), obs=x)


@pytest.mark.parametrize("model", [column_of_parameters, column_of_values, events_against_rows], ids=name_of)
@pytest.mark.parametrize("num_rows", [2, 3, NUM_ROWS])
@pytest.mark.parametrize("minibatch", [False, True])
def test_rows_against_rows(model, num_rows, minibatch):
    data = {name: column[:num_rows] for name, column in DATA.items()}
    with pytest.raises(ModelError, match=rf"'y': values of shape .*every one of the {num_rows} rows|No plate"):
        make(model, data, minibatch=minibatch and model is not column_of_values)


def distances(x, y, group):
    """A Gaussian process: the matrix is inside one event."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    square = ((x[:, None] - x) ** 2).sum(-1)
    covariance = jnp.exp(-square / scale) + jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance), obs=y)


def matrix_of_values(x, y, group):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("d", dist.Normal(0.0, scale), obs=y[:, None] - y)


def one_value_for_all_pairs(x, y, group):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("near", dist.Bernoulli(logits=scale - (y[:, None] - y) ** 2), obs=1)


def as_many_components_as_rows(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mixture = dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(m, 1.0))
    with rows(x):
        numpyro.sample("y", mixture, obs=y)


def as_many_columns_as_rows(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("columns", x.shape[1], dim=-1):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def two_plates(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("left", x.shape[0], dim=-2), numpyro.plate("right", x.shape[0], dim=-1):
        numpyro.sample("z", dist.Normal(m * y, 1.0), obs=y[:, None])


RIGHT = [distances, matrix_of_values, one_value_for_all_pairs, as_many_components_as_rows, as_many_columns_as_rows]


@pytest.mark.parametrize("model", [*RIGHT, two_plates], ids=name_of)
@pytest.mark.parametrize("num_rows", [1, 2, NUM_ROWS])
def test_matrices_of_rows_that_are_meant(model, num_rows):
    data = {name: column[:num_rows] for name, column in DATA.items()}
    assert make(model, data, rows="left" if model is two_plates else None).num_data == num_rows


def test_a_plate_of_the_wrong_size():
    def of_values(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 7):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    def of_parameters(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 7):
            numpyro.sample("y", dist.Normal(m * y, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'y': values of shape \(6,\) cannot meet distributions of shape \(7,\)"):
        make(of_values, {"y": DATA["y"]})
    with pytest.raises(ModelError, match=r"Site 'y' cannot be made.*\(7,\).*x\.shape\[0\]"):
        make(of_parameters, {"y": DATA["y"]})


def test_two_sites_of_one_name():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0)) + numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match="two sites named 'm'"):
        make(model, {"y": DATA["y"]})


def test_names_that_do_not_match():
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'z'.*\(x, y, group\).*'z'"):
        make(scalars, DATA | {"z": DATA["y"]})
    with pytest.raises(ModelError, match="missing a required argument: 'group'"):
        make(scalars, {name: DATA[name] for name in "xy"})


def test_errors_of_the_program_itself_pass_through():
    def raises(y):
        raise KeyError("nonsense")

    def misuses(y):
        numpyro.sample("m", dist.Normal(0.0, 1.0, nonsense=1))

    with pytest.raises(KeyError, match="nonsense"):
        make(raises, {"y": DATA["y"]})
    with pytest.raises(
        ModelError, match=r"program failed, at .*test_structure\.py, line \d+: .*nonsense=1.*unexpected"
    ):
        make(misuses, {"y": DATA["y"]})


def test_site_and_plate_of_one_name():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("m", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match="'m' is the name of a site and of a plate"):
        make(model, {"y": DATA["y"]})


def hard_coded_plate(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", NUM_ROWS):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def hard_coded_array(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m + jnp.zeros(NUM_ROWS), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"), [(hard_coded_plate, "'rows' has that size, but keeps it"), (hard_coded_array, "but not on 5")]
)
def test_hard_coded_number_of_rows(model, message):
    with pytest.raises(ModelError, match=rf"{message}.*x\.shape\[0\]"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def test_rows_must_be_a_name():
    with pytest.raises(ModelError, match="`rows` must be the name of a plate; got 3"):
        make(scalars, rows=3)


def test_site_with_the_name_of_a_dimension():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("draw", dist.Normal()), 1.0), obs=y)

    with pytest.raises(ModelError, match="Site 'draw' has the name of a dimension"):
        make(model, {"y": DATA["y"]})


def test_data_and_constants_with_one_name():
    with pytest.raises(ModelError, match=r"both have \['y'\]"):
        make(scalars, constants={"y": 1.0})


def test_explain_names_site_and_row():
    def model(y):
        rate = numpyro.sample("rate", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Beta(rate, 2.0), obs=y)

    posterior = make(model, {"y": np.array([0.5, 0.2, 1.0])})
    message = posterior.explain({"rate": jnp.array(0.0)}, posterior.rows)
    assert "observed site 'y' is -inf at row 2, where its value is 1.0" in message
    assert "site 'rate'" in posterior.explain({"rate": jnp.array(jnp.inf)}, posterior.rows)
