"""The benchmarks of an index in small: kills lose nothing, and what they would say if something were lost."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import index_kills, index_update
from benchmarks.index_material import tiny_settings, write_version, written_encoder
from finetune.rag.index import build_index

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """Two indexes of one collection, and one of the next version."""
    root = tmp_path_factory.mktemp("kills")
    settings = tiny_settings(written_encoder(root / "encoder"))
    for name, version in (("one", 0), ("same", 0), ("next", 1)):
        write_version(root / f"docs{version}", version, documents=6)
        build_index([root / f"docs{version}"], root / name, settings)
    return root


def test_three_kills_of_the_small_preset_lose_nothing_and_are_listed(tmp_path):
    # In a process of its own: LanceDB's threads, which other tests start, must not be there when one is forked.
    given = ["benchmarks.index_kills", "--preset", "small", "--csv", str(tmp_path / "kills.csv")]
    ran = subprocess.run([sys.executable, "-m", *given], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert ran.returncode == 0 and "3 kills, nothing is lost" in ran.stdout, ran.stdout + ran.stderr
    rows = list(csv.DictReader((tmp_path / "kills.csv").open(encoding="utf-8")))
    assert [row["aim"] for row in rows] == ["any moment", "writing", "any moment"]
    assert {row["answers as"] for row in rows[:2]} <= {"no index yet", "the new one"}
    assert rows[2]["answers as"] in ("the one before", "the new one")  # it strikes where there is an index


def test_an_index_that_is_another_or_leaves_something_over_would_be_told(indexed):
    assert index_kills._differences(indexed / "one", indexed / "same") == []
    found = index_kills._differences(indexed / "one", indexed / "next")
    assert "the chunks differ" in found and "the documents differ" in found and "a search by words differs" in found
    (indexed / "one" / "embedded").mkdir()
    assert index_kills._differences(indexed / "one", indexed / "same") == ["left over: vectors of a killed run"]
    (indexed / "one" / "embedded").rmdir()


def test_the_version_of_an_index_is_read_from_it_and_a_mixed_one_is_told(indexed, tmp_path):
    assert index_kills.answer_of(indexed / "next", tmp_path, 6) == (1, "")
    assert index_kills.answer_of(tmp_path / "none", tmp_path, 6) == (None, "")
    assert index_kills.answer_of(indexed / "next", tmp_path, 5) == (1, "its documents are of no version")


def test_versions_differ_in_some_documents_and_share_others(tmp_path):
    for version in (0, 1):
        write_version(tmp_path / str(version), version, documents=30)
    one, other = (
        {path.name: path.read_text("utf-8") for path in (tmp_path / str(version)).iterdir()} for version in (0, 1)
    )
    shared = [name for name in one if one[name] == other.get(name)]
    assert 10 <= len(shared) < 25 and one.keys() - other.keys() and other.keys() - one.keys()


def test_the_small_preset_of_updates_writes_its_table(tmp_path):
    assert index_update.main(["--preset", "small", "--csv", str(tmp_path / "update.csv")]) == 0
    rows = {row["quantity"]: row for row in csv.DictReader((tmp_path / "update.csv").open(encoding="utf-8"))}
    assert 0 < float(rows["update over rebuild"]["value"]) < 1
    assert int(rows["update"]["taken over"]) > 5 * int(rows["update"]["embedded"]) > 0
    assert rows["rebuild"]["taken over"] == "0" and float(rows["opening"]["value"]) > 0
