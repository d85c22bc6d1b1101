"""An object store for tests, over a directory, so that several processes see it: ``once:///some/path``.

What an object store cannot do it refuses: to rename, to append, to write over what is there, to change an
object in place; and nobody sees an object before it is complete. fsspec finds it by `registered_stores.py`.
"""

import os
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class Refused(Exception):
    """No object store does this."""


class WriteOnce(LocalFileSystem):  # type: ignore[misc]
    """``once://``."""

    protocol = ("once",)
    cachable = False
    root_marker = "/"
    refuses_to_create_again = True

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        text = str(path).removeprefix("once://")
        return text.rstrip("/") or "/"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """At once and whole, as a PUT with a condition is."""
        path = self._strip_protocol(path)
        if mode != "create":
            raise Refused(f"to write over {path}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not self.refuses_to_create_again:
            Path(path).write_bytes(value)
            return
        aside = f"{path}.put-{os.getpid()}"
        Path(aside).write_bytes(value)
        try:
            os.link(aside, path)
        finally:
            os.unlink(aside)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Complete objects."""
        found = super().ls(path, detail=True)
        return [one for one in found if ".put-" not in one["name"]]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """To read, or to upload."""
        path = self._strip_protocol(path)
        if mode == "rb":
            return open(path, "rb")
        if mode != "wb" or os.path.exists(path):
            raise Refused(f"{mode} {path}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return Upload(path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        """All of it."""
        assert start is None
        assert end is None
        return Path(self._strip_protocol(path)).read_bytes()

    def mv(self, *_: Any, **__: Any) -> None:
        raise Refused("to rename")

    rename = move = mv_file = copy = cp_file = touch = mv


class Upload:
    """There when it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def close(self) -> None:
        aside = f"{self._path}.put-{os.getpid()}"
        Path(aside).write_bytes(b"".join(self._parts))
        os.link(aside, self._path)
        os.unlink(aside)

    def discard(self) -> None:
        self._parts.clear()
