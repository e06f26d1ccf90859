"""Whether doubt about images tells those that belong to no class."""

from __future__ import annotations

from papers.experiment import Finding
from papers.network_images_findings import SINGLE, SURE, Sayings
from papers.network_images_measures import Measured, area
from papers.network_images_trials import ENTROPY, INFORMATION, KINDS
from papers.uci_networks_trials import ENSEMBLE, FACTOR, MULTI_SWAG, SGD, SWAG
from papers.words import met


def judge_unknown(name: str, said: Sayings) -> list[Finding]:
    """Areas under the curve of hits and false alarms, by entropy (tuned) and by mutual information (as it is).

    Args:
        name: of the images.
        said: by method.
    """
    return [
        _ahead(name, said, (SWAG, FACTOR), "a posterior of one run", "Maddox et al. (2019)"),
        _ahead(name, said, (ENSEMBLE, MULTI_SWAG), "several runs", "Lakshminarayanan et al. (2017)"),
        _information(name, said),
        _table(name, said),
    ]


def areas(said: Sayings, method: str, kind: str) -> dict[str, Measured]:
    """By what the unknown images are."""
    doubt = said[method].doubt[kind]
    return {what: area(doubt["test"], values) for what, values in doubt.items() if what != "test"}


def less(said: Sayings, method: str, base: str, kind: str, other: str) -> dict[str, Measured]:
    """Areas of a method by one kind of doubt less those of another by its own."""
    one, two = said[method].doubt[kind], said[base].doubt[other]
    return {what: area(one["test"], one[what], (two["test"], two[what])) for what in one if what != "test"}


def _told(found: dict[str, Measured]) -> str:
    return ", ".join(f"{what} {one.value:+.3f} (z = {one.z:+.1f})" for what, one in found.items())


def _ahead(name: str, said: Sayings, methods: tuple[str, ...], words: str, paper: str) -> Finding:
    found = {method: less(said, method, SGD, ENTROPY, ENTROPY) for method in methods}
    every = [one for by in found.values() for one in by.values()]
    return Finding(
        f"{name}: entropy under {words} tells unknown images better than under SGD, of every kind",
        paper,
        "; ".join(f"{method}: {_told(by)}" for method, by in found.items()),
        None,
        met(all(one.z > SURE for one in every)),
        f"Area under the curve less SGD's, paired; surely larger in {sum(one.z > SURE for one in every)} and surely "
        f"smaller in {sum(one.z < -SURE for one in every)} of {len(every)} cases.",
    )


def _information(name: str, said: Sayings) -> Finding:
    found = {
        method: less(said, method, method, INFORMATION, ENTROPY) for method in (MULTI_SWAG, ENSEMBLE, SWAG)
    }
    every = [one for by in found.values() for one in by.values()]
    return Finding(
        f"{name}: mutual information tells unknown images better than entropy",
        "not in the document",
        "; ".join(f"{method}: {_told(by)}" for method, by in found.items()),
        None,
        met(all(one.z > SURE for one in every)),
        "What networks disagree about, against all that they are unsure of; areas under the curve, the first less the "
        "second.",
    )


def _table(name: str, said: Sayings) -> Finding:
    best: dict[str, tuple[float, str, str]] = {}
    told = []
    for method in said:
        cells = []
        for kind in KINDS:
            found = areas(said, method, kind)
            if any(one.error > 0.0 for one in found.values()):  # one network does not disagree with itself
                cells.append(
                    f"{kind} " + ", ".join(f"{one.value:.3f} ± {one.error:.3f}" for one in found.values())
                )
                for what, one in found.items():
                    best[what] = max(best.get(what, (0.0, "", "")), (one.value, method, kind))
        told.append(f"{method}: {'; '.join(cells)}")
    return Finding(
        f"{name}: unknown images ({', '.join(best)}) are best told by several runs",
        "not in the document",
        "; ".join(told),
        None,
        met(all(method not in SINGLE for _, method, _ in best.values())),
        "Area under the curve of hits and false alarms. Best: "
        + "; ".join(f"{what}: {method}, {kind}, {value:.3f}" for what, (value, method, kind) in best.items())
        + ".",
    )
