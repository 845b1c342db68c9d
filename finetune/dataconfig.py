"""The `data` part of a run's configuration: which files, which columns, how they are split and cut."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Task = Literal["causal-lm", "masked-lm", "sense", "word-in-context", "classification"]
Kind = Literal["auto", "text", "jsonl", "csv", "parquet", "hub", "cases", "mcl-wic"]
LABELLED: tuple[Task, ...] = ("sense", "word-in-context", "classification")


def _as_list(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


Source = Annotated[str, Field(min_length=1)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(_as_list)]
Column = Annotated[str, Field(min_length=1)]


class DataConfig(BaseModel):
    """Where the texts come from and how they are read.

    A source is a file (.txt, .jsonl, .csv, .tsv, .parquet, .data of MCL-WiC, .yaml of cases), the name of a shipped
    case set, or a dataset id of the hub. `kind` says so where the name does not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Annotated[Sources, Field(min_length=1)]
    dev: Sources = ()
    test: Sources = ()
    kind: Kind = "auto"
    split: str = "train"  # of a hub id
    dev_split: str | None = None  # of the hub id in `train`, where `dev` names nothing
    test_split: str | None = None
    subset: str | None = None  # a hub dataset's configuration
    revision: str | None = None

    text: Column = "text"
    second: Column = "second"
    label: Column = "label"
    group: Column = "group"
    target: Column = "target"
    second_target: Column = "second_target"
    pairs: Column = "pairs"
    messages: Column = "messages"
    prompt: Column = "prompt"
    completion: Column = "completion"
    id: Column = "id"

    labels: tuple[str, ...] | None = None  # all classes in their order; None: those of train, sorted
    label_map: Mapping[str, str | None] = Field(default_factory=dict)  # a label renamed; null: its records left out
    dev_share: float = Field(default=0.1, ge=0, le=0.5)  # of the records, where no dev is given; 0: no dev
    max_length: int = Field(default=256, ge=8, le=1_048_576)  # tokens, special ones included
    long_texts: Literal["split", "cut"] = (
        "split"  # plain texts of language models above max_length: pieces, or the first
    )
    packing: bool = False  # several documents a row, none sees another (causal-lm)
    streaming: bool = False  # train is read as it is needed; training.max_steps says how far
    shuffle_buffer: int = Field(default=1_000, ge=0, le=10_000_000)  # streaming: records to draw from; 0: their order
    look_ahead: int = Field(default=512, ge=1, le=1_000_000)  # streaming: documents that set what `auto` means; of dev
    template: bool = True  # prompt and completion as the tokenizer's chat template writes them, where it has one
    pair_encoding: Literal["joint", "separate"] = "joint"  # word-in-context: one sequence, or two

    @model_validator(mode="after")
    def _apart(self) -> "DataConfig":
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        for (one, first), (other, second) in (
            (first, second) for place, first in enumerate(parts.items()) for second in list(parts.items())[place + 1 :]
        ):
            if both := sorted(set(first) & set(second)):
                raise ValueError(f"{both[0]} is named in {one} and in {other}; allowed is one of the two")
        for name, split, given in (("dev", self.dev_split, self.dev), ("test", self.test_split, self.test)):
            if split is not None and given:
                raise ValueError(f"{name} and {name}_split are both given; allowed is one of the two")
            if split is not None and split == self.split:
                raise ValueError(f"{name}_split {split!r} is the split that is trained on")
        if self.labels is not None and (len(set(self.labels)) < len(self.labels) or len(self.labels) < 2):
            raise ValueError(f"labels {list(self.labels)}: allowed are two or more, each once")
        return self
