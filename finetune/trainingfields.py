"""The fields that a run's `training` may hold: how each is read, of which kind, from where to where."""

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr

STRATEGIES = ("eval_strategy", "save_strategy", "logging_strategy")
_KINDS: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a word", dict: "a mapping", list: "a list",
    types.NoneType: "null",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Range:
    """Numbers from low to high; `open` leaves out low itself, high never belongs to it."""

    low: float = 0.0
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open else value >= self.low
        return above and value < self.high

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.open else f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low}, below {self.high:g}"


_FROM_1, _ABOVE_0, _SHARE = _Range(low=1), _Range(open=True), _Range(high=1)
RANGES: Mapping[str, _Range] = {
    **dict.fromkeys(
        ("learning_rate", "max_grad_norm", "warmup_steps", "dataloader_num_workers", "eval_delay"),
        _Range(),
    ),
    **dict.fromkeys(
        (
            "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
            "save_total_limit", "eval_accumulation_steps", "dataloader_prefetch_factor", "torch_empty_cache_steps",
            "ddp_timeout", "ddp_bucket_cap_mb",
        ),
        _FROM_1,
    ),
    **dict.fromkeys(
        ("num_train_epochs", "adam_epsilon", "logging_steps", "eval_steps", "save_steps", "neftune_noise_alpha"),
        _ABOVE_0,
    ),
    **dict.fromkeys(("weight_decay", "adam_beta1", "adam_beta2", "label_smoothing_factor"), _SHARE),
}  # fmt: skip
_HALF = "the adapter that is written would be cast to half precision by the last evaluation"
SAMPLING = ("random", "sequential", "group_by_length")  # the orders of train_sampling_strategy that are done here
REFUSED: Mapping[str, str] = {
    "save_only_model": "a checkpoint without its optimizer cannot be gone on from to the same end",
    "ignore_data_skip": "a resumed run would see other texts than one that was not interrupted",
    "fp16_full_eval": _HALF,
    "bf16_full_eval": _HALF,
}


def as_meant(name: str, value: Any) -> Any:
    """`no` of YAML is a strategy's "no" and not False; the hub's token is shown in no message and no file."""
    if name in STRATEGIES and value is False:
        return "no"
    if name == "hub_token" and isinstance(value, str):
        return SecretStr(value)
    return _number(value) if name in known_numbers() else value


def training_fields() -> tuple[str, ...]:
    """The fields of transformers.TrainingArguments."""
    from transformers import TrainingArguments

    return tuple(field.name for field in fields(TrainingArguments) if field.init)


def known_numbers() -> frozenset[str]:
    """Those fields that hold a number with a fraction."""
    from transformers import TrainingArguments

    return frozenset(field.name for field in fields(TrainingArguments) if "float" in str(field.type))


def value_problem(name: str, value: Any) -> str | None:
    """Why this field of TrainingArguments cannot have this value, with what is allowed; or None."""
    if name in REFUSED and value is True:
        return f"{name} true: allowed is false, for {REFUSED[name]}"
    if name == "train_sampling_strategy" and value not in SAMPLING:
        return f"{name} {_shown(value)}: allowed is {', '.join(SAMPLING[:-1])} or {SAMPLING[-1]}"
    kinds = _kinds_of(name)
    if isinstance(value, SecretStr) or not kinds:
        return None
    if not any(_is_of(value, kind) for kind in kinds):
        return f"{name} {_shown(value)}: allowed is {' or '.join(_KINDS[kind] for kind in kinds)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return f"{name} {value}: allowed is a finite number"
    if name == "max_steps" and value != -1 and value < 1:
        return f"max_steps {value}: allowed is at least 1, or -1 for as many as num_train_epochs has"
    if name in RANGES and value not in RANGES[name]:
        return f"{name} {value}: allowed is {RANGES[name]}"
    return None


def _number(value: Any) -> Any:
    """YAML reads 1e-4, without a dot, as a word; Trainer would take that word to the optimizer."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@cache
def _kinds_of(name: str) -> tuple[type, ...]:
    """The kinds of value of a field; empty where its annotation says more than a kind."""
    from transformers import TrainingArguments

    annotation = next(field.type for field in fields(TrainingArguments) if field.name == name)
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    found = list(dict.fromkeys(kind for part in parts for kind in _plain(part)))
    return tuple(found) if all(kind in _KINDS for kind in found) else ()


def _plain(part: Any) -> Iterator[type]:
    """An enumeration is given by its word, list[str] is a list, Literal[False] a bool."""
    if get_origin(part) is Literal:
        yield from (type(value) for value in get_args(part))
    else:
        kind = get_origin(part) or part
        yield str if isinstance(kind, type) and issubclass(kind, str) else kind


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _shown(value: Any) -> str:
    told = str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
    return told if len(told) <= 60 else f"{told[:60]}…"
