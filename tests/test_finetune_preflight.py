"""A look before training: each fault planted is named, what is shown is what is trained on, and no weight is read."""

import json

import pytest
import torch
import yaml

from finetune.config import config_of
from finetune.errors import ConfigError, DataError, PairError
from finetune.footprint import memory_of, shape_of, trained_numbers
from finetune.learner import lora_targets, make_learner
from finetune.preflight import inspect_run, lines_of
from finetune.prepare import prepare_run
from finetune.train import train
from probe import model_outline
from tests.tiny import byte_fallback_tokenizer, tiny_bert, tiny_gemma3, tiny_gpt2, tiny_llama, wordpiece_tokenizer

TEXTS = (
    "我喜欢苹果手机", "苹果公司发布了新品", "牛顿被苹果砸中", "手机公司发布了苹果", "我喜欢苹果但讨厌梨子",
    "他讨厌菠菜", "我们热爱和平", "苹果酸脱氢酶", "他喜欢苹果手机", "公司发布了新品手机",
)  # fmt: skip
PAIRS = [{"query": "手机", "key": "苹果"}, {"query": "公司", "key": "苹果"}]
MODELS = {"llama": tiny_llama, "gemma3": tiny_gemma3, "bert": tiny_bert, "gpt2": tiny_gpt2}


class Desk:
    """A folder with a model without weights, texts and pairs."""

    def __init__(self, folder):
        self.folder = folder

    def model(self, family="llama", *, tokenizer=None, weights=False, **changes):
        MODELS[family](self.folder, **changes)
        if tokenizer is not None:
            tokenizer.save_pretrained(self.folder / family)
        if not weights:
            (self.folder / family / "model.safetensors").unlink()
        return str(self.folder / family)

    def texts(self, rows=TEXTS):
        path = self.folder / "texts.jsonl"
        rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
        path.write_text("".join(json.dumps({"id": f"t{n}", **row}) + "\n" for n, row in enumerate(rows)), "utf-8")
        return str(path)

    def pairs(self, pairs=PAIRS):
        path = self.folder / "pairs.yaml"
        path.write_text(yaml.safe_dump({"pairs": pairs}, allow_unicode=True), "utf-8")
        return str(path)

    def config(self, model=None, *, task="causal-lm", rows=TEXTS, pairs=None, limits=None, data=(), **more):
        given = {
            "model": model or self.model(), "task": task, "out": str(self.folder / "run"),
            "data": {"train": self.texts(rows), "dev_share": 0.2, "max_length": 32, **dict(data)},
            "training": {"per_device_train_batch_size": 2, "use_cpu": True, **more.pop("training", {})}, **more,
        }  # fmt: skip
        if pairs is not None:
            given["pairs"] = {"file": self.pairs(pairs), "unmet_limit": 1.0, "absent_limit": 1.0, **(limits or {})}
        return config_of(given)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def names(found):
    return [caution.name for caution in found.cautions]


def said(found, name):
    (text,) = [caution.text for caution in found.cautions if caution.name == name]
    return text


# ---- no weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_model_whose_weights_are_absent_passes_the_check_and_fails_to_train(desk, family):
    config = desk.config(desk.model(family), pairs=PAIRS)
    found = inspect_run(config)
    assert found.refusal is None and not (desk.folder / "run").exists()
    with pytest.raises(Exception, match="no safetensors weights"):
        prepare_run(config, device="cpu")


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "sense", "word-in-context", "classification"])
def test_every_task_is_looked_at_without_weights(desk, task):
    marked = [{"text": text, "target": "苹果"} for text in TEXTS if "苹果" in text]
    rows = {
        "sense": [{**row, "label": "ab"[n % 2]} for n, row in enumerate(marked)],
        "classification": [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)],
        "word-in-context": [
            {**one, "second": two["text"], "second_target": "苹果", "label": ("same", "different")[n % 2]}
            for n, (one, two) in enumerate(zip(marked[::2], marked[1::2], strict=False))
        ],
    }.get(task, TEXTS)
    config = desk.config(
        desk.model("llama" if task == "causal-lm" else "bert"), task=task, rows=rows, data={"dev_share": 0}
    )
    found = inspect_run(config, examples=1)
    assert ("head" in names(found)) == (task != "causal-lm")
    assert "untrained" in said(found, "head") if task != "causal-lm" else True
    shown = "\n".join(lines_of(found))
    told = {"sense": "the class a", "classification": "the class a", "word-in-context": "the class same"}
    assert told.get(task, "learns") in shown and "example 1 of" in shown


# ---- examples --------------------------------------------------------------------------------------------------


def test_an_example_shows_its_tokens_its_labels_and_its_pairs(desk):
    found = inspect_run(desk.config(pairs=PAIRS, rows=TEXTS), examples=1)
    (example,) = found.shown
    assert example.words == ("<s>", "我", "喜欢", "苹果", "手机", "</s>") and example.learned == (1, 2, 3, 4, 5)
    (pair,) = example.pairs
    assert (pair.rule, pair.queries, pair.keys) == ("手机 → 苹果", ((4, "手机"),), ((3, "苹果"),))
    lines = list(lines_of(found))
    assert "  reads     <s> 我 喜欢 苹果 手机 </s>" in lines
    assert "  pair      手机 → 苹果: 手机@4 → 苹果@3" in lines
    assert any("itself and the tokens before it" in line for line in lines)


def test_of_instructions_only_the_answer_is_shown_as_learned(desk):
    rows = [{"prompt": "我喜欢", "completion": "苹果"}, {"prompt": "他讨厌", "completion": "菠菜"}]
    found = inspect_run(desk.config(rows=rows, data={"dev_share": 0}))
    assert "  learns    2 of 5: … 苹果 </s>" in list(lines_of(found))


def test_a_masked_text_shows_what_stands_in_a_words_place(desk):
    config = desk.config(desk.model("bert"), task="masked-lm", rows=["我们热爱和平" * 4, *TEXTS], data={"dev_share": 0})
    inspection = inspect_run(config, examples=1)
    (example,) = inspection.shown
    assert len(example.learned) == 4 == len(example.replaced) and "[MASK]" in example.replaced.values()
    assert any("←[MASK]" in line for line in lines_of(inspection))


def test_packed_texts_are_shown_with_their_row(desk):
    found = inspect_run(desk.config(data={"packing": True}))
    assert found.work.rows < found.examples
    assert any(line.startswith("  row       shared by t") for line in lines_of(found))
    assert "do not see each other" in found.mask


def test_layers_whose_window_hides_a_pair_are_told(desk):
    far = "苹果公司发布了新品我喜欢手机"  # 手机 stands 8 tokens behind, the window is 4
    config = desk.config(
        desk.model("gemma3"),
        rows=[far, *TEXTS[2:]],
        pairs=PAIRS[:1],
        attention={"layers": "all"},
        data={"dev_share": 0},
    )
    found = inspect_run(config, examples=1)
    assert found.shown[0].pairs[0].layers == (1, 3)
    assert any("(in layers 1, 3 only)" in line for line in lines_of(found))


def test_lines_wrap_by_cells_on_a_terminal_and_not_in_a_file(desk):
    found = inspect_run(desk.config(rows=["苹果公司发布了新品" * 3, *TEXTS], data={"max_length": 64}), examples=1)
    whole, wrapped = list(lines_of(found)), list(lines_of(found, width=40))
    entries = [line for line in wrapped if line.startswith("  ")]
    assert max(sum(2 if ord(sign) > 0x2E80 else 1 for sign in line) for line in entries) <= 40
    assert " ".join(wrapped).split() == " ".join(whole).split()
    assert len(entries) > len([line for line in whole if line.startswith("  ")]) + 5
    assert sum(line.startswith("  reads") for line in wrapped) == 1


def test_a_text_cannot_steer_the_terminal(desk):
    found = inspect_run(desk.config(rows=["苹果\x1b[31m\u202e手机", *TEXTS], pairs=PAIRS), examples=20)
    assert not {"\x1b", "\u202e"} & set("".join(lines_of(found)))


# ---- pairs -----------------------------------------------------------------------------------------------------

UNMET = [
    ("order", ["苹果手机"], [{"query": "苹果", "key": "手机"}], {}, {}),
    ("window", ["苹果公司发布了新品手机"], [{"query": "手机", "key": "苹果"}], {}, {"attention": {"layers": [0, 2]}}),
    ("truncated", ["苹果" + "公司" * 12 + "手机"], [{"query": "手机", "key": "苹果"}], {"max_length": 8}, {}),
    ("overlapping", ["苹果手机"], [{"query": {"regex": "果手"}, "key": {"regex": "苹果手机"}}], {}, {}),
    ("absent", ["苹果"], [{"query": "牛顿", "key": "菠菜"}], {}, {}),
]


@pytest.mark.parametrize(("reason", "planted", "pairs", "data", "more"), UNMET, ids=[one[0] for one in UNMET])
def test_a_pair_that_cannot_be_met_is_counted_by_its_reason_with_its_rule(desk, reason, planted, pairs, data, more):
    rest = ["我们热爱和平", "公司发布了新品", "我喜欢手机"]
    config = desk.config(desk.model("gemma3"), rows=planted + rest, pairs=pairs, data={"dev_share": 0, **data}, **more)
    found = inspect_run(config)
    counts = found.pairs.by_reason()
    assert counts.pop(reason) == 1 and not any(counts.values())
    assert isinstance(found.refusal, PairError)
    (line,) = [line for line in lines_of(found) if line.strip().startswith(f"{reason} ") and "(" in line]
    assert found.pairs.names[0] in line


def test_the_refusal_is_the_one_that_training_gives(desk):
    pairs = [{"query": "苹果", "key": "手机"}, *PAIRS]
    model = desk.model(weights=True)
    for limits in ({"unmet_limit": 0.1}, {"unmet_limit": 1.0, "absent_limit": 0.0}):
        given = pairs if "absent_limit" not in limits else [*pairs, {"query": "牛顿", "key": "菠菜"}]
        config = desk.config(model, pairs=given, limits=limits)
        refusal = inspect_run(config).refusal
        with pytest.raises(PairError) as caught:
            prepare_run(config, device="cpu")
        assert str(refusal) == str(caught.value)


def test_without_an_attention_loss_pairs_are_counted_and_refuse_nothing(desk):
    config = desk.config(pairs=[{"query": "苹果", "key": "手机"}], attention={"mode": "none"})
    found = inspect_run(config)
    assert found.refusal is None and found.pairs.by_reason()["order"] > 0 and found.supervised == ()


# ---- refused at once -------------------------------------------------------------------------------------------


def test_what_training_refuses_before_it_meets_a_pair_is_refused_here(desk):
    with pytest.raises(ConfigError, match="does not read from left to right"):
        inspect_run(desk.config(desk.model("bert", head=True)))
    llama = desk.model()
    with pytest.raises(ConfigError, match=r"lora\.targets 'q_porj'"):
        inspect_run(desk.config(llama, lora={"targets": ["q_porj"]}))
    with pytest.raises(ConfigError, match=r"^task masked-lm: the family llama has no head for it$"):
        inspect_run(desk.config(llama, task="masked-lm"))
    tokenizer = wordpiece_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(DataError, match="no mask token"):
        inspect_run(desk.config(desk.model("bert", tokenizer=tokenizer), task="masked-lm"))
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        inspect_run(desk.config(llama, pairs=PAIRS, attention={"layers": [7]}))
    with pytest.raises(ConfigError, match="training:"):
        inspect_run(desk.config(llama, training={"eval_strategy": "sometimes"}))


# ---- cautions --------------------------------------------------------------------------------------------------


def test_a_sound_run_has_no_caution(desk):
    assert names(inspect_run(desk.config(pairs=PAIRS))) == []


def test_lora_without_keys_or_above_the_supervised_layers_is_named(desk):
    model = desk.model()
    found = inspect_run(desk.config(model, pairs=PAIRS, lora={"targets": ["q_proj", "v_proj"]}))
    assert names(found) == ["keys"] and "q_proj, v_proj" in said(found, "keys")
    assert names(inspect_run(desk.config(model, lora={"targets": ["q_proj", "v_proj"]}))) == []
    above = inspect_run(desk.config(model, pairs=PAIRS, attention={"layers": [0, 1]}, lora={"layers": [2]}))
    assert "LoRA begins at layer 2, above all supervised layers (0, 1)" in said(above, "layers")
    at = inspect_run(desk.config(model, pairs=PAIRS, attention={"layers": [0, 1]}, lora={"layers": [1]}))
    assert names(at) == []


def test_padding_that_is_the_end_token_or_none_is_named(desk):
    tokenizer = byte_fallback_tokenizer()
    tokenizer.pad_token = "</s>"
    assert "are one (</s>)" in said(inspect_run(desk.config(desk.model(tokenizer=tokenizer))), "pad")
    tokenizer.pad_token = None
    assert "no padding token" in said(inspect_run(desk.config(desk.model(tokenizer=tokenizer))), "pad")


def test_two_start_tokens_are_named_with_the_examples(desk):
    from tokenizers import processors

    tokenizer = byte_fallback_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> <s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    found = inspect_run(desk.config(desk.model(tokenizer=tokenizer), data={"dev_share": 0}))
    assert said(found, "start").startswith(
        "10 of 10 examples (100.0%) begin with two start tokens (<s>): t0, t1, t2, …"
    )


def test_examples_without_a_label_are_named_and_all_of_them_refused(desk):
    long = {"prompt": "我喜欢苹果" * 4, "completion": "苹果"}
    short = {"prompt": "我喜欢", "completion": "苹果"}
    found = inspect_run(
        desk.config(rows=[short, long, short | {"prompt": "他"}], data={"max_length": 8, "dev_share": 0})
    )
    assert said(found, "labels") == "of 1 of 3 examples (33.3%) the loss counts no token: t1; the answer was cut"
    assert found.refusal is None and "cut" in names(found)
    nothing = inspect_run(desk.config(rows=[long], data={"max_length": 8, "dev_share": 0}))
    assert isinstance(nothing.refusal, DataError) and any("learns    nothing" in one for one in lines_of(nothing))


def test_lengths_beyond_the_model_and_cut_texts_are_named(desk):
    bert = desk.model("bert")
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)]
    cut = inspect_run(desk.config(bert, task="classification", rows=rows, data={"max_length": 8, "dev_share": 0}))
    assert "of 10 examples" in said(cut, "cut") and "are cut at 8 tokens" in said(cut, "cut")
    split = inspect_run(desk.config(rows=["苹果公司" * 20, *TEXTS], data={"dev_share": 0}))
    assert said(split, "cut").startswith("1 texts are longer than 32 tokens and split")


def test_a_missing_dev_part_unknown_characters_and_a_used_folder_are_named(desk):
    assert "no dev part" in said(inspect_run(desk.config(data={"dev_share": 0})), "dev")
    (desk.folder / "run").mkdir()
    (desk.folder / "run" / "config.yaml").write_text("{}")
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(["苹果巯肼", *TEXTS])]
    found = inspect_run(desk.config(desk.model("bert"), task="classification", rows=rows, data={"dev_share": 0}))
    assert "2 of " in said(found, "unknown") and said(found, "unknown").endswith("巯, 肼")
    assert "is not empty" in said(found, "folder")


def test_batches_and_accumulation_without_effect_are_named(desk):
    model = desk.model()
    large = inspect_run(desk.config(model, training={"per_device_train_batch_size": 64}))
    assert "a batch of 64 holds all 8 rows" in said(large, "batch")
    many = inspect_run(desk.config(model, training={"gradient_accumulation_steps": 9}))
    assert "an epoch has 4 batches" in said(many, "batch")
    packed = inspect_run(desk.config(model, data={"packing": True, "max_length": 8}))
    assert "no two texts fit" in said(packed, "batch")


# ---- what a run needs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "training", [{"num_train_epochs": 2}, {"max_steps": 3}, {"gradient_accumulation_steps": 3, "num_train_epochs": 1.5}]
)
def test_steps_are_those_that_training_takes(desk, training):
    config = desk.config(desk.model(weights=True), training=training)
    found = inspect_run(config)
    assert train(config, device="cpu").steps == found.work.steps
    parameters = model_outline(config.model, head="lm").parameters
    assert found.work.flops == pytest.approx(6 * parameters * found.work.tokens * found.work.epochs)


@pytest.mark.parametrize(("family", "task"), [("llama", "causal-lm"), ("bert", "sense"), ("bert", "classification")])
def test_trained_parameters_are_those_of_the_adapter(desk, family, task):
    rows = [
        {"text": text, "target": "苹果", "label": "ab"[n % 2]} for n, text in enumerate(t for t in TEXTS if "苹果" in t)
    ]
    config = desk.config(desk.model(family, weights=True), task=task, rows=TEXTS if task == "causal-lm" else rows)
    learner = make_learner(config, labels=("a", "b"), device="cpu")
    trained = {name: one.numel() for name, one in learner.model.named_parameters() if one.requires_grad}
    told = int(inspect_run(config).facts["adapter"].rsplit(": ", 1)[1].split()[0].replace(",", ""))
    heads = sum(count for name, count in trained.items() if "classifier" in name)  # PEFT trains a copy of this head
    assert told == sum(trained.values()) - heads


def peak_of(step):
    """The most that torch held during a step beyond what it held before, as its profiler counts."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(("rows", "tokens", "vocabulary"), [(4, 64, 400), (2, 96, 4000)])
def test_memory_is_within_a_factor_of_two_of_a_measured_step(family, rows, tokens, vocabulary, checkpointing):
    import peft

    sizes = {"gpt2": {"n_embd": 128, "n_layer": 8, "n_positions": 128}}.get(
        family,
        {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8, "max_position_embeddings": 128},
    )
    if family == "gemma3":
        sizes["layer_types"] = ["sliding_attention", "full_attention"] * 4
    model, _ = MODELS[family](head=True, vocab_size=vocabulary, **sizes)
    config = config_of({"model": "m", "task": "causal-lm", "data": {"train": "t"}})
    targets = lora_targets(model, config.lora)
    trained = trained_numbers(model, targets, config.lora)
    shape = shape_of(model.config, heads=4, logits=True)
    before = sum(weight.numel() for weight in model.parameters())
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=list(targets))).train()
    if checkpointing:
        adapted.gradient_checkpointing_enable()
        adapted.enable_input_require_grads()
    optimizer = torch.optim.AdamW([weight for weight in adapted.parameters() if weight.requires_grad])
    ids = torch.randint(5, 300, (rows, tokens))

    def step():
        logits = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        logits, wanted = logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1)
        torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum").backward()
        optimizer.step()

    told = memory_of(
        shape, parameters=before, trained=trained, tokens=rows * tokens, length=tokens, checkpointing=checkpointing
    )
    assert trained == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    measured = peak_of(step)  # weights were there before, gradients and AdamW's averages arise in it
    estimate = told.activations + told.lora // 2 + told.optimizer
    assert 0.5 < estimate / measured < 2.0, (estimate, measured)


def test_memory_and_steps_are_told_with_what_they_leave_out(desk):
    lines = "\n".join(lines_of(inspect_run(desk.config())))
    assert "within a factor of two" in lines and "Without weights no second is measured" in lines


def test_work_counts_packed_rows_and_real_tokens(desk):
    config = desk.config(data={"packing": True, "dev_share": 0})
    found = inspect_run(config)
    tokens = sum(len(byte_fallback_tokenizer()(text)["input_ids"]) + 1 for text in TEXTS)
    assert found.work.tokens == tokens and found.work.longest <= 32
    assert found.work.steps_an_epoch == -(-found.work.rows // 2)


# ---- the command -----------------------------------------------------------------------------------------------


def test_the_command_prints_all_lines_then_the_refusal_and_exits_with_2(desk, capsys):
    from finetune.__main__ import run

    options = ["check", "-m", desk.model(), "--data", desk.texts(), "--set", "data.max_length=32"]
    assert run(options) == 0 and "example 3 of" in capsys.readouterr().out
    backwards = desk.pairs([{"query": "苹果", "key": "手机"}])
    assert run([*options, "--pairs", backwards, "--examples", "0"]) == 2
    told = capsys.readouterr()
    assert "order" in told.out and "example" not in told.out.split("pairs:")[0].replace("examples to train", "")
    assert "pairs cannot be met (2 order)" in told.err
