"""The classes that a model file may name."""

from __future__ import annotations

import boxloop.laws as laws
import boxloop.models as models

CLASSES: dict[str, type] = {name: getattr(room, name) for room in (laws, models) for name in room.__all__}
"""Every law and model of the library, by name."""
