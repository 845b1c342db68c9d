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
    "viewer.mean_short": Message(en="μ", zh="均"),
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
    "viewer.rest": Message(en="{count} more tokens together: {value}", zh="其余 {count} 个词元合计：{value}"),
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
    # The look at one model
    "study.title": Message(
        en="How the model reads “{cases}”",
        zh="模型怎样读《{cases}》",
    ),
    "study.subtitle": Message(
        en="{model} · {count} cases",
        zh="{model} · {count} 个例句",
    ),
    "study.findings": Message(
        en="What was found",
        zh="发现了什么",
    ),
    "study.read": Message(
        en="{count} cases were read, {cued} with a cue word ({units} distinct cues), in {layers} attention layers of {heads} heads each.",
        zh="共读 {count} 个例句，其中 {cued} 个标有线索词（{units} 个不同的线索）；模型有 {layers} 个注意力层，每层 {heads} 个头。",
    ),
    "study.not_visible": Message(
        en=" In {count} of them the target cannot see the cue: the mask hides later words from it, so there is no number, rather than 0.",
        zh=" 其中 {count} 个的目标词看不到线索词：掩码遮住了后面的词，因此没有数值，而不是 0。",
    ),
    "study.no_control": Message(
        en=" {count} have no other word that could serve as a matched control and are left out of comparisons.",
        zh=" 有 {count} 个句子没有可作匹配对照的其他词，不参与比较。",
    ),
    "study.was_cut": Message(
        en=" {count} texts were longer than the model's positions and were cut around the target.",
        zh=" 有 {count} 个文本超过模型的位置数，已围绕目标词截取。",
    ),
    "study.cause": Message(
        en="Cause: with the edge to the cue cut in every layer and head, the reading word's last state moves by {cue} of its length; with the edge to a matched control word cut, by {control}. The cue moves it more in {more} of {both} cases; the difference is {difference} percentage points: {verdict}.",
        zh="因果：在所有层和头中切断通向线索词的边，读取词的最后一层状态移动其长度的 {cue}；切断通向匹配对照词的边，移动 {control}。{both} 个例句中有 {more} 个线索词的影响更大；差为 {difference} 个百分点：{verdict}。",
    ),
    "study.cause_alone": Message(
        en="Cause: with the edge to the cue cut in every layer and head, the reading word's last state moves by {cue} of its length. No case has a matched control word to compare with.",
        zh="因果：在所有层和头中切断通向线索词的边，读取词的最后一层状态移动其长度的 {cue}。没有例句有可比的匹配对照词。",
    ),
    "study.turned": Message(
        en="In {count} of {total} cases the cue stands after the target of a causal model. There the later word reads: the cut edge is cue → target, and the state is the cue's.",
        zh="{total} 个例句中有 {count} 个的线索词位于因果模型目标词之后。此时由后面的词来读：切断的边是线索词 → 目标词，所看的状态是线索词的。",
    ),
    "study.no_cuts": Message(
        en="Edges were not cut ({reason}), so this report describes attention and says nothing about what it does.",
        zh="没有切断任何边（{reason}），因此本报告只描述注意力，不说明它起什么作用。",
    ),
    "study.other_kinds": Message(
        en="{count} rarer kinds",
        zh="其余 {count} 类",
    ),
    "study.why_no_cue": Message(
        en="no case names a cue word",
        zh="没有例句标出线索词",
    ),
    "study.why_no_length": Message(
        en="the words' last states are all zero, so that nothing can be said relative to them",
        zh="各词的末层状态全为零，无法计算相对变化",
    ),
    "study.mass": Message(
        en="Mass: averaged over all heads, the target gives {cue} of its attention to the cue and {control} to the matched control, in {cases} cases that have both; the difference is {difference} percentage points: {verdict}. Mass describes; the cut edge tells what it does.",
        zh="注意力：对所有头取平均，目标词把 {cue} 的注意力给线索词，{control} 给匹配对照词（两者都有的 {cases} 个例句）；差为 {difference} 个百分点：{verdict}。注意力质量只是描述，切断边才说明作用。",
    ),
    "study.disagree": Message(
        en="Mass and cause disagree here: where the target looks is not where its reading comes from.",
        zh="这里注意力与因果不一致：目标词看向哪里，并不就是它的理解从哪里来。",
    ),
    "study.head": Message(
        en="One head stands out: {stack} layer {layer}, head {head}, chosen as the strongest on one half of the cue words; on the other half it gives the cue {score} percentage points more than the control ({units} cues): {verdict}. It is a description of these sentences, not a test of heads.",
        zh="有一个头突出：{stack} 第 {layer} 层第 {head} 头，用一半线索词选出；在另一半上，它给线索词的注意力比对照多 {score} 个百分点（{units} 个线索）：{verdict}。这是对这些句子的描述，不是对头的检验。",
    ),
    "study.no_head": Message(
        en="Too few cue words to choose a head on one half and score it on the other.",
        zh="线索词太少，无法用一半选头、另一半打分。",
    ),
    "study.crossed_words": Message(
        en="In sentences with two crossed pairs, such as 我喜欢苹果但讨厌梨子, a target's own cue moves it more than the other's cue in {won} of {total} cases.",
        zh="在含两对交叉词的句子（如“我喜欢苹果但讨厌梨子”）中，{total} 个例子里有 {won} 个目标词受自己线索的影响大于受另一线索的影响。",
    ),
    "study.sink": Message(
        en="Special tokens take {special} of the target's attention on average, the first token alone {first}. Heads close to uniform (entropy above 95 % of its maximum): {uniform} of {heads}.",
        zh="特殊标记平均占去目标词注意力的 {special}，仅第一个词元就占 {first}。接近均匀的头（熵高于最大值的 95 %）：{heads} 个中有 {uniform} 个。",
    ),
    "study.interval": Message(en="{mean} ({low} to {high})", zh="{mean}（{low} 至 {high}）"),
    "study.verdict_more": Message(
        en="the cue has more",
        zh="线索词更多",
    ),
    "study.verdict_less": Message(
        en="the cue has less",
        zh="线索词更少",
    ),
    "study.verdict_none": Message(
        en="no difference can be shown",
        zh="看不出差别",
    ),
    "study.verdict_thin": Message(
        en="too few units for an interval",
        zh="单元太少，没有区间",
    ),
    "study.causes": Message(
        en="What the edge to the cue does",
        zh="通向线索词的边起什么作用",
    ),
    "study.causes_text": Message(
        en="The edge from the reading word to the cue is removed in one layer (all heads) or in every layer, its row is normalised again, and the move of the word's last state is measured, as a share of the state's length. The same is done with a control word of as many tokens at about the same distance.",
        zh="把读取词到线索词的边在某一层（所有头）或所有层中去掉，该行重新归一，再量该词最后一层状态的移动，以状态长度的比例表示。对距离相近、词元数相同的对照词做同样的处理。",
    ),
    "study.curve": Message(
        en="Effect of the cut edge by layer",
        zh="各层切断边的影响",
    ),
    "study.curve_alt": Message(
        en="Line chart: how far the last state moves when the edge to the cue or to the control is cut in one layer, with 95 % intervals.",
        zh="折线图：在某一层切断通向线索词或对照词的边时，最后一层状态移动多少，附 95 % 区间。",
    ),
    "study.map_alt": Message(
        en="Heat map, a row for each layer and a column for each head: {what}.",
        zh="热图，每行一层，每列一头：{what}。",
    ),
    "study.moved": Message(
        en="move of the last state",
        zh="末层状态的移动",
    ),
    "study.edge_cue": Message(
        en="edge to the cue",
        zh="通向线索词的边",
    ),
    "study.edge_control": Message(
        en="edge to the matched control",
        zh="通向匹配对照词的边",
    ),
    "study.cut_table": Message(
        en="Effect of the cut edge, relative to the state's length",
        zh="切断边的影响（相对于状态长度）",
    ),
    "study.everywhere": Message(
        en="every layer",
        zh="所有层",
    ),
    "study.maps": Message(
        en="Where attention goes",
        zh="注意力去了哪里",
    ),
    "study.maps_text": Message(
        en="One cell a head, averaged over cue words. Layer 0 is the first attention layer. Colours have a scale of their own in each map.",
        zh="每格一个头，对线索词取平均。第 0 层是第一个注意力层。每张图有自己的色标。",
    ),
    "study.map_cue": Message(
        en="Attention mass from the target to the cue",
        zh="目标词给线索词的注意力质量",
    ),
    "study.map_cue_unit": Message(
        en="share of the row",
        zh="占该行的比例",
    ),
    "study.map_difference": Message(
        en="Mass on the cue minus mass on the matched control",
        zh="给线索词与给匹配对照词的注意力之差",
    ),
    "study.map_difference_unit": Message(
        en="difference of shares",
        zh="比例之差",
    ),
    "study.map_back": Message(
        en="Attention mass from the cue to the target",
        zh="线索词给目标词的注意力质量",
    ),
    "study.map_back_unit": Message(
        en="share of the row",
        zh="占该行的比例",
    ),
    "study.map_rank": Message(
        en="Rank of the cue among the words that the target reads",
        zh="线索词在目标词所读词中的名次",
    ),
    "study.map_rank_unit": Message(
        en="rank, 1 = most",
        zh="名次，1 为最多",
    ),
    "study.map_special": Message(
        en="Attention mass from the target to special tokens",
        zh="目标词给特殊标记的注意力质量",
    ),
    "study.map_special_unit": Message(
        en="share of the row",
        zh="占该行的比例",
    ),
    "study.map_entropy": Message(
        en="Entropy of the target's row",
        zh="目标词所在行的熵",
    ),
    "study.map_entropy_unit": Message(
        en="share of the maximum",
        zh="占最大值的比例",
    ),
    "study.top_heads": Message(
        en="Heads with most mass on the cue above the control (sorted after the fact: expect less on new sentences)",
        zh="给线索词的注意力超过对照最多的头（事后排序：在新句子上会更小）",
    ),
    "study.sentences": Message(
        en="Sentence by sentence",
        zh="逐句查看",
    ),
    "study.sentences_text": Message(
        en="The row of the target in every layer and head. Choose a sentence, then a cell.",
        zh="目标词在每层每头中的一行。先选句子，再选格子。",
    ),
    "study.kinds": Message(
        en="By sense or relation",
        zh="按义项或关系",
    ),
    "study.kinds_text": Message(
        en="Means over cases; few cases make rough numbers.",
        zh="对例句取平均；例句少则数值粗略。",
    ),
    "study.kinds_table": Message(
        en="Cut-edge effect (every layer) and attention mass (mean over heads) by kind",
        zh="各类的切断边影响（所有层）与注意力质量（对头平均）",
    ),
    "study.crossed": Message(
        en="Crossed pairs",
        zh="交叉的词对",
    ),
    "study.crossed_text": Message(
        en="Two targets and two cues in one sentence: each cue is the other target's control, the hardest that a sentence can offer.",
        zh="一句中有两个目标词和两个线索词：每个线索词都是另一个目标词的对照，这是句子所能提供的最严格的对照。",
    ),
    "study.crossed_table": Message(
        en="Own cue against the other's cue",
        zh="自己的线索词与另一个的线索词",
    ),
    "study.checks": Message(
        en="Can the numbers be believed?",
        zh="这些数字可信吗？",
    ),
    "study.path_tap": Message(
        en="Rows were computed beside the model's own SDPA attention. The checks ran on this very model.",
        zh="注意力行是在模型自身的 SDPA 注意力旁边算出的。自检就在这个模型上进行。",
    ),
    "study.path_eager": Message(
        en="Rows come from eager attention, not from the tap ({reason}); edges cannot be cut on this path.",
        zh="注意力行来自 eager 注意力而不是旁路读取（{reason}）；在这条路径上无法切断边。",
    ),
    "study.reading": Message(
        en="How to read this",
        zh="怎样阅读",
    ),
    "study.reading_layers": Message(
        en="Layers and heads count from 0. Attention layer k reads state k; state 0 is the embedding.",
        zh="层和头从 0 计数。第 k 个注意力层读取第 k 个状态；第 0 个状态是嵌入。",
    ),
    "study.reading_mass": Message(
        en="Attention mass from one word to another: mean over the reading word's tokens, sum over the other's. Special tokens, the word itself and padding are never the cue or the control.",
        zh="一个词给另一个词的注意力质量：对读取词的词元取平均，对另一个词的词元求和。特殊标记、该词自身和填充都不会成为线索词或对照词。",
    ),
    "study.reading_cut": Message(
        en="The effect of a cut edge is the distance between the reading word's last state with and without the edge, divided by the state's length. It is exact: the row is taken through the softmax again without the edge.",
        zh="切断边的影响，是读取词末层状态在有边与无边时的距离除以状态的长度。这是精确的：该行去掉这条边后重新做 softmax。",
    ),
    "study.reading_interval": Message(
        en="Intervals are 95 % bootstraps over cue words: sentences with the same cue are averaged first. They hold for this model and these sentences.",
        zh="区间是对线索词做的 95 % 自助法区间：线索词相同的句子先取平均。区间只对这个模型和这些句子成立。",
    ),
    "study.reading_control": Message(
        en="The matched control has as many tokens as the cue and stands at about the same distance, yet it is another word in another slot. A random model also shows heads that differ between two words, so a difference in mass is no proof that a head reads cues.",
        zh="匹配对照词与线索词的词元数相同、距离相近，但它是另一个位置上的另一个词。随机模型中也有对两个词区别对待的头，因此注意力之差不能证明某个头在读线索词。",
    ),
    "study.reading_limits": Message(
        en="All sentences were written for this tool; they show how to look, and are no sample of the language.",
        zh="所有句子都是为本工具写的；它们演示怎样看，并不是语言的抽样。",
    ),
    "study.reading_causal": Message(
        en="This model is causal: a word sees only what stands before it. In 苹果手机 the word 苹果 cannot read 手机; the later word reads the earlier one.",
        zh="这个模型是因果的：一个词只能看到它前面的内容。在“苹果手机”中，“苹果”读不到“手机”；由后面的词读前面的词。",
    ),
    "study.reading_both_sides": Message(
        en="The same text stands on both sides of this encoder-decoder, so that one position means one word in encoder, decoder and cross attention. Edges are cut in the encoder.",
        zh="这个编码器-解码器模型的两侧放的是同一文本，使同一位置在编码器、解码器和交叉注意力中是同一个词。边在编码器中切断。",
    ),
    "study.by_model": Message(
        en="model",
        zh="模型",
    ),
    "study.by_weights": Message(
        en="weights, SHA-256",
        zh="权重 SHA-256",
    ),
    "study.by_cases": Message(
        en="cases",
        zh="例句",
    ),
    "study.by_device": Message(
        en="device, precision",
        zh="设备与精度",
    ),
    "study.by_path": Message(
        en="path of the rows",
        zh="取行路径",
    ),
    "study.col_layer": Message(
        en="layer",
        zh="层",
    ),
    "study.col_head": Message(
        en="head",
        zh="头",
    ),
    "study.col_stack": Message(
        en="stack",
        zh="部分",
    ),
    "study.col_n": Message(
        en="n",
        zh="n",
    ),
    "study.col_low": Message(
        en="low",
        zh="下限",
    ),
    "study.col_high": Message(
        en="high",
        zh="上限",
    ),
    "study.col_difference": Message(
        en="difference",
        zh="差",
    ),
    "study.col_effect_cue": Message(
        en="cue cut",
        zh="切断线索词",
    ),
    "study.col_effect_control": Message(
        en="control cut",
        zh="切断对照词",
    ),
    "study.col_mass_cue": Message(
        en="mass on cue",
        zh="给线索词的注意力",
    ),
    "study.col_mass_control": Message(
        en="mass on control",
        zh="给对照词的注意力",
    ),
    "study.col_kind": Message(
        en="kind",
        zh="类别",
    ),
    "study.col_text": Message(
        en="sentence",
        zh="句子",
    ),
    "study.col_target": Message(
        en="target",
        zh="目标词",
    ),
    "study.col_own_cue": Message(
        en="own cue",
        zh="自己的线索词",
    ),
    "study.col_other_cue": Message(
        en="other cue",
        zh="另一个的线索词",
    ),
    "study.col_effect_own": Message(
        en="own cue cut",
        zh="切断自己的",
    ),
    "study.col_effect_other": Message(
        en="other cue cut",
        zh="切断另一个",
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
