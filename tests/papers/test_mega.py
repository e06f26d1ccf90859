"""Document 000, at small sizes: orderings that must hold, and claims that must not."""

import json
from functools import cache
from importlib import import_module

import numpy as np
import pytest

from boxloop.numeric import generator
from boxloop.replicate import Options
from boxloop.replicate import mega_variance as variance
from boxloop.replicate.mega_clusters import clusters
from boxloop.replicate.mega_moons import moons
from boxloop.replicate.moment_tables import exact_gaps, fitted, spread_of_gaps

NAMES = ["mega-variance", "mega-clusters", "mega-moons"]


@cache
def quick(name):
    """One quick run of an experiment, for all tests of this file."""
    return import_module(f"boxloop.replicate.{name.replace('-', '_')}").experiment(Options(quick=True))


def verdicts(name):
    return {finding.claim: finding.verdict for finding in quick(name).findings}


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_figures_are_written(name, tmp_path):
    report = quick(name)
    paths = report.write(tmp_path)
    facts = json.loads(paths[0].read_text())
    assert report.name == facts["name"] == name
    assert len(facts["findings"]) == len(report.findings)
    assert "NaN" not in paths[0].read_text()
    assert paths[1].read_text().count("| **") == len(report.findings)
    assert [p for p in paths if p.suffix == ".png"]
    assert "data" in report.settings, "it says which data it used"


def test_forward_moments_are_nearer_at_every_m():
    for table in quick("mega-variance").curves.values():
        for moment in variance.MOMENTS:
            near, far = (np.array(table[f"{moment}, {m}"]) for m in (variance.FORWARD, variance.SAMPLE))
            assert (near < far).all()
    assert set(verdicts("mega-variance").values()) == {"reproduced in distribution", "target met"}


def test_the_proof_of_the_appendix():
    """Chance of failing for right code: below 2e-4, at four standard errors."""
    model = variance.problems()[variance.OVERLAPPING]
    stream = generator(1)
    found = [variance.distances(model, 50, stream) for _ in range(400)]
    for which in range(2):
        forward, sample = (
            np.array([f[m][which] for f in found]) for m in (variance.FORWARD, variance.SAMPLE)
        )
        value, error = variance.ratio(forward, sample)
        assert abs(value - variance.theory(model)[which]) < 4 * error


@pytest.mark.parametrize("rows", [clusters, moons])
def test_exact_gaps_do_not_depend_on_the_number_of_components(rows):
    table = rows(400, 3)
    assert spread_of_gaps(table, (1, 2, 3, 5, 8), seed=3) < 1e-8
    assert max(float(gap.norm()) for gap in exact_gaps(fitted(table, 3, 3), table)) < 1e-8
    assert float(exact_gaps(fitted(table, 3, 3, "diag"), table)[1].norm()) > 1e-3, (
        "the identity needs full or tied"
    )


def test_gaps_cannot_tell_one_cluster_from_three_and_fourier_features_can():
    curves = quick("mega-clusters").curves
    one, three = curves["1: probabilistic PCA (unimodal)"], curves["4: mixture, K = 3"]
    assert max(one["exact second"] + three["exact second"]) < 1e-8
    assert np.median(one["p, Fourier"]) <= 0.05 < np.median(three["p, Fourier"])
    found = verdicts("mega-clusters")
    assert found["2MEGA-F and MMD agree on the worst model, model 2"] == "reproduced in distribution"
    assert found["2MEGA-F and MMD agree on the best model, model 4"] == "not reproduced"


def test_a_centre_of_mass_that_is_off_is_seen_by_first_moments():
    assert (
        verdicts("mega-moons")["model 3 looks right and has the largest 1MEGA-F"]
        == "reproduced in distribution"
    )
    assert max(quick("mega-moons").curves["3: mixture, K = 8, wrong weights"]["p, first"]) <= 0.05
