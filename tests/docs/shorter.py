"""Pages that take seconds, made short: fewer rows, iterations and draws. The slow suite runs them as printed."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

SHORTER = {
    "index.md": {"range(1, 6)": "range(2, 4)"},
    "from_pymc.md": {"chains=16": "chains=8", "draws=500": "draws=50", "warmup=500": "warmup=100"},
    "guides/how_many_components.md": {
        "range(1, 6)": "range(2, 4)",
        "[2, 3, 4]": "[2, 3]",
        "[1, 2, 3]": "[1, 2]",
    },
    "bayesian_mixtures.md": {
        "BayesianGaussianMixture(10": "BayesianGaussianMixture(4",
        "range(1, 6)": "range(2, 4)",
        "range(20)": "range(4)",
        "(3.0, 6.0)": "(6.0,)",
        "draws=500": "draws=50",
        "BayesianMultinomialMixture(12": "BayesianMultinomialMixture(6",
        "n_starts=5": "n_starts=2",
    },
    "two_views.md": {
        "ships(2000)": "ships(600)",
        "n_fourier=150": "n_fourier=40",
        "max_iter=60": "max_iter=3",
        "RandomForestRegressor(100": "RandomForestRegressor(10",
        "max_iter=20": "max_iter=3",
    },
    "autoencoders.md": {
        "images[:1300], images[1300:]": "images[:300], images[1600:]",
        '"max_iter": 30, "score_draws": 64': '"max_iter": 3, "score_draws": 8',
        "range(300)": "range(20)",
    },
    "topics_from_moments.md": {"10_000": "4_000", "max_topics=8": "max_topics=5", "range(6)": "range(2)"},
    "codes_of_digits.py": {"max_iter=160": "max_iter=4"},
    "halves_of_digits.py": {
        "slice(1400), slice(1400, None)": "slice(600), slice(600, 800)",
        "n_fourier=300": "n_fourier=60",
    },
    "gallery/how_many_components.py": {"[1, 2, 3, 4, 5, 6]": "[1, 2]", "range(1, 7)": "range(1, 3)"},
    "power_of_moment_gaps.py": {
        "(1, 2, 3, 4, 6)": "(1, 2)",
        "default=60": "default=1",
        "tol=1e-8, max_iter=2000": "tol=1e-4",
    },
    "sgd_iterates.py": {"range(400)": "range(40)"},
    "variational_posterior.py": {"draws=2500": "draws=200"},
    "chain_diagnostics.py": {"draws=500, warmup=500": "draws=100, warmup=100", "draws=2000": "draws=400"},
}
"""What is put in the place of what, by the end of a page's path."""
LONG = {"error_bars_for_a_network", "sampling"}
"""Pages of steps and warm-ups that cannot be short: in the slow suite alone."""


def changes(page: Path) -> dict[str, str]:
    """What makes a page short: nothing where it is short as it is."""
    return next((found for name, found in SHORTER.items() if page.as_posix().endswith(f"/{name}")), {})


def shortened(page: Path) -> str:
    """The text of a page with its changes, each of which must be there to be made."""
    text = page.read_text(encoding="utf-8")
    for old, new in changes(page).items():
        assert old in text, f"{page.name} has no {old!r} that could be made shorter"
        text = text.replace(old, new)
    return text
