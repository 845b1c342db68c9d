"""A model without its weights: configuration, tokenizer, and its modules on torch's meta device."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.advice import collected_advice
from probe.anatomy import Kind, backbone_of, check_attention, check_tokenizer, kind_of, max_positions_of
from probe.buildonce import Progress
from probe.models import Head, auto_class, check_code, load_tokenizer, one_line
from probe.sources import Access, Source, find_source


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """What a model is, as its configuration says; of an adapter, its base."""

    name: str
    config: Any
    tokenizer: Any
    kind: Kind
    shell: Any  # the model on the meta device: names and shapes of all modules, no numbers
    origin: Mapping[str, str]  # as of a LoadedModel
    notes: tuple[str, ...]
    max_positions: int | None  # longest text in tokens, special ones included; None if unbounded

    @property
    def parameters(self) -> int:
        """How many numbers the model has, shared ones counted once."""
        return sum(weight.numel() for weight in self.shell.parameters())


def model_outline(
    source: str | Path,
    *,
    head: Head = "none",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Outline:
    """Describe a model by name or path; its weights are not read, not fetched, and need not be there.

    A builtin model that was never used is built first, and a GGUF file's metadata lie in the file itself. Raises
    ModelError, one line, as load_model does for what can be seen without weights.
    """
    access = Access(revision=revision, code=trust_remote_code, progress=progress, weights=False)
    found = find_source(source, access)
    with collected_advice() as advice, one_line(found.name):
        check_code(found, code=trust_remote_code)
        tokenizer = load_tokenizer(found, code=trust_remote_code)
        shell = _shell(found, head=head, code=trust_remote_code)
        backbone = backbone_of(shell)
        check_attention(backbone, found.name)
        said = check_tokenizer(tokenizer, backbone, found.name)
    return Outline(
        name=found.name,
        config=backbone.config,
        tokenizer=tokenizer,
        kind=kind_of(backbone),
        shell=shell,
        origin=found.origin,
        notes=tuple(dict.fromkeys((*found.notes, *advice, *said))),
        max_positions=max_positions_of(backbone),
    )


def _shell(source: Source, *, head: Head, code: bool) -> Any:
    import torch
    import transformers

    files = {"gguf_file": source.gguf} if source.gguf else {}
    config = transformers.AutoConfig.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=code, **files
    )
    kind = auto_class(config, source.name, head=head)
    with torch.device("meta"):
        return getattr(transformers, kind).from_config(config, trust_remote_code=code).eval()
