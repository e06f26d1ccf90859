"""Warnings of a selection."""

from __future__ import annotations


class SelectionWarning(UserWarning):
    """A candidate could not be fitted, warned while it was, or there are too few rows to flag any."""
