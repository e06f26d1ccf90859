"""The same answers on a GPU as on the CPU, where there is one."""

import numpy as np
import pytest
import torch

import boxloop

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(3.0, size=(3000, 6)) + 4.0 * rng.integers(2, size=(3000, 1)) * np.array(
        [1, 0, 1, 0, 1, 0]
    )


CASES = [
    (boxloop.GaussianMixture, {"covariance_type": "full"}),
    (boxloop.GaussianMixture, {"covariance_type": "tied"}),
    (boxloop.GaussianMixture, {"covariance_type": "diag"}),
    (boxloop.GaussianMixture, {"covariance_type": "spherical"}),
    (boxloop.FactorAnalysis, {}),
    (boxloop.ProbabilisticPCA, {}),
    (boxloop.PoissonMixture, {}),
    (boxloop.BernoulliMixture, {}),
    (boxloop.MultinomialMixture, {}),
]


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("estimator", "options"), CASES)
def test_cuda_equals_cpu(estimator, options, missing):
    X = rows().astype(float)
    if missing:
        X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    cpu = estimator(2, random_state=0, **options).fit(X)
    gpu = estimator(2, random_state=0, device="cuda", **options).fit(X)
    np.testing.assert_allclose(gpu.score_samples(X), cpu.score_samples(X), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(gpu.transform(X), cpu.transform(X), rtol=1e-6, atol=1e-7)
    assert gpu.n_iter_ == cpu.n_iter_
    gpu.partial_fit(X[:300])
    assert gpu.sample(5)[0].shape == (5, 6)


def test_asking_for_a_missing_device_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="auto"):
        boxloop.GaussianMixture(device="cuda").fit(rows())
