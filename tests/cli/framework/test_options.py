"""Where an option's value is taken from: the command line before the environment, at whatever level.

The deletion itself, in the cluster that was named, is in `test_places.py`.
"""

from itertools import product

import click
import pytest
from click.testing import CliRunner

from distributedlog.cli.framework.options import CliCommand, Group, Settings, common
from distributedlog.cli.main import command

B, A = "distributedlog://b:1/n", "distributedlog://a:1/n"
VALUES: dict[str, tuple[str, str, list[str], object, str, object]] = {
    "uri": ("uri", "URI", ["--uri", B], B, A, A),
    "timeout": ("timeout_s", "TIMEOUT", ["--timeout", "5"], 5.0, "60", 60.0),
    "json": ("json", "JSON", ["--json"], True, "0", False),
    "quiet": ("quiet", "QUIET", ["--quiet"], True, "0", False),
    "verbose": ("verbose", "VERBOSE", ["-v"], 1, "2", 2),
}
"""Option to (field, variable, flag, its value, the variable's text, its value)."""


def _settings(before: list[str], after: list[str], variables: dict[str, str]) -> Settings:
    """What a command at the second level is called with, under the real top level of `dlog`."""
    seen: list[Settings] = []

    @click.group(cls=Group)
    def inner() -> None:
        """Levels between."""

    @inner.command(cls=CliCommand)
    @common
    def leaf(settings: Settings) -> None:
        """The command."""
        seen.append(settings)

    top = Group("dlog", params=command.params, callback=command.callback)
    top.context_settings = command.context_settings
    top.add_command(inner, "log")
    done = CliRunner().invoke(
        top, [*before, "log", "leaf", *after], env=variables, catch_exceptions=False
    )
    if not seen:
        raise click.UsageError(done.output)
    return seen[0]


@pytest.mark.parametrize(("option", "inside"), [*product(VALUES, (False, True))])
def test_the_command_line_goes_before_the_environment_wherever_it_stands(
    option: str, inside: bool
) -> None:
    field, name, flag, wanted, text, _ = VALUES[option]

    for variable in (f"DLOG_{name}", f"DLOG_LOG_LEAF_{name}"):
        found = _settings([] if inside else flag, flag if inside else [], {variable: text})
        assert getattr(found, field) == wanted, variable


@pytest.mark.parametrize("option", VALUES)
def test_of_two_variables_the_one_of_the_command_counts(option: str) -> None:
    field, name, _, general, text, wanted = VALUES[option]
    variables = {f"DLOG_{name}": str(general), f"DLOG_LOG_LEAF_{name}": text}

    assert getattr(_settings([], [], variables), field) == wanted
    del variables[f"DLOG_LOG_LEAF_{name}"]
    assert getattr(_settings([], [], variables), field) == general


def test_of_two_on_the_command_line_the_inner_one_counts() -> None:
    found = _settings(["--uri", A, "--timeout", "1"], ["--uri", B, "--timeout", "2"], {})

    assert (found.uri, found.timeout_s) == (B, 2.0)


@pytest.mark.parametrize("inside", [False, True])
def test_an_empty_uri_on_the_command_line_is_none_of_the_environments(inside: bool) -> None:
    """``--uri "$UNSET"``: whoever wrote that meant another cluster than the variable's."""
    empty = ["--uri", ""]

    with pytest.raises(click.UsageError, match="--uri is empty"):
        _settings([] if inside else empty, empty if inside else [], {"DLOG_URI": A})


def test_an_empty_variable_is_as_if_it_were_not_there() -> None:
    assert _settings(["--uri", B], [], {"DLOG_URI": "", "DLOG_LOG_LEAF_URI": ""}).uri == B
    assert _settings([], [], {"DLOG_URI": A, "DLOG_LOG_LEAF_URI": ""}).uri == A


def _repair_context(*words: str) -> click.Context:
    top = click.Context(command, info_name="dlog", auto_envvar_prefix="DLOG")
    repair = command.get_command(top, "repair")
    assert repair is not None
    return repair.make_context("repair", [*words], top)


@pytest.mark.parametrize(
    "words",
    [
        ("pause", "--for", "2h", "--json"),
        ("--json", "pause", "--for", "2h"),
        ("--timeout", "5", "--json", "pause", "--for=2h"),
        ("-q", "--json", "pause", "--for", "2h"),
    ],
)
def test_subcommand_is_found_behind_options(words: tuple[str, ...]) -> None:
    """`dlog repair --json pause` repaired a log with the name pause."""
    found = _repair_context(*words)

    assert (found.command.name, found.command_path) == ("pause", "dlog repair pause")
    assert (found.params["duration"], found.params["as_json"]) == ("2h", True)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ((), None),
        (("7",), "7"),
        (("--wait", "./pause"), "./pause"),
        (("--bookie", "pause"), None),
        (("--", "pause"), "pause"),
        (("orders", "--json"), "orders"),
    ],
)
def test_argument_that_names_no_subcommand_belongs_to_the_command(
    words: tuple[str, ...], target: str | None
) -> None:
    found = _repair_context(*words)

    assert (found.command_path, found.params["target"]) == ("dlog repair", target)


def test_option_of_a_command_is_no_option_of_its_subcommand() -> None:
    with pytest.raises(click.NoSuchOption, match="--all"):
        _repair_context("--all", "pause", "--for", "2h")


def test_help_finds_the_subcommands_of_a_command_with_arguments() -> None:
    shown = CliRunner().invoke(command, ["help", "repair", "pause"], obj=Settings())

    assert shown.output.startswith("Usage: dlog repair pause [OPTIONS]")
