"""What a run leaves when it comes to its end: adapter or model, card, tables and, last, the manifest."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from finetune.adapters import MANIFEST, CardFacts, licence_of, save_adapter
from finetune.begun import as_yaml, input_hashes
from finetune.choosing import steps_in_words, steps_told
from finetune.config import RunConfig
from finetune.control import control_facts
from finetune.heads import Heads
from finetune.prepare import Prepared, links_targets
from finetune.streams import ExampleStream
from finetune.tally import PairTally
from finetune.trainer import AttentionTrainer, WeightPlan
from finetune.whole import save_model
from finetune.writing import write_whole

TABLES = "tables"
_OF_THE_MACHINE = ("_runtime", "_per_second", "total_flos")  # numbers that say nothing of the adapter


def finish(
    config: RunConfig,
    prepared: Prepared,
    trainer: AttentionTrainer,
    *,
    folder: Path,
    metrics: Mapping[str, float],
    plan: WeightPlan | None,
) -> None:
    """Write what stays: adapter or model, card, tables and, last, the manifest."""
    trainer.refuse_spoilt()
    steps = steps_told(trainer)
    (folder / TABLES).mkdir(exist_ok=True)
    pd.DataFrame(trainer.state.log_history).to_csv(folder / TABLES / "steps.csv", index=False)
    pairs_frame(prepared.pairs).to_csv(folder / TABLES / "pairs.csv", index=False)
    control = asdict(control_facts(prepared.swaps)) if prepared.swaps else None
    facts = card_facts(config, prepared, metrics=metrics, plan=plan, control=control)
    facts = replace(facts, steps=steps_in_words(steps))
    model, tokenizer = prepared.learner.model, prepared.learner.loaded.tokenizer
    if config.method == "full":
        save_model(model, folder, base=config.model, tokenizer=tokenizer, facts=facts)
    else:
        save_adapter(
            model, folder, base=config.model, revision=config.revision, tokenizer=tokenizer, facts=facts
        )  # fmt: skip
    attention = None if plan is None else {"weight": plan.weight, "heads": heads_told(prepared), "control": control}
    told = {
        "config": yaml.safe_load(as_yaml(config)), "metrics": dict(metrics), "labels": list(prepared.corpus.labels),
        "model": dict(prepared.learner.loaded.origin), "fingerprint": prepared.learner.loaded.fingerprint,
        "records": {"train": trained_on(prepared), "dev": len(prepared.dev.documents) if prepared.dev else 0},
        "stream": stream_facts(prepared),
        "attention": attention,
        "inputs": input_hashes(config), "notes": list(prepared.notes), **steps,
    }  # fmt: skip
    write_whole(folder / MANIFEST, json.dumps(told, indent=1, ensure_ascii=False))


def trained_on(prepared: Prepared) -> int:
    """How many documents were trained on; of a stream those that were drawn, again where it was read again."""
    train = prepared.train
    return train.drawn if isinstance(train, ExampleStream) else len(train.documents)


def stream_facts(prepared: Prepared) -> dict[str, int] | None:
    """How a stream was read: documents that set what `auto` means, records to draw from."""
    train = prepared.train
    if not isinstance(train, ExampleStream):
        return None
    return {"looked_at": len(train.documents), "shuffle_buffer": train.data.shuffle_buffer}


def pairs_frame(found: PairTally) -> pd.DataFrame:
    """A row a pair: how often it is met, and why not."""
    rows = []
    for name in found.names:
        unmet = found.unmet.get(name, {})
        rows.append({"pair": name, "met": found.met.get(name, 0), **{str(reason): n for reason, n in unmet.items()}})
    return pd.DataFrame(rows).fillna(0) if rows else pd.DataFrame(columns=["pair", "met"])


def card_facts(
    config: RunConfig,
    prepared: Prepared,
    *,
    metrics: Mapping[str, float],
    plan: WeightPlan | None,
    control: Mapping[str, Any] | None,
) -> CardFacts:
    """What the card says."""
    supervision = prepared.supervision
    pairs = ""
    if supervision is not None and plan is not None:
        heads = sum(map(len, supervision.heads.values()))
        pairs = (
            f"{prepared.pairs.met_in_all} pairs of words on tokens ({_source_of_pairs(config)}), loss "
            f"{supervision.settings.name}, weight "
            f"{plan.weight:.4g}, {heads} heads in layers {', '.join(map(str, supervision.layers))}."
        )
    arms = f"attention: {config.attention.mode if supervision else 'none'}; seed {config.seed}."
    if config.method == "full":
        arms = f"method: full; {arms}"
    if control is not None:
        arms += f" Random pairs: {control['pairs']}, {control['near']:.0%} of them within 20 % of the base mass."
    how = "drawn from a stream" if config.data.streaming else "trained on"
    data = [f"{source} ({trained_on(prepared)} records {how})" for source in config.data.train]
    data += _base_in_words(config.model, prepared.learner.loaded.origin)
    metrics = {name: value for name, value in metrics.items() if not name.endswith(_OF_THE_MACHINE)}
    return CardFacts(
        base=config.model, licence=licence_of(prepared.learner.loaded), task=config.task, data=data, pairs=pairs,
        arms=arms, metrics=metrics, labels=prepared.corpus.labels, notes=prepared.notes,
        full=config.method == "full",
    )  # fmt: skip


def _source_of_pairs(config: RunConfig) -> str:
    named = config.pairs is not None and config.pairs.file
    return " and ".join([named or "of the data", *(["of the targets"] if links_targets(config) else [])])


def _base_in_words(name: str, origin: Mapping[str, Any]) -> list[str]:
    """What a builtin base is to somebody who has only the card."""
    if origin.get("source") != "builtin":
        return []
    return [f"the base {name} is {origin['original']} as the package {origin['package']} holds it"]


def heads_told(prepared: Prepared) -> dict[str, list[int]]:
    """The supervised heads, layer by layer, as JSON takes them."""
    heads: Heads = dict(prepared.supervision.heads) if prepared.supervision else {}
    return {str(layer): list(numbers) for layer, numbers in heads.items()}
