"""The shape of the tree: parts import only downward, pure modules stay pure, one seam to the world.

In a part no modules know each other, no base has one subclass, no protocol one implementation.
"""

import ast
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.defined_names import module_of, names_of, nodes_of
from tests.parts import (
    ROOT,
    files_of,
    imported_files,
    package_path,
    part_folders,
    part_of,
    shown,
)

LAYERS: list[set[str]] = [
    {"runtime"},
    {"metadata", "bookie"},
    {"ledger"},
    {"log"},
    {"proxy"},
    {"cluster"},
    {"distributedlog"},
    {"verify", "spark"},
    {"sim", "bench", "chaos", "console", "gateway"},
    {"cli"},
]
"""A part may import those of earlier layers, and itself; never a neighbour of its own layer."""
PARTS = sorted(part_folders())

LAZY_UPWARD = {
    ("distributedlog/blocking.py", "cluster"),
    ("distributedlog/aio.py", "cluster"),
}

WORLD = {
    "asyncio", "datetime", "mmap", "os", "pathlib", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "lmdb", "multiprocessing",
    "fcntl", "ctypes", "resource",
}  # fmt: skip
"""Modules through which the machine comes in."""

NOT_WORLD = {
    "distributedlog/runtime/interfaces/host.py",
    "distributedlog/runtime/interfaces/log_lines.py",
}
"""Modules that pure modules may import: types of the platform layer, and log lines."""

SEAM = {
    "distributedlog/runtime/schedule/background_loop.py",
    "distributedlog/runtime/process/descriptor_limit.py",
    "distributedlog/runtime/disk/directory_file.py",
    "distributedlog/runtime/disk/directory_disk.py",
    "distributedlog/runtime/process/fork_safety.py",
    "distributedlog/runtime/process/process_memory.py",
    "distributedlog/runtime/net/port_reservation.py",
    "distributedlog/runtime/disk/lmdb_map.py",
    "distributedlog/runtime/net/local_secret.py",
    "distributedlog/runtime/interfaces/log_lines.py",
    "distributedlog/runtime/machine.py",
    "distributedlog/runtime/disk/memory_disk.py",
    "distributedlog/runtime/disk/output_file.py",
    "distributedlog/runtime/disk/deferred_removal.py",
    "distributedlog/runtime/disk/reloaded_files.py",
    "distributedlog/runtime/process/stderr_writer.py",
    "distributedlog/runtime/disk/sync_mode.py",
    "distributedlog/runtime/net/tcp.py",
    "distributedlog/runtime/net/tls.py",
}
"""The only files of the nodes' world that touch the machine."""
OUTSIDE = {"cli", "bench", "chaos", "gateway", "spark"}
OUTSIDE_FILES = {"testing/sim/__main__.py", "testing/sim/workloads/campaign.py"}
"""Stand outside the simulated world: they run nodes, they are none."""

TYPES_ONLY = {"datetime", "random"}
"""`random.Random` as a type is no chance: who hands one out is the seam. Nor is a `datetime` the clock."""

PURE = {
    "bookie/format/compacted_format.py",
    "bookie/gc/compaction_policy.py",
    "bookie/format/record_slices.py",
    "bookie/format/entry.py",
    "bookie/declarations/events.py",
    "bookie/format/index_format.py",
    "bookie/format/journal_format.py",
    "bookie/format/bookie_messages.py",
    "bookie/format/extent_map.py",
    "bookie/disk/bookie_disk_space.py",
    "bookie/format/footer_ranges.py",
    "cluster/auth/token_attempts.py",
    "distributedlog/console/suggested_command.py",
    "distributedlog/console/rate_history.py",
    "distributedlog/gateway/error_responses.py",
    "distributedlog/gateway/metrics.py",
    "distributedlog/gateway/options.py",
    "distributedlog/gateway/user_share.py",
    "ledger/write/pending_adds.py",
    "ledger/write/ensemble_change.py",
    "ledger/recovery/quorum_coverage.py",
    "ledger/model/missing_range.py",
    "ledger/model/ledger_keys.py",
    "ledger/write/slot_timers.py",
    "ledger/model/ledger_metadata.py",
    "ledger/declarations/options.py",
    "ledger/placement/ensemble_placement.py",
    "ledger/placement/placement_policy.py",
    "ledger/write/flow_control.py",
    "ledger/recovery/ledger_recovery.py",
    "ledger/recovery/recovery_actions.py",
    "ledger/model/bookie_registration.py",
    "ledger/model/striping.py",
    "distributedlog/log/write/record_validation.py",
    "distributedlog/log/declarations/compression_codecs.py",
    "distributedlog/log/format/control_record.py",
    "distributedlog/log/format/dlsn.py",
    "distributedlog/log/declarations/events.py",
    "distributedlog/log/model/log_keys.py",
    "distributedlog/log/model/position_outcome.py",
    "distributedlog/log/model/lock_record.py",
    "distributedlog/log/format/log_clock.py",
    "distributedlog/log/interfaces/log_names.py",
    "distributedlog/log/declarations/options.py",
    "distributedlog/log/format/packed_columns.py",
    "distributedlog/log/format/record_headers.py",
    "distributedlog/log/model/position.py",
    "distributedlog/log/limits/memory_budget.py",
    "distributedlog/log/format/producer_table.py",
    "distributedlog/log/format/producer_section.py",
    "distributedlog/log/model/segment_ranges.py",
    "distributedlog/log/format/record.py",
    "distributedlog/log/model/segment_expiry.py",
    "distributedlog/log/model/segment_record.py",
    "distributedlog/log/model/stored_settings.py",
    "distributedlog/log/read/skipped_entries.py",
    "distributedlog/log/model/log_state.py",
    "distributedlog/log/model/deleted_log.py",
    "distributedlog/log/model/txid_policy.py",
    "distributedlog/log/consumers/work_state.py",
    "metadata/model/command_results.py",
    "metadata/auth/capability_issuer.py",
    "metadata/auth/key_space.py",
    "metadata/model/commands.py",
    "metadata/model/configuration.py",
    "metadata/peers/bootstrap.py",
    "metadata/raft/recovered_hard_state.py",
    "metadata/state/watch_history.py",
    "metadata/replica/admission_control.py",
    "metadata/model/interface.py",
    "metadata/auth/authorizer.py",
    "metadata/state/kv_state.py",
    "metadata/state/kv_snapshot.py",
    "metadata/raft/leader_state.py",
    "metadata/raft/log_watermarks.py",
    "metadata/storage/log_replay.py",
    "metadata/peers/membership_rules.py",
    "metadata/raft/raft_messages.py",
    "metadata/auth/namespace_quotas.py",
    "metadata/auth/namespace_usage.py",
    "metadata/declarations/options.py",
    "metadata/raft/ready_builder.py",
    "metadata/model/request_identity.py",
    "metadata/raft/progress.py",
    "metadata/raft/quorum.py",
    "metadata/auth/principal_quotas.py",
    "metadata/raft/raft.py",
    "metadata/raft/raft_log.py",
    "metadata/raft/ready.py",
    "metadata/state/request_dedup.py",
    "metadata/model/rights.py",
    "metadata/storage/backup_format.py",
    "metadata/auth/quorum_secrets.py",
    "metadata/state/state_digest.py",
    "metadata/protocol/token_messages.py",
    "metadata/model/transaction.py",
    "metadata/auth/acl_commands.py",
    "metadata/model/acl_records.py",
    "metadata/auth/acl_cache.py",
    "metadata/protocol/client_messages.py",
    "distributedlog/proxy/session/fair_queue.py",
    "distributedlog/proxy/declarations/metrics.py",
    "distributedlog/proxy/declarations/options.py",
    "distributedlog/proxy/protocol/read_messages.py",
    "distributedlog/proxy/membership/proxy_registration.py",
    "distributedlog/proxy/read/entry_ring.py",
    "distributedlog/proxy/membership/rendezvous_hash.py",
    "distributedlog/proxy/write/producer_stream.py",
    "distributedlog/proxy/protocol/proxy_messages.py",
    "distributedlog/runtime/primitives/backoff.py",
    "distributedlog/runtime/disk/checksummed_blocks.py",
    "distributedlog/runtime/declarations/http_statuses.py",
    "distributedlog/runtime/protocol/capabilities.py",
    "distributedlog/runtime/protocol/capability_messages.py",
    "distributedlog/runtime/declarations/condition_texts.py",
    "distributedlog/runtime/interfaces/errors.py",
    "distributedlog/runtime/declarations/events.py",
    "distributedlog/runtime/net/frame_reader.py",
    "distributedlog/runtime/protocol/frames.py",
    "distributedlog/runtime/declarations/health_conditions.py",
    "distributedlog/runtime/protocol/handshake.py",
    "distributedlog/runtime/declarations/meters.py",
    "distributedlog/runtime/declarations/versions.py",
    "cluster/status/audit_findings.py",
    "cluster/status/cluster_versions.py",
    "distributedlog/runtime/protocol/operations.py",
    "distributedlog/runtime/declarations/options.py",
    "distributedlog/runtime/primitives/background_rate.py",
    "distributedlog/runtime/interfaces/principals.py",
    "distributedlog/runtime/primitives/buffer_pool.py",
    "distributedlog/runtime/protocol/schema.py",
    "distributedlog/runtime/primitives/sorted_keys.py",
    "distributedlog/runtime/protocol/tokens.py",
    "distributedlog/spark/archive/manifest.py",
    "distributedlog/spark/read/data_loss_policy.py",
    "distributedlog/spark/options/filter_pushdown.py",
    "distributedlog/spark/read/offsets.py",
    "distributedlog/spark/read/scan_planner.py",
    "testing/verify/checks/independent_authorizer.py",
}
"""Sans-I/O modules: inputs are calls, outputs are values; time and chance are arguments."""


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Trees are made without garbage collection, which would walk them again and again, and not kept."""
    gc.disable()
    yield
    gc.enable()
    nodes_of.cache_clear()


def sources() -> Iterator[tuple[str, str, Sequence[ast.AST]]]:
    """(part, path from the root, nodes of the tree) of every module of the package."""
    for part in [*PARTS, "distributedlog"]:
        for path in files_of(part):
            yield part, shown(path), nodes_of(path)


def imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The absolute names of what a module imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@cache
def own_imports(path: Path) -> Sequence[Path]:
    """The files of the product that a module imports."""
    return [
        file
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.level
        for file in imported_files(node, path)
    ]


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def test_each_part_has_a_layer() -> None:
    assert set().union(*LAYERS) == {*PARTS, "distributedlog"}


def test_parts_import_only_downward_and_relatively() -> None:
    wrong = []
    for part, path, nodes in sources():
        for name in imports(nodes):
            if name.split(".")[0] in {"distributedlog", *PARTS} and path not in BY_FULL_NAME:
                wrong.append(f"{path}: absolute import of {name}")
        for file in own_imports(ROOT / path):
            target = part_of(file)
            if target == part or (path, target) in LAZY_UPWARD:
                continue
            if layer_of(target) >= layer_of(part):
                wrong.append(f"{path}: imports {target}, which is not below {part}")
    assert wrong == []


BY_FULL_NAME = {
    "distributedlog/cli/launcher/foreign_packages.py",
    "pyspark_distributedlog.py",
}
"""Files that are imported by a name outside of the package."""
NOT_SPARKS = {"metadata", "ledger", "bookie"}
NO_KEYS = {"incarnation_id", "incarnation_text"}
"""Of `distributedlog/log/model/log_keys.py`: how a log's id is spelled, which is no key of the store."""


@pytest.mark.parametrize("path", files_of("spark"), ids=lambda path: path.stem)
def test_spark_knows_logs_and_not_what_is_below_them(path: Path) -> None:
    """It reads through the log part: which key holds what, and in which format, is known there alone."""
    wrong = []
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            for file in imported_files(node, path):
                if (
                    part_of(file) in NOT_SPARKS
                    or shown(file) == "distributedlog/log/model/log_keys.py"
                ):
                    wrong += [alias.name for alias in node.names if alias.name not in NO_KEYS]

    assert wrong == []


def test_only_the_seam_touches_the_machine() -> None:
    """Architecture 3: sockets, files, threads, clocks and chance come through `runtime` alone."""
    wrong = []
    for part, path, nodes in sources():
        if path in SEAM or path in OUTSIDE_FILES or part in OUTSIDE:
            continue
        for name in imports(nodes):
            if name.split(".")[0] in WORLD - TYPES_ONLY:
                wrong.append(f"{path}: imports {name}")
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "random" and node.attr != "Random":
                    wrong.append(f"{path}:{node.lineno}: random.{node.attr}")
                if node.value.id in ("date", "datetime") and node.attr in (
                    "now",
                    "today",
                    "utcnow",
                ):
                    wrong.append(f"{path}:{node.lineno}: datetime.{node.attr}")
                if node.value.id == "trio" and node.attr in ("to_thread", "from_thread", "socket"):
                    wrong.append(f"{path}:{node.lineno}: trio.{node.attr}")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "open"
            ):
                wrong.append(f"{path}:{node.lineno}: open()")
    assert [line for line in wrong if not line.startswith(tuple(HANDS))] == []


HANDS = {
    "cluster/local/node_child.py": "starts and watches the child processes of a local cluster",
    "cluster/local/fork_server.py": "forks the child processes of a local cluster",
    "cluster/process/process_lifetime.py": "is the life of a process",
    "cluster/local/local_cluster.py": "starts and watches the child processes of a local cluster",
    "cluster/local/child_processes.py": "starts and watches the child processes of a local cluster",
    "cluster/process/node_directories.py": "gives a real node its data directory",
    "cluster/declarations/config.py": "reads environment and file",
    "distributedlog/blocking.py": "lives beside the caller's threads",
    "distributedlog/aio.py": "lives in the caller's asyncio loop",
    "testing/sim/world/isolation_guard.py": "walls the machine off",
    "testing/sim/world/sim_host.py": "hands out seeded chance",
}
"""Files outside the nodes' world that have a reason to touch the machine."""


@pytest.mark.parametrize("part", sorted({part_of(ROOT / path) for path in PURE}))
def test_pure_modules_are_there_and_stay_pure(part: str) -> None:
    """Architecture 4: cores import no trio and no pure module imports an impure one."""
    wrong = []
    for path in sorted(PURE):
        if part_of(ROOT / path) == part:
            nodes = nodes_of(ROOT / path)
            for name in imports(nodes):
                if name.split(".")[0] in (WORLD | {"trio"}) - {"datetime"}:
                    wrong.append(f"{path}: imports {name}")
            for file in own_imports(ROOT / path):
                if shown(file) not in PURE | NOT_WORLD and file.name != "__init__.py":
                    wrong.append(f"{path}: imports {shown(file)}, which is not pure")
    assert wrong == []


def test_what_says_that_it_is_pure_is_held_to_it() -> None:
    """The word in a docstring's first sentence and the list above are one."""
    said = {
        path
        for _, path, _ in sources()
        if "(pure" in (ast.get_docstring(module_of(ROOT / path)) or "").partition("\n\n")[0]
    }

    assert said - PURE == set()


def test_no_part_hides_a_module_of_others() -> None:
    """With the root on sys.path every part is a top-level package too."""
    import sys

    assert not set(PARTS) & set(sys.stdlib_module_names)


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """But for what users import, from a package: a second place for a name is one more to look it up in."""
    wrong = []
    for _, path, nodes in sources():
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level and node.module:
                above = package_path(ROOT / path).parents[node.level - 1]
                target = above.joinpath(*node.module.split(".")).with_suffix(".py")
                there = names_of(target) if target.is_file() else None
                for alias in node.names:
                    if there is not None and alias.name not in there:
                        wrong.append(f"{path}:{node.lineno}: {alias.name} is not of {node.module}")
    assert wrong == []


# --- circles --------------------------------------------------------------------------------------


def modules(part: str) -> dict[str, Sequence[ast.AST]]:
    """The nodes of a part's trees, by path from the root."""
    files = sorted((ROOT / "tests").rglob("*.py")) if part == "tests" else files_of(part)
    return {shown(path): nodes_of(path) for path in files}


def known_by(name: str, there: set[str]) -> set[str]:
    """The modules of its own part that a module imports, anywhere in it and for whatever reason."""
    return {shown(path) for path in own_imports(ROOT / name)} & there - {name}


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Sets of modules of which each reaches each."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        reached[start] = seen
    return sorted(
        {
            frozenset(one for one in reached[start] if start in reached[one])
            for start in graph
            if start in reached[start]
        },
        key=sorted,
    )


@pytest.mark.parametrize("part", [*PARTS, "distributedlog"])
def test_no_modules_of_a_part_know_each_other(part: str) -> None:
    """Imports for types and late ones count: what is read in a circle cannot be read in order."""
    trees = modules(part)
    graph = {name: known_by(name, set(trees)) for name in trees}

    assert [sorted(one) for one in circles(graph)] == []


@pytest.mark.parametrize("part", PARTS)
def test_no_folders_of_a_part_know_each_other(part: str) -> None:
    """The package's own exports, in `__init__.py`, do not count."""
    trees = modules(part)
    graph: dict[str, set[str]] = {}
    for name in trees:
        if not name.endswith("/__init__.py"):
            folder = name.rpartition("/")[0]
            known = {other.rpartition("/")[0] for other in known_by(name, set(trees))}
            graph.setdefault(folder, set()).update(known - {folder})
    graph |= {folder: set() for known in [*graph.values()] for folder in known - graph.keys()}

    assert [sorted(one) for one in circles(graph)] == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": set[str]()}

    assert circles(graph) == [frozenset("bc"), frozenset("d")]


# --- classes --------------------------------------------------------------------------------------

ONE_SUBCLASS: dict[str, str] = {
    "Log": "one behind proxies is a log to whoever has it, in three faces",
    "Namespace": "likewise",
    "LogRun": "seeds of a log are run as they are; with certificates the same work is done among others",
    "Link": "a server's end is one as it is; with two objects an end every frame would cost a call more",
    "KeyedRecord": "as a LogRecord was: one that was read has a position as well",
}
"""Bases with one subclass, and why they are two classes."""


@dataclass(slots=True)
class Seen:
    """A class of the tree, as its source shows it."""

    name: str
    where: str
    bases: list[str]
    members: set[str] = field(default_factory=set)
    """Methods and attributes, those that a constructor sets included."""

    @property
    def is_protocol(self) -> bool:
        return "Protocol" in self.bases


@cache
def classes() -> list[Seen]:
    """Of product and tests."""
    found = []
    for part in [*PARTS, "distributedlog", "tests"]:
        for where, nodes in modules(part).items():
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    bases = [name_of(base) for base in node.bases]
                    found.append(Seen(node.name, where, bases, set(members(node))))
    return found


def name_of(base: ast.expr) -> str:
    """``Base`` of ``Base``, ``module.Base`` and ``Base[int]``."""
    if isinstance(base, ast.Subscript):
        base = base.value
    if isinstance(base, ast.Attribute):
        return base.attr
    return base.id if isinstance(base, ast.Name) else ""


def members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            yield item.name
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.Assign):
            yield from (one.id for one in item.targets if isinstance(one, ast.Name))
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr


def all_bases(one: Seen, by_name: dict[str, list[Seen]]) -> set[str]:
    """Names of its bases, and of theirs."""
    found, waiting = set[str](), [one]
    while waiting:
        for base in set(waiting.pop().bases) - found:
            found.add(base)
            waiting += by_name.get(base, [])
    return found


def all_members(one: Seen, by_name: dict[str, list[Seen]]) -> set[str]:
    """Its own and those of its bases in the tree."""
    above = [base for name in all_bases(one, by_name) for base in by_name.get(name, [])]
    return one.members.union(*(base.members for base in above))


@cache
def classes_by_name() -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for one in classes():
        found.setdefault(one.name, []).append(one)
    return found


def test_no_base_has_one_subclass() -> None:
    """A subclass in the tests is a double, and counts. Errors are made for those who catch them."""
    by_name, wrong = classes_by_name(), {}
    for base in classes():
        if base.where.startswith("tests/") or base.is_protocol:
            continue
        below = [one for one in classes() if base.name in one.bases and one.name != base.name]
        if "Exception" in all_bases(base, by_name) or len(below) != 1:
            continue
        if not below[0].where.startswith("tests/"):
            wrong[base.name] = f"{below[0].where}: {below[0].name}"
    assert {name: one for name, one in wrong.items() if name not in ONE_SUBCLASS} == {}
    assert set(ONE_SUBCLASS) - set(wrong) == set(), "named, and not so any more"


def test_no_protocol_has_one_implementation() -> None:
    """Whoever has all of its members fulfils it, a double in the tests too. One call is a function's type."""
    by_name, wrong = classes_by_name(), {}
    for protocol in (one for one in classes() if one.is_protocol):
        wanted = all_members(protocol, by_name)
        if protocol.where.startswith("tests/") or wanted == {"__call__"}:
            continue
        fulfil = [
            f"{one.where}: {one.name}"
            for one in classes()
            if not one.is_protocol and wanted <= all_members(one, by_name)
        ]
        if len(fulfil) < 2:
            wrong[protocol.name] = fulfil
    assert wrong == {}


# --- no decision is made from a text --------------------------------------------------------------

TEXTS = {
    "reason",
    "reasons",
    "warning",
    "warnings",
    "message",
    "why",
    "cause",
    "refusal",
    "exception",
}
"""Names of messages, in the tree as it is: none of them is taken apart, or looked into."""
LOOKS_INTO = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit",
    "replace", "translate", "find", "rfind", "index", "count",
}  # fmt: skip
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}

FROM_TEXT = {
    "testing/chaos/adapters/container.py": "what `docker` prints to standard error: it has no code for it",
    "testing/chaos/adapters/container_network.py": (
        "what `nsenter` prints to standard error: it has no code for it"
    ),
    "metadata/peers/raft_peers.py": (
        "logs a refusal again when its text has changed; nothing else depends on it"
    ),
    "testing/sim/world/scheduler.py": "a trace of a run is for people: the first line of an error is noted",
    "distributedlog/spark/client/spark_errors.py": (
        "the JVM passes on nothing but text: a mark in it has the code"
    ),
}
"""Decisions from the text of other programs, and texts for people that are cut or compared: not ours."""


def is_message(node: ast.expr) -> bool:
    """Whether an expression is an error's text, or has the name of a message."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        is_name = len(node.args) == 1 and isinstance(node.args[0], ast.Name | ast.Attribute)
        what = name_of(node.args[0]) if is_name else ""
        return node.func.id in ("str", "repr") and what in (*ERRORS, "args")
    return isinstance(node, ast.Name | ast.Attribute) and name_of(node) in TEXTS


ERRORS = ("error", "failed", "caught", "ended", "exception", "problem", "exc", "refused", "lost")


def decisions_from_text(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """The lines on which a message is looked into, taken apart, or compared."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks = node.func.attr in LOOKS_INTO and is_message(node.func.value)
            matches = node.func.attr in PATTERNS and any(map(is_message, node.args))
            if looks or matches:
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                inside = isinstance(operator, ast.In | ast.NotIn) and is_message(right)
                same = isinstance(operator, ast.Eq | ast.NotEq) and any(
                    isinstance(side, ast.Call) and is_message(side) for side in (left, right)
                )
                if inside or same:
                    yield node.lineno


def test_no_decision_is_made_from_a_text() -> None:
    """Codes decide. A text may be reworded at any time, and an older version has other words."""
    found = {
        f"{path}:{line}": path for _, path, tree in sources() for line in decisions_from_text(tree)
    }

    assert [place for place, path in found.items() if path not in FROM_TEXT] == []
    assert FROM_TEXT.keys() <= {*found.values()}, "what is gone goes from the list"


@pytest.mark.parametrize(
    "line",
    [
        'any(text.startswith("no room") for text in (reason for reason in x) if reason.endswith("y"))',
        '"limbo" in reason', 'one.reason.startswith(HEALED)', 'why.replace(" (x)", "")',
        '"x" not in str(error)',
        'str(error) == STALE', 're.search(r"log (.*)", str(error))', '_NODE.match(reason)',
        'decision.warning.replace("(failOnDataLoss=false)", "")', 'reason.partition(":")[2]',
    ],
)  # fmt: skip
def test_a_decision_from_a_text_is_found(line: str) -> None:
    assert list(decisions_from_text(ast.walk(ast.parse(line)))) == [1]
