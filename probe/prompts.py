"""A prompt with a map of its parts: which tokens are the question, which each passage, which the template."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from probe.casefiles import Ledger, nearest, read_records
from probe.errors import CasesError, CijingError, PromptError, SpanError
from probe.given import is_a, one_of, path_of, shown, whole_number, whole_numbers
from probe.spans import Span, TokenMap, spells, tokens_of

PartKind = Literal["template", "instruction", "passage", "question"]
Form = Literal["plain", "chat", "pair", "text"]

_VERSION = 1
_SUFFIX = ".jsonl"
_LARGEST = 2**31 - 1  # of ids and positions
_OF_TOKENS = ("text", "ids", "offsets", "special", "unknown", "aligned")
_OF_PROMPT = ("version", "id", "form", *_OF_TOKENS, "parts", "target", "token_types")
_OF_PART = ("kind", "name", "start", "end", "first", "stop", "source")
_ALIGNED = ("offsets", "repaired", "search")


@dataclass(frozen=True, kw_only=True)
class PromptPart:
    """A run of tokens of one kind; half-open characters of the prompt's text, half-open token positions."""

    kind: PartKind
    name: str = ""  # of a passage its id, else empty
    start: int
    end: int
    first: int
    stop: int
    source: Mapping[str, str | int | float] = field(
        default_factory=dict
    )  # of a passage: document, start, end, title, …


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedPrompt:
    """What a model is to read, and what each token of it is: every token belongs to exactly one part, in order."""

    id: str
    tokens: TokenMap
    parts: tuple[PromptPart, ...]
    form: Form
    target: Span | None = None  # the word to look from, in characters of the prompt's text
    token_types: tuple[int, ...] | None = None  # where an encoder's tokenizer tells the two texts of a pair apart

    def __post_init__(self) -> None:
        """Refuse parts that leave out tokens, overlap or lie outside the text, and passages without a name."""
        at = 0
        for part in self.parts:
            if part.first != at or part.stop < part.first:
                raise SpanError(
                    f"prompt {self.id}: a part begins at token {part.first}; allowed is {at}, where one ended"
                )
            if not 0 <= part.start <= part.end <= len(self.tokens.text):
                raise SpanError(f"prompt {self.id}: characters {part.start} to {part.end} lie outside its text")
            if part.kind == "passage" and not part.name:
                raise SpanError(f"prompt {self.id}: the passage at token {part.first} has no name; allowed is its id")
            at = part.stop
        if at != len(self.tokens.ids):
            raise SpanError(f"prompt {self.id}: the parts cover {at} of {len(self.tokens.ids)} tokens; allowed are all")
        if self.token_types is not None and len(self.token_types) != at:
            raise SpanError(f"prompt {self.id}: {len(self.token_types)} token types for {at} tokens")

    def parts_of(self, kind: PartKind) -> tuple[PromptPart, ...]:
        """Give the parts of one kind, in the prompt's order."""
        return tuple(part for part in self.parts if part.kind == kind)


def check_tokenizer(prompt: MappedPrompt, tokenizer: Any) -> None:
    """PromptError where the prompt's ids, read by this tokenizer, do not spell the prompt's text."""
    if not spells(tokenizer, prompt.tokens):
        raise PromptError(
            "its token ids do not spell its text with this tokenizer; allowed is the tokenizer that made the prompt"
        )


# ---- files -----------------------------------------------------------------------------------------------------


def save_prompts(prompts: Iterable[MappedPrompt], path: str | Path) -> None:
    """Write prompts as JSON Lines, whole or not at all; PromptError for what `load_prompts` would refuse.

    A line is a prompt: version, id, form, text, ids, offsets [token, 2], special (position and name), unknown
    (positions), aligned, parts, target and token_types (both may be null).
    """
    from probe.captures import write_whole  # imports torch, which a reader of prompts does not have to wait for

    path = _file_of(path)
    lines: dict[str, str] = {}
    if not isinstance(prompts, Iterable):
        raise PromptError(f"prompts is {shown(prompts)}; allowed is a list of MappedPrompts")
    for prompt in prompts:
        is_a(prompt, MappedPrompt, "one of the prompts", wanted="a MappedPrompt", error=PromptError)
        try:
            line = _line_of(prompt)
        except (CijingError, ValueError, TypeError) as error:  # half a surrogate pair, a number that JSON lacks
            raise PromptError(f"{path}: prompt {shown(prompt.id)}: {error}") from error
        if prompt.id in lines:
            raise PromptError(f"{path}: two prompts have the id {shown(prompt.id)}; allowed is one of each")
        lines[prompt.id] = line
    if not lines:
        raise PromptError(f"{path}: no prompt was given; allowed are one or more")
    write_whole(path, "".join(f"{line}\n" for line in lines.values()).encode(), what="the prompts")


def load_prompts(path: str | Path, tokenizer: Any = None) -> tuple[MappedPrompt, ...]:
    """Read prompts that `save_prompts` wrote; PromptError names the first line and field that is wrong.

    With a tokenizer, ids and text must still agree with it: a prompt that another one made is refused.
    """
    path = _file_of(path)
    ledger = Ledger(str(path), holds="prompts")
    try:
        _, records = read_records(path, ledger)
    except CasesError as error:
        raise PromptError(str(error)) from error
    if ledger.problems:
        raise PromptError(ledger.problems[0])
    found: dict[str, MappedPrompt] = {}
    for line, record in records:
        try:
            prompt = _prompt_of(record)
            if prompt.id in found:
                raise PromptError(f"id {shown(prompt.id)} stands in an earlier line; allowed is one prompt of each id")
            if tokenizer is not None:
                check_tokenizer(prompt, tokenizer)
        except CijingError as error:
            raise PromptError(f"{path}:{line}: {error}") from error
        found[prompt.id] = prompt
    return tuple(found.values())


def _file_of(path: str | Path) -> Path:
    path = path_of(path, "path", error=PromptError)
    if path.suffix.lower() != _SUFFIX:
        raise PromptError(f"{path}: allowed is a file ending in {_SUFFIX}, as save_prompts writes it")
    return path


def _line_of(prompt: MappedPrompt) -> str:
    """The prompt as one line of JSON, seen to give the same prompt again."""
    tokens = prompt.tokens
    record = {
        "version": _VERSION,
        "id": prompt.id,
        "form": prompt.form,
        "text": tokens.text,
        "ids": tokens.ids,
        "offsets": tokens.offsets.tolist(),
        "special": [[place, tokens.labels[place]] for place in np.flatnonzero(tokens.special).tolist()],
        "unknown": np.flatnonzero(tokens.unknown).tolist(),
        "aligned": tokens.aligned,
        "parts": [{**asdict(part), "source": dict(part.source)} for part in prompt.parts],
        "target": None if prompt.target is None else [prompt.target.start, prompt.target.end],
        "token_types": prompt.token_types,
    }
    line = json.dumps(record, ensure_ascii=False, allow_nan=False)
    line.encode()
    if _prompt_of(json.loads(line)).tokens.labels != tokens.labels:
        raise PromptError("a token's label is no slice of its text")
    return line


def _prompt_of(record: object) -> MappedPrompt:
    """One record as a prompt, every field checked."""
    if not isinstance(record, dict):
        raise PromptError(f"{shown(record)} is no prompt; allowed is an object with {', '.join(_OF_PROMPT)}")
    if "version" in record and (type(record["version"]) is not int or record["version"] != _VERSION):
        raise PromptError(f"version {shown(record['version'])} is unknown; allowed is {_VERSION}")
    fields = _fields(record, _OF_PROMPT, "the prompt")
    types = fields["token_types"]
    prompt = MappedPrompt(
        id=_text(fields["id"], "id", least=1),
        form=cast("Form", one_of(fields["form"], "form", get_args(Form), error=PromptError)),
        tokens=_tokens_of(fields),
        parts=tuple(_part_of(part) for part in _list(fields["parts"], "parts")),
        target=None if fields["target"] is None else Span(*_pair(fields["target"], "target")),
        token_types=None if types is None else _numbers(types, "token_types"),
    )
    if prompt.target is not None:
        tokens_of(prompt.target, prompt.tokens)
    _check_places(prompt)
    return prompt


def _tokens_of(fields: Mapping[str, Any]) -> TokenMap:
    text, ids = _text(fields["text"], "text"), _numbers(fields["ids"], "ids")
    if not ids:
        raise PromptError("ids is empty; allowed is one token or more")
    offsets = [_pair(pair, "offsets") for pair in _list(fields["offsets"], "offsets")]
    names: dict[int, str] = {}
    for entry in _list(fields["special"], "special"):
        place, name = entry if isinstance(entry, list) and len(entry) == 2 else (entry, None)
        names[_place(place, "special", len(ids))] = _text(name, "a special token's name")
    unknown = {_place(place, "unknown", len(ids)) for place in _list(fields["unknown"], "unknown")}
    if both := sorted(unknown & set(names)):
        raise PromptError(f"token {both[0]} is special and unknown; allowed is one of both")
    slices = [text[start:end] for start, end in offsets]
    return TokenMap(
        text=text,
        ids=ids,
        offsets=np.array(offsets, dtype=np.int64).reshape(-1, 2),
        special=np.array([place in names for place in range(len(ids))], dtype=np.bool_),
        labels=tuple(names.get(place, label) for place, label in enumerate(slices)),
        unknown=np.array([place in unknown for place in range(len(ids))], dtype=np.bool_),
        aligned=cast("Any", one_of(fields["aligned"], "aligned", _ALIGNED, error=PromptError)),
    )


def _part_of(record: object) -> PromptPart:
    fields = _fields(record, _OF_PART, "a part")
    numbers = {name: _number(fields[name], f"a part's {name}") for name in ("start", "end", "first", "stop")}
    source = fields["source"]
    if not isinstance(source, dict) or not all(map(_is_plain, source.values())):
        raise PromptError(f"a part's source {shown(source)}: allowed is an object of texts and finite numbers")
    return PromptPart(
        kind=cast("PartKind", one_of(fields["kind"], "a part's kind", get_args(PartKind), error=PromptError)),
        name=_text(fields["name"], "a part's name"),
        source=source,
        **numbers,
    )


def _check_places(prompt: MappedPrompt) -> None:
    """Refuse a part whose characters are not those of its tokens; special tokens may have none."""
    offsets = prompt.tokens.offsets.tolist()
    for part in prompt.parts:
        for place in range(part.first, part.stop):
            start, end = offsets[place]
            if start < end and not prompt.tokens.special[place] and not (start < part.end and part.start < end):
                raise SpanError(
                    f"token {place} carries characters {start} to {end}, but its part ({part.kind}) "
                    f"has {part.start} to {part.end}"
                )


def _fields(record: object, names: Sequence[str], what: str) -> Mapping[str, Any]:
    """The record where it has these fields and no others."""
    if not isinstance(record, dict):
        raise PromptError(f"{what} is {shown(record)}; allowed is an object with {', '.join(names)}")
    for name in record:
        if name not in names:
            raise PromptError(f"{what} has the unknown field {shown(name)}{nearest(name, names)}")
    for name in names:
        if name not in record:
            raise PromptError(f"{what} has no {name}; allowed are all of {', '.join(names)}")
    return record


def _is_plain(value: object) -> bool:
    return isinstance(value, str) or type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _text(value: object, name: str, *, least: int = 0) -> str:
    text = is_a(value, str, name, wanted="a text", error=PromptError)
    if len(text) < least:
        raise PromptError(f"{name} is empty; allowed is a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{name} {shown(text)} has half of a surrogate pair; allowed are whole characters") from None
    return text


def _list(value: object, name: str) -> list[Any]:
    return is_a(value, list, name, wanted="a list", error=PromptError)


def _number(value: object, name: str) -> int:
    return whole_number(value, name, least=0, most=_LARGEST, error=PromptError)


def _numbers(value: object, name: str) -> tuple[int, ...]:
    found = whole_numbers(_list(value, name), name, least=0, error=PromptError)
    if found and max(found) > _LARGEST:
        raise PromptError(f"{name} has {max(found)}; allowed are whole numbers from 0 to {_LARGEST}")
    return found


def _pair(value: object, name: str) -> tuple[int, int]:
    found = _numbers(value, name)
    if len(found) != 2:
        raise PromptError(f"{name} has {shown(value)}; allowed are pairs of a start and an end")
    return found[0], found[1]


def _place(value: object, name: str, count: int) -> int:
    return whole_number(value, f"a position of {name}", least=0, most=count - 1, error=PromptError)
