"""What the page on passages says, in both languages: the same keys, the same placeholders."""

from typing import Literal

Language = Literal["zh", "en"]

_TEXTS: dict[str, tuple[str, str]] = {  # key -> (zh, en)
    "title": ("资料有没有用上", "Were the passages used?"),
    "title.found": ("资料找得到吗", "Are the right passages found?"),
    "subtitle": (
        "{model} · {questions} 个问题，其中 {judged} 个有资料能回答，{unanswerable} 个没有 · 另有离题问题 {elsewhere} 个 · {passages} 段资料",
        "{model} · {questions} questions, {judged} that a passage answers and {unanswerable} that none does · {elsewhere} more "
        "about something else · {passages} passages",
    ),
    "subtitle.asked": (
        "{model} · {questions} 个问题，其中 {judged} 个有资料能回答，{unanswerable} 个没有；问了模型 {asked} 个 · "
        "另有离题问题 {elsewhere} 个 · {passages} 段资料",
        "{model} · {questions} questions, {judged} that a passage answers and {unanswerable} that none does; {asked} put to "
        "the model · {elsewhere} more about something else · {passages} passages",
    ),
    "verdict.title": ("结论", "Verdict"),
    "verdict.text": (
        "差值是同一批问题上两种条件之差，95 % 区间按资料所在的文档抽样。区间跨过 0，就没有显示出差别。",
        "A difference is between two conditions on the same questions, with a 95 % interval over the documents that the "
        "passages come from. Where the interval holds 0, no difference is shown.",
    ),
    "verdict.right": (
        "{one} − {other}：{estimate}，{questions} 个问题（{units} 个文档）：更倾向正确答案",
        "{one} − {other}: {estimate}, {questions} questions ({units} documents): towards the right answer",
    ),
    "verdict.wrong": (
        "{one} − {other}：{estimate}，{questions} 个问题（{units} 个文档）：更倾向错误答案",
        "{one} − {other}: {estimate}, {questions} questions ({units} documents): towards the wrong answer",
    ),
    "verdict.none": (
        "{one} − {other}：{estimate}，{questions} 个问题（{units} 个文档）：没有显示出差别",
        "{one} − {other}: {estimate}, {questions} questions ({units} documents): no difference is shown",
    ),
    "verdict.few": (
        "{one} − {other}：{estimate}，{questions} 个问题（{units} 个文档）：文档太少，没有区间，也就没有结论",
        "{one} − {other}: {estimate}, {questions} questions ({units} documents): too few documents for an interval, so "
        "nothing is claimed",
    ),
    "verdict.caption": ("每种条件与对照之差", "Each condition against its control"),
    "retrieval.title": ("检索", "Retrieval"),
    "retrieval.text": (
        "词检索是分词后的 BM25，向量检索比较编码器的向量，合并检索把词检索和向量检索的名次按权重合并，向量占 {weight}。有资料能回答的问题分成两份"
        "（按题号散列，{chosen} 与 {other} 题）：权重在 {chosen} 题上选出，表中是另外 {other} 题的结果。",
        "lexical is BM25 over segmented words, dense is vectors, hybrid joins both rankings with a weight ({weight} on "
        "vectors). The questions that a passage answers are in two parts (by a hash of the id, {chosen} and {other} "
        "questions): the weight was chosen on the {chosen}, the tables have the results on the other {other}.",
    ),
    "retrieval.single": (
        "选出的权重是 {weight}：合并检索就是{mode}本身。",
        "The chosen weight is {weight}: hybrid is then {mode} alone.",
    ),
    "retrieval.words": (
        "词检索是分词后的 BM25；没有编码器，所以没有向量检索，也没有合并检索。",
        "lexical is BM25 over segmented words; without an encoder there is no search by vectors.",
    ),
    "retrieval.alike": (
        "词检索是分词后的 BM25，向量检索比较编码器的向量，合并检索把词检索和向量检索的名次各占一半地合并：问题太少，没有选权重。",
        "lexical is BM25 over segmented words, dense is vectors, hybrid joins both rankings at equal weights: there are "
        "too few questions to choose a weight on.",
    ),
    "retrieval.caption": ("各检索方式，{queries} 个问题", "Each way of searching, {queries} questions"),
    "retrieval.against": ("合并检索与较好的单一方式（{better}）之差", "hybrid minus the better one of both ({better})"),
    "threshold.title": ("什么时候该说“资料没有说明”", "When to say that the passages do not say"),
    "threshold.text": (
        "阈值在一半可答问题和一半离题问题上按检索分数选出（可答问题最多拒答 {most}），在另一半上衡量。"
        "不离题、但没有资料能回答的 {unanswerable} 个问题没有参与选择（“不离题”两行）；如果题集里没有离题的问题，就改用这些来选。"
        "误拒是拒答了的可答问题，误答是没有拒答的不可答问题。平衡准确率 0.5 等于没有阈值，AUROC 0.5 等于分数什么也分不出。",
        "A threshold on the best hit's score, chosen on one half of the answerable questions and of questions about something else (refusing at most {most} of the answerable) and measured on the other half. "
        "The {unanswerable} questions on the set's subjects that no passage answers had no part in that (the rows “on the subject”); where a set has no questions about something else, they are what it is chosen on. "
        "A balanced accuracy of 0.5 is what no threshold gives, an AUROC of 0.5 what scores give that tell nothing.",
    ),
    "threshold.caption": ("阈值在另一半问题上的表现", "The threshold on the other half"),
    "use.title": (
        "给对的资料、别的资料、没有资料、相反的资料",
        "The right passage, another, none, one that contradicts",
    ),
    "use.text": (
        "正误之差是正确答案与错误答案对数概率之差（每字符，纳特）；别的资料是另一段资料（有同一主题的就取同一主题），正确答案和错误答案都不含，"
        "相反的资料说的是错误答案，检索到的资料是前 {k} 段。模型自己写的答案按字符与正确答案比较：完全一致、含有正确答案、字符 F1。",
        "margin is the right answer's log-probability less the wrong one's, nats a character; gold is a passage that "
        "answers, wrong another one (of the same topic where there is one) with neither answer, contradicting says the "
        "wrong answer, retrieved are the first {k} that a search found. What the model wrote is scored by characters: exact, contains, F1.",
    ),
    "use.caption": ("各条件下的均值", "Means in each condition"),
    "places.title": ("资料放在第几位", "Where the passage stands"),
    "places.text": (
        "同样的几段资料，只把能回答的一段放在最前、中间、最后；最前离问题最远。正确答案的对数概率按每字符计，单位是纳特。",
        "The same passages, only the one that answers stands first, in the middle or last; the first is furthest from the question. right is the right answer's log-probability, nats a character.",
    ),
    "places.figure": (
        "资料的位置与正确答案的对数概率",
        "Place of the gold passage and log-probability of the right answer",
    ),
    "places.alt": (
        "横轴是位置，纵轴是正确答案的对数概率，带 95 % 区间",
        "place across, log-probability of the right answer up, with a 95 % interval",
    ),
    "places.across": ("位置", "place"),
    "left_out.title": ("每段资料起了多大作用", "What each passage did"),
    "left_out.text": (
        "对检索到的每段资料：去掉它、换成别的（换掉）、让后面的词看不见它（遮住），正确答案的对数概率各降低多少纳特。"
        "去掉和换掉都降低超过 {least} 纳特才算用上了。注意力份额大不等于用上了。",
        "For each retrieved passage: how many nats the right answer's log-probability loses with it left out (dropped), "
        "another in its place (swapped), or unseen by all later tokens (cut). It counts as used where both dropping and "
        "swapping cost more than {least} nats. share is attention: a large share does not mean that it was used.",
    ),
    "left_out.caption": (
        "检索到的资料，按是否标注为能回答",
        "Retrieved passages, by whether they are judged to answer (gold)",
    ),
    "left_out.used": ("检索到的资料，按是否用上", "Retrieved passages, by whether they were used"),
    "heads.title": ("哪些头看那段资料", "Which heads look at the passage"),
    "heads.text": (
        "写出正确答案的那几行给资料的注意力份额，对问题取均值；整个提示中资料占 {tokens} 的词元。这是描述，不是原因：原因见“每段资料起了多大作用”。",
        "Share of attention that the rows which write the right answer give the gold passage, mean over questions; the "
        "passage has {tokens} of the prompt's tokens. It describes; for causes see “What each passage did”.",
    ),
    "heads.figure": ("资料的注意力份额", "Share of attention on the gold passage"),
    "heads.alt": ("每层每头的份额", "the share in each layer and head"),
    "examples.title": ("例子", "Examples"),
    "examples.text": (
        "模型在有资料和没有资料时写的答案，前 {count} 个问题。",
        "What the model wrote with and without the passage, the first {count} questions.",
    ),
    "examples.caption": ("问题与答案", "Questions and answers"),
    "made.model": ("模型", "model"),
    "made.encoder": ("编码器", "encoder"),
    "made.passages": ("资料", "passages"),
    "made.questions": ("问题", "questions"),
    "made.seed": ("随机种子", "seed"),
    "made.version": ("版本", "version"),
    "made.command": ("命令", "command"),
    "made": (
        "所有数字都在运行文件夹的 tables 里。",
        "All numbers are in the run folder's tables.",
    ),
}

_HEADINGS = {  # of tables in Chinese; a name that is not here stands as it is
    "mode": "方式", "measure": "指标", "estimate": "估计", "low": "下限", "high": "上限", "queries": "问题数",
    "questions": "问题数", "arm": "哪一个", "score": "分数", "threshold": "阈值", "condition": "条件",
    "against": "对照", "units": "单位数", "place": "位置", "gold": "能回答", "used": "用上了", "passages": "资料数",
    "question": "题号", "asked": "问题", "right_answer": "正确答案",
}  # fmt: skip


_WORDS = {  # for the names that stand in tables' cells, in Chinese; a name that is not here stands as it is
    "lexical": "词检索", "dense": "向量检索", "hybrid": "合并检索", "difference": "差值",
    "recall@1": "召回率@1", "recall@5": "召回率@5", "mrr@10": "MRR@10", "ndcg@10": "nDCG@10",
    "balanced accuracy": "平衡准确率", "false refusals": "误拒", "false answers": "误答",
    "false answers, on the subject": "误答（不离题）", "AUROC, on the subject": "AUROC（不离题）",
    "none": "没有资料", "wrong": "别的资料", "gold": "能回答的资料", "contradicting": "相反的资料", "retrieved": "检索到的资料",
    "margin": "正误之差", "right": "正确答案的对数概率", "exact": "完全一致", "contains": "含有正确答案", "f1": "字符 F1", "share": "注意力份额",
    "per_token": "注意力份额 ÷ 词元份额", "prefers_right": "更倾向正确答案", "dropped": "去掉", "swapped": "换掉", "cut": "遮住",
    "used": "用上了", "true": "是", "false": "否",
}  # fmt: skip


def heading(name: str, language: Language) -> str:
    """Give the heading of a table's column."""
    return _HEADINGS.get(name, name) if language == "zh" else name


def word(name: str, language: Language) -> str:
    """Give the word for a mode, measure or condition."""
    return _WORDS.get(name, name) if language == "zh" else name


def message(key: str, language: Language, **values: object) -> str:
    """Give one text, its placeholders filled."""
    return _TEXTS[key][0 if language == "zh" else 1].format(**values)
