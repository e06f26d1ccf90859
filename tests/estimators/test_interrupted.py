"""Ctrl-C while the starts race: the fit ends, it does not go on as if nothing had happened."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop import GaussianMixture
from boxloop.fit import fit


@pytest.mark.parametrize("when", [1, 3, 12])
@pytest.mark.filterwarnings("ignore:interrupted before the first iteration")
def test_ctrl_c_during_the_race(monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    plain, seen = fit.accelerated_em, 0

    def interrupted_em(source):
        step = plain(source)

        def counted(state):
            nonlocal seen
            seen += 1
            if seen == when:
                raise KeyboardInterrupt
            return step(state)

        return counted

    monkeypatch.setattr(fit, "accelerated_em", interrupted_em)
    mixture = GaussianMixture(3, random_state=0).fit(np.random.default_rng(0).normal(size=(300, 2)))
    assert mixture.interrupted_
    assert not mixture.converged_
    assert mixture.n_iter_ == 0
    assert np.isfinite(mixture.means_).all()


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="device='abacus' is no device"):
        GaussianMixture(device="abacus").fit(np.ones((3, 1)))
