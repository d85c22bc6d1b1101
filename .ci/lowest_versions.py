"""Print the lowest allowed version of each dependency, as constraints for pip, from pyproject.toml.

The file is made for `pip install -c`, because pip itself always takes the highest version.
The extras are named as arguments: `lowest_versions.py test gateway`.
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*>=\s*(?P<version>[0-9][0-9.]*)(?:\s*,.*)?")


def lowest(requirements: list[str]) -> list[str]:
    """Return `NAME==VERSION` of each requirement. Raises `ValueError` for one without a lower bound."""
    found = []
    for requirement in requirements:
        match = _BOUND.fullmatch(requirement.strip())
        if match is None:
            raise ValueError(f"{requirement!r} has no lower bound of the form NAME>=VERSION")
        found.append(f"{match['name']}=={match['version']}")
    return found


def main(extras: list[str]) -> None:
    """Print the constraints of the project and of its extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    print("\n".join(dict.fromkeys(lowest(requirements))))


if __name__ == "__main__":
    main(sys.argv[1:])
