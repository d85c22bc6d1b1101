"""README's lines of curl, as they stand there, at a gateway over proxies."""

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
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def lines() -> str:
    """Of the section, but for the one that says where the gateway is."""
    found = re.search(r"^## Over HTTP\n.*?^```sh\n(export GATEWAY=.*?)^```", README, re.M | re.S)
    assert found is not None
    first, _, rest = found.group(1).partition("\n")
    assert first.startswith("export GATEWAY='http://127.0.0.1:8491'")
    return rest


async def test_the_lines_do_what_they_say() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri)

        # shell=True in a thread: curl is another process, and the gateway lives in this one.
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run(
                ["bash", "-euo", "pipefail", "-c", lines()],
                env={**os.environ, "GATEWAY": one.url},
                capture_output=True,
                text=True,
                timeout=60,
            )
        )

        assert done.returncode == 0, done
        assert await payloads(one, "greetings") == ["hello", "one", "two", "first"]
        assert done.stdout.count('"repeated": true') == 1
        assert done.stdout.count("data: ") == 4
