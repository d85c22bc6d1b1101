"""The texts of `dlog help TOPIC`. docs/reference/command-line.md contains them.

Plain text of at most `CHARS_MAX` columns that is Markdown as it stands: paragraphs, and lines to be typed,
four spaces in.
"""

from typing import NamedTuple

CHARS_MAX = 76


class Topic(NamedTuple):
    """One of them."""

    title: str
    text: str


TOPICS = {
    "uris": Topic(
        "how a cluster and a namespace are named",
        """\
A URI names a cluster's metadata nodes, and a namespace on it:

    distributedlog://HOST:PORT[,HOST:PORT...]/NAMESPACE

Some of the nodes are enough: who answers names the others. A namespace is
made by the first log in it, and its path may have parts: /shop/eu. IPv6
addresses stand in brackets. distributedlog-bk:// means the same.

Through write and read proxies, by the addresses of proxies:

    distributedlog+proxy://HOST:PORT[,HOST:PORT...]/NAMESPACE

Programs and commands about logs take both; commands about the cluster, such
as dlog status, are answered by metadata nodes alone.

Semicolons between addresses need quotes in a shell, commas do not:

    export DLOG_URI=distributedlog://h1:4181,h2:4181,h3:4181/ns
    dlog status

A command goes to --uri, else to DLOG_URI, else to the chosen context
(dlog help contexts).
""",
    ),
    "contexts": Topic(
        "names for clusters, and the chosen one",
        """\
A context is a name for a URI. The chosen one is where commands go that have
neither --uri nor DLOG_URI:

    dlog context set here distributedlog://127.0.0.1:4181/ns
    dlog context list
    dlog context use here
    dlog context use -

The last one is the context that was chosen before. With --credentials a
context also keeps who you are there:

    dlog context set prod distributedlog://h1:4181/ns \\
        --credentials file:/etc/dlog/me

dlog local on a terminal names its cluster "local" while it runs, or while
its data are kept; a second one has the name while it runs. Programs know
no contexts; give them the URI:

    export DLOG_URI=$(dlog context show here)

They are in $XDG_CONFIG_HOME/dlog/contexts.toml, else in ~/.config/dlog.
""",
    ),
    "exit-codes": Topic(
        "how a command ended",
        """\
      0  done
      1  failed
      2  wrong usage: nothing was asked of anybody
      3  not found, or exists already
      4  unreachable, or the deadline (--timeout) passed
      5  refused: not allowed, over a limit, fenced
      6  the check is done, and the answer is no
      7  outcome unknown: a write may have happened, or not
    130  interrupted

An error is one line on stderr, with the error's name and number, such as
LogNotFound (510); -vv shows where it came from. 6 is for scripts, from
commands that check something:

    dlog status --wait healthy --timeout 60
    dlog node can-stop b2 && ssh h2 systemctl restart dlog-bookie@b2

If every address of the URI refuses connections for three seconds, no
cluster is there, and the code is 4. With --timeout, a command waits longer.

After 7 read the log before you write again, or name a producer, which makes
a repetition safe (docs/guides/exactly-once.md).
""",
    ),
    "environment": Topic(
        "variables that dlog reads",
        """\
    DLOG_URI                where commands and programs go
    DLOG_CREDENTIALS        who you are there: file:PATH
    DLOG_<COMMAND>_<FLAG>   any flag of any command
    DLOG_<FLAG>             --timeout, --json, -q, -v of all commands
    XDG_CONFIG_HOME         where contexts are kept (dlog help contexts)
    COLUMNS                 how wide tables may be, off a terminal too

A flag's variable has the words of its command, and its long name:

    DLOG_LOG_READ_FORMAT=jsonl dlog log read orders
    DLOG_SERVE_BOOKIE_DATA=/var/lib/dlog/b
    DLOG_TIMEOUT=5 dlog status

What stands on the command line goes before a variable, wherever it stands.
""",
    ),
    "settings": Topic(
        "what can be set, and which value counts",
        """\
Of a node: a flag or --set counts before a variable, that before the file of
--config, that before the default.

    dlog config init bookie > bookie.toml
    dlog config check bookie.toml
    dlog config show bookie --file bookie.toml --changed
    dlog serve bookie --config bookie.toml --set lost_after_s=10m

Of a log: what open_log(config=) says in a program counts before what is
stored for the log, that before what is stored for its namespace, that
before open_namespace(config=).

    dlog config show log
    dlog log config orders set retention_s=7d segment_bytes_max=64MiB
    dlog log config --namespace set retention_s=30d
    dlog log config orders unset retention_s

Sizes take KiB, MiB, GiB, TiB, times ms, s, m, h, d. Every setting has a
unit, a range and a reason: dlog config show PART,
docs/reference/options.md.
""",
    ),
    "positions": Topic(
        "places in a log",
        """\
A record has three numbers:

    dlsn          12.7.0, its address: segment, entry in it, slot in that
    txid          given by its writer, or filled in by the log
    sequence id   how many records the log had before it

DLSNs are in the order of the log, segments count from 1, and nothing that
happens to other records changes one. Commands take them, and the words
earliest and latest:

    dlog log read orders --from 12.7.0 --limit 10
    dlog log read orders --from-txid 1700000000000
    dlog log tail orders --from earliest
    dlog log truncate orders --to 12.0.0

Reading begins with the first record at or after the place. Before a
truncation point there is nothing any more: a reader is told so, and never
skips in silence. A named position is a reader's place that the cluster
keeps, and that may hold back what retention would cut:

    dlog log positions orders
""",
    ),
    "durability": Topic(
        "what an acknowledgement means",
        """\
A write that returned is on disk, by fdatasync, at two of three bookies, and
no record before it in the log is missing. That bears the loss of one bookie
before its copies are made anew; with --durability all every copy is on disk
first, and two may be lost:

    dlog log create ledger --durability all

With one bookie of three away writes go on. With two away they wait, then
fail with exit code 7: such a write may appear later, once, at the end.

A log has one writer. Who takes it over fences the one before, none of whose
later writes is acknowledged or read.

dlog status says which copies are missing, dlog under-replicated of which
ledgers, and dlog status --probe tries a record. A cluster of dlog local
--memory keeps nothing. The promises by number: docs/concepts/guarantees.md.
""",
    ),
    "formats": Topic(
        "how records go in and come out",
        """\
    lines    a record a line: any bytes but a newline; empty lines count
    jsonl    a JSON object a line: txid, payload or payload_base64
    frames   a length of four bytes, little-endian, then so many bytes

dlog log write takes them, dlog log read and dlog log tail print them:

    seq 1000 | dlog log write numbers --create
    dlog log read numbers --format jsonl --limit 3
    dlog log read a --format frames | dlog log write b --format frames

lines cannot tell a newline within a record from its end: take jsonl or
frames where records are bytes. With --json every command prints objects for
programs on stdout, a line each, and nothing else there.
""",
    ),
}
