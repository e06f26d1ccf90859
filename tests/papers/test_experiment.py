"""What the verdicts of a small run may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from papers.__main__ import main
from papers.experiment import Finding, Options, Report


@pytest.mark.parametrize("verdict", ["not reproduced", "target missed"])
def test_a_small_run_does_not_contradict_a_claim_about_averages(verdict) -> None:
    small = Finding("a", "b", "c", 0.1, verdict, "Three seeds.").at_quick_size()
    assert (small.verdict, small.reason) == (
        "too few repetitions",
        "Three seeds. Run without --quick to judge it.",
    )


@pytest.mark.parametrize("verdict", ["reproduced", "reproduced in distribution", "target met"])
def test_a_small_run_may_support_a_claim(verdict) -> None:
    finding = Finding("a", "b", "c", None, verdict, "why")
    assert finding.at_quick_size() == finding


def test_a_small_run_contradicts_an_identity() -> None:
    finding = Finding("a", "b", "c", None, "not reproduced", "why", exact=True)
    assert finding.at_quick_size() == finding


def test_the_command_judges_by_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def experiment(options: Options) -> Report:
        claims = [("average", False), ("identity", True)]
        findings = [Finding(c, "b", "c", None, "not reproduced", "why.", exact=e) for c, e in claims]
        return Report("em-mixture", "made up", {}, findings)

    monkeypatch.setattr("papers.em_mixture.experiment", experiment)
    run = CliRunner()
    full = run.invoke(main, ["em-mixture", "-o", str(tmp_path)]).stdout
    quick = run.invoke(main, ["em-mixture", "--quick", "-o", str(tmp_path)]).stdout
    assert (full.count("not reproduced"), full.count("too few repetitions")) == (2, 0)
    assert (quick.count("not reproduced"), quick.count("too few repetitions")) == (1, 1)
    assert "too few repetitions" in (tmp_path / "em-mixture.md").read_text()


def test_the_command_lists_experiments_and_refuses_other_names() -> None:
    assert "em-mixture " in CliRunner().invoke(main, []).stdout
    unknown = CliRunner().invoke(main, ["em-mixtur"])
    assert unknown.exit_code == 2
    assert "there are: cavi-mixture" in unknown.stderr
