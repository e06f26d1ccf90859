"""Names that can be typed at the command line, found without importing anything heavy: Tab must not wait."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

PACKAGE = Path(__file__).parent.parent
TABLES = (".csv", ".csv.gz", ".npy", ".parquet", ".pq")

MODELS = {
    "gaussian-mixture": "GaussianMixture",
    "factor-analysis": "FactorAnalysis",
    "probabilistic-pca": "ProbabilisticPCA",
    "multinomial-mixture": "MultinomialMixture",
    "poisson-mixture": "PoissonMixture",
    "bernoulli-mixture": "BernoulliMixture",
    "bayesian-mixture": "BayesianGaussianMixture",
    "bayesian-multinomial-mixture": "BayesianMultinomialMixture",
    "bayesian-factor-analysis": "BayesianFactorAnalysis",
    "autoencoder": "VariationalAutoencoder",
}
"""Each model and the class that fits it."""


@cache
def load_catalogue() -> dict[str, dict[str, Any]]:
    """What is bundled, as :data:`boxloop.data.datasets.CATALOGUE` has it; importing that takes a second."""
    return tomllib.loads((PACKAGE / "data" / "datasets.toml").read_text(encoding="utf-8"))


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundled names, and tables and folders here; whatever the shell finds where none of them fits."""
    found = [
        CompletionItem(name, help=facts["what"])
        for name, facts in load_catalogue().items()
        if name.startswith(incomplete)
    ]
    return _fall_back_to_shell([*found, *_complete_files(incomplete, TABLES)], incomplete)


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of models, and model files and folders here; whatever the shell finds where none of them fits."""
    found = [CompletionItem(name) for name in MODELS if name.startswith(incomplete)]
    return _fall_back_to_shell([*found, *_complete_files(incomplete, (".boxloop",))], incomplete)


def _complete_files(incomplete: str, ends: tuple[str, ...]) -> list[CompletionItem]:
    """Files with these ends, and folders, of this folder."""
    paths = sorted(p for p in Path.cwd().iterdir() if p.name.startswith(incomplete) and p.name[0] != ".")
    folders = [CompletionItem(f"{p.name}/") for p in paths if p.is_dir()]
    return [CompletionItem(p.name) for p in paths if p.name.lower().endswith(ends)] + folders


def _fall_back_to_shell(found: list[CompletionItem], incomplete: str) -> list[CompletionItem]:
    """What was found, else the shell's own completion of files, which knows other folders."""
    return found or [CompletionItem(incomplete, type="file")]
