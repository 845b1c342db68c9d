"""The tokenizer of multilingual-e5-small (XLM-R's unigram), built from its pieces and its map of characters."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.e5file import Vocabulary

# A character that the map deletes and that always ends a grapheme cluster.
BREAK = "\x01"
# What may follow a character in its grapheme cluster: marks, joiners, half-width voicing marks.
EXTENDERS = r"\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}"


def unigram_tokenizer(vocabulary: Vocabulary, *, max_length: int) -> Any:
    """A fast tokenizer with offsets: <s> text </s>, and <s> text </s></s> text </s> for pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    scored = list(zip(vocabulary.pieces, vocabulary.scores.tolist(), strict=True))
    core = Tokenizer(models.Unigram(scored, unk_id=vocabulary.unknown))
    core.normalizer = character_normalizer(vocabulary.characters)
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    start, end = vocabulary.pieces[vocabulary.start], vocabulary.pieces[vocabulary.end]
    core.post_processor = _template(start, vocabulary.start, end, vocabulary.end)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=start,
        eos_token=end,
        cls_token=start,
        sep_token=end,
        pad_token=vocabulary.pieces[vocabulary.pad],
        unk_token=vocabulary.pieces[vocabulary.unknown],
        mask_token="<mask>",
        model_max_length=max_length,
    )


def character_normalizer(characters: Mapping[str, str]) -> Any:
    """A normalizer that replaces each character by the map, then runs of spaces by one.

    The map becomes a SentencePiece "precompiled" one, a trie that is searched once a character. That normalizer
    has two faults, which the steps before it keep from showing. Deleting the first character shifts all offsets,
    so what is to be deleted there goes first. And it looks up whole grapheme clusters shorter than six bytes but
    stops at the first match, so Ａ + U+0301 would become A without its accent: a BREAK before whatever extends a
    cluster, which the map then deletes, keeps it to single characters.
    """
    from tokenizers import Regex, normalizers

    deleted = "".join(f"\\x{{{ord(char):x}}}" for char, text in characters.items() if not text)
    if characters.get(BREAK) != "":
        raise ValueError("the map of characters does not delete U+0001")
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex(rf"\A[{deleted}]+"), ""),
            normalizers.Replace(Regex(rf"(?<=[\s\S])(?=[{EXTENDERS}])"), BREAK),
            normalizers.Precompiled(precompiled_map(characters)),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )


def precompiled_map(characters: Mapping[str, str]) -> bytes:
    """The map as SentencePiece stores it: length of the trie, a Darts double array, replacements ended by zeros."""
    positions: dict[str, int] = {}
    replacements = bytearray()
    for text in characters.values():
        if text not in positions:
            positions[text] = len(replacements)
            replacements += text.encode() + b"\0"
    trie = _double_array({char.encode(): positions[text] for char, text in characters.items()})
    return struct.pack("<I", 4 * len(trie)) + trie.astype("<u4").tobytes() + bytes(replacements)


def _double_array(values: Mapping[bytes, int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A Darts trie: unit = label | 0x100 if a key ends here | (own position xor children's base) << 10.

    A child stands at base xor its byte; the value of a key stands at base itself, with the top bit set. No two
    nodes may share a base, or a search would run from one key into another.
    """
    root: dict[int, Any] = {}
    for key, value in values.items():
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = value
    units = np.zeros(1 << 16, dtype=np.uint32)
    used, bases = np.zeros(1 << 16, dtype=bool), np.zeros(1 << 16, dtype=bool)
    used[0] = bases[0] = True
    waiting = [(0, root)]
    while waiting:
        position, node = waiting.pop()
        base = _free_base(np.array(sorted(node)), used, bases)
        bases[base] = True
        units[position] |= np.uint32((position ^ base) << 10 | (0x100 if 0 in node else 0))
        for byte, child in node.items():
            used[base ^ byte] = True
            units[base ^ byte] = child | 0x80000000 if byte == 0 else byte
            if byte:
                waiting.append((base ^ byte, child))
    end = int(np.flatnonzero(used)[-1]) | 0xFF  # a search may look at any byte of the last block
    return units[: end + 1]


def _free_base(labels: Any, used: Any, bases: Any) -> int:
    """The first base whose children's places are all free."""
    for start in np.flatnonzero(~used):
        base = int(start) ^ int(labels[0])
        if not bases[base] and not used[base ^ labels].any():
            return base
    raise ValueError("the map of characters has too many entries for its trie")


def _template(start: str, start_id: int, end: str, end_id: int) -> Any:
    from tokenizers import processors

    return processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {end} $B {end}",
        special_tokens=[(start, start_id), (end, end_id)],
    )
