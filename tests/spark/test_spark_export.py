"""`dlog log export` and `import` on a real cluster: proved by digest, in once (S31)."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import KeyedRecord, Log, LogRecord, Namespace, open_namespace
from distributedlog.cli.main import run
from tests.spark.conftest import fill, on, plain
from tests.spark.test_spark_sink import forget_commit, orphans

pytest.importorskip("pyspark", reason="pip install '.[spark]'")

pytestmark = [pytest.mark.processes, pytest.mark.spark]


@pytest.fixture(autouse=True)
def _within(spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands find the session of the run, and the test's namespace."""
    monkeypatch.setenv("DLOG_URI", uri)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command says in JSON, alone on stdout."""
    capsys.readouterr()
    assert run([str(one) for one in ("log", *arguments, "--json", "--timeout", "60")]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The one line of an error."""
    capsys.readouterr()
    assert run([str(one) for one in ("log", *arguments, "--timeout", "60")]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err


def records(uri: str, log: str) -> list[tuple[int, bytes]]:
    return [row[4:] for row in plain(uri, log)]


def logs(uri: str) -> list[str]:
    async def names(namespace: Namespace) -> list[str]:
        return [name async for name in namespace.logs()]

    return on(uri, names)


def change(uri: str, name: str, call: Any) -> Any:
    async def work(namespace: Namespace) -> Any:
        log: Log = namespace.open_log(name)
        return await call(log)

    return on(uri, work)


def leave_as_killed(uri: str, name: str, archive: str) -> None:
    """What kill -9 leaves of an import whose tasks wrote and whose driver had not linked: a log, a segment
    that nothing refers to. (Killed for real, at random times: `pipeline_kills.py`.)"""

    async def leave(namespace: Namespace) -> None:
        await namespace.create_log(name)
        log = namespace.open_log(name)
        async with log.open_segment_writer(app=f"import-{archive}", version=1) as writer:
            await writer.write_columns([0], [b"of the first attempt"])

    on(uri, leave)


def test_s31_exported_truncated_imported_and_exported_again(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S31: the same, once, with equal digests; the import killed while it writes, and repeated."""
    fill(uri, "a", range(1_500), entry=100)
    fill(uri, "a", range(1_500, 2_000), entry=100)
    before, out = records(uri, "a"), tmp_path / "out"
    out.mkdir()
    (out / f"{0:019d}-{'0' * 32}.parquet").write_bytes(b"of an export that was killed")

    made = told(capsys, "export", "a", "--output", out)
    assert (made["records"], made["first_dlsn"], made["end_dlsn"]) == (2_000, "1.0.0", "3.0.0")
    assert made["bytes"] == sum(len(payload) for _, payload in before)
    change(uri, "a", lambda log: log.truncate(txid=2_000))
    leave_as_killed(uri, "b", made["archive"])
    assert orphans(uri, "b") == 1
    first = told(capsys, "import", out, "--log", "b")
    again = told(capsys, "import", out, "--log", "b")

    assert records(uri, "a") == []
    assert records(uri, "b") == before
    assert (first["records"], again["already"]) == (2_000, True)
    assert (first["first_dlsn"], first["last_dlsn"]) == (again["first_dlsn"], again["last_dlsn"])
    assert orphans(uri, "b") == 0
    twin = told(capsys, "export", "b", "--output", tmp_path / "twin")
    keys = ("records", "bytes", "digest")
    assert (
        [twin[key] for key in keys] == [made[key] for key in keys] == [first[key] for key in keys]
    )
    assert twin["archive"] != made["archive"]


def test_a_part_of_a_log_and_what_cannot_be_exported(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ends are included, as in `dlog log read`; an empty part is an archive too."""
    fill(uri, "a", range(300), entry=100)
    part = told(
        capsys, "export", "a", "--output", tmp_path / "p", "--from", "1.0.50", "--to", "1.2.9"
    )
    assert part["records"] == 160
    told(capsys, "import", tmp_path / "p", "--log", "b")
    assert records(uri, "b") == records(uri, "a")[50:210]
    change(uri, "a", lambda log: log.truncate(txid=300))
    nothing = told(capsys, "export", "a", "--output", tmp_path / "n")
    assert (nothing["records"], nothing["files"]) == (0, 0)
    assert told(capsys, "import", tmp_path / "n", "--log", "c")["last_dlsn"] is None
    assert records(uri, "c") == []

    to = tmp_path / "x"
    assert "LogTruncated" in refused(capsys, 3, "export", "a", "--output", to, "--from", "1.0.5")
    assert 'log "z" does not exist' in refused(capsys, 3, "export", "z", "--output", to)
    assert "not a DLSN" in refused(capsys, 2, "export", "a", "--output", to, "--from", "1.x")
    assert "contains an archive" in refused(capsys, 5, "export", "a", "--output", tmp_path / "p")
    assert not to.exists()


def test_an_import_that_is_refused_writes_nothing(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped byte, a missing, a cut, an extra file, another manifest, another log: named in one line."""
    fill(uri, "a", range(100))
    told(capsys, "export", "a", "--output", tmp_path)
    (file,) = tmp_path.glob("*.parquet")
    (stated,) = tmp_path.glob("_manifest-*.json")
    data, manifest = file.read_bytes(), stated.read_bytes()

    def try_import(code: int, log: str = "b") -> str:
        said = refused(capsys, code, "import", tmp_path, "--log", log)
        assert logs(uri) == ["a"]
        return said

    file.write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    assert f"CorruptData (523): {file} is damaged" in try_import(1)
    file.write_bytes(data[:-1])
    assert f"{file} has {len(data) - 1} bytes" in try_import(1)
    file.unlink()
    assert f"{file} is missing" in try_import(1)
    file.write_bytes(data)
    (tmp_path / "more.parquet").write_bytes(data)
    assert f"{tmp_path / 'more.parquet'} is not in the manifest" in try_import(5)
    (tmp_path / "more.parquet").unlink()
    stated.write_bytes(manifest.replace(b'"a"', b'"b"'))
    assert f"{stated} is damaged" in try_import(1)
    stated.write_bytes(b'{"protoPayload": {}}')
    assert f"{stated} is not the manifest of" in try_import(5)
    stated.unlink()
    assert "its export did not finish" in try_import(2)
    stated.write_bytes(manifest)
    assert 'log "a" has other records' in try_import(3, "a")
    assert len(plain(uri, "a")) == 100


def test_txids_that_go_back_are_exported_and_imported(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order; the copy is searched as the log is."""

    async def write() -> None:
        async with (
            open_namespace(uri) as namespace,
            namespace.open_log("a").open_writer() as writer,
        ):
            await writer.submit_columns([5, 6], [b"x", b"y"])
            await writer.commit()
            await writer.submit_columns([3, 4], [b"x", b"y"])

    trio.run(write)
    told(capsys, "export", "a", "--output", tmp_path)
    told(capsys, "import", tmp_path, "--log", "b")

    assert [row[4] for row in plain(uri, "b")] == [5, 6, 3, 4]


def keyed_records(uri: str, log: str) -> list[Any]:
    async def read(namespace: Namespace) -> list[Any]:
        async with namespace.open_log(log).open_reader(to="end") as reader:
            return [(one.txid, one.payload, one.key, one.headers) async for one in reader]

    return list(on(uri, read))


def write_keyed(uri: str, log: str) -> None:
    async def write(namespace: Namespace) -> None:
        await namespace.create_log(log, config={"record_headers": True, "codec": "lz4"})
        async with namespace.open_log(log).open_writer() as writer:
            await writer.write_bulk(
                [
                    KeyedRecord(1, b"x", b"k" * 65_536, [(b"n%d" % n, b"v") for n in range(64)]),
                    LogRecord(2, b"y"),
                    KeyedRecord(3, b"", b""),
                ]
            )

    on(uri, write)


def test_keys_and_headers_are_exported_and_imported(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by a stream that copies the log, and with the same digest."""
    write_keyed(uri, "keyed")

    exported = told(capsys, "export", "keyed", "--output", tmp_path / "archive")
    told(capsys, "import", tmp_path / "archive", "--log", "copy")

    again = told(capsys, "export", "copy", "--output", tmp_path / "again")
    assert keyed_records(uri, "copy") == keyed_records(uri, "keyed")
    assert again["digest"] == exported["digest"]

    change(uri, "other", lambda _: _create(uri, "other"))
    change(uri, "other", lambda log: log.set({"record_headers": False}))
    assert "accepts no keys and headers" in refused(
        capsys, 2, "import", tmp_path / "archive", "--log", "other"
    )


async def _create(uri: str, name: str) -> None:
    async with open_namespace(uri) as namespace:
        await namespace.create_log(name)


def test_stream_copies_keys_and_headers_once(uri: str, spark: Any, tmp_path: Path) -> None:
    write_keyed(uri, "from")
    change(uri, "to", lambda _: _create(uri, "to"))

    def copy() -> None:
        frame = (
            spark.readStream.format("distributedlog")
            .option("log", "from")
            .option("startingPosition", "earliest")
            .option("includeHeaders", "true")
            .load(uri)
            .select("txid", "payload", "key", "headers")
        )
        writer = frame.writeStream.format("distributedlog").option("uri", uri).option("log", "to")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(60)

    copy()
    forget_commit(tmp_path)
    copy()

    assert keyed_records(uri, "to") == keyed_records(uri, "from")


def test_source_has_keys_and_headers_if_the_schema_names_them(uri: str, spark: Any) -> None:
    async def write(namespace: Namespace) -> None:
        await namespace.create_log("columns", config={"record_headers": True})
        async with namespace.open_log("columns").open_writer() as writer:
            await writer.write_bulk(
                [KeyedRecord(1, b"x", b"k", [(b"n", b"v"), (b"n", b"")]), LogRecord(2, b"y")]
            )

    on(uri, write)
    schema = (
        "txid bigint, payload binary, key binary, headers array<struct<name:binary,value:binary>>"
    )

    rows = spark.read.format("distributedlog").schema(schema).option("log", "columns").load(uri)

    assert sorted(tuple(row) for row in rows.collect()) == [
        (1, b"x", b"k", [(b"n", b"v"), (b"n", b"")]),
        (2, b"y", None, []),
    ]
