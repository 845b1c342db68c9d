"""TensorBoard, trackio, MLflow: looked for before a model is loaded, told all of a run, kept in its folder."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from finetune.errors import ConfigError

FOLDER = "tracking"
# What each is found by, installed by, and where the environment says that its log goes.
TRACKERS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "tensorboard": (("tensorboard", "tensorboardX"), "tensorboard", "TENSORBOARD_LOGGING_DIR"),
    "trackio": (("trackio",), "trackio", "TRACKIO_DIR"),
    "mlflow": (("mlflow",), "mlflow-skinny sqlalchemy alembic cryptography", "MLFLOW_TRACKING_URI"),
}


def trackers_of(training: Mapping[str, Any]) -> tuple[str, ...]:
    """The trackers that a configuration asks for; ConfigError for one that is unknown or not installed."""
    asked = training.get("report_to", "none")
    names = tuple([asked] if isinstance(asked, str) else asked or ())
    names = () if names == ("none",) else names
    for name in names:
        _check(name)
    return names


def _check(name: Any) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    if name in TRACKERS:
        modules, packages, _ = TRACKERS[name]
        if not any(importlib.util.find_spec(module) for module in modules):
            raise ConfigError(f"training.report_to {name}: not installed; pip install {packages}")
    elif name not in INTEGRATION_TO_CALLBACK and name != "all":
        known = ", ".join((*TRACKERS, *sorted(set(INTEGRATION_TO_CALLBACK) - set(TRACKERS))))
        raise ConfigError(f"training.report_to {name!r}: allowed is none, all, {known}")


@contextmanager
def logs_in(folder: Path, trackers: Sequence[str]) -> Iterator[None]:
    """Within the block trackers log below the run folder, unless the environment says otherwise.

    What they print goes to standard error: standard output is for what was asked. trackio settles its place once a
    process, so a second run in one process joins the first's.
    """
    if not trackers:
        yield
        return
    root = (folder / FOLDER).absolute()
    places = {
        "TENSORBOARD_LOGGING_DIR": str(root / "tensorboard"), "TRACKIO_DIR": str(root / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow' / 'mlflow.db'}",
    }  # fmt: skip
    ours = {name: place for name, place in places.items() if name not in os.environ}
    os.environ.update(ours)
    if "MLFLOW_TRACKING_URI" in ours and {"mlflow", "all"} & set(trackers):
        (root / "mlflow").mkdir(parents=True, exist_ok=True)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


class ConfigurationTold(TrainerCallback):  # type: ignore[misc]
    """Tells each tracker the run's whole configuration; Trainer tells its own arguments and the model's."""

    def __init__(self, told: Mapping[str, Any], trackers: list[Any]) -> None:
        self.told = {f"run.{name}": _plain(value) for name, value in told.items()}
        self.trackers = trackers

    def on_train_begin(self, args: Any, state: Any, control: Any, **settings: Any) -> None:
        """After the trackers' own callbacks, which stand before this one."""
        if not state.is_world_process_zero:
            return
        for tracker in self.trackers:
            tell = _TELL.get(type(tracker).__name__)
            if tell is not None:
                tell(tracker, self.told)


def let_go(trainer: Any) -> None:
    """Take the trackers away: what is evaluated after training would begin a run of its own there."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in _TELL:
            trainer.remove_callback(callback)


def _tensorboard(tracker: Any, told: Mapping[str, Any]) -> None:
    from torch.utils.tensorboard.summary import hparams

    for summary in hparams(dict(told), {"train/loss": 0.0, "eval/loss": 0.0}):  # type: ignore[no-untyped-call]
        tracker.tb_writer.file_writer.add_summary(summary)
    rows = "\n".join(f"| {name} | {value} |" for name, value in told.items())
    tracker.tb_writer.add_text("run", f"| key | value |\n|---|---|\n{rows}")


def _trackio(tracker: Any, told: Mapping[str, Any]) -> None:
    tracker._trackio.config.update(dict(told), allow_val_change=True)


def _mlflow(tracker: Any, told: Mapping[str, Any]) -> None:
    longest = int(tracker._MAX_PARAM_VAL_LENGTH)
    tracker._ml_flow.log_params({name: str(value)[:longest] for name, value in told.items()})


_TELL = {"TensorBoardCallback": _tensorboard, "TrackioCallback": _trackio, "MLflowCallback": _mlflow}


def _plain(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
