"""Install the oldest releases that pyproject.toml allows, all of them together, and run a choice of fast tests on them.

torch is the one of constraints.txt: the package index has its oldest release with CUDA alone, gigabytes of it.

Usage: python tests/wheel/run_oldest.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("arviz", "dask", "polars", "test")
TESTS = (
    "cli/test_usage.py",
    "criticise/test_calibration.py",
    "data/test_csv.py",
    "data/test_dask.py",
    "data/test_frames.py",
    "data/test_parquet.py",
    "fit/test_em.py",
    "estimators/test_files.py",
    "figures/test_pictures.py",
    "numeric/test_threads.py",
    "sample/test_draws.py",
    "select/test_compare.py",
    "test_import.py",
)


def oldest(requirements: Iterable[str]) -> Iterator[str]:
    """``name>=1.2`` as ``name==1.2``; what has no lower bound, or is part of the project, is left out."""
    for requirement in requirements:
        bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement)
        if bound and bound[1] != "torch":
            yield f"{bound[1]}=={bound[2]}"


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pins = list(oldest([*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]))
    print(*pins, flush=True)
    with TemporaryDirectory(prefix="boxloop-oldest-") as name:
        folder = Path(name)
        (folder / "oldest.txt").write_text("\n".join(pins) + "\n")
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--no-compile"]
        limits = ["-c", ROOT / "constraints.txt", "-c", folder / "oldest.txt"]
        subprocess.run([*pip, *limits, f"{ROOT}[{','.join(EXTRAS)}]"], check=True)
        tests = [ROOT / "tests" / path for path in TESTS]
        # Releases of one year warn of what those of another deprecate: warnings are no errors here.
        words = [
            "-m",
            "pytest",
            "-m",
            "not slow",
            "-o",
            "filterwarnings=default",
            "-W",
            "ignore::DeprecationWarning",
        ]
        return subprocess.run([python, *words, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
