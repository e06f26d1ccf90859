"""``boxloop doctor``: what this installation runs on."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from boxloop.cli import console, shared

PACKAGES = ("boxloop", "torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow")
OPTIONAL = ("polars", "dask", "distributed")
LABELS = {"memory_gib": "memory (GiB)", "cuda": "CUDA"}

Facts = dict[str, dict[str, object]]


@shared.with_examples("boxloop doctor", "boxloop doctor --json")
@shared.json_option
def command(json_to: str | None) -> None:
    """Print versions, devices, threads and memory."""
    console.check_outputs([json_to])
    facts: Facts = {"versions": list_versions(), "compute": describe_compute(), "machine": describe_machine()}
    console.write_findings(facts, json_to, lambda: print_facts(facts))


def list_versions() -> dict[str, object]:
    """Python and the packages that matter; ``None`` for one that is not installed."""
    found: dict[str, object] = {"python": platform.python_version()}
    for name in PACKAGES + OPTIONAL:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def describe_compute() -> dict[str, object]:
    """What torch computes on: devices, CUDA, threads."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "devices": ["cpu", *(f"cuda:{i} ({name})" for i, name in enumerate(gpus))],
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }


def describe_machine() -> dict[str, object]:
    """The processor and the memory of the machine, where the system says."""
    memory = None
    if sys.platform != "win32":
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    system = f"{platform.system()} {platform.machine()}"
    return {"system": system, "cpus": os.cpu_count(), "memory_gib": memory}


def print_facts(facts: Facts) -> None:
    """Print the facts, a table for each group."""
    for title, group in facts.items():
        console.echo_facts(
            title, [(LABELS.get(name, name), _format_fact(name, value)) for name, value in group.items()]
        )


def _format_fact(name: str, value: object) -> str:
    if value is None:
        return "not installed" if name in PACKAGES + OPTIONAL else "none"
    if isinstance(value, list):
        return "\n".join(value)
    return str(value)
