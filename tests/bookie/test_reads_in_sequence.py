"""A reader in sequence whose ranges end within runs: each byte is read about once."""

import pytest

from distributedlog.bookie import entry as entries
from distributedlog.bookie.reads import Reader, Stretch
from distributedlog.bookie.runs import Located

from .kit import KEY, CutDisk, record
from .test_server import T, Writing, served

PAYLOAD = 2000


async def test_the_next_range_goes_on_where_the_last_one_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    read_hot = Reader._read_hot

    def note(reader: Reader, run: Located, wanted: int) -> Stretch | None:
        begun.append(run.first)
        return read_hot(reader, run, wanted)

    async with served(disk=CutDisk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        sent = [record(7, n, bytes([n % 251]) * PAYLOAD) for n in range(600)]
        for first in range(0, 600, 40):  # runs of up to 40
            writing.stream.send_many(*sent[first : first + 40])
            await writing.until_acked(first + 40)
        monkeypatch.setattr(Reader, "_read_hot", note)
        found: list[bytes] = []
        asked: list[int] = []
        while len(found) < 80:  # out of the ring by now
            asked.append(len(found))
            answer = await client.read(
                7, KEY, len(found), 599, 7 * len(sent[0]), past_lac=True, timeout_s=T
            )
            found += [bytes(one.raw) for one in entries.records(answer.body)]

        assert found == sent[: len(found)]
        assert set(asked) <= set(begun), "no range was begun again at its run's first entry"
