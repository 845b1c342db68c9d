"""50,000 cases: read in seconds, looked at in flat memory, and still a page that opens."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probe.capture import prepare
from probe.cases import Case, case_of, load_cases
from probe.findings import Observed, crossed_pairs, cut_units
from probe.models import model_from_parts
from probe.stats import bootstrap
from tests.tiny import tiny_bert

MANY = 50_000
ROOT = Path(__file__).resolve().parents[1]


def short_cases(count: int, path: Path) -> Path:
    """Cases of 5 to 14 characters, two thirds with one of three cue words, each with a sense of its own."""
    rng = random.Random(0)
    rest = "发布了砸中被和平脱氢酶酸"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            cue, target = rng.choice(["喜欢", "讨厌", "热爱"]), rng.choice(["苹果", "手机", "公司", "菠菜"])
            before = "".join(rng.choices(rest, k=rng.randint(0, 4))) + "我"
            after = "".join(rng.choices(rest, k=rng.randint(0, 5)))
            start = len(before)
            case = {
                "text": before + cue + target + after,
                "target": [start + 2, start + 4],
                "cues": [[start, start + 2]] if number % 3 else [],
                "sense": f"kind {number}",
            }
            file.write(json.dumps(case, ensure_ascii=False) + "\n")
    return path


def test_fifty_thousand_cases_are_read_in_seconds(tmp_path):
    path = short_cases(MANY, tmp_path / "many.jsonl")
    start = time.process_time()
    loaded = load_cases(path)
    assert len(loaded.cases) == MANY and loaded.cases[-1].id == f"line-{MANY}"
    assert time.process_time() - start < 15


MEASURE = """
import resource, sys
from pathlib import Path
from probe.cases import load_cases
from probe.models import load_model
from probe.runs import open_run
from probe.observing import StudySettings
from probe.study import run_report

loaded = load_model(sys.argv[1])
for name in sys.argv[2:]:
    with open_run(name + ".run") as folder:
        run_report(loaded, load_cases(name), settings=StudySettings(cut_cases=4, sentences=20), folder=folder)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_hardly_grows_with_the_cases_and_the_page_stays_small(tmp_path):
    tiny_bert(tmp_path, num_hidden_layers=1)
    few, many = (str(short_cases(count, tmp_path / f"{count}.jsonl")) for count in (1500, 4500))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "bert"), few, many],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    before, after = (int(line) * 1024 for line in done.stdout.split())
    # Tokens and 44 numbers of each case stay, some 4 kB. The rest are buffers of the table and of the bootstrap, which
    # fill up in this range and grow no further: at 50,000 cases it is 200 MB in all.
    assert after - before < 80e6, f"{(after - before) / 3000:.0f} bytes a case"
    page = Path(many + ".run/report.html").read_text("utf-8")
    assert len(page.encode()) < 5_000_000 and "4400 rarer kinds" in page
    assert len(pd.read_parquet(many + ".run/tables/observations.parquet", columns=["case"])["case"].unique()) == 4500


def test_what_is_asked_for_each_cut_case_is_not_worked_out_from_all_cases_each_time(tmp_path):
    model, tokenizer = tiny_bert()
    cases = load_cases(short_cases(3000, tmp_path / "cases.jsonl"))
    items = prepare(model_from_parts(model, tokenizer, name="tiny"), cases.cases)
    observed = Observed(
        model="tiny", items=items, layers=(), heads=(), focus=np.zeros((3000, 0, 0, 0)), cuts=None,
        cut_cases=tuple(range(3000)), target_rows={}, seed=0,
    )  # fmt: skip
    start = time.process_time()
    assert len(cut_units(observed)) == 3000
    assert time.process_time() - start < 1


def test_a_large_group_on_one_text_gives_no_more_pairs_than_are_shown():
    model, tokenizer = tiny_bert()
    case = case_of("我喜欢苹果", target="苹果", cues=["喜欢"])
    (item,) = prepare(
        model_from_parts(model, tokenizer, name="tiny"), [Case(**{**vars(case), "id": "one", "group": "g"})]
    )
    start = time.process_time()
    assert crossed_pairs([item] * MANY, most=500)[-1] == (0, 500)
    assert time.process_time() - start < 1


def test_an_interval_over_many_units_takes_seconds():
    values = np.random.default_rng(0).normal(size=(20_000, 12))
    start = time.process_time()
    found = bootstrap(values, [str(number) for number in range(20_000)], seed=0)
    assert time.process_time() - start < 12
    standard = values.std(axis=0) / np.sqrt(len(values))
    assert (found.high - found.low) / standard == pytest.approx(2 * 1.96, rel=0.1)
