"""A class of a whole text, learned by a real encoder from our own sentences: dev above chance."""

import json

from safetensors.torch import load_file

from finetune.config import config_of
from finetune.train import train

COMPANY = (
    "苹果公司今天公布了新的财报", "苹果在发布会上推出了新手机", "苹果的芯片由台积电代工", "苹果股价收盘上涨",
    "苹果更新了电脑的操作系统", "苹果与供应商签了合同", "苹果的耳机又降价了", "苹果在加州建了新总部",
    "苹果平板的屏幕换了面板", "工程师跳槽去了苹果", "苹果商店开门前排起了长队", "苹果手表能测心率",
)  # fmt: skip
FRUIT = (
    "果园里的苹果红了", "她把苹果削皮切成小块", "这筐苹果又甜又脆", "苹果放久了会变软",
    "树上结满了青苹果", "他咬了一口苹果", "苹果和梨一起榨汁", "奶奶把苹果晒成果干",
    "超市里的苹果五元一斤", "苹果派刚出炉", "虫子钻进了苹果", "苹果要在霜降前摘完",
)  # fmt: skip


def test_e5_learns_a_class_above_chance_on_texts_that_it_did_not_see(tmp_path):
    parts = {"train": slice(0, 8), "dev": slice(8, 12)}
    for part, chosen in parts.items():
        rows = [
            {"text": text, "label": label, "group": text}
            for label, texts in (("company", COMPANY), ("fruit", FRUIT))
            for text in texts[chosen]
        ]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    config = config_of(
        {
            "model": "builtin:e5-small", "task": "classification", "out": str(tmp_path / "run"), "seed": 0,
            "data": {"train": str(tmp_path / "train.jsonl"), "dev": str(tmp_path / "dev.jsonl"), "max_length": 32},
            "training": {
                "num_train_epochs": 6, "per_device_train_batch_size": 8, "learning_rate": 2e-3, "use_cpu": True,
                "save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False,
            },
        }
    )  # fmt: skip
    done = train(config, device="cpu")
    assert any("untrained" in note for note in done.notes)
    assert done.metrics["eval_accuracy"] >= 0.75  # chance 0.5; 8 texts
    weights = load_file(done.folder / "adapter_model.safetensors")
    assert {name for name in weights if "lora_" not in name} == {  # e5's files hold no pooler, which the head reads
        f"base_model.model.{name}.{kind}" for name in ("bert.pooler.dense", "classifier") for kind in ("weight", "bias")
    }  # fmt: skip
