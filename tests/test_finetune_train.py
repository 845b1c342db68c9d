"""A whole run: from files to an adapter that PEFT and probe load; killed, resumed, refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from finetune.adapters import check_adapter
from finetune.config import config_of
from finetune.errors import ConfigError, TrainingError
from finetune.prepare import prepare_run
from finetune.train import train
from probe import load_model
from tests.family_zoo import tokenizer_of

ROOT = Path(__file__).resolve().parents[1]
WORDS = ["苹果", "芯片", "晶圆", "良率", "光刻", "功耗", "缓存", "封装"]


def write_base(folder):
    """A folder with a tiny causal model and a tokenizer."""
    tokenizer = tokenizer_of()
    torch.manual_seed(0)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_corpus(folder):
    """48 texts of pairs of words, and the pairs."""
    draw = random.Random(0)
    lines = []
    for number in range(48):
        one, other = draw.sample(WORDS, 2)
        text = f"第{number}份记录里，{one}写在前面，后来又谈到{other}，一共{number * 7}处。"
        lines.append(json.dumps({"id": f"t{number}", "group": f"g{number // 2}", "text": text}, ensure_ascii=False))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = {"pairs": [{"query": one, "key": other, "direction": "either"} for one in WORDS[:4] for other in WORDS[4:]]}
    (folder / "pairs.yaml").write_text(yaml.safe_dump(pairs, allow_unicode=True), encoding="utf-8")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_base(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


def configured(base, corpus, out, **more):
    given = {
        "model": str(base), "task": "causal-lm", "out": str(out), "seed": 5,
        "data": {"train": str(corpus / "train.jsonl"), "max_length": 200},
        "pairs": {"file": str(corpus / "pairs.yaml")},
        "attention": {"weight": 0.5, "norms_every": 0},
        "training": {
            "max_steps": 12, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 3,
            "eval_strategy": "steps", "eval_steps": 3, "logging_steps": 3, "use_cpu": True,
        },
    }  # fmt: skip
    for key, value in more.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    return config_of(given)


@pytest.fixture(scope="module")
def whole(base, corpus, tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return train(configured(base, corpus, out), device="cpu")


def test_every_stage_before_the_first_step_says_how_far_it_is(base, corpus, tmp_path):
    told = {}
    config = configured(base, corpus, tmp_path / "run", attention={"weight": "auto"}, training={"max_steps": 1})
    train(config, device="cpu", progress=lambda stage, done, total: told.update({stage: (done, total)}))
    assert told["heads compared"][0] == told["heads compared"][1] > 1
    assert {"train on tokens", "weight of the attention loss", "training"} <= set(told)


def test_a_run_leaves_an_adapter_a_card_tables_and_a_manifest(whole, base, corpus):
    folder = whole.folder
    told = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert told["steps"] == whole.steps == 12
    assert told["attention"]["weight"] == 0.5 and told["attention"]["control"] is None
    assert {"train_loss", "eval_loss", "eval_pair_mass"} <= set(told["metrics"])
    assert check_adapter(folder)["task"] == "causal-lm"
    card = (folder / "README.md").read_text("utf-8")
    assert f'base_model: "{base}"' in card and "## Licence" in card and "pairs of words" in card
    assert str(corpus / "pairs.yaml") in card and "_runtime" not in card and "eval_loss" in card
    steps = (folder / "tables" / "steps.csv").read_text("utf-8")
    assert "attention_loss" in steps and "task_loss" in steps
    pairs = (folder / "tables" / "pairs.csv").read_text("utf-8")
    assert "苹果 → 光刻" in pairs
    assert not list(folder.rglob("training_args.bin"))


def test_a_run_folder_is_a_model_for_peft_and_for_probe(whole, base):
    from peft import AutoPeftModelForCausalLM

    ours = load_model(str(whole.folder), head="lm", device="cpu")
    theirs = AutoPeftModelForCausalLM.from_pretrained(str(whole.folder)).eval()
    plain = load_model(str(base), head="lm", device="cpu")
    ids = torch.tensor([ours.tokenizer("苹果与光刻").input_ids])
    with torch.inference_mode():
        one, other, before = (model(input_ids=ids).logits for model in (ours.model, theirs, plain.model))
    assert torch.allclose(one, other, atol=1e-6)
    assert (one - before).abs().max() > 1e-4


def test_the_same_run_again_gives_the_same_adapter(whole, base, corpus, tmp_path):
    again = train(configured(base, corpus, tmp_path / "again"), device="cpu")
    assert same_adapter(whole.folder, again.folder, tolerance=0.0)


def same_adapter(one, other, *, tolerance=1e-6):
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    return all(float((first[name] - second[name]).abs().max()) <= tolerance for name in first)


def run_program(arguments, **settings):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "finetune", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )


def latest_number(out):
    names = [path.name.removeprefix("checkpoint-") for path in out.glob("checkpoints/checkpoint-*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(whole, base, corpus, tmp_path):
    out = tmp_path / "killed"
    file = tmp_path / "run.yaml"
    plan = yaml.safe_load((whole.folder / "config.yaml").read_text("utf-8"))
    file.write_text(yaml.safe_dump({**plan, "out": str(out)}, allow_unicode=True), encoding="utf-8")
    killed, draw = 0, random.Random(1)
    for _ in range(12):
        resume = ["--resume"] if (out / "config.yaml").exists() else []
        process = run_program(["train", str(file), "--device", "cpu", *resume])
        before = latest_number(out)
        while process.poll() is None and killed < 3:
            if latest_number(out) > before:
                time.sleep(draw.random() * 0.2)  # in the middle of a checkpoint as well as behind it
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.01)
        _, said = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert process.returncode == 0 and killed >= 2
    assert same_adapter(whole.folder, out)


def test_a_folder_with_another_run_is_refused_and_left_as_it_is(base, corpus, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(TrainingError, match="not empty"):
        train(configured(base, corpus, out), device="cpu")
    with pytest.raises(TrainingError, match="no run to resume"):
        train(configured(base, corpus, out), device="cpu", resume=True)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_a_changed_configuration_is_refused_with_the_difference(whole, base, corpus):
    changed = configured(base, corpus, whole.folder, lora={"r": 4}, training={"learning_rate": 1e-3})
    with pytest.raises(ConfigError, match=r"lora\.r: 8 then, 4 now") as caught:
        train(changed, device="cpu", resume=True)
    assert "training.learning_rate" in str(caught.value)


def test_a_touched_checkpoint_is_refused(base, corpus, tmp_path):
    run = configured(base, corpus, tmp_path / "run")
    train(run, device="cpu")
    weights = sorted((tmp_path / "run" / "checkpoints").glob("checkpoint-12/adapter_model.safetensors"))[0]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(TrainingError, match=r"adapter_model\.safetensors is changed"):
        train(run, device="cpu", resume=True)


def test_the_random_arm_differs_in_its_pairs_alone(whole, base, corpus, tmp_path):
    arm = train(configured(base, corpus, tmp_path / "random", attention={"mode": "random"}), device="cpu")
    told = json.loads((arm.folder / "manifest.json").read_text("utf-8"))["attention"]
    true = json.loads((whole.folder / "manifest.json").read_text("utf-8"))["attention"]
    assert told["heads"] == true["heads"] and told["weight"] == true["weight"]
    assert told["control"]["pairs"] > 0 and 0 <= told["control"]["near"] <= 1
    assert not same_adapter(whole.folder, arm.folder)


def test_the_random_arm_is_taught_its_random_pairs(base, corpus, tmp_path):
    """Mass by eager attention of the trained adapter; on the true pairs it may rise too, for they are as far apart."""
    steps = {"max_steps": 24, "learning_rate": 0.02, "eval_strategy": "no", "save_strategy": "no"}
    last = {**steps, "load_best_model_at_end": False}
    arms, pairs = {}, {}
    for mode in ("pairs", "random"):
        attention = {"weight": 3.0, "heads": "all", "mode": mode}
        config = configured(base, corpus, tmp_path / mode, attention=attention, training=last)
        pairs[mode] = {one.index: one for one in prepare_run(config, device="cpu").train.documents if one.pairs}
        arms[mode] = load_model(str(train(config, device="cpu").folder), head="lm", device="cpu").model
    for index, document in pairs["random"].items():
        true = {place for one in pairs["pairs"][index].pairs for place in (*one.queries, *one.keys)}
        assert not true & {place for one in document.pairs for place in (*one.queries, *one.keys)}
    mass = {arm: eager_mass(model, pairs["random"].values()) for arm, model in arms.items()}
    assert mass["random"] > 1.5 * mass["pairs"]


def eager_mass(model, documents):
    """Attention of query spans on key spans: sum over keys, mean over queries, heads, last layers and pairs."""
    model.set_attn_implementation("eager")
    found = []
    for document in documents:
        with torch.no_grad():
            maps = model(input_ids=torch.as_tensor(document.input_ids)[None], output_attentions=True).attentions
        grid = maps[-1][0].mean(0)
        found += [grid[list(one.queries)][:, list(one.keys)].sum(1).mean() for one in document.pairs]
    return float(torch.stack(found).mean())


def test_no_pairs_means_plain_lora(base, corpus, tmp_path):
    plain = configured(base, corpus, tmp_path / "plain", attention={"mode": "none", "weight": "auto"})
    done = train(plain, device="cpu")
    told = json.loads((done.folder / "manifest.json").read_text("utf-8"))
    assert told["attention"] is None
    assert "eval_pair_mass" not in told["metrics"]


def test_lambda_auto_makes_the_attention_gradient_a_share_of_the_tasks(base, corpus, tmp_path):
    for share in (0.2, 0.4):
        run = configured(
            base, corpus, tmp_path / str(share), attention={"weight": "auto", "share": share}, training={"max_steps": 1}
        )
        told = json.loads((train(run, device="cpu").folder / "manifest.json").read_text("utf-8"))
        if share == 0.2:
            first = told["attention"]["weight"]
    assert told["attention"]["weight"] == pytest.approx(2 * first, rel=1e-6)


def test_pairs_that_cannot_be_met_stop_the_run_before_it_trains(base, corpus, tmp_path):
    forward = {"pairs": [{"query": one, "key": other} for one in WORDS[:4] for other in WORDS[4:]]}
    file = tmp_path / "forward.yaml"
    file.write_text(yaml.safe_dump(forward, allow_unicode=True), encoding="utf-8")
    run = configured(base, corpus, tmp_path / "run", pairs={"file": str(file), "unmet_limit": 0.1})
    with pytest.raises(Exception, match="order"):
        train(run, device="cpu")
