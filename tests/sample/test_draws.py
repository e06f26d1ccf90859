"""Draws as users meet them: summaries against numpy and arviz-stats, thinning, pictures, ArviZ, checkpoints."""

from __future__ import annotations

import io
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats
from rich.console import Console
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close

from boxloop import progress as progress_module
from boxloop.figures import new_axes, png
from boxloop.persist import ModelFileError
from boxloop.sample import (
    HMC,
    MALA,
    Draws,
    Gibbs,
    Independent,
    MetropolisHastings,
    PseudoMarginal,
    RandomWalk,
    SampleWarning,
    diagnose,
    sample_density,
)
from sample.cases import Gaussian

SAME: dict[str, Any] = {"rtol": 0.0, "atol": 0.0}
START = {"mean": torch.zeros(2).double(), "scale": torch.tensor(1.0).double()}


def density(values: dict[str, Tensor]) -> Tensor:
    return -0.5 * values["mean"].square().sum(1) - values["scale"]


@pytest.fixture(scope="module")
def drawn() -> Draws:
    return sample_density(
        density,
        START,
        chains=6,
        draws=300,
        warmup=200,
        support={"scale": constraints.positive},
        random_state=0,
    )


def test_summaries_are_those_of_numpy_and_arviz(drawn: Draws) -> None:
    table = drawn.summary(0.9)
    assert list(table.index) == list(drawn.names) == ["mean[0]", "mean[1]", "scale"]
    columns = {"mean[0]": drawn["mean"][..., 0], "mean[1]": drawn["mean"][..., 1], "scale": drawn["scale"]}
    for name, values in columns.items():
        column, line = values.numpy(), table.loc[name]
        assert column.shape == (6, 300)
        np.testing.assert_allclose(line["mean"], column.mean(), rtol=1e-12)
        np.testing.assert_allclose(line["sd"], column.std(ddof=1), rtol=1e-12)
        np.testing.assert_allclose([line["low"], line["high"]], np.quantile(column, [0.05, 0.95]), rtol=1e-12)
        np.testing.assert_allclose(line["mcse"], array_stats.mcse(column, method="mean"), rtol=1e-12)
        np.testing.assert_allclose(line["ess_bulk"], array_stats.ess(column, method="bulk"), rtol=1e-12)
        tail = array_stats.ess(column, method="tail", prob=(0.05, 0.95))
        np.testing.assert_allclose(line["ess_tail"], tail, rtol=1e-12)
        np.testing.assert_allclose(line["r_hat"], array_stats.rhat(column, method="rank"), rtol=1e-12)
    assert drawn.converged
    for level in (0.0, 1.0, -3.0, float("nan")):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            drawn.summary(level)


def test_values_and_densities_belong_together(drawn: Draws) -> None:
    assert list(drawn) == ["mean", "scale"]
    assert (drawn.n_chains, drawn.n_draws) == (6, 300)
    assert drawn.table.shape == (6, 300, 3)
    flat = {name: value.flatten(0, 1) for name, value in drawn.values.items()}
    stored = drawn.log_density.T.flatten()
    assert_close(stored, density(flat) + flat["scale"].log(), rtol=1e-10, atol=1e-10)
    with pytest.raises(KeyError):
        drawn["median"]


def test_nested_r_hat_is_that_of_arviz() -> None:
    """Groups of chains that begin at one point; many short chains can pass, where plain R-hat cannot."""
    gaussian = Gaussian.of(2)
    found = sample_density(
        gaussian.log_density,
        torch.zeros(2).double(),
        chains=64,
        superchains=4,
        draws=20,
        warmup=150,
        start_sd=3.0,
        random_state=0,
    )
    groups = np.repeat(np.arange(4), 16)
    for j in range(2):
        column = found.table[:, :, j]
        wanted = array_stats.rhat_nested(column, superchain_ids=groups, method="rank")
        assert found.diagnosis.r_hat[j] == pytest.approx(float(wanted), rel=1e-12)
        assert found.diagnosis.r_hat[j] != array_stats.rhat(column, method="rank")
    assert found.superchains == 4


@pytest.mark.filterwarnings("ignore:acceptance 1")
def test_chains_of_a_group_begin_at_one_point() -> None:
    found = sample_density(
        lambda x: -0.5 * x.square().sum(1),
        torch.zeros(3).double(),
        RandomWalk(1e-9),
        chains=6,
        superchains=2,
        draws=1,
        warmup=0,
        random_state=0,
    ).positions[0]
    for group in (found[:3], found[3:]):
        assert float((group - group[0]).abs().max()) < 1e-7
    assert float((found[0] - found[3]).abs().max()) > 0.1


@pytest.mark.parametrize("thin", [1, 3])
def test_thinning_while_sampling_is_thinning_after(thin: int) -> None:
    options: Any = {"chains": 3, "warmup": 0, "random_state": 0}
    start = torch.zeros(2).double()
    whole = sample_density(
        lambda x: -0.5 * x.square().sum(1), start, RandomWalk(1.0), draws=32 * thin, **options
    )
    found = sample_density(
        lambda x: -0.5 * x.square().sum(1), start, RandomWalk(1.0), draws=32, thin=thin, **options
    )
    assert found.thin == thin
    assert found.n_draws == 32
    if thin == 1:
        assert_close(found.positions, whole.positions, **SAME)
    after = whole.thin_draws(thin)
    assert (after.n_draws, after.thin) == (32, thin)
    assert_close(after.positions, whole.positions[thin - 1 :: thin], **SAME)
    assert_close(after.log_density, whole.log_density[thin - 1 :: thin], **SAME)
    with pytest.raises(ValueError, match="every must be an integer of at least 1"):
        whole.thin_draws(0)


def test_random_states(drawn: Draws) -> None:
    def run(random_state: Any) -> Tensor:
        return sample_density(
            lambda x: -x.square().sum(1),
            torch.zeros(1).double(),
            chains=2,
            draws=5,
            warmup=5,
            random_state=random_state,
        ).positions

    state = torch.get_rng_state()
    assert_close(run(3), run(3), **SAME)
    assert not torch.equal(run(3), run(4))
    assert not torch.equal(run(None), run(None))
    assert_close(run(np.random.default_rng(0)), run(np.random.default_rng(0)), **SAME)
    assert_close(torch.get_rng_state(), state, **SAME)


def test_arviz_sees_the_same_numbers(drawn: Draws) -> None:
    pytest.importorskip("arviz_base")
    tree = drawn.to_arviz()
    posterior = tree["posterior"]
    assert set(posterior.data_vars) == {"mean", "scale"}
    assert posterior["mean"].dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(posterior["mean"].values, drawn["mean"].numpy())
    np.testing.assert_array_equal(posterior["scale"].values, drawn["scale"].numpy())
    np.testing.assert_array_equal(tree["sample_stats"]["lp"].values, drawn.log_density.T.numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the plotting library itself
def test_arviz_draws_them(drawn: Draws) -> None:
    pytest.importorskip("arviz_base")
    plots = pytest.importorskip("arviz_plots")
    for plot in (plots.plot_trace, plots.plot_rank):
        assert plot(drawn.to_arviz(), backend="none") is not None
        shown = plot(drawn.to_arviz(), backend="matplotlib")
        figure = shown.viz["figure"].item()
        assert figure.axes
        import matplotlib.pyplot as plt

        plt.close(figure)


@pytest.mark.parametrize("kind", ["trace", "rank"])
def test_pictures(drawn: Draws, kind: Any) -> None:
    given = new_axes()
    axes = drawn.plot(given, name="scale", kind=kind)
    assert axes is given
    assert png(axes).startswith(b"\x89PNG")
    assert "scale, R-hat 1.0" in axes.get_title(loc="left")
    worst = drawn.plot(kind=kind)
    assert drawn.names[drawn.diagnosis.worst_index] in worst.get_title(loc="left")
    assert png(worst).startswith(b"\x89PNG")


def test_pictures_that_cannot_be(drawn: Draws) -> None:
    with pytest.raises(ValueError, match=r"no number is called 'lost'; the first are mean\[0\]"):
        drawn.plot(name="lost")
    with pytest.raises(ValueError, match="trace or rank, got 'pie'"):
        drawn.plot(kind="pie")


def test_words(drawn: Draws) -> None:
    text = repr(drawn).splitlines()
    assert text[0].startswith("300 draws of 6 chains after 200 steps of warm-up, HMC, acceptance 0.")
    assert [line.split()[0] for line in text[2:]] == ["mean[0]", "mean[1]", "scale"]
    wide = sample_density(
        lambda x: -x.square().sum(1), torch.zeros(30).double(), chains=2, draws=5, warmup=5, random_state=0
    )
    assert "and 10 more" in repr(wide)
    assert any(line.startswith("! ") for line in repr(wide).splitlines())


def test_a_notebook_shows_the_summary_and_the_concerns_escaped(drawn: Draws) -> None:
    page = drawn._repr_html_()
    assert "300 draws of 6 chains" in page
    assert page.count("<th>mean[") == 2
    assert "ess_bulk" in page
    start = {"<b>": torch.zeros(1).double()}
    odd = sample_density(
        lambda v: -v["<b>"].square().sum(1), start, chains=1, draws=8, warmup=8, random_state=0
    )
    page = odd._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;[0]" in page
    assert "<li>one chain: R-hat is not available" in page


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_few_draws_pass_no_judgement(count: int) -> None:
    found = sample_density(
        lambda x: -x.square().sum(1), torch.zeros(2).double(), chains=3, draws=count, warmup=5, random_state=0
    )
    assert not found.converged
    assert found.concerns == ("fewer than 4 draws per chain: too few to diagnose",)
    assert np.isnan(found.summary()["r_hat"]).all()
    assert repr(found)
    assert png(found.plot()).startswith(b"\x89PNG")


def run_to(path: Path | None, draws: int = 100, **options: Any) -> Draws:
    given: Any = {"chains": 3, "warmup": 70, "random_state": 5, **options}
    kernel = given.pop("kernel", None)
    log_density = given.pop("log_density", lambda x: -0.5 * x.square().sum(1) - x[:, 0].square().log1p())
    return sample_density(log_density, torch.zeros(2).double(), kernel, draws=draws, checkpoint=path, **given)


def wide_distribution() -> Any:
    return Gaussian(torch.zeros(2).double(), torch.eye(2).double()).distribution()


KERNELS: dict[str, Any] = {
    "default": lambda: None,
    "walk": RandomWalk,
    "barker": lambda: RandomWalk(rule="barker"),
    "langevin": MALA,
    "given": lambda: HMC(0.5),
    "given metric": lambda: MALA(
        metric=torch.linalg.cholesky(torch.tensor([[1.0, 0.4], [0.4, 0.7]], dtype=torch.float64))
    ),
    "independent": lambda: Independent(wide_distribution()),
    "generalised": lambda: MetropolisHastings(lambda x, stream: -x, lambda x, y: x.new_zeros(len(x))),
    "pseudo-marginal": lambda: PseudoMarginal(lambda x, v: -x.square().sum(1) + 0.1 * v[:, 0], 1, 0.5),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_checkpoint_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Stopped in warm-up or among the draws, with algorithms made afresh, as another process does."""
    whole = run_to(None, kernel=KERNELS[name]())
    for share in (0.2, 0.5, 0.9):
        path = tmp_path / f"{share}.boxloop"

        def stop(progress: Any, share: float = share) -> None:
            if progress.iteration == int(share * progress.max_iter) and not progress.stopped:
                raise KeyboardInterrupt

        with pytest.warns(SampleWarning, match="interrupted"):
            part = run_to(path, kernel=KERNELS[name](), observers=[stop])
        assert part.interrupted
        assert part.n_draws < 100
        again = run_to(path, kernel=KERNELS[name]())
        assert not again.interrupted
        assert_close(again.positions, whole.positions, **SAME)
        assert_close(again.log_density, whole.log_density, **SAME)
        assert_close(again.acceptance, whole.acceptance, **SAME)


@pytest.mark.parametrize(("first", "then"), [(64, 128), (50, 128), (64, 100), (50, 51), (40, 40)])
def test_more_draws_may_be_asked_for(first: int, then: int, tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    before = run_to(path, first)
    after = run_to(path, then)
    assert (before.n_draws, after.n_draws) == (first, then)
    assert_close(after.positions[:first], before.positions, **SAME)
    if first % 32 == 0 or first == then:  # whole iterations: then it is the trajectory of one run
        assert_close(after.positions, run_to(None, then).positions, **SAME)


def test_fewer_draws_may_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    whole = run_to(path, 96)
    fewer = run_to(path, 40)
    assert fewer.n_draws == 40
    assert_close(fewer.positions, whole.positions[:40], **SAME)
    assert float(fewer.acceptance.max()) <= 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"random_state": 6}, "random_state|start|density"),
        ({"warmup": 71}, "warmup"),
        ({"thin": 2}, "thin"),
        ({"chains": 4}, "start|density"),
        ({"start_sd": 0.5}, "start|density"),
        ({"kernel": MALA()}, "algorithm"),
        ({"kernel": HMC(rule="barker")}, "rule"),
        ({"kernel": HMC(metric=torch.ones(2).double())}, "metric"),
        ({"log_density": lambda x: -0.5 * x.square().sum(1)}, "density"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    run_to(path, 32)
    before = path.read_bytes()
    with pytest.raises(ModelFileError, match=f"a checkpoint of another fit: '({said})'"):
        run_to(path, 64, **options)
    assert path.read_bytes() == before


def test_metrics_that_print_alike_are_distinguished(tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    run_to(path, 32, kernel=RandomWalk(metric=torch.tensor([1.0, 1.0]).double()))
    with pytest.raises(ModelFileError, match="'metric'"):
        run_to(path, 32, kernel=RandomWalk(metric=torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64)))


def test_blocks_of_a_sweep_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    def draw(values: dict[str, Tensor], stream: Any) -> Tensor:
        return 0.5 * values["b"] + torch.randn(len(values["b"]), generator=stream, dtype=torch.float64)

    def blocks() -> Gibbs:
        return Gibbs({"a": lambda values, stream: draw(values, stream), "b": RandomWalk(1.0)})

    def run(draws: int, path: Path | None) -> Draws:
        start = {"a": torch.zeros(4).double(), "b": torch.zeros(4).double()}
        return sample_density(
            lambda v: -0.5 * (v["a"] - 0.5 * v["b"]).square() - 0.5 * v["b"].square(),
            start,
            blocks(),
            draws=draws,
            warmup=30,
            random_state=0,
            checkpoint=path,
        )

    run(32, tmp_path / "c.boxloop")
    assert_close(run(96, tmp_path / "c.boxloop").positions, run(96, None).positions, **SAME)


@pytest.mark.parametrize("when", [0, 1, 5, 12])
def test_ctrl_c_keeps_what_there_is(when: int) -> None:
    calls = 0

    def density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1)

    def stop(progress: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == when + 1 and not progress.stopped:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(SampleWarning, match=r"interrupted after \d+ draws of each chain"):
        found = sample_density(
            density,
            torch.zeros(2).double(),
            RandomWalk(1.0),
            chains=3,
            draws=500,
            warmup=64,
            random_state=0,
            observers=[stop],
        )
    iterations = when + 1
    assert found.interrupted
    assert not found.converged
    assert found.n_draws == max(0, iterations - 2) * 32
    assert found.warmup == min(64, iterations * 32)
    assert "interrupted" in found.concerns[0]
    assert found.events == (f"interrupted after iteration {iterations}",)
    assert repr(found)
    if found.n_draws == 0:
        assert found.acceptance is None
        with pytest.raises(ValueError, match="interrupted in warm-up"):
            found.summary()
        with pytest.raises(ValueError, match="interrupted in warm-up"):
            found.plot()
    else:
        whole = sample_density(
            density,
            torch.zeros(2).double(),
            RandomWalk(1.0),
            chains=3,
            draws=500,
            warmup=64,
            random_state=0,
        )
        assert_close(found.positions, whole.positions[: found.n_draws], **SAME)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [(None, "acceptance 0."), (Gibbs({"a": lambda v, s: torch.randn_like(v["a"])}), "R-hat")],
)
def test_progress_is_reported(kernel: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, width=160, force_terminal=False, file=io.StringIO())
    plain = progress_module.ProgressBar
    monkeypatch.setattr("boxloop.sample.sampler.ProgressBar", lambda show: plain(show, console), raising=True)
    sample_density(
        lambda v: -v["a"].square().sum(1),
        {"a": torch.zeros(2).double()},
        kernel,
        chains=4,
        draws=40,
        warmup=40,
        verbose=True,
        random_state=0,
    )
    text = console.export_text()
    assert "chains" in text
    assert said in text
    assert "R-hat" in text
    assert ("acceptance" in text) == (kernel is None)


def test_progress_is_silent_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    run_to(None, 10)
    run_to(None, 10, verbose=None)  # no terminal here
    assert capfd.readouterr() == ("", "")


def test_r_hat_that_iterations_to_its_limit_is_written_above_it() -> None:
    """ "R-hat up to 1.010, above 1.01"."""
    found = diagnose(np.random.default_rng(0).normal(size=(4, 400, 2)))
    found = replace(found, r_hat=np.array([1.0, 1.0100004]))
    assert (
        found.concerns(("a", "b"))[0] == "b: R-hat up to 1.0100004, above 1.01: chains disagree; draw longer"
    )


def test_diagnosis_of_a_table_with_names() -> None:
    """Every number has its own line; those that pass are not named."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 400, 5))
    table[:, :, 1] += 3.0 * np.arange(4)[:, None]
    found = diagnose(table)
    concerns = found.concerns(("a", "b", "c", "d", "e"))
    assert len(concerns) == 2
    assert concerns[0].startswith("b: R-hat up to")
    assert concerns[1].startswith("b: ")
    assert "effective sample size" in concerns[1]
    assert "below 400" in concerns[1]
    assert found.worst_index == 1
    table[0, 0, 3] = np.inf
    table[2, :, 4] = 7.0
    found = diagnose(table)
    concerns = found.concerns(("a", "b", "c", "d", "e"))
    assert concerns[0] == "d: not finite in every draw"
    assert concerns[1] == "e: constant in 1 of 4 chains"
    assert found.worst_index == 3
    many = diagnose(np.zeros((2, 10, 5))).concerns(("a", "b", "c", "d", "e"))
    assert many == ("a, b, c and 2 more: constant in 2 of 2 chains",)
