"""The domains that are shipped: corpora of our own sentences, pairs, and questions with a right and a wrong ending."""

import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from finetune.errors import DataError
from finetune.pairs import PairBook, load_pairs

DOMAINS = ("biochem", "chips")
PARTS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A beginning with a right and a wrong ending; `group` is the fact that decides, as in the corpus."""

    id: str
    group: str
    prompt: str
    right: str
    wrong: str
    pair: tuple[str, str] | None  # query and key of the pair that it rests on


def domain_file(domain: str, name: str) -> Traversable:
    """A file of a shipped domain; DataError for a domain that is not shipped."""
    if domain not in DOMAINS:
        raise DataError(f"domain {domain!r}: allowed are {', '.join(DOMAINS)}")
    return files("finetune") / "data" / domain / name


def shipped_texts() -> dict[str, Traversable]:
    """The shipped parts of texts by the names that a configuration gives them, such as chips/train."""
    parts = {f"{domain}/{part}": domain_file(domain, f"{part}.jsonl") for domain in DOMAINS for part in PARTS}
    return {**parts, "apple/test": files("finetune") / "data" / "apple" / "test.yaml"}


def domain_pairs(domain: str) -> PairBook:
    """The pairs of a shipped domain."""
    return load_pairs(domain_file(domain, "pairs.yaml"))


def load_questions(source: str | Path) -> tuple[Question, ...]:
    """Questions of a shipped domain, by its name, or of a JSONL file; DataError names file and line."""
    file = domain_file(source, "questions.jsonl") if source in DOMAINS else Path(source)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: cannot be read ({error})") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    found = tuple(_question(line, f"{source}:{number}") for number, line in lines)
    if not found:
        raise DataError(f"{source}: holds no question")
    return found


def _question(line: str, where: str) -> Question:
    try:
        given = json.loads(line)
        pair = given.get("pair")
        question = Question(
            id=str(given["id"]), group=str(given.get("group") or given["id"]), prompt=str(given["prompt"]),
            right=str(given["right"]), wrong=str(given["wrong"]), pair=None if pair is None else (pair[0], pair[1]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{where}: {error or type(error).__name__}; a question has id, prompt, right, wrong") from error
    if not (question.prompt.strip() and question.right and question.wrong) or question.right == question.wrong:
        raise DataError(f"{where}: prompt, right and wrong must hold text, and the two endings must differ")
    return question
