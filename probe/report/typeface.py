"""Fonts for the page, cut down to the characters that it uses."""

import base64
import contextlib
import importlib.util
import io
import logging
from collections import Counter
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTCollection, TTLibError

from probe.errors import FigureError
from probe.fonts import chinese_font, latin_font

FONT_BYTES = 400_000
_LATIN_BYTES = 50_000
_NO_EMBEDDING = 0x0002 | 0x0100  # OS/2 fsType: restricted licence, no subsetting


def font_faces(text: str) -> str:
    """Give `@font-face` rules that hold the glyphs of `text`, at most FONT_BYTES of font in all.

    Where there is no Chinese font, or its licence forbids embedding, the reader's own fonts draw Chinese.
    """
    counts = Counter(text)
    faces = [_face("Cijing Serif", latin_font("Regular"), counts, _LATIN_BYTES // 2, style="normal")]
    faces.append(_face("Cijing Serif", latin_font("Italic"), counts, _LATIN_BYTES // 2, style="italic"))
    with contextlib.suppress(FigureError):
        faces.append(_face("Cijing Sans", chinese_font().path, counts, FONT_BYTES - _LATIN_BYTES, style="normal"))
    return "\n".join(face for face in faces if face)


def subset_font(path: Path, characters: Counter[str], limit: int) -> bytes:
    """Give the font with the given characters only, as WOFF; the rarest are dropped until it fits `limit` bytes."""
    wanted = [character for character, _ in characters.most_common()]
    while True:
        content = _cut(path, wanted)
        if len(content) <= limit or not wanted:
            return content
        wanted = wanted[: int(len(wanted) * min(0.95, limit / len(content)))]


def _face(family: str, path: Path, characters: Counter[str], limit: int, *, style: str) -> str:
    try:
        content = subset_font(path, characters, limit)
    except (OSError, TTLibError):
        return ""
    if not content:
        return ""
    data = base64.b64encode(content).decode("ascii")
    kind = _flavour()
    return (
        f'@font-face{{font-family:"{family}";font-style:{style};font-display:block;'
        f'src:url("data:font/{kind};base64,{data}") format("{kind}")}}'
    )


def _flavour() -> str:
    return "woff2" if importlib.util.find_spec("brotli") else "woff"


def _cut(path: Path, characters: list[str]) -> bytes:
    options = subset.Options(
        flavor=_flavour(), hinting=False, layout_features=["kern", "mark", "mkmk"], name_IDs=[], notdef_outline=True
    )
    options.font_number = _simplified_face(path)
    # A dropped table is expected here and no news for the reader.
    logging.getLogger("fontTools.subset").setLevel(logging.ERROR)
    font = subset.load_font(path, options)
    if font["OS/2"].fsType & _NO_EMBEDDING:
        return b""
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=[ord(character) for character in characters])
    cutter.subset(font)
    buffer = io.BytesIO()
    subset.save_font(font, buffer, options)
    return buffer.getvalue()


def _simplified_face(path: Path) -> int:
    """Number of the face in a font collection that draws Chinese as in the mainland; -1 for a plain font file."""
    if path.suffix.lower() not in (".ttc", ".otc"):
        return -1
    with TTCollection(path, lazy=True) as faces:
        names = [face["name"].getDebugName(1) or "" for face in faces]
    return next((number for number, name in enumerate(names) if " SC" in name), 0)
