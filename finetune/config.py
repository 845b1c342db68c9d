"""A run's configuration: one YAML file, checked before anything is loaded; an unknown key is named with the nearest."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from finetune.choosing import (
    EarlyStopping,
    contradictions,
    dev_expected,
    full_name,
    known_metrics,
    metric_problem,
    more_is_better,
)
from finetune.dataconfig import DataConfig, Task
from finetune.errors import ConfigError
from finetune.keys import KEYS
from finetune.losses import HeadReduction, LossName, LossSettings
from finetune.trainingfields import as_meant, training_fields, value_problem
from finetune.yamlfiles import read_mapping

Mode = Literal["pairs", "random", "none"]
Method = Literal["lora", "full"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Whole = Annotated[int, Field(ge=0)]

# What the run decides by itself; a second say would contradict the rest of the file.
OURS = ("output_dir", "seed", "data_seed", "do_train", "do_eval", "do_predict", "resume_from_checkpoint")

_LONGEST_NAME, _LONGEST_PATH = 255, 4000  # bytes, of Linux; room is left for what a run writes below its folder


class Strict(BaseModel):
    """No unknown keys, no NaN or infinity, and no true or false where a number is meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_and_not_truths(cls, given: Any, about: ValidationInfo) -> Any:
        field = cls.model_fields[str(about.field_name)]
        if _takes_number(field.annotation) and _holds_truth(given):
            raise ValueError(f"{str(given).lower()} is no number; allowed is a number")
        return given


def _takes_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_takes_number, get_args(annotation)))


def _holds_truth(given: Any) -> bool:
    return any(map(_holds_truth, given)) if isinstance(given, list | tuple) else isinstance(given, bool)


def _usable_path(given: str | None) -> str | None:
    """ValueError for what no file system takes."""
    if given is None:
        return None
    if not given or "\0" in given:
        raise ValueError(f"{given[:60]!r}: allowed is a path, not empty and without NUL")
    try:
        parts = [len(part.encode()) for part in given.split("/")]
    except UnicodeEncodeError as error:
        raise ValueError(f"{given[:60]!r}: half a character (a surrogate) is in no path") from error
    if max(parts) > _LONGEST_NAME or sum(parts) + len(parts) > _LONGEST_PATH:
        raise ValueError(
            f"{given[:40]}… is too long: allowed are names of {_LONGEST_NAME} bytes in a path of {_LONGEST_PATH}"
        )
    return given


FilePath = Annotated[str | None, AfterValidator(_usable_path)]


class PairsConfig(Strict):
    """Which words belong together."""

    file: FilePath = None  # a pairs file, or the name of a shipped domain; None: those that stand in the data
    targets: bool = False  # word-in-context, joint: the targets of two sentences of one sense are a pair as well
    direction: Literal["as-written", "either"] = "as-written"  # either: of two words the later reads the earlier
    unmet_limit: Share = 0.5  # of the pairs that stand in the texts; more that cannot be met stop the run
    absent_limit: Share = 0.5  # of the rules; more that no text holds stop the run

    @model_serializer(mode="wrap")
    def _without_targets(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Left out where it is not asked for: what was decided without it keeps its hash."""
        told: dict[str, Any] = write(self)
        return told if self.targets else {name: value for name, value in told.items() if name != "targets"}


def targets_problem(pairs: PairsConfig | None, task: Task, data: DataConfig) -> str | None:
    """Why two targets cannot be a pair here, with what is allowed; or None."""
    joint = task == "word-in-context" and data.pair_encoding == "joint"
    if pairs is None or not pairs.targets or joint:
        return None
    return "pairs.targets: allowed with task word-in-context and data.pair_encoding joint"


class AttentionConfig(Strict):
    """The auxiliary loss on attention."""

    mode: Mode = "pairs"  # random: other spans of the same texts in the pairs' place; none: no loss
    loss: LossName = "mass"
    weight: Annotated[float, Field(gt=0.0)] | Literal["auto"] = "auto"
    share: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2  # auto: attention gradient's norm over the task gradient's
    layers: Literal["last_third", "all"] | tuple[Whole, ...] = "last_third"
    heads: Literal["auto", "all"] | tuple[tuple[Whole, Whole], ...] = "auto"  # auto: top quarter by base mass
    reduce: HeadReduction = "each"
    threshold: float = 0.3
    smoothing: float = 0.1
    margin: float = 1.0
    sharpness: float = 10.0
    warmup: Share = 0.0  # of the steps, until the weight is whole
    decay: Share = 0.0  # of the steps, over which it falls to 0 at the end
    random_seed: int = 0  # of the control's pairs
    norms_every: Whole = 50  # steps between two that measure both gradients apart (two more backward passes); 0: never

    def settings(self) -> LossSettings:
        """The loss with its numbers; ConfigError where one means nothing."""
        return LossSettings(
            name=self.loss, threshold=self.threshold, smoothing=self.smoothing, margin=self.margin, heads=self.reduce,
            sharpness=self.sharpness,
        )  # fmt: skip

    @model_validator(mode="after")
    def _heads_or_layers(self) -> "AttentionConfig":
        if isinstance(self.heads, tuple) and self.layers != "last_third":
            raise ValueError("attention.heads are named with their layers; allowed is not to give attention.layers too")
        return self

    @model_validator(mode="after")
    def _loss_makes_sense(self) -> "AttentionConfig":
        try:
            self.settings()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class LoraConfig(Strict):
    """The adapter. A loss on a layer's rows trains its queries and keys, so both are targets by default."""

    r: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0)] | None = None  # None: 2 r
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Literal["attention", "all-linear"] | tuple[str, ...] = "attention"
    layers: tuple[Whole, ...] | None = None
    rslora: bool = False
    quantize: Literal["none", "4bit"] = "none"  # 4bit (QLoRA) needs bitsandbytes


class RunConfig(Strict):
    """All of a run."""

    model: str = Field(min_length=1)
    task: Task
    data: DataConfig
    pairs: PairsConfig | None = None
    attention: AttentionConfig = AttentionConfig()
    method: Method = "lora"  # full: the model's own weights are trained, all of them; there is no adapter
    lora: LoraConfig = LoraConfig()
    training: Mapping[str, Any] = Field(default_factory=dict)  # any field of transformers.TrainingArguments
    early_stopping: EarlyStopping | None = None  # None: to the last step
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    out: FilePath = None  # the run folder; None: runs/ and the name of the file
    revision: str | None = None
    trust_remote_code: bool = False

    @field_validator("training")
    @classmethod
    def _known_arguments(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        known = training_fields()
        for name in given:
            if name in OURS:
                raise ValueError(f"{name} is not set here: it follows from seed, out and the command")
            if name not in known:
                raise ValueError(f"no TrainingArguments field {name!r}{_nearest(name, known)}")
        meant = {name: as_meant(name, value) for name, value in given.items()}
        if problems := [problem for name, value in meant.items() if (problem := value_problem(name, value))]:
            raise ValueError("; ".join(problems))
        return meant

    @model_validator(mode="after")
    def _pairs_for_their_loss(self) -> "RunConfig":
        if self.pairs is None and self.attention.mode != "none" and "attention" in self.model_fields_set:
            raise ValueError("attention: there are no pairs; give `pairs: {file: …}` or `attention: {mode: none}`")
        return self

    @model_validator(mode="after")
    def _full_is_without_adapter(self) -> "RunConfig":
        if self.method == "lora":
            return self
        if self.lora.quantize != "none":
            raise ValueError(
                f"lora.quantize {self.lora.quantize} with method full: weights in 4 bit cannot be trained; allowed is "
                "method lora, or leave lora out"
            )
        if given := sorted(self.lora.model_fields_set):
            keys = ", ".join(f"lora.{name}" for name in given)
            raise ValueError(f"{keys} with method full, which has no adapter: leave lora out, or take method lora")
        if self.training.get("push_to_hub"):
            raise ValueError(
                "training.push_to_hub with method full: what is uploaded of a run is an adapter; allowed is method lora"
            )
        return self

    @model_validator(mode="after")
    def _streams_end(self) -> "RunConfig":
        if not self.data.streaming:
            return self
        steps = self.training.get("max_steps")
        if not isinstance(steps, int) or steps <= 0:
            raise ValueError("data.streaming: a stream has no length, so training.max_steps must say where to stop")
        if workers := self.training.get("dataloader_num_workers"):
            raise ValueError(
                f"data.streaming with training.dataloader_num_workers {workers}: allowed is 0, for each worker would "
                "read the whole stream"
            )
        order = self.training.get("train_sampling_strategy", "random")
        if order != "random":
            raise ValueError(
                f"data.streaming with training.train_sampling_strategy {order}: a stream is read in its order, drawn "
                "from data.shuffle_buffer; leave it out"
            )
        asked = self.training.get("accelerator_config")
        if isinstance(asked, Mapping) and asked.get("dispatch_batches"):
            raise ValueError(
                "data.streaming with accelerator_config.dispatch_batches: allowed is false, for batches are of many "
                "lengths"
            )
        return self

    @model_validator(mode="after")
    def _targets_share_a_text(self) -> "RunConfig":
        if problem := targets_problem(self.pairs, self.task, self.data):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _control_has_one_text(self) -> "RunConfig":
        apart = self.task == "word-in-context" and self.data.pair_encoding == "separate"
        if self.supervised and self.attention.mode == "random" and apart:
            raise ValueError("attention.mode random with word-in-context: allowed with data.pair_encoding joint")
        return self

    @model_validator(mode="after")
    def _best_step_can_be_kept(self) -> "RunConfig":
        if not dev_expected(self.data):
            if self.early_stopping is not None:
                raise ValueError(
                    "early_stopping: there is no dev part; give data.dev, data.dev_split or data.dev_share"
                )
            return self
        for problem in contradictions(self.training, self.early_stopping, steps=self.save_every):
            raise ValueError(problem)
        metric = self.training.get("metric_for_best_model")
        known = known_metrics(self.task, supervised=self.supervised)
        unknown = None if metric is None else metric_problem(metric, known)
        if unknown:
            raise ValueError(f"training.metric_for_best_model {unknown}")
        asked = self.training.get("greater_is_better")
        if asked is not None and asked != self.more_is_better:
            raise ValueError(
                f"training.greater_is_better {str(asked).lower()} would keep the worst step by "
                f"{full_name(str(metric or 'loss'))}: leave it out"
            )
        return self

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.out or "runs/finetune")

    @property
    def save_every(self) -> int | None:
        """Steps between two saves of a stream, which has no epochs: a tenth of the run; None for other runs."""
        return max(1, self.training["max_steps"] // 10) if self.data.streaming else None

    @property
    def more_is_better(self) -> bool:
        """Whether the step with the larger value of training.metric_for_best_model is the better one."""
        loss = self.attention.loss if self.supervised else ""
        return more_is_better(str(self.training.get("metric_for_best_model") or "loss"), loss=loss)

    @property
    def supervised(self) -> bool:
        """Whether there is a loss on attention."""
        return self.pairs is not None and self.attention.mode != "none"


def load_config(path: Path, *, name: str = "", overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a run's YAML file; `overrides` (dotted keys) win. ConfigError names every problem with its key."""
    name = name or str(path)
    wanted = "model, task, data …; `finetune schema` prints all keys"
    given = read_mapping(path, name=name, wanted=wanted, error=ConfigError)
    return config_of(with_overrides(given, overrides or {}), name=name)


def config_of(given: Mapping[str, Any], *, name: str = "configuration") -> RunConfig:
    """Check a configuration; ConfigError names every problem with its key."""
    try:
        return RunConfig.model_validate(given)
    except ValidationError as error:
        problems = list(dict.fromkeys(problems_of(error, RunConfig)))
        raise ConfigError(f"{name}: " + "; ".join(problems)) from error


def with_overrides(given: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which dotted keys (`lora.r`) have the values given."""
    for name, value in (*given.items(), *overrides.items()):
        _refuse_no_data(value, str(name))
    merged: dict[str, Any] = json.loads(json.dumps(given))
    for key, value in overrides.items():
        *path, last = key.split(".")
        place = merged
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part} holds a value, no keys")
        place[last] = value
    return merged


def _refuse_no_data(value: Any, key: str) -> None:
    """ConfigError for what YAML can say and no key of ours can hold."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, str | int | float | None):
                raise ConfigError(f"{key}: {name!r} is no key; allowed are words")
            _refuse_no_data(part, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_no_data(part, key)
    elif not isinstance(value, str | int | float | None):
        kind = {"date": "a date", "datetime": "a date", "bytes": "binary"}.get(type(value).__name__)
        told = kind or f"a {type(value).__name__}"
        raise ConfigError(f"{key}: {told} is given; allowed are words (in quotes), numbers, lists and mappings")


def schema() -> dict[str, Any]:
    """The JSON schema of a run's file."""
    found: dict[str, Any] = RunConfig.model_json_schema()
    found["title"] = "A run of finetune"
    training = found["properties"]["training"]
    training["propertyNames"] = {"enum": [name for name in training_fields() if name not in OURS]}
    for key, meaning in KEYS.items():
        _described(found, key)["description"] = meaning
    return found


def _described(found: dict[str, Any], key: str) -> dict[str, Any]:
    """The part of the schema that a dotted key names."""
    place: dict[str, Any] = found
    for number, part in enumerate(key.split(".")):
        if number:
            options = [place, *place.get("anyOf", ())]
            reference = next(one["$ref"] for one in options if "$ref" in one)
            place = found["$defs"][reference.rsplit("/", 1)[-1]]
        place = place["properties"][part]
    return place


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Each problem with its key; an unknown key with the nearest of the model."""
    for each in error.errors():
        place = [part for part in each["loc"] if not (isinstance(part, str) and "[" in part)]
        key = ".".join(map(str, place)) or "file"
        if each["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_nearest(str(place[-1]), _keys_at(place[:-1], model))}"
        else:
            yield f"{key}: {each['msg'].removeprefix('Value error, ')}"


def _keys_at(place: Sequence[Any], root: type[BaseModel]) -> tuple[str, ...]:
    model: Any = root
    for part in place:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, BaseModel)]
        if not kinds:
            return ()
        model = kinds[0]
    return tuple(model.model_fields)


def _nearest(name: str, valid: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{meant} (allowed: {', '.join(valid)})" if len(valid) < 40 else meant
