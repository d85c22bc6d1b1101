"""What Spark's source and sink are measured beside: as many records, each at a place of its own."""

import pytest

from tests.extras import INSTALL

pytest.importorskip("pyarrow", reason=INSTALL)
pytest.importorskip("numpy", reason=INSTALL)

from distributedlog.testing.bench.cases import spark as bench

pytestmark = pytest.mark.extra


@pytest.mark.parametrize("records", [1, 2048, 5000])
def test_the_source_in_memory_has_all_records_at_places_of_their_own(records: int) -> None:
    batches = bench.batches_in_memory(records, 1024)

    assert [one.num_rows for one in batches[:-1]] == [2048] * (len(batches) - 1)
    assert sum(one.num_rows for one in batches) == records
    assert all(len(value) == 1024 for one in batches for value in one.column("payload").to_pylist())
    buffers = {one.column("payload").buffers()[2].address for one in batches}
    assert len(buffers) == len(batches)
    assert bench.batches_in_memory(0, 1024) == []
    assert bench.batches_in_memory(records, 1024) is batches, "made once a process"


@pytest.mark.parametrize("size", [100, 1024, 8 << 20])
def test_the_plain_writers_records_are_objects_of_their_own(size: int) -> None:
    payloads = bench.payloads_in_memory(size)

    assert {len(one) for one in payloads} == {size}
    assert len(payloads) == max(1, bench.BULK_BYTES // size) == len(set(map(id, payloads)))
