"""Logs as Spark tables and streams: ``spark.read.format("distributedlog")`` and its way back.

Importing this loads neither pyspark nor the servers; the names below come on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .archive.history import append_history, history_manifest, read_with_history
    from .columns import dlsn_text
    from .read import positions
    from .settings import recommended_conf, session
    from .shipping import package_zip
    from .source import DistributedLogSource
    from .spark_errors import plain_errors

__all__ = [
    "DistributedLogSource",
    "append_history",
    "dlsn_text",
    "history_manifest",
    "package_zip",
    "plain_errors",
    "positions",
    "read_with_history",
    "recommended_conf",
    "session",
]

_WHERE = {
    "DistributedLogSource": "source",
    "append_history": "archive.history",
    "dlsn_text": "columns",
    "history_manifest": "archive.history",
    "package_zip": "shipping",
    "plain_errors": "spark_errors",
    "positions": "read",
    "read_with_history": "archive.history",
    "recommended_conf": "settings",
    "session": "settings",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
