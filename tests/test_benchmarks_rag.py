"""The benchmarks of retrieval in small."""

import csv
import pickle
from functools import partial

import pytest

from benchmarks import lexical_search
from benchmarks.lexical_search import (
    PRESETS,
    Cut,
    cut_texts,
    index_directly,
    index_ours,
    prepared_index,
    search_directly,
    windows,
)
from finetune.rag.lexical import LexicalIndex
from finetune.rag.searchwords import SearchWords

(SMALL,) = PRESETS["ci"]


@pytest.fixture(scope="module")
def cut() -> Cut:
    return cut_texts(SMALL)


def test_windows_overlap_and_none_stands_twice():
    found = windows(["甲乙丙丁" * 50, "".join(map(chr, range(0x4E00, 0x5200)))], 40)
    assert 30 < len(found) <= 40 and len(set(found)) == len(found)
    assert {len(one) for one in found} == {lexical_search.WIDTH}
    assert found[-2][100:] in found[-1] + found[-2] and found[-1][0] in found[-2]


def test_both_sides_have_the_same_tokens_and_find_the_same_texts(cut):
    """Our index on what was cut before is that on the texts, and bm25s' best scores are ours."""
    ours = index_ours(cut).search(cut.queries, 5)
    assert ours == LexicalIndex.build(cut.chunks, SearchWords()).search(cut.queries, 5)
    _, scores = search_directly(index_directly(cut)[0], cut.asked)
    for hits, best in zip(ours, scores, strict=True):
        assert [one.score for one in hits] == pytest.approx(best[:5].tolist(), rel=1e-5)


def test_the_small_preset_gives_its_table(tmp_path, capsys):
    assert lexical_search.main(["--preset", "ci", "--pairs", "2", "--csv", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["verdict"] for line in lines] == ["", "kept", "kept", ""]
    assert float(lines[1]["rows"]) > 0 and float(lines[3]["rows"]) == pytest.approx(float(lines[3]["other"]), rel=0.1)
    assert lines[0]["ratio"] == "" and lines[1]["bound"] == "3"
    assert "indexing words and bigrams" in capsys.readouterr().out


def test_a_fresh_process_can_be_told_what_to_prepare_and_measures_the_indexing_alone(cut):
    assert pickle.dumps(partial(prepared_index, SMALL, index_ours))
    work = prepared_index(SMALL, index_ours)
    assert work.func is index_ours and work.args[0].chunks == cut.chunks
    assert len(work()) == len(cut.chunks)
