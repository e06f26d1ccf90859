"""Faults 44 and 50 through commands and estimators: names that are code, and devices that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxloop
from boxloop.data import write_table
from boxloop.estimators import random_effects
from cli.calls import call, clusters, done, table
from estimators import cases
from estimators.public_cases import PUBLIC, Public
from report.small import few_candidates

EVIL = "<script>alert(1)</script>"
DEVICES = (
    *(
        pytest.param(case.kind, {**case.params, "max_iter": 2}, case.rows(60), id=case.name)
        for case in cases.EVERYONE
    ),
    pytest.param(boxloop.VariationalAutoencoder, {"max_iter": 1}, cases.blobs(60), id="autoencoder"),
    pytest.param(boxloop.EnergyBasedModel, {"max_iter": 1}, cases.blobs(60), id="energy"),
)


def test_f44_a_column_named_script_in_a_report(tmp_path: Path) -> None:
    rows = clusters(120)
    data, page = tmp_path / "rows.csv", tmp_path / "page.html"
    write_table(data, {EVIL: rows[:, 0], "width": rows[:, 2]})
    with few_candidates():
        done("report", data, "-o", page, "--jobs", 1)
    text = page.read_text()
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.fixture
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.parametrize(("kind", "params", "rows"), DEVICES)
def test_f50_cuda_absent(kind: type, params: dict[str, Any], rows: np.ndarray) -> None:
    estimator = kind(**params, device="cuda", random_state=0)
    with pytest.raises(ValueError, match="no CUDA device is available; use device='auto'"):
        estimator.fit(rows)
    assert "model_" not in vars(estimator)


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::boxloop.FitWarning")
def test_f50_auto_falls_back_to_the_processor() -> None:
    rows = cases.factors(60)
    found, wanted = (boxloop.FactorAnalysis(1, device=device).fit(rows) for device in ("auto", "cpu"))
    assert (found.components_ == wanted.components_).all()


@pytest.fixture
def _full_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU to which nothing can be moved, and that has no room for a generator."""
    move, seeded = torch.Tensor.to, random_effects.generator

    def full(device: Any) -> bool:
        return isinstance(device, str | torch.device) and torch.device(device).type == "cuda"

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if any(full(given) for given in (*args, *kwargs.values())):
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return move(self, *args, **kwargs)

    def generator(random_state: Any, device: Any = "cpu") -> Any:
        if full(device):
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return seeded(random_state, device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(random_effects, "generator", generator)


ON_DEVICES = [public for public in PUBLIC if "device" in public.make().get_params()]


@pytest.mark.usefixtures("_full_gpu")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::boxloop.FitWarning")
@pytest.mark.filterwarnings("ignore::boxloop.networks.WeightWarning")
@pytest.mark.parametrize("public", ON_DEVICES, ids=lambda public: public.name)
def test_f50_cuda_out_of_memory(public: Public) -> None:
    X, y = public.data()
    given = (X,) if y is None else (X, y)
    with pytest.raises(torch.OutOfMemoryError, match=rf"for {public.name}\.fit: use device='cpu'.*GiB"):
        public.make().set_params(device="cuda").fit(*given, **public.settings())
    with pytest.warns(
        boxloop.FitWarning, match=rf"little memory for {public.name}\.fit: it goes on on the CPU"
    ):
        found = public.make().set_params(device="auto").fit(*given, **public.settings())
    wanted = public.make().fit(*given, **public.settings())
    for name in ("predict", "score_samples", "transform"):
        if callable(getattr(found, name, None)):
            np.testing.assert_array_equal(getattr(found, name)(X), getattr(wanted, name)(X))
    if "score_samples" in dir(wanted):
        with pytest.raises(torch.OutOfMemoryError, match=rf"{public.name}\.score_samples: use device='cpu'"):
            wanted.set_params(device="auto").score_samples(X)


@pytest.mark.usefixtures("_full_gpu")
@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
def test_f50_a_fit_that_went_on_on_the_cpu_stays_there() -> None:
    X = cases.blobs(60)
    found = boxloop.GaussianMixture(2, random_state=0, device="auto")
    labels = found.fit_predict(X)
    assert (labels == found.predict(X)).all()
    assert np.isfinite(found.fit(X).score(X))


@pytest.mark.usefixtures("_full_gpu")
def test_f50_commands_out_of_memory(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", clusters(60))
    fit = ["fit", data, "--model", "factor-analysis", "-k", 1, "-o", tmp_path / "m.boxloop", "-q"]
    ended = call(*fit, "--device", "cuda")
    assert ended.exit_code == 1
    assert ended.stderr.startswith(
        "Error: the GPU has too little memory for FactorAnalysis.fit: use device='cpu'"
    )
    assert not (tmp_path / "m.boxloop").exists()


@pytest.mark.usefixtures("_no_cuda")
def test_f50_commands(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", clusters(60))
    fit = ["fit", data, "--model", "factor-analysis", "-k", 1, "-o", tmp_path / "m.boxloop", "-q"]
    ended = call(*fit, "--device", "cuda")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("Error: device='cuda' was asked for, but no CUDA device is available")
    assert not (tmp_path / "m.boxloop").exists()
    done(*fit, "--device", "auto")
    assert (tmp_path / "m.boxloop").exists()
