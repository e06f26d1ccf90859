"""Posteriors over the weights of a convolutional classifier, at a small size."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from boxloop.networks import Predictor
from boxloop.numeric import generator
from papers.experiment import Options
from papers.network_images import (
    ENTROPY,
    INFORMATION,
    KINDS,
    SMALL,
    Predictions,
    batch_norm_images,
    build_classifier,
    estimate_auc,
    estimate_mean,
    experiment,
    judge_known,
    judge_unknown,
    load_cifar10,
    load_digits,
    load_mnist,
    placements,
    rotate,
    shuffle_pixels,
    train_network,
)
from papers.network_posteriors import ENSEMBLE, FACTOR, METHODS, MULTI_SWAG, SINGLE, SWA, SWAG


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


@pytest.fixture(scope="module")
def run():
    data = load_digits(0)
    return data, train_network(data, SMALL.setting, 0, laplace=True)


def test_images_are_partitioned_and_no_unknown_class_is_learned():
    data = load_digits(0)
    assert {part: len(x) for part, x in data.x.items()} == {"train": 100, "valid": 500, "test": 843}
    assert max(int(y.max()) for y in data.y.values()) == 7
    assert len(data.unknown["digits 8 and 9"]) == 354
    rows = [{image.numpy().tobytes() for image in x} for x in data.x.values()]
    assert len(rows[0] | rows[1] | rows[2]) == 100 + 500 + 843
    assert float(data.x["train"].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(data.x["train"].std()) == pytest.approx(1.0, abs=1e-4)


def test_corrupted_images_keep_their_pixels():
    images = np.random.default_rng(0).random((3, 2, 4, 4))
    assert rotate(images)[1, 1, 0, 0] == images[1, 1, 0, 3]
    found = shuffle_pixels(images, np.random.default_rng(1))
    assert not np.array_equal(found, images)
    flat, other = (np.sort(values.reshape(3, 2, -1)) for values in (found, images))
    np.testing.assert_array_equal(flat, other)
    colours = {tuple(pixel) for pixel in images.transpose(0, 2, 3, 1).reshape(-1, 2)}
    assert {tuple(pixel) for pixel in found.transpose(0, 2, 3, 1).reshape(-1, 2)} == colours


@pytest.fixture
def folder(tmp_path):
    """Files of the same form as MNIST's and CIFAR-10's, of random bytes."""
    rng = np.random.default_rng(0)
    facts = {}
    for part, n in (("train", 40), ("test", 12)):
        facts[f"{part}_images"] = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        facts[f"{part}_labels"] = rng.integers(10, size=n, dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", **facts)
    facts = {}
    for part, n in (("train", 30), ("test", 9)):
        facts[f"{part}_coded"] = rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
        facts[f"{part}_labels"] = rng.integers(10, size=n, dtype=np.uint8)
    np.savez(tmp_path / "cifar10_subset.npz", **facts)
    return tmp_path


def test_real_images_come_with_unknown_ones_of_their_shape(folder):
    one, two = load_mnist(folder, 20, 10, 11, 8, 0), load_cifar10(folder, 5, 8, 0)
    assert {part: tuple(x.shape) for part, x in one.x.items()} == {
        "train": (20, 1, 28, 28),
        "valid": (10, 1, 28, 28),
        "test": (11, 1, 28, 28),
    }
    assert {tuple(x.shape) for x in one.unknown.values()} == {(8, 1, 28, 28)}
    assert [len(two.x[part]) for part in ("train", "valid", "test")] == [25, 5, 8]
    assert {tuple(x.shape) for x in two.unknown.values()} == {(8, 3, 32, 32)}
    for data in (one, two):
        assert float(data.x["train"].mean()) == pytest.approx(0.0, abs=1e-4)


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mnist\.npz"):
        experiment(Options(quick=True, data=tmp_path))


def test_initial_weights_come_from_the_stream():
    before = torch.get_rng_state()
    one, two = (build_classifier((1, 8, 8), 8, SMALL.setting, generator(3)) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    x = torch.randn((5, 1, 8, 8), generator=generator(0))
    assert torch.equal(one(x), two(x))
    assert one(x).shape == (5, 8)


def test_a_trained_network_predicts_and_has_batch_statistics_of_its_weights(run):
    data, found = run
    net, x, y = found.last.net, data.x["test"], data.y["test"]
    assert not net.training
    with torch.no_grad():
        logits = net(x)
        first = net[0](batch_norm_images(data, SMALL.setting)[:50])
    assert float((logits.argmax(1) == y).float().mean()) > 0.7
    norm = net[1]
    assert int(norm.num_batches_tracked) == 2  # batches of 50 out of 100 images, all alike
    with torch.no_grad():
        second = net[0](batch_norm_images(data, SMALL.setting)[50:])
    means = torch.stack([part.mean((0, 2, 3)) for part in (first, second)])
    torch.testing.assert_close(norm.running_mean, means.mean(0), rtol=1e-4, atol=1e-5)


def test_a_prediction_of_the_last_iterate_is_that_of_the_network(run):
    data, found = run
    predictor = Predictor.from_posterior(
        found.last,
        "classification",
        2,
        refresh=batch_norm_images(data, SMALL.setting).split(SMALL.setting.batch),
    )
    with torch.no_grad():
        expected = found.last.net(data.x["test"]).log_softmax(1).numpy()
    np.testing.assert_allclose(
        predictor.predict(data.x["test"]).log_probability, expected, rtol=1e-3, atol=1e-4
    )


def test_posteriors_have_one_mean(run):
    posteriors = run[1].posteriors
    for word in ("swag", "factor"):
        torch.testing.assert_close(posteriors[word].mean(), posteriors["swa"].mean(), rtol=1e-4, atol=1e-5)
    assert posteriors["swag"].count == 20


def test_areas_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    known, unknown = rng.integers(6, size=50).astype(float), 1.0 + rng.integers(6, size=30).astype(float)
    labels = np.r_[np.zeros(50), np.ones(30)]
    expected = roc_auc_score(labels, np.r_[known, unknown])
    of_known, of_unknown = placements(known, unknown)
    assert of_known.mean() == pytest.approx(expected, rel=1e-12)
    assert of_unknown.mean() == pytest.approx(expected, rel=1e-12)
    wins = (unknown[:, None] > known) + 0.5 * (unknown[:, None] == known)
    np.testing.assert_allclose(of_unknown, wins.mean(1))
    np.testing.assert_allclose(of_known, wins.mean(0))
    assert estimate_auc(known[None], unknown[None], (known[None], unknown[None])).value == 0.0


def test_errors_of_areas_and_means_are_those_of_repetition():
    """400 repetitions know their spread to 4%; errors may be too large, as they count groups and images apart."""
    rng = np.random.default_rng(1)
    compute_aucs, means = [], []
    for _ in range(400):
        effect = rng.normal(size=60)
        runs = rng.normal(scale=0.3, size=(3, 1))
        means.append(estimate_mean(effect + runs + rng.normal(size=(3, 60))))
        known, unknown = rng.normal(size=(1, 40)), rng.normal(0.7, 1.0, size=(1, 30))
        compute_aucs.append(estimate_auc(known, unknown))
    for found, high in ((means, 1.35), (compute_aucs, 1.15)):
        truth = np.std([one.value for one in found])
        size = np.sqrt(np.mean([one.error**2 for one in found]))
        assert 0.88 < size / truth < high


def make_predictions(shift):
    """Predictions of methods whose log scores and uncertainties are shifted by known amounts."""
    rng = np.random.default_rng(0)
    base, y = rng.normal(-1.0, 0.2, size=(3, 200)), np.zeros(200, dtype=int)
    known, unknown = rng.normal(0.0, 1.0, size=(3, 200)), rng.normal(0.5, 1.0, size=(3, 150))
    found = {}
    for method in METHODS:
        by = shift.get(method, 0.0)
        score = base + by + 0.01 * rng.normal(size=base.shape)
        chance = np.stack([np.exp(score), 1.0 - np.exp(score)], 2)
        uncertainty = {
            kind: {"test": known, "odd": unknown + by + 0.01 * rng.normal(size=unknown.shape)}
            for kind in KINDS
        }
        stale = score - 0.1 if method in (SWA, SWAG) else None
        found[method] = Predictions(
            score,
            score,
            (score > -1.0).astype(float),
            chance,
            chance,
            uncertainty,
            np.ones(3),
            np.ones(3),
            stale,
        )
    return found, y


def test_verdicts_follow_the_differences():
    good, y = make_predictions({SWAG: 0.05, FACTOR: 0.06, ENSEMBLE: 0.2, MULTI_SWAG: 0.3, SWA: 0.02})
    bad, _ = make_predictions({SWAG: -0.05, FACTOR: -0.2, SWA: -0.2, MULTI_SWAG: -0.2})
    wanted = (
        "x: SWAG and factor EM are better than SGD, by log score",
        "x: factor EM is as good as SWAG or better, by log score",
        "x: accuracy of SWA is no lower than SGD's",
        "x: several runs together are better than any one run, by log score",
        "x: entropy under a posterior of one run tells unknown images better than under SGD, of every kind",
        "x: entropy under several runs tells unknown images better than under SGD, of every kind",
    )
    for results, verdict in ((good, "target met"), (bad, "target missed")):
        found = {f.claim: f.verdict for f in [*judge_known("x", results, y), *judge_unknown("x", results)]}
        assert [found[claim] for claim in wanted] == [verdict] * len(wanted)


@pytest.mark.slow
def test_the_report_has_all_methods_and_they_learn(report):
    facts = report.curves["digits"]
    assert set(facts) == set(METHODS)
    for method, own in facts.items():
        assert own["accuracy"][0] > 0.75
        assert own["log score"][0] > np.log(1 / 8)
        values = [number for value in own.values() for number in value]
        assert np.isfinite(values).all()
        spread = own[f"{INFORMATION}, pixels shuffled"]
        assert (spread == [0.5, 0.0]) == (method in SINGLE[:3])  # one network does not disagree with itself
        assert own[f"{ENTROPY}, pixels shuffled"][0] > 0.6
    assert set(report.figures) == {"reliability", "unknown"}
    assert len(report.findings) == 15


@pytest.mark.slow
def test_the_report_is_written(report, tmp_path):
    report.write(tmp_path)
    assert "MultiSWAG" in (tmp_path / "network-images.md").read_text()
