"""The binary e5 format, on a file small enough to be written by hand."""

import struct

import numpy as np
import pytest

from probe.e5file import E5FileError, dequantise, parse

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "苹果"]


def q4_block(scale, nibbles):
    """32 nibbles: byte j carries weight j low and weight j + 16 high."""
    return np.float16(scale).tobytes() + bytes(nibbles[j] | nibbles[j + 16] << 4 for j in range(16))


def tiny_file(*, magic=b"E5S1", block=32, count=32):
    header = magic + struct.pack("<I7ifi", 1, 4, 1, 2, 8, len(PIECES), 16, 2, 1e-12, block)
    encoded = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0] + [len(piece) for piece in encoded])
    vocabulary = struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, ends[-1]) + ends.astype("<u4").tobytes()
    vocabulary += np.arange(len(PIECES), dtype="<f4").tobytes() + b"".join(encoded)
    characters = struct.pack("<IB1I", ord("Ａ"), 1, ord("A")) + struct.pack("<IB", 1, 0)
    characters = struct.pack("<iI", 2, len(characters)) + characters
    tensors = [(b"l0.q.w", 1, count, q4_block(0.5, list(range(16)) * 2)), (b"l0.q.b", 0, 2, struct.pack("<2f", 1, -2))]
    start = len(header + vocabulary + characters) + 4 + sum(2 + len(name) + 21 for name, *_ in tensors)
    directory, data = struct.pack("<i", len(tensors)), b""
    for name, kind, number, content in tensors:
        directory += struct.pack("<H", len(name)) + name
        directory += struct.pack("<BIQQ", kind, number, start + len(data), len(content))
        data += content
    return header + vocabulary + characters + directory + data


def test_header_pieces_and_characters_come_out_as_they_went_in():
    file = parse(tiny_file())
    assert (file.sizes.hidden, file.sizes.layers, file.sizes.positions, file.sizes.norm_epsilon) == (4, 1, 16, 1e-12)
    assert file.vocabulary.pieces == tuple(PIECES)
    assert file.vocabulary.scores.tolist() == [0, 1, 2, 3, 4, 5]
    assert file.vocabulary.characters == {"Ａ": "A", "\x01": ""}


def test_a_block_gives_nibble_minus_eight_times_scale_low_nibbles_first():
    expected = [(nibble - 8) * 0.5 for nibble in list(range(16)) * 2]
    assert dequantise(q4_block(0.5, list(range(16)) * 2)).tolist() == expected
    low_then_high = dequantise(q4_block(2.0, [8] * 16 + [15] * 16)).tolist()
    assert low_then_high == [0.0] * 16 + [14.0] * 16


def test_tensors_are_read_where_the_directory_says():
    file = parse(tiny_file())
    assert file.weights("l0.q.b").tolist() == [1.0, -2.0]
    assert file.weights("l0.q.w").shape == (32,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "bytes expected"),
        (tiny_file(magic=b"GGUF"), "starts with b'GGUF'"),
        (tiny_file(block=64), "blocks of 64"),
        (tiny_file()[:60], "unreadable at byte"),
        (tiny_file()[:-4], "ends after the file"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(data, message):
    with pytest.raises(E5FileError, match=message):
        parse(data)


def test_a_count_that_disagrees_with_the_data_is_refused():
    with pytest.raises(E5FileError, match="has 32 weights, its directory entry says 64"):
        parse(tiny_file(count=64)).weights("l0.q.w")
