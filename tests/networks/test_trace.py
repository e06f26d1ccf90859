"""The few weights that are watched."""

import torch

from boxloop.networks import TRACED_WEIGHTS, TraceRecorder, WeightTrace


def recorder(size: int) -> TraceRecorder:
    return TraceRecorder(WeightTrace.start(size, torch.Generator().manual_seed(0)))


def test_all_of_few_weights_and_some_of_many() -> None:
    assert torch.equal(recorder(5).trace().index, torch.arange(5))
    places = recorder(10_000).trace().index
    assert len(places) == TRACED_WEIGHTS
    assert torch.equal(places, places.unique())
    assert int(places.max()) < 10_000


def test_rows_are_those_seen_in_order() -> None:
    one = recorder(200)
    rows = torch.randn(50, 200, generator=torch.Generator().manual_seed(1))
    vector = torch.empty(200)
    for row in rows:
        one.record(vector.copy_(row))
    record = one.trace()
    assert record.count == one.count == 50
    assert torch.equal(record.values, rows[:, record.index].double())


def test_long_records_are_thinned_evenly(monkeypatch) -> None:
    monkeypatch.setattr("boxloop.networks.posterior.TRACE_LENGTH", 8)
    one = recorder(3)
    for t in range(100):
        one.record(torch.full((3,), float(t)))
    record = one.trace()
    assert record.count == 100
    assert record.stride == 8
    assert torch.equal(record.values[:, 0], torch.arange(0, 100, 8).double())


def test_a_record_goes_on_where_it_was_cut(monkeypatch) -> None:
    monkeypatch.setattr("boxloop.networks.posterior.TRACE_LENGTH", 8)
    whole, half = recorder(3), recorder(3)
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    for row in rows:
        whole.record(row)
    for row in rows[:21]:
        half.record(row)
    again = TraceRecorder(half.trace())
    for row in rows[21:]:
        again.record(row)
    assert torch.equal(again.trace().values, whole.trace().values)
    assert (again.trace().stride, again.count) == (whole.trace().stride, whole.count)
