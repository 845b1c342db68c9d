"""The settings that a sweep tries: axes of values, every combination once, in an order drawn by the seed."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from finetune.begun import plain_of
from finetune.config import RunConfig, config_of, with_overrides
from finetune.errors import ConfigError
from finetune.push import HUB_FIELDS

LAMBDA, RANK = "lambda", "lora.r"
PLAIN = "plain"
MOST = 1000  # settings
# Shares and not numbers: what a number does depends on the loss it weighs (SUPERVISION.md, "Losses to offer").
DEFAULT_LAMBDAS = (PLAIN, "auto:0.03", "auto:0.1", "auto:0.3")
DEFAULT_RANKS = (4, 8, 16)

_KEYS = {LAMBDA: ("attention.mode", "attention.weight", "attention.share")}  # what an axis of another name sets

_OTHER_DATA = "its settings would not be measured on the same dev part of the same model"
_OTHER_METRIC = "it changes what is measured on dev"
_OTHER_ADAPTER = "it casts the adapter that is kept"
_WHOLE_PROCESS = "it changes the whole process, the trials after it too"
NOT_SWEPT: Mapping[str, str] = {
    **dict.fromkeys(("model", "revision", "trust_remote_code", "task", "data", "seed"), _OTHER_DATA),
    "method": "each method has keys of its own: sweep one after the other",
    "out": "each trial has a folder of its own",
    **dict.fromkeys((f"training.{name}" for name in (*HUB_FIELDS, "hub_private_repo")), "no trial is uploaded"),
    **dict.fromkeys(
        (f"training.{name}" for name in ("metric_for_best_model", "greater_is_better", "per_device_eval_batch_size")),
        _OTHER_METRIC,
    ),
    **dict.fromkeys(("training.fp16_full_eval", "training.bf16_full_eval"), _OTHER_ADAPTER),
    **dict.fromkeys(
        (f"training.{name}" for name in ("tf32", "full_determinism", "torch_compile", "deepspeed", "fsdp")),
        _WHOLE_PROCESS,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of the grid."""

    values: Mapping[str, Any]  # axis -> value, as it was asked for
    overrides: Mapping[str, Any]  # dotted keys of the run's file

    @property
    def key(self) -> str:
        """What makes it another setting than the others: 0 and plain are one."""
        return json.dumps(self.overrides, sort_keys=True, ensure_ascii=False)

    @property
    def name(self) -> str:
        """lambda=auto:0.1, lora.r=8."""
        return ", ".join(f"{axis}={_shown(value)}" for axis, value in self.values.items())


def default_axes(base: RunConfig) -> dict[str, list[Any]]:
    """λ and rank; without pairs the rank alone, without an adapter λ alone."""
    axes: dict[str, list[Any]] = {LAMBDA: list(DEFAULT_LAMBDAS)} if base.pairs is not None else {}
    return axes if base.method == "full" else {**axes, RANK: list(DEFAULT_RANKS)}


def axes_of(lambdas: Sequence[str], ranks: Sequence[int], others: Sequence[str]) -> dict[str, list[Any]]:
    """The axes that options name: weights of the attention loss, ranks, and KEY=VALUE,VALUE of any other key."""
    axes: dict[str, list[Any]] = {LAMBDA: list(lambdas)} if lambdas else {}
    axes |= {RANK: list(ranks)} if ranks else {}
    for text in others:
        key, values = _axis(text)
        if key in axes:
            raise ConfigError(f"--grid {text!r}: {key} is swept twice")
        axes[key] = values
    return axes


def settings_of(base: RunConfig, axes: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination once, each checked as a run's file is, in an order drawn by the run's seed.

    The order is drawn so that a budget that ends the sweep early does not leave out the last values of one axis.
    """
    _refuse_unfit(axes)
    count = 1
    for values in axes.values():
        count *= len(values)
    if not axes or not count:
        raise ConfigError("the grid is empty: give --lambda, --rank or --grid KEY=VALUE,VALUE")
    if count > MOST:
        raise ConfigError(f"the grid has {count} settings; allowed are at most {MOST}")
    found = list({setting.key: setting for setting in reversed(list(_combinations(base, axes)))}.values())[::-1]
    for setting in found:
        run_of(base, setting)
    random.Random(base.seed).shuffle(found)
    return found


def run_of(base: RunConfig, setting: Setting, *, out: str | None = None) -> RunConfig:
    """The base with the setting's keys; ConfigError names those that are wrong. With `out`, a trial: never uploaded."""
    plain, more = plain_of(base), {}
    if out is not None:
        more = {"out": out}
        plain["training"] = {name: value for name, value in plain["training"].items() if name not in HUB_FIELDS}
    return config_of(with_overrides(plain, {**setting.overrides, **more}), name=f"setting {setting.name}")


def _refuse_unfit(axes: Mapping[str, Sequence[Any]]) -> None:
    """ConfigError for an axis that is not swept, one that sets keys of another, and a mapping as a value."""
    for axis, values in axes.items():
        for name, reason in NOT_SWEPT.items():
            if _within(axis, name):
                raise ConfigError(f"--grid {axis}: {axis} is not swept: {reason}")
        for other in axes:
            clash = axis != other and next((key for key in _KEYS.get(other, (other,)) if _within(key, axis)), None)
            if clash:
                raise ConfigError(f"--grid {axis}: {clash} is swept twice, by {axis} and by {other}")
        if any(isinstance(value, Mapping) for value in values):
            raise ConfigError(f"--grid {axis}: a mapping is no value; allowed is an axis a key, as in {axis}.KEY=1,2")


def _within(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.")


def _combinations(base: RunConfig, axes: Mapping[str, Sequence[Any]]) -> Iterator[Setting]:
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        overrides: dict[str, Any] = {}
        for axis, value in chosen.items():
            overrides |= _weight(str(value), base) if axis == LAMBDA else {axis: value}
        if overrides.get("attention.mode", base.attention.mode) == "none":
            # Without the loss, its other keys make no difference: they would be the same run again.
            chosen = {axis: value for axis, value in chosen.items() if not _of_the_loss(axis)}
            overrides = {key: value for key, value in overrides.items() if not _of_the_loss(key)}
        yield Setting(values=chosen, overrides=overrides)


def _of_the_loss(key: str) -> bool:
    return key.split(".")[0] in ("attention", "pairs") and key != "attention.mode"


def _weight(text: str, base: RunConfig) -> dict[str, Any]:
    """The keys for one λ: plain (or 0), auto, auto:SHARE or a number."""
    if text in (PLAIN, "none") or _number(text) == 0:
        return {"attention.mode": "none"}
    # A file whose loss is switched off says nothing of which pairs are meant: those that stand there.
    mode = "pairs" if base.attention.mode == "none" else base.attention.mode
    word, colon, share = text.partition(":")
    if word == "auto" and (not colon or (_number(share) or 0) > 0):
        asked = {"attention.share": _number(share)} if colon else {}
        return {"attention.mode": mode, "attention.weight": "auto", **asked}
    if (_number(text) or 0) > 0:
        return {"attention.mode": mode, "attention.weight": _number(text)}
    raise ConfigError(
        f"--lambda {text!r}: allowed is a number of at least 0, plain (no loss on attention), auto, or auto:SHARE"
    )


def _axis(text: str) -> tuple[str, list[Any]]:
    """`lora.alpha=8,16` as its key and values, each read as YAML."""
    key, sign, given = (part.strip() for part in text.partition("="))
    if not sign or not key:
        raise ConfigError(f"--grid {text!r}: allowed is KEY=VALUE,VALUE, as in training.learning_rate=1e-4,5e-4")
    try:
        values = yaml.safe_load(f"[{given}]")
    except yaml.YAMLError as error:
        raise ConfigError(f"--grid {text!r}: the values are no YAML") from error
    if not values:
        raise ConfigError(f"--grid {text!r}: {key} has no value to try")
    return key, [_read(value) for value in values]


def _read(value: Any) -> Any:
    """YAML reads 1e-4 as a word."""
    number = _number(value) if isinstance(value, str) else None
    return value if number is None else number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
