"""Ctrl-C while the starts race: the fit ends, it does not go on as if nothing had happened."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop import GaussianMixture
from boxloop.models import Mixture


@pytest.mark.parametrize("when", [1, 3, 5])
@pytest.mark.filterwarnings("ignore:interrupted before the first iteration")
def test_ctrl_c_during_the_race(monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    expect, seen = Mixture.expect, 0

    def interrupted_expect(model, rows, weight):
        nonlocal seen
        seen += 1
        if seen == when:
            raise KeyboardInterrupt
        return expect(model, rows, weight)

    monkeypatch.setattr(Mixture, "expect", interrupted_expect)
    mixture = GaussianMixture(3, random_state=0).fit(np.random.default_rng(0).normal(size=(300, 2)))
    assert mixture.interrupted_
    assert not mixture.converged_
    assert mixture.n_iter_ == 0
    assert np.isfinite(mixture.means_).all()


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="device='abacus' is no device"):
        GaussianMixture(device="abacus").fit(np.ones((3, 1)))
