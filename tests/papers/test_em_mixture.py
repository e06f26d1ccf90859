"""Le Corff, section 2.5, at a small size."""

from papers.em_mixture import experiment, run_problem
from papers.experiment import Options


def test_every_claim_holds():
    report = experiment(Options(quick=True))
    assert [f.verdict for f in report.findings] == ["reproduced", "reproduced", "reproduced", "target met"]


def test_the_path_is_that_of_scikit_learn():
    apart, lowest, update, gain = run_problem(seed=7, n=300, d=3, k=2, iterations=15)
    assert apart < 1e-10
    assert lowest > -1e-12
    assert update < 1e-12
    assert gain > -1e-9


def test_tables_are_written(tmp_path):
    report = experiment(Options(quick=True))
    paths = report.write(tmp_path)
    assert {p.suffix for p in paths} == {".json", ".md"}
    assert "| claim |" in paths[1].read_text()
