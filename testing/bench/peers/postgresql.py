"""PostgreSQL: a primary and two standbys, `synchronous_standby_names = 'ANY 1 (s1, s2)'`."""

import os
import pwd
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..measure.histogram import Histogram
from .peer import PeerMissing, free_ports, payloads, program, run_server, until

COPY_ROWS = 1000
PLACES = "/usr/lib/postgresql"
ACCOUNT = "postgres"
"""The account under which PostgreSQL runs if this process runs as root, which PostgreSQL rejects."""


class Postgresql:
    """A primary and two standbys, one of which must confirm. Two of three servers have synced each commit."""

    name = "PostgreSQL"
    settings = "ANY 1 of 2 standbys, synchronous_commit on; COPY of 1,000 rows per commit"

    def __init__(self) -> None:
        self._connection: Any = None

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Create a primary, copy it twice, and start all three."""
        try:
            import psycopg
        except ImportError:
            raise PeerMissing("no Python package psycopg") from None
        ports = free_ports(3)
        root = directory / "postgresql"
        root.mkdir()
        if os.getuid() == 0:
            for parent in (directory, *directory.parents[:1]):
                parent.chmod(parent.stat().st_mode | 0o111)
            try:
                account = pwd.getpwnam(ACCOUNT)
            except KeyError:
                raise PeerMissing(f"no account {ACCOUNT}") from None
            os.chown(root, account.pw_uid, account.pw_gid)
        primary = root / "primary"
        _run("initdb", "-D", str(primary), "-U", ACCOUNT, "-A", "trust", "--no-sync")
        with (primary / "postgresql.conf").open("a") as config:
            config.write(
                f"listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
                f"port = {ports[0]}\nwal_level = replica\nmax_wal_senders = 8\n"
            )
        command = _command("postgres", "-D", str(primary))
        processes = [run_server(servers, command, directory / "pg-0.log")]
        conninfo = f"host=127.0.0.1 port={ports[0]} user={ACCOUNT} dbname=postgres"

        def connected() -> bool:
            try:
                self._connection = psycopg.connect(conninfo, autocommit=True)
            except psycopg.OperationalError:
                return False
            return True

        until(connected, "PostgreSQL", processes)
        servers.callback(self._connection.close)
        for number, port in enumerate(ports[1:], 1):
            standby = root / f"s{number}"
            _run(
                "pg_basebackup", "-D", str(standby), "-d", conninfo, "-R", "-c", "fast", "--no-sync"
            )
            with (standby / "postgresql.auto.conf").open("a") as config:
                config.write(f"port = {port}\n")
                config.write(f"primary_conninfo = '{conninfo} application_name=s{number}'\n")
            log = directory / f"pg-{number}.log"
            processes.append(run_server(servers, _command("postgres", "-D", str(standby)), log))
        run = self._connection.execute
        run("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s1, s2)'")
        run("SELECT pg_reload_conf()")
        until(self._has_standbys, "the standbys", processes)
        run("CREATE TABLE bench (id bigserial PRIMARY KEY, payload bytea NOT NULL)")

    def _has_standbys(self) -> bool:
        cursor = self._connection.execute(
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        )
        return bool(cursor.fetchone()[0] == 2)

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._connection.execute("SHOW server_version").fetchone()[0])

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Commit one INSERT at a time."""
        histogram = Histogram()
        payload = payloads(size, 1)[0]
        with self._connection.cursor(binary=True) as cursor:
            end = time.perf_counter() + seconds
            while (begun_at := time.perf_counter()) < end:
                cursor.execute("INSERT INTO bench (payload) VALUES (%s)", (payload,), prepare=True)
                histogram.add(time.perf_counter() - begun_at)
        return histogram.summary_ms()

    def throughput(self, size: int, seconds: float) -> float:
        """Commit COPY statements of 1,000 rows."""
        prepared_payloads = payloads(size)
        count = 0
        start = time.perf_counter()
        with self._connection.cursor() as cursor:
            while time.perf_counter() < start + seconds:
                with cursor.copy("COPY bench (payload) FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["bytea"])
                    for row in range(COPY_ROWS):
                        copy.write_row((prepared_payloads[row % len(prepared_payloads)],))
                count += COPY_ROWS
        rate = count / (time.perf_counter() - start)
        self._connection.execute("TRUNCATE bench")
        return rate


def _command(name: str, *flags: str) -> list[str]:
    versions = sorted(Path(PLACES).glob("*/bin"), key=lambda binaries: float(binaries.parent.name))
    executable = program(name, *(str(binaries / name) for binaries in reversed(versions)))
    if os.getuid() == 0:
        account = [f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--init-groups"]
        return [program("setpriv"), *account, executable, *flags]
    return [executable, *flags]


def _run(name: str, *flags: str) -> None:
    completed = subprocess.run(
        _command(name, *flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/"
    )
    if completed.returncode != 0:
        raise PeerMissing(f"{name} failed: {completed.stdout.decode(errors='replace')[-300:]}")
