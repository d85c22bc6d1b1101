"""Change the authorization mode from open to required and back, while clients write and nodes are killed.

A scenario with ``[walk]`` runs on nodes with certificates. Each client is a user named after its kind, with
the role that its work requires. The stranger has no role. Each change of the mode is recorded with the times
of its request and its answer. So the history shows which requests were refused in which mode
(`testing/verify/checks/authorization_check.py`).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Protocol

import trio

from ....metadata.client.metadata_client import MetadataClient
from ....runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ....runtime.machine import client_host
from ....runtime.net.rpc import Endpoint
from ....runtime.protocol.handshake import Hello
from ....uri import parse_uri
from ..model.adapter import STORING, NodeRole
from ..model.scenario import ROLES, Scenario, Walk
from .client_context import after, before

ROUND = ("report", "required", "report", "open")
ADMIN = "user/root"
ASK_S = 10.0
AGAIN_S = 0.2


class MakeCertificates(Protocol):
    """Creates one certificate authority, and a directory per principal as in `place_of`."""

    def __call__(self, directory: Path, principals: Sequence[str], days: int) -> None:
        """Create certificates that are valid for ``days``.

        Raises `InvalidRequest` if this is not possible.
        """
        ...


def place_of(certificates: Path, principal: str) -> Path:
    """Return the directory of a principal's certificate."""
    return certificates / principal.replace("/", "-")


def credentials_of(certificates: Path | None, principal: str) -> str:
    """Return the credentials option of a client; "" if there are no certificates."""
    return "" if certificates is None else f"file:{place_of(certificates, principal)}"


def principal_of(name: str, role: NodeRole) -> str:
    """Return the principal in a node's certificate."""
    return f"{role.value if role in STORING else 'proxy'}/{name}"


def principals(scenario: Scenario) -> list[str]:
    """Return all principals that need a certificate."""
    nodes = [principal_of(name, role) for name, role in scenario.cluster.names.items()]
    kinds = dict.fromkeys((*(client.kind for client in scenario.clients), "finish"))
    return [*nodes, ADMIN, *(f"user/{kind}" for kind in kinds)]


@asynccontextmanager
async def connected(uri: str, credentials: str, timeout_s: float) -> AsyncIterator[MetadataClient]:
    """Open a client of the metadata quorum only."""
    host = client_host("chaos", credentials)
    client = MetadataClient(
        Endpoint(host, lambda: Hello(kind="client", label="chaos")),
        parse_uri(uri).addresses,
        client_id=f"{host.random.getrandbits(64):016x}",
        timeout_s=timeout_s,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        yield client
        nursery.cancel_scope.cancel()


class ModeSequence:
    """Changes the authorization mode of one run."""

    def __init__(
        self,
        walk: Walk,
        scenario: Scenario,
        uri: str,
        certificates: Path,
        rng: Random,
        *,
        on_mode_changed: Callable[[str, float, float], None],
        print_line: Callable[[str], None],
    ) -> None:
        """Create the sequence; ``on_mode_changed`` receives each mode, and when it was requested and
        confirmed.
        """
        self._walk = walk
        self._kinds = dict.fromkeys((*(client.kind for client in scenario.clients), "finish"))
        self._uri = uri
        self._path = parse_uri(uri).path
        self._credentials = credentials_of(certificates, ADMIN)
        self._rng = rng
        self._on_mode_changed = on_mode_changed
        self._print_line = print_line

    async def set_up(self) -> None:
        """Create the users and their grants, while no request is authorized yet."""
        async with connected(self._uri, self._credentials, ASK_S) as admin:
            await self._change_trust(admin, "mode", "open", ADMIN.partition("/")[2])
            for kind in self._kinds:
                if role := ROLES[kind]:
                    await self._change_trust(admin, "user", kind)
                    await self._change_trust(admin, "grant", kind, role, self._path, "")

    async def run(self, over: trio.Event) -> None:
        """Change the mode in rounds until ``over`` is set. Then return to open, even if that takes long."""
        async with connected(self._uri, self._credentials, ASK_S) as admin:
            steps, mode = cycle(ROUND), "open"
            while not over.is_set():
                mode = next(steps)
                await self._set_mode(admin, mode)
                with trio.move_on_after(self._rng.uniform(*self._walk.hold_s)):
                    await over.wait()
            for step in {"required": ("report", "open"), "report": ("open",)}.get(mode, ()):
                await self._set_mode(admin, step)

    async def _set_mode(self, admin: MetadataClient, mode: str) -> None:
        asked_at = before()
        await self._change_trust(admin, "mode", mode, "")
        self._on_mode_changed(mode, asked_at, after())
        self._print_line(f"authorization mode: {mode}")

    async def _change_trust(self, admin: MetadataClient, *change: str) -> None:
        """Repeat a change until it is answered. Each of these changes may be repeated."""
        may_be_done = False
        while True:
            try:
                await admin.change_authorization(*change, force=True)
                return
            except InvalidRequest:
                if may_be_done:
                    return
                raise
            except DistributedLogError as error:
                if not error.retryable and error.definite:
                    raise
                may_be_done = True
                await trio.sleep(AGAIN_S)
