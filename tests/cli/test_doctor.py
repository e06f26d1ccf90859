"""``boxloop doctor``."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from boxloop.cli import doctor, main
from boxloop.version import __version__


def test_json_tells_versions_devices_and_threads() -> None:
    shown = CliRunner().invoke(main, ["doctor", "--json"])
    facts = json.loads(shown.output)
    assert facts["versions"]["boxloop"] == __version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["compute"]["threads"] == torch.get_num_threads()
    assert facts["compute"]["devices"][0] == "cpu"
    assert facts["machine"]["cpus"] >= 1
    assert facts["machine"]["memory_gib"] > 0


def test_text_names_every_package() -> None:
    shown = CliRunner().invoke(main, ["doctor"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in (*doctor.PACKAGES, *doctor.OPTIONAL, "threads", "memory"))


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", ("no-such-package",))
    assert "not installed" in CliRunner().invoke(main, ["doctor"]).output
    facts = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert facts["versions"]["no-such-package"] is None
