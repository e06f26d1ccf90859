"""Topics from moments at a small size: what must hold, and what must not."""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from boxloop.data import draw_topics, sparse_source
from boxloop.distributions import Multinomial
from boxloop.fit import DocumentMoments
from boxloop.models import Mixture
from boxloop.numeric import generator
from papers.experiment import Options
from papers.spectral_documents import (
    DOCUMENT,
    RANDOM,
    column_errors,
    draw_bursty_documents,
    enumerate_documents,
    experiment,
    judge_coverage,
    judge_exact,
    judge_growth,
    judge_recovery,
    load_texts,
    perplexity,
    recover_by_eigenvectors,
    recover_from_same_word,
    slopes,
)

FOLDER = os.environ.get("BOXLOOP_DATA")


@cache
def quick():
    """One quick run for all tests of this file."""
    return experiment(Options(quick=True))


def test_tables_and_figures_are_written(tmp_path):
    report = quick()
    paths = report.write(tmp_path)
    facts = json.loads(paths[0].read_text())
    assert report.name == facts["name"] == "spectral-documents"
    assert "NaN" not in paths[0].read_text()
    assert paths[1].read_text().count("| **") == len(report.findings)
    assert sum(p.suffix == ".png" for p in paths) == 3


def test_without_newsgroups_it_says_so():
    report = quick()
    assert "no newsgroups" in report.settings["data"]
    assert sum("STAND-IN" in finding.claim for finding in report.findings) == 3


def test_what_must_hold_at_any_size():
    found = {finding.claim: finding.verdict for finding in quick().findings}
    assert found["exact moments of distinct words give the topics back"] == "reproduced"
    literal = "exact moments as the document writes them, E[x1 x1'] and E[x1 x1' (x1' eta)]"
    assert found[literal] == "not reproduced"
    assert found["column L1 error of the worst topic, spectral"] == "target met"
    assert found["column L1 error of the worst topic, spectral + EM"] == "target met"
    assert found["why the default is joint diagonalisation"] == "target met"


def test_all_documents_have_the_exact_moments():
    topics = draw_topics(3, 7, generator(3))
    source = enumerate_documents(topics)
    assert source.n_rows == 84
    torch.testing.assert_close(source.weight.sum(), torch.tensor(1.0).double())
    statistics = DocumentMoments.measure(source, "documents", scaled=False)
    first, pair, triple = statistics.project_moments(torch.eye(7).double())
    b, pi = topics.probabilities, topics.weights
    torch.testing.assert_close(first, pi @ b)
    torch.testing.assert_close(pair, (b.mT * pi) @ b)
    torch.testing.assert_close(triple, torch.einsum("h,ha,hb,hc->abc", pi, b, b, b))


def test_the_lemma_holds_for_distinct_words_and_not_for_the_same():
    topics = draw_topics(4, 20, generator(1))
    b, pi = topics.probabilities, topics.weights
    direction = torch.linspace(-1.0, 1.0, 20).double()
    pair, slice_ = (b.mT * pi) @ b, (b.mT * (pi * (b @ direction))) @ b
    assert float(column_errors(b, recover_by_eigenvectors(pair, slice_, 4)).max()) < 1e-10
    alike = recover_from_same_word(topics, seed=0)
    assert float((alike.max(1).values - 1.0).abs().max()) < 1e-10, "each is a single word"
    assert float(column_errors(b, alike).mean()) > 0.5


def test_verdicts_can_be_bad():
    trapped = {"spectral": [0.2] * 5, "spectral + EM": [0.2] * 5, "default starts": [0.2] * 5}
    trapped |= {kind: [[0.001] * 5] * 3 for kind in RANDOM}
    verdicts = [f.verdict for f in judge_recovery([trapped, trapped], 10)]
    assert verdicts == ["target missed", "target missed", "not reproduced", "target missed"]
    exact = {"joint, scaled": 1e-3, DOCUMENT: 1e-3, "same word": 1e-12}
    assert [f.verdict for f in judge_exact([exact])] == ["not reproduced", "reproduced"]
    flat = {"spectral": [0.1, 0.1], "spectral + EM": [0.1, 0.1], DOCUMENT: [0.9, 0.9]}
    assert {f.verdict for f in judge_growth([flat, flat], (10, 100))} == {"not reproduced"}
    narrow = {kind: [0.3, 0.5, 0.6, 0.7, 0.8] for kind in ("words", "weights", "rare words")}
    assert {f.verdict for f in judge_coverage({10: [narrow] * 9})} == {"not reproduced"}


def test_slopes():
    sizes = (100, 1000, 10_000)
    lines = [[3.0 * n**-0.5 for n in sizes], [0.7 * n**-0.5 for n in sizes]]
    slope, error = slopes(lines, sizes)
    assert slope == pytest.approx(-0.5)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_wider_intervals_cover_more():
    for runs in quick().curves["coverage"].values():
        shares = np.mean([run["words"] for run in runs], axis=0)
        assert (np.diff(shares) > 0).all()


def test_perplexity_of_one_topic_is_that_of_its_words():
    texts = draw_bursty_documents(300, 0)
    rows = sparse_source(sparse.csr_array(texts.train))
    level = Multinomial(torch.full((1, 120), 1 / 120).double())
    model = Mixture(torch.zeros(1).double(), level)
    assert perplexity(model, rows) == pytest.approx(120.0)


@pytest.mark.skipif(FOLDER is None, reason="BOXLOOP_DATA names no folder of real data")
def test_newsgroups_are_found():
    names = [found.name for found in load_texts(Path(FOLDER or "."), quick=True, seed=0)]
    assert all("newsgroups" in name and "no newsgroups" not in name for name in names)
    assert all(found.real for found in load_texts(Path(FOLDER or "."), quick=True, seed=0))
