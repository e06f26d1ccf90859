"""Monte Carlo EM (002, section 2.6, which is empty): what makes it converge, and what makes it collapse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from boxloop.average import Power
from boxloop.fit import (
    AscentPlan,
    BurnIn,
    MonteCarloPlan,
    MonteCarloState,
    RefinementState,
    ascent_em,
    newton_refine,
    warm_up,
)
from boxloop.models import GroupedRows, group_log_likelihood
from boxloop.numeric import generator, normal
from boxloop.run import run
from boxloop.tree import flatten
from papers.experiment import Options, Report
from papers.mcem_figures import draw
from papers.mcem_findings import judge
from papers.mcem_trials import (
    Reference,
    Rows,
    Trail,
    TwoMeans,
    follow_trail,
    label_draws,
    logistic_groups,
    random_walks,
    reference,
    rounds_to_collapse,
    start,
)


@dataclass(frozen=True)
class Size:
    """How much is run: seeds and draws a group of each scheme, repetitions and draws of the collapses."""

    seeds: int
    draws: int
    repeats: int
    short: int
    ascents: int


FULL, QUICK = Size(8, 4000, 24, 400, 16), Size(3, 800, 8, 300, 6)


def few(k: int) -> int:
    """One draw a round."""
    return 1


def schemes(draws: int) -> dict[str, tuple[MonteCarloPlan, int]]:
    """Plans by name, each with as many rounds as spend the draws."""
    rounds = draws // 5
    approximation = BurnIn(rounds // 10, Power(0.7))
    growing = int((3.0 * draws) ** (1.0 / 3.0))

    def five(persistent: bool) -> MonteCarloPlan:
        return MonteCarloPlan(lambda k: 5, approximation, smooth_after=rounds // 4, persistent=persistent)

    return {
        "m = 1, full replacement": (MonteCarloPlan(few), draws),
        "m = 20": (MonteCarloPlan(lambda k: 20), draws // 20),
        "m = k²": (MonteCarloPlan(), growing),
        "stochastic approximation, m = 5": (five(persistent=True), rounds),
        "m = k², restarted": (MonteCarloPlan(persistent=False), growing),
        "stochastic approximation, restarted": (five(persistent=False), rounds),
    }


@dataclass(frozen=True)
class Small:
    """A problem that may collapse: what is fitted, by which kernel, and when it is gone."""

    model: Any
    rows: Any
    kernels: Any
    gone: Callable[[Any], bool]


def small_problems() -> dict[str, Small]:
    """A mixture of 12 rows, and random effects of few groups and of many."""
    stream = generator(5)
    x = torch.cat([normal((4,), stream) - 1.2, normal((8,), stream) + 1.2])
    mixture = TwoMeans(torch.tensor([0.5, 0.5]).double(), torch.tensor([-1.0, 1.0]).double())

    def without_spread(model: Any) -> bool:
        return float(model.covariance[0, 0]) < 1e-2

    found = {"mixture, 12 rows": Small(mixture, x, label_draws, lambda m: float(m.weight.min()) < 1e-3)}
    for groups, each in ((12, 3), (200, 10)):
        rows = logistic_groups(3, groups, each)
        found[f"{groups} groups of {each}"] = Small(start(), rows, random_walks, without_spread)
    return found


def collapses(problem: Small, size: Size, seed: int) -> dict[str, Rows]:
    """Draws after which each scheme has collapsed for good, one for each repetition; infinite if it has not."""
    growing = int((3.0 * size.short) ** (1.0 / 3.0))
    plans = {
        "m = 1, full replacement": (MonteCarloPlan(few), size.short),
        "m = k²": (MonteCarloPlan(), growing),
        "stochastic approximation": (MonteCarloPlan(few, BurnIn(10, Power(0.7))), size.short),
    }
    found = {}
    for name, (plan, rounds) in plans.items():
        spent = np.cumsum([plan.draws(k) for k in range(1, rounds + 1)])
        when = [
            rounds_to_collapse(
                problem.model, problem.rows, problem.kernels, plan, rounds, seed + i, problem.gone
            )
            for i in range(size.repeats)
        ]
        found[name] = np.asarray([spent[k - 1] if k <= rounds else np.inf for k in when], dtype=np.float64)
    return found


def ascents(rows: GroupedRows, truth: Reference, size: Size, seed: int) -> tuple[Rows, Rows]:
    """Rises of the true log-likelihood in every step taken but the last, and z-scores of the final estimates."""
    rises: list[float] = []
    scores = []
    for i in range(size.ascents):
        first = MonteCarloState.start(start(), rows, 8, generator(seed + i))
        state = warm_up(first, rows, random_walks)
        levels = [float(group_log_likelihood(state.model, rows).sum())]

        def watch(progress: Any, levels: list[float] = levels) -> None:
            if not progress.stopped:
                levels.append(float(group_log_likelihood(progress.state.model, rows).sum()))

        outcome = run(ascent_em(rows, random_walks, AscentPlan()), state, max_rounds=60, observers=[watch])
        rises += np.diff(levels)[:-1].tolist()
        last = run(newton_refine(rows, random_walks), RefinementState(outcome.state), max_rounds=6)
        found = last.state.found
        assert found is not None
        scores.append(
            (
                (flatten(found.model.free()) - truth.point) / found.monte_carlo_covariance.diagonal().sqrt()
            ).numpy()
        )
    return np.asarray(rises), np.asarray(scores)


def experiment(options: Options) -> Report:
    """Schemes on one problem against its maximum by quadrature, then collapses, then the steps that are taken."""
    size = QUICK if options.quick else FULL
    rows = logistic_groups(options.seed + 1, 60, 6)
    truth = reference(start(), rows)
    plans, problems = schemes(size.draws), small_problems()
    total, done = len(plans) + len(problems) + 1, 0
    trails: dict[str, list[Trail]] = {}
    for name, (plan, rounds) in plans.items():
        options.progress(done, total, name)
        seeds = range(options.seed, options.seed + size.seeds)
        trails[name] = [follow_trail(rows, truth, plan, rounds, seed) for seed in seeds]
        done += 1
    gone = {}
    for name, problem in problems.items():
        options.progress(done, total, f"collapse: {name}")
        gone[name] = collapses(problem, size, options.seed)
        done += 1
    options.progress(done, total, "steps that go up")
    rises, scores = ascents(rows, truth, size, options.seed)
    settings = {
        "groups": 60,
        "rows a group": 6,
        "draws a group": size.draws,
        "seeds": size.seeds,
        "repetitions of collapses": size.repeats,
        "seed": options.seed,
    }
    deviation = float(truth.model.covariance[0, 0]) ** 0.5
    return Report(
        "mcem",
        "Monte Carlo EM",
        settings,
        judge(trails, gone, rises, scores),
        curves={
            name: [{"draws": t.spent.tolist(), "distance": t.distance.tolist()} for t in many]
            for name, many in trails.items()
            if len(many[0].spent) < 1000
        },
        figures={"draws": draw(trails, gone, deviation, size.short)},
    )
