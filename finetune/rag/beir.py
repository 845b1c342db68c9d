"""Judged sets in BEIR's layout: corpus.jsonl, queries.jsonl and a table of judgments (Thakur et al., NeurIPS 2021)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from finetune.errors import RetrievalError
from finetune.rag.documents import Columns, Limits, UnreadableError, is_visible, one_line
from finetune.rag.rows import rows_of_file

SHIPPED = Path(__file__).parents[1] / "data" / "rag"
_HEADER = ("query-id", "corpus-id", "score")


class Passage(NamedTuple):
    """One document of the corpus."""

    title: str  # may be empty
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class BeirSet:
    """Documents and queries by id, in their files' order, and the grades of those that were judged."""

    corpus: Mapping[str, Passage]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]  # query -> document -> grade
    about: Mapping[str, Mapping[str, Any]]  # query -> what else its line has, such as answers
    documents: Mapping[str, Mapping[str, Any]]  # document -> the same, such as its topic

    @property
    def unjudged(self) -> list[str]:
        """The queries without any judgment, such as those that no passage answers."""
        return [query for query in self.queries if query not in self.qrels]


def load_beir(
    folder: str | Path = SHIPPED,
    *,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    qrels: str | Path | None = None,
) -> BeirSet:
    """Read a set from a folder, by default the shipped one, or from files named in place of the folder's.

    In the folder a file is found as corpus.jsonl, queries.jsonl, qrels.tsv, as the only corpus*.jsonl, queries*.jsonl,
    qrels*.tsv, or as qrels/test.tsv. RetrievalError with file and line for a line that cannot be used, an id that comes
    twice, and a judgment of a query or a document that is not there, whose recall no search could reach.
    """
    base = Path(folder)
    passages = _corpus(Path(corpus) if corpus is not None else _found(base, "corpus", ".jsonl"))
    asked = _queries(Path(queries) if queries is not None else _found(base, "queries", ".jsonl"))
    judged = Path(qrels) if qrels is not None else _found(base, "qrels", ".tsv")
    return BeirSet(
        corpus={name: passage for name, (passage, _) in passages.items()},
        queries={name: text for name, (text, _) in asked.items()},
        qrels=_judgments(judged, queries=asked, corpus=passages),
        about={name: others for name, (_, others) in asked.items()},
        documents={name: others for name, (_, others) in passages.items()},
    )


def read_queries(file: Path) -> dict[str, str]:
    """Read a file of questions, one object a line with _id and text; RetrievalError as in `load_beir`."""
    return {name: text for name, (text, _) in _queries(file).items()}


def _corpus(file: Path) -> dict[str, tuple[Passage, Mapping[str, Any]]]:
    """Each document, and what else its line has."""
    return {
        name: (Passage(_text(row, "title", at), _text(row, "text", at)), _others(row)) for name, row, at in _named(file)
    }


def _queries(file: Path) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Each query's text and what else its line has."""
    return {name: (_question(row, at), _others(row)) for name, row, at in _named(file)}


def _found(folder: Path, name: str, ending: str) -> Path:
    """The folder's one file of that name."""
    if not folder.is_dir():
        raise RetrievalError(
            f"{folder} is no folder; allowed is a folder with corpus.jsonl, queries.jsonl and qrels.tsv"
        )
    candidates = [folder / f"{name}{ending}", folder / name / f"test{ending}"]
    there = [path for path in candidates if path.is_file()][:1] or sorted(folder.glob(f"{name}*{ending}"))
    if len(there) != 1:
        several = f"several files ({', '.join(path.name for path in there)})" if there else "no file"
        raise RetrievalError(f"{folder}: {several} for {name}; allowed is one {name}{ending}, or name it ({name}=FILE)")
    return there[0]


def read_rows(file: Path, ending: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give each row with its file:line; RetrievalError at the first that cannot be read."""
    try:
        with file.open("rb") as opened:
            for line, row in rows_of_file(opened, ending=ending, columns=Columns(), limits=Limits()):
                if isinstance(row, UnreadableError):
                    raise RetrievalError(f"{file}:{line} {row}")
                yield f"{file}:{line}", row
    except UnreadableError as error:
        raise RetrievalError(f"{file} {error}") from error
    except OSError as error:
        raise RetrievalError(f"{file} cannot be read ({one_line(error.strerror)})") from error


def _named(file: Path) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Id, row and file:line of each row."""
    seen: dict[str, str] = {}
    for where, row in read_rows(file, ".jsonl"):
        given = row.get("_id")
        if isinstance(given, bool) or not isinstance(given, str | int) or not str(given).strip():
            raise RetrievalError(f"{where}: _id is {one_line(repr(given), 80)}; allowed is a name")
        name = str(given)
        if name in seen:
            raise RetrievalError(f"{where}: _id {name} stands at {seen[name]} already; allowed is each once")
        seen[name] = where
        yield name, row, where
    if not seen:
        raise RetrievalError(f"{file} has no rows; allowed is one object a line with _id and text")


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    """A column's text; the title may be left out, and so may the text of a document that has a title."""
    given = row.get(name)
    if given is None and (name == "title" or row.get("title")):
        return ""
    if not isinstance(given, str):
        raise RetrievalError(f"{where}: {name} is {one_line(repr(given), 80)}; allowed is a text")
    return given


def _question(row: Mapping[str, Any], where: str) -> str:
    text = _text({"text": row.get("text")}, "text", where)
    if not is_visible(text):
        raise RetrievalError(f"{where}: text is empty; allowed is a question")
    return text


def _others(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_id", "title", "text")}


def _judgments(
    file: Path, *, queries: Mapping[str, object], corpus: Mapping[str, object]
) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for where, row in read_rows(file, ".tsv"):
        if tuple(row) != _HEADER:
            raise RetrievalError(f"{file}:1: columns {one_line(', '.join(row), 80)}; allowed are {', '.join(_HEADER)}")
        query, document, score = (str(row[name]).strip() for name in _HEADER)
        for name, given, known in (("query", query, queries), ("document", document, corpus)):
            if given not in known:
                raise RetrievalError(f"{where}: no {name} has the _id {given!r}; allowed are those of the {name} file")
        if document in found.setdefault(query, {}):
            raise RetrievalError(f"{where}: {document} is judged for {query} already; allowed is each once")
        found[query][document] = _grade(score, where)
    if not found:
        raise RetrievalError(f"{file} has no judgments; allowed are lines under the header {', '.join(_HEADER)}")
    return found


def _grade(score: str, where: str) -> int:
    try:
        return int(score)
    except ValueError:
        raise RetrievalError(f"{where}: score {one_line(score, 80)!r}; allowed is a whole number") from None
