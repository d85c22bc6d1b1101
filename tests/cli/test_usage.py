"""Wrong usage is one line, exit code 2, before any cluster is asked (design: the contract of `dlog`)."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from distributedlog.cli.cluster.metadata import _is_voting
from distributedlog.cli.cluster.status import show
from distributedlog.cli.framework import named_clusters
from distributedlog.cli.framework.errors import ExitWithCode, innermost, report, with_hint
from distributedlog.cli.framework.options import CommandWithSubcommands, run_confirmed
from distributedlog.cli.framework.output import table
from distributedlog.cli.main import _show_all_characters, command, run
from distributedlog.cluster.status.cluster_overview import conditions_of_members, majority_lost
from distributedlog.metadata.model.interface import MemberStatus
from distributedlog.runtime.interfaces import errors
from distributedlog.runtime.interfaces.errors import (
    BY_CODE,
    ConfirmationRequired,
    InvalidUri,
    LogNotFound,
    NotAllowed,
)


@pytest.fixture(autouse=True)
def _no_cluster_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("DLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def _leaves(
    group: click.Group, path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None, name
        if isinstance(one, click.Group):
            found += _leaves(one, (*path, name))
        else:
            found.append(((*path, name), one))
            if isinstance(one, CommandWithSubcommands):
                found += [((*path, name, str(word)), sub) for word, sub in one.subcommands.items()]
    return found


COMMANDS = _leaves(command, ())


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["log", "nonsense"],
        ["log", "write"],
        ["log", "read", "x", "--format", "xml"],
        ["log", "read", "x", "--from", "1.0.0", "--from-txid", "3", "--uri", "distributedlog://h:1/n"],
        ["log", "list"],  # no cluster is named
        ["log", "list", "--timeout", "0"],
        ["local", "--memory", "--data", "x"],
        ["chaos", "run", "kills", "--seconds", "25"],  # it could only be VOID
        ["local", "--metadata-nodes", "2"],
        ["serve", "bookie", "--data", "x"],
        ["serve", "metadata", "--data", "x", "--metadata", "a:1,b:2"],
        ["serve", "metadata", "--data", "x", "--metadata", "a:1,b:2", "--name", "c:3"],
        ["serve", "bookie", "--data", "x", "--metadata", "nonsense"],
        ["serve", "bookie", "--data", "x", "--metadata", "a:1", "--listen", "nonsense"],
        ["status", "--uri", "distributedlog+proxy://h:1/n"],  # of proxies, which cannot say
        ["proxy", "list", "--uri", "distributedlog+proxy://h:1/n"],
        ["grant", "add", "etl", "writer", ""],  # an unset variable is not the whole namespace
        ["grant", "revoke", "etl", ""],
        ["user", "token", "etl", "--path", ""],
        ["context", "use", "nowhere"],
        ["context", "set", "x", "nonsense"],
        ["bench", "baseline", "--size", "0"],
        ["log", "read", "x", "--since", "20260131", "--uri", "distributedlog://h:1/n"],
        ["log", "tail", "x", "--since", "64MiB", "--uri", "distributedlog://h:1/n"],
        ["log", "find", "x", "--time", "1769860800000", "--uri", "distributedlog://h:1/n"],
        ["repair", "pause", "--for", "3600", "--uri", "distributedlog://h:1/n"],
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dlog: error: ")
    assert said.err.count("\n") == 1


def test_every_command_shows_examples_before_its_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path, _ in COMMANDS:
        assert run([*path, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.index("Examples:") < said.index("Options:"), path
        assert "dlog " + path[0] in said


def test_every_command_has_the_common_options_and_a_variable_for_each_flag() -> None:
    for path, one in COMMANDS:
        flags = {flag for option in one.params for flag in option.opts}
        assert {"--uri", "--json", "--timeout", "--quiet", "--verbose"} <= flags, path


SHARED_FLAGS = {
    "--delete": "names the object that it deletes",
    "--limit": "names the objects that it counts",
    "--output": "a directory or a file",
}
"""Flags whose help differs between commands, with the reason. Their meaning is the same in all of them."""


def test_a_flag_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for _, one in COMMANDS:
        for option in one.params:
            if isinstance(option, click.Option):
                meaning = re.split(r"[.:;(]", option.help or "")[0].strip()
                for flag in (*option.opts, *option.secondary_opts):
                    takes = "nothing" if option.is_flag else "a value"
                    meanings.setdefault(flag, set()).add(f"{meaning}; it takes {takes}")
    several = {flag: said for flag, said in meanings.items() if len(said) > 1}

    assert several.keys() == SHARED_FLAGS.keys(), several
    assert len(SHARED_FLAGS) <= 5, "rename the flag instead"


def test_the_help_of_what_asks_no_cluster_shows_no_uri(capsys: pytest.CaptureFixture[str]) -> None:
    alone: set[str] = set()
    serving: set[str] = set()
    for path, _ in COMMANDS:
        assert run([*path, "--help"]) == 0
        said = capsys.readouterr().out
        assert "\n\n\n" not in said
        if "--uri" not in said:
            (serving if path[0] == "serve" else alone).add(" ".join(path))

    of_groups = {
        "chaos", "check", "completion", "config", "context", "help", "local", "pki", "version",
    }  # fmt: skip
    every = {" ".join(path) for path, _ in COMMANDS if path[0] in of_groups}
    assert alone == every | {"bench baseline"}
    assert serving == {
        f"serve {kind}" for kind in ("metadata", "bookie", "write-proxy", "read-proxy")
    }


def test_a_default_in_a_help_text_is_the_default() -> None:
    """Only numbers. A flag without a default of its own is skipped: the called code has the default."""
    stated, wrong = 0, []
    for path, one in COMMANDS:
        for option in one.params:
            number = re.search(r"\(default (\d+(?:\.\d+)?)", getattr(option, "help", None) or "")
            if number and isinstance(option.default, int | float):
                stated += 1
                if option.default != float(number[1]):
                    wrong.append(f"{path} {option.opts[0]}: {option.default}, not {number[1]}")
    assert wrong == []
    assert stated > 10


def test_a_flag_of_a_cluster_is_taken_where_no_help_shows_it() -> None:
    """One set of flags, or of variables, does for all commands of a script."""
    assert run(["--uri", "distributedlog://h:1/n", "completion", "bash", "--timeout", "3"]) == 0


def test_a_flag_can_come_from_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_LOG_READ_FORMAT", "xml")

    assert run(["log", "read", "x"]) == 2
    assert "xml" in capsys.readouterr().err


def test_of_many_who_name_clusters_at_one_moment_none_is_lost(tmp_path: Path) -> None:
    """Concurrent changes of the file are serialized by a lock."""
    program = (
        "import sys\n"
        "from distributedlog.cli.framework.named_clusters import edit_contexts\n"
        "for number in range(50):\n"
        "    with edit_contexts() as contexts:\n"
        "        contexts['contexts'][f'{sys.argv[1]}-{number}'] = 'distributedlog://h:1/n'\n"
    )
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", program, name], env=environment) for name in "abc"
    ]

    assert [one.wait(60) for one in writers] == [0, 0, 0]
    assert len(named_clusters.load_contexts()["contexts"]) == 150


def test_contexts_name_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "set", "a", "distributedlog://h:1/n"]) == 0
    assert run(["context", "set", "b", "distributedlog://h:2/n"]) == 0
    assert run(["context", "set", "c ä 😀", "distributedlog://h:3/n"]) == 0
    assert run(["context", "use", "b"]) == 0
    capsys.readouterr()

    assert run(["context", "list"]) == 0

    assert capsys.readouterr().out == (
        "  a      distributedlog://h:1/n\n"
        "* b      distributedlog://h:2/n\n"
        "  c ä 😀  distributedlog://h:3/n\n"
    )


def test_changes_are_reported_in_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    changes = (
        (["set", "a", "distributedlog://h:1/n"], "stored context a and selected it", "stored"),
        (
            ["set", "b", "distributedlog://h:2/n"],
            "stored context b; the selected one is a",
            "stored",
        ),
        (["use", "b"], "selected context b: distributedlog://h:2/n", "selected"),
        (["rename", "a", "c"], "renamed context a to c", "renamed"),
        (["delete", "c"], "deleted context c", "deleted"),
    )
    for words, note, _ in changes:
        assert run(["context", *words]) == 0
        said = capsys.readouterr()
        assert said.err.startswith(note)
        assert said.out == ""
    for words, _, action in changes:
        assert run(["context", *words, "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)[action] is True
        assert said.err == ""


DESTRUCTIVE = (
    ["log", "delete", "x"],
    ["log", "seal", "x"],
    ["log", "truncate", "x", "--before", "1.0.0"],
    ["log", "truncate", "x", "--before-txid", "7"],
    ["log", "truncate", "x", "--before-position", "cold"],
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "no such command 'stauts'; did you mean status?"),
        (["log", "trucate", "x"], "did you mean truncate or create?"),
        (["metadata", "replce"], "did you mean replace?"),
        (["xyzzy"], "no such command 'xyzzy' (see"),
        (
            ["log", "orders", "read", "--limit", "3"],
            'did you mean "dlog log read orders --limit 3"?',
        ),
        (["orders", "log", "read"], 'did you mean "dlog log read orders"?'),
        (["b4", "decommission"], 'did you mean "dlog decommission b4"?'),
        (["read", "it's"], """did you mean "dlog log read 'it'"'"'s'"?"""),
        (["log", "help"], 'did you mean "dlog help log"?'),
    ],
)
def test_a_command_that_is_not_there_is_answered_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err


def test_a_missing_log_is_named_in_the_command_that_makes_it() -> None:
    missing = LogNotFound('log "orders/eu" does not exist in namespace default', "orders/eu")
    odd = LogNotFound('log "it\'s" does not exist in namespace default', "it's")
    deleted = LogNotFound('log "orders" has been deleted')

    assert with_hint(missing).endswith('; create it with "dlog log create orders/eu"')
    assert "dlog log create" in with_hint(odd)
    assert with_hint(deleted) == 'log "orders" has been deleted'


def test_who_may_not_is_told_who_gives_rights() -> None:
    """A new user met `may not read 'name/ns\\x00orders'` and nothing to do."""
    assert with_hint(
        NotAllowed("user/etl may not write log 'orders' of ns: it needs manage")
    ).endswith('; an admin can grant rights with "dlog grant add USER ROLE PATH"')
    narrowed = with_hint(
        NotAllowed(
            "user/etl may not read X: it needs read, and the token is restricted to read of a in ns",
            NotAllowed.RESTRICTED_TOKEN,
        )
    )
    assert narrowed.endswith('; "dlog user token" creates a token with more rights')
    assert "an admin" not in narrowed


def _python(program: str) -> "subprocess.CompletedProcess[str]":
    return _run([sys.executable, "-c", program])


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_interruption_while_it_is_loaded_is_one_line_and_130() -> None:
    """It was the traceback of an import."""
    program = (
        "import os, signal, sys\n"
        "class Moment:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'distributedlog.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Moment())\n"
        "import distributedlog_launcher as dlog\n"
        "dlog.main()\n"
    )

    done = _python(program)

    assert (done.returncode, done.stderr) == (130, "dlog: interrupted\n")


@pytest.mark.parametrize(
    "module",
    [
        "distributedlog.cli.connection.cluster_connection",
        "distributedlog.metadata.client.metadata_client",
    ],
)
def test_an_interruption_that_is_swallowed_while_a_command_is_loaded_comes_again(
    module: str,
) -> None:
    """Before the loop runs, and in it: of 500 such moments one was lost, and the command went on."""
    program = (
        "import os, signal, sys, weakref\n"
        "class Lock: pass\n"
        "class Moment:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == '{module}':\n"
        "            lock = Lock()\n"
        "            weakref.finalize(lock, os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Moment())\n"
        "import distributedlog_launcher as dlog\n"
        "sys.argv[1:] = ['status', '--uri', 'distributedlog://127.0.0.1:1/n', '--timeout', '30']\n"
        "dlog.main()\n"
    )

    done = _python(program)

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "dlog: interrupted"


def test_an_interruption_that_an_import_would_swallow_is_one_too() -> None:
    """A KeyboardInterrupt in a callback of an import's lock is printed and forgotten: the command ran on."""
    program = (
        "import os, signal, sys, weakref\n"
        "class Lock: pass\n"
        "class Moment:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'distributedlog.cli':\n"
        "            lock = Lock()\n"
        "            weakref.finalize(lock, os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Moment())\n"
        "import distributedlog_launcher as dlog\n"
        "sys.argv[1:] = ['--version']\n"
        "dlog.main()\n"
    )

    done = _python(program)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dlog: interrupted\n")


def test_an_interruption_after_the_end_changes_nothing() -> None:
    """Python's own goodbyes printed a traceback for it."""
    program = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "import distributedlog_launcher as dlog\n"
        "sys.argv[1:] = ['context', 'use', 'nowhere']\n"
        "dlog.main()\n"
    )

    done = _python(program)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("stream", "words", "code"), [
    ("<&-", "log delete x --uri distributedlog://127.0.0.1:1/n", 5),
    (">&-", "context list", 0),
])  # fmt: skip
def test_a_closed_stream_is_an_empty_one(stream: str, words: str, code: int) -> None:
    """It was "a defect of dlog", and the next socket had its number."""
    program = (
        f"import sys, distributedlog_launcher as dlog; sys.argv[1:] = {words.split()}; dlog.main()"
    )
    line = f'exec "$0" -c "$1" {stream}'

    done = _run(["sh", "-c", line, sys.executable, program])

    assert done.returncode == code, done.stderr
    assert "defect" not in done.stderr


def test_who_says_no_is_not_told_of_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))

    assert run(["log", "delete", "x", "--uri", "distributedlog://127.0.0.1:1/n"]) == 6
    assert "dlog: nothing was changed\n" in capsys.readouterr().err


def test_a_table_on_a_narrow_terminal_cuts_no_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of an address, or of an id that the next command wants, is of no use."""
    cells = [
        "b1",
        "6b4d21b70c6ed68ce4e56eab47fa007a",
        "127.0.0.1:34191",
        "1795319108300",
        "75.9 GiB",
    ]
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    table(["name", "id", "address", "txid", "free"], [cells])

    said = capsys.readouterr().out
    assert all(cell in said for cell in cells)


@pytest.mark.parametrize(
    ("role", "applied", "votes"),
    [
        ("leader", 9, True),
        ("follower", 9, True),
        ("pre-candidate", 9, True),
        ("follower", 0, False),  # it has not heard yet that it is a learner
        ("learner", 9, False),
        ("starting", 0, False),
        ("empty", 0, False),
        ("unreachable", 0, False),
        ("damaged", 9, False),
    ],
)
def test_who_was_let_in_is_waited_for_until_it_says_that_it_votes(
    role: str, applied: int, votes: bool
) -> None:
    """A moment after `dlog metadata add` the leader has it as empty, or as not reached."""
    new = MemberStatus("m2", "h:1", role, 1, applied, True, "new")
    old = MemberStatus("m2", "h:1", "follower", 1, 9, False, "old")

    assert _is_voting([new], "m2", "new") is votes
    assert not _is_voting([old, new], "m2", "new")
    assert not _is_voting([], "m2", "new")


def test_what_cannot_be_mended_by_a_command_is_not_advised() -> None:
    """Two lost disks of three: nobody is left to let the nodes in."""

    def member(name: str, role: str) -> MemberStatus:
        return MemberStatus(name, "h:1", role, 1, 1, True, name)

    well, empty, damaged = "follower", "empty", "damaged"
    for roles, lost in (
        ((well, well, empty), None),
        ((well, empty, empty), (2, 3)),
        ((well, damaged, empty), (2, 3)),
        ((well, well, damaged, empty, empty), (3, 5)),
        ((empty, empty, empty), None),  # none has been formed yet
        ((well, well, empty, "learner"), None),
    ):
        members = [member(f"m{n}", role) for n, role in enumerate(roles)]
        found = majority_lost(members)
        assert lost == (found and (found.integer("lost"), found.integer("voters"))), roles
        of_nodes = [one for one in conditions_of_members(members) if one.node]
        replaceable = {
            one.integer("replaceable") for one in of_nodes if "replaceable" in one.parameters
        }
        assert replaceable <= {int(lost is None)}, roles


def test_what_a_reader_will_never_be_given_is_given_up_by_typing_the_ledgers_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A y, or another number, changes nothing; no cluster is asked before."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    command = [
        "ledger",
        "accept-loss",
        "7",
        "--last-kept",
        "3",
        "--reason",
        "gone",
        "--uri",
        "nonsense://",
    ]
    for typed in ("y", "8", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(typed + "\n"))
        assert run(command) == 6
        said = capsys.readouterr().err
        assert "type 7" in said
        assert "nothing was changed" in said
    monkeypatch.setattr(sys, "stdin", Terminal("7\n"))
    assert run(command) == 2
    assert "unknown scheme" in capsys.readouterr().err
    assert run([*command[:-3], "\udcff", "--uri", "nonsense://", "--force"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_deleting_asks_for_consent_and_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for words in DESTRUCTIVE:
        assert run([*words, "--uri", "distributedlog://127.0.0.1:1/n", "--timeout", "1"]) == 5, (
            words
        )
        said = capsys.readouterr().err
        assert "There is no way back. Use --force to proceed" in said
        assert "distributedlog://127.0.0.1:1/n" in said


class Refusing:
    """A cluster that requires a confirmation."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def __call__(self, force: bool) -> str:
        self.calls.append(force)
        if not force:
            raise ExceptionGroup("tasks", [ConfirmationRequired("writers stop")])
        return "done"


def test_cluster_that_requires_a_confirmation_gets_it_only_with_force() -> None:
    cluster = Refusing()

    with pytest.raises(ConfirmationRequired, match=r"stop it\? writers stop\. Use --force"):
        run_confirmed("stop it", False, cluster)
    assert cluster.calls == [False]

    assert run_confirmed("stop it", True, cluster) == "done"
    assert cluster.calls == [False, False, True]  # an older version requires none, and gets no flag


@pytest.mark.parametrize(("answer", "calls"), [("y", [False, True]), ("n", [False])])
def test_cluster_that_requires_a_confirmation_gets_it_from_a_terminal(
    monkeypatch: pytest.MonkeyPatch, answer: str, calls: list[bool]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    cluster = Refusing()

    with contextlib.suppress(ExitWithCode):
        run_confirmed("stop it", False, cluster)

    assert cluster.calls == calls


def test_ready_file_replaces_only_a_ready_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine\n")
    for file, said in ((notes, "is not a ready file"), (tmp_path, "is a directory")):
        assert run(["local", "--memory", "--ready-file", str(file)]) == 2
        assert said in capsys.readouterr().err

    assert notes.read_text() == "mine\n"


def test_an_error_shows_its_name_code_and_message_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = ExceptionGroup(
        "tasks", [ValueError("noise"), ExceptionGroup("more", [LogNotFound("no\nlog")])]
    )

    assert report(group, verbose=0) == 3
    assert capsys.readouterr().err == "dlog: error: LogNotFound (510): no log\n"
    report(group, verbose=2)
    assert "ValueError: noise" in capsys.readouterr().err
    assert isinstance(innermost(group), LogNotFound)


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {cls.exit_code for cls in BY_CODE.values()} <= {1, 2, 3, 4, 5, 7}
    assert report(InvalidUri("x"), verbose=0) == 2
    assert report(KeyboardInterrupt(), verbose=0) == 130


def test_the_tree_of_errors_names_each_of_them() -> None:
    tree = (errors.__doc__ or "").replace(",", " ").split()

    assert {cls.__name__ for cls in BY_CODE.values()} - set(tree) == set()


HELD = {
    "code": "deletions_held",
    "severity": "degraded",
    "parameters": {},
    "text": "nothing is deleted",
}


def test_a_status_without_a_quorum_does_not_say_that_there_is_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unknown is never "no"."""
    nobody: dict[str, object] = {
        "bookies": [],
        "logs": None,
        "under_replicated": [],
        "versions": None,
        "metadata": [],
    }
    show({"healthy": False, "health": "down", "conditions": [HELD], **nobody})

    said = capsys.readouterr().out
    assert said.startswith("NOT healthy: down\n  - degraded: nothing is deleted\n")
    assert "bookies, logs, ledgers with missing copies: unknown" in said
    assert "no bookies" not in said


def test_a_status_calls_bookies_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A drain said on which 32 letters a ledger lies; of two with one name it is said which."""
    one, two, old = "1" * 32, "2" * 32, "3" * 32
    row = {"state": "up", "address": "h:1", "ledgers": 1, "free_bytes": 1, "corruption": None}
    row |= {"ledgers_missing": 0}
    names = ((one, "b1"), (two, "b2"), (old, "b2"))
    found: dict[str, object] = {
        "healthy": False,
        "health": "degraded",
        "conditions": [HELD | {"text": f"bookie b1 ({one}) waits for {two}, {old}"}],
        "bookies": [row | {"id": bookie, "label": label} for bookie, label in names],
        "logs": 1,
        "under_replicated": [],
        "versions": None,
        "metadata": [],
    }

    show(found)

    said = capsys.readouterr().out
    assert "  - degraded: bookie b1 waits for b2 (22222222), b2 (33333333)\n" in said
    assert [line.split("  ")[0] for line in said.splitlines() if " up " in line] == [
        "b1",
        "b2 (22222222)",
        "b2 (33333333)",
    ]


def test_what_a_status_says_in_sentences_is_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    why = "of the newest ledgers have copies together, such as ledger 7: b1 and b2 share host h1"
    corruption = {"corrupt_ledgers": 1, "without_a_good_copy": 0, "repaired_entries": 1}
    row = {"id": "1" * 32, "label": "b1", "state": "up", "address": "h:1", "ledgers": 1}
    found: dict[str, object] = {
        "healthy": False,
        "health": "degraded",
        "conditions": [HELD | {"text": f"metadata node m1: {why}"}],
        "bookies": [row | {"free_bytes": 1, "corruption": corruption, "ledgers_missing": 0}],
        "logs": 1,
        "under_replicated": [],
        "versions": None,
        "metadata": [],
    }

    show(found)

    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    joined = " ".join(said.split())
    assert f"- degraded: metadata node m1: {why}" in joined
    assert "1 ledger waits for repair, 0 of them without a good copy; 1 entry repaired" in joined


@pytest.mark.parametrize("words", [["write"], ["read"], ["tail"], ["interference"]])
def test_a_bench_without_a_cluster_ends_at_its_timeout(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It took 30 s whatever was said."""
    assert (
        run(["--timeout", "0.5", "--uri", "distributedlog://127.0.0.1:1/n", "bench", *words]) == 4
    )
    assert "answered within 0.5 s" in capsys.readouterr().err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_name_that_the_locale_cannot_print_is_printed_with_escapes(
    errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", errors=errors))

    _show_all_characters()
    print("log-日本", flush=True)

    assert written.getvalue() == b"log-\\u65e5\\u672c\n"


def test_an_interrupted_command_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(
        command.commands, "interrupted", click.Command("interrupted", callback=interrupted)
    )

    assert run(["interrupted"]) == 130
    assert capsys.readouterr().err == "dlog: interrupted\n"
