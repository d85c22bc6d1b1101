"""The checker of the tree's laws finds each breach, and nothing else."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_check", ROOT / ".ci" / "house_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


house_check = load()
LONG = "def run():\n" + "    x = 1\n" * 60
METHODS = "".join(f"    def m{n}(self): ...\n" for n in range(26))


def places(rule: str, *texts: str, path: str = "log/any.py") -> list[str]:
    modules = [house_check.Module(path, text) for text in texts]
    return list(house_check.RULES[rule](house_check.Tree(modules, [])))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("shared_class_names", "class Run: ...\nclass Run: ..."),
        ("outside_callbacks", "queue.on_news = wake"),
        ("outside_callbacks", "class A:\n    wake: Callable[[], None] | None\na.b.wake = run"),
        ("small_modules", "x = 1\n" * 59),
        ("large_classes", "class Log2:\n" + METHODS),
        ("long_functions", LONG),
        ("many_parameters", "class A:\n    def __init__(self, a, b, c, d, e, *, f, g, h, i): ..."),
        ("many_parameters", "def read(a, b, c, d, e, f, g, h, i): ..."),
        ("many_parameters", "def _read(*, a, b, c, d, e, f, g, h, i): ..."),
    ],
)
def test_a_breach_is_counted_once(rule: str, text: str) -> None:
    assert len(places(rule, text)) == 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("shared_class_names", "class _Run: ...\nclass _Run: ..."),
        ("outside_callbacks", "self.on_news = wake"),
        ("outside_callbacks", "class A:\n    wake: int\na.wake = 1"),
        ("small_modules", "x = 1\n" * 60),
        ("large_classes", "class Log:\n" + METHODS),
        ("long_functions", LONG.removesuffix("    x = 1\n")),
        ("many_parameters", "def read(a, *, b, c, d, e, f, g, h, i): ..."),
        ("many_parameters", "def read(a, b, c, d, e, f, g, h): ..."),
        ("many_parameters", '@click.option("--a")\ndef read(a, b, c, d, e, f, g, h, i): ...'),
    ],
)
def test_what_the_laws_allow_is_not_counted(rule: str, text: str) -> None:
    assert places(rule, text) == []


def test_a_folder_may_have_15_modules() -> None:
    modules = [house_check.Module(f"log/m{n}.py", "") for n in range(15)]
    init = house_check.Module("distributedlog/log/__init__.py", "")
    more = house_check.Module("log/m15.py", "")

    assert list(house_check.large_folders(house_check.Tree([*modules, init], []))) == []
    assert len(list(house_check.large_folders(house_check.Tree([*modules, more], [])))) == 1


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("log/writing.py", 1),
        ("log/lost_and_closed.py", 1),
        ("log/token_ring.py", 0),
        ("ledger/model/striping.py", 0),
        ("log/writing_call.py", 0),
    ],
)
def test_a_file_name_is_no_participle(path: str, count: int) -> None:
    assert len(places("participles", "", path=path)) == count
