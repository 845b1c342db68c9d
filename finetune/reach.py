"""What the layers of a model can see, from its configuration alone: how many, whether causal, how far back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune.errors import ConfigError
from finetune.pairs import Reach

_WINDOWED = ("sliding_attention", "chunked_attention", "local_attention")


@dataclass(frozen=True, kw_only=True)
class Depths:
    """The attention layers of a model without its weights."""

    layers: int
    heads: int
    causal: bool
    windows: Mapping[int, int]  # layer -> tokens that it looks back; layers that are not there see everything
    longest: int | None  # positions that the model was made for

    def reach(self, layers: Iterable[int], *, cut_at: int | None) -> Reach:
        """What a query can see in the widest of these layers, in texts that are cut at `cut_at` tokens."""
        windows = [self.windows.get(layer) for layer in layers]
        narrow = [window for window in windows if window is not None]
        widest = None if len(narrow) < len(windows) or not narrow else max(narrow)
        limits = [limit for limit in (cut_at, self.longest) if limit is not None]
        return Reach(causal=self.causal, window=widest, longest=min(limits, default=None))


def depths_of(config: Any, *, causal: bool) -> Depths:
    """Read a transformers configuration; ConfigError where it says neither layers nor heads."""
    text = config.get_text_config()
    layers, heads = (getattr(text, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if not isinstance(layers, int) or not isinstance(heads, int):
        raise ConfigError(
            f"{text.model_type}: its configuration says neither how many layers nor how many heads it has"
        )
    return Depths(
        layers=layers, heads=heads, causal=causal, windows=_windows(text, layers),
        longest=getattr(text, "max_position_embeddings", None),
    )  # fmt: skip


def _windows(config: Any, layers: int) -> dict[int, int]:
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    if not isinstance(window, int):
        return {}
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        used = getattr(config, "use_sliding_window", True)
        return dict.fromkeys(range(layers), window) if used else {}
    return {layer: window for layer, kind in enumerate(kinds) if kind in _WINDOWED}
