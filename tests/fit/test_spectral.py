"""Topics from moments: unbiased moments, exact recovery, error bars that cover, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from boxloop import MultinomialMixture
from boxloop.data import ArraySource, SparseSource, Topics, draw_topics, sparse_source
from boxloop.fit import (
    DIAGONALISERS,
    DocumentMoments,
    SpectralError,
    SpectralTopics,
    bootstrap,
    match_topics,
    project_to_simplex,
    spectral,
    spectral_covariance,
    spectral_errors,
)
from boxloop.numeric import generator

PROBLEM = draw_topics(3, 12, generator(0), concentration=1.0)


def triples(counts: Tensor) -> Tensor:
    """Every ordered triple of distinct places of a document, one by one."""
    b = len(counts)
    words = torch.arange(b).repeat_interleave(counts.long()).tolist()
    found, n = torch.zeros(b, b, b, dtype=torch.float64), len(words)
    for i in range(n):
        for j in range(n):
            for k in range(n):
                if len({i, j, k}) == 3:
                    found[words[i], words[j], words[k]] += 1
    return found / (n * (n - 1) * (n - 2))


@pytest.mark.parametrize("dense", [False, True])
def test_moments_are_those_of_distinct_words(dense):
    source = PROBLEM.source(40, (3, 7), generator(1))
    counts = source.rows.to_dense()
    length = counts.sum(1)
    given = ArraySource(counts) if dense else source
    unit = torch.eye(12).double()
    made = DocumentMoments.measure(given, "documents", scaled=False)
    first, pair, triple = made.project_moments(unit)
    each = zip(counts, length, strict=True)
    pairs = sum((torch.outer(c, c) - torch.diag(c)) / (n * (n - 1)) for c, n in each) / 40
    torch.testing.assert_close(first, (counts / length[:, None]).mean(0))
    torch.testing.assert_close(pair, pairs)
    torch.testing.assert_close(made.multiply_pairs(unit), pairs)
    torch.testing.assert_close(triple, sum(triples(c) for c in counts) / 40)


def test_scales_and_weights_enter_as_they_should():
    source = PROBLEM.source(40, (3, 9), generator(1))
    made = DocumentMoments.measure(source, "information")
    assert made.ratio > 0
    counts, length = source.rows.to_dense(), source.rows.to_dense().sum(1)
    share = length / (length + made.ratio)
    scaled = counts * made.scale
    pair = torch.einsum("n,na,nb->ab", share / (length * (length - 1)), scaled, scaled)
    pair -= torch.diag((share / (length * (length - 1))) @ (counts * made.scale**2))
    torch.testing.assert_close(made.project_moments(torch.eye(12).double())[1], pair / share.sum())


def test_weights_are_repetitions_and_chunks_are_the_whole():
    source = PROBLEM.source(300, (3, 9), generator(2))
    weight = torch.randint(0, 3, (300,), generator=generator(3)).double()
    order = torch.arange(300).repeat_interleave(weight.long())
    one = spectral(replace(source, weight=weight), 2, generator(0))
    two = spectral(source.take(order), 2, generator(0))
    torch.testing.assert_close(one.probabilities, two.probabilities, rtol=1e-9, atol=1e-11)
    errors = [spectral_errors(found) for found in (one, two)]
    torch.testing.assert_close(errors[0].probabilities, errors[1].probabilities, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(errors[0].weights, errors[1].weights, rtol=1e-8, atol=1e-11)

    class Chunked(SparseSource):
        def chunks(self, size=None):
            return super().chunks(7)

    again = spectral(Chunked(source.rows, weight), 2, generator(0))
    torch.testing.assert_close(again.probabilities, one.probabilities, rtol=1e-9, atol=1e-11)


class Population(DocumentMoments):
    """Moments of the distribution itself in place of those of documents."""

    topics: Topics

    def multiply_pairs(self, right):
        b = self.topics.probabilities * self.scale
        return b.mT @ (self.topics.weights[:, None] * (b @ right))

    def project_moments(self, left):
        b, pi = (self.topics.probabilities * self.scale) @ left, self.topics.weights
        mean = pi @ (self.topics.probabilities * self.scale)
        return mean, (b.mT * pi) @ b, torch.einsum("h,ha,hb,hc->abc", pi, b, b, b)


@pytest.mark.parametrize("method", DIAGONALISERS)
@pytest.mark.parametrize("scaled", [True, False])
def test_population_moments_give_the_topics_exactly(method, scaled, monkeypatch):
    problem = draw_topics(5, 50, generator(1))
    mean = problem.weights @ problem.probabilities
    scale = mean.rsqrt() if scaled else torch.ones(50).double()
    exact = Population(None, scale, 0.0, scale * mean, 1.0, 1.0, 0)
    object.__setattr__(exact, "topics", problem)
    monkeypatch.setattr(DocumentMoments, "measure", classmethod(lambda cls, *args, **options: exact))
    found = spectral(problem.source(5, 5, generator(0)), 5, generator(0), method=method)
    place = match_topics(problem.probabilities, found.probabilities)
    torch.testing.assert_close(found.probabilities[place], problem.probabilities, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.weights[place], problem.weights, rtol=0, atol=1e-10)


def test_pairs_of_the_same_word_fail():
    """The document's x1 x1' is diagonal: its axes are words, not topics."""
    problem = draw_topics(5, 50, generator(1))
    mean = problem.weights @ problem.probabilities
    _, axes = torch.linalg.eigh(torch.diag(mean))
    span = axes[:, -5:]
    outside = problem.probabilities.mT - span @ (span.mT @ problem.probabilities.mT)
    assert float((outside.norm(dim=0) / problem.probabilities.norm(dim=1)).max()) > 0.5


def error_of(found: SpectralTopics, problem: Topics) -> float:
    place = match_topics(problem.probabilities, found.probabilities)
    return float((found.probabilities[place] - problem.probabilities).abs().sum(1).max())


def test_error_falls_as_one_over_root_n():
    """Sixteen times the documents, a quarter of the error; medians of 9, whose ratio has an error of about 20%."""
    medians = []
    for n in (2_000, 32_000):
        losses = [
            error_of(spectral(PROBLEM.source(n, 10, generator(s)), 3, generator(0)), PROBLEM)
            for s in range(9)
        ]
        medians.append(np.median(losses))
    assert 2.0 < medians[0] / medians[1] < 8.0


def test_errors_are_those_of_differences():
    """The derivative of the whole map along one document, against the map with that document's weight moved."""
    source = draw_topics(3, 12, generator(5), concentration=1.0).source(200_000, (4, 12), generator(6))
    found = spectral(source, 3, generator(0))
    step, row = 20.0, 17
    heavy = torch.ones(200_000).double()
    heavy[row] += step
    moved = spectral(replace(source, weight=heavy), 3, generator(0))
    place = match_topics(found.unprojected, moved.unprojected)
    from boxloop.fit import DocumentInfluence

    frame = DocumentInfluence.from_estimate(found)
    one = source.take(torch.tensor([row]))
    length, share = found.documents.document_weights(one.rows, torch.ones(1).double())
    y, inner, kappa, shares = frame.evaluate(one.rows, length)
    assert float(shares.sum().abs()) < 1e-12  # weights sum to one whatever the rows
    counts = one.rows.to_dense()[0]
    topics = torch.stack(
        [kappa[0, h] * counts * (y[0, h] - frame.own[h]) + inner[0, h] @ found.unprojected for h in range(3)]
    )
    total = sum(float(found.documents.document_weights(r, w)[1].sum()) for r, w in source.chunks())
    scale = step * float(share) / (total + step * float(share))
    torch.testing.assert_close(
        moved.unprojected[place] - found.unprojected,
        scale * topics,
        rtol=0.03,
        atol=0.02 * scale * float(topics.abs().max()),
    )
    torch.testing.assert_close(
        moved.weights[place] - found.weights,
        scale * shares[0],
        rtol=0.03,
        atol=0.02 * scale * float(shares.abs().max()),
    )


@pytest.mark.parametrize("dense", [False, True])
def test_the_whole_covariance_has_the_errors_on_its_diagonal(dense):
    source = PROBLEM.source(800, (2, 9), generator(3))
    source = replace(source, weight=torch.rand(800, generator=generator(4)).double())
    given = ArraySource(source.rows.to_dense(), source.weight) if dense else source
    found = spectral(given, 3, generator(0))
    errors, covariance = spectral_errors(found), spectral_covariance(found)
    torch.testing.assert_close(covariance, covariance.mT)
    torch.testing.assert_close(covariance[:3, :3], errors.weights_covariance)
    torch.testing.assert_close(covariance.diagonal()[3:].sqrt().reshape(3, 12), errors.probabilities)
    rows = covariance[3:, 3:].reshape(3, 12, 3, 12)
    torch.testing.assert_close(
        rows.sum((1, 3)), torch.zeros(3, 3).double(), atol=1e-12, rtol=0
    )  # sums are one
    wide = draw_topics(2, 2000, generator(0)).source(300, 9, generator(1))
    with pytest.raises(ValueError, match="4002 rows, over 3000: use spectral_errors"):
        spectral_covariance(spectral(wide, 2, generator(0)))


@pytest.mark.slow
def test_intervals_cover():
    """100 tables, 39 numbers each. The error of a mean coverage is below 1.2%, so 5% is 4 of them."""
    hits = {1.645: [], 1.960: []}
    for seed in range(100):
        found = spectral(PROBLEM.source(10_000, (4, 12), generator(1000 + seed)), 3, generator(seed))
        errors = spectral_errors(found)
        place = match_topics(PROBLEM.probabilities, found.unprojected)
        z = torch.cat(
            [
                ((found.unprojected[place] - PROBLEM.probabilities) / errors.probabilities[place]).reshape(
                    -1
                ),
                (found.weights[place] - PROBLEM.weights) / errors.weights[place],
            ]
        )
        for level, seen in hits.items():
            seen.append(float((z.abs() < level).double().mean()))
    assert np.mean(hits[1.645]) == pytest.approx(0.90, abs=0.05)
    assert np.mean(hits[1.960]) == pytest.approx(0.95, abs=0.04)


def test_the_bootstrap_agrees():
    """40 draws: a standard deviation is known to 11%, the mean of 39 of them far better."""
    source = PROBLEM.source(20_000, 8, generator(3))
    found, weights, topics = bootstrap(source, 3, generator(4), draws=40)
    errors = spectral_errors(found)
    assert float((topics.std(0) / errors.probabilities).mean()) == pytest.approx(1.0, abs=0.12)
    assert float((weights.std(0) / errors.weights).mean()) == pytest.approx(1.0, abs=0.35)


def test_simplex():
    points = torch.tensor([[0.6, 0.5, -0.1], [1.0, 0.0, 0.0], [-1.0, -2.0, 5.0], [0.2, 0.3, 0.5]]).double()
    wanted = torch.tensor([[0.55, 0.45, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]]).double()
    torch.testing.assert_close(project_to_simplex(points), wanted)


def test_f32_more_topics_than_moments():
    one = Topics(torch.ones(1).double(), torch.full((1, 6), 1 / 6).double())
    with pytest.raises(SpectralError, match="more topics than words"):
        spectral(one.source(50, 5, generator(0)), 7, generator(0))
    same = sparse_source(sparse.csr_array(np.tile([[2.0, 2.0, 0.0]], (30, 1))))
    with pytest.raises(
        SpectralError, match="1 positive eigenvalues, so at most 1 topics can be estimated; k=2"
    ):
        spectral(same, 2, generator(0))


def test_f32_short_documents_are_counted_and_skipped():
    source = PROBLEM.source(2000, (1, 6), generator(0))
    long = source.take((source.rows.to_dense().sum(1) >= 3).nonzero()[:, 0])
    skipped = 2000 - long.n_rows
    found = spectral(source, 3, generator(0))
    assert found.notes == (f"{skipped} documents of fewer than 3 words skipped",)
    torch.testing.assert_close(found.probabilities, spectral(long, 3, generator(0)).probabilities)
    with pytest.raises(ValueError, match="Every document has fewer than 3 words"):
        spectral(PROBLEM.source(20, 2, generator(0)), 2, generator(0))


@pytest.mark.parametrize("bad", [0.5, np.nan])
def test_f32_counts_must_be_whole(bad):
    rows = torch.ones(20, 6, dtype=torch.float64)
    rows[3, 2] = bad
    with pytest.raises(ValueError, match="integer word counts"):
        spectral(ArraySource(rows), 2, generator(0))


def test_f32_negative_mass_is_projected_with_a_note():
    """Five topics asked of three: two of what is found is noise, the result is still a distribution, and it is said."""
    found = spectral(PROBLEM.source(3000, 8, generator(0)), 5, generator(0))
    assert bool((found.probabilities >= 0).all())
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(5).double())
    torch.testing.assert_close(found.weights.sum(), torch.tensor(1.0).double())
    assert any("there may be fewer" in note for note in found.notes)


def test_the_estimator_by_moments_alone_and_as_a_start():
    problem = draw_topics(4, 40, generator(2))
    train, held = problem.source(20_000, 12, generator(3)), problem.source(2_000, 12, generator(4))
    alone = MultinomialMixture(4, method="spectral", random_state=0).fit(train)
    started = MultinomialMixture(4, init_params="spectral", random_state=0).fit(train)
    plain = MultinomialMixture(4, random_state=0).fit(train)
    assert alone.n_iter_ == 1
    assert alone.converged_
    assert started.n_iter_ <= 5
    truth = float(alone.score(held))
    assert np.isfinite(truth)
    assert started.score(held) == pytest.approx(plain.score(held), abs=1e-3)
    assert started.score(held) - 0.05 < truth <= started.score(held) + 1e-3
    errors = alone.standard_errors(train)
    assert errors["probabilities"].shape == alone.probabilities_.shape
    assert errors["weights"].shape == (4,)
    np.testing.assert_array_equal(alone.predict(held).shape, (2000,))


def test_the_estimator_warns_of_short_documents():
    with pytest.warns(UserWarning, match="documents of fewer than 3 words skipped"):
        MultinomialMixture(2, method="spectral", random_state=0).fit(
            PROBLEM.source(2000, (1, 6), generator(0))
        )


def mixed_documents(problem: Topics, alpha: Tensor, n: int, length: int, seed: int) -> SparseSource:
    """Every document draws its own shares of the topics."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(alpha.numpy(), size=n)
    counts = rng.multinomial(length, shares @ problem.probabilities.numpy())
    return sparse_source(sparse.csr_array(counts))


def test_moments_of_mixed_topics_without_the_mixing():
    """Dirichlet moments in closed form; what is left is one term for each topic."""
    problem, alpha = (
        draw_topics(3, 7, generator(1), concentration=1.0),
        torch.tensor([0.2, 0.5, 0.8]).double(),
    )
    a, b = alpha.sum(), problem.probabilities
    two = (torch.outer(alpha, alpha) + torch.diag(alpha)) / (a * (a + 1))
    three = torch.zeros(3, 3, 3).double()
    for i in range(3):
        for j in range(3):
            for k in range(3):
                rise = alpha.clone()
                value = 1.0
                for step, h in enumerate((i, j, k)):
                    value = value * float(rise[h]) / float(a + step)
                    rise[h] += 1.0
                three[i, j, k] = value
    made = DocumentMoments(None, torch.ones(7).double(), 0.0, (alpha / a) @ b, 1.0, 1.0, 0, float(a))
    pair, triple = made.remove_mixing(
        (alpha / a) @ b, b.mT @ two @ b, torch.einsum("ijk,ia,jb,kc->abc", three, b, b, b)
    )
    torch.testing.assert_close(pair, torch.einsum("h,ha,hb->ab", alpha / (a * (a + 1)), b, b))
    scale = 2.0 / (a * (a + 1) * (a + 2))
    torch.testing.assert_close(triple, torch.einsum("h,ha,hb,hc->abc", scale * alpha, b, b, b))


def test_topics_that_documents_mix():
    problem, alpha = (
        draw_topics(3, 30, generator(2), concentration=0.3),
        torch.tensor([0.3, 0.3, 0.6]).double(),
    )
    source = mixed_documents(problem, alpha, 30_000, 30, 0)
    right = spectral(source, 3, generator(0), concentration=1.2)
    wrong = spectral(source, 3, generator(0))
    assert error_of(right, problem) < 0.06 < 0.2 < error_of(wrong, problem)
    place = match_topics(problem.probabilities, right.probabilities)
    torch.testing.assert_close(right.weights[place], alpha / 1.2, atol=0.02, rtol=0)
    with pytest.raises(ValueError, match="use bootstrap"):
        spectral_errors(right)
    _, weights, _ = bootstrap(source.take(torch.arange(3000)), 3, generator(1), draws=3, concentration=1.2)
    assert weights.shape == (3, 3)
    with pytest.raises(ValueError, match="must not be negative"):
        spectral(source, 3, generator(0), concentration=-1.0)


def test_a_warm_start_changes_nothing_that_has_no_start(tmp_path):
    source = PROBLEM.source(3000, 8, generator(0))
    options = {"method": "spectral", "random_state": 0, "warm_start": True, "checkpoint": tmp_path / "c"}
    fit = MultinomialMixture(3, **options).fit(source)
    first = fit.probabilities_.copy()
    np.testing.assert_array_equal(fit.fit(source).probabilities_, first)


@pytest.mark.parametrize("options", [{"method": "spectral"}, {"init_params": "spectral"}])
def test_moments_start_a_stream(options):
    source = PROBLEM.source(6000, 8, generator(0))
    stream = MultinomialMixture(3, random_state=0, **options)
    for rows, _ in source.chunks(1000):
        stream.partial_fit(rows.to_dense().numpy())
    place = match_topics(PROBLEM.probabilities, torch.from_numpy(stream.probabilities_))
    error = np.abs(stream.probabilities_[place.numpy()] - PROBLEM.probabilities.numpy()).sum(1).max()
    assert error < 0.15
    assert stream.n_samples_seen_ == 6000
