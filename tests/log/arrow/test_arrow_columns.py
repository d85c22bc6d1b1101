"""Clients without the extra `arrow` load the modules for Arrow, and receive an error that names the extra."""

import sys

import pytest

from distributedlog.log.arrow.arrow_columns import choose_columns
from distributedlog.runtime.interfaces.errors import UnsupportedFormat


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    if package == "pyarrow":
        monkeypatch.setitem(sys.modules, "numpy", sys)

    with pytest.raises(UnsupportedFormat) as raised:
        choose_columns(None)

    assert str(raised.value) == (
        f"Arrow tables need the package {package}, which is not installed. "
        "Run: pip install 'distributedlog-py[arrow]'"
    )
