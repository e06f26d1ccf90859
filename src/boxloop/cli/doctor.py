"""``boxloop doctor``: what this installation runs on."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from boxloop.cli.options import json_option, with_examples
from boxloop.cli.output import check_outputs, echo_facts, tell

PACKAGES = ("boxloop", "torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow")
OPTIONAL = ("polars", "dask", "distributed")
LABELS = {"memory_gib": "memory (GiB)", "cuda": "CUDA"}

Facts = dict[str, dict[str, object]]


@with_examples("boxloop doctor", "boxloop doctor --json")
@json_option
def command(json_to: str | None) -> None:
    """Print versions, devices, threads and memory."""

    check_outputs([json_to])
    facts: Facts = {"versions": versions(), "compute": compute(), "machine": machine()}
    tell(facts, json_to, lambda: show(facts))


def versions() -> dict[str, object]:
    """Python and the packages that matter; ``None`` for one that is not installed."""
    found: dict[str, object] = {"python": platform.python_version()}
    for name in PACKAGES + OPTIONAL:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def compute() -> dict[str, object]:
    """What torch computes on: devices, CUDA, threads."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "devices": ["cpu", *(f"cuda:{i} ({name})" for i, name in enumerate(gpus))],
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }


def machine() -> dict[str, object]:
    """The processor and the memory of the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "memory_gib": memory_gib(),
    }


def memory_gib() -> float | None:
    """Memory of the machine in GiB, where the system tells."""
    if sys.platform == "win32":
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def show(facts: Facts) -> None:
    """Print the facts, a table for each group."""

    for title, group in facts.items():
        echo_facts(title, [(LABELS.get(name, name), _words(name, value)) for name, value in group.items()])


def _words(name: str, value: object) -> str:
    if value is None:
        return "not installed" if name in PACKAGES + OPTIONAL else "none"
    if isinstance(value, list):
        return "\n".join(value)
    return str(value)
