"""Peak memory of a mixture fit to files larger than its limit.

Writes a Parquet and a ``.npy`` file of ``--gb`` GiB each, then runs ``job`` over each in a child process whose
private memory the kernel limits (``RLIMIT_DATA``: heap, stacks and anonymous maps; maps of files are not in it).
What is reported is the peak of all resident memory: interpreter, libraries, file pages mapped at one time and
data. It is ``VmHWM``, since ``ru_maxrss`` of a child starts at what its parent held. As a control, the same job
with the file held whole must fail under the same limit. Linux only.

    python benchmarks/bench_memory.py --gb 4
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 16
BATCH = 1 << 20
MIB = 1 << 20


def job(path: Path, memory: int) -> dict[str, object]:
    """What is measured: a whole mixture fit, from the survey of the columns to the last EM iteration."""
    import torch

    from boxloop import GaussianMixture
    from boxloop.data import open_source

    before = peak_mib()
    source = open_source(path, memory=memory)
    fit = GaussianMixture(2, random_state=0, max_iter=4, tol=0.0).fit(source)
    mean, covariance = fit.model_.moments()
    second = covariance.dense()[0] + mean[:, None] * mean
    return {
        "source": type(source).__name__,
        "rows": source.n_rows,
        "log_likelihood": fit.lower_bounds_,
        "second": second.tolist(),
        "threads": torch.get_num_threads(),
        "imports_mib": before,
    }


def write_files(folder: Path, gigabytes: float) -> tuple[dict[str, Path], np.ndarray]:
    """The same two clusters as Parquet and ``.npy``, a batch at a time; and their second moments."""
    import pyarrow as pa
    from pyarrow import parquet

    n_rows = int(gigabytes * 1024 * MIB) // (8 * COLUMNS)
    files = {"parquet": folder / "rows.parquet", "npy": folder / "rows.npy"}
    names = [f"x{j}" for j in range(COLUMNS)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    rng, second = np.random.default_rng(0), np.zeros((COLUMNS, COLUMNS))
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, COLUMNS)}
    with (
        parquet.ParquetWriter(files["parquet"], schema, use_dictionary=False) as out,
        files["npy"].open("wb") as raw,
    ):
        np.lib.format.write_array_header_1_0(raw, header)
        for start in range(0, n_rows, BATCH):
            size = min(BATCH, n_rows - start)
            rows = rng.standard_normal((size, COLUMNS)) + 3.0 * rng.integers(2, size=(size, 1))
            second += rows.T @ rows
            out.write_table(pa.table(list(np.asfortranarray(rows).T), schema=schema))
            rows.tofile(raw)
    return files, second / n_rows


def child(path: Path, limit: int, memory: int) -> None:
    """Run the job under the limit and print what it took."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    start = time.perf_counter()
    result = job(path, memory)
    result["seconds"] = round(time.perf_counter() - start, 2)
    result["peak_mib"] = peak_mib()
    print(json.dumps(result))


def peak_mib() -> float:
    """Most resident memory that this process has had."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def measure(path: Path, limit: int, expected: np.ndarray) -> dict[str, object]:
    """One file: the job in a child process, and the control that must not survive."""
    command = [sys.executable, __file__, "--child", str(path), "--limit-mib", str(limit // MIB)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    # After an M step with full covariances the mixture's second moment is that of the rows, exactly.
    error = np.abs(np.array(found.pop("second")) / expected - 1).max()
    control = subprocess.run([*command, "--whole"], capture_output=True, text=True, check=False)
    said = control.stderr.strip().splitlines()[-1:] or [""]
    return {
        "file_gib": round(path.stat().st_size / 1024**3, 3),
        **found,
        "second_moment_error": float(error),
        "whole_file_fails": control.returncode != 0,
        "whole_file_says": said[0][:120],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=4.0, help="GiB of float64 in each file")
    parser.add_argument("--limit-mib", type=int, default=1024, help="private memory of the child process")
    parser.add_argument("--folder", type=Path, help="where the files are written and deleted again")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = options.limit_mib * MIB
    if options.child:
        child(options.child, limit, 1 << 62 if options.whole else 0)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files, second = write_files(Path(folder), options.gb)
        report = {kind: measure(path, limit, second) for kind, path in files.items()}
    text = json.dumps({"limit_mib": options.limit_mib, **report}, indent=2)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "memory.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
