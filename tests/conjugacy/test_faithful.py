"""Programs that look conjugate, or do something unusual: read rightly or refused, and never something else."""

import jax
import numpy as np
import pytest
from conjugate import CASES, Case, conditionals_of, joint_of, log_joints, random_values
from unusual import (
    GROUP,
    MASK,
    RNG,
    ROWS,
    SERIES,
    TABLE,
    YEARS,
    Y,
    as_number,
    autoregressive,
    averaged,
    bernoulli,
    binomial,
    centred,
    change_of_years,
    choice_at_two_places,
    compared,
    counted,
    deterministic,
    either_precision,
    emission_of_both,
    events,
    expanded,
    factored,
    first_of_them,
    from_two,
    global_label,
    label_and_local,
    label_before_the_chain,
    label_by_index,
    label_of_columns,
    label_of_columns_in_events,
    label_of_label,
    label_of_rows,
    logits_of_data,
    masked,
    masked_distribution,
    missing,
    neighbours,
    nested_choices,
    one_hot,
    outliers,
    outside_its_plate,
    product_of_labels,
    put_together,
    rate_times_label,
    reparametrised,
    rolled,
    running_sum,
    scaled,
    scaled_and_masked,
    scaled_by_row,
    single_constants,
    single_row,
    sorted_labels,
    spike_and_slab,
    two_labels,
    where_data_says,
)

import langevin as lv
from langevin.conjugacy.conditionals import Conditionals
from langevin.engines.given import as_double
from langevin.run.seeds import Seed

COLUMNS = {"y": TABLE}
WITH_MASK = {"y": Y, "mask": MASK}
READ = [
    *[(model, ROWS) for model in (as_number, compared, one_hot, from_two, bernoulli, binomial, logits_of_data)],
    *[(model, ROWS) for model in (two_labels, label_of_label, global_label, label_and_local, product_of_labels)],
    *[(model, COLUMNS) for model in (label_of_columns, label_of_rows, expanded, events)],
    *[(model, ROWS) for model in (single_row, neighbours, centred, deterministic, factored, put_together)],
    *[(model, ROWS) for model in (reparametrised, scaled, scaled_by_row)],
    *[(model, WITH_MASK) for model in (where_data_says, masked, masked_distribution, missing, scaled_and_masked)],
    *[(model, WITH_MASK) for model in (either_precision, nested_choices)],
    (outliers, ROWS),
    (change_of_years, YEARS),
    (autoregressive, {"series": Y}),
    *[(model, None) for model in (emission_of_both, autoregressive, label_before_the_chain)],
]
REFUSED = [
    *[(model, ROWS) for model in (outside_its_plate, first_of_them, rolled, counted, averaged, sorted_labels)],
    (label_by_index, {"y": Y, "group": GROUP}),
    (label_of_columns_in_events, COLUMNS),
    (running_sum, None),
    (choice_at_two_places, WITH_MASK),
]
# With what the error says to do.
ADVISED = [
    (rate_times_label, {"count": YEARS["count"]}, "small number in place of zero"),
    (spike_and_slab, {"y": Y, "table": RNG.normal(size=(9, 2))}, "element by element"),
]


def case_of(model, data):
    return Case(model, data, SERIES if data is None else None)


def name_of(value):
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("model", "data"), READ, ids=name_of)
def test_log_joint_is_that_of_numpyro(model, data):
    case = case_of(model, data)
    with jax.enable_x64(True):
        conditionals = conditionals_of(case)
        for seed in range(2):
            ours, theirs = log_joints(case, conditionals, random_values(conditionals, seed))
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(("model", "data"), REFUSED, ids=name_of)
def test_refused(model, data):
    with jax.enable_x64(True), pytest.raises(lv.ModelError):
        conditionals = conditionals_of(case_of(model, data))
        conditionals.check(Seed.of(0), conditionals.joint.rows)


@pytest.mark.parametrize(("model", "data", "advice"), ADVISED, ids=name_of)
def test_refused_with_advice(model, data, advice):
    with jax.enable_x64(True), pytest.raises(lv.ModelError, match=advice):
        conditionals_of(case_of(model, data))


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_whole_numbers_in_constants():
    """They have one type in the process, although conditionals are computed in double precision."""
    year = {"year": np.asarray(YEARS["year"], np.int64)}
    fit = lv.fit(change_of_years, {"count": YEARS["count"]}, "gibbs", constants=year, num_draws=50, progress=False)
    assert fit.posterior["when"].values.min() >= 1851


@pytest.mark.parametrize("case", [Case(single_constants, ROWS), CASES["beta_binomial"]], ids=lambda case: case.name)
def test_single_precision_of_the_program_is_no_difference(case):
    """JAX computes log-gamma functions of short whole numbers in single precision, in double precision as well."""
    joint = joint_of(case)
    with jax.enable_x64(True):
        Conditionals(joint, joint.num_data).check(Seed.of(0), as_double(joint.rows))
