"""What most commands begin with: cases and models, with what is to be known of them said on standard error."""

from typing import TYPE_CHECKING, Literal

from probe.errors import CijingError
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
