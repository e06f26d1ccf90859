"""Document 000, at small sizes: orderings that must hold, and claims that must not."""

import json
from functools import cache
from importlib import import_module

import numpy as np
import pytest

from boxloop.numeric import generator
from boxloop.replicate import Options
from boxloop.replicate import mega_variance as variance

NAMES = ["mega-variance"]


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
