"""What the comparison says, in both languages: the same keys, the same placeholders."""

import math
from collections.abc import Iterator
from typing import Literal

from finetune.compare.verdicts import Verdict

Language = Literal["zh", "en"]

_VERDICTS: dict[str, tuple[str, str]] = {  # key -> (zh, en); the words of one verdict
    "verdict.better": (
        "{measure}（{part}）：{one}优于{other}，差值 {estimate}（{low} 至 {high}）",
        "{measure} ({part}): {one} is better than {other}, difference {estimate} ({low} to {high})",
    ),
    "verdict.worse": (
        "{measure}（{part}）：{one}不如{other}，差值 {estimate}（{low} 至 {high}）",
        "{measure} ({part}): {one} is worse than {other}, difference {estimate} ({low} to {high})",
    ),
    "verdict.higher": (
        "{measure}（{part}）：{one}高于{other}，差值 {estimate}（{low} 至 {high}）",
        "{measure} ({part}): {one} is above {other}, difference {estimate} ({low} to {high})",
    ),
    "verdict.lower": (
        "{measure}（{part}）：{one}低于{other}，差值 {estimate}（{low} 至 {high}）",
        "{measure} ({part}): {one} is below {other}, difference {estimate} ({low} to {high})",
    ),
    "verdict.none": (
        "{measure}（{part}）：{one}与{other}，没有显示出差别（差值 {estimate}，{low} 至 {high}；差值有 {visible} 才看得出来）",
        "{measure} ({part}): {one} and {other}, no difference can be shown ({estimate}, {low} to {high}; a difference of "
        "{visible} would have been visible)",
    ),
    "verdict.unsure": (  # only the correction keeps it from being claimed, so nothing is said of what could be seen
        "{measure}（{part}）：{one}与{other}，没有显示出差别（差值 {estimate}，{low} 至 {high}）",
        "{measure} ({part}): {one} and {other}, no difference can be shown ({estimate}, {low} to {high})",
    ),
    "verdict.same": (
        "{measure}（{part}）：{one}与{other}，每个单位都相同",
        "{measure} ({part}): {one} and {other} are the same on every unit",
    ),
    "verdict.claim.better": (
        "{measure}（{part}）：注意力监督胜过随机词对 {gain}（{gain_low} 至 {gain_high}）",
        "{measure} ({part}): supervision beats random pairs by {gain} ({gain_low} to {gain_high})",
    ),
    "verdict.claim.worse": (
        "{measure}（{part}）：随机词对胜过注意力监督，差值 {estimate}（{low} 至 {high}）",
        "{measure} ({part}): random pairs beat supervision, difference {estimate} ({low} to {high})",
    ),
    "verdict.claim.none": (
        "{measure}（{part}）：注意力监督与随机词对，没有显示出差别（差值 {estimate}，{low} 至 {high}；差值有 {visible} 才看得出来）",
        "{measure} ({part}): supervision and random pairs, no difference can be shown ({estimate}, {low} to {high}; a "
        "difference of {visible} would have been visible)",
    ),
    "verdict.claim.unsure": (
        "{measure}（{part}）：注意力监督与随机词对，没有显示出差别（差值 {estimate}，{low} 至 {high}）",
        "{measure} ({part}): supervision and random pairs, no difference can be shown ({estimate}, {low} to {high})",
    ),
    "verdict.missing.absent": (
        "{measure}（{part}）：{one}与{other}无法比较，有一方没有测量这一项",
        "{measure} ({part}): {one} and {other} cannot be compared, one of them was not measured",
    ),
    "verdict.missing.no_common_seeds": (
        "{measure}（{part}）：{one}与{other}无法比较，没有共同的随机种子",
        "{measure} ({part}): {one} and {other} cannot be compared, they have no seed in common",
    ),
    "verdict.missing.no_common_items": (
        "{measure}（{part}）：{one}与{other}无法比较，没有共同的条目",
        "{measure} ({part}): {one} and {other} cannot be compared, they have no item in common",
    ),
    "verdict.missing.few_units": (
        "{measure}（{part}）：{one}与{other}，差值 {estimate}；只有 {units} 个独立单位，没有区间，也就没有结论",
        "{measure} ({part}): {one} and {other}, difference {estimate}; with only {units} independent units there is no "
        "interval, so nothing is claimed",
    ),
    "verdict.corrected": (
        "区间不含 0，但按 {tests} 次检验校正后 p = {p}",
        "the interval leaves out 0, but corrected over {tests} tests p is {p}",
    ),
    "verdict.seeds.one": (
        "只有 1 个种子，换一个种子会怎样不得而知",
        "1 seed, which says nothing of other seeds",
    ),
    "verdict.seeds.few": (
        "{seeds} 个种子：{lowest} … {highest}，只就这些种子而言",
        "{seeds} seeds: {lowest} … {highest}, and for these seeds only",
    ),
    "verdict.seeds.across": (
        "区间同时覆盖条目和 {seeds} 个种子的波动（{lowest} … {highest}）",
        "the interval is over items and {seeds} seeds ({lowest} … {highest})",
    ),
    "verdict.tests": (
        "p 按 Holm 法校正：任务与遗忘共 {tests} 次检验，注意力与原因另算，共 {described} 次。低于 0.05、区间不含 0，才说有差别。",
        "p is corrected by Holm over the {tests} tests on task and forgetting, and over the {described} on attention and "
        "causes by themselves. A difference is claimed where p is below 0.05 and the interval leaves out 0.",
    ),
    "verdict.left_out": (
        "只有一方有的 {left_out} 个条目不计",
        "{left_out} items that only one of both has are left out",
    ),
    "verdict.more.range": (
        "若真实差值就是这么大，还需要 {more_low} 至 {more_high} 个种子",
        "were this the true difference, {more_low} to {more_high} more seeds would be needed",
    ),
    "verdict.more.least": (
        "若真实差值就是这么大，至少还需要 {more_low} 个种子",
        "were this the true difference, at least {more_low} more seeds would be needed",
    ),
    "verdict.more.never": (
        "这么小的差值，加多少种子也显示不出来，需要更多条目",
        "no number of seeds would show a difference as small as this, it takes more items",
    ),
}

_TEXTS: dict[str, tuple[str, str]] = {
    **_VERDICTS,
}

_WORDS: dict[str, tuple[str, str]] = {  # arms, measures and parts; a name that is not here stands as it is
    "base": ("原模型", "the base model"), "lora": ("LoRA", "LoRA"), "lora-attention": ("LoRA＋注意力监督", "LoRA + attention"),
    "lora-random": ("LoRA＋随机词对", "LoRA + random pairs"), "lora-more-text": ("LoRA＋更多文本", "LoRA + more text"),
    "rag": ("检索", "retrieval"), "lora-rag": ("LoRA＋检索", "LoRA + retrieval"),
    "lora-attention-rag": ("LoRA＋注意力监督＋检索", "LoRA + attention + retrieval"),
    "edge-bias": ("推理时偏置", "edge bias"), "gloss": ("提示加释义", "gloss in the prompt"), "full": ("全参数微调", "full fine-tuning"),
    "margin": ("正误之差", "margin"), "accuracy": ("正确率", "accuracy"), "exact": ("完全一致", "exact match"),
    "f1": ("字符 F1", "character F1"), "perplexity": ("困惑度", "perplexity"),
    "general_perplexity": ("通用文本困惑度", "general perplexity"), "sense_accuracy": ("词义正确率", "word sense accuracy"),
    "mass": ("词对上的注意力", "attention on the pairs"), "sense_separation": ("词义分离度", "sense separation"),
    "sink": ("首词元的注意力", "sink share"), "passage_share": ("资料的注意力", "share of the passages"),
    "cut": ("遮住词对的损失", "loss with the pair cut"), "ablated": ("关掉受教头的损失", "loss with the taught heads silenced"),
    "test": ("测试", "test"), "general": ("通用", "general"), "train pairs": ("训练词对", "trained pairs"),
    "held-out pairs": ("留出词对", "held-out pairs"), "seen facts": ("学过的事实", "seen facts"),
    "held-out facts": ("没学过的事实", "held-out facts"), "other facts": ("其他事实", "other facts"),
    "pairs of the data": ("数据里的词对", "pairs of the data"), "pairs of targets": ("目标词的词对", "pairs of targets"),
}  # fmt: skip


def message(key: str, language: Language, **values: object) -> str:
    """Give one text, its placeholders filled."""
    return _TEXTS[key][0 if language == "zh" else 1].format(**values)


def word(name: str, language: Language) -> str:
    """Give the word for an arm, a measure or a part."""
    if language == "zh" and name.startswith("layer "):
        return f"第 {name.removeprefix('layer ')} 层"
    return _WORDS[name][0 if language == "zh" else 1] if name in _WORDS else name


def number(value: float, *, signed: bool = True) -> str:
    """Give a number to three places, of a small one two figures, so that nothing but 0 is written as 0; with a real minus."""
    if value == 0:
        return "0"
    sign, small = "+" if signed else "", abs(value) < 0.01
    return (f"{value:{sign}.2g}" if small else f"{value:{sign}.3f}").replace("-", "−")


def sentence(verdict: Verdict, language: Language) -> str:
    """Say a verdict in words, with what limits it."""
    parts = [message(key, language, **_told(verdict, language)) for key in _keys(verdict)]
    return ("；" if language == "zh" else "; ").join(parts) + ("。" if language == "zh" else ".")


def _keys(verdict: Verdict) -> Iterator[str]:
    claim = "claim." if verdict.is_claim else ""
    yield (
        f"verdict.missing.{verdict.reason}" if verdict.reason
        else "verdict.same" if verdict.is_same
        else f"verdict.{claim}unsure" if verdict.only_uncorrected
        else f"verdict.{claim}{verdict.kind}"
    )  # fmt: skip
    if verdict.only_uncorrected:
        yield "verdict.corrected"
    if verdict.seeds and not verdict.reason and not verdict.is_same:
        yield f"verdict.seeds.{'across' if verdict.across_seeds else 'one' if verdict.seeds == 1 else 'few'}"
    if verdict.items_left_out:
        yield "verdict.left_out"
    if verdict.more_seeds:
        low, high = verdict.more_seeds
        yield f"verdict.more.{'never' if math.isinf(low) else 'least' if math.isinf(high) else 'range'}"


def _told(verdict: Verdict, language: Language) -> dict[str, object]:
    gain, gain_low, gain_high = verdict.gain
    more_low, more_high = verdict.more_seeds or (math.nan, math.nan)
    return {
        "measure": word(verdict.measure, language), "part": word(verdict.part, language),
        "one": word(verdict.arm, language), "other": word(verdict.against, language),
        "estimate": number(verdict.estimate), "low": number(verdict.low), "high": number(verdict.high),
        "visible": number(verdict.visible, signed=False), "gain": number(gain, signed=False),
        "gain_low": number(gain_low, signed=False), "gain_high": number(gain_high, signed=False),
        "p": number(verdict.p, signed=False), "tests": verdict.tests, "units": verdict.units, "seeds": verdict.seeds,
        "lowest": number(verdict.seed_low), "highest": number(verdict.seed_high), "left_out": verdict.items_left_out,
        "more_low": f"{more_low:.0f}", "more_high": f"{more_high:.0f}",
    }  # fmt: skip
