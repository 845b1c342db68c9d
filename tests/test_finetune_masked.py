"""Masked language models: the checkpoint's own head, or one that is trained and kept; masks of each epoch and place."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from finetune.batches import collator_of
from finetune.begun import CHECKPOINTS
from finetune.config import config_of
from finetune.encode import Encoding, encode
from finetune.evaluate import evaluate
from finetune.pairs import Reach
from finetune.preflight import inspect_run
from finetune.prepare import prepare_run
from finetune.reading import Record
from finetune.runfolder import open_run_folder
from finetune.train import make_trainer, train
from probe import load_model
from tests.streamed import jsonl
from tests.tiny import tiny_bert

TEXTS = (
    "我喜欢苹果手机", "苹果公司发布了新品", "牛顿被苹果砸中", "手机公司发布了苹果", "我喜欢苹果但讨厌梨子",
    "他讨厌菠菜",
)  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    for head in (True, False):
        tiny_bert(folder / str(head), head=head)
    rows = [{"id": f"t{n}", "group": f"g{n}", "text": TEXTS[n % 6] + "苹果手机"[: n % 5]} for n in range(24)]
    jsonl(folder / "train.jsonl", rows)
    jsonl(
        folder / "test.jsonl",
        [{"id": f"e{n}", "group": f"e{n}", "text": f"我们热爱{text}"} for n, text in enumerate(TEXTS)],
    )
    return folder


def masked(folder, out, *, head=True, **more):
    given = {
        "model": str(folder / str(head) / "bert"), "task": "masked-lm", "out": str(folder / out), "seed": 3,
        "data": {
            "train": str(folder / "train.jsonl"), "test": str(folder / "test.jsonl"), "dev_share": 0, "max_length": 32,
        },
        "training": {"max_steps": 9, "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 0.01},
    }  # fmt: skip
    for key, value in more.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    return config_of(given)


def notes(folder):
    return json.loads((folder / "manifest.json").read_text("utf-8"))["notes"]


def logits(model):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([[2, 30, 31, 4, 33, 3]])).logits


# ---- heads -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_with_a_head_is_learned_with_that_head_and_nothing_is_said_of_it(desk):
    config = masked(desk, "own")
    prepared = prepare_run(config, device="cpu")
    base = load_model(config.model, head="lm", device="cpu")
    assert base.untrained == ()
    assert torch.equal(logits(prepared.learner.model), logits(base.model))
    assert not any("untrained" in note for note in prepared.notes)
    trained = [name for name, weight in prepared.learner.model.named_parameters() if weight.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert "head" not in {caution.name for caution in inspect_run(config).cautions}


def test_which_weights_the_files_lack_is_known_by_name(desk):
    lacking = load_model(str(desk / "False" / "bert"), head="lm", device="cpu").untrained
    assert "cls.predictions.transform.dense.weight" in lacking and all(name.startswith("cls.") for name in lacking)
    assert load_model(str(desk / "False" / "bert"), device="cpu").untrained == ()


@pytest.fixture(scope="module")
def new_head(desk):
    return train(masked(desk, "new", head=False), device="cpu").folder


def test_a_head_that_is_not_there_is_said_to_start_untrained_and_is_trained_whole(desk, new_head):
    (note,) = [note for note in notes(new_head) if "starts untrained" in note]
    assert "cls.predictions.transform.dense" in note and "it is trained too" in note
    saved = load_file(new_head / "adapter_model.safetensors")
    head = {name: tensor for name, tensor in saved.items() if "cls.predictions" in name}
    assert {name.rsplit("transform.", 1)[1] for name in head} == {
        "dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias",
    }  # fmt: skip
    start = load_model(str(desk / "False" / "bert"), head="lm", device="cpu").model.cls.predictions.transform.dense
    moved = head["base_model.model.cls.predictions.transform.dense.weight"] - start.weight.detach()
    assert float(moved.abs().max()) > 1e-3
    (caution,) = [one.text for one in inspect_run(masked(desk, "x", head=False)).cautions if one.name == "head"]
    assert caution == note


def test_the_words_of_pairs_may_be_masked_and_that_is_noted(desk):
    file = desk / "pairs.yaml"
    file.write_text("pairs:\n  - {query: 手机, key: 苹果}\n", encoding="utf-8")
    config = masked(desk, "pairs", pairs={"file": str(file)})
    (caution,) = [one.text for one in inspect_run(config).cautions if one.name == "masks"]
    assert caution in prepare_run(config, device="cpu").notes and "masked like any other" in caution
    assert not any(one.name == "masks" for one in inspect_run(masked(desk, "x")).cautions)


def test_a_trained_head_comes_back_in_peft_in_probe_and_in_the_run(desk, new_head):
    from peft import PeftModel

    run = open_run_folder(new_head, device="cpu")
    base = load_model(str(desk / "False" / "bert"), head="lm", device="cpu").model
    theirs = PeftModel.from_pretrained(base, str(new_head)).eval()
    ours = load_model(str(new_head), head="lm", device="cpu")
    for other in (theirs, ours.model):
        assert torch.allclose(logits(run.model), logits(other), atol=1e-6)
    with run.base() as off:
        off_logits = logits(off)
    plain = load_model(str(desk / "False" / "bert"), head="lm", device="cpu").model
    assert not torch.allclose(off_logits, logits(plain), atol=1e-3)  # the head stays
    assert not torch.allclose(off_logits, logits(run.model), atol=1e-3)  # the adapter does not
    assert torch.equal(logits(run.model), logits(run.model)) and not run.model.training


def perplexity(run):
    """Of the tokens that seed 0 masks in the test texts."""
    collator = collator_of(run.tokenizer, "masked-lm", seed=0)
    reach = Reach(causal=False, window=None, longest=None)
    encoding = Encoding(task="masked-lm", max_length=32, reach=reach)
    documents = [
        encode(
            Record(id=str(n), where=f"t:{n}", group=str(n), text=f"我们热爱{text}"), run.tokenizer, encoding, index=n
        )
        for n, text in enumerate(TEXTS)
    ]
    batch = collator(documents)
    with torch.inference_mode():
        found = run.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return float(torch.nn.functional.cross_entropy(found.flatten(0, 1), batch["labels"].flatten()).exp())


def test_evaluation_reads_the_trained_head_and_says_that_the_base_does_too(desk, new_head):
    run = open_run_folder(new_head, device="cpu")
    found = evaluate(run, general_limit=2)
    tuned, base = (found.value("perplexity_of_masked", "test", arm) for arm in ("tuned", "base"))
    assert tuned == pytest.approx(perplexity(run), rel=1e-6) != pytest.approx(base, rel=1e-2)
    with run.model.disable_adapter():  # PEFT's own way: the untrained head comes back
        assert base != pytest.approx(perplexity(run), rel=1e-2)
    assert any("answers through the head that the run trained" in note for note in found.notes)
    own = train(masked(desk, "own-evaluated"), device="cpu").folder
    told = evaluate(open_run_folder(own, device="cpu"), general_limit=2).notes
    assert not any("answers through the head" in note for note in told)


# ---- masks -----------------------------------------------------------------------------------------------------


def learner_of(config, folder):
    """The trainer of a run, and the inputs of each batch that its loss sees, by the texts' places."""
    prepared = prepare_run(config, device="cpu")
    learner, _ = make_trainer(config, prepared, folder=folder, start=None, progress=None)
    seen = []
    plain = learner.compute_loss

    def watched(model, inputs, *arguments, **named):
        for place, index in enumerate(inputs["index"].tolist()):
            kept = inputs["attention_mask"][place].bool()
            seen.append((index, tuple(inputs["input_ids"][place][kept].tolist())))
        return plain(model, inputs, *arguments, **named)

    learner.compute_loss = watched
    return learner, seen


def test_a_text_is_masked_anew_in_each_epoch(desk, tmp_path):
    learner, seen = learner_of(masked(desk, "x", training={"max_steps": 18}), tmp_path)
    learner.train()
    epochs = [dict(seen[start : start + 24]) for start in (0, 24, 48)]
    assert all(len(epoch) == 24 for epoch in epochs)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert sum(epochs[one][index] != epochs[other][index] for index in range(24)) > 12


@pytest.mark.parametrize("order", ["random", "group_by_length"])
def test_a_resumed_run_masks_and_draws_as_one_that_did_not_stop(desk, order):
    """Stopped in the middle of the second epoch of 6 steps; masks or texts of the first would be other weights."""
    training = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 9, "train_sampling_strategy": order}
    config = masked(desk, f"resumed-{order}", training=training)
    first = train(config, device="cpu").folder
    wanted = load_file(first / "adapter_model.safetensors")
    shutil.rmtree(first / CHECKPOINTS / "checkpoint-9")
    (first / "adapter_model.safetensors").unlink()
    train(config, device="cpu", resume=True)
    again = load_file(first / "adapter_model.safetensors")
    assert max(float((wanted[name] - again[name]).abs().max()) for name in wanted) <= 1e-6


def test_a_resumed_run_goes_on_with_the_head_that_it_trained(desk):
    training = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 9}
    config = masked(desk, "resumed-head", head=False, training=training)
    first = train(config, device="cpu").folder
    wanted = load_file(first / "adapter_model.safetensors")
    for number in (8, 9):
        shutil.rmtree(first / CHECKPOINTS / f"checkpoint-{number}")
    train(config, device="cpu", resume=True)
    again = load_file(first / "adapter_model.safetensors")
    assert any("cls.predictions" in name for name in wanted)
    assert max(float((wanted[name] - again[name]).abs().max()) for name in wanted) <= 1e-6


def test_accumulation_masks_and_steps_like_one_large_batch(desk):
    found = []
    for size in (8, 2):
        training = {
            "per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size, "optim": "sgd",
            "max_steps": 4, "learning_rate": 0.1,
        }  # fmt: skip
        folder = train(masked(desk, f"size{size}", training=training), device="cpu").folder
        found.append(load_file(folder / "adapter_model.safetensors"))
    scale = max(float(weight.abs().max()) for weight in found[0].values())
    assert max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0]) < 1e-5 * scale


def test_a_streamed_run_masks_each_pass_anew(desk, tmp_path):
    config = masked(
        desk, "x", data={"streaming": True, "look_ahead": 8, "shuffle_buffer": 4}, training={"max_steps": 12}
    )  # fmt: skip
    learner, seen = learner_of(config, tmp_path)
    learner.train()
    one, other = dict(seen[:24]), dict(seen[24:])
    assert len(one) == len(other) == 24 and sum(one[index] != other[index] for index in one) > 12
