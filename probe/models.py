"""load_model: any source of a text model with attention -> LoadedModel, ready to capture from."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probe import adapters, embedded
from probe.advice import collected_advice, without_bars
from probe.anatomy import (
    Kind,
    backbone_of,
    base_of,
    check_attention,
    check_tokenizer,
    check_weights,
    fingerprint,
    inside_wrappers,
    kind_of,
    max_positions_of,
    weights_stamp,
)
from probe.buildonce import Progress
from probe.errors import ModelError
from probe.sources import Access, Source, display_name, find_source, has_tokenizer

if TYPE_CHECKING:
    import torch

Head = Literal["none", "lm", "classes"]
DTYPES = ("float32", "bfloat16", "float16")
_Read = tuple[Any, tuple[str, ...], tuple[str, ...]]  # model, notes, names of weights that the files lack
UNTRAINED = "newly initialised, not trained: "  # how a note on weights that the files lack begins


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A model and its tokenizer, in eval mode, with what a report must say of them."""

    name: str
    model: Any  # PreTrainedModel or PeftModel, as loaded
    backbone: Any  # the headless PreTrainedModel inside, adapters injected: what captures run
    tokenizer: Any
    kind: Kind
    device: "torch.device"
    dtype: "torch.dtype"
    fingerprint: str  # SHA-256 of weights, configuration and tokenizer, as they were when it was loaded
    origin: Mapping[str, str]  # for the manifest; no absolute paths
    notes: tuple[str, ...]  # what a reader must know
    max_positions: int | None  # longest text in tokens, special ones included; None if unbounded
    stamp: str  # of the weights that the fingerprint was taken of
    untrained: tuple[str, ...] = ()  # weights of `model` that its files lack: drawn at random, or zero
    _renewed: dict[str, str] = field(default_factory=dict, repr=False)  # latest other stamp -> its fingerprint

    def fingerprint_now(self) -> str:
        """The fingerprint of the weights as they are: hashed anew where they changed since, as by training in place."""
        stamp = weights_stamp(self.model)
        if stamp == self.stamp:
            return self.fingerprint
        if stamp not in self._renewed:
            found = fingerprint(self.model, self.tokenizer)
            self._renewed.clear()
            self._renewed[stamp] = found
        return self._renewed[stamp]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a page and a manifest say of a model; holds no weights, so that the model can be let go."""

    name: str
    kind: Kind
    device: str
    dtype: str
    fingerprint: str
    origin: Mapping[str, str]
    notes: tuple[str, ...]


def facts_of(loaded: LoadedModel) -> ModelFacts:
    """What stays of a model when its weights are gone."""
    return ModelFacts(
        name=loaded.name,
        kind=loaded.kind,
        device=loaded.device.type,
        dtype=str(loaded.dtype).removeprefix("torch."),
        fingerprint=loaded.fingerprint_now(),
        origin=loaded.origin,
        notes=loaded.notes,
    )


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A builtin model, for the list of models."""

    name: str
    what: str
    size: int  # bytes on disk once built
    licence: str
    built: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Settings:
    """How a model is to be loaded, checked."""

    device: Any
    dtype: Any  # a torch dtype or "auto"
    head: Head
    code: bool

    def loading(self, source: Source) -> dict[str, Any]:
        """The arguments every from_pretrained call shares."""
        files = {"gguf_file": source.gguf} if source.gguf else {"use_safetensors": True}
        return {**files, "local_files_only": True, "trust_remote_code": self.code, "dtype": self.dtype}


def load_model(
    source: Any,
    *,
    tokenizer: Any = None,
    device: str = "auto",
    dtype: str = "auto",
    head: Head = "none",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """A model from a name, a path, or a live PreTrainedModel or PeftModel with its tokenizer.

    A live model may stand inside DDP or torch.compile: what is loaded is the model inside, uncompiled.

    device: "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps". dtype: "auto" (float32 on the CPU, the
    checkpoint's own on accelerators) or one of DTYPES. head "lm" loads the language-model head as well, "classes" the
    one over the classes of a text or a pair of texts, as cross-encoders have. Weights are read as safetensors or GGUF
    only; a repository's own Python code runs only with trust_remote_code. Raises ModelError, one line.
    """
    if not isinstance(source, str | Path):
        if (device, dtype, revision) != ("auto", "auto", None):
            raise ModelError("a live model stays as it is: move or cast it before, without device, dtype, revision")
        source = inside_wrappers(source)
        return model_from_parts(source, tokenizer, name=_live_name(source))
    if head not in get_args(Head):
        raise ModelError(f"head {head!r} is unknown; allowed are {', '.join(get_args(Head))}")
    where = _device(device)
    settings = _Settings(device=where, dtype=_dtype(dtype, where), head=head, code=trust_remote_code)
    access = Access(revision=revision, code=trust_remote_code, progress=progress)
    found = find_source(source, access)
    if revision and found.origin["source"] in ("folder", "gguf"):
        raise ModelError(f"{found.name} is local and has no revisions; leave revision {revision!r} out")
    with collected_advice() as advice, one_line(found.name):
        with without_bars(stubborn=found.gguf is not None):
            model, notes, untrained = _load(found, settings)
        if tokenizer is None:
            tokenizer = load_tokenizer(found, code=settings.code)
        elif isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(_tokenizer_source(tokenizer, access), code=settings.code)
        model.to(where)
    notes = (*found.notes, *notes, *advice)
    described = _described(model, tokenizer, name=found.name, origin=found.origin, notes=notes)
    return replace(described, untrained=untrained)


def check_source(source: str | Path, *, trust_remote_code: bool = False, progress: Progress | None = None) -> None:
    """Find a model without loading it: builds a builtin, fetches a hub model; ModelError where there is none."""
    find_source(source, Access(revision=None, code=trust_remote_code, progress=progress))


def model_from_parts(model: Any, tokenizer: Any, *, name: str) -> LoadedModel:
    """A live PreTrainedModel or PeftModel with its tokenizer; the model is put into eval mode."""
    model = inside_wrappers(model)
    if not hasattr(base_of(model), "base_model_prefix"):
        raise ModelError(
            f"{name} is a {type(model).__name__}, not a Hugging Face PreTrainedModel or PeftModel, alone or inside "
            "DistributedDataParallel or torch.compile"
        )
    if tokenizer is None:
        raise ModelError(f"{name}: a live model needs its tokenizer as well (tokenizer=...)")
    return _described(model, tokenizer, name=name, origin={"source": "live"}, notes=())


def known_models() -> tuple[KnownModel, ...]:
    """The builtin models."""
    return tuple(
        KnownModel(
            name=f"builtin:{builtin.name}",
            what=builtin.what,
            size=builtin.bytes_on_disk,
            licence=builtin.licence,
            built=embedded.is_built(builtin.name),
        )
        for builtin in map(embedded.find, embedded.names())
    )


def _described(
    model: Any, tokenizer: Any, *, name: str, origin: Mapping[str, str], notes: tuple[str, ...]
) -> LoadedModel:
    if base_of(model) is not model:
        for config in model.peft_config.values():
            adapters.check_method(str(config.peft_type), name)
    check_weights(model, name)
    backbone = backbone_of(model.eval())
    check_attention(backbone, name)
    notes = (*notes, *check_tokenizer(tokenizer, backbone, name))
    return LoadedModel(
        name=name,
        model=model,
        backbone=backbone,
        tokenizer=tokenizer,
        kind=kind_of(backbone),
        device=next(backbone.parameters()).device,
        dtype=backbone.dtype,
        fingerprint=fingerprint(model, tokenizer),
        origin={**origin, "architecture": type(base_of(model)).__name__},
        notes=tuple(dict.fromkeys(notes)),
        max_positions=max_positions_of(backbone),
        stamp=weights_stamp(model),
    )


def _live_name(model: Any) -> str:
    given = str(getattr(getattr(base_of(model), "config", None), "_name_or_path", None) or "")
    return display_name(Path(given)) if given else type(model).__name__


# Device and dtype


def _device(wanted: str) -> Any:
    import torch

    mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ModelError(f"device {wanted!r} is unknown; allowed are auto, cpu, cuda, cuda:N, mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {wanted!r}: torch {torch.__version__} finds no CUDA here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {wanted!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if device.type == "mps" and not mps:
        raise ModelError(f"device {wanted!r}: torch {torch.__version__} finds no MPS here; use auto or cpu")
    return device


def _dtype(wanted: str, device: Any) -> Any:
    import torch

    if wanted == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if wanted not in DTYPES:
        raise ModelError(f"dtype {wanted!r} is unknown; allowed are auto, {', '.join(DTYPES)}")
    return getattr(torch, wanted)


# Loading


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """What the libraries raise while they load, as one line that names the model."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}") from error
    except SafetensorError as error:
        raise ModelError(f"{name}: its weights cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0] if lines else ''} ({type(error).__name__})".strip()


def _load(source: Source, settings: _Settings) -> _Read:
    """The model on the CPU, notes on what was newly initialised or left over, and the names of the former."""
    from transformers import AutoConfig

    check_code(source, code=settings.code)
    arguments = settings.loading(source)
    arguments = {key: value for key, value in arguments.items() if key not in ("use_safetensors", "dtype")}
    config = AutoConfig.from_pretrained(source.folder, **arguments)
    if source.gguf and settings.head == "classes":
        raise ModelError(f"{source.name}: a GGUF file has no head over classes; allowed are safetensors")
    if source.adapter is None and source.gguf:
        # transformers knows a GGUF file's tensors by their names in the whole model only
        model, notes, untrained = _load_class(source, settings, head_class(config, source.name), config)
        return (model, notes, untrained) if settings.head == "lm" else (backbone_of(model), notes, ())
    if source.adapter is None:
        return _load_class(source, settings, auto_class(config, source.name, head=settings.head), config)
    labels = adapters.label_count(source.adapter)
    if labels is not None:
        config.num_labels = labels
    kind, inside = _class_for(source.adapter, config, settings, source.name)
    model, notes, untrained = _load_class(source, settings, kind, config)
    if inside:  # the adapter was trained on the headless model: it goes into the one inside ours
        adapters.attach(backbone_of(model), source.adapter, source.name)
        return model, notes, untrained
    return adapters.attach(model, source.adapter, source.name), notes, ()  # the adapter may bring them, under its names


def check_code(source: Source, *, code: bool) -> None:
    """Says what a model with Python code of its own needs, before the library would ask or guess."""
    from transformers import CONFIG_MAPPING

    if code or source.gguf:
        return
    config = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
    if config.get("auto_map") and config.get("model_type") not in CONFIG_MAPPING:
        files = sorted({f"{str(entry).rpartition('--')[2].split('.')[0]}.py" for entry in config["auto_map"].values()})
        raise ModelError(
            f"{source.name} needs its own Python code ({', '.join(files)}): read it, and if you trust it, "
            "allow it with trust_remote_code"
        )


def _load_class(source: Source, settings: _Settings, kind: str, config: Any) -> _Read:
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        # New weights, if there are any, are the same every time; manual_seed would seed accelerators as well.
        torch.default_generator.manual_seed(0)
        model, info = getattr(transformers, kind).from_pretrained(
            source.folder, config=config, output_loading_info=True, **settings.loading(source)
        )
    notes = _judge_loading(model, info, source, head=settings.head)
    there = dict(model.named_parameters())  # a pooler was taken off
    return model, notes, tuple(name for name in sorted(info["missing_keys"]) if name in there)


def _judge_loading(model: Any, info: Mapping[str, Any], source: Source, *, head: Head) -> tuple[str, ...]:
    """Notes on weights that were newly initialised or left over; ModelError if the backbone lacks any."""
    missing = sorted(info["missing_keys"])
    if missing and head != "classes" and all("pooler." in key for key in missing):
        return _without_pooler(model, missing)
    backbone = backbone_of(model)
    inside = {id(tensor) for tensor in backbone.state_dict(keep_vars=True).values()}
    tensors = model.state_dict(keep_vars=True)
    lacking = [key for key in missing if id(tensors.get(key)) in inside and "pooler" not in key]
    if lacking:
        raise ModelError(
            f"{source.name}: {len(lacking)} weights are missing from its files, first {lacking[0]}; "
            "config.json and weights do not belong together"
        )
    notes = []
    if missing:
        notes.append(
            f"{UNTRAINED}{len(missing)} weights ({', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}); whatever comes out of them means nothing"
        )
    stacks = {name for name, _ in backbone.named_children()}
    unused = [key for key in sorted(info["unexpected_keys"]) if stacks & set(key.split(".")[:2])]
    if unused:
        notes.append(f"{len(unused)} weights in the files are not used by the model, first {unused[0]}")
    return tuple(notes)


def _without_pooler(model: Any, missing: list[str]) -> tuple[str, ...]:
    """Takes a pooler that has no trained weights off, where the model allows it: no random number stays inside."""
    import inspect

    backbone = backbone_of(model)
    if "add_pooling_layer" in inspect.signature(type(backbone).__init__).parameters:
        backbone.pooler = None
        return ()
    return (f"{UNTRAINED}the pooler ({len(missing)} weights); it is not used here",)


def auto_class(config: Any, name: str, *, head: Head) -> str:
    """The Auto class that has this head."""
    if head == "lm":
        return head_class(config, name)
    return "AutoModelForSequenceClassification" if head == "classes" else "AutoModel"


def head_class(config: Any, name: str) -> str:
    """The Auto class that has the language-model head of this architecture."""
    import transformers

    named = " ".join(config.architectures or ())
    masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    if config.is_encoder_decoder and type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "AutoModelForSeq2SeqLM"
    if masked and "CausalLM" not in named and not getattr(config, "is_decoder", False):
        return "AutoModelForMaskedLM"
    code = getattr(config, "auto_map", None) or {}
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in code:
        return "AutoModelForCausalLM"
    raise ModelError(f"{name}: the family {config.model_type} has no language-model head; leave head=lm out")


def _class_for(adapter: adapters.Adapter, config: Any, settings: _Settings, name: str) -> tuple[str, bool]:
    """The Auto class whose modules the adapter's tensors name, and whether they name those of its backbone."""
    import torch
    import transformers

    wanted = [adapters.TASK_CLASSES.get(adapter.task or "", "AutoModel"), "AutoModel"]
    try:
        head = head_class(config, name)
        wanted = [head, *wanted] if settings.head == "lm" else [*wanted, head]
    except ModelError:
        if settings.head == "lm":
            raise
    for kind in dict.fromkeys([*wanted, *adapters.TASK_CLASSES.values()]):
        try:
            with torch.device("meta"):
                shell = getattr(transformers, kind).from_config(config, trust_remote_code=settings.code)
        except ValueError:  # the family has no such head
            continue
        if adapters.fits(adapter, shell):
            return kind, False
        if kind != "AutoModel" and adapters.fits(adapter, backbone_of(shell)):
            return kind, True
    first = next(iter(adapter.shapes), "none")
    raise ModelError(f"{name}: its tensors ({first}, ...) name no modules of its base {adapter.base}")


def _tokenizer_source(given: str | Path, access: Access) -> Source:
    """A folder that may hold a tokenizer and nothing else, or any source of a model."""
    folder = Path(given).expanduser()
    if folder.is_dir() and has_tokenizer(folder):
        return Source(name=display_name(folder), folder=folder, origin={})
    return find_source(given, access)


def load_tokenizer(source: Source, *, code: bool) -> Any:
    """The tokenizer beside a model's files; ModelError where there is none."""
    from transformers import AutoTokenizer

    folder = source.tokenizer or source.folder
    gguf = {"gguf_file": source.gguf} if source.gguf and source.tokenizer is None else {}
    if not gguf and not has_tokenizer(folder):
        raise ModelError(f"{source.name} has no tokenizer files; give a tokenizer (tokenizer=...)")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=code, **gguf)
