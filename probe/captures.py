"""What was captured: the records, their files (safetensors and JSON, no pickle), and a cache keyed by content."""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from probe.cases import Case
from probe.errors import BudgetError, ModelError, OutputError
from probe.given import is_a, number_set, path_of, size_in_bytes, truth, whole_number
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Route
from probe.spans import Span, TokenMap

_FORMAT = "cijing-capture-1"
_OPTIONAL = ("value_norms", "transformed_norms", "head_outputs")  # fields of a Capture that may be None


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A case with its tokens: what can be refused is refused here, before any forward pass."""

    case: Case
    tokens: TokenMap
    target: tuple[int, ...]  # token positions
    cues: tuple[tuple[int, ...], ...]  # token positions of each cue
    was_cut: bool = False  # the text was cut around the target to fit the model


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """What one model computed on one case.

    Attention layer k reads state k: states hold the embedding at 0 and the output of layer k at k + 1, the last one
    behind the model's final norm where it has one.
    """

    case: Case
    tokens: TokenMap
    target: tuple[int, ...]
    cues: tuple[tuple[int, ...], ...]
    layers: tuple[Layer, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    """Token positions of the rows' query axis: target and cues, or every token of a whole map."""
    rows: NDArray[np.float32]
    """[layer, head, query, key]"""
    states: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Stack -> [state layer, token, dim]; empty if not asked for."""
    value_norms: NDArray[np.float32] | None = None
    """Norm of each head's value vector, [layer, head, key]; None on the eager path."""
    transformed_norms: NDArray[np.float32] | None = None
    """Norm of each value vector through its head's part of W_O (Kobayashi et al. 2020), [layer, head, key]."""
    head_outputs: NDArray[np.float32] | None = None
    """What each head writes: its output through its part of W_O, [layer, head, query, model]."""
    final_norms: frozenset[str] | None = None
    """Stacks whose last state stands behind a final norm; None where that is not known."""
    path: Literal["tap", "eager"] = "tap"


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """What to capture, and within which bounds; what cannot be meant is refused with ModelError or BudgetError."""

    layers: Collection[int] | None = None
    """Any list or set of numbers from 0, kept as a frozenset; None takes all. So with heads."""
    heads: Collection[int] | None = None
    whole_maps: bool = False
    states: bool = True
    transformed_norms: bool = False
    head_outputs: bool = False
    batch_tokens: int = 512
    memory_budget: int | str | None = None
    """Bytes, or a text like "4GB"; None takes half of what the device has free."""
    cut_to_fit: bool = False
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        taken: dict[str, object] = {}
        for name in ("layers", "heads"):
            if (value := getattr(self, name)) is not None:
                taken[name] = number_set(value, name, error=ModelError)
        for name in ("whole_maps", "states", "transformed_norms", "head_outputs", "cut_to_fit"):
            taken[name] = truth(getattr(self, name), name, error=ModelError)
        taken["batch_tokens"] = whole_number(self.batch_tokens, "batch_tokens", least=1, error=BudgetError)
        if self.memory_budget is not None:
            taken["memory_budget"] = size_in_bytes(self.memory_budget, "memory_budget", error=BudgetError)
        if self.cache is not None:
            taken["cache"] = path_of(self.cache, "cache")
        for name, value in taken.items():
            object.__setattr__(self, name, value)


def save_capture(capture: Capture, path: str | Path) -> None:
    """Write one capture as a safetensors file, under a temporary name first; OutputError where it cannot be."""
    one_capture(capture)
    path = path_of(path, "path")
    tensors = {"rows": capture.rows, "offsets": capture.tokens.offsets}
    tensors |= {f"states.{stack}": states for stack, states in capture.states.items()}
    optional = {name: getattr(capture, name) for name in _OPTIONAL}
    tensors |= {name: array for name, array in optional.items() if array is not None}
    payload = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, {"cijing": _header(capture)})
    write_whole(path, payload, what="the capture")


def refuse_unwritable(path: Path, *, what: str) -> None:
    """OutputError for a place where no file can be written, before minutes are spent on what would go there."""
    try:
        if path.exists() and not path.is_file():
            raise OutputError(f"{path}: is {_kind_of(path.stat().st_mode)}, not a file; cannot write {what} there")
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise OutputError(f"{path}: cannot write {what} ({parent.name or parent} is no folder to write to)")
    except OSError as error:
        raise OutputError(f"{path}: cannot write {what} ({error.strerror or error})") from error


def write_whole(path: Path, payload: bytes, *, what: str) -> None:
    """Write a file under a temporary name first, so that it is there whole or not at all; OutputError.

    A link's target is written, not the link, and only files are replaced: a folder or a device is refused.
    """
    temporary = None
    try:
        place = Path(os.path.realpath(path)) if path.is_symlink() else path
        place.parent.mkdir(parents=True, exist_ok=True)
        before = place.stat().st_mode if place.exists() else None
        if before is not None and not stat.S_ISREG(before):
            raise OutputError(f"{path}: is {_kind_of(before)}, not a file; cannot write {what} there")
        temporary = place.parent / f".part-{secrets.token_hex(8)}"
        # The system takes the umask from these permissions; those of a file that stood there are kept.
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o666)) as stream:
            stream.write(payload)
        if before is not None:
            temporary.chmod(stat.S_IMODE(before))
        os.replace(temporary, place)
        temporary = None
    except OSError as error:
        raise OutputError(f"{path}: cannot write {what} ({error.strerror or error})") from error
    finally:  # also where Ctrl-C came while it was written
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def load_capture(path: str | Path) -> Capture:
    """Read one capture; OutputError where the file is damaged or of another format."""
    path = path_of(path, "path")
    if not path.is_file():
        kind = _kind_of(path.stat().st_mode) if path.exists() else "no file there"
        raise OutputError(f"{path}: {kind}; allowed is a file that save_capture wrote")
    try:
        with safe_open(str(path), framework="numpy") as stored:
            said = stored.metadata() or {}
            if "cijing" not in said:
                raise OutputError(f"{path}: {_no_capture(said)}; allowed is a file that save_capture wrote")
            header = json.loads(said["cijing"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
        if header.pop("format") != _FORMAT:
            raise OutputError(f"{path}: written by another version of this package")
        return _rebuilt(header, tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise OutputError(f"{path}: no capture, or a damaged one ({error})") from error


def one_capture(value: object) -> Capture:
    """The value where it is one capture; OutputError."""
    wanted = "one Capture, as capture_cases gives one for each case"
    return is_a(value, Capture, "capture", wanted=wanted, error=OutputError)


def _kind_of(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"


def _no_capture(said: Mapping[str, str]) -> str:
    """What a safetensors file is, by its metadata, if no capture."""
    if str(said.get("format")).startswith("cijing-export"):
        return "an export of save_tensors, which lacks what a capture needs"
    return "a safetensors file, for example a model's weights, but no capture"


def load_cached(
    loaded: LoadedModel, route: Route, item: Prepared, options: CaptureOptions, *, weights: str
) -> Capture | None:
    """The cached capture of this very text, weights, adapters in use and options, or None; also for a damaged file."""
    if options.cache is None:
        return None
    path = _cache_path(loaded, route, item, options, weights)
    if not path.exists():
        return None
    try:
        return load_capture(path)
    except OutputError:
        return None


def save_cached(
    loaded: LoadedModel, route: Route, item: Prepared, options: CaptureOptions, capture: Capture, *, weights: str
) -> None:
    """Store a capture under the hash of all that it depends on."""
    if options.cache is not None:
        save_capture(capture, _cache_path(loaded, route, item, options, weights))


def _cache_path(loaded: LoadedModel, route: Route, item: Prepared, options: CaptureOptions, weights: str) -> Path:
    assert options.cache is not None
    content = {
        "format": _FORMAT,
        "weights": weights,  # and adapters, as they are now: they can be switched and trained on after loading
        "dtype": str(loaded.dtype),
        "device": loaded.device.type,
        "path": route.path,
        "case": _case_fields(item.case),
        "layers": sorted(options.layers) if options.layers is not None else None,
        "heads": sorted(options.heads) if options.heads is not None else None,
        "whole": options.whole_maps,
        "states": options.states,
        "projected": [options.transformed_norms, options.head_outputs],
        "versions": [version(name) for name in ("torch", "transformers", "tokenizers")],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Path(options.cache) / digest[:2] / f"{digest}.safetensors"


def _header(capture: Capture) -> str:
    tokens = capture.tokens
    header = {
        "format": _FORMAT,
        "case": _case_fields(capture.case),
        "tokens": {
            "ids": tokens.ids,
            "labels": tokens.labels,
            "special": tokens.special.tolist(),
            "unknown": tokens.unknown.tolist(),
            "aligned": tokens.aligned,
        },
        "target": capture.target,
        "cues": capture.cues,
        "layers": [asdict(layer) for layer in capture.layers],
        "heads": capture.heads,
        "queries": capture.queries,
        "final_norms": None if capture.final_norms is None else sorted(capture.final_norms),
        "path": capture.path,
    }
    return json.dumps(header, ensure_ascii=False)


def _rebuilt(header: dict[str, Any], tensors: dict[str, Any]) -> Capture:
    case, tokens = header["case"], header["tokens"]
    spans = [Span(*pair) for pair in case.pop("spans")]
    rebuilt = Case(**{**case, "target": spans[0], "cues": tuple(spans[1:])})
    return Capture(
        case=rebuilt,
        tokens=TokenMap(
            text=rebuilt.text,
            ids=tuple(tokens["ids"]),
            offsets=tensors["offsets"],
            special=np.array(tokens["special"], dtype=bool),
            labels=tuple(tokens["labels"]),
            unknown=np.array(tokens["unknown"], dtype=bool),
            aligned=tokens["aligned"],
        ),
        target=tuple(header["target"]),
        cues=tuple(tuple(cue) for cue in header["cues"]),
        layers=tuple(Layer(**layer) for layer in header["layers"]),
        heads=tuple(header["heads"]),
        queries=tuple(header["queries"]),
        rows=tensors["rows"],
        states={name.removeprefix("states."): array for name, array in tensors.items() if name.startswith("states.")},
        **{name: tensors.get(name) for name in _OPTIONAL},
        final_norms=None if header.get("final_norms") is None else frozenset(header["final_norms"]),
        path=header["path"],
    )


def _case_fields(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "text": case.text,
        "spans": [[span.start, span.end] for span in (case.target, *case.cues)],
        "sense": case.sense,
        "group": case.group,
        "meta": dict(case.meta),
    }
