"""An index made, brought up to date, opened, damaged, held open, and written by two."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from finetune.errors import PairError, RetrievalError
from finetune.rag import embeddings, generations, opened
from finetune.rag.documents import Limits
from finetune.rag.index import IndexSettings, build_index, open_index
from finetune.rag.manifest import check_files, file_entries, manifest_of
from tests.tiny import tiny_bert

DOCUMENTS = {
    "chips.txt": "苹果公司发布M1芯片。芯片由台积电制造。手机在秋天上市，电脑在春天上市。",
    "acid.txt": "苹果酸脱氢酶催化苹果酸氧化。产物是草酰乙酸。",
    "fruit.txt": "红富士苹果在十月采收。苹果树喜光。",
    "pear.txt": "梨在九月成熟。",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_bert(folder)
    shutil.move(folder / "bert", folder / "one")
    tiny_bert(folder, seed=1)
    shutil.move(folder / "bert", folder / "other")
    return folder


@pytest.fixture
def settings(models):
    def of(**changes):
        given = {"encoder": str(models / "one"), "tokenizer": str(models / "one"), "size": 24, **changes}
        return IndexSettings(**given)

    return of


@pytest.fixture(scope="module")
def built(models, tmp_path_factory):
    """An index of the documents, built once; `made` gives each test its own copy."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "docs").mkdir()
    for name, text in DOCUMENTS.items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    given = IndexSettings(encoder=str(models / "one"), tokenizer=str(models / "one"), size=24)
    build_index([folder / "docs"], folder / "index", given)
    return folder / "index"


@pytest.fixture
def made(built, tmp_path):
    return shutil.copytree(built, tmp_path / "index")


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def names(folder):
    return sorted(path.name for path in (folder / "generations").iterdir())


def held(index):
    """All that an index answers by, without the names of its files."""
    vectors = index.known_vectors() if index.has_dense else {}
    return list(index.chunks), index.document_hashes(), index.left(), {key: bytes(one) for key, one in vectors.items()}


def one_line(told, *words):
    said = str(told.value)
    assert "\n" not in said and all(word in said for word in words), said


# ---- making and searching --------------------------------------------------------------------------------------


def test_an_index_holds_every_chunk_of_every_document_and_finds_it(docs, settings, tmp_path):
    report = build_index([docs], tmp_path / "index", settings())
    assert (report.documents, report.new, report.same, report.removed) == (4, 4, 0, 0)
    assert report.embedded == report.chunks and report.reused == 0 and not report.unchanged
    with open_index(tmp_path / "index") as index:
        assert len(index.chunks) == len(index.lexical) == report.chunks and index.has_dense
        assert len({chunk.id for chunk in index.chunks}) == report.chunks
        for chunk in index.chunks:
            document = index.document(chunk.document)
            assert document.text[chunk.start : chunk.end] == chunk.text and document.title == chunk.title
        ((best, *_),) = index.lexical.search(["草酰乙酸"], 3)
        assert "草酰乙酸" in index.chunks[best.place].text
        vectors = index.encoder.embed([chunk.searched for chunk in index.chunks], "passage")
        queries = index.encoder.embed(["苹果", "芯片"], "query")
        for found, scores in zip(index.dense_search(["苹果", "芯片"], 3), queries @ vectors.T, strict=True):
            assert [hit.place for hit in found] == np.argsort(-scores, kind="stable")[:3].tolist()
            np.testing.assert_allclose([hit.score for hit in found], np.sort(scores)[::-1][:3], atol=1e-6)
        assert index.manifest.counts["chunks"] == report.chunks and index.manifest.sources == ("docs",)


@pytest.mark.parametrize("store", ["lancedb", "qdrant"])
def test_chunks_and_vectors_go_together_in_either_store(docs, settings, tmp_path, store):
    build_index([docs], tmp_path / "index", settings(store=store))
    with open_index(tmp_path / "index") as index:
        for place, chunk in enumerate(index.chunks):
            assert index.dense_search([chunk.searched], 1)[0][0].place == place


def test_an_index_without_an_encoder_is_searched_by_words_and_says_what_it_lacks(docs, settings, tmp_path):
    build_index([docs], tmp_path / "index", settings(encoder=None))
    with open_index(tmp_path / "index") as index:
        assert not index.has_dense and index.lexical.search(["台积电"], 1)[0]
        with pytest.raises(RetrievalError) as told:
            index.dense_search(["苹果"], 1)
        one_line(told, "without an encoder", "--rebuild")
    assert not (tmp_path / "index" / "generations" / names(tmp_path / "index")[0] / "vectors").exists()


def test_terms_stay_whole_and_come_with_the_index(docs, settings, tmp_path):
    (tmp_path / "terms.txt").write_text("# ours\n苹果酸脱氢酶\n\n红富士苹果\n", encoding="utf-8")
    build_index([docs], tmp_path / "index", settings(terms=tmp_path / "terms.txt"))
    (tmp_path / "terms.txt").unlink()
    with open_index(tmp_path / "index") as index:
        assert index.terms == ["苹果酸脱氢酶", "红富士苹果"]
        assert {index.chunks[hit.place].document for hit in index.lexical.search(["红富士苹果"], 9)[0]} == {"fruit.txt"}
    with pytest.raises(PairError) as told:
        build_index([docs], tmp_path / "other", settings(terms=tmp_path / "terms.txt"))
    one_line(told, "cannot be read")


# ---- bringing up to date ---------------------------------------------------------------------------------------


def test_an_update_is_the_index_made_anew_and_embeds_only_what_is_new(docs, settings, made, tmp_path):
    folder = made
    (docs / "pear.txt").unlink()
    (docs / "fruit.txt").write_text("红富士苹果在十月采收。\n\n苹果园在山上。", encoding="utf-8")
    (docs / "new.txt").write_text("手机芯片功耗很低。", encoding="utf-8")
    report = build_index([docs], folder, settings())
    assert (report.new, report.changed, report.removed, report.same) == (1, 1, 1, 2)
    assert 0 < report.embedded < report.reused and report.embedded + report.reused == report.chunks
    build_index([docs], tmp_path / "anew", settings())
    with open_index(folder) as updated, open_index(tmp_path / "anew") as anew:
        chunks, hashes, left, vectors = held(updated)
        assert (chunks, hashes, left) == held(anew)[:3]
        for key, vector in held(anew)[3].items():
            np.testing.assert_allclose(*(np.frombuffer(one, np.float32) for one in (vector, vectors[key])), atol=1e-6)
        queries = ["苹果园", "芯片功耗", "草酰乙酸"]
        assert updated.lexical.search(queries, 5) == anew.lexical.search(queries, 5)


def test_vectors_taken_over_are_the_old_ones_to_the_bit_and_belong_to_their_text(docs, settings, made):
    with open_index(made) as index:
        before = {key: bytes(vector) for key, vector in index.known_vectors().items()}
    (docs / "aaa.txt").write_text("排在最前面的一篇。", encoding="utf-8")
    assert build_index([docs], made, settings()).embedded == 1
    with open_index(made) as index:
        after = {key: bytes(vector) for key, vector in index.known_vectors().items()}
        assert before.items() < after.items()
        assert index.dense_search([index.chunks[0].searched], 1)[0][0].place == 0


def test_nothing_is_written_where_nothing_changed_and_a_new_title_is_a_change(docs, settings, made):
    (first,) = names(made)
    again = build_index([docs], made, settings())
    assert again.unchanged and again.generation == first and again.reused == again.chunks
    assert names(made) == [first]
    (docs / "pear.txt").rename(docs / "plum.txt")
    moved = build_index([docs], made, settings())
    assert (moved.new, moved.removed, moved.embedded) == (
        1,
        1,
        1,
    ) and moved.generation != first


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 30}, "chunks size 24, asked is 30"),
        ({"overlap": 1}, "chunks overlap 0, asked is 1"),
        ({"encoder": "other"}, "encoder weights"),
        ({"encoder": None}, "encoder one, asked is none"),
        ({"pooling": "cls"}, "encoder pooling 'mean', asked is 'cls'"),
        ({"passage_prefix": "p: "}, "encoder passage_prefix '', asked is 'p: '"),
        ({"store": "qdrant"}, "store kind 'lancedb', asked is 'qdrant'"),
        ({"terms": "terms"}, "words terms"),
        ({"duplicates": "keep"}, "chunks duplicates 'drop', asked is 'keep'"),
    ],
)
def test_other_settings_are_refused_by_name(docs, settings, models, made, tmp_path, changes, said):
    before = names(made)
    (tmp_path / "terms").write_text("苹果酸\n", encoding="utf-8")
    if changes.get("encoder"):
        changes = {"encoder": str(models / "other")}
    if "terms" in changes:
        changes = {"terms": tmp_path / "terms"}
    with pytest.raises(RetrievalError) as told:
        build_index([docs], made, settings(**changes))
    one_line(told, said, "--rebuild")
    assert names(made) == before


def test_a_rebuild_makes_an_index_of_other_settings_and_takes_nothing_over(docs, settings, models, made):
    other = settings(encoder=str(models / "other"), store="qdrant")
    report = build_index([docs], made, other, rebuild=True)
    assert (report.new, report.reused, report.embedded) == (4, 0, report.chunks)
    with open_index(made) as index:
        assert index.manifest.made_from["store"]["kind"] == "qdrant" and index.dense_search(["苹果"], 1)[0]


def test_another_segmenter_and_another_encoder_behind_the_same_name_are_refused(docs, settings, tmp_path, monkeypatch):
    encoder = tmp_path / "encoder"
    shutil.copytree(settings().encoder, encoder)
    build_index([docs], tmp_path / "index", settings(encoder=str(encoder)))
    shutil.rmtree(encoder)
    shutil.copytree(Path(settings().encoder).with_name("other"), encoder)
    with open_index(tmp_path / "index") as index:
        with pytest.raises(RetrievalError) as told:
            index.dense_search(["苹果"], 1)
        one_line(told, "encoder weights", "--rebuild")
    monkeypatch.setattr("finetune.rag.searchwords.RULES", "0")
    with pytest.raises(RetrievalError) as told:
        open_index(tmp_path / "index")
    one_line(told, "words rules '1', asked is '0'", "--rebuild")


# ---- duplicates and what is left out ---------------------------------------------------------------------------


def test_repeated_chunks_are_dropped_and_named_near_ones_only_named(docs, settings, tmp_path):
    (docs / "chips.txt").unlink()
    (docs / "copy.txt").write_text(DOCUMENTS["pear.txt"], encoding="utf-8")
    (docs / "nearly.txt").write_text("红富士苹果在十月采收，苹果树喜光！苹果", encoding="utf-8")
    (docs / "none.xyz").write_text("x")
    report = build_index([docs], tmp_path / "index", settings(near=0.7))
    assert [(one.chunk, one.first) for one in report.exact] == [("pear.txt[0:7]", "copy.txt[0:7]")]
    assert [(one.chunk, one.first) for one in report.near] == [("nearly.txt[0:19]", "fruit.txt[0:17]")]
    assert [one.path for one in report.left] == ["none.xyz"]
    with open_index(tmp_path / "index") as index:
        assert [one["path"] for one in index.left()] == ["none.xyz", "pear.txt[0:7]"]
        assert index.left()[1]["reason"] == "is the same as copy.txt[0:7]"
        assert "pear.txt" not in {chunk.document for chunk in index.chunks}
        assert "nearly.txt" in {chunk.document for chunk in index.chunks}
    kept = build_index([docs], tmp_path / "kept", settings(duplicates="keep"))
    assert kept.chunks == report.chunks + 1 and kept.embedded == kept.chunks
    with open_index(tmp_path / "kept") as index:
        twins = [place for place, chunk in enumerate(index.chunks) if chunk.text == DOCUMENTS["pear.txt"]]
        assert len(twins) == 2


def test_a_chunk_that_differs_in_a_sign_alone_is_indexed_and_told_as_near(settings, tmp_path):
    (tmp_path / "docs").mkdir()
    for name, text in (("a", "红富士苹果的剂量是1.5毫克"), ("b", "红富士苹果的剂量是15毫克")):
        (tmp_path / "docs" / f"{name}.txt").write_text(text, encoding="utf-8")
    report = build_index([tmp_path / "docs"], tmp_path / "index", settings())
    assert report.chunks == 2 and report.exact == () and [one.similarity for one in report.near] == [1]


def test_sources_that_hold_nothing_are_refused_with_what_was_left_out(settings, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "empty.txt").write_text("")
    (tmp_path / "docs" / "big.txt").write_text("苹" * 3000)
    with pytest.raises(RetrievalError) as told:
        build_index([tmp_path / "docs"], tmp_path / "index", settings(), limits=Limits(file_mb=0.001))
    one_line(told, "docs: holds no document", "big.txt is larger", "empty.txt is empty")
    assert not (tmp_path / "index").exists()  # a mistake leaves nothing behind
    with pytest.raises(RetrievalError) as told:
        open_index(tmp_path / "index")
    one_line(told, "holds no index", "finetune index")


# ---- the folder ------------------------------------------------------------------------------------------------


def test_a_reader_goes_on_with_its_generation_while_and_after_others_replace_it(docs, settings, made):
    with open_index(made) as reader:
        first, was = reader.generation, list(reader.chunks)
        for number in range(2):
            (docs / "pear.txt").write_text(f"梨在{number}月成熟。", encoding="utf-8")
            last = build_index([docs], made, settings()).generation
        assert reader.dense_search(["苹果"], 2) and reader.lexical.search(["台积电"], 2)[0]
        assert list(reader.chunks) == was and reader.document("acid.txt").text == DOCUMENTS["acid.txt"]
        assert first in names(made) and len(names(made)) == 3
        with open_index(made) as now:
            assert now.generation == last
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    build_index([docs], made, settings())
    assert first not in names(made) and last in names(made) and len(names(made)) == 2


def test_a_second_writer_is_told_in_one_line(docs, settings, tmp_path):
    (tmp_path / "index").mkdir()
    with FileLock(tmp_path / "index" / "lock"), pytest.raises(RetrievalError) as told:
        build_index([docs], tmp_path / "index", settings(encoder=None))
    one_line(told, "another process is writing this index")
    build_index([docs], tmp_path / "index", settings(encoder=None))


def test_a_folder_of_something_else_is_left_alone(docs, settings, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.docx").write_text("x")
    with pytest.raises(RetrievalError) as told:
        build_index([docs], tmp_path / "home", settings())
    one_line(told, "holds 'thesis.docx', which is of no index")
    assert os.listdir(tmp_path / "home") == ["thesis.docx"]
    with pytest.raises(RetrievalError) as told:
        build_index([docs], docs / "index", settings())
    one_line(told, "would index itself")
    with pytest.raises(RetrievalError) as told:
        build_index([docs], tmp_path / "home" / "thesis.docx", settings())
    one_line(told, "cannot be written")


def test_every_file_that_is_damaged_cut_short_missing_or_added_is_named(made):
    folder = made
    place = folder / "generations" / names(folder)[0]
    files = manifest_of((place / "manifest.json").read_bytes(), folder).files
    assert {"chunks.parquet", "documents.parquet", "left.jsonl", "near.jsonl", "terms.json"} < set(files)
    assert any(name.startswith("lexical/") for name in files) and any(name.startswith("vectors/") for name in files)
    for name in files:
        content = (place / name).read_bytes()
        flipped = bytes([content[0] ^ 1]) + content[1:] if content else b""
        for damaged, said in ((content[:-1], "bytes and not"), (flipped, "is damaged"), (None, "is missing")):
            if damaged is None:
                (place / name).unlink()
            elif content:
                (place / name).write_bytes(damaged)
            if content or damaged is None:
                with pytest.raises(RetrievalError) as told:
                    check_files(place, files)
                one_line(told, name, said, "--rebuild")
        (place / name).write_bytes(content)
    (place / ".DS_Store").write_text("a file manager's")
    open_index(folder).close()
    (place / "vectors" / "more").write_text("x")
    with pytest.raises(RetrievalError) as told:
        open_index(folder)
    one_line(told, "vectors/more is not the index's")


@pytest.mark.parametrize("damage", ["CURRENT", "manifest", "no manifest", "chunks.parquet"])
def test_a_damaged_index_is_refused_by_readers_and_updates_and_mended_by_a_rebuild(docs, settings, made, damage):
    folder = made
    (name,) = names(folder)
    place = folder / "generations" / name
    if damage == "CURRENT":
        (folder / "CURRENT").write_text("../../elsewhere\n")
    elif damage == "manifest":
        (place / "manifest.json").write_bytes((place / "manifest.json").read_bytes().replace(b'"chunks"', b'"chunkz"'))
    elif damage == "no manifest":
        (place / "manifest.json").unlink()
    else:
        (place / damage).write_bytes(b"")
    for action in (lambda: open_index(folder), lambda: build_index([docs], folder, settings())):
        with pytest.raises(RetrievalError) as told:
            action()
        one_line(told, "CURRENT" if damage == "CURRENT" else "manifest.json" if "manifest" in damage else damage)
        one_line(told, "--rebuild")
    build_index([docs], folder, settings(), rebuild=True)
    with open_index(folder) as index:
        assert index.dense_search(["苹果"], 1)


def rewritten(folder, change):
    """Change the one generation's files and manifest, and hash all again, as whoever made such an index would have."""
    (name,) = names(folder)
    place = folder / "generations" / name
    told = json.loads((place / "manifest.json").read_text("utf-8"))
    change(place, told)
    if isinstance(told.get("files"), dict):
        (place / "manifest.json").unlink()
        told["files"] = {file: vars(entry) for file, entry in file_entries(place).items()}
    content = json.dumps(told).encode()
    (place / "manifest.json").write_bytes(content)
    place.rename(folder / "generations" / generations.name_of(1, content))
    (folder / "CURRENT").write_text(generations.name_of(1, content))


def test_an_index_of_another_format_is_refused(made):
    rewritten(made, lambda place, told: told.update(format=2))
    with pytest.raises(RetrievalError) as said:
        open_index(made)
    one_line(said, "format 2, this version reads 1", "--rebuild")


def _at(*path, value):
    def change(_place, told):
        for name in path[:-1]:
            told = told[name]
        told[path[-1]] = value

    return change


def _file(name, content):
    return lambda place, _told: (place / name).write_bytes(content)


def _chunks_without(column):
    def change(place, _told):
        table = pq.read_table(place / "chunks.parquet")
        pq.write_table(table.drop([column]), place / "chunks.parquet")

    return change


def _other_ids(place, _told):
    table = pq.read_table(place / "chunks.parquet")
    ids = pa.array([f"another-{place}" for place in range(table.num_rows)])
    pq.write_table(table.set_column(0, "id", ids), place / "chunks.parquet")


@pytest.mark.parametrize(
    "change",
    [
        _at("made_from", value=[]),
        _at("made_from", "encoder", value="builtin:e5-small"),
        _at("made_from", "encoder", "dim", value="16"),
        _at("made_from", "words", value=None),
        _at("made_from", "store", "kind", value="pickles"),
        _at("opened_with", value={}),
        _at("opened_with", "vectors", value=7),
        _at("sources", value=None),
        _at("counts", value="many"),
        _at("files", value=["chunks.parquet"]),
        _at("format", value="1"),
        _file("terms.json", b"[1]"),
        _file("terms.json", b"\xff"),
        _file("chunks.parquet", b"no table"),
        _chunks_without("text"),
        _chunks_without("start"),
        _file("lexical/lexical.json", b"[]"),
        _other_ids,
    ],
)
def test_an_odd_index_whose_hashes_are_right_is_refused_in_one_line(docs, settings, made, change):
    rewritten(made, change)
    with pytest.raises(RetrievalError) as told, open_index(made) as index:
        index.dense_search(["苹果"], 1)
    one_line(told)
    with pytest.raises(RetrievalError) as told:
        (docs / "pear.txt").write_text("梨在八月成熟。", "utf-8")
        build_index([docs], made, settings())
    one_line(told)
    build_index([docs], made, settings(), rebuild=True)
    open_index(made).close()


def test_what_a_killed_build_has_embedded_is_not_lost_and_a_damaged_part_is_not_believed(
    docs, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(embeddings, "_BLOCK", 2)
    whole = build_index([docs], tmp_path / "whole", settings())
    saves, save = [], embeddings._save

    def killed(*given):
        save(*given)
        saves.append(given)
        if len(saves) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(embeddings, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        build_index([docs], tmp_path / "index", settings())
    monkeypatch.setattr(embeddings, "_save", save)
    first, *_ = sorted((tmp_path / "index" / "embedded").iterdir())
    first.write_bytes(first.read_bytes()[:-9])
    report = build_index([docs], tmp_path / "index", settings())
    assert (report.reused, report.embedded) == (2, whole.chunks - 2)
    assert not (tmp_path / "index" / "embedded").exists()
    with open_index(tmp_path / "index") as one, open_index(tmp_path / "whole") as other:
        assert held(one)[:3] == held(other)[:3]


def test_a_generation_that_was_not_made_current_before_a_kill_goes(docs, settings, made, monkeypatch):
    folder = made
    (first,) = names(folder)
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(embeddings, "_save", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        build_index([docs], folder, settings())
    monkeypatch.setattr(Path, "replace", replace)
    assert len(names(folder)) == 2 and open_index(folder).generation == first
    last = build_index([docs], folder, settings()).generation
    assert names(folder) == sorted([first, last])


@pytest.mark.parametrize("most", [500, 4000, 60_000])  # bytes of a file: embedded parts, tables and vectors, words
def test_a_full_disk_is_told_in_one_line_and_the_old_index_stays(docs, settings, made, most):
    resource = pytest.importorskip("resource")
    before = names(made)
    (docs / "big.txt").write_text("".join(f"第{number}个苹果园在山上。" for number in range(900)), encoding="utf-8")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        with pytest.raises(RetrievalError) as told:
            build_index([docs], made, settings())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    one_line(told, "cannot be written")
    assert names(made) == before
    open_index(made).close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": 8}, "chunk size 8"), ({"overlap": -1}, "overlap -1"), ({"store": "faiss"}, "store 'faiss'"),
        ({"duplicates": "x"}, "duplicates 'x'"), ({"near": 0.3}, "near duplicates from 0.3"),
        ({"store_url": "http://host:6333"}, "with the store qdrant"),
        ({"store": "qdrant", "store_url": "host"}, "allowed is http://host:6333"),
        ({"store": "qdrant", "store_url": "http://me:secret@host"}, "QDRANT_API_KEY"),
    ],
)  # fmt: skip
def test_settings_that_could_make_no_index_are_refused(given, said):
    with pytest.raises(RetrievalError) as told:
        IndexSettings(**given)
    one_line(told, said)
    assert "secret" not in str(told.value)


def test_a_servers_collections_are_one_a_generation_and_go_with_it(docs, settings, tmp_path, monkeypatch):
    from qdrant_client import QdrantClient

    from finetune.rag import stores

    server = QdrantClient(":memory:")
    monkeypatch.setattr(server, "close", lambda: None)
    monkeypatch.setattr(stores, "_server", lambda _address, _key: server)
    given = settings(store="qdrant", store_url="http://localhost:6333/")
    for number in range(3):
        (docs / "pear.txt").write_text(f"梨在{number}月成熟。", encoding="utf-8")
        report = build_index([docs], tmp_path / "index", given)
        assert number == 0 or report.embedded == 1
    collections = sorted(one.name for one in server.get_collections().collections)
    assert [name[-5:] for name in collections] == ["-0002", "-0003"]
    with open_index(tmp_path / "index") as index:
        assert index.dense_search([index.chunks[1].searched], 1)[0][0].place == 1
        assert not (tmp_path / "index" / "generations" / index.generation / opened.VECTORS).exists()
    server.delete(collections[1], points_selector=[0])
    with open_index(tmp_path / "index") as index, pytest.raises(RetrievalError) as told:
        index.dense_search(["苹果"], 1)
    one_line(told, "vectors for", "--rebuild")


def test_a_rebuild_drops_its_own_collections_and_none_that_an_old_manifest_names(docs, settings, tmp_path, monkeypatch):
    from qdrant_client import QdrantClient, models

    from finetune.rag import stores

    server, asked = QdrantClient(":memory:"), set()
    monkeypatch.setattr(server, "close", lambda: None)
    monkeypatch.setattr(stores, "_server", lambda address, _key: asked.add(address) or server)
    for name in ("victim", "theirs"):
        server.create_collection(name, vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT))
    given = settings(store="qdrant", store_url="http://localhost:6333")
    for number, url in enumerate((None, None, "http://localhost:6333/victim", "http://evil:6333/theirs")):
        (docs / "pear.txt").write_text(f"梨在{number}月成熟。", encoding="utf-8")
        if url is not None:
            manifest = tmp_path / "index" / "generations" / names(tmp_path / "index")[0] / "manifest.json"
            told = json.loads(manifest.read_text("utf-8"))
            manifest.write_text(json.dumps({**told, "opened_with": {**told["opened_with"], "vectors": url}}))
        build_index([docs], tmp_path / "index", given)
    assert asked == {"http://localhost:6333"} and [name[:4] for name in names(tmp_path / "index")] == ["0003", "0004"]
    left = sorted(one.name for one in server.get_collections().collections)
    assert left[2:] == ["theirs", "victim"] and [name[-5:] for name in left[:2]] == ["-0003", "-0004"]


@pytest.mark.parametrize("linked", ["CURRENT", "lock", "generations", "embedded", "generations/", "embedded/.part"])
def test_a_folder_with_links_in_it_is_refused_and_nothing_behind_them_is_touched(
    docs, settings, made, tmp_path, linked
):
    (name,) = names(made)
    place = made / (f"generations/{name}" if linked.endswith("/") else linked)
    (made / "embedded").mkdir()
    if linked == "embedded/.part":
        place.write_text("a letter")
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    before[docs / "pear.txt"] = "梨。".encode()
    for rebuild in (False, True):
        with pytest.raises(RetrievalError) as told:
            build_index([docs], made, settings(encoder=None), rebuild=rebuild)
        one_line(told, place.relative_to(made).as_posix(), "is a link")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_link_in_place_of_the_waiting_name_is_replaced_and_not_followed(docs, settings, made, tmp_path):
    (tmp_path / "letter").write_text("mine")
    (made / ".CURRENT").symlink_to(tmp_path / "letter")
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    last = build_index([docs], made, settings()).generation
    assert (tmp_path / "letter").read_text() == "mine" and not (made / "CURRENT").is_symlink()
    assert open_index(made).generation == last


def test_where_current_is_gone_the_generations_stay_until_a_new_one_is_written(docs, settings, made, monkeypatch):
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    build_index([docs], made, settings())
    before = names(made)
    (made / "CURRENT").unlink()
    with pytest.raises(RetrievalError) as told:
        open_index(made)
    one_line(told, "CURRENT is missing")
    monkeypatch.setattr("finetune.rag.index._written", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for rebuild in (False, True):
        with pytest.raises(KeyboardInterrupt):
            build_index([docs], made, settings(), rebuild=rebuild)
    assert names(made) == before and len(before) == 2
    monkeypatch.undo()
    last = build_index([docs], made, settings()).generation
    assert names(made) == [before[-1], last] and open_index(made).generation == last


@pytest.mark.parametrize("stage", ["embedded", "vectors", "lexical", "CURRENT"])
@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_is_called_that_without_our_inner_paths_or_an_index_before_where_there_was_none(
    docs, settings, made, tmp_path, monkeypatch, stage, first
):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "inner" / "generations" / ".building"))
    lance = RuntimeError(
        f"lance error: LanceError(IO): {tmp_path}/inner/x.lance: No space left on device (os error 28)"
    )
    raising = {
        "embedded": ("finetune.rag.embeddings._save", full),
        "vectors": ("finetune.rag.stores._table_of", lance),  # within what tells of a store's library
        "lexical": ("finetune.rag.lexical._Field.save", full),
        "CURRENT": ("pathlib.Path.replace", full),
    }
    where, error = raising[stage]
    if stage == "CURRENT":
        monkeypatch.setattr("finetune.rag.embeddings._save", lambda *_: None)
    monkeypatch.setattr(where, lambda *_, **__: (_ for _ in ()).throw(error))
    (docs / "pear.txt").write_text("梨。", encoding="utf-8")
    folder = tmp_path / "none" if first else made
    with pytest.raises(RetrievalError) as told:
        build_index([docs], folder, settings())
    stays = "" if first else "; the one before stays"
    assert str(told.value) == f"{folder}: the index cannot be written (disk full){stays}"


def test_a_file_in_place_of_an_index_is_told_so(docs):
    with pytest.raises(RetrievalError) as told:
        open_index(docs / "pear.txt")
    one_line(told, "pear.txt: is a file; allowed is an index's folder")
