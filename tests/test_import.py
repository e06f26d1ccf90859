"""Importing boxloop and asking for help is quick, because nothing heavy is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

import boxloop

HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "pandas", "polars", "pyarrow", "dask"}
HELP = """
from boxloop.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
"""


def loaded_after(code: str) -> set[str]:
    """Top-level modules loaded in a new process that runs ``code``."""
    script = f"{code}\nimport sys\nprint('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()[1:]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("code", ["import boxloop", "import boxloop; dir(boxloop)", HELP])
def test_nothing_heavy_is_imported(code: str) -> None:
    assert loaded_after(code) & HEAVY == set()


def test_the_test_sees_heavy_imports() -> None:
    assert "numpy" in loaded_after("import boxloop, numpy")


ROOMS = """
import sys
import boxloop.data
assert not {"pandas", "polars", "pyarrow", "narwhals"} & set(sys.modules), "frames are read by who has them"
import boxloop.estimators, boxloop.select
assert "matplotlib" not in sys.modules, "pictures are loaded when they are drawn"
import numpy as np
from boxloop import GaussianMixture, mega
from boxloop.criticise import calibration
rows = np.random.default_rng(0).normal(size=(60, 3))
mixture = GaussianMixture(1).fit(rows)
result = mega(mixture, rows, train=rows, draws=0)
plots = (mixture.plot_trace, result.plot, result["second"].plot, calibration(mixture, rows).plot)
for axes in (mixture.plot(rows), *(plot() for plot in plots)):
    axes.figure.savefig("/dev/null", format="png")
assert "matplotlib.pyplot" not in sys.modules
"""


def test_rooms_import_no_frames_and_pictures_no_pyplot() -> None:
    subprocess.run([sys.executable, "-c", ROOMS], check=True, timeout=120)


def test_public_names_resolve() -> None:
    for name in boxloop.__all__:
        assert getattr(boxloop, name) is not None
        assert name in dir(boxloop)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'GausianMixture'; did you mean GaussianMixture"):
        boxloop.GausianMixture  # noqa: B018


def test_rooms_are_attributes_of_the_package() -> None:
    code = "import boxloop; assert 'criticise' in dir(boxloop); assert callable(boxloop.criticise.mega)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="did you mean criticise"):
        boxloop.criticize  # noqa: B018


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = "import boxloop.criticise.mega; from boxloop.criticise import mega; assert callable(mega), mega"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
