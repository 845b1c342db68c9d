"""A run's configuration from a file, from options, or from both."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe import CijingError

if TYPE_CHECKING:
    from finetune.config import RunConfig

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="YAML file, or a shipped one: apple_senses, biochem_lm, …")
]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help="builtin:NAME, hub id or folder.")]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="TASK", help="causal-lm, masked-lm, sense, word-in-context or classification."),
]
Data = Annotated[
    list[str] | None, typer.Option("--data", metavar="SOURCE", help="Texts to train on; may be given again.")
]
Pairs = Annotated[str | None, typer.Option("--pairs", metavar="FILE", help="A pairs file, or biochem or chips.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Run folder. [default: runs/CONFIG]")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the file, as in lora.r=16 or training.max_steps=100."),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.")]


def configured(
    file: Path | None,
    *,
    model: str | None,
    task: str | None,
    data: list[str] | None,
    pairs: str | None,
    out: str | None,
    settings: list[str] | None,
) -> "RunConfig":
    """The run that file and options describe; options win. CijingError names what is missing or wrong."""
    from finetune.config import config_of, load_config

    overrides = overrides_of(model=model, task=task, data=data, pairs=pairs, out=out, settings=settings)
    if file is not None:
        path = shipped_config(file)
        run = load_config(path, name=str(file), overrides=overrides)
        return run if run.out else run.model_copy(update={"out": f"runs/{path.stem}"})
    if model is None or not data:
        raise CijingError("give a configuration file, or --model and --data (and --task, causal-lm by default)")
    from finetune.config import with_overrides

    return config_of(with_overrides({"task": "causal-lm"}, overrides), name="options")


def overrides_of(
    *,
    model: str | None,
    task: str | None,
    data: list[str] | None,
    pairs: str | None,
    out: str | None,
    settings: list[str] | None,
) -> dict[str, Any]:
    """What the options say of a file's dotted keys."""
    given = (("model", model), ("task", task), ("pairs.file", pairs), ("out", out), ("data.train", data or None))
    overrides = {key: value for key, value in given if value is not None}
    return {**overrides, **dict(_setting(text) for text in settings or [])}


def shipped_config(file: Path, *, kind: str = "") -> Path:
    """The file itself, or the shipped one of that name; CijingError lists them. kind: compare for comparisons."""
    from importlib.resources import files

    folder = files("finetune") / "configs" / kind
    names = sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml"))
    if file.exists():
        return file
    if str(file) in names:
        return Path(str(folder / f"{file}.yaml"))
    raise CijingError(f"{file}: no such file; shipped are {', '.join(names)}")


def _setting(text: str) -> tuple[str, Any]:
    import yaml

    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise CijingError(f"--set {text!r}: allowed is KEY=VALUE, as in lora.r=16")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise CijingError(f"--set {text!r}: the value is no YAML") from error
