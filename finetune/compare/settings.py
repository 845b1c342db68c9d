"""A comparison's configuration: one YAML file, checked whole before anything is loaded or trained."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from finetune.choosing import EarlyStopping
from finetune.compare.arms import ARMS, Arm
from finetune.compare.items import BASE
from finetune.config import (
    AttentionConfig,
    FilePath,
    LoraConfig,
    PairsConfig,
    RunConfig,
    Strict,
    config_of,
    problems_of,
    targets_problem,
    with_overrides,
)
from finetune.dataconfig import DataConfig, Sources, Task
from finetune.errors import ConfigError
from finetune.push import HUB_FIELDS
from finetune.yamlfiles import read_mapping

PLAN = "plan.json"  # in a comparison's folder
NO_ENCODER = "none"
# What decides how much of the texts a run sees in how many steps.
_HOW_LONG = {"max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"}
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _as_tuple(given: Any) -> Any:
    return (given,) if isinstance(given, str | int) and not isinstance(given, bool) else given


class PassagesConfig(Strict):
    """What the arms with passages put before a question."""

    k: Annotated[int, Field(ge=1, le=100)] = 3
    budget: Annotated[int, Field(ge=16, le=1_048_576)] = 512  # tokens of a prompt
    encoder: Annotated[str, Field(min_length=1)] = "builtin:e5-small"  # none: words alone


class CompareConfig(Strict):
    """All of a comparison; what a run's file has too means the same as there."""

    model: str = Field(min_length=1)
    task: Task
    data: DataConfig
    pairs: PairsConfig | None = None
    attention: AttentionConfig = AttentionConfig()  # without mode, which is the arm's
    lora: LoraConfig = LoraConfig()
    training: Mapping[str, Any] = Field(default_factory=dict)  # of every trained arm
    training_full: Mapping[str, Any] = Field(default_factory=dict)  # of arm full, over training: smaller steps
    early_stopping: EarlyStopping | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    more_text: Sources = ()  # beside data.train, for lora-more-text
    questions: Sources = ()  # shipped domains or JSONL files
    documents: Sources = ()  # what passages are found in; empty: the texts of data.train
    passages: PassagesConfig = PassagesConfig()
    glosses: Sources = ()  # shipped domains or JSONL files: word, gloss
    edge_bias: Annotated[float, Field(ge=-50, le=50)] = 2.0  # added to the logits of the edge to the pair's word
    arms: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_as_tuple), Field(min_length=1)] = (0,)
    general: FilePath = None  # texts of no domain; None: the passages of CIJING_DATA/cmrc-retrieval
    senses: Annotated[str, Field(min_length=1)] = "senses"  # cases of general words
    out: FilePath = None  # the folder; None: runs/ and the name of the file

    @field_validator("arms")
    @classmethod
    def _known_arms(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in given if name not in ARMS]:
            close = difflib.get_close_matches(unknown[0], ARMS, n=1, cutoff=0.5)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"no arm {unknown[0]!r}{meant} (allowed: {', '.join(ARMS)})")
        return given

    @field_validator("attention")
    @classmethod
    def _mode_is_the_arms(cls, given: AttentionConfig) -> AttentionConfig:
        if "mode" in given.model_fields_set:
            raise ValueError("mode is not set here: each arm has its own")
        return given

    @field_validator("training", "training_full")
    @classmethod
    def _nothing_is_uploaded(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if named := [name for name in given if name in HUB_FIELDS]:
            raise ValueError(f"{named[0]} is not set here: no run of a comparison is uploaded")
        return given

    @model_validator(mode="after")
    def _goes_together(self) -> "CompareConfig":
        if problems := list(dict.fromkeys(_contradictions(self))):
            raise ValueError("; ".join(problems))
        return self

    @property
    def folder(self) -> Path:
        """Where the comparison lies."""
        return Path(self.out or "runs/compare")

    @property
    def chosen(self) -> tuple[Arm, ...]:
        """The arms that are compared, each behind those whose runs it takes."""
        return tuple(arm for name, arm in ARMS.items() if name in self.arms)


def load_compare(path: Path, *, name: str = "", overrides: Mapping[str, Any] | None = None) -> CompareConfig:
    """Read a comparison's YAML file, or the plan.json of one; `overrides` (dotted keys) win.

    A plan's folder is where it lies. ConfigError names every problem with its key.
    """
    name = name or str(path)
    given = read_mapping(path, name=name, wanted="model, task, data, arms …", error=ConfigError)
    if path.name == PLAN and isinstance(given.get("config"), dict):
        given = {**given["config"], "out": str(path.parent)}
    return compare_of(with_overrides(given, overrides or {}), name=name)


def compare_of(given: Mapping[str, Any], *, name: str = "configuration") -> CompareConfig:
    """Check a comparison and the run's file of each of its arms; ConfigError names every problem with its key."""
    try:
        config = CompareConfig.model_validate(given)
    except ValidationError as error:
        problems = list(dict.fromkeys(problems_of(error, CompareConfig)))
        raise ConfigError(f"{name}: " + "; ".join(problems)) from error
    run_of(config, ARMS["lora"], seed=config.seeds[0], name=name)  # what all runs share, named without an arm
    for arm in runs_needed(config):
        run_of(config, arm, seed=config.seeds[0], name=f"{name}, arm {arm.name}")
    return config


def runs_needed(config: CompareConfig) -> tuple[Arm, ...]:
    """The arms that are trained: those compared, those whose run another is measured on, or takes something from."""
    names = {arm.run for arm in config.chosen if arm.run is not None}
    names |= {after for name in names if (after := ARMS[name].after) is not None}
    return tuple(arm for name, arm in ARMS.items() if name in names)


def run_of(
    config: CompareConfig,
    arm: Arm,
    *,
    seed: int,
    out: str | None = None,
    learned: Mapping[str, Any] | None = None,
    name: str = "configuration",
) -> RunConfig:
    """The run of a trained arm; `learned` (dotted keys) is what the run that it comes after decides.

    An arm that reads no pairs has none in its file, so no loss on attention, and other pairs leave its run as it was.
    Raises ConfigError.
    """
    shared = {"model", "task", "data", "training", "early_stopping", "revision", "trust_remote_code"}
    shared |= {"pairs", "attention"} if arm.supervised else set()
    shared |= {"lora"} if arm.adapted else set()
    given = config.model_dump(mode="json", include=shared)
    if not arm.adapted:
        given["training"] |= config.training_full
    if arm.more_text:
        given["data"]["train"] = [*config.data.train, *config.more_text]
    return config_of(
        with_overrides({**given, "seed": seed, "out": out}, {**arm.overrides, **(learned or {})}), name=name
    )


def _contradictions(config: CompareConfig) -> Iterator[str]:
    for what, given in (("arms", config.arms), ("seeds", config.seeds)):
        for value, count in Counter(given).items():
            if count > 1:
                yield f"{what}: {value} is named {count} times; allowed is once"
    if BASE not in config.arms:
        yield f"arms: {BASE} is missing, which the others are compared with"
    elif len(set(config.arms)) == 1:
        yield f"arms: {BASE} alone is compared with nothing; allowed are {BASE} and at least one of the others"
    if config.questions and config.task != "causal-lm":
        yield f"questions: they are put to causal language models, and the task is {config.task}; leave them out"
    if longer := sorted(set(config.training_full) & _HOW_LONG):
        yield f"training_full: {longer[0]} would have full trained on other steps than the others; leave it out"
    if problem := targets_problem(config.pairs, config.task, config.data):
        yield problem
    if config.training_full and "full" not in config.arms:
        yield "training_full: the arm full is not among arms; leave it out, or name the arm"
    if config.edge_bias == 0:
        yield "edge_bias: 0 changes nothing; allowed is another number"
    if both := sorted(set(config.more_text) & set(config.data.train)):
        yield f"more_text: {both[0]} stands in data.train already; allowed are other texts"
    for arm in config.chosen:
        yield from _lacking(config, arm)


def _lacking(config: CompareConfig, arm: Arm) -> Iterator[str]:
    """What the arm cannot be without."""
    if config.task not in arm.tasks:
        yield f"arms: {arm.name} makes no sense for task {config.task}: {arm.unfit}; allowed for {', '.join(arm.tasks)}"
        return
    trained = ARMS[arm.run] if arm.run is not None else None
    if config.pairs is None and trained is not None and trained.supervised:
        yield f"pairs: {arm.name} needs them; give `pairs: {{file: …}}`, or leave the arm out"
    if config.pairs is None and arm.edge_bias and config.task != "causal-lm":
        yield f"pairs: {arm.name} needs them for task {config.task}; give `pairs`, or leave the arm out"
    if not config.questions and (arm.prompt != "plain" or (arm.edge_bias and config.task == "causal-lm")):
        yield f"questions: {arm.name} is measured on them; give a shipped domain or a JSONL file, or leave the arm out"
    if arm.more_text and not config.more_text:
        yield f"more_text: {arm.name} needs sources; give texts beside data.train, or leave the arm out"
    if arm.prompt == "gloss" and not config.glosses:
        yield f"glosses: {arm.name} needs them; give a shipped domain or a JSONL file, or leave the arm out"
    if arm.prompt == "passages" and not config.documents and config.data.streaming:
        yield f"documents: {arm.name} finds passages in them, for a stream is not indexed; give files or folders"
