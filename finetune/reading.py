"""Records: one training example as it was read and checked, whatever file it came from."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets

from finetune.dataconfig import DataConfig, Task
from finetune.errors import DataError
from finetune.pairs import SpanPair
from probe import CijingError, Span

Message = tuple[str, str]  # role, content
OWN_RULE = -1  # the rule of pairs that stand in the data and in no pairs file
SENSES = ("different", "same")  # the classes of word-in-context, in their order
_SAME = {"t": "same", "true": "same", "1": "same", "f": "different", "false": "different", "0": "different"}
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One example. `where` is its place in the files; spans are characters of `text`, or of `second`."""

    id: str
    where: str
    group: str  # records of one group stand in one part; without a name of its own, that of the text
    text: str = ""
    second: str = ""
    target: Span | None = None
    second_target: Span | None = None
    label: str | None = None
    pairs: tuple[SpanPair, ...] = ()
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All that a model would read of it, for finding the same text twice."""
        talk = tuple(content for _, content in self.messages)
        given = (self.text, self.second, self.prompt + self.completion, "\n".join(talk))
        return tuple(text for text in given if text)


_SPAN = datasets.List(datasets.Value("int64"))
_PAIR = {
    "query": _SPAN, "key": _SPAN, "negatives": datasets.List(_SPAN), "weight": datasets.Value("float64"),
}  # fmt: skip
_MESSAGE = {"role": datasets.Value("string"), "content": datasets.Value("string")}
_STRINGS = ("id", "where", "group", "text", "second", "label", "prompt", "completion")
# The columns of every part of a corpus; a label is null where a task has none, a span an empty list.
FEATURES = datasets.Features(
    {name: datasets.Value("string") for name in _STRINGS}
    | {"target": _SPAN, "second_target": _SPAN, "pairs": datasets.List(_PAIR), "messages": datasets.List(_MESSAGE)}
    | {"index": datasets.Value("int64")}
)


def row_of(record: Record, index: int) -> dict[str, Any]:
    """The columns of a record that is the `index`-th of its part."""
    row: dict[str, Any] = {name: getattr(record, name) for name in _STRINGS}
    row |= {"target": _ends(record.target), "second_target": _ends(record.second_target), "index": index}
    row["messages"] = [{"role": role, "content": content} for role, content in record.messages]
    row["pairs"] = [
        {
            "query": _ends(pair.query), "key": _ends(pair.key), "weight": pair.weight,
            "negatives": [_ends(span) for span in pair.negatives],
        }
        for pair in record.pairs
    ]  # fmt: skip
    return row


def record_of(row: Mapping[str, Any]) -> Record:
    """Give the record back that `row_of` made the columns of."""
    pairs = tuple(
        SpanPair(
            rule=OWN_RULE, query=Span(*pair["query"]), key=Span(*pair["key"]), weight=pair["weight"],
            negatives=tuple(Span(*span) for span in pair["negatives"]),
        )
        for pair in row["pairs"]
    )  # fmt: skip
    target, second = (Span(*row[name]) if row[name] else None for name in ("target", "second_target"))
    messages = tuple((message["role"], message["content"]) for message in row["messages"])
    strings = {name: row[name] for name in _STRINGS}
    return Record(**strings, target=target, second_target=second, messages=messages, pairs=pairs)


def _ends(span: Span | None) -> list[int]:
    return [] if span is None else [span.start, span.end]


# ---- from a row of a file to a record --------------------------------------------------------------------------


def read_record(row: Mapping[str, Any], where: str, *, config: DataConfig, task: Task) -> Record | None:
    """The record that a task needs of a row; None where `label_map` leaves its label out.

    DataError names the place, what is missing or wrong there, and the columns that it has.
    """
    given = _Given(row, where, config)
    fields: dict[str, Any] = {"id": given.name("id") or where, "where": where}
    if task == "causal-lm":
        fields |= given.for_language_model()
    else:
        fields["text"] = given.string("text")
    if task in ("sense", "word-in-context"):
        fields["target"] = given.span("target", fields["text"])
    if task == "word-in-context":
        fields["second"] = given.string("second")
        fields["second_target"] = given.span("second_target", fields["second"])
    if task in ("sense", "word-in-context", "classification"):
        fields["label"] = given.label(task)
        if fields["label"] is None:
            return None
    fields["pairs"] = given.pairs(fields.get("text", ""))
    record = Record(group=given.name("group"), **fields)
    return record if record.group else Record(group=group_of_texts(record.texts), **fields)


def given_label(row: Mapping[str, Any], config: DataConfig) -> str:
    """The label of a row before `label_map`; empty where there is none."""
    value = row.get(config.label)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value).strip()


def group_of_texts(texts: Iterable[str]) -> str:
    """A group named after the text: two records of one text can then not stand in two parts."""
    return "text " + hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Given:
    """A row with its place, asked for what a task needs."""

    row: Mapping[str, Any]
    where: str
    config: DataConfig

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.where}: {problem}")

    def column(self, name: str) -> str:
        return str(getattr(self.config, name))

    def value(self, name: str) -> Any:
        """What stands in the column that a config gives this name; None where nothing does."""
        return self.row.get(self.column(name))

    def string(self, name: str) -> str:
        """A text that is not blank."""
        value, column = self.value(name), self.column(name)
        if value is None:
            has = ", ".join(sorted(map(str, self.row))) or "none"
            raise self.error(f"lacks {column!r}; it has {has} (data.{name} names the column)")
        return self.checked(value, column)

    def checked(self, value: Any, column: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{column} is {_shown(value)}; allowed is a text that is not blank")
        if found := _UNWRITABLE.search(value):
            what = "a NUL" if found.group() == "\0" else "half a character"
            raise self.error(f"{column} has {what} at offset {found.start()}; allowed is text that UTF-8 can hold")
        return value

    def name(self, name: str) -> str:
        """An id or a group: a text or a whole number; empty where there is none."""
        value = self.value(name)
        if value is None or value == "":
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"{self.column(name)} is {_shown(value)}; allowed is a text or a whole number")
        return self.checked(str(value), self.column(name))

    def for_language_model(self) -> dict[str, Any]:
        """Messages, or prompt and completion, or a text: the first of them that the row has."""
        if self.value("messages") is not None:
            return {"messages": self.messages()}
        if self.value("completion") is not None:
            return {name: self.string(name) for name in ("prompt", "completion")}
        return {"text": self.string("text")}

    def messages(self) -> tuple[Message, ...]:
        value, column = self.value("messages"), self.column("messages")
        allowed = 'allowed is a list of {"role": "user", "content": "…"}'
        if not isinstance(value, list) or not value:
            raise self.error(f"{column} is {_shown(value)}; {allowed}")
        for number, message in enumerate(value, start=1):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise self.error(f"{column} {number} is {_shown(message)}; {allowed}")
            self.checked(message.get("content"), f"content of {column} {number}")
        if all(message["role"] != "assistant" for message in value):
            roles = ", ".join(sorted({message["role"] for message in value}))
            raise self.error(f"{column} holds no answer: its roles are {roles}; one must be assistant")
        return tuple((message["role"], message["content"]) for message in value)

    def label(self, task: Task) -> str | None:
        """The label as `label_map` renames it; None where it leaves it out."""
        value, column = self.value("label"), self.column("label")
        if column not in self.row:
            self.string("label")  # says that it is missing, and what the row has
        label = given_label(self.row, self.config) if isinstance(value, bool) else self.name("label").strip()
        if not label:
            raise self.error(f"{column} is {_shown(value)}; allowed is a label, as a text or a whole number")
        if task == "word-in-context":
            same = _SAME.get(label.lower(), label.lower())
            if same not in SENSES:
                raise self.error(f"{column} is {_shown(value)}; allowed are T, F, true, false, 1, 0, same, different")
            return same
        return self.config.label_map.get(label, label)

    def span(self, name: str, text: str) -> Span:
        if self.value(name) is None:
            self.string(name)  # says that it is missing, and what the row has
        return self.placed(self.value(name), text, self.column(name))

    def placed(self, form: Any, text: str, name: str) -> Span:
        """Where a word stands: the word if it stands once, [start, end], or {word, occurrence}."""
        try:
            if isinstance(form, str) and form:
                if text.count(form) > 1:
                    raise self.error(
                        f"{name} {form!r} stands {text.count(form)} times; give [start, end] or {{word, occurrence}}"
                    )
                return Span.of(text, form)
            if isinstance(form, dict) and set(form) <= {"word", "occurrence"} and "word" in form:
                return Span.of(text, form["word"], occurrence=form.get("occurrence", 1))
            if isinstance(form, Sequence) and not isinstance(form, str) and len(form) == 2:
                span = Span(*form)
                if not span.cut(text).strip():
                    raise self.error(f"{name} [{span.start}, {span.end}] is blank; allowed is a word")
                return span
        except DataError:
            raise
        except CijingError as error:
            raise self.error(f"{name}: {error}") from None
        raise self.error(f"{name} is {_shown(form)}; allowed is a word, [start, end] or {{word, occurrence}}")

    def pairs(self, text: str) -> tuple[SpanPair, ...]:
        """The pairs that stand in the data; of a text only, since a chat template moves what it writes."""
        value, column = self.value("pairs"), self.column("pairs")
        if value is None or value == []:
            return ()
        if not text or not isinstance(value, list):
            raise self.error(f"{column} is {_shown(value)}; allowed is a list of {{query, key}} on a text")
        return tuple(self.pair(pair, text, f"{column} {number}") for number, pair in enumerate(value, start=1))

    def pair(self, pair: Any, text: str, name: str) -> SpanPair:
        known = {"query", "key", "negatives", "weight"}
        if not isinstance(pair, dict) or not {"query", "key"} <= set(pair) <= known:
            raise self.error(f"{name} is {_shown(pair)}; allowed is {{query, key}}, and negatives, weight")
        given = (pair.get("weight"), pair.get("negatives"))
        weight, negatives = (default if one is None else one for one, default in zip(given, (1.0, []), strict=True))
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1000:
            raise self.error(f"{name}: weight {_shown(weight)}; allowed is a number above 0, up to 1000")
        if not isinstance(negatives, list):
            raise self.error(f"{name}: negatives {_shown(negatives)}; allowed is a list of words or spans")
        query, key = (self.placed(pair[side], text, f"{name} {side}") for side in ("query", "key"))
        apart = tuple(self.placed(form, text, f"{name} negatives") for form in negatives)
        return SpanPair(rule=OWN_RULE, query=query, key=key, negatives=apart, weight=float(weight))


def _shown(value: object) -> str:
    """A value short enough for a message of one line."""
    words = json.dumps(value, ensure_ascii=False, default=str)
    return words if len(words) <= 60 else words[:59] + "…"
