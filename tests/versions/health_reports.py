"""Health reports of nodes and shared wire fields, as an older build sends them and reads them.

    python -m tests.versions.health_reports CHECKOUT > tests/versions/health_COMMIT.json

writes those that the checkout sends. An older build has texts instead of codes, and decides from some.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORD = """
import json, sys
sys.path.insert(0, {root!r})
from distributedlog.ledger.registration import BookieRegistration
from distributedlog.metadata import answers, messages, wire
from distributedlog.metadata.interface import MemberStatus
from distributedlog.runtime.errors import OutcomeUnknown
from distributedlog.runtime.frames import pack

REASONS = ("some ledgers are in limbo: a journal file is gone", "healed: entries of 1 ledgers had rotted",
           "without a good copy: entries of 1 ledgers rotted", "read-only: the disk is full")
SHORT = ("no room on the disk of metadata node m2: 1.0 MiB free, 2.0 needed",)
rows = [
    wire.Row(MemberStatus("m1", "h:1", "leader", 3, 9, True, "n1", ()), {{"": "h:1"}}),
    wire.Row(MemberStatus("m2", "h:2", "follower", 3, 9, True, "n2", SHORT), {{}}),
    wire.Row(MemberStatus("m3", "h:3", "damaged: a block is torn", 3, 9, True, "n3", ()), {{}}),
    wire.Row(MemberStatus("m4", "h:4", "waiting, empty", 0, 0, True, "n4", ()), {{}}),
    wire.Row(MemberStatus("m5", "h:5", "node x is met at h:5: WrongPeer", 0, 0, False, "n5", ()), {{}}),
    wire.Row(MemberStatus("m6", "h:6", "unreachable", 0, 0, False, "n6", ()), {{}}),
    wire.Row(MemberStatus("m7", "h:7", "learner", 3, 4, True, "n7", ()), {{}}),
]
print(json.dumps({{
    "registration": BookieRegistration("b1", {{"": ("h", 1)}}, reasons=REASONS, ledgers=3).encode().hex(),
    "rows": wire.encode_rows(rows).hex(),
    "info": pack({{"read_only": True, "reasons": list(REASONS)}}).hex(),
    "accepted": messages.encode(messages.AppendReply(3, "n1", True, 70, 64, 1 << 60, 9)).hex(),
    "refused": messages.encode(messages.AppendReply(3, "n1", False, 70, 60, 2, 9)).hex(),
    "stale": answers.encode_answer(answers.Answer(error=OutcomeUnknown(answers.STALE_REQUEST))).hex(),
}}))
"""

READ = """
import json, sys
sys.path.insert(0, {root!r})
from distributedlog.cluster import overview, stopping
from distributedlog.ledger.registration import BookieRegistration
from distributedlog.metadata import answers, messages, wire
from distributedlog.metadata.room import is_short
from distributedlog.runtime.errors import OutcomeUnknown
from distributedlog.runtime.frames import unpack
from distributedlog.runtime.reasons import HEALED, HEALING, reasons_of

def of(text):
    return bytes.fromhex(text)

sent = json.load(sys.stdin)
registrations = {{
    name: BookieRegistration.decode(b"bookie/b1", of(one)) for name, one in sent["registrations"].items()
}}
rows = wire.decode_rows(of(sent["rows"]))
accepted, refused = (messages.decode(of(sent[name])) for name in ("accepted", "refused"))
stale = answers.decode_answer(of(sent["stale"])).error
print(json.dumps({{
    "uncertain": sorted(
        name for name, one in registrations.items()
        if any(stopping.LIMBO in each and not each.startswith(HEALED) for each in one.reasons)
    ),
    "healing": sorted(
        name for name, one in registrations.items() if any(each.startswith(HEALING) for each in one.reasons)
    ),
    "healed": sorted(
        name for name, one in registrations.items() if any(each.startswith(HEALED) for each in one.reasons)
    ),
    "no_good_copy": sorted(
        name for name, one in registrations.items()
        if any(each.startswith(overview.NO_GOOD_COPY) for each in one.reasons)
    ),
    "short": sorted(row.status.name for row in rows if is_short(row.status.reasons)),
    "roles": {{row.status.name: row.status.role for row in rows}},
    "info": list(reasons_of(unpack(of(sent["info"]), "info")["reasons"])),
    "accepted": [accepted.index, accepted.hint_index, accepted.hint_term, accepted.number],
    "refused": [refused.index, refused.hint_index, refused.hint_term, refused.number],
    "stale": isinstance(stale, OutcomeUnknown) and str(stale) == answers.STALE_REQUEST,
}}))
"""


def run(program: str, checkout: Path, python: str = sys.executable, given: Any = None) -> Any:
    """Run a program of this file with the code of a checkout; return what it prints."""
    done = subprocess.run(
        [python, "-c", program.format(root=str(checkout))],
        cwd=checkout,
        input=json.dumps(given).encode(),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout)


def main() -> None:
    """Print what the checkout sends that the command line names."""
    print(json.dumps(run(RECORD, Path(sys.argv[1]).resolve()), indent=0, sort_keys=True))


if __name__ == "__main__":
    main()
