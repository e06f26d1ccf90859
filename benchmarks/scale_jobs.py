"""Tables of any length, written batch by batch, and one pass of several models over them.

What a job summed is held against the moments that the writer added up: the mean and the variances of a mixture after
an M step, of a factor model and on the data's side of a moment gap are those of the rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from boxloop import FactorAnalysis, compare, mega
from boxloop.data import ArraySource, StandardisedSource, fit_standardisation, open_source
from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import Mixture
from boxloop.types import Source

FILE_ROWS, GROUP_ROWS = 1 << 23, 1 << 18
CLOSE, SETTLED = 1e-9, 1e-6
"""Largest difference, in standard deviations, between what a job and the writer summed; and for a factor model,
whose variances are those of the rows when its iterations have settled."""


def centres(k: int, d: int) -> torch.Tensor:
    """Where k clusters lie, (k, d)."""
    return torch.from_numpy(2.0 * np.random.default_rng(k * 1000 + d).normal(size=(k, d)))


def write_rows(
    folder: Path, n: int, d: int, k: int = 8, group_rows: int = GROUP_ROWS, file_rows: int = FILE_ROWS
) -> Path:
    """n rows of k clusters as float32 Parquet, one row group in memory at a time, with their moments beside."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    schema = pa.schema([(f"x{j}", pa.float32()) for j in range(d)])
    rng, centre = np.random.default_rng(0), centres(k, d).numpy().astype(np.float32)
    first, second = np.zeros(d), np.zeros((d, d))
    for number, begin in enumerate(range(0, n, file_rows)):
        end = min(n, begin + file_rows)
        with parquet.ParquetWriter(folder / f"part-{number:04}.parquet", schema, use_dictionary=False) as out:
            for start in range(begin, end, group_rows):
                size = min(group_rows, end - start)
                rows = rng.standard_normal((d, size), dtype=np.float32)
                rows += centre.T[:, rng.integers(k, size=size)]
                wide = rows.astype(np.float64)
                first += wide.sum(1)
                second += wide @ wide.T
                out.write_table(pa.table(list(rows), schema=schema))
    mean = first / n
    moments = {"mean": mean.tolist(), "covariance": (second / n - np.outer(mean, mean)).tolist()}
    (folder / "_moments.json").write_text(json.dumps(moments))
    return folder


def size_of(folder: Path) -> int:
    """Bytes of its Parquet files."""
    return sum(file.stat().st_size for file in folder.glob("*.parquet"))


def mixture(kind: str, k: int, d: int) -> Mixture:
    """A mixture at the clusters, in the coordinates of the rows."""
    mean = centres(k, d)
    log_weight = torch.full((k,), 1.0 / k, dtype=torch.float64).log()
    if kind == "diag":
        return Mixture(log_weight, DiagonalGaussian(mean, torch.ones_like(mean)))
    eye = torch.eye(d, dtype=torch.float64).expand(k, d, d).contiguous()
    return Mixture(log_weight, FullGaussian(mean, eye))


def standard(source: Source, kind: str, k: int, dtype: torch.dtype = torch.float64) -> tuple[Source, Mixture]:
    """Rows in the coordinates of a fit, which its first pass finds; here the first rows are enough."""
    head, _ = next(iter(source.chunks(10_000)))
    frame = fit_standardisation(ArraySource(head.clone()))
    model = mixture(kind, k, source.n_columns).affine(-frame.origin / frame.scale, 1.0 / frame.scale)
    return StandardisedSource(source, frame, dtype), model


def one_iteration(source: Source, kind: str, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a mixture after one EM iteration over all rows."""
    seen, model = standard(source, kind, k)
    fitted = run(em(seen), EMState(model), max_iter=1).state.model
    frame = seen.frame
    mean, covariance = fitted.affine(frame.origin, frame.scale).moments()
    return mean, covariance.dense()[0] if kind == "full" else covariance.diagonal()[0].diag()


def read(source: Source) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Every value once, and nothing done with it but a sum of each tile's first row."""
    total = sum(rows[0].double() * 0.0 + rows.shape[0] for rows, _ in source.chunks())
    return total, None


def surveyed(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    frame = fit_standardisation(source)
    return frame.origin, frame.scale.square().diag()


def factors(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    """A whole factor analysis: one pass for the moments, then iterations on them."""
    fitted = FactorAnalysis(1).fit(source)
    mean, covariance = fitted.model_.moments()
    return mean, covariance.diagonal()[0].diag()


def gaps(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    """Moment gaps with errors of a mixture that was not fitted to these rows."""
    model = mixture("full", 8, source.n_columns)
    first, second = (gap.data for gap in mega(model, source, draws=0).gaps)
    apart = first - model.moments()[0]  # second moments are about the model's mean
    return first, second - apart[:, None] * apart


def compared(source: Source) -> tuple[torch.Tensor, None]:
    """Two factor models that were not fitted to these rows, with the error of their difference on all of them."""
    d = source.n_columns
    models = {f"{k}": FactorAnalysis(k).fit_covariance(5.0 * np.eye(d) + 1.0, n_samples=1000) for k in (1, 2)}
    return torch.tensor([compare(models, source).n_rows]), None


JOBS: dict[str, Callable[[Source], tuple[torch.Tensor, torch.Tensor | None]]] = {
    "read only": read,
    "survey": surveyed,
    "mixture, diagonal": lambda source: one_iteration(source, "diag", 8),
    "mixture, full": lambda source: one_iteration(source, "full", 8),
    "factor analysis": factors,
    "moment gaps": gaps,
    "comparison": compared,
}


def timed_job(name: str, folder: Path, warm: Path, repeats: int) -> dict[str, float]:
    """Best time of a job over a folder that is read anew each time, and how far its moments are off."""
    torch.set_grad_enabled(False)
    job = JOBS[name]
    job(open_source(warm, memory=0))
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        source = open_source(folder, memory=0)
        found = job(source)
        best = min(best, time.perf_counter() - begin)
    return {"seconds": best, "off": off(found, folder, source.n_rows)}


def off(found: tuple[torch.Tensor, torch.Tensor | None], folder: Path, n: int) -> float:
    """Largest difference between moments found and written, in standard deviations."""
    mean, covariance = found
    if covariance is None:
        return float((mean / n - 1.0).abs().max())
    written = json.loads((folder / "_moments.json").read_text())
    right = torch.tensor(written["covariance"], dtype=torch.float64)
    spread = right.diagonal().sqrt()
    diagonal = bool((covariance == covariance.diagonal().diag()).all())
    right = right.diagonal().diag() if diagonal else right
    return max(
        float(((mean - torch.tensor(written["mean"], dtype=torch.float64)) / spread).abs().max()),
        float(((covariance - right) / torch.outer(spread, spread)).abs().max()),
    )
