"""A sweep: its grid, its budget, its trials apart from each other, what it says of how it chose."""

import json
import shutil

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from finetune.__main__ import run
from finetune.config import config_of, load_config
from finetune.errors import ConfigError, TrainingError
from finetune.grid import Setting, axes_of, default_axes, run_of, settings_of
from finetune.push import HUB_FIELDS
from finetune.sweep import comparable, sweep
from finetune.train import train
from finetune.trials import Budget, Swept, Trial, lines_of
from tests.finished import PAIRS, lines, texts
from tests.test_finetune_faults import small_files
from tests.tiny import tiny_llama

# Of the three settings one fails: its loss is no number after a step of such a length.
GRID = {"lambda": ["plain", "0.5"], "training.learning_rate": [5e-3, 1e30]}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The file of a small language model's run."""
    folder = tmp_path_factory.mktemp("base")
    tiny_llama(folder)
    (folder / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    return {
        "model": str(folder / "llama"), "task": "causal-lm", "seed": 3,
        "data": {"train": lines(folder / "train.jsonl", texts("train", 16)), "max_length": 48, "dev_share": 0.2},
        "pairs": {"file": str(folder / "pairs.yaml"), "direction": "either"},
        "attention": {"heads": "all", "norms_every": 0, "threshold": 1.0},
        "lora": {"dropout": 0.1},
        "training": {"max_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True, "max_grad_norm": 0.0},
    }  # fmt: skip


@pytest.fixture(scope="module")
def swept(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "one"
    return sweep(config_of(given), folder=folder, axes=GRID, device="cpu")


def weights(folder):
    return load_file(folder / "adapter_model.safetensors")


def states(found):
    return {trial.setting.name: trial.state for trial in found.trials}


# ---- the grid --------------------------------------------------------------------------------------------------


def test_every_combination_stands_once_and_only_the_named_keys_differ(given):
    base = config_of(given)
    found = settings_of(base, {"lambda": ["0.1", "auto:0.3"], "lora.r": [4, 8]})
    assert len(found) == 4
    for setting in found:
        plain, other = (one.model_dump(exclude={"attention", "lora"}) for one in (base, run_of(base, setting)))
        assert plain == other
    weights = {(one.attention.weight, one.attention.share, one.lora.r) for one in (run_of(base, s) for s in found)}
    assert weights == {(0.1, 0.2, 4), (0.1, 0.2, 8), ("auto", 0.3, 4), ("auto", 0.3, 8)}


def test_the_arm_without_the_loss_stands_once_whatever_the_loss_has_for_keys(given):
    axes = axes_of(["0", "plain", "0.1"], [], ["attention.layers=last_third,all"])
    found = settings_of(config_of(given), axes)
    runs = [run_of(config_of(given), setting) for setting in found]
    assert sorted(one.supervised for one in runs) == [False, True, True]


def test_a_loss_that_the_file_switches_off_is_tried_with_the_files_pairs(given):
    base = config_of({**given, "attention": {"mode": "none"}})
    (one,) = settings_of(base, {"lambda": ["0.1"]})
    assert run_of(base, one).attention.mode == "pairs"
    control = config_of({**given, "attention": {"mode": "random"}})
    assert run_of(control, settings_of(control, {"lambda": ["0.1"]})[0]).attention.mode == "random"


def test_the_order_is_drawn_by_the_seed_and_a_budget_leaves_out_no_corner(given):
    base = config_of(given)
    axes = default_axes(base)
    names = [setting.name for setting in settings_of(base, axes)]
    assert len(names) == 12 and names == [setting.name for setting in settings_of(base, axes)]
    other = [setting.name for setting in settings_of(config_of({**given, "seed": 4}), axes)]
    assert sorted(other) == sorted(names) and other != names
    first = [setting.values for setting in settings_of(base, axes)][:8]
    assert len({one["lambda"] for one in first}) == 4 and len({one["lora.r"] for one in first}) == 3


def test_without_pairs_the_rank_alone_is_swept(given):
    plain = {name: value for name, value in given.items() if name not in ("pairs", "attention")}
    assert default_axes(config_of(plain)) == {"lora.r": [4, 8, 16]}
    with pytest.raises(ConfigError, match="there are no pairs"):
        settings_of(config_of(plain), {"lambda": ["0.1"]})


@pytest.mark.parametrize(
    ("lambdas", "others", "said"),
    [
        ([], ["lora.dropot=0.1"], "did you mean dropout"),
        ([], ["training.learning_rat=1"], "did you mean learning_rate"),
        ([], ["lora.r="], "no value to try"),
        ([], ["lora.r"], "KEY=VALUE,VALUE"),
        ([], ["lora.r=[4"], "no YAML"),
        ([], ["lora.r=0"], "greater than or equal to 1"),
        ([], ["seed=0,1"], "seed is not swept.*same dev part"),
        ([], ["data.max_length=32,64"], "data.max_length is not swept"),
        ([], ["training.per_device_eval_batch_size=1,2"], "changes what is measured"),
        ([], ["training.tf32=true,false"], "whole process"),
        ([], ["training.push_to_hub=true,false"], "no trial is uploaded"),
        (["0.1"], ["attention.weight=0.2"], "swept twice"),
        ([], ["lora.r=1", "lora.r=2"], "swept twice"),
        (["0.1"], ["attention=pairs"], "attention.mode is swept twice, by attention and by lambda"),
        ([], ["lora=1", "lora.r=2"], "lora.r is swept twice, by lora and by lora.r"),
        ([], ["lora={r: 2}"], r"a mapping is no value.*lora\.KEY"),
        (["-1"], [], "allowed is a number of at least 0"),
        (["auto:0"], [], "auto:SHARE"),
        (["nan"], [], "allowed is a number"),
        ([], [], "the grid is empty"),
        ([], [f"lora.alpha={','.join(map(str, range(1, 1100)))}"], "at most 1000"),
    ],
)
def test_a_grid_that_means_nothing_is_one_line(given, lambdas, others, said):
    with pytest.raises(ConfigError, match=said) as caught:
        settings_of(config_of(given), axes_of(lambdas, [], others))
    assert "\n" not in str(caught.value)


def test_axes_given_without_options_are_checked_alike(given):
    with pytest.raises(ConfigError, match=r"lora\.r is swept twice"):
        settings_of(config_of(given), {"lora.r": [3], "lora": [{"r": 2}]})
    with pytest.raises(ConfigError, match="seed is not swept"):
        settings_of(config_of(given), {"seed": [1, 2]})


def test_numbers_without_a_dot_are_numbers(given):
    assert axes_of([], [], ["training.learning_rate=1e-4,5e-4"]) == {"training.learning_rate": [1e-4, 5e-4]}
    assert config_of({**given, "training": {"learning_rate": "1e-4"}}).training["learning_rate"] == 1e-4


# ---- trials ----------------------------------------------------------------------------------------------------


def test_a_trial_alone_is_the_trial_within_the_sweep(given, swept, tmp_path):
    """The last that came to its end: what came before it, a failure too, has left nothing behind."""
    last = max((trial for trial in swept.trials if trial.state == "done"), key=lambda trial: trial.number)
    assert last.number > 1
    plan = yaml.safe_load((swept.folder / last.folder / "config.yaml").read_text("utf-8"))
    torch.rand(3)
    alone = train(config_of({**plan, "out": str(tmp_path / "alone")}), device="cpu")
    one, other = weights(swept.folder / last.folder), weights(alone.folder)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert alone.metrics["eval_loss"] == last.value("eval_loss")


def test_a_trial_that_fails_is_told_with_its_reason_and_the_others_go_on(swept):
    failed = [trial for trial in swept.trials if trial.state == "failed"]
    assert len(failed) == 2 and all("1e+30" in trial.setting.name for trial in failed)
    assert all("the loss is" in trial.reason for trial in failed)
    assert len(swept.ranked) == 2
    assert any(line.startswith("tried 4 of 4 settings, 2 failed;") for line in lines_of(swept))


def test_the_best_on_dev_is_chosen_by_the_tasks_loss_alone_and_stands_as_a_whole_file(given, swept):
    found = {trial.setting.overrides["attention.mode"]: trial.value("eval_loss") for trial in swept.ranked}
    assert swept.ranked[0].value("eval_loss") == min(found.values())
    for trial in swept.ranked:  # that of a supervised trial is the task's: measured again without the loss
        plan = yaml.safe_load((swept.folder / trial.folder / "config.yaml").read_text("utf-8"))
        assert dev_loss(swept.folder / trial.folder, plan) == pytest.approx(trial.value("eval_loss"), rel=1e-5)
    best = load_config(swept.folder / "best.yaml")
    assert best == run_of(swept.base, swept.ranked[0].setting)


def dev_loss(folder, plan):
    """The loss on dev of a finished run, its attention loss taken away."""
    from finetune.prepare import prepare_run
    from finetune.train import make_trainer

    plain = config_of({**plan, "attention": {"mode": "none"}, "out": str(folder)})
    prepared = prepare_run(plain, device="cpu")
    prepared.learner.model.load_adapter(str(folder), "default")
    trainer, _ = make_trainer(plain, prepared, folder=folder, start=None, progress=None)
    return trainer.evaluate()["eval_loss"]


def test_what_was_tried_stands_in_the_table_and_in_the_last_line(swept):
    table = pd.read_csv(swept.folder / "sweep.csv")
    assert list(table.trial) == [1, 2, 3, 4] and sorted(table.state) == ["done", "done", "failed", "failed"]
    told = json.loads((swept.folder / "sweep.json").read_text("utf-8"))
    assert (told["tried"], told["settings"], told["best"]) == (4, 4, swept.ranked[0].number)
    last = lines_of(swept)[-1]
    assert "chosen on dev (" in last and "by eval_loss, so its dev value is optimistic" in last
    assert f"finetune evaluate {swept.folder / swept.ranked[0].folder} --test SOURCE" in last


# ---- budget, resumed -------------------------------------------------------------------------------------------


def test_a_budget_ends_the_sweep_before_a_trial_and_resume_goes_on_to_the_same_end(given, swept, tmp_path):
    base, folder = config_of(given), tmp_path / "sweep"
    first = sweep(base, folder=folder, axes=GRID, budget=Budget(runs=2), device="cpu")
    assert len(first.tried) == 2
    named = first.trials[2].setting.name
    assert any(line.startswith("not tried, a budget of 2 runs") and named in line for line in lines_of(first))
    assert sorted(path.name for path in folder.glob("trial-*")) == ["trial-001", "trial-002"]
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("trial-*/*.safetensors")}
    again = sweep(base, folder=folder, resume=True, device="cpu")
    assert len(again.tried) == 2  # the same budget, spent
    whole = sweep(base, folder=folder, resume=True, budget=Budget(runs=9), device="cpu")
    assert states(whole) == states(swept)
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert [one.value("eval_loss") for one in whole.ranked] == [one.value("eval_loss") for one in swept.ranked]


def test_a_sweep_that_was_killed_in_a_trial_goes_on(given, swept, tmp_path):
    """At the moments that a kill can leave: before a checkpoint, behind one, behind the run and before its note."""
    done = swept.ranked
    folder = tmp_path / "sweep"
    shutil.copytree(swept.folder, folder)
    told = json.loads((folder / "sweep.json").read_text("utf-8"))
    for trial in told["trials"]:
        if trial["state"] == "done":
            trial.update(state="not tried", told={})
    (folder / "sweep.json").write_text(json.dumps(told), encoding="utf-8")
    shutil.rmtree(folder / done[0].folder / "checkpoints")
    for name in ("manifest.json", "config.yaml", "adapter.json"):
        (folder / done[0].folder / name).unlink()
    (folder / done[0].folder / "config.yaml").write_text("mod", encoding="utf-8")
    kept = (folder / done[1].folder / "manifest.json").stat().st_mtime_ns
    again = sweep(config_of(given), folder=folder, resume=True, device="cpu")
    assert [one.value("eval_loss") for one in again.ranked] == [one.value("eval_loss") for one in done]
    assert (folder / done[1].folder / "manifest.json").stat().st_mtime_ns == kept


def test_a_finished_trial_whose_adapter_was_touched_is_not_taken(given, swept, tmp_path):
    folder = shutil.copytree(swept.folder, tmp_path / "sweep")
    told = json.loads((folder / "sweep.json").read_text("utf-8"))
    best = told["trials"][told["best"] - 1]
    best.update(state="not tried", told={})
    (folder / "sweep.json").write_text(json.dumps(told), encoding="utf-8")
    weights = folder / f"trial-{told['best']:03d}" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    touched = r"is not the one that the run wrote; remove .*trial-00\d to try its setting anew"
    with pytest.raises(TrainingError, match=touched):
        sweep(config_of(given), folder=folder, resume=True, device="cpu")
    shutil.rmtree(weights.parent)
    again = sweep(config_of(given), folder=folder, resume=True, device="cpu")
    assert [one.value("eval_loss") for one in again.ranked] == [one.value("eval_loss") for one in swept.ranked]


def test_a_full_disk_is_no_failure_of_the_setting_and_the_sweep_goes_on_when_there_is_room(given, tmp_path):
    folder = tmp_path / "sweep"
    with small_files(20_000), pytest.raises(TrainingError, match="cannot be written"):
        sweep(config_of(given), folder=folder, axes={"lora.r": [4, 8]}, device="cpu")
    told = json.loads((folder / "sweep.json").read_text("utf-8"))
    assert [trial["state"] for trial in told["trials"]] == ["not tried", "not tried"]
    again = sweep(config_of(given), folder=folder, resume=True, device="cpu")
    assert [trial.state for trial in again.trials] == ["done", "done"]


def test_a_damaged_checkpoint_of_a_trial_is_no_failure_of_its_setting(given, swept, tmp_path):
    folder = shutil.copytree(swept.folder, tmp_path / "sweep")
    told = json.loads((folder / "sweep.json").read_text("utf-8"))
    told["trials"][told["best"] - 1].update(state="not tried", told={})
    (folder / "sweep.json").write_text(json.dumps(told), encoding="utf-8")
    trial = folder / f"trial-{told['best']:03d}"
    (trial / "manifest.json").unlink()
    for weights in trial.glob("checkpoints/*/adapter_model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(TrainingError, match=r"adapter_model\.safetensors is changed; remove this folder"):
        sweep(config_of(given), folder=folder, resume=True, device="cpu")
    assert json.loads((folder / "sweep.json").read_text("utf-8"))["trials"][told["best"] - 1]["state"] == "not tried"


def test_further_values_join_a_sweep_and_those_before_count_as_tried(given, swept, tmp_path):
    folder = shutil.copytree(swept.folder, tmp_path / "sweep")
    more = sweep(
        config_of(given), folder=folder, resume=True, axes={**GRID, "lambda": ["plain", "0.2"]},
        budget=Budget(runs=4), device="cpu",
    )  # fmt: skip
    assert [trial.setting.key for trial in more.trials[:4]] == [trial.setting.key for trial in swept.trials]
    assert len(more.trials) == 6 and len(more.tried) == 4


def test_a_changed_base_is_refused_with_the_difference(given, swept):
    changed = config_of({**given, "lora": {"dropout": 0.2}, "seed": 9})
    with pytest.raises(ConfigError, match=r"lora\.dropout: 0\.1 then, 0\.2 now; seed: 3 then, 9 now"):
        sweep(changed, folder=swept.folder, resume=True, device="cpu")
    accuracy = comparable(config_of(given), None)
    assert accuracy.training["metric_for_best_model"] == "eval_loss"


def test_texts_or_pairs_that_changed_since_a_sweep_began_are_refused_by_their_name(given, tmp_path):
    """A trial on other texts has another dev loss: the best of both would be the one with the easier texts."""
    rows = texts("train", 16)
    data = {**given["data"], "train": lines(tmp_path / "own.jsonl", rows)}
    pairs = tmp_path / "own.yaml"
    pairs.write_text(PAIRS, encoding="utf-8")
    base = config_of({**given, "data": data, "pairs": {**given["pairs"], "file": str(pairs)}})
    folder = tmp_path / "sweep"
    sweep(base, folder=folder, axes={"lora.r": [2, 4]}, budget=Budget(runs=1), device="cpu")
    pairs.write_text(PAIRS + "words: [和平鸽]\n", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"own\.yaml changed since the sweep began"):
        sweep(base, folder=folder, resume=True, budget=Budget(runs=9), device="cpu")
    pairs.write_text(PAIRS, encoding="utf-8")
    lines(tmp_path / "own.jsonl", rows[:-1])
    with pytest.raises(TrainingError, match=r"own\.jsonl changed since the sweep began"):
        sweep(base, folder=folder, resume=True, budget=Budget(runs=9), device="cpu")
    lines(tmp_path / "own.jsonl", rows)
    assert len(sweep(base, folder=folder, resume=True, budget=Budget(runs=9), device="cpu").tried) == 2


def test_minutes_are_those_of_all_trials(given):
    setting = Setting(values={"lora.r": 4}, overrides={"lora.r": 4})
    tried = [Trial(number=1, setting=setting, state="failed", seconds=31.0)] * 2
    assert Budget(minutes=1.0).spent_by(tried) == "a budget of 1 min"
    assert Budget(minutes=1.1).spent_by(tried) is None and Budget(runs=2).spent_by(tried) == "a budget of 2 runs"


def test_equal_values_and_a_missing_plain_arm_are_told(given, tmp_path):
    told = {"metrics": {"eval_accuracy": 1.0, "eval_loss": 0.5}, "dev": 9}
    trials = [
        Trial(number=1, setting=Setting(values={"lambda": "0.1"}, overrides={}), state="done", told=told),
        Trial(
            number=2, setting=Setting(values={"lambda": "0.2"}, overrides={"attention.weight": 0.2}), state="done",
            told={**told, "metrics": {"eval_accuracy": 1.0, "eval_loss": 0.4}},
        ),
        Trial(number=3, setting=Setting(values={"lambda": "plain"}, overrides={"attention.mode": "none"})),
    ]  # fmt: skip
    found = Swept(
        folder=tmp_path, base=config_of(given), metric="eval_accuracy", budget=Budget(runs=2), trials=tuple(trials)
    )
    assert found.ranked[0].number == 2
    said = "\n".join(lines_of(found))
    assert "2 settings have the best eval_accuracy" in said and "no plain trial came to its end" in said


# ---- refusals --------------------------------------------------------------------------------------------------


def test_a_sweep_without_dev_is_refused_before_a_trial(given, tmp_path):
    none = config_of({**given, "data": {**given["data"], "dev_share": 0}})
    with pytest.raises(ConfigError, match=r"chooses on dev: give data\.dev"):
        sweep(none, folder=tmp_path / "a", axes=GRID, device="cpu")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("budget", [Budget(runs=0), Budget(minutes=0.0), Budget(minutes=float("nan"))])
def test_a_budget_of_nothing_is_refused(given, tmp_path, budget):
    with pytest.raises(ConfigError, match="no trial would begin"):
        sweep(config_of(given), folder=tmp_path, axes=GRID, budget=budget, device="cpu")


def test_a_metric_that_goes_with_lambda_by_construction_is_refused(given):
    with pytest.raises(ConfigError, match=r"--metric 'eval_pair_mass'.*change with λ by construction"):
        comparable(config_of(given), "pair_mass")
    own = config_of({**given, "training": {"metric_for_best_model": "eval_pair_mass"}})
    with pytest.raises(ConfigError, match=r"training\.metric_for_best_model"):
        comparable(own, None)
    assert comparable(own, "loss").training["greater_is_better"] is False


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(given, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(TrainingError, match="not empty: give --resume"):
        sweep(config_of(given), folder=tmp_path, axes=GRID, device="cpu")
    with pytest.raises(TrainingError, match="no sweep to resume"):
        sweep(config_of(given), folder=tmp_path, axes=GRID, resume=True, device="cpu")
    (tmp_path / "sweep.json").write_text('{"trials": 3}')
    with pytest.raises(TrainingError, match=r"sweep\.json is damaged"):
        sweep(config_of(given), folder=tmp_path, axes=GRID, resume=True, device="cpu")


def test_what_every_trial_would_stop_for_stops_the_sweep_before_the_first(given, tmp_path):
    lost = config_of({**given, "model": str(tmp_path / "nowhere")})
    with pytest.raises(Exception, match="nowhere"):
        sweep(lost, folder=tmp_path / "sweep", axes=GRID, device="cpu")
    assert not (tmp_path / "sweep").exists()


def test_all_settings_failing_is_said_with_the_first_reason(given, tmp_path):
    with pytest.raises(TrainingError, match=r"all settings that were tried \(1\) failed.*the loss is"):
        sweep(config_of(given), folder=tmp_path, axes={"training.learning_rate": [1e30]}, device="cpu")
    assert not (tmp_path / "best.yaml").exists()


def test_the_command_sweeps_and_its_best_file_trains(given, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(given, allow_unicode=True), encoding="utf-8")
    out = tmp_path / "sweep"
    asked = ["sweep", str(file), "--device", "cpu"]
    assert run([*asked, "--out", str(out), "--lambda", "0.5", "--rank", "4", "--rank", "2", "--runs", "1"]) == 0
    said = capsys.readouterr().out
    assert "tried 1 of 2 settings; " in said and said.rstrip().endswith(str(out)) and "not tried" in said
    for wrong, why in (
        (["--runs", "0"], "--runs 0"),
        (["--metric", "accuracy"], "eval_accuracy"),
        (["--grid", "lora.rank=4"], "lora.rank: unknown key"),
        ([], "give --resume"),
    ):
        assert run([*asked, *wrong, "--out", str(tmp_path / "new" if wrong else out)]) == 2
        assert why in capsys.readouterr().err
    assert run(["train", str(out / "best.yaml"), "--out", str(tmp_path / "best"), "--device", "cpu"]) == 0


# ---- the hub ---------------------------------------------------------------------------------------------------


def test_no_trial_is_uploaded_and_the_token_is_in_no_file(given, tmp_path):
    told = {"push_to_hub": True, "hub_model_id": "a/b", "hub_token": "hf_secret", "hub_revision": "x"}
    base = config_of({**given, "training": {**given["training"], **told}})
    found = sweep(base, folder=tmp_path / "sweep", axes={"lora.r": [2]}, device="cpu")
    assert [trial.state for trial in found.trials] == ["done"]
    best = load_config(found.folder / "best.yaml").training
    assert (best["push_to_hub"], best["hub_model_id"], best["hub_revision"]) == (True, "a/b", "x")
    assert not set(HUB_FIELDS) & set(yaml.safe_load((found.folder / "trial-001/config.yaml").read_text())["training"])
    written = [path.read_text("utf-8") for path in found.folder.rglob("*") if path.suffix in (".yaml", ".json", ".csv")]
    assert len(written) > 4
    assert not any(word in text for text in written for word in ("hf_secret", "hub_token", "*****"))
    again = sweep(base, folder=found.folder, axes={"lora.r": [2]}, resume=True, device="cpu")
    assert [trial.state for trial in again.trials] == ["done"]
