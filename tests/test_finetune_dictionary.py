"""A user's dictionary beside a pairs file: its formats, its errors with their line, the longest word wins."""

import pytest
import yaml

from finetune.dictionary import Entry, read_dictionary
from finetune.encode import Encoding, encode
from finetune.errors import PairError
from finetune.pairs import Reach, load_pairs, pairs_in
from finetune.reading import Record
from finetune.words import Segmenter
from tests.tiny import byte_fallback_tokenizer

TEXT = "苹果酸脱氢酶把苹果酸变成草酰乙酸，苹果里也有。"


def written(folder, content, name="words.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def book(folder, **given):
    rules = given.pop("pairs", [{"query": "苹果", "key": "草酰乙酸", "direction": "either"}])
    text = yaml.safe_dump({"pairs": rules, **given}, allow_unicode=True)
    return load_pairs(written(folder, text, "pairs.yaml"))


def refused(folder, **given):
    with pytest.raises(PairError) as caught:
        book(folder, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def found_in(text, pairs):
    """The words of each pair, (query, key)."""
    met, _ = pairs_in(text, pairs, rules=range(len(pairs.pairs)))
    return [tuple(text[span.start : span.end] for span in (one.query, one.key)) for one in met]


# ---- formats ---------------------------------------------------------------------------------------------------


def test_a_plain_list_a_table_of_classes_and_jieba_s_form_are_read(tmp_path):
    plain = "\ufeff# enzymes\n脱氢酶\n\n  合酶  \nmalic acid\n脱氢酶\n"
    assert read_dictionary(written(tmp_path, plain)) == (
        Entry("脱氢酶", None), Entry("合酶", None), Entry("malic acid", None),
    )  # fmt: skip
    table = "苹果酸\t代谢物\n脱氢酶\t酶\n脱氢酶\t蛋白\n"
    assert read_dictionary(written(tmp_path, table)) == (
        Entry("苹果酸", "代谢物"), Entry("脱氢酶", "酶"), Entry("脱氢酶", "蛋白"),
    )  # fmt: skip
    jieba = "创新办 3 i\n云计算 5\r\nmalic acid 7 nz\n"
    assert [entry.word for entry in read_dictionary(written(tmp_path, jieba))] == ["创新办", "云计算", "malic acid"]
    assert {entry.group for entry in read_dictionary(written(tmp_path, jieba))} == {None}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("苹果酸\n维生素 c\n", ":2: '维生素 c' is a word, or a word and a tag"),
        ("苹果酸\t代谢物\t3\n", ":1: has 3 cells"),
        ("苹果酸\t代谢物\n脱氢酶\t\n", ":2: has 2 cells"),
        ("苹果酸\n苹\0果\n", ":2: has a NUL"),
        ("# nothing\n\n", "holds no word"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, content, said):
    path = written(tmp_path, content)
    with pytest.raises(PairError) as caught:
        read_dictionary(path)
    assert said in str(caught.value) and str(caught.value).startswith(str(path))


def test_a_dictionary_that_is_not_there_is_one_line(tmp_path):
    assert "enzymes.txt: cannot be read (No such file or directory)" in refused(
        tmp_path, terms={"enzymes": "enzymes.txt"}
    )


# ---- in a pairs file -------------------------------------------------------------------------------------------


def test_terms_come_from_a_file_beside_the_pairs_whatever_folder_one_stands_in(tmp_path, monkeypatch):
    (tmp_path / "lists").mkdir()
    written(tmp_path / "lists", "脱氢酶\n合酶\n")
    rule = {"query": "苹果酸", "key": {"term": "enzymes"}, "direction": "either"}
    monkeypatch.chdir("/")
    pairs = book(tmp_path, pairs=[rule], terms={"enzymes": "lists/words.txt", "fruit": ["苹果"]})
    assert pairs.terms == {"enzymes": ("脱氢酶", "合酶"), "fruit": ("苹果",)}
    assert found_in("苹果酸和合酶", pairs) == [("合酶", "苹果酸")]


def test_a_file_with_classes_gives_each_term_its_words(tmp_path):
    written(tmp_path, "苹果酸\t代谢物\n草酰乙酸\t代谢物\n脱氢酶\t酶\n", "bio.tsv")
    rule = {"query": {"term": "酶"}, "key": {"term": "代谢物"}}
    both = {"酶": ("脱氢酶",), "代谢物": ("苹果酸", "草酰乙酸")}
    assert book(tmp_path, pairs=[rule], terms="bio.tsv").terms == both
    assert book(tmp_path, pairs=[rule], terms={"酶": "bio.tsv", "代谢物": "bio.tsv"}).terms == both
    assert "bio.tsv has the classes 代谢物, 酶" in refused(tmp_path, pairs=[rule], terms={"蛋白": "bio.tsv"})
    written(tmp_path, "苹果酸\t代谢物\n脱氢酶\n", "half.tsv")
    assert "'脱氢酶' has no class" in refused(tmp_path, pairs=[rule], terms="half.tsv")


def test_the_longest_word_of_a_dictionary_wins(tmp_path):
    """Where nobody says that 苹果酸 and 苹果酸脱氢酶 are words, 苹果 is read in them; with a dictionary it is not."""
    assert len(found_in(TEXT, book(tmp_path))) == 3
    written(tmp_path, "苹果酸 10 nz\n苹果酸脱氢酶 3 nz\n")
    pairs = book(tmp_path, words="words.txt")
    assert found_in(TEXT, pairs) == [("苹果", "草酰乙酸")]
    where = [span.start for span in pairs.lexicon.found(TEXT)["苹果"]]
    assert where == [TEXT.rindex("苹果")]
    assert {word: len(spans) for word, spans in pairs.lexicon.found(TEXT).items()} == {
        "苹果酸脱氢酶": 1, "苹果酸": 1, "苹果": 1, "草酰乙酸": 1,
    }  # fmt: skip
    rule = {"query": "苹果酸", "key": "草酰乙酸", "direction": "either"}
    assert found_in(TEXT, book(tmp_path, pairs=[rule], words="words.txt")) == [("草酰乙酸", "苹果酸")]


def test_words_of_other_classes_of_a_dictionary_hide_shorter_ones_too(tmp_path):
    written(tmp_path, "苹果\t水果\n苹果酸\t代谢物\n苹果酸脱氢酶\t酶\n", "bio.tsv")
    rule = {"query": {"term": "水果"}, "key": "草酰乙酸", "direction": "either"}
    assert found_in(TEXT, book(tmp_path, pairs=[rule], terms={"水果": "bio.tsv"})) == [("苹果", "草酰乙酸")]
    assert len(found_in(TEXT, book(tmp_path, pairs=[rule], terms={"水果": ["苹果"]}))) == 3


def test_a_word_of_one_character_is_found_alone_and_not_inside_a_longer_word(tmp_path):
    written(tmp_path, "脱氢酶\n酶\n")
    rule = {"query": "酶", "key": "草酰乙酸", "direction": "either"}
    text = "这种酶和脱氢酶都见草酰乙酸"
    assert found_in(text, book(tmp_path, pairs=[rule], words="words.txt")) == [("草酰乙酸", "酶")]
    (span,) = book(tmp_path, pairs=[rule], words="words.txt").lexicon.found(text)["酶"]
    assert span.start == 2


def test_a_hidden_word_reaches_no_token(tmp_path):
    """On tokens as well: the pair of 苹果 in a text that only has 苹果酸 is absent, not a piece of that word."""
    tokenizer = byte_fallback_tokenizer()
    written(tmp_path, "苹果酸\n")
    rule = [{"query": "苹果", "key": "发布", "direction": "either"}]
    reach = Reach(causal=True, window=None, longest=None)
    met = []
    for pairs in (book(tmp_path, pairs=rule), book(tmp_path, pairs=rule, words="words.txt")):
        encoding = Encoding(task="causal-lm", max_length=64, reach=reach, book=pairs, rules=(0,))
        record = Record(id="t", where="t:1", group="t", text="发布了苹果酸")
        met.append(encode(record, tokenizer, encoding).pairs)
    assert len(met[0]) == 1 and met[1] == ()


def test_mining_keeps_the_same_words_whole(tmp_path):
    entries = read_dictionary(written(tmp_path, "苹果酸脱氢酶 3 nz\n草酰乙酸\n"))
    words = [word.text for word in Segmenter(entry.word for entry in entries).words(TEXT)]
    assert "苹果酸脱氢酶" in words and "草酰乙酸" in words
