"""The text of an HTML page: what a reader of it would see, blocks on lines of their own."""

import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser

from finetune.rag.decoding import decoded
from finetune.rag.documents import Content, UnreadableError

_UNSEEN_NAMES = "script style template noscript iframe object svg math head select datalist"
_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_BLOCK_NAMES = """
address article aside blockquote body br caption dd details div dl dt fieldset figcaption figure footer form h1 h2 h3
h4 h5 h6 header hr html legend li main menu nav ol p pre section summary table tbody tfoot thead title tr ul
"""
_UNSEEN, _VOID, _BLOCKS = (frozenset(names.split()) for names in (_UNSEEN_NAMES, _VOID_NAMES, _BLOCK_NAMES))
# An element that the next one of these closes, for its end tag may be left out.
_CLOSED_BY = {
    "p": _BLOCKS - {"br", "body", "html", "li", "dd", "dt", "tr", "tbody", "thead", "tfoot", "caption", "title"},
    "li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "tr": {"tr", "tbody", "tfoot", "thead"},
    "td": {"td", "th", "tr", "tbody", "tfoot"}, "th": {"td", "th", "tr", "tbody", "tfoot"}, "head": {"body"},
}  # fmt: skip
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
    page.feed(_page_text(raw))
    page.close()
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


class _Page(HTMLParser):
    """Collects the text outside unseen elements; what is open is kept in a list, so that no depth is too deep."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.heading: list[str] = []  # of the first h1
        self._open: list[tuple[str, bool]] = []  # name, and whether it hides what is inside
        self._count: Counter[str] = Counter()
        self._hidden = 0
        self._headed = False
        self._hiding_names: set[str] = set()  # .class and #id that the page's own styles hide

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self._open and tag in _CLOSED_BY.get(self._open[-1][0], ()):
            self._close()
        self._break(tag)
        if tag in _VOID:
            return
        hides = tag in _UNSEEN or self._is_hidden({name: value or "" for name, value in attrs})
        self._open.append((tag, hides))
        self._count[tag] += 1
        self._hidden += hides

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # as in a browser, where <div/> opens

    def handle_endtag(self, tag: str) -> None:
        if self._count[tag]:
            while self._close() != tag:
                pass
        self._break(tag)

    def handle_data(self, data: str) -> None:
        within = self._open[-1][0] if self._open else ""
        if within == "style":
            self._hiding_names |= _hidden_by(data)
        elif self._count["title"] and self._hidden == self._count["head"]:
            self.title.append(data)
        elif not self._hidden:
            self.pieces.append(data if self._count["pre"] else _SPACE.sub(" ", data))
            if self._count["h1"] and not self._headed:
                self.heading.append(data)

    def _is_hidden(self, attributes: Mapping[str, str]) -> bool:
        names = {f".{name}" for name in attributes.get("class", "").split()} | {f"#{attributes.get('id', '')}"}
        return (
            "hidden" in attributes
            or _HIDING.search(attributes.get("style", "").lower()) is not None
            or not names.isdisjoint(self._hiding_names)
        )

    def _close(self) -> str:
        tag, hides = self._open.pop()
        self._headed |= tag == "h1" and bool(self.heading)
        self._count[tag] -= 1
        self._hidden -= hides
        return tag

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
