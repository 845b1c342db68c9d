"""What the page of a comparison says around its verdicts, in both languages: the same keys, the same placeholders."""

from finetune.compare.messages import Language

_TEXTS: dict[str, tuple[str, str]] = {  # key -> (zh, en)
    "title": ("什么真正有用", "What really helped?"),
    "subtitle": (
        "{model} · 任务 {task} · {arms} 种做法 · 随机种子 {seeds} · {items} 个条目，{units} 个独立单位",
        "{model} · task {task} · {arms} arms · seeds {seeds} · {items} items in {units} independent units",
    ),
    "made": (
        "所有数字都在运行文件夹的 tables 里，图在 figures 里。",
        "All numbers are in the run folder's tables, all pictures in its figures.",
    ),
    "marked": (
        "【非商业】以下来源的条款不允许商业使用：{names}。用它们训练的适配器、由它们得到的分数和例句，都要带着这个标记，不得作商业用途。",
        "NON-COMMERCIAL: the terms of these sources allow no commercial use: {names}. Adapters trained on them, and scores "
        "and examples that come of them, keep this mark and serve no commercial end.",
    ),
    "marked.short": ("非商业", "non-commercial"),
    # ---- verdict
    "verdict.title": ("结论", "Verdict"),
    "verdict.how": (
        "每一行是同样条目、同样种子上两种做法之差。区间是 95 %，按独立单位重抽样；只有区间不含 0、且校正后的 p 小于 0.05，才说有差别。"
        "p 按 Holm 法校正：任务和遗忘的全部检验一起，注意力和原因的全部检验一起。没有达到的，一律不说好坏。",
        "Each row is the difference of two arms on the same items and seeds. Intervals are 95 %, over units drawn anew. A "
        "difference is claimed only where its interval leaves out 0 and its corrected p is below 0.05 (Holm, over all tests of "
        "task and forgetting together, and over all of attention and causes). Nothing else is called better.",
    ),
    "verdict.seeds": (
        "训练过的做法有 {seeds} 个种子：区间只就这些种子而言，换成别的种子会怎样，少于 8 个种子时无法断言。",
        "Seeds of trained arms: {seeds}. Intervals are for these seeds; with fewer than 8, nothing is claimed of other seeds.",
    ),
    "verdict.across": (
        "训练过的做法有 {seeds} 个种子：区间同时计入条目与种子的波动。",
        "Seeds of trained arms: {seeds}. Intervals count both items and seeds as drawn anew.",
    ),
    "verdict.head": (
        "原模型自己没有这项任务的头：给它的头是在训练文本的状态上拟合到底的，模型本身没有动。训练过的做法从随机的头开始，只走设定的步数；"
        "步数少时不如原模型，可能只是头还没有学好。",
        "The base has no head for this task: it answers through one that is fitted to the end to its own states of the training "
        "texts, the model untouched. Trained arms begin with a drawn head and take the steps that are set; where these are few, "
        "falling short of the base may only mean that the head is not learned yet.",
    ),
    "verdict.no_claim": (
        "注意力监督和随机词对没有同时参加比较，所以这一页不能回答监督本身有没有用：胜过原模型或普通 LoRA 的，也可能只是多了一个损失。",
        "Supervision and random pairs were not both compared, so this page cannot tell whether supervision itself helps: what "
        "beats the base model or plain LoRA may be the mere presence of another loss.",
    ),
    "verdict.claim.caption": (
        "监督与随机词对，各项指标（能看出的差别没有按多次检验校正）",
        "Supervision against random pairs on every measure (visible is before any correction)",
    ),
    "verdict.unmeasured": (
        "没有测量任务，所以没有结论。",
        "No task was measured, so there is no verdict.",
    ),
    "verdict.caption": ("每组对比，一句话（{measure}）", "Each contrast in one sentence ({measure})"),
    "verdict.all": (
        "每组对比在每项任务和遗忘指标上的结论：{better} 更好，{worse} 更差，{none} 没有显示出差别，{not_comparable} 无法比较",
        "What every contrast comes to on every measure of task and forgetting: {better} better, {worse} worse, {none} no "
        "difference shown, {not_comparable} cannot be compared",
    ),
    "why.claim": ("监督本身有没有用", "does supervision itself help"),
    "why.whole": ("整个做法有没有用", "does the arm change anything"),
    "why.supervision": ("同样的训练加上监督，多带来什么", "what supervision adds to the same training"),
    "why.knowledge": ("监督带来的，多给文本能不能也带来", "does supervision give more than more text does"),
    "why.random": ("任意词对的注意力损失带来什么", "what any loss on attention gives"),
    "why.text": ("步数相同，文本更多，多带来什么", "what more text gives in as many steps"),
    "why.passages": ("训练过的模型再读资料，多带来什么", "what passages add to a trained model"),
    "why.all_weights": ("训练全部参数，比适配器多带来什么", "what training all weights adds to an adapter"),
    "kind.better": ("更好", "better"),
    "kind.worse": ("更差", "worse"),
    "kind.higher": ("更高", "higher"),
    "kind.lower": ("更低", "lower"),
    "kind.none": ("没有显示出差别", "no difference shown"),
    "kind.not_comparable": ("无法比较", "cannot be compared"),
    # ---- what could be shown
    "visible.title": ("事先说明：能看出多大的差别", "Said in advance: which differences could be seen"),
    "visible.text": (
        "这张表只用原模型的答案和题目的分组算出，与训练结果无关：以 5 % 的显著性水平、80 % 的把握，在不作校正的一次检验里至少要差多少才看得出来。"
        "对错题按“有多大比例的题改变了对错”假定，其他指标按两种做法的相关系数假定。同一单位里的题会一起变，设计效应是方差因此变成原来的几倍。"
        "“看不出来”表示即使所有改变都朝一个方向也不够。",
        "This table comes of the base model's answers and the grouping of items alone, and of nothing that was trained: the "
        "smallest difference that one test without correction would show at 5 % with 80 % power. For items that are right or "
        "wrong it assumes the share whose answer changes, for other measures how strongly two arms correlate. Items of a unit "
        "change together: design is how many times this makes the variance. “Never” means: not even if all changes went one way.",
    ),
    "visible.caption": ("能看出的最小差别", "The smallest difference that can be seen"),
    "visible.never": ("看不出来", "never"),
    "visible.changed": ("{share} 的题改变对错", "{share} of the answers change"),
    "visible.correlation": ("两种做法相关 {share}", "arms correlate at {share}"),
    "visible.none": (
        "没有可以事先说明的任务指标：原模型没有答案，或独立单位少于 5 个。",
        "Nothing could be said in advance: the base model has no answers on a task, or there are fewer than 5 units.",
    ),
    # ---- families
    "task.title": ("任务", "The task"),
    "task.text": (
        "点是差值，横线是 95 % 区间，灰条是各种子的最低到最高；实心表示显示出差别（校正后），空心表示没有。困惑度越低越好，其余越高越好。",
        "A point is a difference, its line the 95 % interval, the grey bar reaches from the lowest to the highest seed; full "
        "points are differences that are shown (after correction), open ones are not. Of perplexity lower is better, of all "
        "else higher.",
    ),
    "forgetting.title": ("遗忘", "Forgetting"),
    "forgetting.text": (
        "在与领域无关的文本和词义上，各种做法丢掉了多少：通用困惑度越低越好，词义正确率越高越好。",
        "What the arms lose on text and word senses that have nothing to do with the domain: of general perplexity lower is "
        "better, of word sense accuracy higher.",
    ),
    "attention.title": ("注意力", "Attention"),
    "attention.text": (
        "注意力份额只是描述，没有好坏：份额变大不等于用上了，用没用上见“原因”。训练词对是训练里见过的，留出词对没有见过。",
        "Shares of attention describe, and none is better: a larger share does not mean that the word is used; for that see "
        "“Causes”. Trained pairs were met in training, held-out pairs were not.",
    ),
    "causes.title": ("原因", "Causes"),
    "causes.text": (
        "“遮住词对”：答案看不见词对里的词时，正误之差（或正确类别的对数概率）降低多少；“关掉受教头”：训练过的头不输出时降低多少。"
        "降得越多，答案越是靠它。注意力份额与这里不一致时，以这里为准。",
        "Cut: how much of the margin (or of the right class's log-probability) is lost when the answer cannot see the pair's "
        "word. Ablated: how much is lost with the taught heads silenced. The more is lost, the more rests on it. Where shares "
        "of attention and these numbers disagree, believe these.",
    ),
    "figure.difference": ("{measures}：差值", "{measures}: differences"),
    "figure.alt": (
        "{rows} 个差值及其 95 % 区间，数字也写在图的右侧",
        "{rows} differences with their 95 % intervals; the numbers stand on the right of the picture as well",
    ),
    "caption.values": (
        "{measures}：各种做法的均值，区间在文件里",
        "{measures}: means of every arm; the file has intervals",
    ),
    "caption.differences": ("{measures}：差值", "{measures}: differences"),
    "group.margin": ("正误之差（每字符纳特）", "margin, nats a character"),
    "group.share": ("正确的比例", "share that is right"),
    "group.perplexity": ("困惑度", "perplexity"),
    "group.mass": ("注意力份额", "share of attention"),
    "group.separation": ("词义正确率（最近质心）", "sense accuracy, nearest centroid"),
    "group.nats": ("纳特", "nats"),
    "apart": (
        "没有列出的对比（有一方没有测量这一项，或没有共同的种子、条目；{file} 里逐条写明）：{names}",
        "Contrasts not listed, for one of both was not measured, or they share no seed or item ({file} says which): {names}",
    ),
    "apart.count": ("{measure} {count} 组", "{measure} ({count})"),
    # ---- attention by layer and by head
    "separation.figure": ("各层的词义分离度", "Sense separation by layer"),
    "separation.alt": (
        "横轴是层，纵轴是词义分离度，一种做法一条线，带 95 % 区间",
        "layer across, sense separation up, a line for each arm with its 95 % interval",
    ),
    "maps.text": (
        "并排的份额图取各种做法都有的条目，差值图取双方都有的条目（数目见最后一张表），都是同样的行：有资料的提示更长，先对齐到同样的词再比较。"
        "先逐条相减再取平均，所以没有变的地方恰好是 0。同一张图里颜色的刻度相同；差值图里的斜线表示没有测量。",
        "Shares side by side are of the items that all of these arms have, differences of those that both have (counted in the "
        "last table), and of the same rows: a prompt with passages is longer, so it is aligned by its words first. Numbers are "
        "subtracted item by item and then averaged, so that what did not change is exactly 0. Maps of one picture share one "
        "scale; where they show differences, hatched heads were not measured.",
    ),
    "maps.levels": ("注意力份额（{role}）：{way}", "Share of attention ({role}): {way}"),
    "maps.differences": ("注意力份额之差（{role}）", "Difference of attention ({role})"),
    "maps.alt": (
        "{maps} 幅图，每格是一层一头，刻度相同",
        "{maps} maps on one scale, a cell for each layer and head",
    ),
    "maps.more": (
        "另有 {count} 幅差值图没有画出，数字都在 {file} 里。",
        "{count} more difference maps are not drawn; their numbers are in {file}.",
    ),
    "maps.caption": ("比较了多少条目", "How many items were compared"),
    "maps.unit": ("份额", "share"),
    "maps.unit.difference": ("份额之差", "difference"),
    # ---- cost
    "cost.title": ("代价", "Cost"),
    "cost.text": (
        "各种做法一次运行的平均值，内存取最大值，包括训练和测量；用别的做法训练好的模型，也计入它的训练；文本、词义和词对上的注意力只看参数，参数相同的做法只量一次，算在先量的那个做法上。时间只能与同一台机器上的相比，"
        "多人共用的机器上以 CPU 时间为准。读资料的做法不多训练，但每次回答都要付更长提示的代价。",
        "Means of one run of each arm, of memory the most, training and measuring together; an arm that takes another's run "
        "counts its training as well. Texts, senses of words and attention on pairs depend on the weights alone: what one arm "
        "measured of them is taken by others with the same weights, and counts for the first. Times compare only with times of the same machine, and on a shared one go by CPU "
        "seconds. An arm that reads passages trains nothing more, and pays for a longer prompt at every answer.",
    ),
    "cost.caption": ("每种做法的代价", "What every arm costs"),
    # ---- examples
    "changed.title": ("变对的和变错的", "What became right, and what became wrong"),
    "changed.how": (
        "对错按“正确率”那一项判断；之前和之后写的，是对照和做法用第一个种子写的答案，只供参考。例子按变化的种子数排列，没有挑选；"
        "个别例子说明不了总体，总体见“任务”。",
        "Right and wrong go by the measure accuracy; what stands under before and after was written by the second and the first "
        "of both arms, with the first seed. Examples stand in the order of how many seeds change, and are not picked; they prove "
        "nothing of the whole, for which see “The task”.",
    ),
    "changed.text": (
        "{one}与{other}相比：由错变对的种子更多的有 {right} 题，由对变错的种子更多的有 {wrong} 题。",
        "{one} against {other}: {right} items become right in more seeds than wrong, {wrong} the other way round.",
    ),
    "changed.none": (
        "{one}与{other}相比，没有一题的对错改变。",
        "{one} against {other}: no answer changes between right and wrong.",
    ),
    "changed.to_right": ("由错变对：{one}（对照：{other}）", "From wrong to right: {one} against {other}"),
    "changed.to_wrong": ("由对变错：{one}（对照：{other}）", "From right to wrong: {one} against {other}"),
    # ---- passages
    "passages.title": ("用了哪些资料", "Passages used"),
    "passages.text": (
        "读资料的做法在问题之前都放同样的资料；下面是前 {count} 个问题的，其余在文件里。写答案时看了资料多少，见“注意力”。",
        "All arms that read passages have the same ones before a question; here are those of the first {count} questions, the "
        "file has all. For how much is looked at them while the answer is written see “Attention”.",
    ),
    "passages.caption": ("资料", "Passages"),
    # ---- how it was made
    "how.title": ("怎样做出来的", "How it was made"),
    "how.text": (
        "除了名字里说明的差别，各种做法的数据、步数、解码方式和词元预算都相同。每个作业由决定它的一切（设置、输入文件、权重、版本）的散列认出：散列没变就不重做。",
        "Apart from what their names say, all arms have the same data, steps, decoding and token budget. A job is known by the hash of all that decides it (settings, "
        "input files, weights, versions), and is reused as long as that hash stays.",
    ),
    "how.jobs": ("作业", "Jobs"),
    "how.inputs": ("输入文件的 SHA-256", "Input files by their SHA-256"),
    "how.versions": ("版本", "Versions"),
    "how.licences": ("条款", "Terms of data and base model"),
    "how.unfinished": (
        "还有 {count} 个作业没有做完，这一页只有做完的：{names}",
        "{count} jobs are not done, and this page has only what is: {names}",
    ),
    "terms.base": ("模型", "base model"),
    "terms.data": ("数据", "data"),
    "terms.unknown": ("没有说明，使用前请查明", "not stated; look it up before use"),
    "terms.ours": ("本项目自写", "written for this package"),
    "foot.model": ("模型", "model"),
    "foot.task": ("任务", "task"),
    "foot.arms": ("做法", "arms"),
    "foot.seeds": ("随机种子", "seeds"),
    "foot.command": ("命令", "command"),
    "foot.versions": ("版本", "versions"),
    "foot.terms": ("条款", "terms"),
    "md.longer": ("{rows} 行，见 {file}", "{rows} rows, see {file}"),
}

_HEADINGS = {  # of tables in Chinese; a name that is not here stands as it is
    "contrast": "对比", "question": "问的是什么", "verdict": "结论", "sentence": "一句话", "measure": "指标", "part": "条目",
    "arm": "做法", "against": "对照", "estimate": "估计", "difference": "差值", "95 %": "95 % 区间", "p": "p（校正后）",
    "visible": "能看出的差别", "assuming": "假定", "items (units)": "条目（单位）", "items": "条目数", "seeds": "各种子",
    "design": "设计效应", "left out": "未计入", "role": "哪条边", "seconds": "秒", "CPU seconds": "CPU 秒", "memory, MB": "内存（MB）", "GPU, MB": "显存（MB）",
    "trainable, M": "可训练参数（百万）", "prompt tokens": "提示词元", "runs": "运行数", "asked": "问题", "right answer": "正确答案",
    "wrong answer": "错误答案", "before": "之前写的", "after": "之后写的", "item": "题号", "place": "位置", "document": "来源",
    "passage": "资料", "job": "作业", "needs": "依赖", "state": "状态", "hash": "散列", "file": "文件",
    "name": "名称", "version": "版本", "terms": "条款", "kind": "种类", "mark": "标记", "seed": "种子",
}  # fmt: skip
_WORDS = {  # names in cells, in Chinese
    "done": "做完", "begun": "没做完", "trained": "训练完，还没测", "failed": "失败", "changed": "设置变了", "left": "没开始",
    "causal-lm": "因果语言模型", "sense": "词义",
    "word-in-context": "同词同义", "classification": "分类", "masked-lm": "掩码语言模型", "seen facts": "学过的事实",
    "held-out facts": "没学过的事实", "other facts": "其他事实", "answer → word": "答案 → 词",
    "later word → earlier word": "后面的词 → 前面的词", "query → key": "查询的词 → 被看的词",
}  # fmt: skip


def page_text(key: str, language: Language, **values: object) -> str:
    """Give one text, its placeholders filled."""
    return _TEXTS[key][0 if language == "zh" else 1].format(**values)


def heading(name: str, language: Language) -> str:
    """Give the heading of a table's column."""
    return _HEADINGS.get(name, name) if language == "zh" else name


def named(name: str, language: Language) -> str:
    """Give the word for a task, a job's state, or the role of a map."""
    return _WORDS.get(name, name) if language == "zh" else name
