"""Every fixed string that a reader sees, English and Chinese side by side."""

from dataclasses import dataclass
from string import Formatter
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One string in both languages; `{name}` marks a value to fill in."""

    en: str
    zh: str

    def placeholders(self, language: Language) -> frozenset[str]:
        """Give the names of the values that the string wants."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.text(language)) if name)

    def text(self, language: Language) -> str:
        """Give the string, not yet filled in."""
        if language not in LANGUAGES:
            raise ValueError(f"no language {language!r}; there are {', '.join(LANGUAGES)}")
        return self.en if language == "en" else self.zh


MESSAGES: dict[str, Message] = {
    # Head and foot of the page
    "page.brand": Message(en="Cijing 词镜", zh="词镜 Cijing"),
    "page.contents": Message(en="Contents", zh="目录"),
    "page.skip": Message(en="Skip to the text", zh="跳到正文"),
    "page.made": Message(en="How this was made", zh="本页的来历"),
    "page.made_note": Message(
        en="This page is one file. It loads and sends nothing. Its numbers stand in the run folder.",
        zh="本页是单个文件，不加载也不发送任何内容；每个数字都能在运行文件夹的表格中找到。",
    ),
    "page.noscript": Message(
        en="The sentence viewer needs JavaScript. Text, tables and pictures can be read without it.",
        zh="句子查看器需要 JavaScript。文字、表格和图片无需它即可阅读。",
    ),
    "page.source": Message(en="Source", zh="来源"),
    # Tables
    "table.scroll": Message(en="Table: {caption}. Scrolls.", zh="表格：{caption}。可滚动。"),
    "table.missing": Message(en="–", zh="–"),
    # Self-check
    "checks.caption": Message(
        en="Is what we extract right on this model? {passed} passed, {failed} failed, {skipped} skipped.",
        zh="在这个模型上提取的内容正确吗？通过 {passed} 项，失败 {failed} 项，跳过 {skipped} 项。",
    ),
    "checks.failed": Message(
        en="{failed} of the checks failed: do not trust the numbers of this report before you know why.",
        zh="有 {failed} 项自检失败：在弄清原因之前，请勿相信本报告的数字。",
    ),
    "checks.name": Message(en="check", zh="检查项"),
    "checks.status": Message(en="result", zh="结果"),
    "checks.value": Message(en="value", zh="数值"),
    "checks.bound": Message(en="bound", zh="界限"),
    "checks.why": Message(en="why", zh="说明"),
    "checks.pass": Message(en="pass", zh="通过"),
    "checks.fail": Message(en="fail", zh="失败"),
    "checks.skip": Message(en="skipped", zh="跳过"),
    # Sentence viewer
    "viewer.label": Message(en="Sentence viewer", zh="句子查看器"),
    "viewer.filter": Message(en="Find a sentence", zh="查找句子"),
    "viewer.filter_hint": Message(en="word, sense or id", zh="词、义项或编号"),
    "viewer.cases": Message(en="Sentences", zh="句子"),
    "viewer.count": Message(en="{shown} of {total}", zh="{shown} / {total} 句"),
    "viewer.nothing": Message(en="No sentence matches.", zh="没有匹配的句子。"),
    "viewer.layer": Message(en="Layer", zh="层"),
    "viewer.head": Message(en="Head", zh="头"),
    "viewer.mean": Message(en="mean", zh="平均"),
    "viewer.mean_short": Message(en="∅", zh="∅"),
    "viewer.bare": Message(en="without special tokens and sink", zh="不计特殊标记与汇点"),
    "viewer.fixed": Message(en="scale from 0 to 1", zh="色标固定为 0 到 1"),
    "viewer.grid_cue": Message(
        en="Attention from the target to the cue, every layer and head", zh="每层每头中目标词对线索词的注意力"
    ),
    "viewer.grid_other": Message(
        en="Largest attention from the target to one other token (this sentence has no cue)",
        zh="目标词对其他单个词元的最大注意力（此句没有线索词）",
    ),
    "viewer.grid_help": Message(en="Click a cell, or move with the arrow keys.", zh="点击格子，或用方向键移动。"),
    "viewer.list": Message(en="What the target reads", zh="目标词在读什么"),
    "viewer.rank": Message(en="token", zh="词元"),
    "viewer.weight": Message(en="attention", zh="注意力"),
    "viewer.where": Message(en="layer {layer}, head {head}", zh="层 {layer}，头 {head}"),
    "viewer.cell": Message(en="layer {layer}, head {head}: {value}", zh="层 {layer}，头 {head}：{value}"),
    "viewer.on_cue": Message(en="{value} on the cue", zh="线索词得 {value}"),
    "viewer.on_other": Message(en="at most {value} on one token", zh="单个词元至多 {value}"),
    "viewer.token": Message(en="{label} gets {value} of the attention", zh="{label} 得到 {value} 的注意力"),
    "viewer.left_out": Message(en="left out", zh="不计"),
    "viewer.empty": Message(en="nothing is left without special tokens and sink", zh="除去特殊标记与汇点后没有剩余"),
    "viewer.target": Message(en="target", zh="目标词"),
    "viewer.cue": Message(en="cue", zh="线索词"),
    "viewer.special": Message(en="special token", zh="特殊标记"),
    "viewer.zero": Message(en="exactly 0", zh="恰为 0"),
    "viewer.rounded": Message(
        en="The page keeps each weight in one byte (error ≤ 0.004, zero stays zero); the tables are exact.",
        zh="页面用一个字节保存每个权重（误差不超过 0.004，零保持为零）；表格中的数值是精确的。",
    ),
    "viewer.omitted": Message(
        en="{omitted} more sentences would make this page too large; their numbers stand in the tables.",
        zh="为控制页面大小，另有 {omitted} 句未收入；其数值见表格。",
    ),
    # Figures
    "figure.layer": Message(en="layer", zh="层"),
    "figure.head": Message(en="head", zh="头"),
    "figure.zero": Message(en="exactly 0", zh="恰为 0"),
    "figure.absent": Message(en="no value", zh="无数值"),
    "figure.significant": Message(en="significant", zh="显著"),
    "figure.target": Message(en="target", zh="目标词"),
    "figure.cue": Message(en="cue", zh="线索词"),
    "figure.undrawable": Message(en="□ no font has: {names}", zh="□ 字体中没有：{names}"),
}


def message(key: str, language: Language, /, **values: object) -> str:
    """Give the string `key` in `language`, filled in; exactly the values that it names must be given."""
    if key not in MESSAGES:
        raise KeyError(f"no message {key!r}")
    found = MESSAGES[key]
    wanted = found.placeholders(language)
    if wanted != values.keys():
        raise KeyError(f"message {key!r} wants {sorted(wanted)}, got {sorted(values)}")
    return found.text(language).format(**values)


def messages_under(prefix: str, language: Language) -> dict[str, str]:
    """Give the unfilled strings whose key starts with `prefix`, keyed by what follows: for the page's script."""
    return {key.removeprefix(prefix): found.text(language) for key, found in MESSAGES.items() if key.startswith(prefix)}
