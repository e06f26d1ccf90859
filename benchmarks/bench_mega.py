"""The moment penalty of Beaulac (2023) at the size of its section 8.3: forward, and forward with backward.

Peers are the published form (an m x d x d tensor, in chunks) and one matrix product under autograd. All must give the
same value and the same gradient first.

    python benchmarks/bench_mega.py [--quick] [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import torch

from boxloop.criticise import MomentPenalty, PriorAndEmission, fused_moment_gap
from boxloop.distributions import DiagonalGaussian
from boxloop.numeric import column_means, generator
from common import gemm_rate, interleave, report

TARGETS = {
    ("float32", False): 50.0,
    ("float32", True): 116.0,
    ("float64", False): 102.0,
    ("float64", True): 249.0,
}
CHUNK = 16


def finish(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return first.norm() + (torch.linalg.matrix_norm(second) + 1e-12).sqrt()


def published(rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Outer products of every node, as the document's code forms them, in chunks that fit."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype, device=rows.device)
    for start in range(0, len(mean), CHUNK):
        m, v = mean[start : start + CHUNK], variance[start : start + CHUNK]
        total = total + (m[:, :, None] * m[:, None, :] + torch.diag_embed(v)).sum(0)
    data = (rows[:, :, None] * rows[:, None, :]).mean(0) if len(rows) <= CHUNK else rows.mT @ rows / len(rows)
    return finish(rows.mean(0) - mean.mean(0), data - total / len(mean))


def product(rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """One matrix product, differentiated by autograd."""
    second = mean.mT @ mean / len(mean) + torch.diag(variance.mean(0))
    return finish(rows.mean(0) - mean.mean(0), rows.mT @ rows / len(rows) - second)


def ours(rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros(1, 1, dtype=rows.dtype, device=rows.device)
    model = PriorAndEmission(DiagonalGaussian(zero, zero + 1), lambda z: DiagonalGaussian(mean, variance))
    return MomentPenalty(1.0, nodes=8, method="monte_carlo").gap(model, rows, generator(0, rows.device))


def one_case(
    d: int, m: int, n: int, dtype: str, backward: bool, repeats: int, device: str, slow: bool
) -> dict:
    stream = generator(0)
    kind = getattr(torch, dtype)
    rows, mean, variance = (
        torch.rand(size, d, generator=stream, dtype=torch.float64).to(device, kind) for size in (n, m, m)
    )
    mean.requires_grad_(backward)
    variance.requires_grad_(backward)

    def job(function):
        value = function(rows, mean, variance)
        if backward:
            mean.grad = variance.grad = None
            value.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return float(value.detach()), (mean.grad.clone() if backward else None)

    value, slope = job(product)
    mine, my_slope = job(ours)
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    assert abs(mine - value) <= tolerance * abs(value), (mine, value)
    assert slope is None or float((my_slope - slope).norm()) <= 100 * tolerance * float(slope.norm())
    times = interleave({"product": lambda: job(product), "ours": lambda: job(ours)}, repeats)
    row = {
        "case": f"d={d} m={m} n={n} {dtype} {'forward + backward' if backward else 'forward'} {device}",
        "peer": "matrix product, autograd",
        "peer_ms": 1e3 * times["product"],
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["product"] / times["ours"],
        "target_ms": TARGETS[dtype, backward] if device == "cpu" else None,
    }
    if slow:
        begin = time.perf_counter()
        job(published)
        row["published_ms"] = 1e3 * (time.perf_counter() - begin)
    if device == "cpu":
        flops = (m + n) * d * d * (3.0 if backward else 1.0)
        row["floor_ms"] = 1e3 * flops / gemm_rate(dtype)
        row["of_floor"] = row["floor_ms"] / row["ours_ms"]
    return row


def in_a_row(d: int, m: int, n: int, dtype: str, evaluations: int) -> list[dict]:
    """Penalties with gradients on a GPU one after the other, waited for once: as a trainer sees them.

    Twice: started from Python, and replayed from a CUDA graph, as a trainer that captures its step does.
    """
    stream, kind = generator(0), getattr(torch, dtype)
    rows, mean, variance = (
        torch.rand(size, d, generator=stream, dtype=torch.float64).to("cuda", kind) for size in (n, m, m)
    )
    mean.requires_grad_()
    variance.requires_grad_()

    def peer() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(product(rows, mean, variance), (mean, variance))

    def ours() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(fused_moment_gap(rows, mean, column_means(variance)), (mean, variance))

    def many(step) -> None:
        for _ in range(evaluations):
            step()
        torch.cuda.synchronize()

    graphs = {name: captured(step) for name, step in (("peer", peer), ("ours", ours))}
    cases = {"from Python": {"peer": peer, "ours": ours}}
    cases["from a CUDA graph"] = {name: graph.replay for name, (graph, _) in graphs.items()}
    graphs["ours"][0].replay()
    for made, wanted in zip(graphs["ours"][1], peer(), strict=True):
        assert float((made - wanted).norm()) <= (1e-9 if dtype == "float64" else 1e-3) * float(wanted.norm())
    result = []
    for how, steps in cases.items():
        times = interleave({name: lambda step=step: many(step) for name, step in steps.items()}, 5)
        result.append(
            {
                "case": f"{evaluations} penalties with gradient {how}, d={d} m={m} n={n} {dtype} cuda",
                "peer": f"matrix product, autograd, {how}",
                "peer_ms": 1e3 * times["peer"],
                "ours_ms": 1e3 * times["ours"],
                "ratio": times["peer"] / times["ours"],
                "target_ms": 200.0,
            }
        )
    return result


def captured(step):
    """A CUDA graph of one call, and the tensors that its replay fills."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made


def decoder(d: int, latent: int = 8) -> tuple[list[torch.Tensor], callable]:
    """A fixed random network from a latent normal to d means and variances, in float32."""
    stream = generator(1)
    sizes = [(latent, 64), (64, 2 * d)]
    weights = [(torch.randn(*size, generator=stream) / size[0] ** 0.5).requires_grad_() for size in sizes]

    def emission(z: torch.Tensor) -> DiagonalGaussian:
        mean, log_variance = (torch.tanh(z @ weights[0]) @ weights[1]).chunk(2, dim=1)
        return DiagonalGaussian(torch.sigmoid(mean), (log_variance - 2).exp())

    return weights, emission


def equal_error(d: int, m: int, n: int, evaluations: int, repeats: int = 8) -> dict:
    """500 penalties with gradients at the Monte Carlo error of m plain draws, by fewer scrambled Sobol nodes."""
    from boxloop.criticise import draw_latent_nodes, second_moment

    weights, emission = decoder(d)
    zero = torch.zeros(1, 8)
    prior = DiagonalGaussian(zero, zero + 1)
    model = PriorAndEmission(prior, emission)

    @torch.no_grad()
    def moment(size: int, seed: int, quasi: bool) -> torch.Tensor:
        blocks = draw_latent_nodes(prior, size, generator(seed), quasi=quasi)
        return sum(second_moment(emission(z.float())) * (len(z) / size) for z in blocks)

    reference = sum(moment(1 << 15, 100 + i, True).double() for i in range(4)) / 4

    def error(size: int, quasi: bool) -> float:
        found = [float((moment(size, seed, quasi) - reference).square().sum()) for seed in range(repeats)]
        return (sum(found) / repeats) ** 0.5

    plain = error(m, quasi=False)
    nodes = next(size for size in (64, 128, 256, 512, 1024, 2048, 4096) if error(size, quasi=True) <= plain)
    rows, stream = torch.rand(n, d, generator=generator(0)), generator(2)

    def run_all(penalty: MomentPenalty, times: int) -> None:
        for _ in range(times):
            for weight in weights:
                weight.grad = None
            penalty(model, rows, stream).backward()

    jobs = {
        "peer": lambda: run_all(MomentPenalty(1.0, m, "monte_carlo"), evaluations // 10),
        "ours": lambda: run_all(MomentPenalty(1.0, nodes, "sobol"), evaluations // 10),
    }
    times = interleave(jobs, 3)
    return {
        "case": f"{evaluations} penalties with gradient, decoder to d={d}, {nodes} Sobol nodes at equal error",
        "peer": f"{m} plain draws",
        "peer_ms": 1e4 * times["peer"],
        "ours_ms": 1e4 * times["ours"],
        "ratio": times["peer"] / times["ours"],
        "target_ms": 15_000.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    d, m, n = (64, 200, 20) if options.quick else (784, 5000, 250)
    rows = [
        one_case(d, m, n, dtype, backward, 5, options.device, slow=dtype == "float32")
        for dtype in ("float32", "float64")
        for backward in (False, True)
    ]
    if options.device == "cpu":
        rows.append(equal_error(d, m, n, 10 if options.quick else 500))
    else:
        rows += [row for dtype in ("float32", "float64") for row in in_a_row(d, m, n, dtype, 500)]
    report("mega" if options.device == "cpu" else "mega_cuda", rows)


if __name__ == "__main__":
    main()
