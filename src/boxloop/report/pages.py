"""The frame of every page: templates that escape what they are given, and the versions in the footer."""

from __future__ import annotations

import base64
import html
import platform
import re

import numpy as np
import sklearn
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from boxloop.report.sentences import escape_controls
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
        finalize=_written_out,
    )
    environment.filters["data"] = lambda png: base64.b64encode(png).decode()
    environment.filters["markdown"] = escape_markdown
    environment.filters["shown"] = escape_controls
    return environment.get_template(name)


def _written_out(value: object) -> object:
    """A value of a template without control characters: on a page, too, they could turn the direction of words."""
    return escape_controls(value, keep="\n\t") if type(value) is str else value


def escape_markdown(text: object) -> str:
    r"""Text as Markdown shows it on one line, in a table or out of one: no markup, no tags, no cell of its own.

    Example:
        >>> escape_markdown("<b> a|b *c* $d$ my_column")
        '&lt;b&gt; a\\|b \\*c\\* \\$d\\$ my_column'
    """
    line = escape_controls(" ".join(str(text).split("\n")), keep="")
    line = re.sub(r"([\\`*\[\]|~$!]|(?<!\w)_|_(?!\w))", r"\\\1", line)
    return html.escape(line, quote=False)


def versions() -> dict[str, str]:
    """Of all that numbers may depend on."""
    return {
        "boxloop": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }
