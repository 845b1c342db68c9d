"""Cases are read as they stand, whatever characters they hold, and bad ones are refused with file and line."""

import copy
import csv
import io
import json
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.cases import Case, CaseSet, case_of, load_cases, shipped_sets
from probe.errors import CasesError
from probe.spans import Span

GOOD = "- {id: a, text: 我喜欢苹果, target: 苹果, cues: [喜欢], sense: fruit}\n"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Write a file in an empty folder and load it by its bare name."""
    monkeypatch.chdir(tmp_path)

    def write_and_load(content: str | bytes, name: str = "my.yaml") -> CaseSet:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_cases(name)

    return write_and_load


@pytest.fixture
def refused(read):
    """Load a bad file and give the message."""

    def message(content: str | bytes, name: str = "my.yaml") -> str:
        with pytest.raises(CasesError) as caught:
            read(content, name)
        return str(caught.value)

    return message


def a_line(*pairs, **fields) -> str:
    return json.dumps({**dict(pairs), **fields}, ensure_ascii=False) + "\n"


# --- what can be read -----------------------------------------------------------------------------------------


def test_a_word_in_a_yaml_list_becomes_a_span(read):
    (case,) = read(GOOD).cases
    assert case == Case(id="a", text="我喜欢苹果", target=Span(3, 5), cues=(Span(1, 3),), sense="fruit")


def test_a_yaml_mapping_names_its_set(read):
    loaded = read(f"set: mine\nlanguage: zh\ndescription: two words\ncases:\n{GOOD}")
    assert (loaded.name, loaded.language, loaded.description, len(loaded.cases)) == ("mine", "zh", "two words", 1)


def test_a_set_without_a_name_takes_the_name_of_its_file(read):
    assert read(GOOD, "my.own.yml").name == "my.own"


def test_all_notations_of_a_span_agree(read):
    notations = [
        "marked: '我{喜欢}[苹果]'",
        "{text: 我喜欢苹果, target: 苹果, cues: [喜欢]}",
        "{text: 我喜欢苹果, target: [3, 5], cues: [[1, 3]]}",
        "{text: 我喜欢苹果, target: {word: 苹果, occurrence: 1}, cues: [{word: 喜欢}]}",
    ]
    cases = [read(f"- {notation}\n").cases[0] for notation in notations]
    assert {(case.text, case.target, case.cues) for case in cases} == {("我喜欢苹果", Span(3, 5), (Span(1, 3),))}


def test_an_occurrence_chooses_among_equal_words_and_counts_overlapping_ones(read):
    assert read("- {text: 苹果和苹果, target: {word: 苹果, occurrence: 2}}").cases[0].target == Span(3, 5)
    assert read("- {text: 哈哈哈, target: {word: 哈哈, occurrence: 2}}").cases[0].target == Span(1, 3)


def test_yaml_jsonl_and_csv_of_the_same_cases_have_the_same_digest(read):
    rows = [
        {"id": "a", "text": "我喜欢苹果", "target": "苹果", "cues": ["喜欢", "我"], "sense": "fruit"},
        {"id": "b", "text": '他说:"苹果,发布"', "target": "苹果", "cues": ["发布"], "group": "g"},
    ]
    table = io.StringIO()
    writer = csv.DictWriter(table, ["id", "sense", "group", "text", "target", "cues"])
    writer.writeheader()
    writer.writerows([{**row, "cues": "|".join(row["cues"])} for row in rows])
    as_yaml = read(yaml.safe_dump(rows, allow_unicode=True))
    as_lines = read("".join(a_line(**row) for row in rows), "my.jsonl")
    as_table = read(table.getvalue(), "my.csv")
    assert as_yaml.cases == as_lines.cases == as_table.cases
    assert as_yaml.digest == as_lines.digest == as_table.digest


def test_the_digest_changes_with_content_and_order_and_not_with_the_name():
    one, two = case_of("我喜欢苹果", target="苹果", id="1"), case_of("他讨厌菠菜", target="菠菜", id="2")
    digest = CaseSet(name="x", cases=(one, two)).digest
    assert digest == CaseSet(name="y", cases=(one, two)).digest
    assert len({digest, CaseSet(name="x", cases=(two, one)).digest, CaseSet(name="x", cases=(one,)).digest}) == 3


def test_a_case_without_id_is_named_after_its_line(read):
    assert [case.id for case in read("\n# note\n- marked: '[苹果]好'\n").cases] == ["line-3"]
    assert [case.id for case in read("\n" + a_line(marked="[苹果]好"), "my.jsonl").cases] == ["line-2"]
    rows = 'text,target\n"两\n行苹果",苹果\n苹果好,苹果\n'
    assert [case.id for case in read(rows, "my.csv").cases] == ["line-2", "line-4"]


def test_numbers_and_truth_words_in_yaml_stay_text(read):
    (case,) = read("- {id: 007, text: 1984年的苹果, target: 苹果, sense: yes, group: 1.50, meta: {year: 1984}}").cases
    assert (case.id, case.sense, case.group, case.meta) == ("007", "yes", "1.50", {"year": "1984"})


def test_marks_around_the_target_or_a_cue_in_a_text_are_noted_once_and_kept(read):
    loaded = read("- {text: '我{喜欢}苹果', target: 苹果, cues: [喜欢]}\n- {text: '我[苹果]', target: 苹果}\n")
    assert loaded.notes == ("line 1: text holds [ ] or { } as characters; to mark words use `marked:`",)
    assert [case.text for case in loaded.cases] == ["我{喜欢}苹果", "我[苹果]"]
    assert loaded.digest == CaseSet(name="x", cases=loaded.cases).digest
    assert read("- id: a\n  target: 苹果\n  text: 我[苹果]\n").notes[0].startswith("line 3: ")


def test_marks_around_other_words_or_written_as_marks_are_not_noted(read):
    assert (
        read("- {text: '见[1]，我喜欢苹果', target: 苹果, cues: [喜欢]}\n- {text: '[苹果}', target: 苹果}\n").notes
        == ()
    )
    assert read(r"- marked: '我{喜欢}\[[苹果]\]'").notes == ()


def test_a_cue_missing_from_a_csv_says_what_divides_cues(refused):
    message = refused("text,target,cues\n超市的甜苹果,苹果,超市;甜\n", "my.csv")
    assert "cue '超市;甜' is not in the text" in message and message.endswith("; several cues are divided by |")
    assert "divided" not in refused("- {text: 超市的甜苹果, target: 苹果, cues: [超市;甜]}")
    assert "divided" not in refused("text,target,cues\n超市的甜苹果,梨,超市|甜\n", "my.csv")


def test_an_empty_optional_field_means_not_given(read):
    assert read("- {id: a, text: 苹果好, target: 苹果, sense: , cues: ~, meta: null}").cases[0].cues == ()
    assert read(a_line(text="苹果好", target="苹果", cues=None), "my.jsonl").cases[0].cues == ()


def test_quoted_null_stays_a_word(read):
    assert read("- {text: 'null 是空', target: 'null'}").cases[0].target == Span(0, 4)


def test_escaped_marks_are_text(read):
    (case,) = read(r"- marked: '列表\[0\]里{存}着[苹果]和\{\}与\\'").cases
    assert case.text == "列表[0]里存着苹果和{}与\\"
    assert case.target.cut(case.text) == "苹果"


ODD_TEXTS = {
    "emoji": ("我😀喜欢苹果", "苹果", 4),
    "emoji joined by ZWJ": ("👩‍👩‍👧爱苹果", "苹果", 6),
    "outside the BMP": ("𠮷野家的苹果", "苹果", 4),
    "right-to-left marks": ("\u200f苹果\u200e שלום", "苹果", 1),
    "zero-width joiners": ("苹\u200d果和苹果", "苹果", 4),
    "HTML": ("<b>苹果</b>&amp;<script>alert(1)</script>", "苹果", 3),
    "traditional": ("我喜歡蘋果", "蘋果", 3),
    "full-width": ("ＡＢＣ苹果１２３", "苹果", 3),
    "one character": ("苹", "苹", 0),
    "white space around": ("  苹果\t ", "苹果", 2),
    "combining": ("e\u0301苹果", "苹果", 2),
    "line separators": ("上\u2028苹果\x85下", "苹果", 2),
}


@pytest.mark.parametrize("kind", ODD_TEXTS)
@pytest.mark.parametrize("suffix", [".yaml", ".jsonl", ".csv"])
def test_a_text_is_never_changed_and_offsets_are_those_of_the_given_text(read, kind, suffix):
    text, target, start = ODD_TEXTS[kind]
    if suffix == ".csv":
        content = f'text,target\n"{text}",{target}\n'
    elif suffix == ".jsonl":
        content = a_line(text=text, target=target)
    else:
        quoted = json.dumps(text, ensure_ascii=False).replace("\x85", "\\N").replace("\u2028", "\\u2028")
        content = f"- {{text: {quoted}, target: {target}}}\n"
    (case,) = read(content, f"odd{suffix}").cases
    assert case.text == text
    assert case.target == Span(start, start + len(target))


@pytest.mark.parametrize("name, content", [
    ("a.yaml", GOOD),
    ("a.jsonl", a_line(id="a", text="我喜欢苹果", target="苹果", cues=["喜欢"], sense="fruit")),
    ("a.csv", "id,text,target,cues,sense\na,我喜欢苹果,苹果,喜欢,fruit\n"),
])  # fmt: skip
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(read, name, content):
    plain = read(content, name)
    windows = b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode()
    assert read(windows, name) == plain


def test_a_line_break_inside_a_quoted_csv_text_is_kept_as_it_is(read):
    assert read('text,target\r\n"苹果\r\n好",苹果\r\n', "a.csv").cases[0].text == "苹果\r\n好"


def test_blank_lines_are_no_cases(read):
    assert len(read("\n" + a_line(marked="[苹果]") + "  \n\n", "a.jsonl").cases) == 1
    assert len(read("text,target\n\n苹果好,苹果\n,\n", "a.csv").cases) == 1


def test_yaml_reads_the_same_without_libyaml(read, monkeypatch):
    fast = load_cases("apple")
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert load_cases("apple") == fast


PIECES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
WORDS = PIECES.filter(str.strip)


def escaped(text: str) -> str:
    return "".join("\\" + char if char in "[]{}\\" else char for char in text)


@given(before=PIECES, target=WORDS, between=PIECES, cue=WORDS, after=PIECES)
def test_any_text_survives_marking(tmp_path_factory, before, target, between, cue, after):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    marked = f"{escaped(before)}[{escaped(target)}]{escaped(between)}{{{escaped(cue)}}}{escaped(after)}"
    path.write_text(json.dumps({"marked": marked}), "utf-8")
    (case,) = load_cases(path).cases
    assert case.text == before + target + between + cue + after
    assert case.target == Span(len(before), len(before + target))
    assert [span.cut(case.text) for span in case.cues] == [cue]


@settings(max_examples=300)
@given(
    content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    suffix=st.sampled_from(["yaml", "jsonl", "csv"]),
)
def test_any_bytes_are_read_or_refused_in_words(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"bytes.{suffix}"
    path.write_bytes(content)
    try:
        assert load_cases(path).cases
    except CasesError as error:
        assert f"bytes.{suffix}" in str(error)


# --- what is refused ------------------------------------------------------------------------------------------

IN_A_CASE = {
    "target: 香蕉, text: 我喜欢苹果": ["target '香蕉' is not in the text"],
    "target: '', text: 我喜欢苹果": ["target is empty"],
    "target: [3, 9], text: 我喜欢苹果": ["target [3, 9]", "<= 5"],
    "target: [3, 3], text: 我喜欢苹果": ["target [3, 3] is empty"],
    "target: [-1, 3], text: 我喜欢苹果": ["target", "[start, end]"],
    "target: [1, 2, 3], text: 我喜欢苹果": ["target is [1, 2, 3]", "[start, end]"],
    "target: 2, text: 第2个苹果": ["target is 2", "a number in quotes"],
    "cues: [1, 3], target: 苹果, text: 我喜欢苹果": ["cues is [1, 3]", "a list, each"],
    "cues: 喜欢, target: 苹果, text: 我喜欢苹果": ["cues is '喜欢'", "a list, each"],
    "cues: [''], target: 苹果, text: 我喜欢苹果": ["cue is empty"],
    "cues: [喜欢苹], target: 苹果, text: 我喜欢苹果": ["cue '喜欢苹' overlaps target '苹果'"],
    "cues: [喜, 喜欢], target: 苹果, text: 我喜欢苹果": ["cue '喜欢' overlaps cue '喜'"],
    "cues: [香蕉, 梨], target: 苹果, text: 我喜欢苹果": ["cue '香蕉' is not", "cue '梨' is not"],
    "target: 苹果, text: 苹果和苹果": ["stands 2 times", "occurrence", "marked"],
    "target: {word: 苹果, occurrence: 3}, text: 苹果和苹果": ["no occurrence 3; allowed is 1 to 2"],
    "target: {word: 苹果, occurrence: 0}, text: 苹果": ["target is", "occurrence"],
    "target: {word: 苹果, occurence: 1}, text: 苹果": ["target is", "{word: …, occurrence: 2}"],
    "target: '  ', text: '我  喜欢'": ["target [1, 3] is empty"],
    "target: 苹果, text: ''": ["text is empty"],
    "target: ' ', text: ' '": ["text is empty"],
    "target: 苹果": ["text missing", "marked"],
    "text: 苹果": ["target missing"],
    "sense: fruit": ["text and target missing"],
    "targt: 苹果, text: 我喜欢苹果": ["unknown field 'targt'; did you mean target?", "cues"],
    "meta: 苹果, marked: '[苹果]'": ["meta is '苹果'", "mapping"],
    "meta: {a: [b]}, marked: '[苹果]'": ["meta is", "mapping"],
    "sense: [a], marked: '[苹果]'": ["sense is ['a']", "a text"],
    "marked: '[苹果]', text: 苹果": ["`marked` beside"],
    "marked: '我喜欢苹果'": ["marked 0 times", "one [target]"],
    "marked: '[苹果]和[梨]'": ["marked 2 times"],
    "marked: '我[苹果'": ["[ before '苹果' is not closed"],
    "marked: '我苹果]'": ["] after '我苹果' does not match"],
    "marked: '我[苹果}'": ["} after '我苹果' does not match"],
    "marked: '我[{苹}果]'": ["{ after '我' does not match"],
    "marked: '我[]'": ["mark [] is empty"],
    r"marked: '我\n[苹果]'": [r"backslash stands before 'n'"],
    r"marked: '[苹果]\'": ["backslash stands before ''"],
    r'target: 苹果, text: "苹果\0"': ["NUL at offset 2"],
    r'target: 苹果, text: 苹果, sense: "\0"': ["sense has NUL"],
    "id: ' ', marked: '[苹果]'": ["id is empty"],
}


@pytest.mark.parametrize("fields", IN_A_CASE)
def test_a_bad_case_is_refused_in_one_line_that_says_where_and_what(refused, fields):
    name = "" if fields.startswith("id:") else "id: bad, "
    message = refused(f"{GOOD}\n- {{{name}{fields}}}\n")
    assert message.startswith("my.yaml:3: case 'bad'" if name else "my.yaml:3: case ' '")
    assert "\n" not in message
    assert "allowed" in message or "say which" in message
    for part in IN_A_CASE[fields]:
        assert part in message


FILES = {
    "half a character": (
        "my.jsonl",
        rb'{"id": "x", "marked": "[a]\ud800"}',
        ["my.jsonl:1: case 'x': text has half a character (U+D800) at offset 1"],
    ),
    "half a character in a target": ("my.jsonl", rb'{"text": "a", "target": "\ud800"}', ["my.jsonl:1:", "target"]),
    "half a character in a name": ("my.jsonl", rb'{"\ud800": "a"}', ["my.jsonl:1: a field name has half a character"]),
    "a YAML line break": ("my.yaml", "- a\n- b\u2028c\n".encode(), ["my.yaml:2: U+2028", r"\u2028 in quotes"]),
    "empty": ("my.yaml", b"", ["my.yaml: is empty"]),
    "only white space": ("my.csv", b"\xef\xbb\xbf \r\n", ["my.csv: is empty"]),
    "no cases in YAML": ("my.yaml", b"# nothing\n", ["my.yaml: holds no cases"]),
    "an empty list": ("my.yaml", b"cases: []\n", ["my.yaml: holds no cases"]),
    "only a CSV header": ("my.csv", b"text,target\n", ["my.csv: holds no cases"]),
    "GBK": ("my.csv", "text,target\n苹果,苹果\n".encode("gbk"), ["my.csv:2: byte 14 (0xB9) is not UTF-8", "save"]),
    "UTF-16 LE": ("my.yaml", GOOD.encode("utf-16-le").join([b"\xff\xfe", b""]), ["is UTF-16", "FF FE", "UTF-8"]),
    "UTF-16 BE": ("my.csv", GOOD.encode("utf-16-be").join([b"\xfe\xff", b""]), ["is UTF-16", "FE FF", "UTF-8"]),
    "a raw NUL": ("my.jsonl", b'{}\n{"id": "\0"}', ["my.jsonl:2: has a NUL character"]),
    "a control character": ("my.yaml", "- 苹果\n- \x01".encode(), ["my.yaml:2: broken YAML", "control characters"]),
    "an open bracket": ("my.yaml", b"- a\n- [b\n", ["my.yaml:3: broken YAML"]),
    "two colons": ("my.yaml", b"cases:\n  - id: a: b\n", ["my.yaml:2: broken YAML (mapping values"]),
    "half a character in YAML": ("my.yaml", rb'- "\ud800"', ["my.yaml:1: broken YAML", "escape code"]),
    "a tab": ("my.yaml", b"cases:\n\t- id: a\n", ["my.yaml:2: broken YAML"]),
    "a text for a list": ("my.yaml", b"cases: none yet\n", ["my.yaml:1: 'none yet' is no list of cases"]),
    "a bare text": ("my.yaml", b"hello\n", ["my.yaml:1: 'hello' is no list of cases"]),
    "a text for a case": ("my.yaml", b"- hello\n", ["my.yaml:1: 'hello' is no case", "marked"]),
    "an unknown head": (
        "my.yaml",
        b"cases: []\nlangauge: zh\n",
        ["my.yaml:2: unknown field 'langauge'; did you mean language?"],
    ),
    "a key twice": (
        "my.yaml",
        b"- id: a\n  marked: '[x]'\n  id: b\n",
        ["my.yaml:3: field 'id' stands twice", "line 1"],
    ),
    "a list as key": ("my.yaml", b"- ? [a]\n  : b\n", ["my.yaml:1: a list or mapping stands as a key"]),
    "two documents": ("my.yaml", b"--- [a]\n---\n[b]\n", ["my.yaml:2: a second YAML document"]),
    "an alias": ("my.yaml", b"- &a [x]\n- *a\n", ["my.yaml:2: alias *a is refused"]),
    "deep nesting": ("my.yaml", b"[" * 900 + b"]" * 900, ["my.yaml:1:", "5 deep"]),
    "deeper nesting": ("my.yaml", b"[" * 200_000, ["my.yaml:1: broken YAML", "nesting depth"]),
    "deep JSON": ("my.jsonl", b"[" * 200_000, ["my.jsonl:1:"]),
    "broken JSON": ("my.jsonl", b'{"id": 1}}', ["my.jsonl:1: broken JSON (Extra data, column 10)"]),
    "a JSON list": ("my.jsonl", b"[]\n", ["my.jsonl:1: [] is no case"]),
    "a JSON key twice": ("my.jsonl", b'{"id": "a", "id": "b"}', ["my.jsonl:1: field 'id' stands twice"]),
    "a huge number": ("my.jsonl", b'{"id": ' + b"9" * 5000 + b"}", ["my.jsonl:1: JSON that cannot be read"]),
    "semicolons": ("my.csv", b"id;text;target\na;b;b\n", ["my.csv:1: unknown column 'id;text;target'"]),
    "a CSV column twice": ("my.csv", b"text,text,target\n", ["my.csv:1: column text stands twice"]),
    "meta in CSV": ("my.csv", b"text,target,meta\n", ["my.csv:1: unknown column 'meta'", "marked"]),
    "a short row": ("my.csv", b"id,text,target\na,b\n", ["my.csv:2: the row has 2 cells; allowed are 3"]),
    "an open quote": ("my.csv", b'text,target\n"a,b\n', ["my.csv:2: broken CSV"]),
    "an unknown ending": ("my.json", b"[]", ["my.json: unknown file ending '.json'", ".yaml, .yml, .jsonl, .csv"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_is_refused_in_one_line_that_says_where_and_what(refused, kind):
    name, content, parts = FILES[kind]
    message = refused(content, name)
    assert "\n" not in message, message
    assert "allowed" in message or "broken YAML" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!boom", "!!set", "!!binary"]
)
def test_yaml_tags_build_nothing(refused, tmp_path, tag):
    message = refused(f"{GOOD}- {tag} ['touch {tmp_path}/built']\n")
    assert message.startswith(f"my.yaml:2: tag '{tag}' is refused") and "\n" not in message
    assert not (tmp_path / "built").exists()


def test_aliases_cannot_multiply(refused):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert "my.yaml:2: alias *a0 is refused" in refused(bomb)


def test_a_missing_file_and_an_unknown_set_name_what_there_is(tmp_path):
    with pytest.raises(CasesError, match=r"^relation: no such file .*did you mean relations\?.*apple.*\.jsonl"):
        load_cases("relation")
    with pytest.raises(CasesError, match=r"none\.yaml: no such file"):
        load_cases(tmp_path / "none.yaml")
    with pytest.raises(CasesError, match=r"is a folder; allowed is a file ending in \.yaml"):
        load_cases(tmp_path)


@pytest.mark.parametrize("source", ["x" * 5000 + ".yaml", "a\0b.yaml", "a\nb.yaml", ""])
def test_a_path_that_no_system_takes_is_refused_in_one_line(source):
    with pytest.raises(CasesError) as caught:
        load_cases(source)
    assert "\n" not in str(caught.value)


def test_an_id_used_twice_is_refused_with_both_lines(refused):
    message = refused(GOOD + "\n" + GOOD)
    assert message.startswith("my.yaml:3: id 'a' stands twice: here and in line 1")


def test_all_problems_are_told_at_once_a_line_each_up_to_twenty(refused):
    lines = refused(a_line(id="a", text="苹果", target="梨") * 3, "my.jsonl").split("\n")
    assert lines[0] == "my.jsonl: 3 problems:"
    assert [line.split(": ")[0] for line in lines[1:]] == ["my.jsonl:1", "my.jsonl:2", "my.jsonl:3"]
    many = refused(a_line(text="苹果", target="梨") * 500, "my.jsonl").split("\n")
    assert many[0] == "my.jsonl: 500 problems, the first 20:" and len(many) == 21


def test_a_message_stays_one_short_line_whatever_the_text_holds(refused):
    message = refused(a_line(id="a\nb", text="长\n\u202e" * 5000, target="梨\r\n"), "my.jsonl")
    assert message.isprintable() and len(message) < 400


# --- Case and case_of -----------------------------------------------------------------------------------------


def test_a_case_checks_itself():
    with pytest.raises(CasesError, match=r"case 'a': target \[3, 9\] lies outside the text, which has 5 characters"):
        Case(id="a", text="我喜欢苹果", target=Span(3, 9))
    with pytest.raises(CasesError, match="overlaps target"):
        Case(id="a", text="我喜欢苹果", target=Span(3, 5), cues=(Span(2, 4),))


def test_a_case_can_be_hashed_compared_and_copied():
    case = Case(id="a", text="我喜欢苹果", target=Span(3, 5), meta={"gloss": "x"})
    assert copy.deepcopy(case) == case and len({case, case}) == 1


def test_a_set_needs_cases_with_different_ids():
    case = case_of("我喜欢苹果", target="苹果")
    with pytest.raises(CasesError, match="no cases"):
        CaseSet(name="x", cases=())
    with pytest.raises(CasesError, match="one id"):
        CaseSet(name="x", cases=(case, case))


def test_case_of_takes_words_and_spans():
    case = case_of("我喜欢苹果和苹果", target="苹果", cues=["喜欢", Span(0, 1)], occurrence=2)
    assert (case.target, case.cues) == (Span(6, 8), (Span(1, 3), Span(0, 1)))
    assert case_of("苹果和苹果", target="苹果").target == Span(0, 2)


@pytest.mark.parametrize("arguments, part", [
    ({"target": "梨"}, "target '梨' is not in the text"),
    ({"target": ""}, "target is empty"),
    ({"target": "苹果", "occurrence": 3}, "no occurrence 3; allowed is 1 to 2"),
    ({"target": "苹果", "occurrence": 0}, "no occurrence 0"),
    ({"target": "和", "cues": ["苹果"]}, "cue '苹果' stands 2 times"),
    ({"target": "和", "cues": "苹果"}, "allowed is a list of words"),
    ({"target": "和", "cues": [Span(7, 9)]}, "lies outside"),
])  # fmt: skip
def test_case_of_refuses_in_one_line(arguments, part):
    with pytest.raises(CasesError) as caught:
        case_of("苹果和苹果", **arguments)
    assert part in str(caught.value) and "\n" not in str(caught.value)


# --- size -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix, seconds", [(".jsonl", 20), (".csv", 20), (".yaml", 30)])
def test_fifty_thousand_cases_load_in_seconds(read, suffix, seconds):
    count = 50_000
    texts = [f"第{number}个人说他喜欢新鲜的苹果" for number in range(count)]
    if suffix == ".jsonl":
        content = "".join(a_line(text=text, target="苹果", cues=["喜欢"], sense="fruit") for text in texts)
    elif suffix == ".csv":
        content = "text,target,cues,sense\n" + "".join(f"{text},苹果,喜欢,fruit\n" for text in texts)
    else:
        content = "".join(f"- text: {text}\n  target: 苹果\n  cues: [喜欢]\n  sense: fruit\n" for text in texts)
    begin = time.process_time()
    loaded = read(content, f"many{suffix}")
    assert time.process_time() - begin < seconds
    assert len({case.id for case in loaded.cases}) == count
    assert loaded.cases[-1].target.cut(loaded.cases[-1].text) == "苹果"


def test_the_shipped_sets_are_read_by_their_names_and_only_by_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(load_cases(name).name == name for name in shipped_sets())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "case 'text': text is None; allowed is a text"),
        ({"text": b"x"}, "case 'text': text is b'x'"),
        ({"text": 5}, "case 'text': text is 5"),
        ({"id": 5}, "id is 5; allowed is a text"),
        ({"target": None}, "case 'text': target is None; allowed is a word of the text, or a Span"),
        ({"target": b"x"}, "case 'text': target is b'x'"),
        ({"occurrence": "1"}, "case 'text': occurrence '1': allowed is a whole number"),
        ({"occurrence": None}, "case 'text': occurrence None"),
        ({"occurrence": True}, "case 'text': occurrence True"),
        ({"cues": "喜"}, "case 'text': cues is the word '喜'; allowed is a list"),
        ({"cues": None}, "case 'text': cues is None; allowed is a list"),
        ({"cues": ["喜", 5]}, "case 'text': cue is 5; allowed is a word of the text, or a Span"),
        ({"cues": ["我"]}, "case 'text': cue '我' stands 2 times in the text; say which: give a Span"),
    ],
)
def test_case_of_names_what_is_of_the_wrong_kind(changes, message):
    with pytest.raises(CasesError, match=f"^{message}") as refused:
        case_of(**{"text": "我喜欢我苹果", "target": "苹果", **changes})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": 1}, "case 1: id is 1; allowed is a text"),
        ({"sense": None}, "case 'x': sense is None"),
        ({"target": (0, 1)}, r"case 'x': target is \(0, 1\); allowed is a Span"),
        ({"cues": [(0, 1)]}, "case 'x': cues is .*; allowed is a list of Spans"),
        ({"cues": "喜"}, "case 'x': cues is '喜'"),
        ({"meta": {"a": 1}}, "case 'x': meta is {'a': 1}; allowed is a mapping of names to texts"),
        ({"meta": None}, "case 'x': meta is None"),
    ],
)
def test_a_case_of_the_wrong_kinds_is_refused(changes, message):
    with pytest.raises(CasesError, match=f"^{message}"):
        Case(**{"id": "x", "text": "我喜欢苹果", "target": Span(3, 5), **changes})
    assert Case(id="x", text="我喜欢苹果", target=Span(3, 5), cues=[Span(1, 3)]).cues == (Span(1, 3),)
