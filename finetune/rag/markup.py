"""The text of an HTML page: what a reader of it would see, blocks on lines of their own. The home of lxml.

Not html.parser: 30 kB of open tags take it minutes.
"""

import re
from collections.abc import Mapping

from lxml import etree

from finetune.rag.decoding import decoded
from finetune.rag.documents import Content, UnreadableError

_UNSEEN_NAMES = "script style template noscript iframe object svg math head select datalist"
_BLOCK_NAMES = """
address article aside blockquote body br caption dd details div dl dt fieldset figcaption figure footer form h1 h2 h3
h4 h5 h6 header hr html legend li main menu nav ol p pre section summary table tbody tfoot thead title tr ul
"""
_UNSEEN, _BLOCKS = frozenset(_UNSEEN_NAMES.split()), frozenset(_BLOCK_NAMES.split())
_HIDING = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*(hidden|collapse)|(font-size|opacity)\s*:\s*0+(\.0*)?(px|pt|r?em|%)?\s*(;|!|$)"
)
_RULE = re.compile(r"([^{}]{1,2000})\{([^{}]{0,5000})\}")
_SIMPLE_SELECTOR = re.compile(r"[a-z0-9]*([.#][\w-]+)")
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w-]{1,40})""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\n\r\f]+")


def read_html(raw: bytes) -> Content:
    """Give the seen text of a page and its title; scripts, styles, comments and hidden elements are not text."""
    page = _Page()
    parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True, remove_comments=True, no_network=True)
    etree.fromstring(_page_text(raw).encode(), parser)
    lines = (" ".join(line.split()) for line in "".join(page.pieces).split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return Content(text=text, title="".join(page.title) or "".join(page.heading))


def _page_text(raw: bytes) -> str:
    """The page's characters, by its own word where it names the encoding."""
    named = _CHARSET.search(raw[:4096])
    if named and named.group(1).lower() in (b"gb2312", b"gbk", b"gb18030"):
        try:
            return raw.decode("gb18030")
        except UnicodeDecodeError as error:
            raise UnreadableError(f"says it is GB18030 and byte {error.start} is not") from None
    return decoded(raw)


class _Page:
    """Collects the text outside unseen elements, told by the parser of each start, end and text between."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []  # of the first h1
        self._open: list[tuple[str, bool]] = []  # name, and whether it hides what is inside
        self._hidden = 0
        self._headed = False
        self._hiding_names: set[str] = set()  # .class and #id that the page's own styles hide

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        hides = tag in _UNSEEN or self._is_hidden(attributes)
        self._open.append((tag, hides))
        self._hidden += hides
        self._break(tag)

    def end(self, tag: str) -> None:
        """An element ends; the parser tells of each, also of those that the page leaves open."""
        self._break(tag)
        self._hidden -= self._open.pop()[1]
        self._headed |= tag == "h1" and bool(self.heading)

    def data(self, text: str) -> None:
        """Text stands here."""
        within = [tag for tag, _ in self._open[-8:]]
        if "style" in within:
            self._hiding_names |= _hidden_by(text)
        elif "title" in within and "svg" not in within:
            self.title.append(text)
        elif not self._hidden:
            self.pieces.append(text if "pre" in within else _SPACE.sub(" ", text))
            if "h1" in within and not self._headed:
                self.heading.append(text)

    def close(self) -> None:
        """The page ends."""

    def _is_hidden(self, attributes: Mapping[str, str]) -> bool:
        names = {f".{name}" for name in attributes.get("class", "").split()} | {f"#{attributes.get('id', '')}"}
        return (
            "hidden" in attributes
            or _HIDING.search(attributes.get("style", "").lower()) is not None
            or not names.isdisjoint(self._hiding_names)
        )

    def _break(self, tag: str) -> None:
        if self._hidden == 0 and tag in _BLOCKS:
            self.pieces.append("\n")
        elif self._hidden == 0 and tag in ("td", "th"):
            self.pieces.append(" ")


def _hidden_by(styles: str) -> set[str]:
    """The .class and #id that a style block hides; other selectors would need a browser."""
    found = set()
    for selectors, declarations in _RULE.findall(styles):
        if _HIDING.search(declarations.lower()):
            names = (_SIMPLE_SELECTOR.fullmatch(selector.strip()) for selector in selectors.split(","))
            found |= {name.group(1) for name in names if name}
    return found
