"""A training step of a variational autoencoder, against the loop that one writes by hand in PyTorch.

The same networks, batches, optimiser and number of steps: given the loop's own modules boxloop must end at its bound,
within noise. Its default networks start from the columns' means, and end higher. The floor
is the arithmetic of the linear layers, forward and twice backward, at the rate of a large matrix product.

    python benchmarks/bench_autoencoder.py [--device cuda]
"""

from __future__ import annotations

import argparse
import copy
import warnings
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from boxloop import VariationalAutoencoder
from common import gemm_rate, interleave, report

N, BATCH, CODES, PASSES = 5120, 256, 20, 10
STEPS = PASSES * N // BATCH


def images() -> torch.Tensor:
    """Blurred random bars, 28 x 28, in [0, 1]: something to learn."""
    rng = np.random.default_rng(0)
    rows = np.zeros((N, 28, 28))
    for row in rows:
        for _ in range(3):
            i, j = rng.integers(4, 24, size=2)
            row[i - 3 : i + 3, j - 1 : j + 1] = 1.0
    return torch.from_numpy(rows.reshape(N, 784)).float()


class Loop:
    """Encoder, decoder, loss, optimiser and loop, written by hand."""

    def __init__(self, rows: torch.Tensor, hidden: tuple[int, ...]) -> None:
        self.rows, device = rows, rows.device
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = _layers(784, hidden, 2 * CODES).to(device)
            self.decoder = _layers(CODES, hidden[::-1], 784).to(device)
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)

    def train(self) -> float:
        """The mean bound of the last pass."""
        bounds = []
        for _ in range(PASSES):
            bounds = []
            for some in torch.randperm(N, device=self.rows.device).split(BATCH):
                x = self.rows[some]
                mean, level = self.encoder(x).chunk(2, 1)
                z = mean + (0.5 * level).exp() * torch.randn_like(mean)
                fit = functional.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="sum")
                far = 0.5 * (mean.square() + level.exp() - level - 1.0).sum()
                loss = (fit + far) / len(x)
                self.optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), 100.0)
                self.optimiser.step()
                bounds.append(-loss.detach())
        return float(torch.stack(bounds).mean())


def _layers(columns: int, hidden: tuple[int, ...], out: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for width in hidden:
        parts += [nn.Linear(columns, width), nn.SiLU()]
        columns = width
    return nn.Sequential(*parts, nn.Linear(columns, out))


def ours(rows: torch.Tensor, hidden: tuple[int, ...], **more: object) -> VariationalAutoencoder:
    """The estimator with the same networks and as many steps."""
    network = VariationalAutoencoder(
        CODES,
        hidden=hidden,
        likelihood="bernoulli",
        batch_size=BATCH,
        max_iter=PASSES,
        patience=None,
        validation_fraction=0.0,
        random_state=0,
        device=rows.device.type,
        **more,
    )
    return network.fit(rows.cpu().numpy())


def one_case(device: str, hidden: tuple[int, ...]) -> dict:
    """Milliseconds a step."""
    rows = images().to(device)
    start = Loop(rows, hidden)
    same = ours(rows, hidden, encoder=copy.deepcopy(start.encoder), decoder=copy.deepcopy(start.decoder))
    theirs, found = start.train(), same.history_["elbo"][-1]
    assert abs(theirs - found) < 0.03 * abs(theirs), (theirs, found)
    best = interleave(
        {
            "loop": lambda: Loop(rows, hidden).train(),
            "same": lambda: ours(
                rows, hidden, encoder=copy.deepcopy(start.encoder), decoder=copy.deepcopy(start.decoder)
            ),
            "boxloop": lambda: ours(rows, hidden),
        },
        3,
    )
    sizes = [784, *hidden, 2 * CODES], [CODES, *hidden[::-1], 784]
    work = 6.0 * BATCH * sum(a * b for chain in sizes for a, b in pairwise(chain))
    row = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread",
        "hidden": "-".join(map(str, hidden)),
        "bound, loop": theirs,
        "bound, same modules": found,
        "bound, boxloop": ours(rows, hidden).history_["elbo"][-1],
        "loop ms": 1e3 * best["loop"] / STEPS,
        "same modules ms": 1e3 * best["same"] / STEPS,
        "boxloop ms": 1e3 * best["boxloop"] / STEPS,
        "ratio, same modules": best["loop"] / best["same"],
        "ratio": best["loop"] / best["boxloop"],
    }
    if device == "cpu":
        row["of the floor"] = work / gemm_rate("float32") / (best["boxloop"] / STEPS)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    warnings.simplefilter("ignore")
    rows = [one_case(device, hidden) for hidden in ((128,), (512, 256))]
    report("autoencoder" if device == "cpu" else "autoencoder_cuda", rows)


if __name__ == "__main__":
    main()
