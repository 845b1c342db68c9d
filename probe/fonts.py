"""The fonts that draw Chinese and Latin words, and which characters they can draw."""

import importlib.util
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib import font_manager
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font

from probe.errors import FigureError

# Open fonts first: a page may embed them without asking anybody.
_SYSTEM_FAMILIES = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans GB", "Heiti SC",
    "Microsoft YaHei", "DengXian", "SimHei", "Noto Serif CJK SC", "Songti SC", "SimSun",
)  # fmt: skip
_MUST_HAVE = "苹果词镜"
_SHOWN_WHITESPACE = {"\n": "↓", "\r": "↓", "\t": "→"}


@dataclass(frozen=True)
class FontChoice:
    """The font that draws Chinese, and where it was found."""

    name: str
    path: Path
    source: Literal["system", "zhplot"]


@cache
def chinese_font() -> FontChoice:
    """Find a system font with Chinese glyphs or, where there is none, the one in the zhplot package."""
    installed = {
        entry.name: Path(entry.fname)
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular")
    }
    for family in _SYSTEM_FAMILIES:
        if family in installed and _draws_chinese(installed[family]):
            return FontChoice(family, installed[family], "system")
    # The spec only, never the import: zhplot's own import is free to change rcParams.
    spec = importlib.util.find_spec("zhplot")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "fonts" / "NotoSansSC-Regular.ttf"
        if _draws_chinese(path):
            return FontChoice(FT2Font(path).family_name, path, "zhplot")
    raise FigureError(
        "no font with Chinese glyphs found; install one (such as Noto Sans CJK SC) or `pip install zhplot`"
    )


def latin_font(style: Literal["Regular", "Italic"]) -> Path:
    """Give the serif face that the page sets its words in: STIX, which comes with matplotlib."""
    name = {"Regular": "STIXGeneral.ttf", "Italic": "STIXGeneralItalic.ttf"}[style]
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name


def drawable(text: str) -> tuple[str, tuple[str, ...]]:
    """Give `text` with □ for each character that no font here has, and those characters.

    For labels cut from a user's text: an emoji must not cost the report, and must not vanish either.
    Joiners and direction marks have no shape of their own and are left out.
    """
    kept, missing = [], []
    for character in text:
        shown = _SHOWN_WHITESPACE.get(character, character)
        if unicodedata.category(character) == "Cf" or "VARIATION SELECTOR" in unicodedata.name(character, ""):
            continue
        if ord(shown) in _characters():
            kept.append(shown)
        else:
            kept.append("□")
            missing.append(character)
    return "".join(kept), tuple(dict.fromkeys(missing))


def font(size: float) -> FontProperties:
    """A font of `size` points for any text."""
    return FontProperties(family=list(font_families()), size=size)


def text_width(word: str) -> float:
    """How wide a text is, in widths of a Chinese character."""
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.58 for c in word)


def character_name(character: str) -> str:
    """The character with its code point and its name in Unicode."""
    return f"{character!r} (U+{ord(character):04X} {unicodedata.name(character, 'unnamed')})"


@cache
def font_families() -> tuple[str, ...]:
    """Families in the order in which a character is looked for."""
    try:
        choice = chinese_font()
    except FigureError:
        return ("DejaVu Sans",)  # a figure without Chinese needs none; one with it fails in png_bytes
    if choice.source == "zhplot":
        font_manager.fontManager.addfont(choice.path)
    return (choice.name, "DejaVu Sans")


@cache
def _characters() -> frozenset[int]:
    paths = [chinese_font().path, Path(font_manager.findfont("DejaVu Sans"))]
    return frozenset(code for path in paths for code in FT2Font(path).get_charmap())


def _draws_chinese(path: Path) -> bool:
    if not path.is_file():
        return False
    has = FT2Font(path).get_charmap()
    return all(ord(character) in has for character in _MUST_HAVE)
