"""A corpus: its parts as `datasets` sees them, split so that no group and no text stands in two of them."""

import difflib
import hashlib
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset

from finetune.corpusfiles import OWN_COLUMNS, kind_of, rows_of
from finetune.dataconfig import LABELLED, DataConfig, Task
from finetune.errors import DataError
from finetune.reading import FEATURES, SENSES, Record, given_label, group_of_texts, read_record, record_of, row_of

Part: TypeAlias = Dataset | IterableDataset
_COLUMNS = ("text", "second", "label", "group", "target", "second_target", "pairs", "messages", "prompt", "completion")
_HUB_ONLY = {"subset": None, "split": "train", "revision": None}  # with their defaults


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """The parts, each with the columns of `reading.FEATURES`; `index` counts the records of a part from 0.

    In a streamed corpus train (and a dev part cut off from it) is an IterableDataset, read as it is asked for; what a
    file holds that cannot be used is then found when it is reached. dev and test files are read whole.
    """

    train: Part
    dev: Part | None
    test: Dataset | None
    labels: tuple[str, ...]  # the classes in their order, none for language models


def load_records(config: DataConfig, task: Task, *, seed: int = 0, trained: bool = False) -> Corpus:
    """Read, check and split a corpus.

    DataError names file and line of what cannot be used, an empty corpus, a label in dev or test that train lacks, a
    group or a text that stands in two parts, and a split that no group allows. The same seed gives the same split,
    in whatever order the records stand.

    trained: the parts of a run that came to its end. A stream is then read once now, so that what stands in its train
    and in dev or test is refused before anything is measured; the keys of dev and test are all that is kept of it.
    Without it, a column or a label of label_map that nothing has is refused, and what is for hub ids only.
    """
    if config.packing and task != "causal-lm":
        raise DataError(f"data.packing with task {task}: allowed with causal-lm, where one mask hides the neighbours")
    if not trained:
        _refuse_hub_settings(config)
    names = _Names()
    dev, test = (_held_out(config, task, name, names) for name in ("dev", "test"))
    if config.streaming:
        return _streamed(config, task, dev=dev, test=test, seed=seed, names=None if trained else names)
    train = _all(config.train, config, task, split=config.split, names=names)
    if not trained:
        names.check_columns(config)
        names.check_labels(config, task)
    if not dev and config.dev_share:
        train, dev = split_by_group(train, share=config.dev_share, seed=seed)
    parts = {"train": train, "dev": dev, "test": test}
    _check_apart(parts)
    labels = _labels(train, config, task)
    _check_labels(parts, labels, task)
    datasets = {name: _dataset(records) if records else None for name, records in parts.items()}
    assert datasets["train"] is not None
    return Corpus(train=datasets["train"], dev=datasets["dev"], test=datasets["test"], labels=labels)


def _held_out(config: DataConfig, task: Task, name: str, names: "_Names") -> list[Record]:
    sources, split = getattr(config, name), getattr(config, f"{name}_split")
    if split is not None:
        wrong = [source for source in config.train if kind_of(source, config.kind) != "hub"]
        if wrong:
            raise DataError(f"data.{name}_split with {wrong[0]}, which is a file: allowed with a hub id")
        return _all(config.train, config, task, split=split, names=names)
    return _all(sources, config, task, split=config.split, names=names) if sources else []


def _all(sources: Sequence[str], config: DataConfig, task: Task, *, split: str, names: "_Names") -> list[Record]:
    return [record for source in sources for record in read_source(source, config, task, split=split, names=names)]


def read_source(
    source: str, config: DataConfig, task: Task, *, split: str = "train", names: "_Names | None" = None
) -> Iterator[Record]:
    """The records of one source; DataError at its end if there was none. `names` gathers what its rows have."""
    own = kind_of(source, config.kind) in OWN_COLUMNS
    if own:
        config = config.model_copy(update={name: name for name in _COLUMNS})
    found = left_out = 0
    for where, row in rows_of(source, config, split=split):
        if names is not None:
            names.gather(row, config, own=own)
        record = read_record(row, where, config=config, task=task)
        if record is None:
            left_out += 1
            continue
        found += 1
        yield record
    if not found:
        why = f"label_map leaves out all {left_out}" if left_out else "it is empty"
        raise DataError(f"{source}: holds no records ({why})")


def _dataset(records: Sequence[Record]) -> Dataset:
    return Dataset.from_list([row_of(record, place) for place, record in enumerate(records)], features=FEATURES)


# ---- names that rows have --------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class _Names:
    """Columns and labels that rows have, to tell a name that no row has."""

    columns: set[str] = field(default_factory=set)  # of the kinds that have columns of their own names
    labels: set[str] = field(default_factory=set)

    def gather(self, row: Mapping[str, Any], config: DataConfig, *, own: bool) -> None:
        """Add a row; `own`: its columns have our names."""
        if not own:
            self.columns.update(row)
        if config.label_map:
            self.labels.add(given_label(row, config))

    def check_columns(self, config: DataConfig) -> None:
        """DataError for a column that the configuration renames and no row has."""
        for name in ("id", *_COLUMNS):
            column = getattr(config, name)
            if self.columns and column != name and column not in self.columns:
                raise DataError(f"data.{name}: no row has the column {column!r}{_nearest(column, self.columns)}")

    def check_labels(self, config: DataConfig, task: Task) -> None:
        """DataError for a label that is to be renamed or left out and no record has."""
        for label in config.label_map if task in LABELLED else ():
            if label not in self.labels:
                raise DataError(
                    f"data.label_map: no record has the label {label!r}{_nearest(label, self.labels - {''})}"
                )


def _nearest(name: str, valid: Collection[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    shown = sorted(valid)
    return f"{meant} (allowed: {', '.join(shown)})" if len(shown) < 40 else meant


def _refuse_hub_settings(config: DataConfig) -> None:
    """DataError for subset, split or revision where every source is a file."""
    given = {name: getattr(config, name) for name, default in _HUB_ONLY.items() if getattr(config, name) != default}
    sources = (*config.train, *config.dev, *config.test)
    if given and all(kind_of(source, config.kind) != "hub" for source in sources):
        name, value = next(iter(given.items()))
        raise DataError(f"data.{name} {value!r} with {sources[0]}, which is a file: allowed with a hub id")


# ---- parts that share nothing ----------------------------------------------------------------------------------


def split_by_group(records: Sequence[Record], *, share: float, seed: int) -> tuple[list[Record], list[Record]]:
    """(train, dev): whole groups are drawn until dev has about `share` of the records.

    Groups that share a text count as one. A group that would leave a label without training records, or that is too
    large, is passed over. DataError where no group can be held out.
    """
    bundles = sorted(_bundles(records), key=lambda bundle: _draw(min(records[one].group for one in bundle), seed))
    wanted = max(1, round(share * len(records)))
    left = Counter(record.label for record in records)
    dev: set[int] = set()
    for bundle in bundles:
        taken = Counter(records[place].label for place in bundle)
        if len(dev) + len(bundle) <= wanted and all(left[label] > taken[label] for label in taken):
            dev |= set(bundle)
            left -= taken
    if not dev:
        raise DataError(
            f"dev_share {share:g}: {len(records)} records in {len(bundles)} sets that must stay together "
            f"(one group, or texts in common), the smallest of {min(map(len, bundles))}, and none can be held out; "
            "give data.dev, a larger dev_share, or dev_share: 0"
        )
    parts: tuple[list[Record], list[Record]] = ([], [])
    for place, record in enumerate(records):
        parts[place in dev].append(record)
    return parts


def _bundles(records: Sequence[Record]) -> list[list[int]]:
    """Places of records that must stay together: those of one group, and groups that share a text."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for record in records:
        for key in _keys(record):
            parent[root(key)] = root(f"group {record.group}")
    bundles: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        bundles.setdefault(root(f"group {record.group}"), []).append(place)
    return list(bundles.values())


def _keys(record: Record) -> Iterator[str]:
    """What must not stand in two parts."""
    yield f"group {record.group}"
    yield from _text_keys(record)


def _text_keys(record: Record) -> Iterator[str]:
    for text in record.texts:
        yield f"text {_as_seen(text)}"


def _as_seen(text: str) -> str:
    """A text as a reader sees it: blanks, forms of one character (NFKC) and invisible format characters are one."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _format_characters().sub("", text))
    return " ".join(text.split())


@cache
def _format_characters() -> re.Pattern[str]:
    """Unicode's category Cf: zero-width spaces and joiners, marks of direction, soft hyphens."""
    found = (chr(code) for code in range(sys.maxunicode + 1))
    return re.compile(f"[{re.escape(''.join(one for one in found if unicodedata.category(one) == 'Cf'))}]+")


def _draw(group: str, seed: int) -> float:
    """A number from 0 to 1 that a group and a seed always give."""
    return int.from_bytes(hashlib.sha256(f"{seed} {group}".encode()).digest()[:8]) / 2**64


def _check_apart(parts: Mapping[str, Sequence[Record]]) -> None:
    seen: dict[str, tuple[str, Record]] = {}
    for part, records in parts.items():
        for record in records:
            for key in _keys(record):
                other, first = seen.setdefault(key, (part, record))
                if other != part:
                    raise _leak(key, record, part=part, other=other, first=first.where)


def _leak(key: str, record: Record, *, part: str, other: str, first: str) -> DataError:
    what = f"the group {record.group!r}" if key.startswith("group ") else "this text"
    return DataError(f"{record.where}: {what} stands in {part} and in {other} ({first}); allowed is one of the two")


def trained_among(records: Sequence[Record], corpus: Corpus) -> str:
    """Says how many of the records have a text of the corpus's train or dev part, and the first; empty for none."""
    places = {key: place for place, record in reversed(list(enumerate(records))) for key in _text_keys(record)}
    found: dict[int, str] = {}
    for name, part in (("train", corpus.train), ("dev", corpus.dev)):
        for row in part if part is not None else ():
            for key in _text_keys(record_of(row)):
                if key in places:
                    found.setdefault(places[key], f"{name} ({row['where']})")
    if not found:
        return ""
    first = min(found)
    return (
        f"{records[first].where}: {len(found)} of {len(records)} general texts were trained on or chosen by, this one "
        f"stands in {found[first]}; allowed are texts that the run never saw"
    )


# ---- labels ----------------------------------------------------------------------------------------------------


def _labels(train: Sequence[Record], config: DataConfig, task: Task) -> tuple[str, ...]:
    if task not in LABELLED:
        return ()
    if task == "word-in-context":
        return SENSES
    labels = config.labels or tuple(sorted({record.label for record in train if record.label is not None}))
    if len(labels) < 2:
        raise DataError(f"{', '.join(config.train)}: all records have the label {labels[0]!r}; allowed are two or more")
    return labels


def _check_labels(parts: Mapping[str, Sequence[Record]], labels: Sequence[str], task: Task) -> None:
    if task not in LABELLED:
        return
    for part, records in parts.items():
        for record in records:
            _check_label(record, labels, part)


def _check_label(record: Record, labels: Sequence[str], part: str) -> None:
    if record.label not in labels:
        raise DataError(f"{record.where}: label {record.label!r} in {part} is unknown; known are {', '.join(labels)}")


# ---- streams ---------------------------------------------------------------------------------------------------


def _streamed(
    config: DataConfig,
    task: Task,
    *,
    dev: Sequence[Record],
    test: Sequence[Record],
    seed: int,
    names: _Names | None,
) -> Corpus:
    """The parts of a stream; `names` of dev and test, None for a run that was trained."""
    if task in ("sense", "classification") and config.labels is None:
        raise DataError(f"data.streaming with task {task}: data.labels must name the classes, for they are not counted")
    labels = _labels([], config, task)
    _check_apart({"dev": dev, "test": test})
    _check_labels({"dev": dev, "test": test}, labels, task)
    held_out = {
        key: (part, one.where) for part, of in (("dev", dev), ("test", test)) for one in of for key in _keys(one)
    }
    share = 0.0 if dev else config.dev_share
    parts = {
        part: IterableDataset.from_generator(
            _stream,
            features=FEATURES,
            gen_kwargs={
                "config": config, "task": task, "held_out": held_out, "labels": labels,
                "kept": _Kept(seed=seed, share=share, dev=part == "dev"), "names": names,
            },
        )
        for part in (("train", "dev") if share else ("train",))
    }  # fmt: skip
    if names is None and held_out:
        for _ in _stream(config, task, held_out, labels, _Kept(seed=seed, share=share, dev=False), names):
            pass
    kept_dev = _dataset(dev) if dev else parts.get("dev")
    return Corpus(train=parts["train"], dev=kept_dev, test=_dataset(test) if test else None, labels=labels)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Which records of a stream a part keeps: a group's draw decides, so the stream need not be read before.

    A record without a group of its own is drawn by its texts as they are seen. `earlier` has of each text of the pass
    a hash of 8 bytes and whether it was drawn for dev; DataError where a record of another draw holds it again.
    """

    seed: int
    share: float
    dev: bool

    def __call__(self, record: Record, earlier: dict[bytes, bool]) -> bool:
        if not self.share:
            return True
        own = record.group != group_of_texts(record.texts)
        group = record.group if own else group_of_texts(map(_as_seen, record.texts))
        drawn = _draw(group, self.seed) < self.share
        for text in record.texts:
            if earlier.setdefault(hashlib.sha256(_as_seen(text).encode()).digest()[:8], drawn) != drawn:
                raise DataError(
                    f"{record.where}: a text of this record stands before it in another group, and dev_share "
                    f"{self.share:g} draws one of them for train and one for dev; allowed is one group for a text, "
                    "data.dev, or dev_share: 0"
                )
        return drawn == self.dev


def _stream(
    config: DataConfig,
    task: Task,
    held_out: Mapping[str, tuple[str, str]],
    labels: Sequence[str],
    kept: Callable[[Record, dict[bytes, bool]], bool],
    names: _Names | None,
) -> Iterator[dict[str, Any]]:
    """The rows of a streamed part; module level, so that a loader's workers can be handed it."""
    index = 0
    earlier: dict[bytes, bool] = {}
    seen = None if names is None else _Names(columns=set(names.columns))
    for source in config.train:
        for record in read_source(source, config, task, split=config.split, names=seen):
            for key in _keys(record):
                if key in held_out:
                    part, first = held_out[key]
                    raise _leak(key, record, part="train", other=part, first=first)
            if labels:
                _check_label(record, labels, "train")
            if kept(record, earlier):
                yield row_of(record, index)
                index += 1
    if seen is not None:
        seen.check_columns(config)
    if not index:
        raise DataError(
            f"{', '.join(config.train)}: the streamed part holds no records; give data.dev, or dev_share: 0"
        )
