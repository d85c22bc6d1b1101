"""Decoders under chance, for minutes: ``python -m tests.codecs.campaign --minutes 10 [--seed 1]``."""

import argparse
import random
import time
from itertools import islice

from . import mutations
from .registry import CODECS
from .test_decoders import check

AT_ONCE = 500


def main() -> None:
    """Until the time is over; the first case that a decoder does not take ends it, with its seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    until, cases = time.monotonic() + 60 * given.minutes, 0
    while time.monotonic() < until:
        for codec in CODECS:
            for body in islice(mutations.random_ones(codec.samples, chance), AT_ONCE):
                check(codec, body)
                cases += 1
    print(f"{cases:,} cases of {len(CODECS)} decoders, seed {given.seed}: nothing unforeseen")


if __name__ == "__main__":
    main()
