"""The frame of every page: templates that escape what they are given, and the versions in the footer."""

from __future__ import annotations

import base64
import platform

import numpy as np
import sklearn
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from boxloop.version import __version__


def template(name: str) -> Template:
    """A template by its file name; those of pages escape every value.

    Args:
        name: such as ``report.html.jinja``.
    """
    environment = Environment(
        loader=PackageLoader("boxloop.report"),
        autoescape=name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["data"] = lambda png: base64.b64encode(png).decode()
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment.get_template(name)


def versions() -> dict[str, str]:
    """Of all that numbers may depend on."""
    return {
        "boxloop": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
