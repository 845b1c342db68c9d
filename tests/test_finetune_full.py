"""Method full: all weights of a model trained, saved as a model folder, resumed and opened to the last bit."""

import copy
import hashlib
import json
import shutil

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from finetune import whole
from finetune.bases import base_at_rest, base_weights, keep_base
from finetune.begun import as_yaml, plain_of
from finetune.config import config_of
from finetune.control import mean_attention
from finetune.errors import ConfigError, TrainingError
from finetune.evaluate import evaluate
from finetune.evaluation import manifest_of
from finetune.footprint import memory_of, shape_of
from finetune.grid import default_axes, settings_of
from finetune.learner import make_learner
from finetune.merge import merge_run
from finetune.preflight import inspect_run, lines_of
from finetune.push import HubSettings, push_run
from finetune.runfolder import open_run_folder
from finetune.sweep import sweep
from finetune.train import train
from finetune.whole import load_weights, save_taught
from probe import load_model
from tests.finished import classifier, language_model, sense_reader
from tests.teaching import collate, examples, supervision, trainer, with_lora
from tests.teaching import tiny_llama as small_llama
from tests.test_finetune_preflight import peak_of
from tests.tiny import tiny_bert, tiny_gemma3, tiny_llama

IDS = torch.tensor([[2, 270, 280, 290, 275]])


@pytest.fixture(autouse=True)
def _without_data(monkeypatch):
    monkeypatch.delenv("CIJING_DATA", raising=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    return {
        "lm": language_model(folder / "lm", method="full"),
        "sense": sense_reader(folder / "sense", count=40, method="full", training__max_steps=12),
    }


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of the language model's run that a test may spoil."""
    return shutil.copytree(runs["lm"], tmp_path / "run")


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(input_ids=ids).logits


def weights(folder):
    shards = map(load_file, sorted(folder.glob("model*.safetensors")))
    return {name: tensor for shard in shards for name, tensor in shard.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- what is trained, and what is left -------------------------------------------------------------------------


def test_every_weight_moves_embeddings_and_norms_too(runs):
    before, after = weights(runs["lm"].parent / "llama"), weights(runs["lm"])
    assert before.keys() == after.keys()
    assert [name for name in before if torch.equal(before[name], after[name])] == []


def test_with_a_rate_of_nothing_the_run_is_its_base_to_the_last_bit(tmp_path):
    folder = language_model(tmp_path, method="full", training__learning_rate=0.0)
    assert same(weights(tmp_path / "llama"), weights(folder))
    run = open_run_folder(folder, device="cpu")
    base = load_model(str(tmp_path / "llama"), device="cpu", head="lm")
    assert torch.equal(logits(run.model), logits(base.model))
    found = evaluate(run)
    differences = found.results[found.results.arm == "difference"]
    assert len(differences) and (differences.estimate == 0.0).all()


def test_the_run_folder_is_a_model_for_transformers_and_for_probe(runs):
    run = open_run_folder(runs["lm"], device="cpu")
    ours = load_model(str(runs["lm"]), device="cpu", head="lm")
    theirs = AutoModelForCausalLM.from_pretrained(runs["lm"], local_files_only=True).eval()
    assert torch.equal(logits(ours.model), logits(run.model)) and torch.equal(logits(theirs), logits(run.model))
    assert ours.notes == () and ours.tokenizer("我喜欢苹果") == run.tokenizer("我喜欢苹果")
    assert not run.model.training and not any(weight.requires_grad for weight in run.model.parameters())


def test_nothing_is_pickled_but_trainers_optimizer_and_no_adapter_is_left(runs):
    names = {path.name for path in runs["lm"].rglob("*")}
    assert {"model.safetensors", "config.json", "weights.json"} <= names
    assert {name for name in names if name.endswith((".bin", ".pt", ".pth"))} <= {
        "optimizer.pt", "scheduler.pt", "rng_state.pth",
    }  # fmt: skip
    assert not any("adapter" in name for name in names)
    card = (runs["lm"] / "README.md").read_text("utf-8")
    assert "library_name: transformers" in card and "base_model_relation: finetune" in card and "lora" not in card
    assert "method: full; attention: pairs" in card and "terms travel with this model" in card


def test_the_terms_of_the_base_travel_with_the_weights(tmp_path):
    tiny_llama(tmp_path)
    (tmp_path / "llama" / "LICENSE.txt").write_text("terms of the base", encoding="utf-8")
    folder = language_model(tmp_path, method="full", training__max_steps=1)
    assert (folder / "LICENSE.txt").read_text("utf-8") == "terms of the base"


def test_shared_embeddings_in_several_shards_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "SHARD", "20KB")
    tiny_gemma3(tmp_path, tie_word_embeddings=True)
    folder = language_model(tmp_path, method="full", model=str(tmp_path / "gemma3"), training__max_steps=2)
    shards = sorted(path.name for path in folder.glob("model-*.safetensors"))
    told = json.loads((folder / "weights.json").read_text("utf-8"))["hashes"]
    assert len(shards) > 2 and {*shards, "model.safetensors.index.json", "config.json", "README.md"} <= told.keys()
    run = open_run_folder(folder, device="cpu")
    assert run.model.lm_head.weight is run.model.model.embed_tokens.weight
    theirs = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    assert torch.equal(logits(theirs), logits(run.model))


def test_the_step_that_is_kept_is_the_best_on_dev(tmp_path):
    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    plan = {"per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 0.3}  # too much: dev gets worse
    folder = sense_reader(tmp_path, method="full", training={**steps, **plan})
    kept = json.loads((folder / "manifest.json").read_text("utf-8"))["kept"]["step"]
    best = folder / "checkpoints" / f"checkpoint-{kept}"
    assert kept < 4 and same(weights(best), weights(folder))
    heads = [load_file(place / "reading_head.safetensors") for place in (best, folder)]
    assert same(*heads)


# ---- killed and resumed ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing in a run catches it."""


@pytest.mark.parametrize("task", ["causal-lm", "sense"])
def test_a_run_that_was_killed_and_resumed_ends_as_one_that_was_not_to_the_last_bit(tmp_path, task):
    make = {"causal-lm": language_model, "sense": sense_reader}[task]
    base = tmp_path / "base"  # with dropout, so that the random numbers must be those of the unbroken run as well
    if task == "causal-lm":
        tiny_llama(base, attention_dropout=0.1)
    else:
        tiny_bert(base, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    changes = {
        "method": "full", "model": str(next(base.iterdir())), "training__max_steps": 6,
        "training__save_strategy": "steps", "training__save_steps": 2, "training__eval_strategy": "steps",
        "training__eval_steps": 2,
    }  # fmt: skip
    unbroken = make(tmp_path, **changes)

    config = config_of({**plain_of(open_config(unbroken)), "out": str(tmp_path / "killed")})
    for resume, step in ((False, 3), (True, 5)):

        def tell(stage, done, total, step=step):
            if stage == "training" and done == step:
                raise Killed

        with pytest.raises(Killed):
            train(config, device="cpu", resume=resume, progress=tell)
    train(config, device="cpu", resume=True)
    assert same(weights(unbroken), weights(tmp_path / "killed"))
    one, other = (pd.read_csv(run / "tables" / "steps.csv") for run in (unbroken, tmp_path / "killed"))
    pd.testing.assert_frame_equal(one[["step", "eval_loss"]], other[["step", "eval_loss"]], check_exact=True)
    if task == "sense":
        assert same(*(load_file(run / "reading_head.safetensors") for run in (unbroken, tmp_path / "killed")))


def open_config(folder):
    return config_of({**yaml.safe_load((folder / "config.yaml").read_text("utf-8")), "out": str(folder)})


def test_a_touched_checkpoint_is_refused_by_name(tmp_path):
    folder = language_model(tmp_path, method="full", training__max_steps=1)
    path = folder / "checkpoints" / "checkpoint-1" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainingError, match=r"model\.safetensors is changed"):
        train(open_config(folder), device="cpu", resume=True)


def test_a_finished_run_is_not_trained_again(runs):
    before = {path: path.read_bytes() for path in runs["lm"].glob("*.safetensors")}
    done = train(open_config(runs["lm"]), device="cpu", resume=True)
    assert "nothing was done" in done.notes[-1]
    assert before == {path: path.read_bytes() for path in runs["lm"].glob("*.safetensors")}


# ---- the base beside it ----------------------------------------------------------------------------------------


def test_base_gives_the_untouched_base_and_the_trained_model_comes_back(runs):
    run = open_run_folder(runs["lm"], device="cpu")
    base = load_model(run.config.model, device="cpu", dtype="float32", head="lm").model
    tuned, loaded = logits(run.model), run.learner.loaded
    assert loaded.model is run.model and loaded.fingerprint_now() != loaded.fingerprint
    with run.base() as off, run.base():
        assert torch.equal(logits(off), logits(base)) and loaded.fingerprint_now() == loaded.fingerprint
    assert torch.equal(logits(run.model), tuned) and not torch.equal(tuned, logits(base))
    with pytest.raises(ZeroDivisionError), run.base():
        _ = 1 / 0
    assert torch.equal(logits(run.model), tuned)
    kept = sum(weight.numel() for weight in run.model.kept_base.values())
    assert kept == sum(weight.numel() for weight in run.model.parameters())  # what the documentation says of memory


def test_a_model_that_keeps_no_base_is_not_taken_for_one():
    with pytest.raises(TrainingError, match="keeps no weights of its base"), base_weights(small_llama()):
        pass


def test_evaluation_compares_with_the_base_and_reads_through_the_trained_head(runs):
    run = open_run_folder(runs["sense"], device="cpu")
    head = load_file(runs["sense"] / "reading_head.safetensors")
    assert torch.equal(run.model.reading_head.out.weight, head["out.weight"]) and run.trains_head
    found = evaluate(run)
    rows = found.results[(found.results.measure == "accuracy") & (found.results.part == "test")].set_index("arm")
    assert rows.estimate["tuned"] > 0.75 and rows.estimate["base"] < rows.estimate["tuned"]
    assert any("on its own states" in note for note in found.notes)
    assert "model.safetensors" in manifest_of(found, run)["weights"]


@pytest.mark.parametrize("task", ["classification", "masked-lm"])
def test_a_head_that_the_base_lacks_stays_where_the_base_answers(tmp_path, task):
    folder = classifier(tmp_path, task=task, method="full", training__max_steps=3)
    run = open_run_folder(folder, device="cpu")
    kind = {"classification": AutoModelForSequenceClassification, "masked-lm": AutoModelForMaskedLM}[task]
    ids = torch.tensor([[2, 30, 31, 32, 3]])
    theirs = kind.from_pretrained(folder, local_files_only=True).eval()
    assert torch.equal(logits(theirs, ids), logits(run.model, ids)) and run.trains_head
    states = load_model(str(tmp_path / "bert"), device="cpu").model(input_ids=ids).last_hidden_state
    with run.base() as base:
        assert torch.equal(base.bert(input_ids=ids).last_hidden_state, states)
        name = "classifier" if task == "classification" else "cls"
        trained, here = (getattr(model, name).state_dict() for model in (theirs, base))
    own = {key for key in trained if "decoder.weight" not in key}  # shared with the base's embeddings
    assert own and all(torch.equal(trained[key], here[key]) for key in own)


def small_pair():
    """A model all of whose weights were changed, its base kept, and a LoRA model with the same weights, merged."""
    adapted = with_lora(small_llama())
    merged = copy.deepcopy(adapted).merge_and_unload()
    full = small_llama()
    keep_base(full, copied=True)
    with torch.no_grad():
        for one, other in zip(full.parameters(), merged.parameters(), strict=True):
            one.copy_(other)
    return full.requires_grad_(True), adapted


def test_the_anchor_is_to_the_base_as_it_is_for_an_adapter(tmp_path):
    losses = []
    for number, model in enumerate(small_pair()):
        learner = trainer(model, tmp_path / str(number), data=examples(), supervised=supervision(name="anchor"))
        with learner.tapped():
            _, _, scores = learner._losses(learner.model, dict(collate(examples())), None)
        losses.append(float(scores.loss.detach()))
        scores.loss.backward()  # the graph is of the trained weights, not of those that were put back for a while
        assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    assert losses[0] > 1e-3 and losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("asking", ["anchor", "random pairs of a stream"])
def test_a_run_that_asks_its_base_while_it_trains_comes_to_its_end(tmp_path, asking):
    changes = {"attention__loss": "anchor", "training__logging_steps": 1}
    if asking != "anchor":
        changes = {"attention__mode": "random", "data__streaming": True, "data__dev_share": 0.0}
    folder = language_model(tmp_path, method="full", **changes)
    told = json.loads((folder / "manifest.json").read_text("utf-8"))
    if asking == "anchor":  # nothing while the model is its base, something after a step
        losses = pd.read_csv(folder / "tables" / "steps.csv")["attention_loss"].dropna()
        assert losses.iloc[0] < 1e-6 < 1e-3 < losses.iloc[-1]
    else:
        assert told["attention"]["control"]["pairs"] > 0
    assert not any("kept_base" in name for name in weights(folder))
    run = open_run_folder(folder, device="cpu")
    base = load_model(run.config.model, device="cpu", head="lm").model
    with run.base() as off:
        assert torch.equal(logits(off), logits(base))


def test_the_base_of_a_model_in_training_is_asked_at_rest():
    full, adapted = small_pair()
    for model in (full, adapted):
        model.train()
        with base_at_rest(model):
            assert not model.training
        assert model.training
    base = small_llama()
    ids = list(range(5, 14))
    found = mean_attention(full, ids, heads={1: (0, 2)})
    assert (found == mean_attention(base, ids, heads={1: (0, 2)})).all()
    assert (found == mean_attention(adapted, ids, heads={1: (0, 2)})).all()


def test_the_base_is_kept_while_training_only_where_something_asks_for_it(runs):
    plain = plain_of(open_config(runs["lm"]))
    stream = {"data": {**plain["data"], "streaming": True, "dev_share": 0.0}}
    for attention, more, kept in (
        ({}, {}, False), ({"loss": "anchor"}, {}, True), ({"mode": "random"}, {}, False),
        ({"mode": "random"}, stream, True),
    ):  # fmt: skip
        config = config_of({**plain, **more, "attention": {**plain["attention"], **attention}})
        assert hasattr(make_learner(config, labels=(), device="cpu").model, "kept_base") == kept


# ---- weights that do not fit -----------------------------------------------------------------------------------


def test_a_tampered_or_added_file_is_refused_by_name(copied):
    save_file({"x": torch.zeros(1)}, copied / "model-00001-of-00002.safetensors")
    with pytest.raises(TrainingError, match=r"no hash of model-00001-of-00002\.safetensors"):
        open_run_folder(copied, device="cpu")
    (copied / "model-00001-of-00002.safetensors").unlink()
    content = (copied / "config.json").read_text("utf-8")
    (copied / "config.json").write_text(content + " ", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"config\.json is not the one that the run wrote"):
        open_run_folder(copied, device="cpu")


LAYER = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda saved: saved.pop(LAYER), f"1 weights do not fit the model, the first {LAYER}"),
        (lambda saved: saved.update(other=torch.zeros(3)), "1 weights do not fit the model, the first other"),
        (lambda saved: saved[LAYER].fill_(float("nan")), f"{LAYER} holds what is no number"),
        (lambda saved: saved.update({LAYER: torch.zeros(3, 3)}), "weights cannot be read"),
    ],
)
def test_weights_that_do_not_fit_are_refused_even_with_a_hash_that_does(copied, change, said):
    path = copied / "model.safetensors"
    saved = load_file(path)
    change(saved)
    save_file(saved, path, metadata={"format": "pt"})
    told = json.loads((copied / "weights.json").read_text("utf-8"))
    told["hashes"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (copied / "weights.json").write_text(json.dumps(told))
    with pytest.raises(TrainingError, match=said) as caught:
        open_run_folder(copied, device="cpu")
    assert "\n" not in str(caught.value)


def test_saving_and_loading_draw_no_random_number_and_say_nothing(tmp_path, capfd):
    model, _ = tiny_bert(tmp_path)
    model.pooler = None  # as probe loads a checkpoint without one: transformers would draw it anew
    before = torch.random.get_rng_state()
    capfd.readouterr()
    save_taught(model, tmp_path / "out")
    load_weights(model, tmp_path / "out")
    assert torch.equal(before, torch.random.get_rng_state()) and capfd.readouterr() == ("", "")


# ---- what goes together ----------------------------------------------------------------------------------------


def given(folder, **more):
    return {
        "model": str(folder), "task": "causal-lm", "data": {"train": str(folder / "train.jsonl")}, "method": "full",
        **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lora": {"r": 4, "alpha": 8}}, r"lora\.alpha, lora\.r with method full, which has no adapter"),
        ({"lora": {"quantize": "4bit"}}, r"lora\.quantize 4bit with method full: weights in 4 bit cannot be trained"),
        ({"training": {"push_to_hub": True, "hub_model_id": "a/b"}}, r"training\.push_to_hub with method full"),
        ({"method": "prefix"}, r"method: Input should be 'lora' or 'full'"),
    ],
)
def test_keys_that_do_not_go_with_it_are_refused_in_one_line(tmp_path, more, said):
    with pytest.raises(ConfigError, match=said) as caught:
        config_of(given(tmp_path, **more))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["training.fsdp", "ACCELERATE_USE_FSDP"])
def test_weights_spread_over_processes_are_refused_before_anything_is_read(tmp_path, monkeypatch, how):
    if how.startswith("ACC"):
        monkeypatch.setenv(how, "true")
    training = {"fsdp": "full_shard"} if how == "training.fsdp" else {}
    config = config_of(given(tmp_path, training=training, out=str(tmp_path / "run")))
    with pytest.raises(ConfigError, match=f"method full with {how}: weights spread over processes"):
        train(config, device="cpu")
    assert not (tmp_path / "run").exists()


def test_an_adapter_is_no_base_for_it_and_check_says_so_too(tmp_path):
    adapter = language_model(tmp_path / "lora", training__max_steps=1)
    plain = plain_of(open_config(adapter))
    del plain["lora"]
    config = config_of({**plain, "model": str(adapter), "method": "full", "out": str(tmp_path / "run")})
    for look in (lambda: train(config, device="cpu"), lambda: inspect_run(config)):
        with pytest.raises(ConfigError, match="is an adapter; allowed is a whole model in safetensors"):
            look()
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_there_is_nothing_to_merge_and_nothing_is_uploaded(runs, tmp_path, monkeypatch):
    with pytest.raises(TrainingError, match="has no adapter to merge: the folder itself is the model"):
        merge_run(runs["lm"], tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(TrainingError, match="has no adapter to push: the folder itself is the model"):
        push_run(runs["lm"], HubSettings(repository="a/b"))


def test_a_run_with_lora_is_written_as_before_there_were_two_methods(tmp_path):
    lora, full = config_of({**given(tmp_path), "method": "lora"}), config_of(given(tmp_path))
    assert "method" not in as_yaml(lora) and "lora:" in as_yaml(lora)
    assert "method: full" in as_yaml(full) and "lora:" not in as_yaml(full)
    assert config_of(plain_of(full)) == full


def test_a_sweep_tries_full_runs_and_names_what_it_does_not_try(runs, tmp_path):
    base = open_config(runs["sense"])
    assert default_axes(base) == {}
    with pytest.raises(ConfigError, match=r"lora\.r with method full"):
        settings_of(base, {"lora.r": [4, 8]})
    with pytest.raises(ConfigError, match="each method has keys of its own"):
        settings_of(base, {"method": ["lora", "full"]})
    swept = sweep(base, folder=tmp_path / "sweep", axes={"training.learning_rate": [0.0, 5e-3]}, device="cpu")
    assert swept.ranked[0].setting.values == {"training.learning_rate": 5e-3} and len(swept.ranked) == 2
    assert sweep(base, folder=tmp_path / "sweep", resume=True, device="cpu").ranked[0].number == swept.ranked[0].number


# ---- looked at before ------------------------------------------------------------------------------------------


def test_the_look_before_counts_all_weights_and_the_memory_of_full_training(runs):
    config = open_config(runs["sense"])
    found, model = inspect_run(config), make_learner(config, labels=("a", "b"), device="cpu").model
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    memory = found.memory
    body = trained - sum(weight.numel() for weight in model.reading_head.parameters())
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * body, 4 * trained, 8 * trained)
    assert memory.lora == 0 and memory.kept == 0
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + memory.activations
    assert found.facts["method"].startswith(f"full: {trained:,} trained parameters") and "adapter" not in found.facts
    told = "\n".join(lines_of(found))
    assert "adapter" not in told and "LoRA" not in told and "gradients " in told


@pytest.mark.parametrize(("rows", "tokens"), [(2, 16), (8, 96)])
def test_memory_is_within_a_factor_of_two_of_two_measured_steps(rows, tokens):
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "max_position_embeddings": 128}
    model, _ = tiny_llama(vocab_size=400, **sizes)
    optimizer = torch.optim.AdamW(model.train().parameters())
    ids = torch.randint(5, 300, (rows, tokens))

    def steps():
        for _ in range(2):  # in the second AdamW's averages are there
            logits = model(input_ids=ids).logits[:, :-1].reshape(-1, 400)
            torch.nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    count = sum(weight.numel() for weight in model.parameters())
    told = memory_of(
        shape_of(model.config, heads=4, logits=True), parameters=count, trained=count, tokens=rows * tokens,
        length=tokens, full=True,
    )  # fmt: skip
    estimate = told.activations + told.gradients + told.optimizer
    assert 0.5 < estimate / peak_of(steps) < 2.0


@pytest.mark.parametrize(
    ("attention", "copies"),
    [
        ({"norms_every": 0}, 0),
        ({"norms_every": 50}, 2),
        ({"norms_every": 0, "loss": "anchor"}, 1),
        ({"weight": "auto"}, 2),
    ],
)
def test_what_the_attention_loss_needs_beside_is_counted(runs, attention, copies):
    plain = plain_of(open_config(runs["lm"]))
    config = config_of({**plain, "attention": {**plain["attention"], **attention}, "out": str(runs["lm"])})
    found = inspect_run(config, examples=0)
    assert found.memory.kept == copies * found.memory.gradients > -1
    assert ("the base and gradients measured apart" in "\n".join(lines_of(found))) == (copies > 0)


def test_a_rate_made_for_adapters_is_warned_of_and_not_changed(runs):
    plain = plain_of(open_config(runs["lm"]))
    del plain["training"]["learning_rate"]
    for method, said in (("full", 1), ("lora", 0)):
        found = inspect_run(config_of({**plain, "method": method}), examples=0)
        assert sum(caution.name == "rate" for caution in found.cautions) == said
