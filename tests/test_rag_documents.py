"""Documents read from every kind of file; the red team's set; what is refused and what is told."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import docx
import pytest

from finetune.errors import RetrievalError
from finetune.rag.apart import Apart
from finetune.rag.chunks import chunk_document
from finetune.rag.decoding import decoded
from finetune.rag.documents import Columns, Document, Left, Limits, UnreadableError
from finetune.rag.pdfpages import joined_lines
from finetune.rag.readers import _dataset_rows, read_documents
from tests.redteam import LIMITS, PLANTED, SECRET, Hostile, docx_bytes, encrypted, paragraph, pdf_bytes, write_redteam
from tests.tokenizers_zoo import gemma_bytes

ROOT = Path(__file__).resolve().parents[1]


def read(*sources: Any, **settings: Any) -> dict[str, Document | Left]:
    """What was read by its name; every name stands once."""
    given = list(read_documents(sources, **settings))
    named = {one.id if isinstance(one, Document) else one.path: one for one in given}
    assert len(named) == len(given)
    return named


def text_of(one: Document | Left) -> str:
    assert isinstance(one, Document), one
    return one.text


def reason(one: Document | Left) -> str:
    assert isinstance(one, Left), one
    return one.reason


# ---- the red team ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redteam(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("redteam") / "documents"
    hostile = write_redteam(folder)
    began = time.process_time()
    got = read(folder, limits=LIMITS)
    assert time.process_time() - began < 60
    return hostile, got


def test_no_hostile_file_ends_the_run_and_each_is_a_text_or_a_reason(redteam):
    hostile, got = redteam
    assert len(hostile) > 100
    wrong = [f"{one.name!r}: {fate(one, got.get(one.name))}" for one in hostile if fate(one, got.get(one.name))]
    assert wrong == []


def fate(hostile: Hostile, one: Document | Left | None) -> str:
    """What is wrong with what became of a hostile file; nothing where it is as it should be."""
    if one is None:
        return "nothing became of it"
    if isinstance(one, Left):
        wrong = hostile.fate == "document" or (hostile.fate == "left" and hostile.says not in one.reason)
        return one.reason if wrong else ""
    if hostile.fate == "left":
        return f"a document of {one.text[:40]!r}"
    if hostile.fate == "document" and hostile.says not in one.text:
        return f"lacks {hostile.says[:40]!r}: {one.text[:200]!r}"
    return f"has {hostile.hides!r}" if hostile.hides and hostile.hides in one.text else ""


def test_every_reason_and_title_of_the_red_team_is_one_short_line(redteam):
    _, got = redteam
    for one in got.values():
        words = one.title if isinstance(one, Document) else one.reason
        assert words.strip() == words and "\n" not in words and len(words) < 400 and (words or "#" in one.id)


def test_nothing_outside_the_folder_is_read(redteam):
    _, got = redteam
    assert [name for name, one in got.items() if isinstance(one, Document) and SECRET in one.text] == []


def test_what_is_read_can_be_written_and_is_what_its_hash_says(redteam):
    _, got = redteam
    for name, one in got.items():
        assert name.encode()
        if isinstance(one, Document):
            assert one.sha256 == hashlib.sha256(one.text.encode()).hexdigest()


def test_a_planted_instruction_stays_a_text_word_for_word(redteam):
    _, got = redteam
    assert PLANTED in text_of(got["planted.txt"]) and "<end_of_turn>" in text_of(got["turn.txt"])


def test_every_document_of_the_red_team_is_cut_into_slices_of_itself(redteam):
    _, got = redteam
    for one in got.values():
        if isinstance(one, Document):
            short = replace(one, text=one.text[:3000])
            for chunk in chunk_document(short, gemma_bytes(), size=64):
                assert short.text[chunk.start : chunk.end] == chunk.text and chunk.tokens <= 64


def test_a_user_without_the_right_to_read_is_told_so(tmp_path):
    (tmp_path / "a.txt").write_text("苹果")
    (tmp_path / "a.txt").chmod(0)
    (tmp_path / "closed").mkdir(0)
    root = os.geteuid() == 0  # who may read everything
    above = {folder: folder.stat().st_mode for folder in [tmp_path, *tmp_path.parents[:3]]} if root else {}
    for folder, mode in above.items():
        folder.chmod(mode | 0o055)
    if root:
        os.seteuid(65534)
    try:
        got = read(tmp_path)
    finally:
        if root:
            os.seteuid(0)
        (tmp_path / "closed").chmod(0o700)
        for folder, mode in above.items():
            folder.chmod(mode)
    assert reason(got["a.txt"]) == reason(got["closed"]) == "cannot be read (Permission denied)"


# ---- plain files -----------------------------------------------------------------------------------------------


def test_offsets_of_plain_files_are_those_of_their_own_characters(tmp_path):
    text = "# 苹果 #\r\n\r\n*苹果*是水果。\r\n\t很甜。  \n"
    (tmp_path / "a.md").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "b.txt").write_text(text, encoding="utf-8", newline="")
    got = read(tmp_path)
    assert text_of(got["a.md"]) == text_of(got["b.txt"]) == text
    assert (got["a.md"].title, got["b.txt"].title, got["a.md"].kind) == ("苹果", "b", "markdown")


def test_folders_are_read_in_one_order_whatever_the_file_system_says(tmp_path):
    for name in ("b/z.txt", "b/a.txt", "a.txt", "c.txt", "B.TXT"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("苹果")
    assert list(read(tmp_path)) == ["B.TXT", "a.txt", "b/a.txt", "b/z.txt", "c.txt"]


@pytest.mark.parametrize("text", ["苹果", "苹果很好吃。", "id,text\n1,苹果公司发布新品\n", "他说：“苹果。”" * 500])
def test_chinese_without_utf8_is_read_however_short(text):
    assert decoded(text.encode("gb18030")) == text


KOREAN = "안녕하세요. 사과는 맛있는 과일입니다. 우리는 사과를 좋아합니다. "
JAPANESE = "りんごは赤い果物です。リンゴ酸脱水素酵素は酵素です。"
RUSSIAN = "Яблоко упало на голову Ньютона. "


@pytest.mark.parametrize(
    ("text", "encoding"),
    [(KOREAN, "euc_kr"), (JAPANESE, "euc_jp"), (JAPANESE, "shift_jis"), (RUSSIAN, "cp1251"), ("蘋果很好吃", "big5")],
)
def test_other_encodings_are_not_taken_for_chinese(text, encoding):
    with pytest.raises(UnreadableError, match="allowed are UTF-8, UTF-16 with its mark, and GB18030"):
        decoded((text * 3).encode(encoding))


# ---- sources ---------------------------------------------------------------------------------------------------


def test_names_of_several_sources_begin_with_what_tells_them_apart(tmp_path):
    for name in ("x/docs/a.txt", "y/docs/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("苹果")
    assert list(read(tmp_path / "x/docs", tmp_path / "y/docs")) == ["x/docs/a.txt", "y/docs/a.txt"]
    assert list(read(tmp_path / "x", tmp_path / "y")) == ["x/docs/a.txt", "y/docs/a.txt"]
    assert list(read(tmp_path / "x/docs")) == list(read(tmp_path / "x/docs/a.txt")) == ["a.txt"]


def test_a_file_met_twice_is_read_once(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("苹果")
    os.link(tmp_path / "in/a.txt", tmp_path / "in/b.txt")
    got = read(tmp_path, tmp_path / "in")
    folder = tmp_path.name
    assert isinstance(got[f"{folder}/in/a.txt"], Document)
    assert reason(got[f"{folder}/in/b.txt"]) == reason(got["in/a.txt"]) == f"is the same file as {folder}/in/a.txt"


def test_a_link_that_is_itself_the_source_is_followed(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("苹果")
    (tmp_path / "link").symlink_to(tmp_path / "docs")
    assert text_of(read(tmp_path / "link")["a.txt"]) == "苹果"


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "no documents: allowed are"),
        (["./not/there"], "./not/there: no file and no folder here, and no hub id; allowed are folders, files ending"),
        (["a\0b"], "no file and no folder here"),
        (["没有这个文件夹"], "没有这个文件夹: no file and no folder here, and no hub id; allowed are folders, files"),
        (["docs/notes.TXT"], "docs/notes.TXT: no file and no folder here, and no hub id; allowed"),
        (["corpus.jsonl"], "and datasets of the hub as org/name"),
        (["nobody-here/"], "nobody-here/: no file and no folder here"),
        ([ROOT / "docs", ROOT / "docs"], "docs: is named twice"),
    ],
)
def test_a_source_that_is_not_there_is_refused_before_anything_is_read(sources, said):
    with pytest.raises(RetrievalError) as refused:
        read_documents(sources)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_dataset_id_without_network_is_one_line():
    code = "from finetune.rag.readers import *\n"
    code += "try: list(read_documents(['nobody-here/nothing']))\nexcept RetrievalError as e: print(e)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    (said,) = done.stdout.splitlines()
    start = "nobody-here/nothing: no file and no folder here, and the hub cannot be reached; allowed are folders, files"
    assert said.startswith(start) and said.endswith("and datasets of the hub as org/name") and "…" not in said


@pytest.mark.parametrize("name", ["file_mb", "row_mb", "unpacked_mb", "memory_mb", "seconds", "bad_rows"])
def test_limits_that_leave_everything_out_are_refused(name):
    with pytest.raises(RetrievalError, match=f"limits.{name} 0: allowed is a number above 0"):
        Limits(**{name: 0})


def test_progress_counts_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("苹果")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    seen: list[tuple[str, int, int]] = []
    read(tmp_path, progress=lambda *step: seen.append(step))
    assert seen == [("reading documents", 1, 2), ("reading documents", 2, 2)]


# ---- pages, PDF, DOCX ------------------------------------------------------------------------------------------


def test_a_page_gives_its_blocks_as_lines_and_its_own_title(tmp_path):
    (tmp_path / "a.html").write_text(
        "<!doctype html><html><head><title> 苹果\n手册 </title><meta charset=utf-8></head><body><h1>种<b>植</b></h1>"
        "<p>苹果&amp;梨\n  都<i>是</i>水果。<p>第二段<br>换行<ul><li>一<li>二</ul>"
        "<table><tr><td>甲<td>乙<tr><td>丙</table>"
        "<pre>  a\n  b</pre></body></html>"
    )
    got = read(tmp_path)["a.html"]
    lines = [line for line in text_of(got).split("\n") if line]
    assert lines == ["种植", "苹果&梨 都是水果。", "第二段", "换行", "一", "二", "甲 乙", "丙", "a", "b"]
    assert got.title == "苹果 手册"


def test_a_page_without_a_title_has_that_of_its_first_heading_or_of_its_file(tmp_path):
    (tmp_path / "a.html").write_text("<h1>种<b>植</b></h1><h1>第二</h1><p>苹果")
    (tmp_path / "b.htm").write_text("<p>苹果")
    assert [one.title for one in read(tmp_path).values()] == ["种植", "b"]


def test_a_pdf_gives_its_text_with_lines_joined(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf_bytes("苹果酸脱氢酶是一种酶它催化苹\n果酸的氧化。\n第二段"))
    assert text_of(read(tmp_path)["a.pdf"]) == "苹果酸脱氢酶是一种酶它催化苹果酸的氧化。\n第二段"


@pytest.mark.parametrize(
    ("printed", "joined"),
    [
        ("苹果酸脱氢酶催化苹果\n酸的氧化，是一种酶的\n名。\n下", "苹果酸脱氢酶催化苹果酸的氧化，是一种酶的名。\n下"),
        ("Apples are an exam-\nple of a fruit that\nall know.", "Apples are an example of a fruit that all know."),
        ("标题\n苹果酸脱氢酶催化苹果\n酸的氧化", "标题\n苹果酸脱氢酶催化苹果酸的氧化"),
        ("第一段的文字在这里。\n第二段的文字在这里", "第一段的文字在这里。\n第二段的文字在这里"),
        ("一\n\n\n\n二", "一\n\n二"),
        ("", ""),
    ],
)  # fmt: skip
def test_lines_that_only_the_page_parted_are_joined(printed, joined):
    assert joined_lines(printed) == joined


def test_a_docx_gives_paragraphs_tables_insertions_and_its_title(tmp_path):
    written = docx.Document()
    written.core_properties.title = "苹果手册"
    written.add_heading("种植", 1)
    written.add_paragraph("苹果是水果。").add_run("很甜。")
    table = written.add_table(rows=2, cols=2)
    for place, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"格{place}"
    written.save(str(tmp_path / "a.docx"))
    got = read(tmp_path)["a.docx"]
    assert (
        text_of(got).splitlines() == ["种植", "苹果是水果。很甜。", "格0 \t格1", "格2 \t格3"]
        and got.title == "苹果手册"
    )


def test_a_docx_without_a_title_has_that_of_its_file(tmp_path):
    inserted = (
        f'<w:p><w:ins w:author="x"><w:r><w:t>新</w:t><w:tab/><w:t>句</w:t></w:r></w:ins></w:p>{paragraph("苹果")}'
    )
    (tmp_path / "苹果.docx").write_bytes(docx_bytes(inserted))
    got = read(tmp_path)["苹果.docx"]
    assert (got.title, text_of(got)) == ("苹果", "新\t句\n苹果")


# ---- the process apart -----------------------------------------------------------------------------------------


def test_a_reader_that_takes_too_long_is_ended_and_the_next_file_is_read():
    slow = b"<p>" + b"<i>" * 200_000 + b"</b>" * 200_000
    told = pytest.raises(UnreadableError, match=r"took its reader more than 0\.3 seconds")
    with Apart(Limits(seconds=0.3)) as apart, told:
        apart.read("html", slow)
    with Apart(Limits(seconds=30)) as apart:
        assert apart.read("html", "<p>苹果".encode()).text == "苹果"


def test_a_reader_that_dies_is_started_again():
    with Apart(Limits()) as apart:
        apart.read("html", b"<p>a")
        apart._process.kill()
        apart._process.wait()
        with pytest.raises(UnreadableError, match="ended its reader's process"):
            apart.read("html", b"<p>a")
        assert apart.read("html", b"<p>b").text == "b"
        process = apart._process
    assert process.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
def test_a_file_that_needs_too_much_memory_is_left_and_the_next_one_is_read():
    with Apart(Limits(memory_mb=250)) as apart:
        with pytest.raises(UnreadableError, match="needs more than 250 MB"):
            apart.read("html", b"a b " * 10_000_000)
        assert apart.read("html", b"<p>b").text == "b"


def test_a_missing_library_is_named_with_the_way_to_get_it(tmp_path):
    (tmp_path / "pypdf.py").write_text("raise ImportError('gone', name='pypdf')")
    (tmp_path / "a.pdf").write_bytes(pdf_bytes("苹果"))
    code = "from finetune.rag.readers import *; import sys\nfor one in read_documents([sys.argv[1]]): print(one.reason)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.pdf"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "needs pypdf, which is not installed: `pip install cijing[rag]`\n"


def test_a_module_in_the_folder_that_is_read_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "docx.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "a.docx").write_bytes(docx_bytes(paragraph("苹果")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path or str(ROOT) for path in sys.path])
    assert text_of(read(tmp_path / "a.docx")["a.docx"]) == "苹果" and not (tmp_path / "ran").exists()


def test_a_pdf_with_an_empty_password_opens():
    with Apart(Limits()) as apart:
        assert apart.read("pdf", encrypted(pdf_bytes("苹果"), "")).text == "苹果"


# ---- rows ------------------------------------------------------------------------------------------------------


def test_rows_have_their_line_as_name_or_the_column_that_is_asked_for(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "x", "body": "苹果", "title": "一"}\n\n{"_id": 7, "body": "酸"}\n')
    got = read(tmp_path, columns=Columns(text="body"))
    assert [(one.id, one.title, one.kind) for one in got.values()] == [
        ("a.jsonl#1", "一", "jsonl"),
        ("a.jsonl#3", "", "jsonl"),
    ]
    assert list(read(tmp_path, columns=Columns(text="body", id="_id"))) == ["a.jsonl#x", "a.jsonl#7"]


def test_a_name_that_two_rows_have_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "苹果"}\n{"id": "x", "text": "酸"}\n')
    first, second = read_documents([tmp_path], columns=Columns(id="id"))
    assert text_of(first) == "苹果" and second == Left(
        path="a.jsonl#x", reason="is the name of another document as well"
    )


def test_a_table_without_a_header_has_numbered_columns_and_quotes_of_tsv_are_letters(tmp_path):
    (tmp_path / "a.tsv").write_text('1\t"苹果"酸\n2\t酶"\n')
    got = read(tmp_path, columns=Columns(text="2", id="1", header=False))
    assert {name: text_of(one) for name, one in got.items()} == {"a.tsv#1": '"苹果"酸', "a.tsv#2": '酶"'}


@pytest.mark.parametrize(("name", "header"), [("a.csv", "text,title, text"), ("a.tsv", "text\ttitle\ttext")])
def test_a_table_with_a_column_named_twice_is_left_out_whole(tmp_path, name, header):
    between = header[4]
    (tmp_path / name).write_text(f"{header}\n苹果{between}题{between}梨\n")
    (tmp_path / "b.csv").write_text("text,,\n苹果,1,2\n")  # as spreadsheets write empty columns
    got = read(tmp_path)
    assert reason(got[name]) == "has two columns named 'text'; allowed is each name once"
    assert text_of(got["b.csv#2"]) == "苹果" and len(got) == 2


def test_a_row_of_csv_may_run_over_lines_and_is_named_by_its_first(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"苹\n果"\n酸\n')
    assert {name: text_of(one) for name, one in read(tmp_path).items()} == {"a.csv#2": "苹\n果", "a.csv#4": "酸"}


def test_a_quote_never_closed_costs_no_more_than_a_row_may_have(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"' + "x" * 1000 + ("y" * 50 + "\n") * 30_000 + "酸\n")
    got = read(tmp_path, limits=Limits(row_mb=0.5, bad_rows=10))
    assert "is a quote never closed?" in reason(got["a.csv:2"]) and text_of(list(got.values())[-1]) == "酸"


def test_parquet_is_read_as_rows(tmp_path):
    datasets.Dataset.from_list([{"text": "苹果", "title": "一"}, {"text": "酸", "title": None}]).to_parquet(
        tmp_path / "a.parquet"
    )
    got = read(tmp_path)
    assert [(one.id, one.title, one.kind) for one in got.values()] == [
        ("a.parquet#1", "一", "dataset"),
        ("a.parquet#2", "", "dataset"),
    ]


def test_a_dataset_gives_a_document_a_row_of_the_split_that_is_asked_for(tmp_path):
    for split in ("train", "validation"):
        datasets.Dataset.from_list([{"text": f"{split}苹果"}]).to_parquet(str(tmp_path / f"{split}.parquet"))
    for split in ("train", "validation"):
        columns = Columns(split=split)
        assert list(_dataset_rows(str(tmp_path), columns)) == [(1, {"text": f"{split}苹果"})]


READERS: tuple[tuple[str, Callable[[], bytes]], ...] = (
    ("a.txt", lambda: "苹果".encode()),
    ("a.html", lambda: "<p>苹果".encode()),
    ("a.pdf", lambda: pdf_bytes("苹果")),
    ("a.docx", lambda: docx_bytes(paragraph("苹果"))),
)


@pytest.mark.parametrize(("name", "content"), READERS)
def test_a_file_above_the_limit_is_left(tmp_path, name, content):
    (tmp_path / name).write_bytes(content())
    size = (tmp_path / name).stat().st_size / 2**20
    assert text_of(read(tmp_path, limits=Limits(file_mb=size * 1.1))[name]) == "苹果"
    assert "is larger than" in reason(read(tmp_path, limits=Limits(file_mb=size * 0.9))[name])
