"""What stands before a question's prompt: nothing, glosses of its words, or passages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.compare.arms import PromptKind
from finetune.domains import DOMAINS, Question, domain_file
from finetune.errors import DataError
from finetune.pairs import Lexicon
from finetune.prepare import Progress
from finetune.rag.chunks import SMALLEST
from finetune.rag.forms import WORDINGS, Piece, Setting, mapped, pieces_of, tokens_of_pieces
from finetune.rag.hits import Hit
from finetune.rag.index import IndexSettings, build_index, open_index
from finetune.rag.inject import inject
from finetune.rag.retrieve import retrieve
from finetune.reading import record_of
from finetune.records import Part
from finetune.spelling import Speller
from finetune.writing import write_whole
from probe import MappedPrompt

_LONGEST_CHUNK = 256  # tokens


@dataclass(frozen=True, kw_only=True)
class PassageSettings:
    """How passages are found."""

    k: int = 3
    budget: int = 512  # tokens of a prompt, whatever the arm
    encoder: str | None = "builtin:e5-small"  # None: by words alone
    tokenizer: str = "builtin:gemma3-270m"  # of the model that reads them: their size is in its tokens

    @property
    def size(self) -> int:
        """Tokens of a chunk: the passages asked for have room beside each other."""
        return max(SMALLEST, min(_LONGEST_CHUNK, self.budget // (self.k + 1)))


@dataclass(frozen=True, kw_only=True)
class Before:
    """What may stand before the questions, the same for all arms that have it."""

    passages: Mapping[str, Sequence[Hit]] = field(default_factory=dict)  # by the question's id, best first
    glosses: Mapping[str, str] = field(default_factory=dict)  # by word
    budget: int = 512  # tokens of a prompt with what stands before it


def prompt_for(tokenizer: Any, question: Question, kind: PromptKind, before: Before) -> MappedPrompt:
    """Give a question's prompt with what its arm puts before it: the part `question` is the same text in all arms.

    Glosses are those of the words that the prompt holds, of 苹果酸 and not of the 苹果 in it where both have one.
    Whatever has no room is left out. RetrievalError where the question alone has more tokens than the budget.
    """
    hits = beside_passages(question, before) if kind == "passages" else ()
    alone = inject(tokenizer, question.prompt, hits, budget=before.budget, form="text", id=question.id).prompt
    return alone if kind != "gloss" else _behind_glosses(tokenizer, question, before)


def beside_passages(question: Question, before: Before) -> Sequence[Hit]:
    """What was found for a question; DataError where none was looked for."""
    if question.id not in before.passages:
        raise DataError(f"question {question.id}: no passages were looked for, and an arm puts them before it")
    return before.passages[question.id]


def _behind_glosses(tokenizer: Any, question: Question, before: Before) -> MappedPrompt:
    speller = Speller(tokenizer)
    setting = Setting(form="text", question=question.prompt, instruction="", wording=WORDINGS["zh"], marker=None)
    opening, text = pieces_of((), setting, tokenizer)
    kept: list[Piece] = []
    for word in words_with_gloss(question.prompt, before.glosses):
        gloss = Piece(kind="passage", text=f"{word}：{before.glosses[word]}", name=word, source={"title": word})
        more = [*kept, gloss, Piece(kind="template", text="\n")]
        needed = sum(len(tokens.ids) for tokens in tokens_of_pieces([opening, *more, text], speller))
        kept = more if needed <= before.budget else kept
    return mapped([opening, *kept, text], speller, id=question.id, form="text")


def words_with_gloss(text: str, glosses: Mapping[str, str]) -> list[str]:
    """The words of a text that have a gloss, as they stand in it, each once."""
    found = Lexicon(words=frozenset(glosses)).found(text) if glosses else {}
    return sorted(found, key=lambda word: found[word][0].start)


def load_glosses(sources: Sequence[str | Path]) -> dict[str, str]:
    """Read glosses of shipped domains, by name, and of JSONL files of {"word": …, "gloss": …}.

    DataError names file and line, also of a word that has two.
    """
    found: dict[str, str] = {}
    for source in sources:
        file = domain_file(str(source), "glosses.jsonl") if source in DOMAINS else Path(source)
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{source}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
        if not any(line.strip() for line in lines):
            raise DataError(f"{source}: holds no gloss; a line is {_LINE}")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            word, gloss = _gloss(line, f"{source}:{number}")
            if word in found:
                raise DataError(f"{source}:{number}: {word!r} has a gloss already; allowed is one a word")
            found[word] = gloss
    return found


_LINE = '{"word": "苹果酸", "gloss": "…"}'


def _gloss(line: str, where: str) -> tuple[str, str]:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: is no JSON ({error}); a line is {_LINE}") from error
    told = [given.get(name) if isinstance(given, dict) else None for name in ("word", "gloss")]
    word, gloss = (" ".join(one.split()) if isinstance(one, str) else "" for one in told)
    if not (word and gloss):
        raise DataError(f"{where}: has no word or no gloss; a line is {_LINE}")
    return word, gloss


# ---- passages --------------------------------------------------------------------------------------------------


def write_texts(part: Part, path: Path) -> Path:
    """Write the texts of a part of a corpus as JSONL, a document a record, so that they can be retrieved from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = map(record_of, part)
    rows = ({"id": record.id, "text": "\n".join(record.texts)} for record in records)
    write_whole(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return path


def find_passages(
    questions: Sequence[Question],
    documents: Sequence[str | Path],
    folder: Path,
    *,
    settings: PassageSettings,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, tuple[Hit, ...]]:
    """Give what a search finds for each question's prompt, best first; the index is made in the folder, once.

    An index that is there already of the same documents and settings is taken as it is. RetrievalError as the index
    and the search give it.
    """
    made = IndexSettings(encoder=settings.encoder, tokenizer=settings.tokenizer, size=settings.size)
    build_index(documents, folder, made, device=device, progress=progress)
    with open_index(folder, device=device) as index:
        found = retrieve(index, [question.prompt for question in questions], k=settings.k)
    return {question.id: tuple(hits) for question, hits in zip(questions, found, strict=True)}
