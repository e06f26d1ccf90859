"""Topics from the moments of distinct words, by the Method-of-moments notes (after Anandkumar, Hsu and Kakade 2012).

What exact moments give, errors of estimates, the coverage of their intervals, and real text."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from boxloop.data import SparseSource, Topics, draw_topics, sparse_source
from boxloop.distributions import Multinomial
from boxloop.estimators import FitWarning, MultinomialMixture
from boxloop.figures import COLOURS, INK, MARKERS, add_legend, dress, new_figure
from boxloop.fit import (
    DIAGONALISERS,
    DocumentMoments,
    Plan,
    find_largest_eigenvalues,
    match_topics,
    mixture_from_topics,
    project_to_simplex,
    spectral,
    spectral_errors,
)
from boxloop.models import Mixture
from boxloop.numeric import generator, normal, spawn
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, percent, standard_error

Array = NDArray[np.float64]

Counts = NDArray[np.float64]

Runs = Sequence[Mapping[str, Any]]

T = TypeVar("T")

TOPICS, WORDS, LENGTH, CONCENTRATION = 5, 50, 10, 0.2
"""The synthetic problem; topics are drawn from a Dirichlet distribution of this concentration."""

RANDOM = ("random", "random_from_data")
"""Random starts of EM: random responsibilities of every document, or random documents as topics."""

LEVELS = {"50%": 0.67449, "80%": 1.28155, "90%": 1.64485, "95%": 1.95996, "99%": 2.57583}
"""Half width of a Gaussian interval in standard errors."""

DOCUMENT = "document: one direction"

METHODS = {
    f"{method}, {'scaled' if scaled else 'unscaled'}": (method, scaled)
    for method in DIAGONALISERS
    for scaled in (True, False)
}
"""Ways to make the third moment diagonal, the default first."""

DEFAULT = "joint, scaled"

CASES = {
    "five topics": (5, 50, 100_000, 10, 0.2),
    "few documents": (5, 50, 2_000, 10, 0.2),
    "documents of three words": (5, 50, 50_000, 3, 0.2),
    "topics alike": (5, 50, 100_000, 10, 1.0),
    "many topics": (20, 200, 50_000, 20, 0.2),
    "many topics, alike": (15, 100, 50_000, 20, 1.0),
}
"""Number of topics, vocabulary, documents, words in each, and concentration."""

TRAPPED = 0.05
"""Error of the worst topic from which on a fit is another maximum, not noise."""

TARGETS = {"spectral": 0.03, "spectral + EM": 0.015}

MAX_ITERATIONS = 300

ARMS: dict[str, dict[str, Any]] = {
    "spectral": {"method": "spectral"},
    "spectral + EM": {"init_params": "spectral"},
    "EM, default starts": {},
    "EM, random starts": {"init_params": "random_from_data"},
}


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        problems: drawn topics for errors and exact moments.
        n: documents of each.
        starts: random starts of each kind of each problem.
        sizes: numbers of documents along which the error is followed, for as many problems.
        coverage: numbers of documents at which intervals are counted.
        tables: problems of each.
        cases: problems on which diagonalisers are compared, by name.
        shrink: divides their numbers of documents.
        repeats: problems of each.
        text_starts: random starts on text.
        text_seeds: seeds of the others.
    """

    problems: int = 20
    n: int = 100_000
    starts: int = 5
    sizes: tuple[int, ...] = (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    coverage: tuple[int, ...] = (10_000, 100_000)
    tables: int = 200
    cases: tuple[str, ...] = tuple(CASES)
    shrink: int = 1
    repeats: int = 20
    text_starts: int = 20
    text_seeds: int = 5


QUICK = Size(
    problems=2,
    starts=2,
    sizes=(1_000, 4_000, 16_000),
    coverage=(5_000,),
    tables=12,
    cases=("few documents", "many topics, alike"),
    shrink=4,
    repeats=2,
    text_starts=3,
    text_seeds=1,
)
"""A few seconds. Errors are still measured at the full number of documents, to which their targets apply."""


# Drawn documents


def draw_problem(seed: int, n: int) -> tuple[Topics, SparseSource]:
    """Topics, and n documents drawn from them."""
    one, two = spawn(generator(seed), 2)
    topics = draw_topics(TOPICS, WORDS, one, concentration=CONCENTRATION)
    return topics, topics.source(n, LENGTH, two)


def column_errors(truth: Tensor, estimate: Any) -> Tensor:
    """L1 distance of every true topic from the estimate matched to it, (k,)."""
    estimate = torch.as_tensor(estimate)
    return (estimate[match_topics(truth, estimate)] - truth).abs().sum(1)


def enumerate_documents(topics: Topics) -> SparseSource:
    """All documents of three words weighted by their probabilities: their moments are those of the distribution."""
    b = topics.probabilities.shape[1]
    words = torch.combinations(torch.arange(b), 3, with_replacement=True)
    n_equal = (words.diff(dim=1) == 0).sum(1)
    orders = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)[n_equal]
    weight = orders * (topics.weights @ topics.probabilities[:, words].prod(2))
    n = len(words)
    place = (np.arange(n).repeat(3), words.reshape(-1).numpy())
    return sparse_source(sparse.csr_array((np.ones(3 * n), place), shape=(n, b)), weight.numpy())


def recover_from_same_word(topics: Topics, seed: int) -> Tensor:
    """The lemma of the notes with its moments as written, :math:`E[x_1 x_1^T]` and so on; (k, b).

    These are diagonal, since a word equals itself.
    """
    k, b = topics.probabilities.shape
    mean = topics.weights @ topics.probabilities
    direction = normal((b,), generator(seed))
    return recover_by_eigenvectors(torch.diag(mean), torch.diag(mean * direction), k)


def recover_by_eigenvectors(pair: Tensor, slice_: Tensor, k: int) -> Tensor:
    """The lemma: eigenvectors of :math:`U^T Y U (U^T X U)^{-1}`, as distributions of words (k, b)."""
    span = torch.linalg.eigh(pair)[1][:, -k:]
    inner = (span.mT @ slice_ @ span) @ torch.linalg.inv(span.mT @ pair @ span)
    return _to_distributions(span @ torch.linalg.eig(inner)[1].real)


def _to_distributions(columns: Tensor) -> Tensor:
    """Columns as distributions: signs and sums, then the nearest points of the simplex."""
    size = columns.abs().sum(0)
    total = columns.sum(0)
    return project_to_simplex((columns / torch.where(total.abs() < 1e-6 * size, size, total)).mT)


def recover_from_one_direction(source: SparseSource, k: int, seed: int) -> Tensor:
    """The procedure of the notes on moments of distinct words: one random direction, no whitening; (k, b)."""
    stream = generator(seed)
    statistics = DocumentMoments.measure(source, "documents", scaled=False)
    _, basis = find_largest_eigenvalues(statistics, k, stream)
    _, pair, triple = statistics.project_moments(basis)
    slice_ = triple @ (basis.mT @ normal((len(basis),), stream))
    return _to_distributions(basis @ torch.linalg.eig(slice_ @ torch.linalg.inv(pair))[1].real)


def measure_exact(seed: int) -> dict[str, float]:
    """Largest column error with exact moments; with the moments as the notes write them, the mean."""
    topics = draw_topics(TOPICS, WORDS, generator(seed), concentration=CONCENTRATION)
    truth, source = topics.probabilities, enumerate_documents(topics)
    results: dict[str, float] = {}
    for name, (method, scaled) in METHODS.items():
        fit = spectral(source, TOPICS, generator(seed), method=method, scaled=scaled)
        results[name] = float(column_errors(truth, fit.probabilities).max())
    results[DOCUMENT] = float(column_errors(truth, recover_from_one_direction(source, TOPICS, seed)).max())
    results["same word"] = float(column_errors(truth, recover_from_same_word(topics, seed)).mean())
    return results


def fit_by_em(source: SparseSource, k: int, start: str, seed: int) -> MultinomialMixture:
    """EM from one kind of start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a bad start may end in an empty topic
        return MultinomialMixture(k, init_params=start, random_state=seed, max_iter=300).fit(source)


def measure_recovery(seed: int, n: int, starts: int) -> dict[str, Any]:
    """One problem: column errors (k,) of every estimate; of random starts, those of each."""
    topics, source = draw_problem(seed, n)
    truth = topics.probabilities
    results: dict[str, Any] = {
        "spectral": column_errors(truth, spectral(source, TOPICS, generator(seed)).probabilities).tolist()
    }
    for name, start in (("spectral + EM", "spectral"), ("default starts", "auto")):
        fit = fit_by_em(source, TOPICS, start, seed)
        results[name] = column_errors(truth, fit.probabilities_).tolist()
    for kind in RANDOM:
        fits = [fit_by_em(source, TOPICS, kind, 1000 * seed + i) for i in range(starts)]
        results[kind] = [column_errors(truth, fit.probabilities_).tolist() for fit in fits]
    return results


def measure_growth(seed: int, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Mean column error of one problem as documents are added, by moments and by EM from there."""
    results: dict[str, list[float]] = {"spectral": [], "spectral + EM": [], DOCUMENT: []}
    for n in sizes:
        topics, source = draw_problem(seed, n)
        estimates = {
            "spectral": spectral(source, TOPICS, generator(seed)).probabilities,
            "spectral + EM": fit_by_em(source, TOPICS, "spectral", seed).probabilities_,
            DOCUMENT: recover_from_one_direction(source, TOPICS, seed),
        }
        for name, estimate in estimates.items():
            results[name].append(float(column_errors(topics.probabilities, estimate).mean()))
    return results


def slopes(values: Sequence[Sequence[float]], sizes: Sequence[int]) -> tuple[float, float]:
    """Slope of log error against log n, a line for every problem: their mean and its standard error."""
    x = np.log(np.asarray(sizes, dtype=np.float64))
    each = np.polyfit(x, np.log(np.asarray(values)).T, 1)[0]
    return float(each.mean()), standard_error(each)


def measure_coverage(seed: int, n: int) -> dict[str, list[float]]:
    """Coverage of intervals on one problem at each of the levels, for words and for weights."""
    topics, source = draw_problem(seed, n)
    estimate = spectral(source, TOPICS, generator(seed))
    standard_errors = spectral_errors(estimate)
    place = match_topics(topics.probabilities, estimate.unprojected)
    z_scores = {
        "words": (estimate.unprojected[place] - topics.probabilities) / standard_errors.probabilities[place],
        "weights": (estimate.weights[place] - topics.weights) / standard_errors.weights[place],
    }
    rare = topics.probabilities < 0.05 / WORDS
    z_scores["rare words"] = z_scores["words"][rare]
    return {
        name: [float((z.abs() < half).double().mean()) for half in LEVELS.values()]
        for name, z in z_scores.items()
    }


def compare_diagonalisers(case: str, seed: int, shrink: int = 1) -> dict[str, tuple[float, float]]:
    """Mean column error and seconds of every diagonaliser, scaled or not, and of the procedure of the notes."""
    k, b, n, length, concentration = CASES[case]
    one, two = spawn(generator(seed), 2)
    topics = draw_topics(k, b, one, concentration=concentration)
    source = topics.source(n // shrink, length, two)
    results = {}
    for name, (method, scaled) in METHODS.items():
        begin = time.perf_counter()
        estimate = spectral(source, k, generator(seed), method=method, scaled=scaled)
        seconds = time.perf_counter() - begin
        results[name] = (float(column_errors(topics.probabilities, estimate.probabilities).mean()), seconds)
    begin = time.perf_counter()
    loss = float(column_errors(topics.probabilities, recover_from_one_direction(source, k, seed)).mean())
    results[DOCUMENT] = (loss, time.perf_counter() - begin)
    return results


# Text


@dataclass(frozen=True)
class Text:
    """Training and test documents as word counts, with their labels."""

    name: str
    real: bool
    train: Counts
    test: Counts
    train_labels: NDArray[np.int64]
    test_labels: NDArray[np.int64]

    @property
    def k(self) -> int:
        """Number of labels."""
        return len(np.unique(self.train_labels))


def load_texts(folder: Path | None, *, quick: bool, seed: int) -> list[Text]:
    """The newsgroups of a folder, or a stand-in."""
    texts = []
    if folder is not None and (folder / "news20_w1000.npz").exists():
        with np.load(folder / "news20_w1000.npz") as file:
            texts.append(
                Text(
                    "20 newsgroups, 1000 words chosen with the labels",
                    True,
                    file["train_counts"].astype(np.float64),
                    file["test_counts"].astype(np.float64),
                    file["train_labels"].astype(np.int64),
                    file["test_labels"].astype(np.int64),
                )
            )
    if folder is not None and (folder / "news20_w100.npz").exists():
        with np.load(folder / "news20_w100.npz") as file:
            rows, label = file["documents"].astype(np.float64), file["labels"].astype(np.int64)
        texts.append(_split_rows("4 newsgroups, presence of 100 words", True, rows, label, seed))
    if not texts:
        return [draw_bursty_documents(1_500 if quick else 10_000, seed)]
    return [_subsample(text, 1_500) for text in texts] if quick else texts


def _subsample(text: Text, n: int) -> Text:
    """n rows of each part, at random."""
    one, two = (np.random.default_rng(0).permutation(len(part))[:n] for part in (text.train, text.test))
    return Text(
        f"{text.name}, {n} documents",
        text.real,
        text.train[one],
        text.test[two],
        text.train_labels[one],
        text.test_labels[two],
    )


def _split_rows(name: str, real: bool, rows: Counts, label: NDArray[np.int64], seed: int) -> Text:
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = round(0.7 * len(rows))
    train, test = order[:cut], order[cut:]
    return Text(name, real, rows[train], rows[test], label[train], label[test])


def draw_bursty_documents(n: int, seed: int) -> Text:
    """Documents of unequal length with bursts of words: word probabilities vary about those of the topic."""
    topics = draw_topics(8, 120, generator(seed), concentration=0.5)
    rng = np.random.default_rng(seed)
    label = rng.choice(8, size=n, p=topics.weights.numpy())
    word_weights = rng.standard_gamma(30.0 * topics.probabilities.numpy()[label]) + 1e-9
    rows = rng.multinomial(
        rng.integers(3, 40, size=n), word_weights / word_weights.sum(1, keepdims=True)
    ).astype(np.float64)
    return _split_rows("drawn documents with bursts of words (no newsgroups)", False, rows, label, seed)


def perplexity(model: Mixture[Any], source: SparseSource) -> float:
    """exp of minus the mean log-likelihood per word."""
    expected = source.reduce(model.expect)
    return float((-expected.log_likelihood / source.rows.values().sum()).exp())


def compare_arms(text: Text, starts: int, seeds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Every arm: adjusted Rand index and perplexity of test documents, perplexity of training documents, seconds."""
    train, test = (sparse_source(sparse.csr_array(rows)) for rows in (text.train, text.test))
    results: dict[str, Any] = {}
    for name, settings in ARMS.items():
        results[name] = []
        for seed in range(starts if "random" in name else seeds):
            progress(f"{text.name}: {name}, {seed + 1}")
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                model = MultinomialMixture(text.k, random_state=seed, max_iter=MAX_ITERATIONS, **settings)
                fit = model.fit(train)
            seconds = time.perf_counter() - begin
            results[name].append(
                {
                    "rand": float(adjusted_rand_score(text.test_labels, fit.predict(test))),
                    "perplexity": perplexity(fit.model_, test),
                    "train": perplexity(fit.model_, train),
                    "seconds": seconds,
                    "iterations": fit.n_iter_,
                }
            )
    results["rivals"] = {name: _fit_diagonaliser(text.k, train, test, name) for name in METHODS}
    return results


def _fit_diagonaliser(k: int, train: SparseSource, test: SparseSource, name: str) -> dict[str, float]:
    """One diagonaliser on text: share of the third moment left over, and perplexity before and after EM."""
    method, scaled = METHODS[name]
    estimate = spectral(train, k, generator(0), method=method, scaled=scaled)
    template = Multinomial(torch.full((k, train.n_columns), 1.0 / train.n_columns, dtype=torch.float64))
    model = mixture_from_topics(estimate, template)
    after = Plan(max_iter=MAX_ITERATIONS).run(train, model, generator(0)).state.best

    return {
        "left": estimate.residual,
        "perplexity": perplexity(model, test),
        "after EM": perplexity(after, test),
    }


# Findings


def judge(curves: dict[str, Any], size: Size) -> list[Finding]:
    """Findings on drawn documents."""
    return [
        *judge_exact(curves["exact"]),
        *judge_recovery(curves["errors"], size.n),
        *judge_growth(curves["growth"], size.sizes),
        *judge_coverage(curves["coverage"]),
        *judge_diagonalisers(curves["rivals"]),
    ]


def judge_exact(runs: Runs) -> list[Finding]:
    """Exact moments."""
    size = f"Worst of {len(runs)} problems and {len(runs[0]) - 2} ways to make the third moment diagonal."
    ours = max(run[name] for run in runs for name in run if name not in (DOCUMENT, "same word"))
    single = max(run[DOCUMENT] for run in runs)
    literal = np.asarray([run["same word"] for run in runs])
    return [
        Finding(
            "exact moments of distinct words give the topics back",
            "exactly",
            f"largest column L1 error {ours:.1e}",
            None,
            "reproduced" if ours < 1e-10 else "not reproduced",
            f"{size} Every document of three words was weighed by its probability. One random direction and no "
            f"whitening, as the document has it: {single:.1e}.",
            exact=True,
        ),
        Finding(
            "exact moments as the document writes them, E[x1 x1'] and E[x1 x1' (x1' eta)]",
            "the topics",
            f"mean column L1 error, at most 2, is {literal.mean():.2f}",
            standard_error(literal),
            "reproduced" if literal.max() < 1e-10 else "not reproduced",
            f"At least {literal.min():.2f} in {len(runs)} problems. A word agrees with itself: these matrices are "
            "diagonal, and their eigenvectors are single words.",
            exact=True,
        ),
    ]


def judge_recovery(runs: Runs, n: int) -> list[Finding]:
    """Errors at one number of documents, and how often random starts end in a local optimum."""
    findings = []
    for name, limit in TARGETS.items():
        worst = np.asarray([max(run[name]) for run in runs])
        findings.append(
            Finding(
                f"column L1 error of the worst topic, {name}",
                "not in the document",
                f"{worst.mean():.4f} in the mean",
                standard_error(worst),
                judge_target(bool((worst < limit).mean() >= 0.95)),
                f"Below {limit} in {percent(float((worst < limit).mean()))} of {len(runs)} problems of {n:,} "
                f"documents, {LENGTH} words each, at most {worst.max():.4f}; it is to be in 95%.",
            )
        )
    return [*findings, _random(runs), _default(runs)]


def _random(runs: Runs) -> Finding:
    shares, typical = {}, {}
    for kind in RANDOM:
        fits = np.asarray([fit for run in runs for fit in run[kind]])  # (fits, k)
        trapped = fits.max(1) > TRAPPED
        shares[kind] = trapped
        typical[kind] = fits[trapped].mean() if trapped.any() else 0.0
    every = np.concatenate(list(shares.values()))
    results = "; ".join(
        f"{kind}: {percent(float(shares[kind].mean()))}, mean column error there {typical[kind]:.2f}"
        for kind in RANDOM
    )
    return Finding(
        "EM finds only a local optimum",
        "guaranteed no more than that",
        f"share of {len(every)} random starts that are trapped {every.mean():.2f}",
        float((every.mean() * (1.0 - every.mean()) / len(every)) ** 0.5),
        judge_claim(bool(every.mean() > 0.1)),
        f"A worst topic off by more than {TRAPPED}. {results}.",
    )


def _default(runs: Runs) -> Finding:
    worst = np.asarray([max(run["default starts"]) for run in runs])
    caught = int((worst > TRAPPED).sum())
    return Finding(
        "EM from our default starts is trapped",
        "not in the document",
        f"in {caught} of {len(worst)} problems",
        None,
        judge_target(caught == 0),
        f"Eight starts of five kinds are raced on a sample. Error of the worst topic {worst.mean():.4f} in the mean.",
    )


def judge_growth(runs: Runs, sizes: Sequence[int]) -> list[Finding]:
    """Error against the number of documents."""
    findings = []
    for name in ("spectral", "spectral + EM"):
        slope, error = slopes([run[name] for run in runs], sizes)
        findings.append(
            Finding(
                f"error against the number of documents, {name}",
                "falls as n^(-1/2)",
                f"log-log slope {slope:.3f}",
                error,
                judge_claim(abs(slope + 0.5) <= 0.03 + 2.0 * error),
                f"{len(runs)} problems, n = {sizes[0]:,} to {sizes[-1]:,}; within 0.03 and two standard errors.",
            )
        )
    last = np.asarray([[run[name][-1] for run in runs] for name in ("spectral", "spectral + EM", DOCUMENT)])
    findings.append(
        Finding(
            f"one random direction without whitening, as in the document, n = {sizes[-1]:,}",
            "the same estimate",
            f"mean column error {last[2].mean():.4f}",
            standard_error(last[2]),
            judge_claim(bool(np.median(last[2]) < 1.5 * np.median(last[0]))),
            f"Ours {last[0].mean():.4f}, with EM {last[1].mean():.4f}; medians {np.median(last[2]):.4f} and "
            f"{np.median(last[0]):.4f}, to be within a factor of 1.5. Two eigenvalues that a random direction leaves "
            "near each other mix their topics; whitening and all directions at once do not.",
        )
    )
    return findings


def judge_coverage(runs: Mapping[int, Runs]) -> list[Finding]:
    """Coverage of intervals against their level."""
    findings = []
    for n, each in runs.items():
        for level in ("90%", "95%"):
            which, nominal = list(LEVELS).index(level), float(level[:-1]) / 100.0
            shares = {kind: np.asarray([run[kind][which] for run in each]) for kind in each[0]}
            words, error = shares["words"].mean(), standard_error(shares["words"])
            others = ", ".join(
                f"{kind} {100 * value.mean():.1f} ± {100 * standard_error(value):.1f}%"
                for kind, value in shares.items()
                if kind != "words"
            )
            findings.append(
                Finding(
                    f"{level} intervals by the delta method, n = {n:,}",
                    f"{level} in the limit",
                    f"hold the truth in {100 * words:.2f}%",
                    100 * error,
                    judge_claim(bool(abs(words - nominal) <= 0.01 + 2.0 * error)),
                    f"All words of all topics of {len(each)} problems; {others}. Within one point and two Monte "
                    "Carlo errors.",
                )
            )
    return findings


def judge_diagonalisers(runs: Mapping[str, Runs]) -> list[Finding]:
    """Diagonalisers compared, and the reason for the default."""
    findings = []
    for case, each in runs.items():
        loss = {name: np.asarray([run[name][0] for run in each]) for name in each[0]}
        ours = loss.pop(DEFAULT)
        ratio = {name: float(np.mean(value / ours)) for name, value in loss.items()}
        results = ", ".join(f"{name} {value:.2f}" for name, value in ratio.items())
        findings.append(
            Finding(
                f"the default, all slices at once on scaled words: {case}",
                "one direction with distinct values will do",
                f"mean column error {ours.mean():.4f}",
                standard_error(ours),
                judge_target(min(ratio.values()) > 0.95),
                f"Errors of the others, relative to it, {len(each)} problems: {results}.",
            )
        )
    seconds = {
        name: np.mean([run[name][1] for each in runs.values() for run in each])
        for name in next(iter(runs.values()))[0]
    }
    last = runs[list(runs)[-1]]
    gap = np.mean([run["gap, scaled"][0] / run[DEFAULT][0] for run in last])
    power = np.mean([run["power, scaled"][0] / run[DEFAULT][0] for run in last])
    findings.append(
        Finding(
            "why the default is joint diagonalisation",
            "not in the document",
            f"one slice with the widest gap has {gap:.1f} times its error on {list(runs)[-1]}",
            None,
            judge_target(bool(gap > 1.0)),
            f"The tensor power method has {power:.2f} times its error and takes "
            f"{seconds['power, scaled'] / seconds[DEFAULT]:.1f} times as long in the mean. Standard errors are "
            "those of joint diagonalisation.",
        )
    )
    return findings


def judge_text(name: str, real: bool, results: Mapping[str, Any]) -> list[Finding]:
    """Newsgroups or their stand-in."""
    arms = {arm: value for arm, value in results.items() if arm != "rivals"}
    middle = {
        arm: {key: float(np.median([fit[key] for fit in fits])) for key in fits[0]}
        for arm, fits in arms.items()
    }
    ours, rest = middle["spectral + EM"], middle["EM, random starts"]
    starts = results["EM, random starts"]
    best = min(starts, key=lambda fit: float(fit["train"]))
    beaten = np.mean([fit["perplexity"] > ours["perplexity"] for fit in starts])
    where = name if real else f"STAND-IN, {name}"
    lines = "; ".join(
        f"{arm}: {facts['perplexity']:.1f}, {facts['rand']:.3f}, {facts['seconds']:.1f} s"
        for arm, facts in middle.items()
    )
    agreed = np.mean([fit["rand"] < ours["rand"] for fit in starts])
    return [
        Finding(
            f"held-out perplexity of spectral + EM, {where}",
            "not in the document",
            f"{ours['perplexity']:.1f}; lower than {percent(float(beaten))} of {len(starts)} random starts",
            None,
            judge_target(ours["perplexity"] <= rest["perplexity"]),
            f"Medians of perplexity, adjusted Rand index and time: {lines}. The random start with the highest "
            f"likelihood of all has {best['perplexity']:.1f}.",
        ),
        Finding(
            f"agreement of its clusters with the labels, {where}",
            "not in the document",
            f"adjusted Rand index {ours['rand']:.3f}; higher than {percent(float(agreed))} of random starts",
            None,
            judge_target(ours["rand"] >= rest["rand"]),
            f"Held-out documents. Moments alone {middle['spectral']['rand']:.3f}, random starts "
            f"{rest['rand']:.3f} in the median, default starts {middle['EM, default starts']['rand']:.3f}.",
        ),
        _judge_text_diagonalisers(where, results["rivals"]),
    ]


def _judge_text_diagonalisers(
    where: str, compare_diagonalisers: Mapping[str, Mapping[str, float]]
) -> Finding:
    ours = compare_diagonalisers[DEFAULT]
    results = "; ".join(
        f"{name}: {facts['perplexity']:.0f}, {facts['after EM']:.1f}, {percent(facts['left'])}"
        for name, facts in compare_diagonalisers.items()
    )
    best = min(compare_diagonalisers, key=lambda name: compare_diagonalisers[name]["after EM"])
    return Finding(
        f"the default diagonaliser as a start, {where}",
        "not in the document",
        f"perplexity {ours['perplexity']:.0f} by moments, {ours['after EM']:.1f} after EM",
        None,
        judge_target(ours["after EM"] <= 1.01 * compare_diagonalisers[best]["after EM"]),
        f"Perplexity by moments, after EM, and share of the third moment that no topics account for: {results}. Lowest "
        f"after EM: {best}; the default is to be within 1% of it.",
    )


# Figures


def draw_growth(runs: Runs, sizes: Sequence[int]) -> Figure:
    """Mean column error against n, a line per method, each problem in faint dots, and a line of slope -1/2."""
    figure = new_figure(7.2, 4.8)
    axis: Any = figure.subplots()
    dress(axis, "Error of topics falls as one over the root of n", "documents n", "L1 error of a topic, mean")
    x = np.asarray(sizes, dtype=np.float64)
    names = {
        "spectral": "moments",
        "spectral + EM": "moments, then EM",
        DOCUMENT: "one random direction (document)",
    }
    for j, (name, label) in enumerate(names.items()):
        values = np.asarray([run[name] for run in runs])
        for row in values:
            axis.plot(x, row, ".", color=COLOURS[j], alpha=0.25, markersize=4)
        axis.plot(x, np.median(values, axis=0), MARKERS[j] + "-", color=COLOURS[j], label=label, markersize=6)
    first = float(np.median([run["spectral"][0] for run in runs]))
    axis.plot(x, 0.6 * first * (x / x[0]) ** -0.5, ":", color=INK, label="slope -1/2")
    axis.set(xscale="log", yscale="log")
    set_log_ticks(axis.xaxis, sizes)
    set_log_ticks(axis.yaxis, [m * 10.0**e for e in range(-4, 1) for m in (1, 2, 5)])
    add_legend(axis, "lower left", title="median of problems")
    return figure


def draw_coverage(runs: Mapping[int, Runs]) -> Figure:
    """Coverage of intervals minus their level, with Monte Carlo errors."""
    figure = new_figure(9.2, 4.2)
    panels: Any = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    place = np.arange(len(LEVELS))
    nominal = np.asarray([float(level[:-1]) for level in LEVELS])
    labels = {"words": "words", "rare words": "words rarer than 1 in 1000", "weights": "weights of topics"}
    for axis, (n, each) in zip(panels, runs.items()):
        up = "held the truth minus level (points)" if axis is panels[0] else ""
        dress(axis, f"{n:,} documents, {len(each)} problems", "level of the interval", up)
        axis.axhline(0.0, color=INK, linewidth=0.9)
        for j, (kind, label) in enumerate(labels.items()):
            shares = 100.0 * np.asarray([run[kind] for run in each])
            error = [2.0 * standard_error(column) for column in shares.T]
            axis.errorbar(
                place + 0.16 * (j - 1),
                shares.mean(0) - nominal,
                yerr=error,
                fmt=MARKERS[j],
                color=COLOURS[j],
                capsize=3,
                label=label,
            )
        axis.set_xticks(place, labels=list(LEVELS))
        axis.set_xlim(-0.5, len(LEVELS) - 0.5)
    handles, names = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    legend.set_title("bars: two Monte Carlo errors")
    return figure


def draw_diagonalisers(runs: Mapping[str, Runs]) -> Figure:
    """Errors of every diagonaliser relative to the default, by case; hollow without scaled words."""
    names = list(next(iter(runs.values()))[0])
    default = names[0]
    figure = new_figure(9.4, 4.6)
    axis: Any = figure.subplots()
    dress(axis, "Error of each diagonaliser relative to the default", "", f'error / error of "{default}"')
    kinds = list(dict.fromkeys(name.split(",")[0] for name in names))
    for j, name in enumerate(names[1:], 1):
        kind = kinds.index(name.split(",")[0])
        ratio = [np.asarray([run[name][0] / run[default][0] for run in each]) for each in runs.values()]
        axis.errorbar(
            np.arange(len(runs)) + 0.11 * (j - len(names) / 2),
            [r.mean() for r in ratio],
            yerr=[standard_error(r) for r in ratio],
            fmt=MARKERS[kind],
            color=COLOURS[kind],
            fillstyle="none" if "unscaled" in name else "full",
            capsize=2.5,
            label=name,
        )
    axis.axhline(1.0, color=INK, linewidth=0.9)
    axis.set_yscale("log")
    set_log_ticks(axis.yaxis, (0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0))
    axis.set_xticks(range(len(runs)), labels=[case.replace(" ", "\n", 1) for case in runs])
    axis.set_xlim(-0.5, len(runs) - 0.5)
    for edge in range(len(runs) - 1):
        axis.axvline(edge + 0.5, color=INK, alpha=0.15, linewidth=0.8)
    axis.grid(axis="x", visible=False)
    add_legend(axis, beside=True)
    return figure


def set_log_ticks(axis: Any, values: Sequence[float]) -> None:
    """Plain numbers on a logarithmic axis: those of ``values`` within its limits."""
    low, high = axis.get_view_interval()
    visible = [value for value in values if low <= value <= high]
    axis.set_ticks(visible, labels=[f"{value:,g}" if value < 1e4 else f"{value:,.0f}" for value in visible])
    axis.set_ticks([], minor=True)


# Experiment


class Counter:
    """Counts finished steps and reports them."""

    def __init__(self, report: Callable[[int, int, str], None], total: int) -> None:
        self.report, self.total, self.done = report, total, 0

    def map(self, values: Sequence[T], what: str, work: Callable[[T], Any]) -> list[Any]:
        """``work`` of every value."""
        results = []
        for value in values:
            self.step(f"{what} {value}")
            results.append(work(value))
        return results

    def step(self, what: str) -> None:
        """Begin one more step."""
        self.report(min(self.done, self.total), self.total, what)
        self.done += 1


def experiment(options: Options) -> Report:
    """Run in the order of the notes: the lemma, estimates, their errors; then text."""
    size = QUICK if options.quick else Size()
    texts = load_texts(options.data, quick=options.quick, seed=options.seed)
    seeds = range(options.seed, options.seed + size.problems)
    fits = size.text_starts + 3 * size.text_seeds
    total = 3 * size.problems + len(size.coverage) * size.tables + len(size.cases) * size.repeats
    progress = Counter(options.progress, total + fits * len(texts))
    curves: dict[str, Any] = {
        "exact": progress.map(seeds, "exact moments, problem", measure_exact),
        "errors": progress.map(seeds, "starts, problem", lambda s: measure_recovery(s, size.n, size.starts)),
        "growth": progress.map(seeds, "error against n, problem", lambda s: measure_growth(s, size.sizes)),
    }
    tables = range(options.seed + 1000, options.seed + 1000 + size.tables)
    curves["coverage"] = {
        n: progress.map(tables, f"intervals, n = {n:,}, problem", partial(measure_coverage, n=n))
        for n in size.coverage
    }
    seeds_of_cases = range(options.seed + 2000, options.seed + 2000 + size.repeats)
    curves["rivals"] = {
        case: progress.map(
            seeds_of_cases, f"{case}, problem", partial(compare_diagonalisers, case, shrink=size.shrink)
        )
        for case in size.cases
    }
    curves["text"] = {
        text.name: compare_arms(text, size.text_starts, size.text_seeds, progress.step) for text in texts
    }
    settings = {
        "topics": TOPICS,
        "vocabulary": WORDS,
        "words a document": LENGTH,
        "concentration": CONCENTRATION,
        "documents": size.n,
        "problems": size.problems,
        "data": "; ".join(text.name for text in texts),
        "seed": options.seed,
    }
    findings = judge(curves, size) + [
        finding for text in texts for finding in judge_text(text.name, text.real, curves["text"][text.name])
    ]
    figures = {
        "growth": draw_growth(curves["growth"], size.sizes),
        "coverage": draw_coverage(curves["coverage"]),
        "rivals": draw_diagonalisers(curves["rivals"]),
    }
    title = "Topics from the moments of distinct words"
    return Report("spectral-documents", title, settings, findings, curves, figures)
