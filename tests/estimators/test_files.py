"""Fitted estimators on disk: what was saved is what comes back, to the last bit, in any process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import boxloop
from boxloop import FactorAnalysis, GaussianMixture
from boxloop.average import Running
from boxloop.persist import FileMixin, ModelFileError, get_model_file, save_tree
from estimators.cases import EVERYONE, Case, assert_same, blobs, everyone, factors, fit_with_warnings
from estimators.public_cases import PUBLIC, Public

READ = """
import sys
from pathlib import Path
import numpy as np
import boxloop
for path in Path(sys.argv[1]).glob("*.boxloop"):
    estimator, X = boxloop.load(path), np.load(path.with_suffix(".npy"))
    np.save(path.with_suffix(".out.npy"), np.concatenate([estimator.score_samples(X), estimator.transform(X).ravel()]))
"""


def facts(estimator: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and name not in ("model_", "feature_names_in_")
    }


@everyone
@pytest.mark.parametrize("named", [False, True])
def test_round_trip(case: Case, tmp_path: Path, named: bool) -> None:
    rows = case.rows(120)
    X = pandas.DataFrame(rows, columns=[f"column {j}" for j in range(rows.shape[1])]) if named else rows
    estimator = case.quick().fit(X)
    estimator.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert type(back) is case.kind
    assert back.get_params() == estimator.get_params()
    assert_same(back, estimator, rtol=0, atol=0)
    assert set(facts(back)) == set(facts(estimator))
    for name, value in facts(estimator).items():
        np.testing.assert_array_equal(getattr(back, name), value, err_msg=name)
    if named:
        assert back.feature_names_in_.tolist() == estimator.feature_names_in_.tolist()
        with pytest.raises(ValueError, match="The feature names should match"):
            back.transform(X.rename(columns={"column 0": "other"}))
    for method in ("transform", "score_samples"):
        np.testing.assert_array_equal(getattr(back, method)(X), getattr(estimator, method)(X))
    assert back.aic(X) == estimator.aic(X)
    np.testing.assert_array_equal(back.sample(9)[0], estimator.sample(9)[0])
    assert back.get_feature_names_out().tolist() == estimator.get_feature_names_out().tolist()


def test_loading_in_a_fresh_process(tmp_path: Path) -> None:
    wanted = {}
    for case in EVERYONE:
        X = case.rows(60)
        estimator = case.quick().fit(X)
        estimator.save(tmp_path / f"{case.name}.boxloop")
        np.save(tmp_path / f"{case.name}.npy", X)
        wanted[case.name] = np.concatenate([estimator.score_samples(X), estimator.transform(X).ravel()])
    subprocess.run([sys.executable, "-c", READ, str(tmp_path)], check=True)
    for name, values in wanted.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.out.npy"), values, err_msg=name)


@everyone
def test_a_loaded_estimator_goes_on(case: Case, tmp_path: Path) -> None:
    X = case.rows(600)
    estimator = case.quick(warm_start=True, tol=1e-9, max_iter=1000).fit(X[:300])
    estimator.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    before = back.score(X)
    assert_same(estimator.fit(X), boxloop.load(tmp_path / "m.boxloop").fit(X), rtol=0, atol=0)
    back.partial_fit(X[300:310])
    assert back.score(X) == before, "ten rows are kept, and change nothing yet"
    back.partial_fit(X[310:])
    assert back.score(X) > before - 0.02
    assert back.score(X) != before


@pytest.mark.parametrize("rotation", ["varimax", "quartimax"])
def test_a_rotation_is_not_turned_again(tmp_path: Path, rotation: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6)) + 0.5 * rng.normal(size=(300, 6))
    estimator = FactorAnalysis(2, rotation=rotation).fit(X)
    estimator.save(tmp_path / "m.boxloop")
    np.testing.assert_array_equal(boxloop.load(tmp_path / "m.boxloop").components_, estimator.components_)


def test_parameters_that_are_numpy_scalars_are_kept(tmp_path: Path) -> None:
    chosen = {"n_components": np.int64(3), "tol": np.float32(1e-3), "warm_start": np.bool_(True)}
    GaussianMixture(**chosen, random_state=np.int32(5)).fit(blobs(100)).save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert (back.n_components, back.warm_start, back.random_state) == (3, True, 5)
    assert back.tol == pytest.approx(1e-3)
    assert back.set_params(warm_start=False).fit(blobs(100)).weights_.shape == (3,)


def test_parameters_that_are_not_plain_are_left_out(tmp_path: Path) -> None:
    state = np.random.RandomState(0)
    start = {"means_init": blobs(100)[:2], "device": torch.device("cpu"), "checkpoint": tmp_path / "c"}
    GaussianMixture(2, random_state=state, **start).fit(blobs(100)).save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert back.random_state is None
    assert back.means_init is None
    assert back.n_components == 2


def test_odd_facts_survive(tmp_path: Path) -> None:
    estimator, _ = fit_with_warnings(GaussianMixture(2, max_iter=0, random_state=0), blobs(100))
    assert estimator.lower_bound_ == -np.inf
    estimator.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert (back.lower_bound_, back.n_iter_, back.converged_) == (-np.inf, 0, False)
    flat, _ = fit_with_warnings(FactorAnalysis(1), np.column_stack([factors(100), np.ones(100)]))
    flat.save(tmp_path / "flat.boxloop")
    assert boxloop.load(tmp_path / "flat.boxloop").events_ == flat.events_


def test_after_partial_fit(tmp_path: Path) -> None:
    estimator = GaussianMixture(2, random_state=0)
    for start in range(0, 400, 100):
        estimator.partial_fit(blobs(400)[start : start + 100])
    estimator.save(tmp_path / "m.boxloop")
    assert_same(boxloop.load(tmp_path / "m.boxloop"), estimator, rtol=0, atol=0)


def test_every_estimator_has_a_file() -> None:
    kinds = [getattr(boxloop, public.name) for public in PUBLIC]
    assert {name for name in boxloop.estimators.__all__ if hasattr(getattr(boxloop, name), "fit")} <= {
        kind.__name__ for kind in kinds
    }
    assert all(
        issubclass(kind, FileMixin) and hasattr(kind, "save") and get_model_file(kind).facts for kind in kinds
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
def test_every_estimator_is_read_back(public: Public, tmp_path: Path) -> None:
    estimator, X = public.fitted(), public.data()[0]
    estimator.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert type(back) is type(estimator)
    called = [
        name for name in ("predict", "predict_proba", "transform", "score_samples") if hasattr(back, name)
    ]
    assert called
    for name in called:
        np.testing.assert_array_equal(getattr(back, name)(X), getattr(estimator, name)(X), err_msg=name)


@pytest.mark.parametrize("name", ["FitWarning", "load", "nonsense", "SaveMixin", "LatentEstimator"])
def test_a_file_may_name_estimators_only(name: str, tmp_path: Path) -> None:
    save_tree(tmp_path / "m.boxloop", Running(None, 3), extra={"estimator": name})
    with pytest.raises(ModelFileError, match=f"holds the estimator '{name}', which .* does not know"):
        boxloop.load(tmp_path / "m.boxloop")


def test_a_tree_that_is_no_estimator_is_refused(tmp_path: Path) -> None:
    save_tree(tmp_path / "m.boxloop", Running(None, 3))
    with pytest.raises(ModelFileError, match="holds no estimator"):
        boxloop.load(tmp_path / "m.boxloop")


def test_what_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this GaussianMixture is not fitted yet"):
        GaussianMixture().save(tmp_path / "m.boxloop")
    (tmp_path / "bad.boxloop").write_bytes(b"not a model")
    with pytest.raises(ModelFileError):
        boxloop.load(tmp_path / "bad.boxloop")
    with pytest.raises(FileNotFoundError):
        boxloop.load(tmp_path / "none.boxloop")
