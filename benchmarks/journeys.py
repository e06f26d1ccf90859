"""How many functions and files of boxloop a user's call passes through: the five journeys of DESIGN, section 2.

python benchmarks/journeys.py [--only NAME] [--list] [--report]

Each journey runs twice: first to import what it needs and to fill caches, then under ``sys.setprofile``. A function
counts once however often it is called, lambdas too; comprehensions count as the function that they stand in.
``--list`` prints the functions in the order in which they are entered first, ``--report`` includes the slow journey.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import boxloop

ROOT = Path(boxloop.__file__).parent
INLINED = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"}
GOALS = {
    "GaussianMixture.fit": (110, 16),
    "mega": (120, 16),
    "RelevantFeatures.fit": (140, 22),
    "RelevantFeatures.expect": (80, 12),
    "WeightPosterior": (30, 7),
    "WeightPosterior.observe": (45, 6),
    "WeightPosterior.predict": (110, 13),
    "report": (600, 70),
}

Entered = dict[tuple[str, str, int], None]
"""(file, qualified name, line) of each function, in the order in which they are entered first."""


def entered(call: Callable[[], object]) -> Entered:
    """The functions of boxloop that a call enters, in any thread."""
    found: Entered = {}
    inside = str(ROOT)

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside) and code.co_name not in INLINED:
            place = str(Path(code.co_filename).relative_to(ROOT))
            found.setdefault((place, code.co_qualname, code.co_firstlineno))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def table(n: int = 600, d: int = 4) -> np.ndarray:
    """Three clusters."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)) + 3.0 * rng.integers(3, size=(n, 1))


def mixture_fit() -> Callable[[], object]:
    X = table()
    return lambda: boxloop.GaussianMixture(3).fit(X)


def mega() -> Callable[[], object]:
    train, held = table()[:400], table()[400:]
    model = boxloop.GaussianMixture(3, random_state=0).fit(train)
    return lambda: boxloop.mega(model, held, train=train)


def features_fit() -> Callable[[], object]:
    X = table()
    return lambda: boxloop.RelevantFeatures().fit(X[:, :2], X[:, 2:])


def features_expect() -> Callable[[], object]:
    X = table()
    model = boxloop.RelevantFeatures(random_state=0).fit(X[:, :2], X[:, 2:])
    return lambda: model.expect(given=X[:10, :2])


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def posterior_construct() -> Callable[[], object]:
    from boxloop.networks import WeightPosterior

    net = network()
    return lambda: WeightPosterior(net, rank=3, random_state=0)


def observed(posterior: Any, net: torch.nn.Module) -> None:
    """Forty weights along a noisy path."""
    stream = torch.Generator().manual_seed(1)
    for _ in range(40):
        with torch.no_grad():
            for value in net.parameters():
                value += 0.01 * torch.randn(value.shape, generator=stream)
        posterior.observe()


def posterior_observe() -> Callable[[], object]:
    from boxloop.networks import WeightPosterior

    net = network()
    posterior = WeightPosterior(net, rank=3, random_state=0)
    return lambda: observed(posterior, net)


def posterior_predict() -> Callable[[], object]:
    from boxloop.networks import WeightPosterior

    net = network()
    posterior = WeightPosterior(net, rank=3, random_state=0)
    observed(posterior, net)
    rows = torch.from_numpy(table()[:, :2]).float()
    return lambda: posterior.predictor("regression", 5, noise=1.0).predict(rows)


def report() -> Callable[[], object]:
    folder = Path(tempfile.mkdtemp())
    data = folder / "data.csv"
    np.savetxt(data, table(300), delimiter=",", header="a,b,c,d", comments="")
    return lambda: boxloop.make_report(data, jobs=1).save(folder / "report.html", force=True)


JOURNEYS: dict[str, Callable[[], Callable[[], object]]] = {
    "GaussianMixture.fit": mixture_fit,
    "mega": mega,
    "RelevantFeatures.fit": features_fit,
    "RelevantFeatures.expect": features_expect,
    "WeightPosterior": posterior_construct,
    "WeightPosterior.observe": posterior_observe,
    "WeightPosterior.predict": posterior_predict,
    "report": report,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=JOURNEYS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true", help="include the report, which takes a minute")
    options = parser.parse_args()
    names = [options.only] if options.only else [n for n in JOURNEYS if n != "report" or options.report]
    print(f"{'journey':26} {'functions':>9} {'files':>6}   goal")
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            JOURNEYS[name]()()
            call = JOURNEYS[name]()
            found = entered(call)
        files = {place for place, _, _ in found}
        most, folders = GOALS[name]
        print(f"{name:26} {len(found):9} {len(files):6}   {most} / {folders}")
        if options.list:
            for place, function, line in found:
                print(f"    {place}:{line} {function}")


if __name__ == "__main__":
    main()
