"""The same answers on a GPU as on the CPU, where there is one."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import boxloop
from boxloop.criticise import fused_moment_gap
from boxloop.data import draw_topics
from boxloop.numeric import generator, normal

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
    (boxloop.BernoulliMixture, {"binarize": 0.5}),
    (boxloop.MultinomialMixture, {}),
    (boxloop.BayesianGaussianMixture, {"covariance_type": "full"}),
    (boxloop.BayesianGaussianMixture, {"covariance_type": "tied"}),
    (boxloop.BayesianGaussianMixture, {"covariance_type": "diag"}),
    (boxloop.BayesianGaussianMixture, {"covariance_type": "spherical"}),
    (boxloop.BayesianFactorAnalysis, {}),
    (boxloop.BayesianMultinomialMixture, {}),
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("d", [1, 2, 7, 64])
@pytest.mark.parametrize("whole", [False, True])
def test_the_penalty_and_its_gradient_are_those_of_the_cpu(dtype, d, whole):
    X, M = (normal((n, d), generator(n), torch.float64) for n in (30, 200))
    S = torch.eye(d).double() if whole else torch.ones(d).double()
    found = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        inputs = [part.to(device, kind).requires_grad_() for part in (X, M, S)]
        value = fused_moment_gap(*inputs)
        found.append([value, *torch.autograd.grad(value, inputs)])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    for ours, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours.cpu().double(), wanted, rtol=tolerance, atol=tolerance)


def test_the_penalty_can_be_captured_in_a_graph():
    X, M, S = (torch.rand(n, 8, device="cuda").double() for n in (30, 200, 200))
    M.requires_grad_()

    def step():
        return torch.autograd.grad(fused_moment_gap(X, M, S.mean(0)), M)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    with torch.no_grad():
        M.mul_(2.0)
    graph.replay()
    torch.testing.assert_close(made, step())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("options", [{"method": "spectral"}, {"init_params": "spectral"}, {}])
def test_topics_are_those_of_the_cpu(options, sparse):
    X = draw_topics(3, 20, generator(0)).source(3000, 8, generator(1)).rows.to_dense().numpy()
    X = csr_array(X) if sparse else X
    cpu, gpu = (
        boxloop.MultinomialMixture(3, random_state=0, device=device, **options).fit(X)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu.probabilities_, cpu.probabilities_, atol=1e-6)
    for name, error in cpu.standard_errors(X).items():
        np.testing.assert_allclose(gpu.standard_errors(X)[name], error, rtol=1e-4, atol=1e-6)


def test_equations_are_those_of_the_cpu():
    X = torch.randn(500, 2, generator=generator(0), dtype=torch.float64)

    def line(theta, rows):
        x, y = rows[:, 0], rows[:, 1]
        return torch.stack([torch.ones_like(x), x], 1) * (y - theta[0] - theta[1] * x)[:, None]

    cpu, gpu = (boxloop.z_estimate(line, X.to(device), [0.0, 0.0]) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu.theta.cpu(), cpu.theta)
    torch.testing.assert_close(gpu.covariance.cpu(), cpu.covariance)
