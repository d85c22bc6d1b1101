"""Equal programs give equal results in all three faces: random ones, on a real cluster.

What is compared is what every user sees and no timing decides: txids, payloads, sequence ids, counts, names,
settings, classes and codes of errors. Where entries end is the pipeline's affair, so places are not.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from distributedlog import LogRecord, Position, blocking
from distributedlog.runtime.interfaces.errors import DistributedLogError
from tests.test_face_meanings import Face, collect, done, opened

pytestmark = pytest.mark.processes

STEPS = 50
SEEDS = range(2)


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with blocking.local_cluster(memory=True, metadata_nodes=1) as cluster:
        yield cluster.uri


class Program:
    """One program in one face. What it does depends on its seed and on what it was told alone."""

    def __init__(self, face: Face, name: str, seed: int) -> None:
        self.face = face
        self.told: list[Any] = []
        self._chance = random.Random(seed)
        self._first = self._name = name
        self._txid = 0
        self._writer: Any = None
        self._positions: list[Position] = []

    async def play(self, namespace: Any) -> None:
        """All its calls, in a namespace of its own."""
        self._namespace = namespace
        await done(namespace.create_log(self._name, txids="given"))
        calls: list[Callable[[], Awaitable[Any]]] = [
            self._open, self._write, self._write, self._bulk, self._submit, self._columns, self._packed,
            self._commit, self._close, self._abort, self._read, self._read, self._read_columns,
            self._read_ranges, self._several, self._ends, self._find, self._count, self._truncate,
            self._positions_, self._settings, self._rename, self._remake, self._link, self._wrong,
        ]  # fmt: skip
        for _ in range(STEPS):
            call = self._chance.choice(calls)
            try:
                said = await call()
            except DistributedLogError as error:
                said = (type(error).__name__, error.code, error.definite, error.retryable)
            self.told.append((call.__name__, said))
        if self._writer is not None:
            await self.face.close(self._writer)

    @property
    def _log(self) -> Any:
        return self._namespace.open_log(self._name)

    def _next(self) -> LogRecord:
        self._txid += self._chance.choice((0, 1, 7))
        return LogRecord(self._txid, self._chance.randbytes(self._chance.choice((0, 1, 30))))

    async def _all(self, **options: Any) -> list[Any]:
        async with opened(self._log.open_reader(to="end", **options)) as reader:
            return await collect(reader)

    # --- writing ----------------------------------------------------------------------------------

    async def _open(self) -> Any:
        takeover = self._chance.random() < 0.3
        writer = await done(self._log.open_writer(takeover=takeover, wait_s=0))
        if self._writer is not None:
            await done(self._writer.abort())
        self._writer = writer
        return (writer.last_txid, writer.txid_policy)

    async def _with_writer(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        return None if self._writer is None else await call(self._writer)

    async def _write(self) -> Any:
        record = self._next()
        return await self._with_writer(lambda writer: self._place(self.face.write(writer, record)))

    async def _place(self, write: Awaitable[Any]) -> int:
        """The sequence id of what was written."""
        dlsn = await write
        await done(self._writer.commit())
        async with opened(self._log.open_reader(dlsn=dlsn)) as reader:
            record = await done(reader.read_next(wait_s=20))
        assert record.dlsn == dlsn
        return int(record.sequence_id)

    async def _bulk(self) -> Any:
        records = [self._next() for _ in range(self._chance.randrange(4))]
        if self._chance.random() < 0.3:
            records.insert(0, LogRecord(max(0, self._txid - 3), b"may be out of order"))
        return await self._with_writer(lambda writer: self._number(writer.write_bulk(records)))

    async def _number(self, write: Any) -> int:
        return len(await done(write))

    async def _submit(self) -> Any:
        records = [self._next() for _ in range(5)]

        async def call(writer: Any) -> int:
            pending = [await self.face.submit(writer, record) for record in records]
            return len({await self.face.result(one) for one in pending})

        return await self._with_writer(call)

    async def _columns(self) -> Any:
        records = [self._next() for _ in range(3)]
        txids, payloads = [one.txid for one in records], [one.payload for one in records]

        async def call(writer: Any) -> int:
            bulk = await done(writer.submit_columns(txids, payloads))
            await done(writer.commit())
            return len(bulk.result())

        return await self._with_writer(call)

    async def _packed(self) -> Any:
        txid, offsets = self._next().txid, (0, 2, 2, 5)
        packed = [
            b"".join(one.to_bytes(8, "little") for one in (txid,) * 3),
            b"".join(one.to_bytes(4, "little") for one in offsets),
            b"abcde",
        ]

        async def call(writer: Any) -> int:
            bulk = await done(writer.submit_packed(*packed))
            await done(writer.commit())
            return len(bulk.result())

        return await self._with_writer(call)

    async def _commit(self) -> Any:
        return await self._with_writer(lambda writer: self._has(writer.commit()))

    async def _has(self, call: Any) -> bool:
        return await done(call) is not None

    async def _close(self) -> Any:
        writer, self._writer = self._writer, None
        if writer is not None:
            await self.face.close(writer)

    async def _abort(self) -> Any:
        writer, self._writer = self._writer, None
        if writer is not None:
            await done(writer.commit())  # what is not durable would be there or not, as it happens
            await done(writer.abort())

    async def _link(self) -> Any:
        records = [self._next() for _ in range(2)]
        async with opened(self._log.open_segment_writer()) as writer:
            for record in records:
                await done(writer.write(record))
        if self._writer is not None:
            await done(self._writer.commit())
            self._writer, old = None, self._writer
            await self.face.close(old)
        linked = await done(self._log.link_segments([writer.token]))
        return linked.already, linked.last_segment - linked.first_segment

    # --- reading ----------------------------------------------------------------------------------

    async def _settled(self) -> list[Any]:
        if self._writer is not None:
            await done(self._writer.commit())
        return await self._all()

    async def _read(self) -> Any:
        every = await self._settled()
        if not every:
            return "empty"
        begin = self._chance.choice(every)
        how = self._chance.choice(("dlsn", "txid", "position", "since"))
        options: dict[str, Any] = {
            "dlsn": {"dlsn": begin.dlsn},
            "txid": {"txid": begin.txid},
            "since": {"since": every[0].time_ms},
            "position": {"position": self._positions[-1]} if self._positions else {},
        }[how]
        found = []
        async with opened(self._log.open_reader(to="end", **options)) as reader:
            while True:
                if self._chance.random() < 0.5:
                    record = await done(reader.read_next(wait_s=20))
                    some = [] if record is None else [record]
                else:
                    some = await done(reader.read_bulk(3, wait_s=20))
                if not some:
                    break
                found += some
                assert reader.position.sequence_id == found[-1].sequence_id + 1
                self._positions.append(reader.position)
        return how, [(one.sequence_id, one.txid, one.payload) for one in found]

    async def _read_columns(self) -> Any:
        await self._settled()
        found = []
        async with opened(self._log.open_reader(to="end")) as reader:
            while (columns := await done(reader.read_columns())) is not None:
                found += columns.tuples()
        return found

    async def _read_ranges(self) -> Any:
        await self._settled()
        snapshot = await done(self._log.snapshot())
        found = []
        ranges = [segment.range() for segment in snapshot.segments]
        async with opened(self._log.open_ranges(ranges)) as reader:
            for columns in await collect(reader):
                found += columns.tuples()
        return snapshot.first_sequence_id, snapshot.end_sequence_id, snapshot.last_txid, found

    async def _several(self) -> Any:
        await self._settled()
        async with opened(self._namespace.open_reader(logs=[self._name], to="end")) as reader:
            items = await collect(reader)
        kinds = [item.kind for item in items if hasattr(item, "kind")]
        return kinds, [
            one for item in items if hasattr(item, "columns") for one in item.columns.tuples()
        ]

    async def _ends(self) -> Any:
        await self._settled()
        first = await done(self._log.first_record())
        last = await done(self._log.last_record())
        assert await done(self._log.last_dlsn()) == last.dlsn
        return (first.sequence_id, first.payload, last.sequence_id, last.payload)

    async def _find(self) -> Any:
        every = await self._settled()
        txid = self._chance.randrange(self._txid + 2)
        found = await done(self._log.find(txid=txid))
        return txid, sum(one.dlsn < found for one in every)

    async def _count(self) -> Any:
        every = await self._settled()
        if not every:
            return await done(self._log.count())
        at = self._chance.choice(every).dlsn
        return await done(self._log.count()), await done(self._log.count(at))

    # --- the log itself ---------------------------------------------------------------------------

    async def _truncate(self) -> Any:
        every = await self._settled()
        if not every:
            return "empty"
        to = every[self._chance.randrange(len(every)) // 3]
        assert await done(self._log.truncate(to.dlsn)) == to.dlsn
        return to.sequence_id

    async def _positions_(self) -> Any:
        if not self._positions:
            return sorted(await done(self._log.positions.list()))
        name, at = self._chance.choice("ab"), self._chance.choice(self._positions)
        await done(self._log.positions.advance(name, at))
        proven = await done(self._log.positions.proven(name))
        return name, proven.sequence_id, sorted(await done(self._log.positions.list()))

    async def _settings(self) -> Any:
        change = self._chance.choice(
            ({"retention_s": 60.0}, {"retention_s": None}, {"nope": 1}, {"lock_lease_s": 1.0})
        )
        stored = await done(self._log.set(change))
        return dict(stored.settings), stored.version, (await done(self._log.settings())).settings

    async def _rename(self) -> Any:
        new = self._first + self._chance.choice(("", "-b"))
        await done(self._namespace.rename_log(self._name, new))
        self._name = new
        return new.removeprefix(self._first)

    async def _remake(self) -> Any:
        await done(self._namespace.delete_log(self._name))
        await done(self._namespace.create_log(self._name, txids="given"))
        assert not await self._all()
        return "remade"

    async def _wrong(self) -> Any:
        bad: tuple[Callable[[], Any], ...] = (
            lambda: self._log.open_reader(txid=1, at="latest", since=1),
            lambda: self._log.find(),
            lambda: self._namespace.open_log("a//b"),
            lambda: self._namespace.create_log(self._name),
            lambda: self._namespace.open_log("missing").last_dlsn(),
            lambda: self._log.open_reader(position="1.0.0"),
            lambda: self._log.truncate(),
            lambda: self._namespace.open_reader(logs=["a"], pattern="a"),
        )
        return await done(self._chance.choice(bad)())


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_programs_give_equal_results(uri: str, seed: int) -> None:
    told: dict[str, list[Any]] = {}
    for name in ("trio", "blocking", "asyncio"):
        face = Face(name, uri)

        async def scenario(face: Face, log: str) -> None:
            async with opened(face.namespace()) as namespace:
                program = Program(face, log, seed)
                await program.play(namespace)
                told[face.name] = program.told

        face.play(scenario, f"program-{seed}-{name}")

    assert told["blocking"] == told["trio"]
    assert told["asyncio"] == told["trio"]
    assert sum(said not in (None, "empty") for _, said in told["trio"]) > STEPS / 2
