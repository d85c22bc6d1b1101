"""Pictures of the console's pages: healthy, under load, with a dead bookie; wide, narrow, light, dark.

    python -m tests.console.pictures FOLDER              all of them, to look at
    python -m tests.console.pictures docs --docs         those of the documentation

They need the extra `browser`, a Chromium and, for small files, Pillow. A cluster of real processes runs for
each call, and half a minute of it is in the charts.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributedlog import DLSN
from distributedlog.blocking import open_namespace
from tests.cluster.story import Cluster
from tests.console.chromium import go, launched, let_in, origin, ready
from tests.console.live import growing

PAGES = {
    "cluster": "cluster",
    "logs": "logs",
    "log": "log?name=orders/eu",
    "lag": "lag",
    "work": "work",
    "quorum": "quorum",
}
ODD_PAGES = {"no-log": "log?name=orders/asia", "no-page": "orders"}
WIDTHS = {1400: 900, 420: 900}
SCHEMES = ("light", "dark")
DOCS = {
    ("healthy", "cluster", 1400, "light"): "console-cluster",
    ("load", "cluster", 1400, "dark"): "console-load",
    ("dead", "cluster", 1400, "light"): "console-dead-bookie",
    ("load", "log", 1400, "light"): "console-log",
    ("dead", "work", 1400, "light"): "console-work",
    ("healthy", "quorum", 1400, "light"): "console-quorum",
    ("load", "lag", 1400, "light"): "console-lag",
    ("dead", "cluster", 420, "dark"): "console-narrow",
}
"""The pictures of the documentation, by scene, page, width and scheme."""
COLORS = 256
CHARTS_MS = 30_000
BYTES_MAX = 150_000
"""Size of a picture of the documentation."""


@contextmanager
def running(folder: Path) -> Iterator[tuple[Cluster, str]]:
    """A cluster with some logs, and the link to its console."""
    with Cluster.planned(folder, bookies=4) as cluster:
        nodes = [node.name for node in cluster.plan.nodes_of_kind("metadata")]
        cluster.start(*nodes, "bookie1", "bookie2", "bookie3")
        with open_namespace(cluster.uri) as namespace:
            for name, segments in (("orders/eu", 6), ("orders/us", 2), ("payments", 3)):
                log = namespace.open_log(name)
                for segment in range(segments):
                    with log.open_writer() as writer:
                        for one in range(300 + 400 * (segment % 3)):
                            writer.submit(json.dumps({"order": one, "total": one * 1.25}).encode())
            positions = namespace.open_log("orders/eu").positions
            positions.advance("billing", DLSN(4, 0, 0))
            positions.advance("search", DLSN(6, 100, 0))
        console = cluster.popen(
            "console", "--listen", "127.0.0.1:0", "--json", stdout=subprocess.PIPE
        )
        assert console.stdout is not None
        try:
            yield cluster, json.loads(console.stdout.readline())["console"]
        finally:
            console.terminate()
            console.wait()
            console.stdout.close()


def take(page: Any, path: Path) -> None:
    """The page from its top to its end, as a small file."""
    page.screenshot(path=path, full_page=True)
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(
            COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    few.save(path, optimize=True)


def scene(chromium: Any, link: str, name: str, folder: Path, *, docs: bool) -> None:
    """All pages as they are now."""
    for width, height in WIDTHS.items():
        for scheme in SCHEMES:
            size = {"width": width, "height": height}
            with let_in(chromium, link, viewport=size, color_scheme=scheme) as page:
                page.wait_for_selector("figure summary")
                for title, where in PAGES.items():
                    chosen = DOCS.get((name, title, width, scheme))
                    if docs and chosen is None:
                        continue
                    go(page, link, where)
                    page.wait_for_timeout(2_500)  # a rate needs two states
                    path = folder / f"{chosen if docs else f'{name}-{title}-{width}-{scheme}'}.png"
                    take(page, path)
                    assert not docs or path.stat().st_size <= BYTES_MAX, path


def odd(chromium: Any, link: str, folder: Path) -> None:
    """What a page is if there is nothing to show, and the help."""
    for width, height in WIDTHS.items():
        size = {"width": width, "height": height}
        with let_in(chromium, link, viewport=size) as page:
            for title, where in ODD_PAGES.items():
                page.goto(f"{origin(link)}/#/{where}")
                page.wait_for_selector("main h1.line")
                take(page, folder / f"{title}-{width}.png")
            go(page, link, "cluster")
            page.keyboard.press("?")
            page.wait_for_selector("#keys[open]")
            take(page, folder / f"help-{width}.png")
        context = chromium.new_context(viewport=size)
        page = context.new_page()
        page.goto(origin(link))
        ready(page, "refused")
        take(page, folder / f"token-{width}.png")
        context.close()


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (
        launched() as chromium,
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory)) as (cluster, link),
    ):
        with let_in(chromium, link) as page:
            page.wait_for_timeout(CHARTS_MS)
        scene(chromium, link, "healthy", folder, docs=options.docs)
        if not options.docs:
            odd(chromium, link, folder)
        with growing(cluster.uri, "orders/eu", "orders/us"):
            with let_in(chromium, link) as page:
                page.wait_for_timeout(CHARTS_MS)
            scene(chromium, link, "load", folder, docs=options.docs)
            cluster.kill("bookie1")
            with let_in(chromium, link) as page:
                page.wait_for_selector("tr:has-text('✕ offline')")
                page.wait_for_timeout(CHARTS_MS)
            scene(chromium, link, "dead", folder, docs=options.docs)


if __name__ == "__main__":
    main()
