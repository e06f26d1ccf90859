"""From a file to a page: what is on it, that it is right, safe, small and the same every time."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

import boxloop
from boxloop.cli import main
from boxloop.data import DaskSource, dask_source, open_source
from boxloop.figures import outlier_scores
from boxloop.report import (
    answer_questions,
    examine_table,
    find_outliers,
    judge_findings,
    list_candidates,
    list_misfits,
    read_table,
)

MEGABYTES = 2_000_000
VOID = {"meta", "img", "br", "link", "input"}


class Reader(HTMLParser):
    """Notes tags that do not match, and everything that is not on the page itself."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.pictures.append(found)
        self.ids += [found["id"]] if "id" in found else []
        for key in ("src", "href"):
            if key in found and not found[key].startswith(("data:", "#")):
                self.outside.append(found[key])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def write(path, columns):
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def skewed_clusters(n=1200, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=n)
    a, b = rng.normal(size=n) + 6 * label, rng.normal(size=n) - 4 * label
    return {
        "a": a,
        "b": b,
        "income": np.exp(0.7 * rng.normal(size=n)),
        "who": [f"p{i % 7}" for i in range(n)],
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    data = write(folder / "rows.csv", skewed_clusters())
    result = CliRunner().invoke(main, ["report", str(data), "-o", str(folder / "page.html"), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    return folder, result.output


@pytest.fixture(scope="module")
def drawn_from(tmp_path_factory):
    """What is found in some of the rows of a file, six of which are far from the others."""
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    rows = np.random.default_rng(0).normal(size=(3000, 2))
    rows[::500] += 9.0
    np.save(path, rows)
    return examine_table(read_table(str(path), rows=1500))


def test_the_page_stands_alone(made):
    page = (made[0] / "page.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.outside == []
    assert len(page) < MEGABYTES
    assert len(reader.ids) == len(set(reader.ids))
    assert all(picture["alt"] for picture in reader.pictures)
    assert len(reader.pictures) >= 7
    text = " ".join(reader.text)
    for section in ("Verdict", "Candidates", "Where it fails", "Outliers", "Columns"):
        assert section in text


def test_every_cell_of_the_picture_of_pairs_tells_its_values(made):
    """Both sides of the diagonal: as many places as there are pairs in either order."""
    page = (made[0] / "page.html").read_text()
    pictures = [json.loads(unescape(spots)) for spots in re.findall(r'data-spots="([^"]*)"', page)]
    pairs = next(spots for spots in pictures if re.match(r"\w+ x \w+: data", spots[0][2]))
    columns = len(boxloop.load(made[0] / "page.boxloop").feature_names_in_)
    assert len({(x, y) for x, y, _ in pairs}) == len(pairs) == columns**2
    assert len({words for *_, words in pairs}) == columns * (columns + 1) // 2


def test_the_verdict_names_what_is_wrong(made):
    """Two clusters and a log-normal column: the shape of that column must be found, and a remedy named."""
    facts = json.loads((made[0] / "page.json").read_text())
    answers = {line["question"]: line["answer"] for line in facts["verdict"]}
    assert "2 components" in answers["Which model?"]
    assert facts["finalists"][0]["p_value"] < 0.05
    assert facts["misfits"][0]["columns"] == ["income"]
    assert "income" in answers["What does it miss?"]
    assert "logarithm of income" in answers["What next?"]
    assert "who (text" in answers["Columns left out?"]
    assert answers["Which model?"].split(":")[0] in made[1].replace("\n", " ")


def test_a_good_model_is_not_blamed(tmp_path):
    rng = np.random.default_rng(3)
    np.save(tmp_path / "rows.npy", rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)))
    found = examine_table(read_table(str(tmp_path / "rows.npy")))
    assert found.model.criticism.p_value > 0.01
    assert found.trials[found.chosen].candidate.name == "Gaussian mixture, 1 component"
    lines = {line.question: line for line in answer_questions(judge_findings(found, find_outliers(found)))}
    assert lines["Does it fit?"].level == "good"
    assert len(list_misfits(found.model)) == 0


def test_held_out_rows_took_no_part(made, drawn_from):
    facts = json.loads((made[0] / "page.json").read_text())
    assert facts["rows"] == {"used": 1200, "fit": 960, "held_out": 240}
    found = drawn_from
    assert set(found.fit_rows) | set(found.held_out) == set(range(len(found.table.rows)))
    assert not set(found.fit_rows) & set(found.held_out)
    assert all(trial.log_density.n_rows == len(found.fit_rows) for trial in found.trials)


def test_the_model_beside_the_page_is_the_one_described(made):
    model = boxloop.load(made[0] / "page.boxloop")
    facts = json.loads((made[0] / "page.json").read_text())
    assert tuple(model.feature_names_in_) == ("a", "b", "income")
    np.testing.assert_allclose(model.means_, facts["parts"]["values"], rtol=1e-12)
    rows = np.column_stack([skewed_clusters()[name] for name in ("a", "b", "income")])
    worst = facts["outliers"]["rows"][0]
    import pandas

    scores = model.score_samples(pandas.DataFrame(rows, columns=["a", "b", "income"]))
    assert int(scores.argmin()) == worst["row"]
    assert scores.min() == pytest.approx(worst["log_density"], rel=1e-6)


def test_the_same_seed_gives_the_same_page(made, tmp_path):
    call = ["report", str(made[0] / "rows.csv"), "-o", str(tmp_path / "page.html"), "--jobs", "1"]
    assert CliRunner().invoke(main, call).exit_code == 0
    again = (tmp_path / "page.html").read_text().replace(str(tmp_path), str(made[0]))
    assert again == (made[0] / "page.html").read_text()


def test_f44_names_from_the_data_are_text(tmp_path):
    """FAULTS 44: a column named ``<script>`` is escaped, on the page and in Markdown tables."""
    columns = skewed_clusters(120)
    evil = "<script>alert(1)</script>"
    rows = {evil: columns["a"], "a|b": columns["b"], "$x^2$": columns["income"]}
    result = CliRunner().invoke(
        main, ["report", str(write(tmp_path / "r.csv", rows)), "-o", str(tmp_path / "r.html"), "--jobs", "1"]
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r.html").read_text()
    assert evil not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert len(re.findall("<script>", page)) == 1  # ours
    for line in (tmp_path / "r.md").read_text().splitlines():
        assert not line.startswith("| a|b")


@pytest.mark.parametrize(
    "kind", ["counts", "yes or no", pytest.param("missing values", marks=pytest.mark.slow), "one column"]
)
def test_other_kinds_of_tables(kind, tmp_path):
    rng = np.random.default_rng(1)
    rows = {
        "counts": rng.poisson([1.0, 4.0, 0.5], size=(200, 3)),
        "yes or no": rng.random((200, 4)) < [0.2, 0.5, 0.7, 0.4],
        "missing values": np.where(rng.random((200, 3)) < 0.1, np.nan, rng.normal(size=(200, 3))),
        "one column": rng.normal(size=(200, 1)),
    }[kind]
    np.save(tmp_path / "rows.npy", np.asarray(rows, dtype=float))
    call = ["report", str(tmp_path / "rows.npy"), "-o", str(tmp_path / "r.html"), "--jobs", "1", "--json"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["values"] == (kind if kind in ("counts", "yes or no") else "measurements")
    assert any(candidate["chosen"] for candidate in facts["candidates"])
    if kind == "missing values":
        assert any(line["question"] == "Missing values?" for line in facts["verdict"])


def test_a_long_table_is_drawn_from(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(5000, 2)))
    table = read_table(str(tmp_path / "rows.npy"), rows=1000, seed=1)
    assert 850 < len(table.rows) < 1150
    assert table.n_rows == 5000
    everything = np.load(tmp_path / "rows.npy")
    np.testing.assert_array_equal(everything[table.row_numbers], table.rows)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": ["x", "y"] * 20}, "no column holds numbers"),
        ({"a": [1.0] * 40, "b": list(range(40))}, "no column can be used"),
        ({"a": [1.0, 2.5, 0.3], "b": [4.0, 1.5, 9.1]}, "too few"),
    ],
    ids=["text", "useless", "few rows"],
)
def test_tables_without_an_answer(columns, said, tmp_path):
    data = write(tmp_path / "rows.csv", columns)
    result = CliRunner().invoke(main, ["report", str(data), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 1
    assert said in result.stderr
    assert not (tmp_path / "r.html").exists()


def test_f37_ctrl_c_exits_130_and_leaves_no_page(tmp_path, monkeypatch):
    """FAULTS 37: an interrupted report ends with 130."""

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["boxloop.report.examine"], "cross_validate", interrupted)
    result = CliRunner().invoke(main, ["report", "iris", "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_f49_a_malformed_row_is_named(tmp_path):
    """FAULTS 49: the file and the row are in the message."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3\n4,5\n")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 1
    assert "rows.csv" in result.stderr
    assert "row 3" in result.stderr


def test_markdown_and_page_say_the_same(made):
    page, text = (made[0] / "page.html").read_text(), (made[0] / "page.md").read_text()
    facts = json.loads((made[0] / "page.json").read_text())
    for line in facts["verdict"]:
        assert line["question"] in page
        assert line["answer"] in text
    assert facts["data"]["sha256"] in page
    assert facts["command"] in text


def test_a_notebook_shows_the_verdict():
    """With the names of columns as text, and without anything that runs or is fetched."""
    import pandas

    evil = "<script>alert(1)</script>"
    columns = skewed_clusters(120)
    report = boxloop.make_report(
        pandas.DataFrame({evil: ["a"] * 120, "a": columns["a"], "b": columns["b"]}), jobs=1
    )
    shown = report._repr_html_()
    reader = Reader()
    reader.feed(shown)
    text = " ".join(reader.text)
    assert all(line.question in text for line in report.lines)
    assert evil in text
    assert reader.outside == reader.open == []
    assert not re.search("<script|<iframe|<img|javascript:", shown)
    assert "report.save" in text


def test_tables_have_a_head_for_every_cell(made):
    page = (made[0] / "page.html").read_text()
    for table in re.findall("<table.*?</table>", page, re.DOTALL):
        heads = len(re.findall('<th scope="col">', table))
        for row in re.findall("<tr.*?</tr>", table.split("</thead>")[1], re.DOTALL):
            assert len(re.findall("<t[hd][ >]", row)) == heads


@pytest.mark.parametrize(
    "kind",
    [pytest.param("pandas", marks=pytest.mark.slow), pytest.param("polars", marks=pytest.mark.slow), "array"],
)
def test_a_report_on_rows_in_memory(kind, tmp_path):
    import pandas
    import polars

    columns = skewed_clusters(200)
    data = {
        "pandas": pandas.DataFrame(columns),
        "polars": polars.DataFrame(columns),
        "array": np.column_stack([columns["a"], columns["b"], columns["income"]]),
    }[kind]
    report = boxloop.make_report(data, jobs=1, drop=["x1"] if kind == "array" else ["b"])
    assert report.estimator.n_features_in_ == 2
    assert "make_report(data" in report.command
    assert str(report).startswith("Which model?")
    assert {path.suffix for path in report.save(tmp_path / "r.html")} == {
        ".html",
        ".md",
        ".json",
        ".png",
        ".boxloop",
    }
    if kind != "array":
        assert "who" in str(report)
        assert tuple(report.estimator.feature_names_in_) == ("a", "income")


@pytest.mark.parametrize("kind", ["Dask frame", "Dask array", "source", "source on a cluster"])
def test_rows_that_stay_where_they_are(kind, monkeypatch):
    """The rows drawn are those of the same table in memory; columns of text are named, and others can be left out."""
    import dask.dataframe as dd
    import pandas

    frame = pandas.DataFrame(skewed_clusters(600))
    numbers = frame[["a", "b", "income"]]
    held = frame if kind == "Dask frame" else numbers if "source" in kind else numbers.to_numpy()
    names = ["x2", "x0"] if kind == "Dask array" else ["income", "a"]
    data = {
        "Dask frame": lambda: dd.from_pandas(frame, npartitions=4),
        "Dask array": lambda: dd.from_pandas(numbers, npartitions=4).to_dask_array(lengths=True),
        "source": lambda: open_source(numbers),
        "source on a cluster": lambda: dask_source(dd.from_pandas(numbers, npartitions=4)),
    }[kind]()
    monkeypatch.setattr(DaskSource, "fetch_rows", lambda *_: pytest.fail("rows came here"))
    for more in ({}, {"columns": names}, {"drop": names[:1]}):
        one, two = (read_table(table, rows=100, seed=3, **more) for table in (held, data))
        np.testing.assert_array_equal(one.rows, two.rows)
        np.testing.assert_array_equal(one.row_numbers, two.row_numbers)
        assert (one.columns, one.digest, one.n_rows) == (two.columns, two.digest, two.n_rows)
    assert [column.name for column in read_table(data, columns=names).columns] == names


def test_weights_are_refused():
    rows = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(ValueError, match="a report takes no weights"):
        read_table(open_source(rows, weight=np.arange(50.0)))


def test_unknown_columns_are_refused():
    with pytest.raises(ValueError, match="petal"):
        boxloop.make_report("iris", columns=["petal"])
    with pytest.raises(ValueError, match="nothing"):
        boxloop.make_report("iris", drop=["nothing"])


def test_the_picture_of_outliers_says_what_the_table_says(drawn_from):
    """As many flagged, under the numbers that the rows have in the file, also when only some are drawn."""
    found, strange = drawn_from, find_outliers(drawn_from)
    assert 0 < strange.flagged == int((strange.log_density < strange.threshold).sum())
    axes = outlier_scores(strange.log_density, strange.threshold, places=found.table.row_numbers)
    assert f"{strange.flagged} flagged" in [text.get_text() for text in axes.get_legend().get_texts()]
    marked = axes.collections[1].get_offsets()[:, 0].astype(int).tolist()
    assert sorted(marked) == sorted(row.row for row in strange.rows if row.flagged)


def test_factors_are_reported_by_correlations_with_columns_of_any_unit() -> None:
    """Within 5 standard errors, 1e-6 each, of those that the rows were drawn with."""
    rng = np.random.default_rng(0)
    known, unit = np.array([0.9, 0.8, 0.7, 0.5, 0.8]), 10.0 ** np.array([0, 2, -2, 3, -1])
    rows = rng.normal(size=(600, 1)) * known + rng.normal(size=(600, 5)) * np.sqrt(1.0 - known**2)
    parts = boxloop.make_report((rows + 5.0) * unit, jobs=1).parts
    assert parts.kind == "factor"
    (found,) = parts.values * np.sign(parts.values[0, 0])
    assert (np.abs(found - known) < 5.0 * parts.errors[0]).all()
    assert (parts.errors < 0.06).all()
    np.testing.assert_allclose(parts.explained, found**2)
    assert parts.order[0] == 0
    assert parts.order[-1] == 3


def test_columns_of_components_are_in_the_order_in_which_they_tell_them_apart() -> None:
    """Not in that of their means or units."""
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1], 150)
    rows = rng.normal(size=(300, 3)) + label[:, None] * np.array([0.0, 8.0, 4.0])
    report = boxloop.make_report(rng.permutation(rows * [1.0, 1e-3, 1.0] + [1000.0, 0.0, 0.0]), jobs=1)
    assert report.parts.kind == "component"
    assert len(report.parts.values) == 2
    assert report.parts.order == (1, 2, 0)


@pytest.mark.parametrize(("rows", "offered"), [(29, False), (30, True)])
def test_full_covariances_need_rows_for_every_column(rows: int, offered: bool) -> None:
    """Five for each component beside its 10 columns; independent columns need five."""
    names = [candidate.name for candidate in list_candidates("measurements", rows, 10, 0)]
    assert ("Gaussian mixture, 2 components" in names) == offered
    assert "Gaussian mixture, independent columns, 2 components" in names
