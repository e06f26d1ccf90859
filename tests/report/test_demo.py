"""The demonstration: its numbers, sentences, figures and page."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from boxloop import FactorAnalysis, GaussianMixture, load
from boxloop.cli import main
from boxloop.data import Bundled
from boxloop.report import figures, page, study, words
from boxloop.report.study import HeldOut, Study, run_study

NASTY = r"<script>alert('$\frac{$')</script>"


@pytest.fixture(scope="module")
def found() -> Study:
    told: list[str] = []
    result = run_study(told.append, sizes=(1, 2, 3), folds=3)
    assert len(told) == study.steps((1, 2, 3), 3)
    return result


@pytest.fixture(scope="module")
def nasty() -> Study:
    """A study whose names try to be markup and mathematics."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(0, 1, (60, 3)), rng.normal(5, 1, (60, 3))])
    names = (NASTY, "a & b", "c")
    held = study.hold_out(rows, (1, 2), 2, 0, lambda _: None)
    factors = FactorAnalysis(1).fit(rows)
    data = Bundled(names, rows, np.zeros(120), (NASTY,))
    errors = np.full((1, 3), 0.1)
    mixture = GaussianMixture(2, random_state=0).fit(rows)
    return Study(NASTY, data, names, (NASTY, "a & b"), held, mixture, factors, errors)


def test_held_out_rows_are_scored_by_fits_that_did_not_see_them() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(40, 2))
    held = study.hold_out(rows, (1,), 4, 0, lambda _: None)
    from sklearn.model_selection import KFold

    for seen, unseen in KFold(4, shuffle=True, random_state=0).split(rows):
        part = GaussianMixture(1, tol=1e-5, max_iter=500, random_state=0).fit(rows[seen])
        np.testing.assert_array_equal(held.density[0, unseen], part.score_samples(rows[unseen]))


def test_gaps_are_paired() -> None:
    hard = np.random.default_rng(2).normal(size=500) * 10
    held = HeldOut(
        (1, 2), np.stack([hard, hard + 1.0 + 0.1 * np.random.default_rng(3).normal(size=500)]), (0, 0)
    )
    gap, error = held.gap(0)
    assert held.best == 1
    assert abs(gap - 1.0) < 5 * error
    assert error < 0.01 < held.error[0]
    assert held.gap(1) == (0.0, 0.0)


def test_the_study_finds_the_cultivars(found: Study) -> None:
    assert found.held.sizes[found.held.best] == 3
    assert sorted(found.matched()) == [0, 1, 2]
    assert found.agreed() >= 165
    assert list(found.mixture.feature_names_in_) == list(found.columns)


def test_loadings_are_those_of_standardised_columns(found: Study) -> None:
    rows = found.data.rows
    standard = FactorAnalysis(study.FACTORS).fit((rows - rows.mean(0)) / rows.std(0))
    np.testing.assert_allclose(found.loadings, standard.components_, atol=1e-3)
    assert np.abs(found.loadings).max() <= 1.0
    assert (found.errors > 0).all()


def test_sentences_say_which_how_sure_and_which_columns(found: Study) -> None:
    groups, factors = words.on_groups(found), words.on_factors(found)
    assert groups[0].startswith("Held-out rows prefer 3 components: their log-likelihood is -")
    assert re.search(r"better than 2 \(by [\d.]+ ± [\d.]+, [\d.]+ standard errors\)", groups[1])
    assert any("of 178 rows" in sentence for sentence in groups)
    assert factors[0].startswith("Factor 0 is carried by flavanoids (0.96 ± 0.06), total_phenols")
    assert factors[1].startswith("Factor 1 is carried by color_intensity")
    assert "least of ash" in factors[-1]


def test_sentences_without_rivals_classes_or_strong_columns(nasty: Study) -> None:
    data = replace(nasty.data, classes=())
    alone = replace(nasty, data=data, held=HeldOut((2,), nasty.held.density[1:], (3,)))
    said = words.on_groups(alone)
    assert len(said) == 2
    assert "3 with 2 components" in said[1]
    weak = replace(alone, data=replace(alone.data, rows=alone.data.rows * 100.0))
    assert words.on_factors(weak)[0] == "Factor 0 is carried by no column in particular."


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50
        return image.size


def test_figures_are_drawn(found: Study, nasty: Study) -> None:
    for one in (found, nasty, replace(nasty, data=replace(nasty.data, classes=()))):
        width, height = size_of(figures.picture(one))
        assert width > 1500
        assert height > 1000
        for draw in (figures.draw_groups, figures.draw_held_out, figures.draw_loadings):
            size_of(figures.panel(one, draw))


class Reader(HTMLParser):
    """What a browser would find: tags, the sources of pictures, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_alone(found: Study) -> None:
    read = Reader(page.demo_page(found))
    assert read.tags.count("img") == 3
    assert all(source.startswith("data:image/png;base64,") for source in read.sources)
    assert "script" not in read.tags
    assert "link" not in read.tags
    assert all(name in read.text for name in found.data.names)
    assert "Held-out rows prefer 3 components" in read.text


def test_f44_names_are_escaped(nasty: Study) -> None:
    text = page.demo_page(nasty)
    read = Reader(text)
    assert "<script" not in text
    assert "script" not in read.tags
    assert NASTY in read.text


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "run_study", partial(run_study, sizes=(2, 3), folds=2))


@pytest.mark.usefixtures("short")
def test_the_command_writes_what_it_says(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        main, ["demo", "-o", str(tmp_path / "new" / "demo"), "--page", str(tmp_path / "r.html")]
    )
    assert shown.exit_code == 0, shown.output
    written = [
        Path(line.removeprefix("Written: "))
        for line in shown.stdout.splitlines()
        if line.startswith("Written")
    ]
    assert [path.name for path in written] == ["demo.png", "r.html", "mixture.boxloop", "factors.boxloop"]
    size_of(written[0].read_bytes())
    assert "Held-out rows prefer" in shown.stdout
    assert "Factor 0 is carried by" in shown.stdout
    for path, columns in ((written[2], 4), (written[3], 13)):
        assert load(path).n_features_in_ == columns
        assert CliRunner().invoke(main, ["score", str(path), "wine"]).exit_code == 0


@pytest.mark.usefixtures("short")
def test_the_page_has_a_default_place(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["demo", "-o", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "report.html").is_file()
    lost = CliRunner().invoke(main, ["demo", "-o", str(tmp_path), "--page", str(tmp_path / "no" / "r.html")])
    assert lost.exit_code == 2


def test_ctrl_c_in_any_fit_ends_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self, *_: object) -> GaussianMixture:
        self.interrupted_ = True
        return self

    monkeypatch.setattr(GaussianMixture, "fit", interrupted)
    assert CliRunner().invoke(main, ["demo", "-o", str(tmp_path)]).exit_code == 130
    assert list(tmp_path.iterdir()) == []
