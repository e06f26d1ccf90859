"""Build the wheel, install it without extras into a fresh environment, and run all that the README shows there.

Every Python block runs, in one process and in order, then every ``boxloop`` command. They stand where a user does:
nothing of the repository on the path, no variables for threads, and a temporary folder to work in. So does the code in
the table of tasks. What needs an extra must fail before it does anything, and name the extra.

The commands find four tables, all from the bundled irises, shuffled, as height, weight, length and price:
``data.csv`` with 100 flowers, ``held.csv`` with the other 50, ``ordinary.csv`` with the setosas among the 100 and
``new.csv`` with the 50 again. ``folder`` holds a table as well.

Usage: python tests/wheel/run_readme.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
WITH_EXTRAS = {
    "boxloop fit folder --model gaussian-mixture -k 2 --workers 8 -o shared.boxloop": "boxloop[dask]"
}
"""A command of the README's prose, with the model it leaves out, and the extra that it needs."""

sys.path.insert(0, str(ROOT / "tests"))
from docs.blocks import README_NAMES, blocks, commands, run_block, table_code  # noqa: E402


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took, and whether it ended as it should."""
    start, end = time.perf_counter(), "failed"
    try:
        yield
        end = "passed"
    finally:
        print(f"{time.perf_counter() - start:7.1f} s  {end}  {what}", flush=True)


def environment(home: Path) -> dict[str, str]:
    """The caller's variables without those of threads and of Python; what libraries keep at home stays in ``home``."""
    ours = re.compile(r"\w+_NUM_THREADS|PYTHON\w*|VIRTUAL_ENV|XDG_\w+|MPLCONFIGDIR|COLUMNS")
    return {name: value for name, value in os.environ.items() if not ours.fullmatch(name)} | {
        "HOME": str(home),
        "TMPDIR": str(home),
    }


def install(folder: Path) -> Path:
    """Build the wheel and install it with what it needs; return the environment's folder of programs."""
    pip = ["-m", "pip", "-qq", "--disable-pip-version-check"]
    with timed("build the wheel"):
        call(sys.executable, *pip, "wheel", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    with timed("install it into a fresh environment, without extras"):
        call(sys.executable, "-m", "venv", folder / "venv")
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        constraints = ROOT / "constraints.txt"
        # Bytecode is made as it is needed: for all of torch it would take longer than the rest.
        call(programs / "python", *pip, "install", "--no-compile", "-c", constraints, wheel)
    return programs


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def needed_extra(text: str) -> str | None:
    """The extra that a block or a command says it needs, where it is not there."""
    named = re.search(r"boxloop\[(\w+)\]", text)
    return None if named is None else named[0]


def run_readme_blocks() -> int:
    """Run the README's blocks in this process; return how many did not end as they should."""
    import boxloop

    assert ROOT not in Path(boxloop.__file__).parents, f"{boxloop.__file__} is not the wheel's"
    names: dict[str, object] = {"__name__": "readme"}
    failures = 0
    for line, block in blocks(README.read_text(encoding="utf-8")):
        extra = needed_extra(block)
        what = f"README.md, block at line {line + 1}" + (f", without {extra}" if extra else "")
        run = refuse_block if extra else run_block
        failures += attempt(what, lambda: run(README, line, block, names))  # noqa: B023
    exec(README_NAMES, names)
    for code in table_code(README.read_text(encoding="utf-8")):
        failures += attempt(code, lambda: eval(code, names))  # noqa: B023
    return failures


def refuse_block(page: Path, line: int, block: str, names: dict[str, object]) -> None:
    """A block whose extra is not there must end at its first statement, an import of what the extra brings."""
    before, missing = set(names), None
    try:
        run_block(page, line, block, names)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
    assert missing is not None, f"it ran without {needed_extra(block)}: is the extra needed?"
    assert f"boxloop[{missing}]" == needed_extra(block), f"it lacks {missing}"
    assert set(names) == before, "work was done before the missing extra was noticed"


def attempt(what: str, run: Callable[[], None]) -> int:
    """1 where something raised, with its traceback; 0 else."""
    try:
        with timed(what):
            run()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def write_tables() -> None:
    """The files that the README's commands name."""
    import numpy as np

    from boxloop.data import load_dataset, write_table

    irises, order = load_dataset("iris"), np.random.default_rng(0).permutation(150)
    rows, setosa = irises.rows[order], irises.target[order] == 0
    tables = {"data": rows[:100], "held": rows[100:], "ordinary": rows[:100][setosa[:100]], "new": rows[100:]}
    for name, table in tables.items():
        write_table(f"{name}.csv", dict(zip(("height", "weight", "length", "price"), table.T)))


def run_command(programs: Path, line: str, extra: str | None = None) -> None:
    """Run a command of the README; without its extra it must fail, name the extra, and neither print nor write."""
    words, before = shlex.split(line, comments=True), set(Path().rglob("*"))
    done = subprocess.run([programs / words[0], *words[1:]], capture_output=True, text=True, check=False)
    if extra is None:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return
    assert done.returncode == 1, f"exit code {done.returncode} without {extra}\n{done.stderr}"
    assert extra in done.stderr, f"{done.stderr} does not name {extra}"
    assert done.stdout == "", done.stdout
    assert len(done.stderr.splitlines()) == 1, f"more than one line of error:\n{done.stderr}"
    assert set(Path().rglob("*")) == before, "a file was written"


def run_installed() -> int:
    """Run blocks and commands where this is the fresh environment's Python and its folder the working directory."""
    failures = run_readme_blocks()
    write_tables()
    programs = Path(sys.executable).parent
    lines = dict.fromkeys(commands(README.read_text(encoding="utf-8")))
    for line, extra in [*lines.items(), *WITH_EXTRAS.items()]:
        what = line.partition("#")[0].strip() + (f", without {extra}" if extra else "")
        failures += attempt(what, lambda: run_command(programs, line, extra))  # noqa: B023
    return failures


def main() -> None:
    with TemporaryDirectory(prefix="boxloop-wheel-") as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        with timed("all of it"):
            programs = install(folder)
            command = [programs / "python", "-I", __file__, "--installed"]
            done = subprocess.run(command, cwd=work, env=environment(work), check=False)
            if done.returncode:
                sys.exit(
                    "README.md: some of its blocks or commands do not run where only the wheel is installed"
                )


if __name__ == "__main__":
    sys.exit(run_installed() if sys.argv[1:] == ["--installed"] else main())
