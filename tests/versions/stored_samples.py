"""Samples and names that an older build stored or sent, kept as data.

    python -m tests.versions.stored_samples CHECKOUT > tests/versions/samples_COMMIT.json

writes those of a checkout. The file holds the encoded samples of each codec of tests/codecs/registry.py, by
the codec's name (some codecs share one), and the names that other programs may depend on: events, metrics,
options and error codes.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

COLLECT = """
import json, sys
sys.path.insert(0, {root!r})
from tests.codecs.registry import CODECS
from tests import test_events, test_metrics, test_options
from distributedlog.runtime.interfaces import errors
from distributedlog.runtime.declarations.options import option_fields

samples = {{}}
for codec in CODECS:
    samples.setdefault(codec.name, []).append([codec.seal(sample).hex() for sample in codec.samples])
print(json.dumps({{
    "samples": samples,
    "events": sorted(event.name for event in test_events.ALL),
    "metrics": sorted(test_metrics.ROWS),
    "options": {{
        part: sorted(option.name for option in option_fields(cls))
        for part, cls in {{**test_options.PARTS, "raft": test_options.RaftOptions}}.items()
    }},
    "errors": {{
        str(error.code): name for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.DistributedLogError)
    }},
}}))
"""


def collect(checkout: Path, python: str = sys.executable) -> dict[str, Any]:
    """Return the samples and names of a checkout, by a process that imports from there."""
    done = subprocess.run(
        [python, "-c", COLLECT.format(root=str(checkout))],
        cwd=checkout,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the samples of the checkout that the command line names."""
    print(json.dumps(collect(Path(sys.argv[1]).resolve()), indent=0, sort_keys=True))


if __name__ == "__main__":
    main()
