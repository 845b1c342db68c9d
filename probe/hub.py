"""Models on a hub: asked for once, quickly, and copied into the Hugging Face cache as safetensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.buildonce import Progress
from probe.errors import ModelError

ANSWER_SECONDS = 5.0  # how long the hub may take to answer; huggingface_hub itself would go on for half a minute
FILES = (
    "*.json",
    "*.txt",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "adapter_model.safetensors",
)
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")


@dataclass(frozen=True, kw_only=True)
class HubCopy:
    """A snapshot of a hub repository on this machine, and what to write down about it."""

    folder: Path
    origin: Mapping[str, str]


def hub_copy(
    repository: str,
    *,
    revision: str | None = None,
    code: bool = False,
    progress: Progress | None = None,
    weights: bool = True,
) -> HubCopy:
    """The repository's configuration, tokenizer and safetensors, downloaded or from the cache.

    Without a network (or with HF_HUB_OFFLINE) what the cache holds is used. Python files come only with `code`, and
    without `weights` those of the model stay where they are.
    """
    from huggingface_hub import constants

    facts = None if constants.HF_HUB_OFFLINE else _ask(repository, revision)
    if facts is not None:
        if weights:
            _check_weights(repository, [file.rfilename for file in facts.siblings or ()])
        if progress:
            progress(f"{repository}: fetching what is not yet in the cache")
    patterns = [*FILES, *(WEIGHTS if weights else ()), *(["*.py"] if code else [])]
    folder = _snapshot(repository, revision, patterns, online=facts is not None)
    licence = getattr(facts.card_data, "license", None) if facts is not None and facts.card_data else None
    origin = {"source": "hub", "id": repository, "revision": folder.name}
    return HubCopy(folder=folder, origin={**origin, "licence": str(licence)} if licence else origin)


def _ask(repository: str, revision: str | None) -> Any:
    """What the hub knows of a repository, or None if it cannot be reached."""
    from huggingface_hub import HfApi, errors

    try:
        return HfApi().model_info(repository, revision=revision, timeout=ANSWER_SECONDS)
    except errors.GatedRepoError as error:
        raise ModelError(f"{repository} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repository} has no revision {revision!r} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(f"no model {repository!r} on the hub (if it is private, set HF_TOKEN)") from error
    except errors.HFValidationError as error:
        raise ModelError(f"{repository!r} is no hub id; hub ids look like organisation/model") from error
    except Exception:  # which kinds "unreachable" has depends on the HTTP library of the installed hub client
        return None


def _snapshot(repository: str, revision: str | None, patterns: list[str], *, online: bool) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],  # other formats and sizes of the same model lie in subfolders
            local_files_only=not online,
            etag_timeout=ANSWER_SECONDS,
        )
    except errors.HFValidationError as error:
        raise ModelError(f"{repository!r} is no hub id; hub ids look like organisation/model") from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"no network ({_host()} does not answer)"
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{repository}{at}: {why} and it is not in the cache; builtin:e5-small and local folders need no network"
        ) from error
    except Exception as error:
        raise ModelError(f"{repository}: the download failed: {str(error).splitlines()[0]}") from error
    return Path(folder)


def _host() -> str:
    from urllib.parse import urlsplit

    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT


def _check_weights(repository: str, files: list[str]) -> None:
    """Refuses before the download what could not be used after it."""
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        pickled = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        gguf = [name for name in files if name.endswith(".gguf")]
        hint = f"; it has pickled weights ({pickled[0]}), which can run code when read" if pickled else ""
        hint = f"; download {gguf[0]} and give its path" if gguf else hint
        raise ModelError(f"{repository} has no safetensors weights{hint}")
