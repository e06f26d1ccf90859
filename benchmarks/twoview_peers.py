"""The deep case and conditional means of the two-view benchmark: same rows, same networks, same time."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn

from boxloop import RelevantFeatures
from boxloop.twoview import CanonicalVariables, MomentSums

VARIABLES, WIDTH, RATE = 20, 256, 1e-3
BATCH = 10 * (VARIABLES + 1)


def found_peer(name: str) -> ModuleType | None:
    """A module, if it is there with all that it needs."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        print(f"{name} is not there ({missing}): ours alone")
        return None


def network(columns: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)  # of the peers' start, which takes no generator
    return nn.Sequential(
        nn.Linear(columns, WIDTH),
        nn.SiLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.SiLU(),
        nn.Linear(WIDTH, VARIABLES),
        nn.Tanh(),
    )


class Rows:
    """Both views in float32, standardised by the rows of the fit, a sixth held out."""

    def __init__(self, X: np.ndarray, Y: np.ndarray) -> None:
        cut = 5 * len(X) // 6
        self.raw = (X[:cut], Y[:cut]), (X[cut:], Y[cut:])
        self.train, self.test = [], []
        for view in (X, Y):
            mean, size = view[:cut].mean(0), view[:cut].std(0)
            scaled = torch.from_numpy((view - mean) / np.where(size > 0.0, size, 1.0)).float()
            self.train.append(scaled[:cut])
            self.test.append(scaled[cut:])


def total(one: Tensor, two: Tensor) -> float:
    """Sum over pairs of variables of their correlations."""
    a, b = one - one.mean(0), two - two.mean(0)
    return float(((a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt()).sum())


@torch.no_grad()
def held_out(encoders: list[nn.Module], rows: Rows) -> float:
    """Canonical variables of encodings of the rows of the fit, correlated on the rows held out."""
    seen = [encoder(part).double() for encoder, part in zip(encoders, rows.train)]
    fresh = [encoder(part).double() for encoder, part in zip(encoders, rows.test)]
    sums = MomentSums.of_features(torch.cat(seen, 1), torch.ones(len(seen[0]), dtype=torch.float64))
    solved = CanonicalVariables.solve(sums, VARIABLES, VARIABLES)
    return total((fresh[0] - solved.left_mean) @ solved.left, (fresh[1] - solved.right_mean) @ solved.right)


def ours(rows: Rows, passes: int) -> tuple[float, float]:
    (X, Y), (x, y) = rows.raw
    fit = RelevantFeatures(
        VARIABLES,
        x_features=network(X.shape[1], 0),
        y_features=network(Y.shape[1], 1),
        learning_rate=RATE,
        batch_size=BATCH,
        max_iter=passes,
        patience=None,
        validation_fraction=0.0,
        random_state=0,
    )
    begin = time.perf_counter()
    fit.fit(X, Y)
    seconds = time.perf_counter() - begin
    u, v = fit.transform(x, y)
    return seconds, total(torch.as_tensor(np.asarray(u)), torch.as_tensor(np.asarray(v)))


def lightning(rows: Rows, seconds: float) -> tuple[float, float, float]:
    """cca-zoo's own DCCA with lightning's trainer and its own data set, stopped by the clock."""
    peer, trainers = importlib.import_module("cca_zoo.deep"), importlib.import_module("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    encoders = [network(part.shape[1], i) for i, part in enumerate(rows.train)]
    model = peer.DCCA(n_components=VARIABLES, encoders=encoders, learning_rate=RATE)
    stored = peer.MultiviewDataset([part.numpy() for part in rows.train])
    loader = torch.utils.data.DataLoader(stored, batch_size=BATCH, shuffle=True, drop_last=True)
    trainer = trainers.Trainer(
        max_epochs=-1,
        max_time={"seconds": seconds},
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    begin = time.perf_counter()
    trainer.fit(model, loader)
    spent = time.perf_counter() - begin
    return spent, trainer.global_step / len(loader), held_out(encoders, rows)


def bare(rows: Rows, seconds: float) -> tuple[float, float, float]:
    """cca-zoo's loss in the plainest loop: no trainer, batches by indexing."""
    criterion = importlib.import_module("cca_zoo.deep.objectives").CCALoss()
    encoders = [network(part.shape[1], i) for i, part in enumerate(rows.train)]
    optimiser = torch.optim.Adam([p for encoder in encoders for p in encoder.parameters()], lr=RATE)
    n, steps, begin = len(rows.train[0]), 0, time.perf_counter()
    per_pass = n // BATCH
    while time.perf_counter() - begin < seconds:
        if steps % per_pass == 0:
            order = torch.randperm(n)
        some = order[BATCH * (steps % per_pass) :][:BATCH]
        optimiser.zero_grad()
        criterion([encoder(part[some]) for encoder, part in zip(encoders, rows.train)]).backward()
        optimiser.step()
        steps += 1
    return time.perf_counter() - begin, steps / per_pass, held_out(encoders, rows)


def deep(X: np.ndarray, Y: np.ndarray, passes: int) -> list[dict]:
    """Total correlation on rows held out, each peer given the time that ours took."""
    rows = Rows(X, Y)
    seconds, score = ours(rows, passes)
    case = f"deep, n={len(rows.train[0])} network={WIDTH}-{WIDTH}-{VARIABLES} batch={BATCH}"
    found = [{"case": case, "who": "boxloop", "seconds": seconds, "passes": float(passes), "held_out": score}]
    for who, module, run in (
        ("cca-zoo DCCA", "lightning.pytorch", lightning),
        ("cca-zoo's loss, bare loop", "cca_zoo.deep.objectives", bare),
    ):
        if found_peer("cca_zoo.deep") is None or found_peer(module) is None:
            continue
        spent, done, value = run(rows, seconds)
        found.append({"case": case, "who": who, "seconds": spent, "passes": done, "held_out": value})
    return found


def means(X: np.ndarray, Y: np.ndarray, quick: bool) -> list[dict]:
    """Mean squared error of the second view inferred from the first on rows held out, and the time to get there."""
    (X, Y), (x, y) = Rows(X, Y).raw
    passes = 3 if quick else 60
    candidates: dict[str, Callable[[], object]] = {
        "boxloop, linear": lambda: RelevantFeatures(50, x_features="linear", y_features="linear"),
        "boxloop, fourier": lambda: RelevantFeatures(
            50, x_features="fourier", y_features="fourier", n_fourier=200 if quick else 800, random_state=0
        ),
        "boxloop, network": lambda: RelevantFeatures(50, max_iter=passes, random_state=0),
        "ridge": lambda: RidgeCV(np.logspace(-2, 4, 13)),
        "random forest": lambda: RandomForestRegressor(
            10 if quick else 50, max_features="sqrt", min_samples_leaf=2, random_state=0
        ),
        "MLP regression": lambda: MLPRegressor(
            hidden_layer_sizes=(256, 256), early_stopping=True, max_iter=passes, random_state=0
        ),
    }
    found = []
    for who, make in candidates.items():
        begin = time.perf_counter()
        fit = make().fit(X, Y)
        seconds = time.perf_counter() - begin
        wrong = float(np.square(np.asarray(fit.predict(x)) - y).mean())
        found.append({"case": f"means, n={len(X)}", "who": who, "seconds": seconds, "error": wrong})
    base = float(np.square(Y.mean(0) - y).mean())
    return [{**row, "of_column_means": row["error"] / base} for row in found]
