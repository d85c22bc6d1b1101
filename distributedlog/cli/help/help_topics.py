"""The texts of `dlog help TOPIC`. docs/reference/command-line.md contains them.

They are plain text of at most `CHARS_MAX` columns and also Markdown. Lines to be typed are indented by four
spaces.
"""

from typing import NamedTuple

CHARS_MAX = 76


class Topic(NamedTuple):
    """One help topic."""

    title: str
    text: str


TOPICS = {
    "uris": Topic(
        "URIs of clusters and namespaces",
        """\
A URI contains the addresses of metadata nodes and a namespace:

    distributedlog://HOST:PORT[,HOST:PORT...]/NAMESPACE

One reachable node is enough, because it returns the other addresses. The
first log creates its namespace. A namespace path can have several parts,
such as /shop/eu. Write IPv6 addresses in brackets. distributedlog-bk:// has
the same meaning.

To use write and read proxies, list proxy addresses instead:

    distributedlog+proxy://HOST:PORT[,HOST:PORT...]/NAMESPACE

Programs and commands about logs accept both forms. Commands about the
cluster, such as dlog status, require addresses of metadata nodes.

Separate addresses with commas. Semicolons also work, in shell quotes:

    export DLOG_URI=distributedlog://h1:4181,h2:4181,h3:4181/ns
    dlog status

A command uses the first of --uri, DLOG_URI and the selected context
(dlog help contexts).
""",
    ),
    "contexts": Topic(
        "names for clusters, and the selected one",
        """\
A context is a name for a URI. Commands without --uri and DLOG_URI use the
selected context:

    dlog context set here distributedlog://127.0.0.1:4181/ns
    dlog context list
    dlog context use here
    dlog context use -

"use -" selects the previous context again. With --credentials, a context
also stores your identity:

    dlog context set prod distributedlog://h1:4181/ns \\
        --credentials file:/etc/dlog/me

Without --json, dlog local stores its cluster as the context "local" while
it runs. With --data, the context remains afterwards. A second dlog local
uses the name while it runs. Programs do not read contexts. Pass them the
URI:

    export DLOG_URI=$(dlog context show here)

Contexts are stored in $XDG_CONFIG_HOME/dlog/contexts.toml, by default in
~/.config/dlog.
""",
    ),
    "exit-codes": Topic(
        "exit codes of commands",
        """\
      0  done
      1  failed
      2  wrong usage: no request was sent
      3  not found, or already exists
      4  unreachable, or the deadline (--timeout) passed
      5  refused: not allowed, over a limit, fenced
      6  the check completed with a negative result
      7  outcome unknown: the write may have succeeded or failed
    130  interrupted

An error is one line on stderr with its name and number, such as
LogNotFound (510). With -vv, dlog also prints the traceback. Scripts can
test for code 6, which commands return that check a condition:

    dlog status --wait --timeout 60
    dlog node can-stop b2 && ssh h2 systemctl restart dlog-bookie@b2

If every address of the URI refuses connections for three seconds, the
command fails with code 4. With --timeout, it waits longer.

After code 7, read the log before you write again. With a named producer,
you can repeat the write safely (docs/guides/exactly-once.md).
""",
    ),
    "environment": Topic(
        "variables that dlog reads",
        """\
    DLOG_URI                URI for commands and programs
    DLOG_CREDENTIALS        your identity: file:PATH
    DLOG_<COMMAND>_<FLAG>   any flag of any command
    DLOG_<FLAG>             --timeout, --json, -q, -v of all commands
    XDG_CONFIG_HOME         directory of contexts (dlog help contexts)
    COLUMNS                 maximum table width, also without a terminal
    NO_COLOR                print states without colors on a terminal

The variable of a flag consists of the command words and the long name:

    DLOG_LOG_READ_FORMAT=jsonl dlog log read orders
    DLOG_SERVE_BOOKIE_DATA=/var/lib/dlog/b
    DLOG_TIMEOUT=5 dlog status

Flags on the command line override variables, at any position.
""",
    ),
    "settings": Topic(
        "options of nodes and logs, and their precedence",
        """\
For a node, the first of these values applies: a flag or --set, a variable,
the file of --config, the default.

    dlog config init bookie > bookie.toml
    dlog config check bookie.toml
    dlog config show bookie --file bookie.toml --changed
    dlog serve bookie --config bookie.toml --set lost_after_s=10m

For a log, the first of these values applies: open_log(config=) in a
program, the stored value of the log, the stored value of its namespace,
open_namespace(config=).

    dlog config show log
    dlog log config orders set retention_s=7d segment_bytes_max=64MiB
    dlog log config --namespace set retention_s=30d
    dlog log config orders unset retention_s

Units of sizes are KiB, MiB, GiB and TiB. Units of times are ms, s, m, h and
d. Unit, range and purpose of each option are shown by dlog config show PART
and in docs/reference/options.md.
""",
    ),
    "positions": Topic(
        "positions in a log",
        """\
A record has three numbers:

    dlsn          12.7.0, its position: segment, entry and slot
    txid          transaction ID, assigned by its writer or by the log
    sequence id   number of records before it in the log

DLSNs increase within a log, and the first segment has number 1. The DLSN of
a record never changes. Commands accept DLSNs, earliest and latest:

    dlog log read orders --from 12.7.0 --limit 10
    dlog log read orders --from-txid 1700000000000
    dlog log tail orders --from earliest
    dlog log truncate orders --before 12.0.0

A reader starts with the first record at or after the position of --from. It
ends with the record at the position of --to. Before the truncation point
all records are deleted. A reader that starts there receives an error and
never skips records silently. The cluster stores named positions of readers.
A named position can prevent retention from deleting later records:

    dlog log positions orders
""",
    ),
    "durability": Topic(
        "guarantees of an acknowledgement",
        """\
An acknowledged write is on the disks of two of three bookies (fdatasync),
and all earlier records of the log are durable, too. This tolerates the loss
of one bookie before its copies are repaired. With --durability all, every
copy is on disk first, so the log tolerates the loss of two bookies:

    dlog log create ledger --durability all

If one of three bookies is unavailable, writes continue. If two are
unavailable, writes block and then fail with exit code 7. Such a write may
appear later, once, at the end of the log.

A log has one writer. A new writer fences the previous one. Later writes of
the previous writer are neither acknowledged nor read.

dlog status lists missing copies, and dlog under-replicated their ledgers.
dlog status --probe writes a test record. A cluster of dlog local --memory
stores nothing on disk. docs/concepts/guarantees.md lists all guarantees.
""",
    ),
    "formats": Topic(
        "input and output formats of records",
        """\
    lines    one record per line, any bytes except newline; empty lines too
    jsonl    one JSON object per line: txid, payload or payload_base64
    frames   a length of four bytes (little-endian), then the payload

Only JSON objects have keys and headers: key or key_base64, and headers, a
list of objects with name and value (or name_base64 and value_base64). In
another format, dlog log read stops before the first record that has any.

dlog log write reads these formats. dlog log read and dlog log tail print
them:

    seq 1000 | dlog log write numbers --create
    dlog log read numbers --format jsonl --limit 3
    dlog log read a --format frames | dlog log write b --format frames

With "lines", a newline within a record would end it. For binary records use
jsonl or frames. With --json, every command prints only JSON objects to
stdout, one per line.
""",
    ),
}
