"""Bytes and names of the older build stay readable, and this build writes what the older one reads."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributedlog.log.format.record import decode_header
from distributedlog.log.format.record_headers import FLAGS_KEYED, KeyedContent
from distributedlog.proxy.protocol.proxy_messages import decode_produce
from distributedlog.runtime.declarations.options import REMOVED_OPTION_NAMES
from tests.codecs.registry import CODECS, Codec

from .stored_samples import collect

ROOT = Path(__file__).resolve().parents[2]
OLDER: dict[str, Any] = json.loads(
    (Path(__file__).parent / "samples_fea56d70.json").read_text(encoding="utf-8")
)
CODECS_OF: dict[str, list[Codec]] = {}
"""By name; codecs that share a name are in the order of the registry."""
for _codec in CODECS:
    CODECS_OF.setdefault(_codec.name, []).append(_codec)
NEVER_DECODED_ALONE = "any record"
"""Begins the names of codecs whose samples need a context, as `test_decoders.py` gives them."""

REMOVED_OPTIONS = {
    "bookie.cpu_policy",
    "gateway.reader_bytes",
    "ledger.long_poll_s",
    "ledger.read_bytes_max",
    "log.tail_wait_s",
    "store.idle_watermark_s",
    "store.wait_ms_max",
}
"""``part.option`` of the older build that this one does not have. `REMOVED_OPTION_NAMES` of
distributedlog/runtime/declarations/options.py has the advice for a configuration that names one."""


def entry_has_new_fields(sample: bytes) -> bool:
    """Whether an entry has keys or headers. The log's format number keeps the older build from reading it."""
    return bool(decode_header(sample).flags & FLAGS_KEYED)


def produce_has_new_fields(sample: bytes) -> bool:
    """Whether a frame has keys or headers. It is sent only to a proxy that announces the feature."""
    return KeyedContent in map(type, decode_produce(memoryview(sample)).payloads)


HAS_NEW_FIELDS: dict[str, Callable[[bytes], bool]] = {
    "a log entry": entry_has_new_fields,
    "a compressed log entry": entry_has_new_fields,
    "PRODUCE": produce_has_new_fields,
    "PRODUCE, sealed": produce_has_new_fields,
}
"""For each codec with fields that the older build refuses, and never receives: whether a sample has them."""

DECODE = """
import json, sys
sys.path.insert(0, {root!r})
from tests.codecs.registry import CODECS

samples = json.load(sys.stdin)
refused = {{}}
for codec in CODECS:
    for sample in samples[codec.name].pop(0) if samples.get(codec.name) else ():
        try:
            codec.decode(bytes.fromhex(sample))
        except Exception as error:
            refused.setdefault(codec.name, {{}})[sample] = f"{{type(error).__name__}}: {{error}}"[:300]
print(json.dumps(refused))
"""


@pytest.mark.parametrize("name", sorted(OLDER["samples"]))
def test_sample_of_the_older_build_is_decoded(name: str) -> None:
    if name.startswith(NEVER_DECODED_ALONE):
        pytest.skip("its samples need a context")
    for codec, samples in zip(CODECS_OF[name], OLDER["samples"][name], strict=True):
        for sample in samples:
            codec.decode(bytes.fromhex(sample))


def test_names_that_other_programs_depend_on_are_kept() -> None:
    """Alert rules and files contain names of events, metrics and options. Codes are sent."""
    present = collect(ROOT)

    assert set(OLDER["events"]) <= set(present["events"])
    assert set(OLDER["metrics"]) <= set(present["metrics"])
    assert set(OLDER["errors"]) <= set(present["errors"])
    older = {f"{part}.{name}" for part, names in OLDER["options"].items() for name in names}
    kept = {f"{part}.{name}" for part, names in present["options"].items() for name in names}
    assert older - kept == REMOVED_OPTIONS
    assert {option.partition(".")[2] for option in REMOVED_OPTIONS} == set(REMOVED_OPTION_NAMES)


@pytest.mark.processes
def test_older_build_decodes_the_samples_of_this_build_except_new_fields(
    older_source: Path, older_python: str
) -> None:
    """What both builds can express has the same bytes; what only this one has is never sent to the older."""
    samples = {
        name: [[codec.seal(sample).hex() for sample in codec.samples] for codec in codecs]
        for name, codecs in CODECS_OF.items()
        if not name.startswith(NEVER_DECODED_ALONE)
    }
    command = [older_python, "-c", DECODE.format(root=str(older_source))]

    done = subprocess.run(
        command, cwd=older_source, input=json.dumps(samples), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    refused: dict[str, dict[str, str]] = json.loads(done.stdout)
    new = {
        name: {
            sample
            for codec_samples in samples[name]
            for sample in codec_samples
            if has_new_fields(bytes.fromhex(sample))
        }
        for name, has_new_fields in HAS_NEW_FIELDS.items()
    }
    assert {name: set(errors) for name, errors in refused.items()} == new, refused
