"""`report` on a shipped set, twice in fresh processes: time, peak memory, size of the page, tables byte for byte.

    python -m benchmarks.report_bounds [apple --seconds 90 --gigabytes 1.5]

Exit code 1 where a bound is broken or a table differs. The time is that of the clock: run it on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 5_000_000
PICTURES = 12


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one report took and left."""

    seconds: float
    gigabytes: float  # largest resident set of the process; on Linux it begins at that of this process, which is small
    page: int  # bytes
    pictures: int
    files: dict[str, str]  # name -> SHA-256, of all but the manifest


def report(cases: str, folder: Path, *, model: str) -> Run:
    """Write one report in a process of its own."""
    command = [sys.executable, "-m", "probe", "report", cases, "--model", model, "--out", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"report {cases} failed: {said.strip().splitlines()[-1:]}")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    scale = 1e9 if sys.platform == "darwin" else 1e6  # ru_maxrss is in bytes there, in kilobytes elsewhere
    return Run(
        seconds=seconds,
        gigabytes=usage.ru_maxrss / scale,
        page=(folder / "report.html").stat().st_size,
        pictures=len(list((folder / "figures").glob("*.png"))),
        files=manifest["files"],
    )


def broken(runs: tuple[Run, Run], *, seconds: float, gigabytes: float) -> list[str]:
    """The bounds that do not hold, in words."""
    one, other = runs
    differ = [name for name in sorted({*one.files, *other.files}) if one.files.get(name) != other.files.get(name)]
    found = [f"{name} differs between the runs" for name in differ]
    for number, run in enumerate(runs, 1):
        checks = {
            f"{run.seconds:.1f} s, allowed {seconds:g}": run.seconds > seconds,
            f"{run.gigabytes:.2f} GB, allowed {gigabytes:g}": run.gigabytes > gigabytes,
            f"page of {run.page} bytes, allowed {PAGE_BYTES}": run.page > PAGE_BYTES,
            f"{run.pictures} pictures, allowed {PICTURES}": run.pictures > PICTURES,
        }
        found += [f"run {number}: {words}" for words, over in checks.items() if over]
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print both runs and what is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cases", nargs="?", default="apple")
    parser.add_argument("--model", default="builtin:e5-small")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--gigabytes", type=float, default=1.5)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        one, other = (report(given.cases, Path(place) / name, model=given.model) for name in "ab")
    for run in (one, other):
        print(f"{run.seconds:.1f} s, {run.gigabytes:.2f} GB, page {run.page / 1e6:.2f} MB, {run.pictures} pictures")
    wrong = broken((one, other), seconds=given.seconds, gigabytes=given.gigabytes)
    print("\n".join(wrong) or f"all {len(one.files)} files are the same, and every bound holds")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
