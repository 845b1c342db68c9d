"""Every fixed string that a reader sees, English and Chinese side by side."""

from dataclasses import dataclass
from string import Formatter
from typing import Literal

from probe.claims_messages import CLAIM_STRINGS
from probe.walk_messages import WALK

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
        en="This page is one file. It loads and sends nothing. Its main numbers stand in the tables of the run folder or follow from them.",
        zh="本页是单个文件，不加载也不发送任何内容；主要数字在运行文件夹的表格中，或可由其中算出。",
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
    "viewer.bare": Message(en="without special tokens and sink", zh="不计特殊标记和首词元（注意力汇点）"),
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
    "viewer.empty": Message(
        en="nothing is left without special tokens and sink", zh="除去特殊标记和首词元（注意力汇点）后没有剩余"
    ),
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
    "study.title_several": Message(
        en="How {count} models read “{cases}”",
        zh="{count} 个模型怎样读《{cases}》",
    ),
    "study.subtitle": Message(
        en="{model} · {count} cases",
        zh="{model} · {count} 个例句",
    ),
    "study.subtitle_one": Message(
        en="{model} · {count} case",
        zh="{model} · {count} 个例句",
    ),
    "study.findings": Message(
        en="What was found",
        zh="发现了什么",
    ),
    "study.read": Message(
        en="{count} cases were read, {cued} with a cue word (distinct cues: {units}), in {layers} attention layers of {heads} heads each.",
        zh="共读 {count} 个例句，其中 {cued} 个标有线索词（{units} 个不同的线索）；模型有 {layers} 个注意力层，每层 {heads} 个头。",
    ),
    "study.read_one": Message(
        en="{count} case was read, {cued} with a cue word (distinct cues: {units}), in {layers} attention layers of {heads} heads each.",
        zh="共读 {count} 个例句，其中 {cued} 个标有线索词（{units} 个不同的线索）；模型有 {layers} 个注意力层，每层 {heads} 个头。",
    ),
    "study.neutral": Message(
        en=" Of the others {count} are neutral: the word that they mark is no cue, so they stand beside cues in minimal groups and enter no mean over cues.",
        zh="其余的例句中有 {count} 个是中性的：它们标出的词不是线索，只在最小对立组中与线索词相比，不计入对线索词的平均。",
    ),
    "study.neutral_one": Message(
        en=" Of the others {count} is neutral: the word that it marks is no cue, so it stands beside cues in minimal groups and enters no mean over cues.",
        zh="其余的例句中有 {count} 个是中性的：它标出的词不是线索，只在最小对立组中与线索词相比，不计入对线索词的平均。",
    ),
    "study.not_visible": Message(
        en=" In {count} of them the target cannot see the cue: the mask hides later words from it, so there is no number, rather than 0.",
        zh="其中 {count} 个的目标词看不到线索词：掩码遮住了后面的词，因此没有数值，而不是 0。",
    ),
    "study.no_control": Message(
        en=" {count} cases have no other word that could serve as a matched control and are left out of comparisons.",
        zh="有 {count} 个句子没有可作匹配对照的其他词，不参与比较。",
    ),
    "study.no_control_one": Message(
        en=" {count} case has no other word that could serve as a matched control and is left out of comparisons.",
        zh="有 {count} 个句子没有可作匹配对照的其他词，不参与比较。",
    ),
    "study.was_cut": Message(
        en=" {count} texts were longer than the model's positions and were cut around the target.",
        zh="有 {count} 个文本超过模型的位置数，已围绕目标词截取。",
    ),
    "study.was_cut_one": Message(
        en=" {count} text was longer than the model's positions and was cut around the target.",
        zh="有 {count} 个文本超过模型的位置数，已围绕目标词截取。",
    ),
    "study.cause": Message(
        en="Cause: with the edge to the cue cut in every layer and head, the reading word's last state moves by {cue} of its length; with the edge to a matched control word cut, by {control}. The cue moves it more in {more} of {both} cases; the difference is {difference} percentage points: {verdict}.",
        zh="因果：在所有层和头中切断通向线索词的边，读取词（双向模型中即目标词）的最后一层状态移动其长度的 {cue}；切断通向匹配对照词的边，移动 {control}。{both} 个例句中有 {more} 个线索词的影响更大；差为 {difference} 个百分点：{verdict}。",
    ),
    "study.cause_alone": Message(
        en="Cause: with the edge to the cue cut in every layer and head, the reading word's last state moves by {cue} of its length. No case has a matched control word to compare with.",
        zh="因果：在所有层和头中切断通向线索词的边，读取词（双向模型中即目标词）的最后一层状态移动其长度的 {cue}。没有例句有可比的匹配对照词。",
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
        en="Mass: averaged over all heads, the target gives {cue} of its attention to the cue and {control} to the matched control (cases that have both: {cases}); the difference is {difference} percentage points: {verdict}. Mass describes; the cut edge tells what it does.",
        zh="注意力：对所有头取平均，目标词把 {cue} 的注意力给线索词，{control} 给匹配对照词（两者都有的 {cases} 个例句）；差为 {difference} 个百分点：{verdict}。注意力质量只是描述，切断边才说明作用。",
    ),
    "study.disagree": Message(
        en="Mass and cause disagree here: where the target looks is not where its reading comes from.",
        zh="这里注意力与因果不一致：目标词看向哪里，并不就是它的理解从哪里来。",
    ),
    "study.head": Message(
        en="One head stands out: {stack}layer {layer}, head {head}, chosen as the strongest on one half of the cue words; on the other half it gives the cue {score} percentage points more than the control ({units} cues): {verdict}. It is a description of these sentences, not a test of heads.",
        zh="有一个头突出：{stack}第 {layer} 层第 {head} 头，用一半线索词选出；在另一半上，它给线索词的注意力比对照多 {score} 个百分点（{units} 个线索）：{verdict}。这是对这些句子的描述，不是对头的检验。",
    ),
    "study.head_fails": Message(
        en="No head holds up: {stack}layer {layer}, head {head}, chosen on one half of the cue words, differs from the control by {score} percentage points on the other half ({units} cues): {verdict}.",
        zh="没有一个头站得住：用一半线索词选出的{stack}第 {layer} 层第 {head} 头，在另一半（{units} 个线索）上与对照之差为 {score} 个百分点，{verdict}。",
    ),
    "study.stack_encoder": Message(en="encoder ", zh="编码器"),
    "study.stack_decoder": Message(en="decoder ", zh="解码器"),
    "study.stack_cross": Message(en="cross-attention ", zh="交叉注意力"),
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
    "study.moved_more": Message(
        en="the cue moves it more",
        zh="线索词影响更大",
    ),
    "study.moved_less": Message(
        en="the cue moves it less",
        zh="线索词影响更小",
    ),
    "study.no_layers": Message(
        en="No edges were cut layer by layer (--layer-cut-cases 0).",
        zh="没有逐层切断（--layer-cut-cases 0）。",
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
    "study.reads_back": Message(
        en="cue → target: the later word reads",
        zh="线索词 → 目标词：由后面的词来读",
    ),
    "study.kinds": Message(
        en="By sense or relation",
        zh="按义项或关系",
    ),
    "study.kinds_text": Message(
        en="Means over the cases that have both a cue and a matched control, for which a number is known; few cases make rough numbers.",
        zh="只对既有线索词又有匹配对照词、且有数值的例句取平均；例句少则数值粗略。",
    ),
    "study.kinds_table": Message(
        en="Cut-edge effect (every layer) and attention mass (mean over heads) by kind",
        zh="各类的切断边影响（所有层）与注意力质量（对头平均）",
    ),
    "study.kinds_table_mass": Message(
        en="Attention mass (mean over heads) by kind",
        zh="各类的注意力质量（对头平均）",
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
    "study.models": Message(en="The models side by side", zh="各模型并列"),
    "study.models_text": Message(
        en="The same cases, one row a model. Standing side by side is a description: whether two models differ is tested by the command compare, case by case.",
        zh="同样的用例，每个模型一行。并列只是描述；两个模型是否不同，由 compare 命令逐例检验。",
    ),
    "study.models_confound": Message(
        en="Their tokenizers cut the targets differently, tokens per target on average: {tokens}. A target of several tokens has several rows, of which the mean is read, and its first pieces cannot know the whole word in a causal model. So part of a difference between these models may be one between their tokenizers.",
        zh="各模型的分词器把目标词切得不同，平均每个目标词的词元数：{tokens}。目标词若有几个词元就有几行，读取的是它们的平均；在因果模型里，前面的词元还看不到整个词。因此这些模型之间的差异有一部分可能只是分词器的差异。",
    ),
    "study.models_alike": Message(
        en="All targets have the same number of tokens in every model ({tokens} on average), so the tokenizers' cuts of the target cannot explain a difference.",
        zh="每个目标词在各模型中的词元数相同（平均：{tokens}），所以差异不能用目标词的切分来解释。",
    ),
    "study.models_cut": Message(en="Cut edge by layer, cue − control", zh="逐层切断：线索词减对照词"),
    "study.models_senses": Message(en="Sense accuracy by layer", zh="各层的义项正确率"),
    "study.models_alt": Message(
        en="{what}: one line a model, with its 95 % interval", zh="{what}：每个模型一条线，带 95 % 区间"
    ),
    "study.models_given": Message(en="What each model was given", zh="各模型读到的内容"),
    "study.models_found": Message(en="What each model shows", zh="各模型的结果"),
    "study.of_model": Message(en="{model}: {words}", zh="{model}：{words}"),
    "study.models_sensed": Message(en="What each model tells of senses", zh="各模型的义项结果"),
    "study.moved_gap": Message(en="cue − control", zh="线索词减对照词"),
    "study.accuracy": Message(en="accuracy", zh="正确率"),
    "study.depth": Message(en="share of the model's depth", zh="占模型深度的比例"),
    "study.col_layers": Message(en="layers", zh="层数"),
    "study.col_heads": Message(en="heads", zh="每层头数"),
    "study.col_tokens": Message(en="tokens a sentence", zh="每句词元数"),
    "study.col_target_tokens": Message(en="tokens per target", zh="每个目标词的词元数"),
    "study.col_one_token": Message(en="one-token targets", zh="单词元的目标词"),
    "study.col_slots": Message(en="slot pairs", zh="同位词对"),
    "study.col_effect_gap": Message(en="cut: cue − control", zh="切断：线索词减对照词"),
    "study.col_mass_gap": Message(en="mass: cue − control", zh="注意力：线索词减对照词"),
    "study.col_claimed": Message(en="heads claimed", zh="可断言的头"),
    "study.col_accuracy_last": Message(en="sense accuracy, last layer", zh="末层义项正确率"),
    "study.col_random_effect": Message(en="random weights: cut", zh="随机权重：切断"),
    "study.col_random_accuracy": Message(en="random weights: accuracy", zh="随机权重：正确率"),
    "study.under_cuts": Message(
        en="Sense: on the axis from the nearest other sense (−1) to its own (+1), centres from the other groups, the reading word's last state lies at {plain}; with the control's edge cut in every layer at {control}, with the cue's at {cue}. The nearest centre is that of its sense in {right}, {right_control} and {right_cue} (means over {units} cue words, {cases} cases): {verdict}.",
        zh="义项：在从最近的其他义项（−1）到自身义项（+1）的轴上（中心取自其他组），读取词的末层表示位于 {plain}；在每一层切断对照词的边后位于 {control}，切断线索词的边后位于 {cue}。最近的中心属于自身义项的比例依次为 {right}、{right_control} 和 {right_cue}（对 {units} 个线索词取平均，共 {cases} 例）：{verdict}。",
    ),
    "study.under_cuts_less": Message(
        en="cutting the cue's edge takes more of the sense away", zh="切断线索词的边使义项失去更多"
    ),
    "study.under_cuts_more": Message(
        en="cutting the control's edge takes more of the sense away", zh="切断对照词的边使义项失去更多"
    ),
    "study.under_cuts_none": Message(en="no difference can be shown between the two cuts", zh="两种切断之间看不出差异"),
    "study.senses_cut_table": Message(
        en="The sense under a cut in every layer (n = {n} cue words)",
        zh="每一层都切断时的义项（n = {n} 个线索词）",
    ),
    "study.col_state": Message(en="edge cut", zh="切断的边"),
    "study.col_position": Message(en="on the sense axis", zh="义项轴上的位置"),
    "study.cut_nothing": Message(en="none", zh="无"),
    "study.cut_control": Message(en="to the control", zh="到对照词"),
    "study.cut_cue": Message(en="to the cue", zh="到线索词"),
    "study.cut_gap": Message(en="cue − control", zh="线索词减对照词"),
    "study.heads_table": Message(
        en="The edge cut in single heads, on cue words that did not choose them (n = {n}; p is corrected over all heads here, intervals are not)",
        zh="只在单个头里切断连边，用未参与挑选的线索词（n = {n}；p 对这里所有的头校正，区间未校正）",
    ),
    "study.single_heads": Message(
        en="Single heads: {heads} were chosen for their mass on one half of the cue words. On the other half {looks} of them give the cue more than the control, in {moves} cutting the edge to the cue moves the reading word more than cutting the control's, {both} do both. Of {drawn} heads drawn at random this edge moves it more than the control's in {drawn_moves}.",
        zh="单个头：用一半线索词按注意力挑出 {heads} 个头。在另一半上，其中 {looks} 个给线索词的注意力多于对照词；在 {moves} 个头里切断到线索词的边比切断对照词的边更能移动读取词；两者兼有的 {both} 个。随机抽取的 {drawn} 个头中，有 {drawn_moves} 个里这条边比对照词的边更能移动它。",
    ),
    "study.single_heads_thin": Message(
        en="Single heads: fewer than {fewest} cue words are left to judge the heads, so no head is said to look or to move.",
        zh="单个头：留给检验的线索词不足 {fewest} 个，因此不判断任何头是否看或移动。",
    ),
    "study.no_single_heads": Message(
        en="Edges were not cut in single heads: there are too few cue words with a control, or none were asked for.",
        zh="没有在单个头里切断连边：有对照词的线索词太少，或没有要求这样做。",
    ),
    "study.chosen_mass": Message(en="mass", zh="按注意力"),
    "study.chosen_drawn": Message(en="at random", zh="随机"),
    "study.col_chosen": Message(en="chosen by", zh="挑选方式"),
    "study.col_p_mass": Message(en="p mass", zh="注意力的 p"),
    "study.col_p_effect": Message(en="p cut", zh="切断的 p"),
    "study.col_said": Message(en="mass and cause", zh="注意力与因果"),
    "study.said_both": Message(en="agree: looks and moves", zh="一致：既看又移动"),
    "study.said_looks": Message(en="disagree: looks, no effect shown", zh="不一致：看，但未见效应"),
    "study.said_moves": Message(en="disagree: moves, no mass shown", zh="不一致：移动，但未见注意力"),
    "study.said_neither": Message(en="agree: neither shown", zh="一致：两者都未见"),
    "study.why_all_neutral": Message(
        en="every case that marks a word is said to be neutral",
        zh="凡标出词的例句都标为中性",
    ),
    "study.under_cuts_thin": Message(
        en="fewer than {fewest} cue words, so no difference is claimed",
        zh="线索词少于 {fewest} 个，不断言差异",
    ),
    "study.senses_cut_table_p": Message(
        en="The sense under a cut in every layer (n = {n} cue words; cue against control: p = {p} on the axis)",
        zh="每一层都切断时的义项（n = {n} 个线索词；线索词对对照词：轴上位置的 p = {p}）",
    ),
    "study.single_looks": Message(
        en=" Mass and cause disagree: mass without effect shown in (layer.head) {names}.",
        zh="注意力与因果不一致：有注意力而未见效应的头（层.头）：{names}。",
    ),
    "study.single_moves": Message(
        en=" Effect without mass shown in (layer.head) {names}.",
        zh="有效应而未见注意力的头（层.头）：{names}。",
    ),
    "study.reference_as_high": Message(
        en=" Random weights tell the senses apart as well as this model here ({random} against {own}): the words around the target are enough.",
        zh="在这里随机权重区分义项的能力不低于本模型（{random} 对 {own}）：目标词周围的词已经足够。",
    ),
    "study.random_weights": Message(
        en="random weights, seed {seed}",
        zh="随机权重，种子 {seed}",
    ),
    "senses.controls": Message(
        en="香蕉 and 华为手机 are controls in which no sense changes: heads that also stand out there tell words apart, not senses.",
        zh="“香蕉”和“华为手机”是义项不变的对照：在那里也突出的头区分的是词，不是义项。",
    ),
    "senses.to_cue": Message(
        en="target → cue",
        zh="目标词 → 线索词",
    ),
    "senses.to_target": Message(
        en="cue → target",
        zh="线索词 → 目标词",
    ),
    "study.reference": Message(en="Beside random weights", zh="与随机权重并列"),
    "study.reference_text": Message(
        en="The same numbers on the same {cases} cases, whole groups spread over the set, for this model and for one of the same shape whose weights were drawn at random: one draw, an effect size and no test. Fewer cases than above give other numbers than above.",
        zh="在同样的 {cases} 个例句上（整组抽取，遍布全集），本模型与一个结构相同、权重随机的模型的同样数值：只抽取一次，是效应大小，不是检验。例句比上文少时，数值与上文不同。",
    ),
    "study.reference_table": Message(en="Effect sizes beside random weights", zh="与随机权重并列的效应大小"),
    "study.col_model": Message(en="model", zh="模型"),
    "study.col_slot_gap": Message(en="cue − neutral cut", zh="切断线索词减中性词"),
    "study.col_accuracy": Message(en="sense accuracy", zh="义项正确率"),
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
        en="Intervals are 95 % bootstraps over cue words: sentences with the same cue are averaged first, a case without a cue counts by itself; sense accuracy in states goes by groups. They hold for this model and these sentences.",
        zh="区间是 95 % 自助法区间，单元是线索词：线索词相同的句子先取平均，没有线索词的例句各算一个；表示中的义项正确率按组计算。区间只对这个模型和这些句子成立。",
    ),
    "study.reading_control": Message(
        en="The matched control has as many tokens as the cue and stands at about the same distance, yet it is another word in another slot. A random model also shows heads that differ between two words, so a difference in mass is no proof that a head reads cues.",
        zh="匹配对照词与线索词的词元数相同、距离相近，但它是另一个位置上的另一个词。随机模型中也有对两个词区别对待的头，因此注意力之差不能证明某个头在读线索词。",
    ),
    "study.reading_limits": Message(
        en="All sentences were written for this tool; they show how to look, and are no sample of the language.",
        zh="所有句子都是为本工具写的；它们演示怎样看，并不是语言的抽样。",
    ),
    "study.reading_limits_own": Message(
        en="These sentences are the user's own; the results speak of them, not of the language.",
        zh="这些句子由使用者提供；结果只说明这些句子，不代表整个语言。",
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
    "study.col_n_control": Message(
        en="n with control",
        zh="n（有对照）",
    ),
    "study.col_n_control_cut": Message(
        en="n with control, cut",
        zh="n（有对照，切断）",
    ),
    "study.col_n_control_mass": Message(
        en="n with control, mass",
        zh="n（有对照，注意力）",
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
    # Senses
    "senses.cause": Message(
        en="Minimal groups: the cut edge to the cue moves the reading word more than the edge to a neutral word in the same slot for {more}, and less for {less}; no difference can be shown for {none} (sign flips over cue words, corrected over contrasts).",
        zh="最小对立组：与同一位置上的中性词相比，切断通向线索词的边使读取词移动更多的有 {more}，移动更少的有 {less}；看不出差别的有 {none}（按线索词做符号翻转检验，并对各组对比校正）。",
    ),
    "senses.heads": Message(
        en="Heads that read the cue rather than the neutral word (max-T over every head, {directions} directions and all contrasts, {total} heads each): {hits}. An uncorrected test would have named {uncorrected}.",
        zh="更关注线索词而非中性词的头（对所有头、{directions} 个方向和全部对比做 max-T 校正，每项 {total} 个头）：{hits}。不校正的检验会报出 {uncorrected} 个。",
    ),
    "senses.states": Message(
        en="Senses in the states ({readout}): nearest centroid with one group left out is right at {last} at the last layer, {first} at the embedding and at most {best} (state layer {layer}, picked after the fact; {cases} cases, {senses} senses, groups weighted alike). Without any state: {context} from the mean embedding of the other words, {neighbours} from the two characters beside the target, {frequent} from always guessing the word's most frequent sense, known in advance.",
        zh="状态中的义项（{readout}）：留出一组的最近质心在末层的正确率为 {last}，嵌入层 {first}，最高 {best}（状态层 {layer}，事后挑出；{cases} 例，{senses} 个义项，各组权重相同）。不看任何状态：用其他词的平均嵌入 {context}，用目标词两侧的字 {neighbours}，总是猜该词最常见的义项（事先已知）{frequent}。",
    ),
    "senses.states_invisible": Message(
        en="Senses in the states: not visible. The states at {readout} are the same in all cases{cause}, so no accuracy is given.",
        zh="状态中的义项：不可见。{readout}处的状态在所有例句中相同{cause}，因此不给出正确率。",
    ),
    "senses.states_few": Message(
        en=" Left out, with fewer than three sentences: {names}.",
        zh="例句少于三个而未计入：{names}。",
    ),
    "senses.states_masked": Message(
        en=" (in a causal model a word does not see what comes after it)",
        zh="（因果模型中，词看不到它后面的内容）",
    ),
    "senses.states_undecided": Message(
        en="Senses in the states: not decided. Each sense stands in one group alone, so with its group left out nothing is known of it.",
        zh="状态中的义项：无法判断。每个义项只出现在一个组里，留出该组后便没有它的例句。",
    ),
    "senses.states_undecided_cases": Message(
        en=" Cases that cannot be decided, since their sense stands in no other group: {count}.",
        zh="义项不在其他组出现而无法判断的例句：{count} 个。",
    ),
    "senses.below_guess": Message(
        en=" A number below that guess is no knowledge: with its group left out a case's own sense is the rarer one, so what learns nothing falls below guessing.",
        zh="低于这一猜测的数字不表示知道什么：留出一组后，例句自己的义项变得较少，什么也没学到的方法便会低于猜测。",
    ),
    "senses.states_thin": Message(
        en=" There are too few groups for an interval.",
        zh="组数太少，不给区间。",
    ),
    "senses.carrier": Message(
        en=" The carrier sentence gives part of it away: with a neutral word in the cue's place the sense of its group is found in {alone} of {cases} cases at the last layer and in at most {most} at any layer, against {cued} at the last layer with the cue in the same groups.",
        zh="其中一部分来自句子框架：线索词的位置换成中性词后，最后一层仍能在 {cases} 个例句的 {alone} 中找出该组的义项，各层最高 {most}；同样这些组里有线索词时最后一层为 {cued}。",
    ),
    "senses.carrier_mixed": Message(
        en=" Groups whose cues have several senses have no one label and are not counted there: {count}.",
        zh="线索词含多个义项的组没有唯一标签，不计入：{count} 组。",
    ),
    "senses.only_neutral": Message(
        en="Senses in the states: none. Every case that is labelled is neutral, so there is no sense to tell apart.",
        zh="状态中的义项：无。有标注的例句全是中性的，没有可区分的义项。",
    ),
    "senses.nothing_to_tell": Message(
        en="Senses in the states: nothing to tell apart. No word has two senses with at least {fewest} sentences each; there are {words}.",
        zh="状态中的义项：没有可区分的。没有哪个词有两个各含至少 {fewest} 个例句的义项；现有 {words}。",
    ),
    "senses.states_not_kept": Message(
        en="Senses in the states: not measured. With {cases} cases the states were not kept, since they would fill the memory.",
        zh="状态中的义项：未测量。例句有 {cases} 个，状态会占满内存，未保留。",
    ),
    "senses.no_groups": Message(
        en="No minimal group: no cue has a neutral word of as many tokens in the same slot of the same sentence, so heads and cut edges are not tested on senses.",
        zh="没有最小对立组：没有线索词在同一句子的同一位置上有词元数相同的中性词，因此不对头和切断的边做义项检验。",
    ),
    "senses.contrasts": Message(
        en="Heads and causes in minimal groups",
        zh="最小对立组中的头与因果",
    ),
    "senses.contrasts_text": Message(
        en="A group is one carrier sentence with a cue or with a neutral word of its own in one slot. The unit is the cue word. p is two-sided, from sign flips, and holds over every head, direction and contrast printed here (max-T); heads below {level} may be claimed.",
        zh="一组是同一个句子框架，同一位置填入线索词或它自己的中性词。单元是线索词。p 为双侧，来自符号翻转，对这里列出的所有头、方向和对比同时成立（max-T）；低于 {level} 的头才可以声称。",
    ),
    "senses.thin": Message(
        en="Too few cue words to claim a head (fewer than {fewest}), so described without a p: {names}.",
        zh="线索词太少（不足 {fewest} 个），不能声称某个头，只描述而不给 p：{names}。",
    ),
    "senses.contrasts_table": Message(
        en="Attention mass: cue minus neutral word in the same slot",
        zh="注意力：同一位置上线索词减中性词",
    ),
    "senses.cuts_table": Message(
        en="Cut edge in every layer: effect of the cue minus effect of the neutral word",
        zh="在所有层切断边：线索词的影响减中性词的影响",
    ),
    "senses.groups": Message(
        en="Example groups",
        zh="例组",
    ),
    "senses.groups_text": Message(
        en="The first group of each of the first contrasts, chosen by order and not by what they show; the row of the reading word in the head that differs most for that contrast: the target, or the cue where a causal model cannot look ahead.",
        zh="按顺序取前几项对比的第一组，不按结果挑选；图中是该对比差异最大的头里读取词的一行：即目标词；因果模型看不到后文时为线索词。",
    ),
    "senses.group": Message(
        en="{contrast}: layer {layer}, head {head}",
        zh="{contrast}：第 {layer} 层第 {head} 头",
    ),
    "senses.group_back": Message(
        en="{contrast}: layer {layer}, head {head}, cue → target",
        zh="{contrast}：第 {layer} 层第 {head} 头，线索词 → 目标词",
    ),
    "senses.row_cue": Message(
        en="cue",
        zh="线索词",
    ),
    "senses.row_neutral": Message(
        en="neutral",
        zh="中性词",
    ),
    "senses.senses": Message(
        en="Where the senses come apart",
        zh="义项在哪里分开",
    ),
    "senses.states_text": Message(
        en="States are read at {readout}, centred per layer on the training groups. State layer 0 is the embedding, where one row of the table serves every sense.",
        zh="状态取自{readout}，按层以训练组居中。第 0 个状态层是嵌入，同一行服务于所有义项。",
    ),
    "senses.carrier_text": Message(
        en="The carrier alone: the neutral case of each group, decided by the cue cases of the other groups; its label is the sense of its group's cues. What it has above guessing comes from the sentence, and not from the cue.",
        zh="仅句子框架：每组的中性例句由其他组的线索例句来判断，标签取本组线索词的义项。高于乱猜的部分来自句子，不来自线索词。",
    ),
    "senses.not_visible": Message(
        en="Not visible at state layer {layers}: the states are the same in all cases there.",
        zh="在第 {layers} 个状态层不可见：那里所有例句的状态相同。",
    ),
    "senses.not_visible_words": Message(
        en="Not visible at state layer {layer} for {words}: the states of these words are the same in all their cases, and they are left out there.",
        zh="在第 {layer} 个状态层，{words} 不可见：这些词在其所有例句中的状态相同，该层不计入。",
    ),
    "senses.states_curve": Message(
        en="Sense accuracy by state layer",
        zh="各状态层的义项正确率",
    ),
    "senses.states_alt": Message(
        en="Line chart: accuracy of nearest centroid by state layer with 95 % interval, and its baselines: the carrier alone where there are neutral cases, and flat lines.",
        zh="折线图：各状态层最近质心法的正确率及 95 % 区间，以及基线：仅句子框架（有中性例句时）和水平线。",
    ),
    "senses.states_table": Message(
        en="Senses in the states",
        zh="状态中的义项",
    ),
    "senses.words_table": Message(
        en="Senses by word, at the last state layer ({layer})",
        zh="各词的义项，最后一个状态层（{layer}）",
    ),
    "senses.accuracy": Message(
        en="accuracy",
        zh="正确率",
    ),
    "senses.line_states": Message(
        en="states, one group left out",
        zh="状态（留出一组）",
    ),
    "senses.line_carrier": Message(
        en="carrier alone (neutral word in the cue's place)",
        zh="仅句子框架（线索词处换成中性词）",
    ),
    "senses.line_context": Message(
        en="mean embedding of the other words",
        zh="其他词的平均嵌入",
    ),
    "senses.line_neighbours": Message(
        en="two characters beside the target",
        zh="目标词两侧的两个字",
    ),
    "senses.line_frequent": Message(
        en="always the word's most frequent sense",
        zh="总猜该词最常见的义项",
    ),
    "senses.readout_target": Message(
        en="the target",
        zh="目标词",
    ),
    "senses.readout_cue": Message(
        en="the cue",
        zh="线索词",
    ),
    "senses.readout_later": Message(
        en="the later of target and cue",
        zh="目标词与线索词中靠后的一个",
    ),
    "senses.readout_last": Message(
        en="the last token",
        zh="最后一个词元",
    ),
    "senses.col_contrast": Message(
        en="contrast",
        zh="对比",
    ),
    "senses.col_direction": Message(
        en="direction",
        zh="方向",
    ),
    "senses.col_words": Message(
        en="cue words",
        zh="线索词数",
    ),
    "senses.col_heads": Message(
        en="heads, corrected",
        zh="头数（校正）",
    ),
    "senses.col_uncorrected": Message(
        en="uncorrected",
        zh="未校正",
    ),
    "senses.col_best": Message(
        en="strongest (layer.head)",
        zh="最强（层.头）",
    ),
    "senses.col_difference": Message(
        en="difference",
        zh="差",
    ),
    "senses.col_p": Message(
        en="p",
        zh="p",
    ),
    "senses.col_low": Message(
        en="low",
        zh="下限",
    ),
    "senses.col_high": Message(
        en="high",
        zh="上限",
    ),
    "senses.col_state_layer": Message(
        en="state layer",
        zh="状态层",
    ),
    "senses.col_accuracy": Message(
        en="accuracy",
        zh="正确率",
    ),
    "senses.col_carrier": Message(
        en="carrier alone",
        zh="仅句子框架",
    ),
    "senses.col_word": Message(
        en="word",
        zh="词",
    ),
    "senses.col_senses": Message(
        en="senses",
        zh="义项数",
    ),
    "senses.col_cases": Message(
        en="cases",
        zh="例句数",
    ),
    "senses.col_frequent": Message(
        en="always the most frequent",
        zh="总猜最常见",
    ),
    "senses.col_neighbours": Message(
        en="two characters",
        zh="两侧的两个字",
    ),
    "senses.col_silhouette": Message(
        en="silhouette",
        zh="轮廓系数",
    ),
    "senses.col_within": Message(
        en="cosine within",
        zh="同义项余弦",
    ),
    "senses.col_across": Message(
        en="cosine across",
        zh="异义项余弦",
    ),
    # Cases without cues
    "readings.title": Message(en="Without cues: what the target reads", zh="没有线索词时：目标词读取什么"),
    "readings.text": Message(
        en="Where no cue is marked, every other word that the target can read is tried in turn: the edge from the target to this word is cut in every layer and head, and the effect is how far the target's last state moves, in its own length. Words are the smallest pieces that are slices of the text. Attention mass, the mean over layers and heads, stands beside the effect and describes. After a cut the word's share goes to the others, and what reaches the target through other words stays: small effects do not show that a word is not used. A text's first word can move the target because of its place rather than its meaning, most of all in a causal model without a special token at the front, where it is the attention sink. The list says what the target reads, not which word tells its sense.",
        zh="没有标出线索词时，依次考察目标词能读取的其他每个词：在所有层和头中切断从目标词到该词的边，影响是目标词最后一层状态移动的距离，以其自身长度计。词是文本切片中最小的单位。注意力（对层和头取平均）列在旁边，只作描述。切断后，该词的份额分给其他词，经由其他词到达目标词的内容仍在：影响小并不说明这个词没有用到。文本的第一个词可能因其位置而非含义使目标词移动，在开头没有特殊标记的因果模型中尤其如此，那里它就是注意力汇点。此表说明目标词读取什么，而不是哪个词决定其义项。",
    ),
    "readings.looked": Message(
        en="{count} of the {total} cases without cues were looked at, spread over the set.",
        zh="在 {total} 个没有线索词的例句中，均匀选取了 {count} 个。",
    ),
    "readings.looked_one": Message(
        en="{count} of the {total} cases without cues was looked at.",
        zh="在 {total} 个没有线索词的例句中，选取了 {count} 个。",
    ),
    "readings.nothing": Message(
        en="In {count} cases the target can read no other word: in a causal model nothing stands before a first word.",
        zh="有 {count} 个例句的目标词读不到其他词：在因果模型中，第一个词之前没有内容。",
    ),
    "readings.nothing_one": Message(
        en="In {count} case the target can read no other word: in a causal model nothing stands before a first word.",
        zh="有 {count} 个例句的目标词读不到其他词：在因果模型中，第一个词之前没有内容。",
    ),
    "readings.still": Message(
        en="In {count} cases no word's cut edge moves the target's state at all.",
        zh="有 {count} 个例句，切断通向任何一个词的边都不会使目标词的状态移动。",
    ),
    "readings.still_one": Message(
        en="In {count} case no word's cut edge moves the target's state at all.",
        zh="有 {count} 个例句，切断通向任何一个词的边都不会使目标词的状态移动。",
    ),
    "readings.special": Message(
        en="In {count} of {total} cases the cut edge to a special token moves the target more than that to any word. Special tokens stand in the file below by name and are not ranked.",
        zh="在 {total} 个例句中，有 {count} 个例句里切断通向某个特殊标记的边比切断通向任何词的边使目标词移动更多。特殊标记以其名称列在下面的文件中，不参与排序。",
    ),
    "readings.special_one": Message(
        en="In {count} of {total} cases the cut edge to a special token moves the target more than that to any word. Special tokens stand in the file below by name and are not ranked.",
        zh="在 {total} 个例句中，有 {count} 个例句里切断通向某个特殊标记的边比切断通向任何词的边使目标词移动更多。特殊标记以其名称列在下面的文件中，不参与排序。",
    ),
    "readings.long": Message(
        en="{count} texts have more words than are cut: only the {most} with the largest attention mass were, and the table says how many were left out.",
        zh="{count} 个文本的词数超出上限：只切断通向注意力最大的 {most} 个词的边，未计入的词数见表。",
    ),
    "readings.long_one": Message(
        en="{count} text has more words than are cut: only the {most} with the largest attention mass were, and the table says how many were left out.",
        zh="{count} 个文本的词数超出上限：只切断通向注意力最大的 {most} 个词的边，未计入的词数见表。",
    ),
    "readings.table": Message(
        en="Words read by the target, the first {count} of {total} cases: effect, with attention mass in brackets; whether both name the same word; Spearman correlation of the two over the words; how many words were cut and left out",
        zh="目标词读取的词，{total} 个例句中的前 {count} 个：影响，括号内为注意力；两者是否指向同一个词；两者在各词间的斯皮尔曼相关；切断与未计入的词数",
    ),
    "readings.table_one": Message(
        en="Words read by the target, the first {count} of {total}: effect, with attention mass in brackets; whether both name the same word; Spearman correlation of the two over the words; how many words were cut and left out",
        zh="目标词读取的词，{total} 个例句中的前 {count} 个：影响，括号内为注意力；两者是否指向同一个词；两者在各词间的斯皮尔曼相关；切断与未计入的词数",
    ),
    "readings.by_effect": Message(en="{word} {effect} (mass {mass})", zh="{word} {effect}（注意力 {mass}）"),
    "readings.by_mass": Message(en="{word} ({mass})", zh="{word}（{mass}）"),
    "readings.join": Message(en=", ", zh="、"),
    "readings.yes": Message(en="yes", zh="是"),
    "readings.no": Message(en="no", zh="否"),
    "readings.cell_nothing": Message(en="nothing to read", zh="没有可读取的词"),
    "readings.cell_still": Message(en="no word moves it", zh="没有词使其移动"),
    "readings.col_case": Message(en="case", zh="例句"),
    "readings.col_text": Message(en="text", zh="文本"),
    "readings.col_target": Message(en="target", zh="目标词"),
    "readings.col_effect": Message(en="largest effects", zh="影响最大"),
    "readings.col_mass": Message(en="largest mass", zh="注意力最大"),
    "readings.col_same": Message(en="same", zh="相同"),
    "readings.col_correlation": Message(en="Spearman", zh="相关"),
    "readings.col_words": Message(en="cut", zh="切断"),
    "readings.col_left_out": Message(en="left out", zh="未计入"),
    "readings.summary": Message(
        en="Without cues: in {same} of {count} cases the word whose cut edge moves the target's last state most is also the word with the largest attention mass.",
        zh="没有线索词时：{count} 个例句中，有 {same} 个例句里切断其边使目标词最后一层状态移动最多的词，也是注意力最大的词。",
    ),
    "readings.summary_one": Message(
        en="Without cues: in {same} of {count} case the word whose cut edge moves the target's last state most is also the word with the largest attention mass.",
        zh="没有线索词时：{count} 个例句中，有 {same} 个例句里切断其边使目标词最后一层状态移动最多的词，也是注意力最大的词。",
    ),
    "readings.correlation": Message(
        en=" Between effect and mass, over the words of a case, the mean Spearman correlation is {mean}, in {count} cases with at least {fewest} words.",
        zh="在 {count} 个至少有 {fewest} 个词的例句中，各词的影响与注意力之间的斯皮尔曼相关平均为 {mean}。",
    ),
    "readings.correlation_one": Message(
        en=" Between effect and mass, over the words of a case, the Spearman correlation is {mean}, in {count} case with at least {fewest} words.",
        zh="在 {count} 个至少有 {fewest} 个词的例句中，各词的影响与注意力之间的斯皮尔曼相关为 {mean}。",
    ),
    # Two models on the same cases
    "comparison.title": Message(en="Two models on {cases}", zh="两个模型读 {cases}"),
    "comparison.subtitle": Message(en="A: {a} · B: {b} · {count} cases", zh="A：{a} · B：{b} · {count} 个例句"),
    "comparison.findings": Message(en="What differs", zh="有什么不同"),
    "comparison.read": Message(
        en="A is {a}, B is {b}. Both were shown the same {count} cases; {paired} of them are compared, those that both saw with the same text. Differences are B − A, case by case.",
        zh="A 是 {a}，B 是 {b}。两者读了同样的 {count} 个例句；其中两者所见文本相同的 {paired} 个参与比较。差都是逐例的 B − A。",
    ),
    "comparison.identical": Message(
        en="A and B gave exactly the same numbers in every case, layer and head: every difference is exactly 0.",
        zh="A 与 B 在每个例句、每层、每头上给出的数值完全相同：所有的差恰为 0。",
    ),
    "comparison.cause": Message(
        en="Cause: with the edge to the cue cut in every layer and head, the reading word's last state moves by {a} of its length in A and by {b} in B. The difference is {difference} percentage points over {cases} cases ({units} cues): {verdict}.",
        zh="因果：在所有层和头中切断通向线索词的边，读取词（双向模型中即目标词）的最后一层状态在 A 中移动其长度的 {a}，在 B 中移动 {b}。{cases} 个例句（{units} 个线索）上的差为 {difference} 个百分点：{verdict}。",
    ),
    "comparison.cause_control": Message(
        en="Above a matched control word, the cue moves the state by {a} points in A and by {b} in B; the difference is {difference} percentage points: {verdict}.",
        zh="减去匹配对照词的影响后，线索词使状态移动 A 中 {a}、B 中 {b} 个百分点；差为 {difference} 个百分点：{verdict}。",
    ),
    "comparison.cause_same_tokens": Message(
        en="Over the {cases} cases whose target and cues take as many tokens in both, the difference of the cue's effect is {difference} percentage points: {verdict}.",
        zh="在目标词与线索词的词元数两者相同的 {cases} 个例句上，线索词影响的差为 {difference} 个百分点：{verdict}。",
    ),
    "comparison.other_edge": Message(
        en="In {count} cases the edge that can be cut is not the same one in both, since one of the two reads forwards only; these are left out of the pairs.",
        zh="有 {count} 个例句中两者可切断的边不是同一条（其中一个只能向前读）；它们不参与配对。",
    ),
    "comparison.no_cuts": Message(
        en="Effects of cut edges are not compared ({reason}), so this page describes attention and says nothing about what it does.",
        zh="没有比较切断边的影响（{reason}），因此本页只描述注意力，不说明它起什么作用。",
    ),
    "comparison.no_pairs": Message(en="no case has an edge to cut in both", zh="没有在两者中都可切断边的例句"),
    "comparison.claims": Message(
        en="Heads: {claimed} of {cells} (heads × directions) give the cue or the target a different share of attention in B than in A (sign-flip test over cue words, max-T over all of them, p < 0.05).",
        zh="头：{cells} 个（头 × 方向）中有 {claimed} 个在 B 中给线索词或目标词的注意力比例与 A 不同（对线索词做符号翻转检验，对全部取 max-T，p < 0.05）。",
    ),
    "comparison.thin": Message(
        en="Heads: fewer than {fewest} distinct cue words have a number in both models, so the differences are described and not tested.",
        zh="头：两个模型中都有数值的不同线索词少于 {fewest} 个，因此对差只作描述，不作检验。",
    ),
    "comparison.unlike": Message(
        en="A has {a_layers} attention layers of {a_heads} heads, B has {b_layers} of {b_heads}, or they are not the same modules: head and head cannot be paired. Curves by relative depth stand in their place, layer / (layers − 1): 0 is the first layer and 1 the last.",
        zh="A 有 {a_layers} 个注意力层、每层 {a_heads} 个头，B 有 {b_layers} 层、每层 {b_heads} 个头，或模块不同：头与头无法配对。这里改用相对深度的曲线，即 层号 /（层数 − 1）：0 为第一层，1 为最后一层。",
    ),
    "comparison.tokens": Message(
        en="Tokens: the target takes {a} tokens in A and {b} in B on average, and a different number in {differ} of {cases} cases.",
        zh="词元：目标词平均在 A 中占 {a} 个词元，在 B 中占 {b} 个；{cases} 个例句中有 {differ} 个的词元数不同。",
    ),
    "comparison.verdict_more": Message(en="more in B", zh="B 更多"),
    "comparison.verdict_less": Message(en="less in B", zh="B 更少"),
    "comparison.verdict_none": Message(en="no difference can be shown", zh="看不出差别"),
    "comparison.verdict_thin": Message(en="too few units for an interval", zh="单元太少，没有区间"),
    "comparison.verdict_zero": Message(en="exactly the same", zh="完全相同"),
    "comparison.causes": Message(en="What the edge to the cue does in both", zh="通向线索词的边在两者中起什么作用"),
    "comparison.causes_text": Message(
        en="The same edge of the same case is cut in both models, in every layer or in one layer at a time, and the move of the reading word's last state is measured as a share of that state's length in that model.",
        zh="在两个模型中切断同一例句的同一条边，在所有层同时切断，或每次只在一层切断；量读取词最后一层状态的移动，以该模型中该状态长度的比例表示。",
    ),
    "comparison.cut_table": Message(
        en="Edge cut in every layer, the same cases in both", zh="在所有层切断边，两者用相同的例句"
    ),
    "comparison.of_cue": Message(en="edge to the cue", zh="通向线索词的边"),
    "comparison.of_control": Message(en="edge to the matched control", zh="通向匹配对照词的边"),
    "comparison.of_difference": Message(en="cue − control", zh="线索词 − 对照词"),
    "comparison.cut_curve": Message(
        en="Effect of the edge to the cue, cut in one layer", zh="只在一层切断通向线索词的边的影响"
    ),
    "comparison.mass_curve": Message(
        en="Mass on the cue by layer, mean over heads", zh="各层给线索词的注意力质量（对头平均）"
    ),
    "comparison.curve_alt": Message(
        en="Line chart, a line for A and one for B on one scale, with 95 % intervals: {what}.",
        zh="折线图，A 与 B 各一条线，同一刻度，附 95 % 区间：{what}。",
    ),
    "comparison.moved": Message(en="move of the last state", zh="末层状态的移动"),
    "comparison.share": Message(en="share of the row", zh="占该行的比例"),
    "comparison.difference_unit": Message(en="difference of shares", zh="比例之差"),
    "comparison.depth": Message(en="relative depth, 0 first, 1 last", zh="相对深度（0 首层，1 末层）"),
    "comparison.attention": Message(en="Where attention goes in both", zh="注意力在两者中去了哪里"),
    "comparison.maps_text": Message(
        en="One cell a head. The maps of A and B have one scale; in the map of B − A red is more in B and blue more in A, and a framed head may be claimed. A head of A and the head at its place in B are the same head only where one model was made from the other.",
        zh="每格一个头。A 与 B 的图用同一色标；在 B − A 的图中，红色表示 B 更多，蓝色表示 A 更多，加框的头可以下结论。只有一个模型由另一个得来时，相同位置的头才是同一个头。",
    ),
    "comparison.map_cue": Message(
        en="{side}: mass from the target to the cue", zh="{side}：目标词给线索词的注意力质量"
    ),
    "comparison.map_back": Message(
        en="{side}: mass from the cue to the target", zh="{side}：线索词给目标词的注意力质量"
    ),
    "comparison.map_alt": Message(
        en="Heat map, a row for each layer and a column for each head: {what}.", zh="热图，每行一层，每列一头：{what}。"
    ),
    "comparison.heads_table": Message(
        en="Largest differences (sorted after the fact; p is corrected over all heads and both directions)",
        zh="差最大的头（事后排序；p 已对所有头和两个方向校正）",
    ),
    "comparison.to_cue": Message(en="target → cue", zh="目标词 → 线索词"),
    "comparison.to_target": Message(en="cue → target", zh="线索词 → 目标词"),
    "comparison.sentences": Message(en="Sentence beside sentence", zh="逐句对照"),
    "comparison.sentences_text": Message(
        en="The target's row in A and below it in B, over the smallest slices of the text that are whole tokens in both; special tokens are added up in front. One scale for both; a mean over layers is over those of both.",
        zh="目标词在 A 中的行，其下是在 B 中的行；按两者中都由完整词元组成的最小文本片段排列，特殊标记合并放在最前。两者同一色标；对层取平均时包括两者的层。",
    ),
    "comparison.sentences_mean": Message(
        en="The two have different heads, so each row is the mean over the heads of a layer.",
        zh="两者的头不同，因此每行是该层各头的平均。",
    ),
    "comparison.special": Message(en="special", zh="特殊"),
    "comparison.confound": Message(en="Tokens per word", zh="每个词的词元数"),
    "comparison.confound_text": Message(
        en="Mass on a word is summed over its tokens and the row of a word is the mean over its tokens, so a model that cuts words into more tokens is measured another way. Where the numbers differ, read a difference between the models with this table beside it.",
        zh="一个词得到的注意力是其各词元之和，一个词的行是其各词元的平均，因此把词切得更碎的模型是以另一种方式被测量的。词元数不同时，看两个模型的差要与此表对照。",
    ),
    "comparison.confound_table": Message(en="Tokens, mean over cases", zh="词元数，对例句取平均"),
    "comparison.tokens_target": Message(en="target", zh="目标词"),
    "comparison.tokens_cue": Message(en="cues", zh="线索词"),
    "comparison.tokens_text": Message(en="whole text", zh="整个文本"),
    "comparison.checks": Message(en="Can the numbers of {side} be believed?", zh="{side} 的数字可信吗？"),
    "comparison.checks_text": Message(en="{model}; path of the rows: {path}.", zh="{model}；取行路径：{path}。"),
    "comparison.reading": Message(en="How to read this", zh="怎样阅读"),
    "comparison.reading_pairs": Message(
        en="Every difference is taken within a case and averaged by cue word; intervals are 95 % bootstraps over cue words. They hold for these two models and these sentences.",
        zh="每个差都在同一例句内计算，再按线索词平均；区间是对线索词做的 95 % 自助法区间，只对这两个模型和这些句子成立。",
    ),
    "comparison.reading_claims": Message(
        en="That a head differs says that the two models read these sentences differently there. It does not say that either reads cues: two random models differ as well. What an edge does is shown by cutting it.",
        zh="某个头有差别，说明两个模型在那里读这些句子的方式不同，并不说明哪一个在读线索词：两个随机模型也会不同。边起什么作用，要靠切断它来看。",
    ),
    "comparison.reading_zero": Message(
        en="A difference of exactly 0 is printed as 0 and drawn with a ring: the two computed the same number.",
        zh="恰为 0 的差写作 0，在图中画一个圈：两者算出了同一个数。",
    ),
    "comparison.reading_control": Message(
        en="The matched control word is chosen among the tokens of each model, so with different tokenizers it may be another word in each.",
        zh="匹配对照词是在各模型的词元中选的，分词方式不同时可能不是同一个词。",
    ),
    "comparison.col_edge": Message(en="edge", zh="边"),
    "comparison.col_a": Message(en="A", zh="A"),
    "comparison.col_b": Message(en="B", zh="B"),
    "comparison.col_gap": Message(en="B − A", zh="B − A"),
    "comparison.col_low": Message(en="low", zh="下限"),
    "comparison.col_high": Message(en="high", zh="上限"),
    "comparison.col_n": Message(en="cues", zh="线索数"),
    "comparison.col_cases": Message(en="cases", zh="例句数"),
    "comparison.col_stack": Message(en="stack", zh="部分"),
    "comparison.col_layer": Message(en="layer", zh="层"),
    "comparison.col_head": Message(en="head", zh="头"),
    "comparison.col_direction": Message(en="direction", zh="方向"),
    "comparison.col_p": Message(en="p (max-T)", zh="p（max-T）"),
    "comparison.col_word": Message(en="of", zh="对象"),
    "comparison.col_differ": Message(en="cases that differ", zh="不同的例句数"),
    "comparison.same_weights": Message(
        en="A and B are one model (weights, configuration and tokenizer have the same SHA-256), yet not every number is the same: the two were not computed alike (device, precision, batches).",
        zh="A 与 B 是同一个模型（权重、配置与分词器的 SHA-256 相同），但数值不完全相同：两者的计算方式不同（设备、精度或批次）。",
    ),
    "comparison.sense_pairs": Message(
        en="Minimal groups: {pairs} pairs of cue and neutral word are compared, those that both tokenizers give with one number of tokens in the slot (A gives {a}, B {b}).",
        zh="最小对立组：比较 {pairs} 对线索词与中性词，即两个分词器都使该位置词元数相等的词对（A 有 {a} 对，B 有 {b} 对）。",
    ),
    "comparison.sense_cause": Message(
        en="How far the cut edge to the cue moves the reading word, above the edge to the neutral word in the same slot: {found} (sign flips over cue words, max-T over contrasts).",
        zh="减去同一位置上中性词的影响后，切断通向线索词的边使读取词移动的大小：{found}（按线索词做符号翻转，对各组对比取 max-T）。",
    ),
    "comparison.sense_cause_more": Message(en="more in B than in A for {names}", zh="B 大于 A 的有 {names}"),
    "comparison.sense_cause_less": Message(en="less in B than in A for {names}", zh="B 小于 A 的有 {names}"),
    "comparison.sense_cause_none": Message(en="no difference can be shown for {names}", zh="看不出差别的有 {names}"),
    "comparison.sense_cause_zero": Message(en="exactly the same for {names}", zh="完全相同的有 {names}"),
    "comparison.sense_cause_untested": Message(
        en="described and not tested, with too few cue words, for {names}",
        zh="线索词太少、只作描述不作检验的有 {names}",
    ),
    "comparison.between_names": Message(en=", ", zh="、"),
    "comparison.between_clauses": Message(en="; ", zh="；"),
    "comparison.sense_heads": Message(
        en="Heads that give the cue another share than the neutral word: {a} of {cells_a} in A, {b} of {cells_b} in B (heads × directions × contrasts; max-T within each model, p < 0.05).",
        zh="给线索词的比例与中性词不同的头：A 中 {cells_a} 个里有 {a} 个，B 中 {cells_b} 个里有 {b} 个（头 × 方向 × 对比；各模型内取 max-T，p < 0.05）。",
    ),
    "comparison.sense_heads_thin": Message(
        en="Heads in minimal groups: no contrast has {fewest} cue words in these pairs, so none is tested.",
        zh="最小对立组中的头：这些词对里没有一项对比达到 {fewest} 个线索词，因此不作检验。",
    ),
    "comparison.sense_head_gaps": Message(
        en="Between the models, that difference of cue and neutral word differs in {claimed} of {cells} heads (paired B − A by cue word, max-T over all heads, directions and contrasts, p < 0.05).",
        zh="两个模型之间，线索词与中性词之差不同的头：{cells} 个中有 {claimed} 个（按线索词配对的 B − A，对所有头、方向和对比取 max-T，p < 0.05）。",
    ),
    "comparison.state_last": Message(
        en="Senses in the states: at the last state layer the nearest centroid is right at {a} in A (layer {layer_a}) and at {b} in B (layer {layer_b}), on the same cases. The difference is {difference} percentage points over {groups} groups: {verdict}.",
        zh="状态中的义项：在最后一个状态层，最近质心法在相同例句上的正确率为 A {a}（第 {layer_a} 层）、B {b}（第 {layer_b} 层）。{groups} 组上的差为 {difference} 个百分点：{verdict}。",
    ),
    "comparison.state_best": Message(
        en="At the state layer that is best on one half of the groups (A: {layer_a}, B: {layer_b}), scored on the other half: {a} in A and {b} in B. The difference is {difference} percentage points over {groups} groups: {verdict}.",
        zh="在一半组上最好的状态层（A：{layer_a}，B：{layer_b}），用另一半评分：A {a}，B {b}。{groups} 组上的差为 {difference} 个百分点：{verdict}。",
    ),
    "comparison.states_invisible": Message(
        en="Senses in the last states of {sides}: not visible. These states are the same in all cases.",
        zh="{sides} 最后一层状态中的义项：不可见。所有例句的状态相同。",
    ),
    "comparison.states_many": Message(
        en="Senses in the states are not compared: with {count} cases the states of all of them are not kept.",
        zh="没有比较状态中的义项：例句有 {count} 个，不保存全部状态。",
    ),
    "comparison.verdict_untested": Message(
        en="described and not tested, with too few units", zh="单元太少，只作描述，不作检验"
    ),
    "comparison.contrasts": Message(en="Minimal groups in both", zh="两者中的最小对立组"),
    "comparison.contrasts_text": Message(
        en="A group is one carrier sentence with a cue or with a neutral word of its own in one slot. Of {a} pairs in A and {b} in B the {pairs} stand here that both tokenizers give in the same text. The unit is the cue word. p is two-sided, from flips of the sign of the difference; below {level} a head may be claimed, and only where there are enough cue words. In a contrast whose sense does not change, heads that stand out tell words apart and not senses.",
        zh="一组是同一个句子框架，同一位置填入线索词或它自己的中性词。A 有 {a} 对，B 有 {b} 对，这里是两个分词器在相同文本中都给出的 {pairs} 对。单元是线索词。p 为双侧，来自对差的符号翻转；线索词足够且 p 低于 {level} 的头才可以声称。义项不变的对比中突出的头区分的是词，不是义项。",
    ),
    "comparison.contrasts_unlike": Message(
        en="The two have other layers or heads, so heads are counted in each and their differences are not tested.",
        zh="两者的层或头不同，因此只在各自模型中计数，不检验头的差。",
    ),
    "comparison.sense_cut_table": Message(
        en="Cut edge in every layer: effect of the cue minus effect of the neutral word, over the cue words of both",
        zh="在所有层切断边：线索词的影响减中性词的影响，用两者共有的线索词",
    ),
    "comparison.sense_head_table": Message(
        en="Heads whose attention mass differs between cue and neutral word",
        zh="对线索词与中性词的注意力不同的头",
    ),
    "comparison.sense_map": Message(
        en="{contrast}: B − A of cue minus neutral word, target → slot",
        zh="{contrast}：线索词减中性词的 B − A，目标词 → 该位置",
    ),
    "comparison.sense_map_back": Message(
        en="{contrast}: B − A of cue minus neutral word, slot → target",
        zh="{contrast}：线索词减中性词的 B − A，该位置 → 目标词",
    ),
    "comparison.senses": Message(en="Where the senses come apart in both", zh="义项在两者中哪里分开"),
    "comparison.states_text": Message(
        en="The same {cases} cases ({groups} groups) in both. A is read at {a}, B at {b}. The states of two models lie in two spaces and are not subtracted; how often the nearest centroid is right, with one group left out, can be compared. The declared layers are the last one and the one that is best on one half of the groups, which is scored on the other half; the unit of the test is the group.",
        zh="两者用相同的 {cases} 个例句（{groups} 组）。A 取自{a}，B 取自{b}。两个模型的状态处在两个空间中，不能相减；可以比较的是留出一组的最近质心法有多常正确。事先声明的层是最后一层，以及在一半组上最好、用另一半评分的层；检验的单元是组。",
    ),
    "comparison.states_depth": Message(
        en="A has {a} state layers and B {b}, so the picture is by the share of the depth: 0 is the embedding, 1 the last layer.",
        zh="A 有 {a} 个状态层，B 有 {b} 个，因此图按相对深度绘制：0 为嵌入层，1 为最后一层。",
    ),
    "comparison.states_hidden": Message(
        en="Not visible, since the states are the same in all cases: state layers {layers}.",
        zh="不可见（所有例句的状态相同）的状态层：{layers}。",
    ),
    "comparison.states_curve": Message(
        en="Sense accuracy by state layer, both models", zh="各状态层的义项正确率，两个模型"
    ),
    "comparison.states_table": Message(en="Sense accuracy by state layer", zh="各状态层的义项正确率"),
    "comparison.states_table_of": Message(
        en="Sense accuracy by state layer of {side}", zh="{side} 各状态层的义项正确率"
    ),
    "comparison.state_gap_table": Message(
        en="Difference at the declared layers, right or wrong case by case", zh="声明的层上的差，逐例比较对错"
    ),
    "comparison.baseline_table": Message(
        en="What is known without the cue in the state", zh="状态中没有线索词时能知道多少"
    ),
    "comparison.carrier": Message(
        en="carrier alone, last state layer (neutral word in the cue's place)",
        zh="仅句子框架，最后一个状态层（线索词处为中性词）",
    ),
    "comparison.at_last": Message(en="last", zh="最后一层"),
    "comparison.at_best": Message(en="best on one half, scored on the other", zh="一半上最好，另一半评分"),
    "comparison.col_contrast": Message(en="contrast", zh="对比"),
    "comparison.col_heads_a": Message(en="heads A", zh="A 的头数"),
    "comparison.col_heads_b": Message(en="heads B", zh="B 的头数"),
    "comparison.col_heads_gap": Message(en="heads B − A", zh="B − A 的头数"),
    "comparison.col_strongest": Message(en="largest (layer.head)", zh="差最大（层.头）"),
    "comparison.col_p_contrasts": Message(en="p (over contrasts)", zh="p（对各对比校正）"),
    "comparison.col_p_layers": Message(en="p (over both layers)", zh="p（对两层校正）"),
    "comparison.col_at": Message(en="state layer", zh="状态层"),
    "comparison.col_layer_a": Message(en="layer of A", zh="A 的层"),
    "comparison.col_layer_b": Message(en="layer of B", zh="B 的层"),
    "comparison.col_groups": Message(en="groups", zh="组数"),
    "comparison.col_known_from": Message(en="known from", zh="依据"),
    "comparison.col_state_layer": Message(en="state layer", zh="状态层"),
    "comparison.col_depth": Message(en="share of depth", zh="相对深度"),
    "comparison.col_accuracy": Message(en="accuracy", zh="正确率"),
    "comparison.by_side": Message(en="{side}: model", zh="{side}：模型"),
    "comparison.by_weights": Message(en="{side}: weights, SHA-256", zh="{side}：权重 SHA-256"),
    "comparison.by_device": Message(en="{side}: device, precision", zh="{side}：设备与精度"),
    "comparison.by_cases": Message(en="cases", zh="例句"),
    # Figures
    "figure.layer": Message(en="layer", zh="层"),
    "figure.head": Message(en="head", zh="头"),
    "figure.zero": Message(en="exactly 0", zh="恰为 0"),
    "figure.absent": Message(en="no value", zh="无数值"),
    "figure.significant": Message(en="significant", zh="显著"),
    "figure.shown": Message(en="difference shown", zh="显示出差别"),
    "figure.not_shown": Message(en="no difference shown", zh="没有显示出差别"),
    "figure.no_interval": Message(en="no interval", zh="没有区间"),
    "figure.seeds": Message(en="lowest to highest seed", zh="各种子的最低到最高"),
    "figure.interval": Message(en="{estimate} ({low} to {high})", zh="{estimate}（{low} 至 {high}）"),
    "figure.target": Message(en="target", zh="目标词"),
    "figure.cue": Message(en="cue", zh="线索词"),
    "figure.undrawable": Message(en="□ no font has: {names}", zh="□ 字体中没有：{names}"),
}

MESSAGES |= {f"walk.{key}": Message(en=en, zh=zh) for key, (en, zh) in WALK.items()}
MESSAGES |= {f"claims.{key}": Message(en=en, zh=zh) for key, (en, zh) in CLAIM_STRINGS.items()}


def message(key: str, language: Language, /, **values: object) -> str:
    """Give the string `key` in `language`, filled in; exactly the values that it names must be given."""
    if key not in MESSAGES:
        raise KeyError(f"no message {key!r}")
    found = MESSAGES[key]
    wanted = found.placeholders(language)
    if wanted != values.keys():
        raise KeyError(f"message {key!r} wants {sorted(wanted)}, got {sorted(values)}")
    text = found.text(language).format(**values)
    # A full-width bracket brings its own space; whether a value ends with one is known only now.
    return text.replace("） 个百分点", "）个百分点") if language == "zh" else text


def messages_under(prefix: str, language: Language) -> dict[str, str]:
    """Give the unfilled strings whose key starts with `prefix`, keyed by what follows: for the page's script."""
    return {key.removeprefix(prefix): found.text(language) for key, found in MESSAGES.items() if key.startswith(prefix)}
