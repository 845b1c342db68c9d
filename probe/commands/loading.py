"""What most commands begin with: cases and models, with what is to be known of them said on standard error."""

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from probe.errors import CijingError, ModelError, OutputError
from probe.launch import say

if TYPE_CHECKING:
    from probe.cases import CaseSet
    from probe.models import LoadedModel

DEFAULT_MODEL = "builtin:e5-small"
DEFAULT_DECODER = "builtin:gemma3-270m"


def cases_from(source: str) -> "CaseSet":
    """The cases of a shipped set or a file; what was noted while they were read is said."""
    from probe.cases import load_cases

    case_set = load_cases(source)
    for note in case_set.notes:
        say(f"note: {note}")
    return case_set


def load(
    model: str, *, device: str, dtype: str, revision: str | None, code: bool, head: Literal["none", "lm"] = "none"
) -> "LoadedModel":
    """A model by its name; what was noted while it was loaded is said."""
    from probe.models import load_model

    loaded = load_model(
        model, device=device, dtype=dtype, head=head, revision=revision, trust_remote_code=code, progress=say
    )
    for note in loaded.notes:
        say(f"note: {note}")
    return loaded


def check_models(models: list[str], *, revision: str | None, code: bool) -> None:
    """Find every model before the first is looked at: a wrong name must not cost minutes."""
    from probe.models import check_source

    if revision is not None:
        raise CijingError("--revision belongs to one model; give one --model with it")
    for name in models:
        check_source(name, trust_remote_code=code, progress=say)


def load_encoder(model: str, *, device: str, dtype: str) -> "LoadedModel":
    """The model of --model where it must read in both directions; ModelError."""
    loaded = load(model, device=device, dtype=dtype, revision=None, code=False)
    if loaded.kind != "encoder":
        raise ModelError(f"--model {model} is of kind {loaded.kind}; allowed is kind encoder")
    return loaded


def load_decoder(model: str, *, device: str, dtype: str) -> "LoadedModel":
    """The model of --decoder with its language-model head; ModelError where it is not causal, or the head random."""
    from probe.models import UNTRAINED

    allowed = "allowed is kind decoder with a trained language-model head"
    loaded = load(model, device=device, dtype=dtype, revision=None, code=False, head="lm")
    if loaded.kind != "decoder":
        raise ModelError(f"--decoder {model} is of kind {loaded.kind}; {allowed}")
    if any(note.startswith(UNTRAINED) for note in loaded.notes):
        raise ModelError(f"--decoder {model} is of kind decoder, but its files hold no trained head; {allowed}")
    return loaded


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options as the words of a command line: None and False are left out, a flag is True, a list comes again."""
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        if value is True:
            words.append(f"--{name}")
            continue
        several: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
        words += [word for one in several for word in (f"--{name}", str(one))]
    return words


def command_line(command: str, options: Mapping[str, object], *, text: str | None = None) -> str:
    """The command line that gives the same again, quoted for a shell."""
    words = ["python", "-m", "probe", command, *option_words(options)]
    return shlex.join(words if text is None else [*words, "--", text])


def refuse_overlap(folder: Path, file: Path) -> None:
    """OutputError where the file would stand in the run folder, which holds only what the run writes, or be it."""
    one, other = (Path(os.path.realpath(path.expanduser())) for path in (folder, file))
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise OutputError(f"--markdown {file} lies in the run folder {folder}, or is it: name a file outside of --out")
