"""Check the names of logs and namespaces (pure).

The rules are those of DistributedLog.
"""

import unicodedata

from ...runtime.interfaces.errors import InvalidLogName, InvalidUri

NAME_BYTES_MAX = 255
NAMESPACE_BYTES_MAX = 255


def check_log_name(name: str) -> str:
    """Return the name of a log if it is valid.

    Path-like names (``a/b``) are valid. Not valid are an empty name, a leading ``.`` or ``<`` (reserved) or
    ``/``, a trailing ``/``, white space, control characters, ``<``, ``>``, ``//``, and the components ``.``
    and ``..``.

    Raises:
        InvalidLogName: The name is not valid. The message states the violated rule.
    """
    problem = _name_error(name, NAME_BYTES_MAX)
    if problem:
        raise InvalidLogName(f"not a log name: {name[:80]!r}: {problem}")
    return name


def check_new_log_name(name: str) -> str:
    """Return the name of a log to be created if it is valid.

    In addition to `check_log_name`, the name must be in the normal form NFKC, so that names that look alike
    are equal. Existing logs with other names can be opened, renamed and deleted.

    Raises:
        InvalidLogName: The name is not valid.
    """
    check_log_name(name)
    normal = unicodedata.normalize("NFKC", name)
    if normal != name:
        raise InvalidLogName(
            f"not a name for a new log: {name[:80]!r} is not normalized (NFKC): use {normal[:80]!r}"
        )
    return name


def check_namespace_path(path: str) -> str:
    """Return the path of a namespace without outer slashes if it is valid.

    Raises:
        InvalidUri: The path breaks a rule of `check_log_name`.
    """
    trimmed = path.strip("/")
    problem = _name_error(trimmed, NAMESPACE_BYTES_MAX)
    if problem:
        raise InvalidUri(f"not a namespace path: {path[:80]!r}: {problem}")
    return trimmed


def _name_error(name: str, bytes_max: int) -> str:
    if not isinstance(name, str):
        return "it is not text"
    if not name:
        return "it is empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if size > bytes_max:
        return f"it has {size} bytes, the maximum is {bytes_max}"
    if name[0] in ".<":
        return f"names that begin with {name[0]!r} are reserved"
    if name[0] == "/" or name[-1] == "/":
        return "it begins or ends with '/'"
    for character in name:
        if character.isspace() or character in "<>" or not character.isprintable():
            return f"it contains {character!r}"
    parts = name.split("/")
    if "" in parts:
        return "it contains '//'"
    if "." in parts or ".." in parts:
        return "it has a component '.' or '..'"
    return ""
