"""The first screen: no two of its lines disagree, and each takes its direction from the sign of its number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from boxloop import GaussianMixture, make_report
from boxloop.criticise import mega
from boxloop.data import open_source
from boxloop.report import (
    Autoencoder,
    Candidate,
    Finalist,
    Misfit,
    SetAside,
    Trial,
    Verdict,
    advise_next_steps,
    answer_questions,
    drop_small_components,
    find_small_components,
    list_misfits,
    make_test_functions,
)

COLUMNS = ("a", "b x c", "d <= 1", "variance", "heavy tails")
"""Names made to mislead whoever reads them in place of the facts."""


@st.composite
def misfit(draw: st.DrawFn) -> Misfit:
    moment = draw(st.sampled_from(["mean", "variance", "covariance", "skewness", "tails", "share"]))
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=2, max_size=2, unique=True))
    z = draw(st.sampled_from([-1.0, 1.0])) * draw(st.floats(3.0, 2000.0))
    at = 1.0 if moment == "share" else None
    return Misfit(
        moment, tuple(columns[: 2 if moment == "covariance" else 1]), 2.0 + z, 2.0, z, 1e-4, 1e-3, at
    )


@st.composite
def verdicts(draw: st.DrawFn, calm: bool | None = None) -> Verdict:
    """Every combination of facts that an examination can come to."""
    considered = draw(st.integers(1, 40))
    leads = considered == 1 or draw(st.booleans())
    rivals = (
        []
        if considered == 1
        else draw(st.lists(st.sampled_from("PQRSTUV"), unique=True, max_size=considered - 1))
    )
    best = "chosen" if leads else "ahead"
    as_good = tuple(rivals) if leads else ("ahead", *rivals[: considered - 2])
    rows, few = draw(st.integers(25, 500)), draw(st.integers(0, 7))
    flagged = draw(st.sampled_from([0, 1, few, rows // 5]))
    total = draw(st.integers(0, 5))
    unit = draw(st.sampled_from(["component", "factor", "code"]))
    flags = st.booleans()
    failed = tuple(draw(st.lists(st.sampled_from(["X", "Y"]), unique=True)))
    passed = st.floats(0.05, 1.0)
    independent = unit == "component" and draw(flags)
    calm = (
        draw(flags) if calm is None else calm
    )  # else nearly every verdict has something against it, and few lines are ever written
    return Verdict(
        model="chosen",
        unit=unit,
        size=draw(st.integers(1, 10)),
        at_limit=not calm and draw(flags),
        larger_tried=considered > 1 and draw(flags),
        independent=independent,
        best=best,
        lead=(0.0, 0.0) if leads else (draw(st.floats(0.0, 1.0)), 1.0),
        considered=considered,
        as_good=as_good,
        single_component=bool(as_good) and draw(flags),
        set_aside=SetAside(total, draw(st.integers(0, total)), ("a",) if total and draw(flags) else ()),
        failed=(failed, "a singular matrix" if failed else ""),
        p_value=draw(passed if calm else st.one_of(st.none(), st.floats(0.002, 0.049), passed)),
        test_rows=draw(st.integers(5, 10_000)),
        error_known=draw(flags),
        detectable=0.5,
        misfits=() if calm else tuple(draw(st.lists(misfit(), max_size=9))),
        fitting=tuple(draw(st.lists(st.sampled_from(as_good), unique=True))) if as_good else (),
        outliers=tuple(range(min(flagged, 20))),
        flagged=flagged,
        rows=rows,
        counts=independent and draw(flags),
        skewed=frozenset(draw(st.lists(st.sampled_from(COLUMNS)))),
        fitted_rows=draw(st.integers(20, 5000)),
        warnings=draw(st.sampled_from([(), ("not converged",)])),
        left_out=draw(st.sampled_from([(), (("e", "text"),)])),
        missing=draw(st.sampled_from([(), (("a", 0.2),)])),
        read=(rows, draw(st.sampled_from([rows, 10 * rows]))),
        autoencoder=draw(
            st.sampled_from([Autoencoder(), Autoencoder(obstacle="one column"), Autoencoder("V")])
        ),
    )


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(verdicts())
def test_no_two_lines_disagree(found: Verdict) -> None:
    """What one line claims must be what every other line that speaks of it claims."""
    lines = {line.question: line for line in answer_questions(found)}
    answers = {question: line.answer for question, line in lines.items()}
    levels = {question: line.level for question, line in lines.items()}
    fit, sure, misses, rows = (
        levels[q] for q in ("Does it fit?", "How sure?", "What does it miss?", "Outliers?")
    )
    advice = answers["What next?"]
    fits = answers["Does it fit?"].startswith("No misfit")

    assert (fit == "good") == fits
    assert advice
    assert "nan" not in " ".join(answers.values())
    # Fit outranks certainty, and certainty has no rivals.
    if answers["How sure?"].startswith("Sure"):
        assert fits
        assert found.best == found.model
        assert "Collect more rows" not in advice
        assert "the most on offer" not in advice
    # Candidates that were set aside may score higher than all that were considered.
    assert not (found.set_aside.higher and "very other candidate predicts" in answers["How sure?"])
    assert not (len(found.fitting) > 1 and "its moments" in advice)
    # More components are not worth trying where more were tried in vain, or where there are none.
    if "Try more components" in advice:
        assert found.unit == "component"
        assert "do not predict held-out rows better" not in advice
    assert "before anything else" not in advice.partition(". ")[2]
    assert (sure == "good") == answers["How sure?"].startswith("Sure")
    # A model that fits misses nothing, and what misses something does not fit.
    assert not (fits and misses != "good")
    assert not (misses == "good" and not fits)
    assert not (fit == "bad" and misses == "plain")
    # Rows are at fault, or the model.
    assert not ("the model is at fault" in answers["Outliers?"] and fits)
    assert not ("the model is at fault" in answers["Outliers?"] and "outliers below" in advice)
    assert not ("outliers below" in advice and answers["Outliers?"].startswith("None"))
    # Advice to use the model only where nothing speaks against it.
    if "use the model" in advice:
        assert fits
        assert rows == "good"
        assert sure != "doubtful"
        assert "Warnings of the fit?" not in lines
    if "Score or draw rows" in advice:
        assert fits
        assert sure == "doubtful"
        assert found.as_good
    # What is said of candidates and rows holds of them.
    for said, holds in (
        ("show no misfit", bool(found.fitting) and fit == "bad"),
        ("the most on offer", found.at_limit),
        ("do not predict held-out rows better", found.larger_tried),
        ("None of the kinds of model", fit == "bad" and not found.fitting),
        ("warnings of the fit", "Warnings of the fit?" in lines),
        ("cannot settle", found.best != found.model),
    ):
        assert holds or said not in advice
    assert ("has a single component" in answers["How sure?"]) == (
        found.single_component and found.unit == "component" and found.size > 1
    )
    assert ("does not fit" in answers["Outliers?"]) == (
        fit == "bad" and rows == "doubtful" and "the model is at fault" not in answers["Outliers?"]
    )
    assert ("the model is at fault" in answers["Outliers?"]) == found.has_too_many_outliers
    for moment in found.misfits[:6]:
        assert ("too small" in moment.sentence) == (moment.data > moment.model)
        assert moment.sentence[1:] in answers["What does it miss?"]
    # The headline counts what was considered, and names what was not.
    which = answers["Which model?"]
    assert f"{found.considered} candidate" in which
    assert ("set aside" in which) == (found.set_aside.higher > 0)
    assert ("Candidates set aside?" in lines) == (found.set_aside.total > 0)
    assert ("the best of" in which) == (found.best == found.model)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(verdicts(calm=False))
def test_advice_follows_the_sign_of_each_moment(found: Verdict) -> None:
    """Heavier and lighter, more and less: by the sign of z, for the columns named and for no others."""
    for sentence in advise_next_steps(found):
        for moment, words in (
            ("tails", {"heavier": 1.0, "lighter": -1.0}),
            ("variance", {"vary more": 1.0, "vary less": -1.0}),
        ):
            for word, sign in words.items():
                if word in sentence:
                    named = {m.columns[0] for m in found.misfits if m.moment == moment and m.z * sign > 0}
                    assert named
                    assert all(name in sentence for name in named - found.skewed)
                    others = set(COLUMNS) - named - {"variance"}  # also a word of the sentence
                    assert not any(f"of {name} " in sentence for name in others)
        if "not accounted for" in sentence:
            pairs = sum(m.moment == "covariance" for m in found.misfits)
            assert f"{pairs} covariance{'' if pairs == 1 else 's'} " in sentence


def judged(train: np.ndarray, test: np.ndarray, names: tuple[str, ...]) -> Finalist:
    """One normal distribution, fitted to some rows and judged on others."""
    fitted = GaussianMixture(1).fit(open_source(train, columns=list(names)))
    rows = open_source(test, columns=list(names))
    criticism = mega(fitted, rows, functions=make_test_functions(train), draws=99, random_state=0)
    trial = Trial(Candidate("Gaussian mixture", 1, fitted), None, 5.0, 0.0, 0.0, (), "")
    return Finalist(trial, fitted, criticism, (0.0, 0.0))


def test_a_misfit_says_which_moment_of_which_columns() -> None:
    """Also where names look like the labels of tables: "a x b", "a <= 1"."""
    rng = np.random.default_rng(0)
    names = ("a", "b", "a x b", "b <= 1")
    train = rng.normal(size=(4000, 4))
    test = rng.normal(size=(1000, 4))
    test[:, 2] *= 1.5  # a variance
    test[:, 1] += 0.8 * test[:, 0]  # a covariance, and a variance
    test[:, 3] += 1.0  # a mean, and shares
    found = list_misfits(judged(train, test, names))
    signs = {(m.moment, m.columns): np.sign(m.z) for m in found if m.moment != "share"}
    assert signs["variance", ("a x b",)] == 1.0
    assert signs["covariance", ("a", "b")] == 1.0
    assert signs["mean", ("b <= 1",)] == 1.0
    assert {m.columns for m in found if m.moment == "share"} >= {("b <= 1",)}
    assert next(m for m in found if m.moment == "covariance").description == "covariance of a and b"


@pytest.mark.parametrize(("power", "sign"), [(0.3, -1.0), (3.0, 1.0)], ids=["lighter", "heavier"])
def test_tails_are_called_what_they_are(power: float, sign: float) -> None:
    """Rows with the model's variance whose tails are lighter, then heavier: the table and the advice agree."""
    rng = np.random.default_rng(1)
    train = rng.normal(size=(4000, 1))
    test = rng.normal(size=(2000, 1))
    test = np.sign(test) * np.abs(test) ** power
    test /= test.std()
    found = list_misfits(judged(train, test, ("a",)))
    tails = [m for m in found if m.moment == "tails"]
    assert [np.sign(m.z) for m in tails] == [sign]
    assert (tails[0].data > tails[0].model) == (sign > 0)
    facts = replace(BAD, misfits=tuple(found))
    said = " ".join(advise_next_steps(facts))
    assert ("heavier" in said, "lighter" in said) == (sign > 0, sign < 0)
    assert "outliers below" not in said  # none is flagged


BAD = Verdict(
    model="chosen",
    unit="component",
    size=1,
    at_limit=False,
    larger_tried=True,
    independent=False,
    best="chosen",
    lead=(0.0, 0.0),
    considered=3,
    as_good=(),
    single_component=False,
    set_aside=SetAside(),
    failed=((), ""),
    p_value=0.002,
    test_rows=100,
    error_known=True,
    detectable=0.4,
    misfits=(),
    fitting=(),
    outliers=(),
    flagged=0,
    rows=500,
    counts=False,
    skewed=frozenset(),
    fitted_rows=400,
    warnings=(),
    left_out=(),
    missing=(),
    read=(500, 500),
    autoencoder=Autoencoder(),
)
"""A model that does not fit, with nothing else to say of it."""


@pytest.mark.parametrize("kind", ["less", "more"])
def test_counts_that_vary_less_or_more_than_poisson(kind: str) -> None:
    rng = np.random.default_rng(2)
    few = {
        "less": rng.binomial(6, 0.5, size=(600, 3)),
        "more": np.minimum(rng.geometric(0.3, size=(600, 3)) - 1, 30),
    }
    said = str(make_report(few[kind].astype(float), jobs=1))
    assert f"vary {kind} than" in said or (kind == "more" and "vary less" not in said)
    assert f"vary {'more' if kind == 'less' else 'less'}" not in said


@pytest.mark.parametrize("z", [-5.0, 5.0])
def test_a_covariance_of_counts_is_no_variance(z: float) -> None:
    """The one word is part of the other."""
    off = Misfit("covariance", ("a", "b"), z, 0.0, z, 1e-4, 1e-3)
    said = " ".join(advise_next_steps(replace(BAD, counts=True, independent=True, misfits=(off,))))
    assert "1 covariance is not accounted for" in said
    assert "vary" not in said


def test_candidates_set_aside_are_said_and_marked() -> None:
    """Half of a column is one value: components shrink onto it, score higher, and are not the best."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(300, 2))
    rows[::2, 0] = 0.25
    report = make_report(rows, jobs=1)
    verdict, answers = report.verdict, {line.question: line.answer for line in report.lines}
    assert verdict.set_aside.higher > 0
    assert verdict.considered + verdict.set_aside.total + len(verdict.failed[0]) == len(
        report.findings.trials
    )
    assert f"{verdict.set_aside.higher} other candidate" in answers["Which model?"]
    assert "x0, mostly one value" in answers["Candidates set aside?"]
    from boxloop.report import plot_candidates, tabulate_candidates

    axes = plot_candidates(report.findings)
    assert "set aside" in [text.get_text() for text in axes.get_legend().get_texts()]
    crosses = next(line for line in axes.get_lines() if line.get_label() == "set aside")
    assert len(crosses.get_xdata()) == verdict.set_aside.total
    remarks = [row[-1] for row in tabulate_candidates(report.findings).rows]
    assert remarks[-verdict.set_aside.total :] == ["set aside: collapsed"] * verdict.set_aside.total
    assert tabulate_candidates(report.findings).rows[0][3] == "best"


@pytest.mark.filterwarnings("ignore:the variance of component")  # three rows determine none
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_outliers_do_not_vouch_for_one_another(covariance_type: str) -> None:
    """Three far rows get a component of their own, which has no say in whether they are outliers."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(500, 3))
    far = [10, 200, 333]
    rows[far] += [25.0, -30.0, 0.0]
    fitted = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(rows)
    assert find_small_components(fitted, len(rows)).sum() == 1
    rest = drop_small_components(fitted, len(rows))
    assert rest is not None
    density = rest.log_prob(torch.from_numpy(rows)).numpy()
    assert sorted(np.argsort(density)[:3].tolist()) == far
    assert density[far].max() < np.delete(density, far).min() - 20.0
    assert drop_small_components(GaussianMixture(2, random_state=0).fit(np.delete(rows, far, 0)), 497) is None


def test_values_far_from_zero_are_distinguished() -> None:
    """Means of 1e7: "1e+07 where the data have 1e+07" tells nothing, nor do five thresholds of one name."""
    rng = np.random.default_rng(6)
    train, test = 1e7 + 0.1 * rng.normal(size=(4000, 1)), 1e7 + 0.1 * rng.normal(size=(1000, 1)) + 0.05
    found = list_misfits(judged(train, test, ("a",)))
    mean = next(m for m in found if m.moment == "mean")
    assert "mean of a is too small: 10000000.003 where the data have 10000000.05 (" in mean.sentence
    shares = [m.description for m in found if m.moment == "share"]
    assert len(set(shares)) == len(shares) >= 3
    assert all(f"{m.data:.3g}" in m.sentence or m.data > 0.99 for m in found if m.moment == "share")
    from boxloop.criticise import Below

    entries = mega(GaussianMixture(1).fit(train), test, functions=[Below()], draws=0).table()["entry"]
    assert entries.nunique() == 5


def test_one_misfit_by_itself_is_in_the_singular() -> None:
    one = Misfit("mean", ("a",), 3.0, 2.0, 5.0, 1e-4, 1e-3)
    said = answer_questions(replace(BAD, p_value=0.2, misfits=(one,)))[1].answer
    assert "1 moment by itself differs more than chance allows" in said
    assert (
        "2 moments by themselves differ"
        in answer_questions(replace(BAD, p_value=0.2, misfits=(one, one)))[1].answer
    )


def test_a_finalist_with_a_misfit_is_not_said_to_have_none() -> None:
    """All moments of it together may pass where a single one does not."""
    from boxloop.report import is_adequate

    rng = np.random.default_rng(7)
    train, test = rng.normal(size=(4000, 12)), rng.normal(size=(500, 12))
    fine = judged(train, test, tuple("abcdefghijkl"))
    assert fine.criticism.p_value is not None
    assert fine.criticism.p_value > 0.05
    assert is_adequate(fine) == (not list_misfits(fine))
    off = replace(
        fine,
        criticism=replace(judged(train, test + np.eye(12)[0], tuple("abcdefghijkl")).criticism, p_value=0.2),
    )
    assert list_misfits(off)
    assert not is_adequate(off)
