"""Autoencoders on disk: files, checkpoints, sources of rows that are not in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from boxloop import FitWarning, GaussianMixture, load
from boxloop.data import open_source
from boxloop.estimators import VariationalAutoencoder
from boxloop.fit import Trainer
from boxloop.persist import ModelFileError
from persist.mutations import seal, split

QUICK = {"hidden": (8,), "max_iter": 4, "patience": None, "score_draws": 16, "penalty_nodes": 32}


def quick(n_components: int = 2, **more) -> VariationalAutoencoder:
    return VariationalAutoencoder(n_components, **{**QUICK, "random_state": 0, **more})


def rows(n: int = 120, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 5.0 + rng.normal(size=(n, 1)) * [1.0, 2.0, -1.0] + 0.3 * rng.normal(size=(n, 3))


def same(one: VariationalAutoencoder, other: VariationalAutoencoder) -> bool:
    pairs = zip(one.model_.trainable(), other.model_.trainable(), strict=True)
    return one.history_ == other.history_ and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"variance": "low_rank"}, {"prior": "mixture", "variance": "shared"}, {"alpha": 0.1, "hidden": ()},
        {"likelihood": "poisson"}, {"likelihood": "bernoulli"}, {"likelihood": "categorical"},
    ],
)  # fmt: skip
def test_a_file_and_back(tmp_path, options):
    X = (
        rows()
        if options.get("likelihood") is None
        else np.random.default_rng(0).integers(2, size=(60, 3)) * 1.0
    )
    fit = quick(**options).fit(X)
    fit.save(tmp_path / "vae.boxloop")
    for found in (VariationalAutoencoder.load(tmp_path / "vae.boxloop"), load(tmp_path / "vae.boxloop")):
        np.testing.assert_array_equal(found.score_samples(X), fit.score_samples(X))
        np.testing.assert_array_equal(found.sample(3)[0], fit.sample(3)[0])
        assert found.get_params() == fit.get_params()
        assert found.history_ == fit.history_
        assert (found.n_iter_, found.alpha_, found.events_) == (fit.n_iter_, fit.alpha_, fit.events_)


def test_images_and_names_come_back(tmp_path):
    X = np.random.default_rng(0).random((30, 4, 6))
    fit = quick(hidden=(4,), likelihood="bernoulli").fit(X)
    fit.save(tmp_path / "vae.boxloop")
    found = load(tmp_path / "vae.boxloop")
    assert found.image_shape_ == (4, 6)
    np.testing.assert_array_equal(found.reconstruct(X), fit.reconstruct(X))


class Own(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layer = nn.Linear(before, after)

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given)


def test_modules_come_back_as_tensors(tmp_path):
    with torch.random.fork_rng():
        modules = {"encoder": Own(3, 4), "decoder": Own(2, 6)}
        fresh = {"encoder": Own(3, 4), "decoder": Own(2, 6)}
        odd = Own(3, 5)
    fit, path = quick(**modules).fit(rows()), tmp_path / "vae.boxloop"
    fit.save(path)
    found = VariationalAutoencoder.load(path, **fresh)
    np.testing.assert_array_equal(found.score_samples(rows()), fit.score_samples(rows()))
    with pytest.raises(ModelFileError, match=r"encoder is a module of yours \(Own\).*encoder="):
        load(path)
    with pytest.raises(ModelFileError, match=r"decoder is a module of yours"):
        VariationalAutoencoder.load(path, encoder=fresh["encoder"])
    with pytest.raises(ModelFileError, match=r"'layer.bias' has shape \(5,\), the saved one \(4,\)"):
        VariationalAutoencoder.load(path, encoder=odd, decoder=fresh["decoder"])
    quick().fit(rows()).save(path)
    with pytest.raises(ModelFileError, match="leave out encoder="):
        VariationalAutoencoder.load(path, encoder=fresh["encoder"])


def test_files_of_others_are_refused(tmp_path):
    GaussianMixture(1).fit(rows()).save(tmp_path / "g.boxloop")
    with pytest.raises(ModelFileError, match="'GaussianMixture'"):
        VariationalAutoencoder.load(tmp_path / "g.boxloop")


class Stop(Exception):
    """Instead of a kill."""


def interrupting(patch, when: int, what: type[BaseException]) -> None:
    plain = Trainer.__call__

    def counted(self, state):
        if state.count >= when:
            raise what
        return plain(self, state)

    patch.setattr(Trainer, "__call__", counted)


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.1, "prior": "mixture"}, {"hidden": (4, 4), "n_draws": 3}]
)
def test_a_killed_fit_resumes_bit_for_bit(tmp_path, options):
    path, more = tmp_path / "fit.boxloop", {"max_iter": 6, "batch_size": 20, **options}
    whole = quick(**more).fit(rows())
    with pytest.MonkeyPatch.context() as patch:
        interrupting(patch, 15, Stop)
        with pytest.raises(Stop):
            quick(**more, checkpoint=path).fit(rows())
    again = quick(**more, checkpoint=path).fit(rows())
    assert same(again, whole)
    with pytest.raises(ModelFileError, match="'rows'"):
        quick(**more, checkpoint=path).fit(rows() + 1.0)
    with pytest.raises(ModelFileError, match="'beta'"):
        quick(**more, checkpoint=path, beta=2.0).fit(rows())
    with pytest.raises(ValueError, match="integer random_state"):
        quick(**more, checkpoint=path).set_params(random_state=None).fit(rows())


def test_a_choice_of_alpha_resumes(tmp_path):
    path = tmp_path / "fit.boxloop"
    whole = quick(alpha="validation", max_iter=2).fit(rows())
    with pytest.MonkeyPatch.context() as patch:
        plain, calls = Trainer.__call__, iter(range(99))

        def counted(self, state):
            if next(calls) == 5:  # in the third of six fits
                raise Stop
            return plain(self, state)

        patch.setattr(Trainer, "__call__", counted)
        with pytest.raises(Stop):
            quick(alpha="validation", max_iter=2, checkpoint=path).fit(rows())
    again = quick(alpha="validation", max_iter=2, checkpoint=path).fit(rows())
    assert same(again, whole)
    assert again.alphas_ == whole.alphas_


def test_ctrl_c_keeps_the_last_iteration(monkeypatch):
    interrupting(monkeypatch, 10, KeyboardInterrupt)
    with pytest.warns(FitWarning, match="interrupted after iteration 2"):
        fit = quick(batch_size=22).fit(rows())
    assert fit.interrupted_
    assert not fit.converged_
    assert fit.n_iter_ == 2
    monkeypatch.undo()
    assert same(fit, quick(batch_size=22, max_iter=2).fit(rows()))


def test_ctrl_c_while_alpha_is_chosen(monkeypatch):
    plain, calls = Trainer.__call__, iter(range(99))

    def counted(self, state):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return plain(self, state)

    monkeypatch.setattr(Trainer, "__call__", counted)
    with pytest.warns(FitWarning, match="interrupted"):
        fit = quick(alpha="validation").fit(rows())
    assert fit.interrupted_
    assert fit.alphas_["alpha"] == [0.0, 0.01]
    assert np.isfinite(fit.score(rows()))


def test_rows_in_files(tmp_path):
    """Held in memory they give the same fit as an array; read anew in every pass, one as good."""
    X = rows(400)
    folder = tmp_path / "rows"
    folder.mkdir()
    for i, part in enumerate(np.array_split(X, 3)):
        pq.write_table(pa.table({f"x{j}": part[:, j] for j in range(3)}), folder / f"{i}.parquet")
    np.save(tmp_path / "rows.npy", X)
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", header="x0,x1,x2", comments="", fmt="%.17g")
    more = {"max_iter": 15, "learning_rate": 0.02, "batch_size": 50}
    memory = quick(**more).fit(X)
    for given in (
        folder,
        str(tmp_path / "rows.npy"),
        tmp_path / "rows.csv",
        np.load(tmp_path / "rows.npy", mmap_mode="r"),
    ):
        assert same(quick(**more).fit(given), memory)
    stream = open_source(folder, memory=0)
    one, two = quick(**more).fit(stream), quick(**more).fit(stream)
    assert same(one, two)
    assert one.score(stream) > memory.score(X) - 0.3
    np.testing.assert_allclose(one.transform(folder), one.transform(X), rtol=1e-5, atol=1e-6)


def test_progress_tells_the_parts(capsys):
    quick(verbose=1, alpha=0.1, hidden=(2,), max_iter=1).fit(rows())
    assert "elbo" in capsys.readouterr().err


def test_a_file_of_more_draws_than_memory_holds_is_refused(tmp_path):
    """It loaded, and ``score`` ran out of memory."""
    path = tmp_path / "vae.boxloop"
    quick().fit(rows()).save(path)
    document, tensors = split(path.read_bytes())
    for place in (document["tree"]["fields"], document["extra"]["params"]):
        usual, place["score_draws"] = place["score_draws"], 10**9
        path.write_bytes(seal(document, tensors))
        with pytest.raises(ModelFileError, match="score_draws"):
            load(path)
        place["score_draws"] = usual
    with pytest.raises(ValueError, match="The 'score_draws' parameter"):
        quick(score_draws=10**9).fit(rows())
