"""苹果芯片 against 苹果手机: what a language model expects after 苹果, and how often each stands in a given corpus."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from probe.claims.bench import Bench
from probe.claims.records import Finding, Grid, Part, mean_number, more_than, share_number
from probe.claims.rows import exchanged
from probe.models import LoadedModel

Floats = NDArray[np.float64]
COMMON, RARE, ABSURD = "手机", "芯片", "铁路"
_ENDINGS = (".txt", ".jsonl", ".json", ".tsv", ".data", ".conllu")
_FEWEST = 5
CARRIERS = (
    "昨天他又在网上看中了一款苹果",
    "记者采访了几位用过苹果",
    "这家店门口贴着海报，写的是苹果",
    "她的同事都在讨论新出的苹果",
    "去年这个时候，市场上最缺的就是苹果",
    "他写过一本书，专门介绍苹果",
    "展台中间摆着的是苹果",
    "老师上课时举的例子是苹果",
    "我弟弟攒了半年钱，就为了苹果",
    "报纸第三版整版都在说苹果",
    "评测员拆开以后，发现里面用的是苹果",
    "供应商透露，下个月要加紧生产苹果",
)


def chips(bench: Bench) -> Finding:
    """Surprisal of 芯片 above 手机 after 苹果 in carriers of our own, and counts in the corpora of CIJING_DATA."""
    carriers = CARRIERS[: bench.sizes.carriers]
    told = bench.told("carriers")
    values = []
    for number, carrier in enumerate(carriers, 1):
        values.append([surprisal(bench.decoder, carrier, word) for word in (COMMON, RARE, ABSURD)])
        if told:
            told(number, len(carriers))
    common, rare, absurd = np.array(values).T

    def part(key: str, gap: Floats) -> Part:
        return Part(
            key=key,
            model=bench.decoder.name,
            rule=more_than(0.0),
            unit="nats",
            number=mean_number(gap, carriers, seed=bench.seed),
            planted=mean_number(absurd - common, carriers, seed=bench.seed),
            nothing=mean_number(exchanged(gap, seed=bench.seed), carriers, seed=bench.seed),
        )

    grid = Grid(
        caption="surprisal",
        columns=("carrier", "common", "rare"),
        rows=tuple((text, float(a), float(b)) for text, a, b in zip(carriers, common, rare, strict=True)),
    )
    counted = _counted(bench.data)
    counts = Grid(caption="counts", columns=("corpus", "count_common", "count_rare"), rows=tuple(counted))
    parts = [part("surprisal", rare - common)]
    total = [sum(int(row[place]) for row in counted) for place in (1, 2)]
    if sum(total) >= _FEWEST:
        parts.append(_count_part(*total))
    return Finding(key="chips", parts=tuple(parts), grids=(grid, *([counts] if counted else [])))


def surprisal(loaded: LoadedModel, carrier: str, word: str) -> float:
    """Minus the log-probability of a word after a carrier, in nats, summed over the word's tokens."""
    ids = [token for token in loaded.tokenizer(carrier)["input_ids"] if token != loaded.tokenizer.eos_token_id]
    own = loaded.tokenizer(word, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([[*ids, *own]], device=loaded.device)).logits[0].float()
    logs = logits[len(ids) - 1 : -1].log_softmax(-1)  # the row before each of the word's tokens
    return -float(logs[torch.arange(len(own)), own].sum())


def _counted(data: Path | None) -> list[tuple[str, int, int]]:
    """How often 苹果手机 and 苹果芯片 stand in each corpus of the data folder; none without one."""
    if data is None or not data.is_dir():
        return []
    found = []
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        texts = [path.read_text("utf-8", errors="replace") for path in sorted(folder.iterdir()) if _is_text(path)]
        found.append((folder.name, *count_words(texts)))
    return found


def _is_text(path: Path) -> bool:
    return path.suffix in _ENDINGS and path.is_file()


def count_words(texts: Sequence[str]) -> tuple[int, int]:
    """How often 苹果手机 and 苹果芯片 stand in the texts."""
    common, rare = (sum(text.count(f"苹果{word}") for text in texts) for word in (COMMON, RARE))
    return common, rare


def _count_part(common: int, rare: int) -> Part:
    """The share of 苹果手机 among both, watched by corpora that were made with known counts."""
    known = [count_words([f"苹果{COMMON}，" * a + f"苹果{RARE}。" * b]) for a, b in ((30, 3), (20, 20))]
    planted, nothing = (share_number(a, a + b) for a, b in known)
    return Part(
        key="count",
        rule=more_than(0.5),
        unit="share",
        number=share_number(common, common + rare),
        planted=planted,
        nothing=nothing,
    )
