"""A comparison as its jobs might leave it: six arms, three seeds, sixty questions, numbers drawn and not measured."""

import numpy as np
import pandas as pd

from finetune.compare.attention import MAPS_OF_ARMS
from finetune.compare.gathered import COST_COLUMNS, PASSAGE_COLUMNS, WRITTEN_COLUMNS, Facts, Gathered
from finetune.compare.items import UNTRAINED, Item, items_frame
from finetune.compare.licences import OURS, Terms

ARMS = ("base", "lora", "lora-attention", "lora-random", "rag", "lora-attention-rag")
SEEDS = (0, 1, 2)
GAINS = {"base": 0.0, "lora": 0.25, "lora-attention": 0.45, "lora-random": 0.26, "rag": 0.5, "lora-attention-rag": 0.8}
ROLES = ("answer → word", "later word → earlier word")
LAYERS, HEADS = 6, 4


def seeds_of(arm):
    return (UNTRAINED,) if arm in ("base", "rag") else SEEDS


def questions(count=60):
    """Texts that a page must escape among plain ones."""
    rows = [
        (f"q{n:02d}", f"第 {n} 问：苹果酸脱去两个氢，得到的四碳酮酸叫", "草酰乙酸", "延胡索酸") for n in range(count)
    ]
    rows[3] = ("q03", "哪里？<script>alert(1)</script>|`x`", "<b>对</b>", "[错](http://x)")
    return pd.DataFrame(rows, columns=["item", "asked", "right", "wrong"])


def drawn_items(*, arms=ARMS, count=60, gains=GAINS, seed=0):
    """Each arm adds its gain to the same questions; units are facts of four questions."""
    random = np.random.default_rng(seed)
    hardness, facts = random.normal(-0.1, 0.4, count), random.normal(0, 0.3, count // 2 + 1)
    frames = []
    for arm in arms:
        for number in seeds_of(arm):
            frames.append(items_frame(_items(random, arm, hardness, facts, gains[arm]), arm=arm, seed=number))
    return pd.concat(frames, ignore_index=True)


def _items(random, arm, hardness, facts, gain):
    for n, hard in enumerate(hardness):
        margin = hard + facts[n // 2] + gain + random.normal(0, 0.3)
        part, unit = ("seen facts", "held-out facts")[n % 8 >= 4], f"fact{n // 2}"
        told = {"part": part, "item": f"q{n:02d}", "unit": unit}
        yield Item(measure="margin", value=margin, **told)
        yield Item(measure="accuracy", value=float(margin > 0), **told)
        yield Item(measure="f1", value=float(np.clip(0.5 + margin / 2, 0, 1)), **told)
        yield Item(measure="cut", value=0.1 + gain / 3 + random.normal(0, 0.1), **told)
        if arm.startswith(("lora-attention", "lora-random")):
            yield Item(measure="ablated", value=gain / 2 + random.normal(0, 0.1), **told)
        if arm.endswith("rag"):
            yield Item(measure="passage_share", value=float(random.beta(4, 8)), **told)
    for n in range(24):
        told = {"item": f"t{n}", "unit": f"t{n}", "weight": 40.0 + n}
        yield Item(measure="perplexity", part="test", value=3.4 - gain / 2 + 0.2 * np.sin(n), **told)
        yield Item(measure="general_perplexity", part="general", value=3.0 + gain / 20 + 0.2 * np.cos(n), **told)
    for n in range(40):
        told = {"item": f"s{n}", "unit": f"g{n // 2}"}
        yield Item(measure="sense_accuracy", part="general", value=float(random.random() < 0.8), **told)
        yield Item(measure="sink", part="general", value=float(random.beta(6, 6)), **told)
        for layer in range(LAYERS + 1):
            right = float(random.random() < 0.5 + 0.06 * layer)
            yield Item(measure="sense_separation", part=f"layer {layer}", value=right, **told)
    for n in range(12):
        told = {"item": f"rule{n}", "unit": f"rule{n}"}
        part = ("train pairs", "held-out pairs")[n % 2]
        yield Item(measure="mass", part=part, value=0.05 + gain / 8 + random.normal(0, 0.01), **told)


def drawn_maps(*, arms=ARMS, seed=0):
    random = np.random.default_rng(seed)
    base = random.beta(1, 8, (len(ROLES), 24, LAYERS, HEADS))
    rows = []
    for arm in arms:
        for number in seeds_of(arm):
            moved = base + GAINS[arm] / 5 * random.beta(1, 5, base.shape)
            moved[:, :, :2] = base[:, :, :2]  # nothing below layer 2 is adapted
            for (role, item, layer, head), value in np.ndenumerate(moved):
                rows.append((arm, number, f"q{item:02d}", ROLES[role], layer, head, value))
    return pd.DataFrame(rows, columns=list(MAPS_OF_ARMS))


def drawn_cost(arms=ARMS):
    rows = []
    for arm in arms:
        trainable, tokens = 0 if arm in ("base", "rag") else 1_474_560, 350.5 if arm.endswith("rag") else 24.0
        seconds = 30.0 + 600 * GAINS[arm]
        rows += [(arm, number, seconds, seconds / 2, 900.0, 0.0, trainable, tokens) for number in seeds_of(arm)]
    return pd.DataFrame(rows, columns=list(COST_COLUMNS))


def facts(arms=ARMS, **changes):
    told = {
        "model": "builtin:gemma3-270m", "task": "causal-lm", "arms": arms, "seeds": SEEDS,
        "command": "cijing-finetune compare biochem.yaml --language zh", "config": {"model": "builtin:gemma3-270m"},
        "jobs": tuple(
            {"name": f"{arm}-{number}".removesuffix("--1"), "needs": [], "state": "done", "hash": "ab12" * 16}
            for arm in arms
            for number in seeds_of(arm)
        ),
        "inputs": {"biochem/train": "0f" * 32, "questions.jsonl": "a1" * 32},
        "versions": {"cijing": "0.7.0", "torch": "2.13.0", "transformers": "5.24.0"},
        "terms": (
            Terms(role="base", name="builtin:gemma3-270m", licence="Gemma terms"),
            Terms(role="data", name="biochem/train", licence=OURS),
            Terms(role="data", name="own.txt", licence=""),
        ),
    }  # fmt: skip
    return Facts(**{**told, **changes})


def gathered(arms=ARMS, **changes):
    asked = questions()
    written = [
        (arm, number, item, ("草酰乙酸" if n % 3 else "<i>延胡索酸</i>") + "。" * (n % 2))
        for arm in arms
        for number in seeds_of(arm)
        for n, item in enumerate(asked["item"])
    ]
    passages = [
        (item, place, f"biochem/{place}.md", "苹果酸脱氢酶把苹果酸氧化成草酰乙酸。", 0.9 / place)
        for item in asked["item"][:12]
        for place in (1, 2, 3)
        if "rag" in arms
    ]
    told = {
        "facts": facts(arms), "items": drawn_items(arms=arms), "maps": drawn_maps(arms=arms), "cost": drawn_cost(arms),
        "questions": asked, "written": pd.DataFrame(written, columns=list(WRITTEN_COLUMNS)),
        "passages": pd.DataFrame(passages, columns=list(PASSAGE_COLUMNS)),
    }  # fmt: skip
    return Gathered(**{**told, **changes})
