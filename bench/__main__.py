"""`python -m bench`, or `make bench`: measure this machine and print what came out."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from bench.measures import Benchmark, Sizes
from bench.processes import Installation
from bench.report import Report
from sessions_app.encoding import encode

ROUNDS = 5

_BEGUN = time.monotonic()


def main() -> int:
    """Measure, print the table and one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=ROUNDS, help=f"how many runs the medians are of ({ROUNDS})"
    )
    parser.add_argument("--quick", action="store_true", help="one small run: a look, no result")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    report = Report()
    installation = Installation()
    try:
        sizes = Sizes.quick() if options.quick else Sizes()
        benchmark = Benchmark(installation, sizes, report, _say)
        asyncio.run(benchmark.run(1 if options.quick else options.runs))
    finally:
        installation.close()
    document = encode(report.document()).decode()
    print(report.table(), document, sep="\n\n")
    if options.out is not None:
        options.out.write_text(document + "\n", encoding="utf-8")
    return 0


def _say(line: str) -> None:
    print(f"{time.monotonic() - _BEGUN:6.1f} s  {line}", file=sys.stderr, flush=True)


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End in order, children included."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
