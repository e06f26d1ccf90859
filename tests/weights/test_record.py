"""The few weights that are watched."""

import torch

from boxloop.weights import PROBES, Record, Recorder


def recorder(size: int) -> Recorder:
    return Recorder(Record.start(size, torch.Generator().manual_seed(0)))


def test_all_of_few_weights_and_some_of_many() -> None:
    assert torch.equal(recorder(5).record().places, torch.arange(5))
    places = recorder(10_000).record().places
    assert len(places) == PROBES
    assert torch.equal(places, places.unique())
    assert int(places.max()) < 10_000


def test_rows_are_those_seen_in_order() -> None:
    one = recorder(200)
    rows = torch.randn(50, 200, generator=torch.Generator().manual_seed(1))
    vector = torch.empty(200)
    for row in rows:
        one.observe(vector.copy_(row))
    record = one.record()
    assert record.seen == one.seen == 50
    assert torch.equal(record.rows, rows[:, record.places].double())


def test_long_records_are_thinned_evenly(monkeypatch) -> None:
    monkeypatch.setattr("boxloop.weights.record.MOST", 8)
    one = recorder(3)
    for t in range(100):
        one.observe(torch.full((3,), float(t)))
    record = one.record()
    assert record.seen == 100
    assert record.stride == 8
    assert torch.equal(record.rows[:, 0], torch.arange(0, 100, 8).double())


def test_a_record_goes_on_where_it_was_cut(monkeypatch) -> None:
    monkeypatch.setattr("boxloop.weights.record.MOST", 8)
    whole, half = recorder(3), recorder(3)
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    for row in rows:
        whole.observe(row)
    for row in rows[:21]:
        half.observe(row)
    again = Recorder(half.record())
    for row in rows[21:]:
        again.observe(row)
    assert torch.equal(again.record().rows, whole.record().rows)
    assert (again.record().stride, again.seen) == (whole.record().stride, whole.seen)
