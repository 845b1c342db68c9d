"""What goes wrong around a run, and the one line that says so: disks, numbers, tampered files, stops, changed texts."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from finetune.begun import INPUTS, input_hashes, nothing_begun
from finetune.checkpoints import MARK, check_whole, latest_checkpoint, mark_complete, remove_partial
from finetune.config import config_of, load_config
from finetune.errors import ConfigError, TrainingError
from finetune.writing import disk_told, write_whole
from tests.teaching import examples, hear, supervision, tiny_llama, trainer, with_lora

ROOT = Path(__file__).resolve().parents[1]


def learner(folder, *, steps=4, data=None, **arguments):
    settings = {
        "max_steps": steps, "learning_rate": 0.01, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 2,
        "per_device_train_batch_size": 2, "logging_strategy": "steps", "logging_steps": 3,
    }  # fmt: skip
    model = with_lora(tiny_llama())
    return trainer(model, folder, data=data or examples(16), supervised=supervision(), **{**settings, **arguments})


class Named(list):
    """Examples of records with ids, as finetune.batches.Examples has them."""

    @property
    def documents(self):
        return [type("Document", (), {"index": one["index"], "id": f"record {one['index']}"})() for one in self]


# ---- numbers that are none --------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_names_the_records_by_their_ids_and_the_last_good_checkpoint(tmp_path):
    one = learner(tmp_path, data=Named(examples(16)))
    lines = []

    def spoil(line):
        lines.append(line)
        if line["step"] == 3:
            with torch.no_grad():
                next(weight for name, weight in one.model.named_parameters() if "lora_B" in name).fill_(float("nan"))

    hear(one, spoil)
    with pytest.raises(TrainingError, match=r"loss is nan at step 4, examples record \d+, record \d+; .*checkpoint-2"):
        one.train()
    assert latest_checkpoint(tmp_path).name == "checkpoint-2"


def planted_gradient(one, value):
    """Every backward pass gives one weight this gradient; the loss stays a number."""
    weight = next(weight for name, weight in one.model.named_parameters() if "lora_A" in name)
    weight.register_hook(lambda slope: torch.full_like(slope, value))


@pytest.mark.parametrize(("value", "clipped"), [(float("nan"), 1.0), (float("inf"), 0.0)])
def test_a_gradient_that_is_no_number_stops_the_run_before_it_spoils_the_weights(tmp_path, value, clipped):
    one = learner(tmp_path, data=Named(examples(16)), max_grad_norm=clipped)
    planted_gradient(one, value)
    with pytest.raises(TrainingError, match=r"gradient's norm is (nan|inf) at step 1, examples record \d+"):
        one.train()
    assert all(torch.isfinite(weight).all() for weight in one.model.parameters())


def test_a_scaler_may_leave_out_steps_while_it_looks_for_its_scale_but_not_for_ever(tmp_path):
    one = learner(tmp_path)
    one.accelerator.scaler = object()
    infinite = torch.tensor(float("inf"))
    for _ in range(20):
        assert one._get_grad_norm(one.model, grad_norm=infinite) == infinite
    one._get_grad_norm(one.model, grad_norm=torch.tensor(1.0))
    for _ in range(20):
        one._get_grad_norm(one.model, grad_norm=infinite)
    with pytest.raises(TrainingError, match="norm is inf"):
        one._get_grad_norm(one.model, grad_norm=infinite)


def test_a_loss_on_dev_that_is_no_number_stops_the_run(tmp_path):
    one = learner(tmp_path, eval_dataset=examples(4, seed=5))
    with torch.no_grad():
        next(weight for name, weight in one.model.named_parameters() if "lora_B" in name).fill_(float("nan"))
    with pytest.raises(TrainingError, match="loss on dev is nan"):
        one.evaluate()


# ---- what a resumed run tells -----------------------------------------------------------------------------------


def test_a_resumed_run_tells_the_means_of_the_steps_that_it_took_and_the_loss_of_all(tmp_path):
    """Killed behind checkpoint 4, logging every 3: step 5 and 6 alone are in the next line."""
    whole = learner(tmp_path / "whole", steps=6)
    done = whole.train()
    parts = learner(tmp_path / "parts", steps=6)
    lines = []
    hear(parts, lines.append)
    start = tmp_path / "whole" / "checkpoint-4"
    parts.loss_before = check_whole(start)["loss_sum"]
    again = parts.train(resume_from_checkpoint=str(start))
    told = next(line for line in lines if "task_loss" in line)
    assert told["step"] == 6
    assert told["loss"] == pytest.approx(
        told["task_loss"] + told["attention_weight"] * told["attention_loss"], rel=1e-3
    )
    assert again.metrics["train_loss"] == pytest.approx(done.metrics["train_loss"], rel=1e-5)


# ---- checkpoints that somebody touched --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    learner(folder).train()
    return folder


def test_full_weights_beside_the_adapter_are_refused(saved, tmp_path):
    """Trainer takes pytorch_model.bin before the adapter: the run would go on with LoRA as it was drawn."""
    folder = copied(saved, tmp_path)
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(TrainingError, match=r"pytorch_model\.bin is none of the checkpoint's files"):
        check_whole(folder)


def copied(saved, tmp_path):
    import shutil

    return Path(shutil.copytree(saved / "checkpoint-2", tmp_path / "checkpoint-2"))


class Evil:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "scheduler.pt"])
@pytest.mark.parametrize("what", ["code", "noise"])
def test_a_file_of_state_is_read_without_running_it_and_refused_in_one_line(saved, tmp_path, name, what):
    folder = copied(saved, tmp_path)
    if what == "code":
        torch.save(Evil(tmp_path / "ran"), folder / name)
    else:
        (folder / name).write_bytes(b"no tensors")
    mark_complete(folder, facts={})  # whoever changes files can change their hashes
    with pytest.raises(TrainingError, match="cannot be read") as caught:
        learner(tmp_path / "again").train(resume_from_checkpoint=str(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_cut_short_that_is_a_link_goes_as_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("keep")
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "checkpoint-3").symlink_to(elsewhere)
    assert remove_partial(root) == ("checkpoint-3",)
    assert (elsewhere / "mine.txt").read_text() == "keep" and not (root / "checkpoint-3").exists()


# ---- disks ------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_file_that_was_there_and_nothing_beside_it(tmp_path):
    file = tmp_path / "told.json"
    write_whole(file, "before")
    with small_files(10), pytest.raises(TrainingError, match=r"told\.json: cannot be written \(File too large\)"):
        write_whole(file, "x" * 1000)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"]


class small_files:
    """No file may grow above so many bytes, as on a disk that is full."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("size", [1_000, 20_000])
def test_a_checkpoint_that_the_disk_does_not_take_is_one_line_and_does_not_count(tmp_path, size):
    """The limits fall into the adapter and into the optimizer's state."""
    learner(tmp_path, steps=2).train()
    with small_files(size), pytest.raises(TrainingError, match="checkpoint-4: cannot be written") as caught:
        learner(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "\n" not in str(caught.value) and "--resume" in str(caught.value)
    assert latest_checkpoint(tmp_path).name == "checkpoint-2"
    remove_partial(tmp_path)
    learner(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert latest_checkpoint(tmp_path).name == "checkpoint-4"


def test_an_error_that_is_no_disks_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes"), disk_told("here"):
        raise RuntimeError("shapes differ")
    with (
        pytest.raises(TrainingError, match=r"here: cannot be written \(No space left on device\); go"),
        disk_told("here", then="go"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_pairs_file_in_a_folder_that_is_not_there_is_refused_before_any_work(tmp_path):
    from finetune.__main__ import run

    out = tmp_path / "none" / "pairs.yaml"
    assert run(["mine", "no-such-corpus.txt", "--out", str(out)]) == 2
    assert not out.parent.exists()


def test_a_merge_on_a_full_disk_leaves_nothing(tmp_path):
    from finetune.merge import _whole_or_nothing

    out = tmp_path / "merged"
    full = pytest.raises(TrainingError, match="merged: cannot be written")
    with small_files(100), full, disk_told(out), _whole_or_nothing(out) as partial:
        (partial / "model.safetensors").write_bytes(b"x" * 1000)
    assert not list(tmp_path.iterdir())


# ---- what a run began with --------------------------------------------------------------------------------------


def test_each_file_that_a_run_reads_is_hashed_by_its_name(tmp_path):
    for name in ("a.jsonl", "b.data", "b.gold", "terms.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "pairs.yaml").write_text("words: terms.txt\npairs: [{query: a, key: b}]\n")
    config = config_of(
        {
            "model": "m", "task": "causal-lm", "pairs": {"file": str(tmp_path / "pairs.yaml")},
            "data": {"train": [str(tmp_path / "a.jsonl"), "chips/train", "some/hub"], "dev": str(tmp_path / "b.data")},
        }
    )  # fmt: skip
    found = input_hashes(config)
    assert set(found) == {
        *(str(tmp_path / name) for name in ("a.jsonl", "b.data", "b.gold", "pairs.yaml")),
        *("chips/train", "terms.txt"),
    }
    (tmp_path / "a.jsonl").write_text("other")
    assert [name for name, value in input_hashes(config).items() if value != found[name]] == [str(tmp_path / "a.jsonl")]


def test_what_a_run_killed_before_its_start_leaves_does_not_stand_in_the_way(tmp_path):
    (tmp_path / INPUTS).write_text("{}")
    (tmp_path / ".config.yaml.12.part").write_text("mod")
    assert nothing_begun(tmp_path)
    (tmp_path / "config.yaml").write_text("model: x")
    assert not nothing_begun(tmp_path)


# ---- YAML -------------------------------------------------------------------------------------------------------


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{other}: &{other} [{','.join(['*' + one] * 10)}]\n" for one, other in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: !!python/object/apply:os.system [touch /tmp/ran]", r"run\.yaml:1: no valid YAML"),
        (BOMB, "unfold to more than"),
        ("a: &a [*a]", "holding itself"),
        ("[" * 5000, "no valid YAML"),
        ("model: x\n\tdata: y", r"run\.yaml:2: no valid YAML"),
    ],
)  # fmt: skip
def test_yaml_that_runs_unfolds_or_nests_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "run.yaml").write_text(text)
    started = time.process_time()
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(tmp_path / "run.yaml")
    assert time.process_time() - started < 10 and "\n" not in str(caught.value)


# ---- the program ------------------------------------------------------------------------------------------------


def program(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "finetune", *map(str, arguments)], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """A run of a tiny model over a corpus, which a test copies."""
    from tests.test_finetune_train import write_base, write_corpus

    folder = tmp_path_factory.mktemp("program")
    write_base(folder / "base")
    write_corpus(folder)
    plan = {
        "model": str(folder / "base"), "task": "causal-lm", "seed": 5,
        "data": {"train": str(folder / "train.jsonl"), "max_length": 200},
        "pairs": {"file": str(folder / "pairs.yaml")}, "attention": {"weight": 0.5, "norms_every": 0},
        "training": {
            "max_steps": 2000, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2,
            "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "use_cpu": True,
        },
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(plan, allow_unicode=True), encoding="utf-8")
    return folder / "run.yaml"


def test_a_stopped_run_says_how_it_goes_on_and_refuses_other_texts(run_file, tmp_path):
    out = tmp_path / "out"
    process = program("train", run_file, "--out", out, "--device", "cpu")
    while process.poll() is None and latest_checkpoint(out / "checkpoints") is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"{out}: stopped; the same command with --resume goes on from the last checkpoint" in said
    assert "Traceback" not in said

    corpus = run_file.parent / "train.jsonl"
    before = corpus.read_text("utf-8")
    try:
        corpus.write_text(before.replace("记录", "报告"), encoding="utf-8")
        process = program("train", run_file, "--out", out, "--device", "cpu", "--resume")
        _, said = process.communicate(timeout=120)
    finally:
        corpus.write_text(before, encoding="utf-8")
    assert process.returncode == 2
    assert said.strip() == (
        f"{out}: {corpus} is changed since the run began; put it back, or start anew with another --out"
    )


def test_a_run_without_a_beginning_cannot_be_resumed_and_says_so(run_file, tmp_path):
    process = program("train", run_file, "--out", tmp_path / "none", "--device", "cpu", "--resume")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said.strip() == f"{tmp_path / 'none'}: no run to resume (config.yaml is missing); start it without --resume"


def test_weights_of_a_checkpoint_are_what_the_mark_says(saved):
    """The fixture's own check: what tests copy is a whole checkpoint with an adapter."""
    assert json.loads((saved / "checkpoint-2" / MARK).read_text())["files"]["adapter_model.safetensors"]
    assert load_file(saved / "checkpoint-2" / "adapter_model.safetensors")
