"""What is said of an interpreter's build, from what builds of this kind say of themselves."""

import platform
from collections.abc import Mapping

import pytest

from distributedlog.testing.bench.measure.interpreter_info import Build, build_of, this_build

PLAIN = {
    "CONFIG_ARGS": "'--prefix=/home/me' '--enable-shared' 'LDFLAGS=-L/home/me/lib -Wl,-rpath,/home/me/lib'",
    "PY_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall",
    "PY_CFLAGS_NODIST": "-std=c11 -Wextra -fvisibility=hidden  -I./Include/internal",
    "Py_DEBUG": 0,
}
IMAGE = {
    "CONFIG_ARGS": "'--build=x86_64-linux-gnu' '--enable-option-checking=fatal' '--enable-optimizations'"
    " '--enable-shared' '--with-lto' '--with-ensurepip'",
    "PY_CFLAGS": "-fno-strict-overflow -Wsign-compare -DNDEBUG -g -O3 -Wall",
    "PY_CFLAGS_NODIST": "-fno-semantic-interposition -flto -std=c11 -Wextra -fvisibility=hidden",
    "Py_DEBUG": 0,
    "Py_GIL_DISABLED": 0,
}
DEBIAN = {
    "CONFIG_ARGS": "'--enable-shared' '--prefix=/usr' '--with-computed-gotos' '--without-ensurepip'"
    " '--with-wheel-pkg-dir=/usr/share/python-wheels/' 'MKDIR_P=/bin/mkdir -p'"
    " '--enable-experimental-jit=yes-off' 'CC=x86_64-linux-gnu-gcc'",
    "PY_CFLAGS": "-fno-strict-overflow -Wsign-compare -DNDEBUG -g -O2 -Wall",
    "PY_CFLAGS_NODIST": "-g -fwrapv -O2 -std=c11 -Wextra -D_Py_TIER2=3 -D_Py_JIT",
    "Py_DEBUG": 0,
    "Py_GIL_DISABLED": 0,
}
FEDORA = {
    "CONFIG_ARGS": "'--enable-optimizations' '--with-lto' '--with-wheel-pkg-dir=/usr/share/x'"
}
WINDOWS: dict[str, object] = {"Py_DEBUG": None, "CONFIG_ARGS": None}


def _build(said: Mapping[str, object], *, jit: bool | None = None) -> Build:
    return build_of("CPython 3.14.2", said, jit=jit)


@pytest.mark.parametrize(
    ("said", "optimised"),
    [
        (PLAIN, False),
        ({"CONFIG_ARGS": ""}, False),  # ./configure and no more
        ({"CONFIG_ARGS": "'--enable-optimizations=no' '--with-lto=no'"}, False),
        (IMAGE, True),
        (FEDORA, True),
        ({"CONFIG_ARGS": "", "PY_CFLAGS_NODIST": "-fprofile-use -flto=auto"}, True),
        (DEBIAN, None),
        (WINDOWS, None),
    ],
)
def test_optimised_or_not_or_unsaid(said: Mapping[str, object], optimised: bool | None) -> None:
    build = _build(said)

    assert (build.pgo, build.lto) == (optimised, optimised)
    assert (build.advice() is None) == (optimised is not False), "advice is for what is known"


def test_link_time_optimisation_alone_is_not_enough() -> None:
    build = _build({"CONFIG_ARGS": "'--with-lto=full'"})

    assert build.describe() == "CPython 3.14.2, without PGO, with LTO"
    assert build.advice() is not None


def test_the_advice_is_one_line_that_says_what_to_do() -> None:
    advice = _build(PLAIN).advice()

    assert advice is not None
    assert "--enable-optimizations" in advice
    assert "\n" not in advice


def test_a_debug_build_is_told_so() -> None:
    build = _build({**IMAGE, "Py_DEBUG": 1})

    assert build.describe() == "CPython 3.14.2, with PGO, with LTO, a debug build"
    assert "--with-pydebug" in (build.advice() or "")


def test_free_threading_and_the_jit_are_named() -> None:
    build = _build({**DEBIAN, "Py_GIL_DISABLED": 1}, jit=True)

    assert build.describe() == "CPython 3.14.2, PGO unknown, LTO unknown, free threading, JIT on"
    assert _build(DEBIAN, jit=False).describe() == "CPython 3.14.2, PGO unknown, LTO unknown"


def test_this_interpreter_is_described() -> None:
    build = this_build()

    assert build.name == f"{platform.python_implementation()} {platform.python_version()}"
    assert build.as_json()["advice"] == build.advice()
