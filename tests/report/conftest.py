"""Reports on few candidates, so that a test takes a second."""

from __future__ import annotations

import pytest

from report.small import few_candidates


@pytest.fixture(scope="module", autouse=True)  # a wider one would outlast these tests
def _few_candidates():
    with few_candidates():
        yield
