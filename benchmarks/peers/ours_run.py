"""Cijing on one text: the rows of one word beside SDPA, then the page of `probe report` on that one case."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Work
from benchmarks.peers.job import WARM, answer
from probe import CaptureOptions, capture_cases, case_of, load_model
from probe.__main__ import run

ROWS = CaptureOptions(states=False)  # the others are asked for attention alone as well


def ready(job: dict[str, str]) -> Work:
    """Capture of the target's rows."""
    loaded = load_model(job["model"], device="cpu", dtype="float32")
    case = case_of(job["text"], target=job["target"], occurrence=int(job["occurrence"]))

    def work() -> Any:
        return list(capture_cases(loaded, [case], options=ROWS))

    for tensor in loaded.backbone.parameters():
        torch.sum(tensor)  # a mapped file's weights are in memory only once they have been read
    list(capture_cases(loaded, [case_of(WARM, target=WARM)], options=ROWS))
    return work


def weights(found: Any) -> int:
    """All layers, heads and keys of the target's tokens."""
    return int(found[0].rows.size)


def page(found: Any, job: dict[str, str]) -> str:
    """The report of a file with this one case; like the peers' pages it tells of attention, not of cuts."""
    (one,) = found
    case = {"text": one.case.text, "target": [one.case.target.start, one.case.target.end]}
    with tempfile.TemporaryDirectory() as place:
        cases = Path(place) / "one.jsonl"
        cases.write_text(json.dumps(case, ensure_ascii=False) + "\n", "utf-8")
        plain = ["--no-cut", "--reference-cases", "0"]
        code = run(["report", str(cases), "--model", job["model"], "--out", f"{place}/run", *plain])
        if code:
            raise SystemExit(code)
        return (Path(place) / "run" / "report.html").read_text("utf-8")


if __name__ == "__main__":
    answer(ready, weights=weights, page=page)
