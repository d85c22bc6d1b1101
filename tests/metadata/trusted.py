"""A quorum whose nodes believe who a client says it is in its HELLO: what is judged is not how that is
proved."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.request_identity import is_principal
from distributedlog.metadata.node.metadata_node import MetadataNode
from distributedlog.metadata.node.metadata_session import MetadataSession
from distributedlog.runtime.net.link import Link

from .quorum import Quorum, quorum


class Trusted:
    """The nodes, and clients by who they are."""

    def __init__(self, nodes: Quorum) -> None:
        self.nodes = nodes
        self._known: dict[str, MetadataClient] = {}

    async def one(self, principal: str) -> MetadataClient:
        """The client of that principal; always the same one."""
        if principal not in self._known:
            self._known[principal] = await self.nodes.client(principal=principal)
        return self._known[principal]


def believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a node takes the first word of a client's node id for who it is."""
    begin = MetadataSession.__init__

    def believing(session: MetadataSession, node: MetadataNode, link: Link) -> None:
        said = link.peer.node_id.partition(" ")[0]
        if is_principal(said):
            link.principal = said
        begin(session, node, link)

    monkeypatch.setattr(MetadataSession, "__init__", believing)


@asynccontextmanager
async def trusted_quorum(size: int = 1) -> AsyncIterator[Trusted]:
    """Started, judging by the table of the whole tree; `believe` comes before."""
    async with quorum(size, classes=KEY_CLASSES) as nodes:
        await nodes.start()
        with trio.fail_after(60):
            yield Trusted(nodes)
