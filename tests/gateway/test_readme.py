"""The lines of curl in docs/guides/http.md, unchanged, at a gateway over proxies."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
pytest.importorskip("starlette", reason="pip install '.[gateway]'")

import trio

from .http_kit import gate
from .test_gateway import behind, payloads

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here"),
]
ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/guides/http.md"


def lines(page: str, section: str) -> str:
    """Of a section, but for the one that says where the gateway is."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^## {section}\n.*?^```sh\n(export GATEWAY=.*?)^```", text, re.M | re.S)
    assert found is not None
    first, _, rest = found.group(1).partition("\n")
    assert first.startswith("export GATEWAY='http://127.0.0.1:8491'")
    return rest


async def typed(lines: str, url: str) -> "subprocess.CompletedProcess[str]":
    """In a thread: curl is another process, and the gateway lives in this one."""
    return await trio.to_thread.run_sync(
        lambda: subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            env={**os.environ, "GATEWAY": url},
            capture_output=True,
            text=True,
            timeout=60,
        )
    )


async def test_the_lines_do_what_they_say() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri)

        done = await typed(lines(PAGE, "Try it with curl"), one.url)

        assert done.returncode == 0, done
        assert await payloads(one, "greetings", 4) == ["hello", "one", "two", "first"]
        assert done.stdout.count('"repeated": true') == 1
        assert done.stdout.count("data: ") == 4


async def test_the_lines_of_a_producer_do_what_they_say() -> None:
    """They were of a log that nobody had made, and of a number that its producer had not."""
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri)

        done = await typed(lines(PAGE, "Write each record once"), one.url)

        assert done.returncode == 0, done
        assert await payloads(one, "orders", 1) == ["first"]
        told = re.search(r"^# (\{.*\n# .*\})$", (ROOT / PAGE).read_text(), re.M)
        assert told is not None
        assert re.sub(r"\s+#?\s*", " ", told[1]) in done.stdout
