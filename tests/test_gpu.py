"""The benchmark of a GPU, in small on the CPU: the code runs, a wrong row is found, and time is kept."""

import json

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks import gpu
from benchmarks.gpu_checks import FAMILIES, Check, cutting, family_checks, formula, reading, subject_of, why_refused

CPU = torch.device("cpu")


def test_every_check_passes_in_small_on_the_cpu(tmp_path, capsys):
    file = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text("utf-8"))
    assert found["machine"].startswith("cpu: no GPU; torch") and found["left_out"] == []
    names = {check["name"] for check in found["checks"]}
    assert {"MATH: rows - eager formula in fp32", "cut edge: row - brute force", "not restored"} <= names
    assert {check["verdict"] for check in found["checks"]} == {"pass", ""}
    assert "Llama (grouped keys), bf16" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--device", "cuda"], ["--device", "cpu"], []])
def test_without_a_gpu_one_line_says_so_and_the_exit_code_is_two(arguments, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "is_there", lambda kind: kind == "cpu")
    assert gpu.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "GPU here" in said.err


def test_a_kernel_that_is_refused_is_named_with_its_reason():
    subject = subject_of(FAMILIES[1], CPU, torch.float32, tokens=16)
    assert why_refused(subject, SDPBackend.MATH) == ""
    assert "backend" in why_refused(subject, SDPBackend.CUDNN_ATTENTION)


def test_a_wrong_row_or_a_wrong_cut_fails(monkeypatch):
    subject = subject_of(FAMILIES[1], CPU, torch.float32, tokens=16)
    monkeypatch.setattr("benchmarks.gpu_checks.formula", lambda call: formula(call) * torch.tensor([1.0, 1.001] * 8))
    failed = {check.name for check in [*reading(subject, kernel="K"), *cutting(subject)] if check.verdict == "FAIL"}
    assert {"K: rows - eager formula in fp32", "cut edge: row - brute force"} <= failed


def test_a_nan_fails_and_what_has_no_bound_is_only_told():
    assert Check(part="p", name="n", value=float("nan"), bound=1.0).verdict == "FAIL"
    assert Check(part="p", name="n", value=2.0).verdict == ""


def test_a_part_that_cannot_run_is_a_failed_check_and_late_parts_are_left_out():
    def broken():
        raise RuntimeError("CUDA error: no kernel image")
        yield

    def fine():
        return family_checks(FAMILIES[0], CPU, torch.float32, tokens=8)

    seconds = iter([0.0, 1.0, gpu.BUDGET + 1.0])
    clock = gpu.Clock(start=0.0, now=lambda: next(seconds))
    checks, left_out = gpu.run(iter([("fine", fine), ("broken", broken), ("late", fine)]), clock)
    assert left_out == ["late"]
    assert (checks[-1].verdict, checks[-1].note) == ("FAIL", "CUDA error: no kernel image")
    assert {check.verdict for check in checks[:-1]} <= {"pass", ""} and len(checks) > 5


def test_costs_are_ratios_of_pairs_and_left_out_where_two_do_not_fit(monkeypatch):
    model = subject_of(FAMILIES[1], CPU, torch.bfloat16, tokens=8).model
    monkeypatch.setattr(gpu, "_gemma", lambda device, dtype: None)
    monkeypatch.setattr(gpu, "random_llama", lambda device: model)
    monkeypatch.setattr(gpu, "PAIRS", 2)
    (line,) = gpu.costs(CPU, 64, gpu.Clock(start=0.0, now=lambda: 0.0))
    assert line.value > 0.3 and line.bound == 1.05 and "ratio" in line.note
    (line,) = gpu.costs(CPU, 64, gpu.Clock(start=0.0, now=lambda: gpu.LATEST))
    assert line.name == "time left out"
