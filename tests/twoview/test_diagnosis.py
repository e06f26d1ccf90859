"""A diagnosis says what is wrong where it is, and nothing where all is well."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.twoview import diagnose
from twoview.conditional_cases import fitted, rows_of


def test_a_good_fit_has_no_concerns() -> None:
    conditional = fitted(rows_of(4000, 50), (2, 2, 2))
    found = diagnose(conditional, batch_size=400)
    assert found.concerns == ()
    eta = conditional.model.canonical.correlation
    assert found.loss == pytest.approx(float(2 - (eta**2).sum()), rel=1e-12)
    assert found.batch_loss == pytest.approx(found.loss, abs=0.1)
    assert found.rows_per_variable == pytest.approx(400 / 3)
    assert "note" not in str(found)


def test_few_rows_and_small_batches_are_concerns() -> None:
    found = diagnose(fitted(rows_of(80, 51), (9, 9, 9)), lambda x: (x > 1.5).double(), batch_size=20)
    assert found.batch_too_small
    assert found.negative_mass > 0.05
    assert found.worst_negative_mass >= found.negative_mass
    assert found.negative_variance > 0.05
    assert found.batch_loss is not None
    assert found.batch_loss < found.loss - 0.9
    assert len(found.concerns) == 4
    for word in ("negative mass", "replaced by 0", "batch of 20 rows", "of a batch are partly spurious"):
        assert word in str(found)


def test_numbers_are_those_of_the_expectation() -> None:
    conditional = fitted(rows_of(60, 52), (6, 6, 6))
    given = conditional.source.rows[:, 1:]
    whole = conditional.expect(None, given)
    found = diagnose(conditional, n_given=60)
    assert found.n_given == 60
    assert found.negative_mass == pytest.approx(whole.negative_mass.mean(), rel=1e-10)
    assert found.negative_variance == pytest.approx(whole.negative_variance.mean())
    assert found.batch_size is None
    assert found.batch_loss is None


def test_batch_below_the_number_of_variables() -> None:
    """Chance alone gives every variable relevance 1."""
    found = diagnose(
        fitted(torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2))), (6, 6, 6)), batch_size=6
    )
    assert found.loss > 5.0
    assert found.batch_loss is not None
    assert found.batch_loss < 1.5
    assert any("of a batch are partly spurious" in concern for concern in found.concerns)


def test_a_fit_without_variables_is_diagnosed_too() -> None:
    constant = rows_of(40, 52)
    constant[:, 0] = 1.0
    diagnosis = diagnose(fitted(constant, (1, 1, 1)), batch_size=20)
    assert (diagnosis.n_features, diagnosis.loss, diagnosis.batch_loss) == (0, 0.0, 0.0)
