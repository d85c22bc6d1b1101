"""Certificates for tests: one authority a run, made when it is first asked for."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from distributedlog.cli.access.certificates import issue, make_authority

DOMAIN = "test"


@cache
def _scratch() -> Path:
    place = Path(tempfile.mkdtemp(prefix="dlog-pki-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def authority(domain: str = DOMAIN, name: str = "") -> Path:
    """An authority's directory; ``name``: another one of the same domain."""
    place = _scratch() / f"ca-{domain}{name}"
    if not place.exists():
        make_authority(place, domain)
    return place


def directory_of(principal: str, domain: str = DOMAIN, name: str = "") -> Path:
    """A directory of ``principal``; not to be changed."""
    place = _scratch() / f"{domain}{name}-{principal.replace('/', '-')}"
    if not place.exists():
        issue(authority(domain, name), principal, place)
    return place
