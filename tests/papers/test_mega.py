"""Beaulac (2023) at small sizes: orderings that must hold, and claims that must not."""

import json
import os
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from boxloop.criticise import paper_gaps
from boxloop.numeric import generator
from papers import (
    mega_ionosphere as ionosphere,
    mega_mnist as mnist,
    mega_path as path,
    mega_variance as variance,
)
from papers.experiment import Options
from papers.mega_moons import draw_moons
from papers.moment_gaps import (
    ComponentMoments,
    data_moments,
    draw_clusters,
    exact_gaps,
    fit_mixture,
    gap_norms,
)
from papers.moment_tables import range_of_gaps

NAMES = ["mega-variance", "mega-clusters", "mega-moons", "mega-mnist", "mega-path", "mega-ionosphere"]
LONGER = {"mega-moons", "mega-ionosphere"}
FOLDER = os.environ.get("BOXLOOP_DATA")
"""Folder of real data."""

with_data = pytest.mark.skipif(FOLDER is None, reason="BOXLOOP_DATA names no folder of real data")


@cache
def quick(name):
    """One quick run of an experiment, for all tests of this file."""
    return import_module(f"papers.{name.replace('-', '_')}").experiment(Options(quick=True))


def verdicts(name):
    return {finding.claim: finding.verdict for finding in quick(name).findings}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONGER else name for name in NAMES]
)
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
    model = variance.build_problems()[variance.OVERLAPPING]
    stream = generator(1)
    results = [variance.measure_distances(model, 50, stream) for _ in range(400)]
    for which in range(2):
        forward, sample = (
            np.array([f[m][which] for f in results]) for m in (variance.FORWARD, variance.SAMPLE)
        )
        value, error = variance.rms_ratio(forward, sample)
        assert abs(value - variance.compute_theory_ratio(model)[which]) < 4 * error


@pytest.mark.parametrize("rows", [draw_clusters, pytest.param(draw_moons, marks=pytest.mark.slow)])
def test_exact_gaps_do_not_depend_on_the_number_of_components(rows):
    table = rows(400, 3)
    assert range_of_gaps(table, (1, 2, 3, 5, 8), seed=3) < 1e-8
    assert max(float(gap.norm()) for gap in exact_gaps(fit_mixture(table, 3, 3), table)) < 1e-8
    assert float(exact_gaps(fit_mixture(table, 3, 3, "diag"), table)[1].norm()) > 1e-3, (
        "the identity needs full or tied"
    )


def test_gaps_do_not_separate_one_cluster_from_three_and_fourier_features_do():
    curves = quick("mega-clusters").curves
    one, three = curves["1: probabilistic PCA (unimodal)"], curves["4: mixture, K = 3"]
    assert max(one["exact second"] + three["exact second"]) < 1e-8
    assert np.median(one["p, Fourier"]) <= 0.05 < np.median(three["p, Fourier"])
    results = verdicts("mega-clusters")
    assert results["2MEGA-F and MMD agree on the worst model, model 2"] == "reproduced in distribution"
    assert results["2MEGA-F and MMD agree on the best model, model 4"] == "not reproduced"


@pytest.mark.slow
def test_a_centre_of_mass_that_is_off_is_seen_by_first_moments():
    assert (
        verdicts("mega-moons")["model 3 looks right and has the largest 1MEGA-F"]
        == "reproduced in distribution"
    )
    assert max(quick("mega-moons").curves["3: mixture, K = 8, wrong weights"]["p, first"]) <= 0.05


def test_moments_by_counting_nodes_are_those_of_the_paper():
    table = draw_clusters(300, 5)
    model = fit_mixture(table, 3, 5)
    parts = ComponentMoments.of(model)
    exact = parts.combine(parts.weight)
    assert gap_norms(exact, (table.mean(0), table.mT @ table / 300))[1] < 1e-8
    stream = generator(0)
    counted = [gap_norms(data_moments(table), parts.estimate_forward(200, stream)) for _ in range(400)]
    drawn = [paper_gaps(model, table, stream, 200) for _ in range(400)]
    both = np.array(counted), np.array([(float(a.norm()), float(b.norm())) for a, b in drawn])
    error = np.sqrt(sum(each.var(0) / 400 for each in both))
    assert (np.abs(both[0].mean(0) - both[1].mean(0)) < 4 * error).all(), "fails by chance below 2e-4"


def test_digits_have_gaps_of_sampling_noise_whatever_the_number_of_components():
    report = quick("mega-mnist")
    assert "digits" in report.settings["data"], "without data it says what it uses"
    table, floor = report.curves["K"], np.array(report.curves["floor"])
    exact = np.array([facts["exact"] for facts in table.values()])
    assert exact.max() < 1e-4
    assert np.ptp(exact[:, 1]) < 1e-6
    for facts in table.values():
        assert (np.abs(np.mean(facts["document"], axis=0) - floor.mean(0)) < 2 * floor.std(0)).all()
    diagonal = [facts["exact, diagonal"][1] for facts in table.values()]
    assert diagonal == sorted(diagonal, reverse=True)


def test_the_penalty_does_not_depend_on_the_number_of_components():
    for one in quick("mega-path").curves["data sets"]:
        assert np.ptp(one["exact penalty"]) < 1e-8
        assert len(one["exact path"]) == 1
        assert np.ptp(one["penalties"]) > 0.01, "what the paper penalises is noise"


def test_criteria_with_the_right_count_pick_three_clusters():
    chosen = [one["chosen"] for one in quick("mega-path").curves["data sets"]]
    for name in (path.AIC, path.BIC, path.HELD_OUT):
        assert np.mean([each[name] == path.TRUE for each in chosen]) > 0.5
    assert np.mean([each[path.AIC_2K] == path.TRUE for each in chosen]) < 0.5


def test_breakpoints_are_where_two_models_tie():
    one = quick("mega-path").curves["data sets"][0]
    components = quick("mega-path").settings["K"]
    for cost, at, chosen in zip(one["penalties"], one["breakpoints"], one["paths"]):
        for alpha, before, after in zip(at, chosen, chosen[1:]):
            value = np.array(one["likelihood"]) - alpha * np.array(cost)
            tied = value[[components.index(before), components.index(after)]]
            assert np.ptp(tied) < 1e-9
            assert value.max() < tied.max() + 1e-9


@pytest.mark.slow
def test_outliers_without_real_data():
    report = quick("mega-ionosphere")
    assert "no ionosphere" in report.settings["data"]
    assert (
        verdicts("mega-ionosphere")["AIC chooses the largest K, the right count"]
        == "reproduced in distribution"
    )


@pytest.mark.parametrize("components", [(1, 3, 10), (1, 3, 20)])
def test_counts_are_compared_with_those_of_the_paper_where_it_has_them(components):
    table = ionosphere.Table(np.zeros((126, 33)), np.ones(126, bool), "made up", True)
    run = {"found": [100, 103, 67], "AIC": [3, 2, 1], "AIC, p = 2K": [3, 2, 1], "path": (1, 3, 20)}
    claims = [finding.claim for finding in ionosphere.judge(table, [run], components)]
    counts = [claim for claim in claims if claim.startswith("outliers found with K")]
    assert counts == [f"outliers found with K = {k}" for k in components if k in ionosphere.PAPER]


def test_flagged_rows_are_those_of_lowest_density():
    table = ionosphere.Table(np.zeros((20, 1)), np.arange(20) < 5, "made up", False)
    assert table.count_outliers(np.arange(20.0)) == 5
    assert table.count_outliers(-np.arange(20.0)) == 0


@with_data
def test_counts_of_outliers_of_the_paper():
    table = ionosphere.load_table(Path(FOLDER))
    assert table.real
    assert (len(table.rows), int(table.outlier.sum()), round(ionosphere.SHARE * len(table.rows))) == (
        351,
        126,
        123,
    )
    results = np.array([ionosphere.run_paper_procedure(table, (3, 20), seed)["found"] for seed in range(3)])
    assert (results[:, 0] > results[:, 1]).all()


@pytest.mark.slow
@with_data
def test_outliers_at_full_size():
    report = ionosphere.experiment(Options(data=Path(FOLDER)))
    results = {finding.claim: finding.verdict for finding in report.findings}
    assert results["outliers found with K = 3"] == "reproduced in distribution"
    assert results["outliers found with K = 20"] == "reproduced in distribution"
    assert results["AIC chooses the largest K, the document's count"] == "reproduced in distribution"


@pytest.mark.slow
@with_data
def test_table_3_is_the_sampling_floor_of_mnist():
    rows, source = mnist.load_digits(Path(FOLDER))
    assert source == "MNIST"
    order = torch.randperm(len(rows), generator=generator(0))
    few, many = (data_moments(rows[part]) for part in (order[:1000], order[1000:6000]))
    first, second = gap_norms(few, many)
    assert 0.19 < first < 0.31
    assert 2.3 < second < 3.6


@pytest.mark.slow
def test_the_path_of_figure_7_is_rare():
    results = [path.run_data_set(500, (1, 2, 3, 4, 5, 10, 15, 20), 10, seed) for seed in range(20)]
    wanted = [each == (20, 3, 1) for one in results for each in one["paths"]]
    assert np.mean(wanted) < 0.2
    for name in (path.AIC, path.BIC):
        assert np.mean([one["chosen"][name] == path.TRUE for one in results]) > 0.5


@pytest.mark.slow
def test_tests_reject_a_true_kind_of_model_at_their_level():
    report = import_module("papers.mega_clusters").experiment(Options())
    assert {f.verdict for f in report.findings if f.claim.startswith("held-out test")} == {"target met"}
