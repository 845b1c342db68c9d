"""The vector stores against a search by brute force, and what they say when something is wrong."""

import json
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow.parquet as pq
import pytest

from finetune.errors import RetrievalError
from finetune.rag import stores
from finetune.rag.stores import _Qdrant, open_store

KINDS = ["lancedb", "qdrant"]


def drawn(count, dim=24, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ids_of(count):
    return [f"{place * 7919 % 65536:016x}" for place in range(count)]


def brute(ids, vectors, queries, k):
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    return [[(ids[place], row[place]) for place in np.argsort(-row)[:k]] for row in scores]


def same(found, wanted):
    assert [[id for id, _ in row] for row in found] == [[id for id, _ in row] for row in wanted]
    scores = [[score for _, score in row] for row in found]
    np.testing.assert_allclose(scores, [[score for _, score in row] for row in wanted], atol=2e-6)


def filled(kind, folder, count=600):
    ids, vectors = ids_of(count), drawn(count)
    store = open_store(kind, folder, dim=vectors.shape[1], create=True)
    store.write(ids, vectors)
    return store, ids, vectors


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_gives_what_comparing_all_of_them_gives(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_QUERIES", 32)
    monkeypatch.setattr(stores, "_POINTS", 256)
    store, ids, vectors = filled(kind, tmp_path / "store")
    queries = drawn(70, seed=1)
    same(store.search(queries, 10), brute(ids, vectors, queries, 10))
    store.close()
    again = open_store(kind, tmp_path / "store", dim=24, create=False)
    same(again.search(queries[:1], 7), brute(ids, vectors, queries[:1], 7))
    assert again.search(queries[:0], 7) == []
    assert [len(row) for row in again.search(queries[:2], 1000)] == [600, 600]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read_back_to_the_bit_and_counted(kind, tmp_path):
    store, ids, vectors = filled(kind, tmp_path / "store")
    found, read = store.read()
    assert dict(zip(found, map(bytes, read), strict=True)) == dict(zip(ids, map(bytes, vectors), strict=True))
    assert store.count() == 600 and read.dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_created_is_empty_whatever_was_there(kind, tmp_path):
    filled(kind, tmp_path / "store")[0].close()
    store = open_store(kind, tmp_path / "store", dim=4, create=True)
    store.write(["a"], drawn(1, dim=4))
    store.close()
    assert open_store(kind, tmp_path / "store", dim=4, create=False).count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_equal_vectors_come_in_the_order_of_their_ids(kind, tmp_path):
    store = open_store(kind, tmp_path / "store", dim=24, create=True)
    store.write(["c", "a", "b"], np.repeat(drawn(1), 3, axis=0))
    assert [id for id, _ in store.search(drawn(1), 3)[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_searching_changes_no_file_and_two_may_search_at_once(kind, tmp_path):
    filled(kind, tmp_path / "store")[0].close()
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    one, other = (open_store(kind, tmp_path / "store", dim=24, create=False) for _ in range(2))
    assert one.search(drawn(1), 3) == other.search(drawn(1), 3)
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_store_is_a_pickle(kind, tmp_path):
    filled(kind, tmp_path / "store")[0].close()
    contents = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert contents and not any(b"qdrant_client" in one or one.startswith(b"SQLite") for one in contents)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_not_there_damaged_or_of_another_width_is_told_in_one_line(kind, tmp_path):
    with pytest.raises(RetrievalError, match="there is no store"):
        open_store(kind, tmp_path / "none", dim=24, create=False)
    assert not (tmp_path / "none").exists()
    store = filled(kind, tmp_path / "store")[0]
    with pytest.raises(RetrievalError, match="holds vectors of 24 numbers"):
        store.search(drawn(1, dim=23), 1)
    store.close()
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            path.write_bytes(b"x" * 10)
    with pytest.raises(RetrievalError, match="the vectors cannot be") as told:
        open_store(kind, tmp_path / "store", dim=24, create=False).search(drawn(1), 3)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_cannot_be_written_is_told_in_one_line(kind, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RetrievalError, match="the vectors cannot be") as told:
        open_store(kind, tmp_path / "file" / "store", dim=24, create=True).write(["a"], drawn(1))
    assert "\n" not in str(told.value)


def test_unknown_stores_and_addresses_that_fit_none_are_refused(tmp_path):
    with pytest.raises(RetrievalError, match="store 'faiss' is unknown; allowed are lancedb, qdrant"):
        open_store("faiss", tmp_path, dim=2, create=True)
    with pytest.raises(RetrievalError, match="allowed with an address is the store qdrant"):
        open_store("lancedb", "http://localhost:6333/x", dim=2, create=True)
    with pytest.raises(RetrievalError, match="names no collection"):
        open_store("qdrant", "http://localhost:6333", dim=2, create=True)
    with pytest.raises(RetrievalError, match="the vectors cannot be opened") as told:
        open_store("qdrant", "http://127.0.0.1:9/x", dim=2, create=True)  # nobody listens there
    assert "\n" not in str(told.value)


def test_qdrant_in_memory_says_nothing_past_twenty_thousand_vectors():
    from qdrant_client import QdrantClient

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = _Qdrant(QdrantClient(":memory:"), "x", where="memory", dim=2, create=True)
        store.write(ids_of(20_001), drawn(20_001, dim=2))
        assert len(store.search(drawn(1, dim=2), 3)[0]) == 3


def test_lancedb_logs_nothing(tmp_path):
    code = (
        "import numpy as np, sys\nfrom finetune.rag.stores import open_store\n"
        "s = open_store('lancedb', sys.argv[1], dim=2, create=True)\n"
        "s.write(['a', 'b'], np.eye(2, dtype=np.float32))\ns.search(np.eye(2, dtype=np.float32), 1)\n"
        "list(s._table.search([1.0, 0.0]).select(['id']).to_list())\n"  # of this call it warns where it may
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_folders_qdrant_lies_in_one_parquet_file(tmp_path):
    filled("qdrant", tmp_path / "store")[0].close()
    (file,) = (tmp_path / "store").iterdir()
    assert pq.read_table(file).num_rows == 600


@pytest.fixture
def heard():
    """A server on this machine: its address, and each request's path with the key that came."""
    requests = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, self.headers.get("api-key")))
            content = json.dumps({"result": {"exists": False}, "status": "ok", "time": 0.0}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("other", [None, "http://127.0.0.1:1", "http://127.0.0.1"])
def test_the_key_goes_to_no_server_that_the_user_did_not_name(heard, monkeypatch, other):
    address, requests = heard
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    monkeypatch.delenv("QDRANT_URL", raising=False)
    if other is not None:
        monkeypatch.setenv("QDRANT_URL", other)
    with pytest.raises(RetrievalError, match="allowed is the one in QDRANT_URL") as told:
        open_store("qdrant", f"{address}/x", dim=2, create=False, server=other)
    assert requests == [] and "secret" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("how", ["argument", "QDRANT_URL", "no key"])
def test_a_server_that_the_user_named_gets_the_key_and_one_without_a_key_is_asked(heard, monkeypatch, how):
    address, requests = heard
    monkeypatch.delenv("QDRANT_URL", raising=False)
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    if how != "no key":
        monkeypatch.setenv("QDRANT_API_KEY", "secret")
    if how == "QDRANT_URL":
        monkeypatch.setenv("QDRANT_URL", f"{address}/")
    with pytest.raises(RetrievalError, match="there is no such collection"):
        open_store("qdrant", f"{address}/x", dim=2, create=False, server=address if how == "argument" else None)
    assert {key for path, key in requests if path.startswith("/collections")} == {None if how == "no key" else "secret"}
