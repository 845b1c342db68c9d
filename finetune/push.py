"""A finished run uploaded to a hub: one commit of what `parcel` chose, and one line for whatever stands in the way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError, TrainingError
from finetune.parcel import Parcel, parcel_of, read_manifest
from finetune.whole import refuse_full
from probe import load_model

Progress = Callable[[str, int, int], None]  # stage, done, total
ANSWER_SECONDS = 5.0  # how long the hub may take to answer that it is there
# Fields of TrainingArguments that the run acts on by itself: Trainer's own upload would take checkpoints along.
HUB_FIELDS = ("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_always_push", "hub_revision")


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """Where a run goes."""

    repository: str
    private: bool | None = None  # None: as the account has it
    revision: str | None = None  # a branch, made where it is missing; None: main
    token: Any = None  # pydantic.SecretStr, so that no log shows it; None: HF_TOKEN or the stored one

    @property
    def secret(self) -> str | None:
        """The token that is used."""
        if self.token is not None:
            return str(self.token.get_secret_value())
        from huggingface_hub import get_token

        return get_token()


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """An upload that came to its end."""

    repository: str
    url: str
    commit: str
    files: Mapping[str, int]  # name -> bytes
    notes: tuple[str, ...]


def hub_settings(training: Mapping[str, Any]) -> HubSettings | None:
    """What `training` says of the hub; None without push_to_hub. ConfigError for what would upload checkpoints."""
    if not training.get("push_to_hub"):
        return None
    if not training.get("hub_model_id"):
        raise ConfigError("training.push_to_hub: say where to: training.hub_model_id, as organisation/name")
    strategy = str(getattr(training.get("hub_strategy", "end"), "value", training.get("hub_strategy", "end")))
    if strategy != "end":
        raise ConfigError(
            f"training.hub_strategy {strategy!r}: allowed is end; checkpoints hold the optimizer's state and stay here"
        )
    if training.get("hub_always_push"):
        raise ConfigError("training.hub_always_push: a run is uploaded once, at its end; leave it out")
    return HubSettings(
        repository=str(training["hub_model_id"]), private=training.get("hub_private_repo"),
        revision=training.get("hub_revision"), token=training.get("hub_token"),
    )  # fmt: skip


def check_settings(settings: HubSettings) -> None:
    """TrainingError for a malformed id, offline mode and a missing token: known before anything is computed."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    name = settings.repository
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise TrainingError(f"{name!r} is no hub id; allowed is organisation/name") from error
    if constants.HF_HUB_OFFLINE:
        raise TrainingError(f"{name}: HF_HUB_OFFLINE is set, so nothing can be uploaded")
    if not settings.secret:
        raise TrainingError(f"{name}: no token; set HF_TOKEN to one that may write, or log in with `hf auth login`")


def push_run(folder: Path, settings: HubSettings, *, base: str | None = None) -> Pushed:
    """Upload a finished run in one commit; TrainingError, one line, where anything is in the way."""
    check_settings(settings)
    refuse_full(folder, "push")
    if base is not None:
        _check_base(folder, base)
    parcel = parcel_of(folder, base=base)
    return _sent(parcel, settings)


def push_finished(folder: Path, settings: HubSettings, *, progress: Progress | None = None) -> Pushed:
    """Upload the run that has just ended; an error says that the run itself is whole, and how to go on."""
    if progress is not None:
        progress("uploading", 0, 1)
    try:
        return push_run(folder, settings)
    except TrainingError as error:
        again = f"python -m finetune push {folder} {settings.repository}"
        raise TrainingError(f"{error}; the run itself is whole, upload it later with `{again}`") from error


def lines_of(pushed: Pushed) -> tuple[str, ...]:
    """What was uploaded, in words."""
    files = ", ".join(f"{name} ({size:,} B)" for name, size in pushed.files.items())
    return (f"uploaded to {pushed.url}, commit {pushed.commit}: {files}", *pushed.notes)


def _check_base(folder: Path, base: str) -> None:
    """TrainingError where the base on the hub is not the model that the run was trained on."""
    manifest = read_manifest(folder)
    head = "lm" if manifest["config"].get("task") == "causal-lm" else "none"
    found = load_model(base, dtype="float32", device="cpu", head=head)  # type: ignore[arg-type]
    if found.origin.get("source") in ("folder", "gguf"):
        raise TrainingError(f"--base {base}: that is a local folder as well; allowed is a hub id")
    if found.fingerprint != manifest.get("fingerprint"):
        raise TrainingError(f"--base {base} is not the model that {folder} was trained on (its hash differs)")


def _sent(parcel: Parcel, settings: HubSettings) -> Pushed:
    from huggingface_hub import CommitOperationAdd, HfApi

    api, name = HfApi(token=settings.secret), settings.repository
    operations = [CommitOperationAdd(path, content) for path, content in parcel.files.items()]
    try:
        _knock(api, name)
        name = api.create_repo(name, private=settings.private, exist_ok=True).repo_id
        if settings.revision is not None:
            api.create_branch(name, branch=settings.revision, exist_ok=True)
        done = api.create_commit(
            name, operations, commit_message="Adapter made by python -m finetune", revision=settings.revision
        )
    except TrainingError:
        raise
    except Exception as error:  # which kinds "unreachable" has depends on the HTTP library of the installed hub client
        raise TrainingError(f"{name}: {_reason(error)}") from error
    sizes = {path: _size(content) for path, content in parcel.files.items()}
    return Pushed(repository=name, url=str(done.repo_url), commit=str(done.oid), files=sizes, notes=parcel.notes)


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _knock(api: Any, name: str) -> None:
    """Ask once and shortly: huggingface_hub's own calls would go on for minutes without a network."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.model_info(name, timeout=ANSWER_SECONDS)
    except HfHubHTTPError as error:
        if error.response.status_code >= 500:
            raise
    except Exception as error:
        raise TrainingError(f"{name}: no network ({_host()} does not answer): nothing was uploaded") from error


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return "the hub does not know this token; set HF_TOKEN to one that may write"
    if status == 403:
        return "this token may not write there; take one that may, or another id"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"the hub refused the upload: {lines[-1] if lines else type(error).__name__}"


def _host() -> str:
    from urllib.parse import urlsplit

    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT
