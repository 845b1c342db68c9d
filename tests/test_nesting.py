"""Taps inside taps, checks and captures inside taps: each pass is served by its own request, or refused in one line."""

import pytest
import torch
import transformers

from probe.capture import capture
from probe.cases import case_of
from probe.edits import EdgeEdit
from probe.errors import TapError
from probe.generation import generate_rows
from probe.models import model_from_parts
from probe.routes import route_of
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap
from probe.selfcheck import check_model
from tests.test_rowtap import batch_of
from tests.test_wrappers import adapted, gap, rows_of
from tests.tiny import tiny_bert, tiny_llama

CASE = case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])
EDIT = EdgeEdit(query=(4,), key=(2,))


def within(kind, model, request):
    return attached(model) if kind == "attached" else tap(model, request)


@pytest.mark.parametrize("kind", ["tap", "attached"])
@pytest.mark.parametrize("head", [True, False], ids=["head", "headless"])
def test_a_check_inside_a_block_of_its_own_thread_is_refused_in_one_line_and_runs_after_it(kind, head):
    model, tokenizer = tiny_llama(head=head)
    loaded = model_from_parts(model, tokenizer, name="m")
    batch, queries = batch_of(model, tokenizer)
    for ask in (lambda: check_model(loaded), lambda: route_of(loaded), lambda: list(capture(loaded, [CASE]))):
        with pytest.raises(TapError) as refused, within(kind, model, RowRequest(queries)):
            ask()
        said = str(refused.value)
        assert "at once: leave the block of tap or attached before captures and checks" in said and "\n" not in said
        assert model.config._attn_implementation == "sdpa"
    assert check_model(loaded).passed
    assert rows_of(model, batch, queries)


def test_a_second_tap_of_one_model_is_refused_and_the_first_one_goes_on_with_its_edits():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    tuned = adapted(model, "llama", "law")  # another face of the same modules
    expected = rows_of(model, batch, queries, edits=[EDIT])
    with torch.no_grad(), tap(model, outer := RowRequest(queries, edits=[EDIT])):
        for face in (model, model.model, tuned):
            with (
                pytest.raises(TapError, match=r"^Llama\w+ is tapped in this thread already: put .* one RowRequest"),
                tap(face, RowRequest(queries)),
            ):
                pass
        model(**batch)
    assert gap(outer.rows, expected) == 0.0 and model.config._attn_implementation == "sdpa"


def test_generating_inside_a_tap_is_refused():
    model, tokenizer = tiny_llama()
    loaded = model_from_parts(model, tokenizer, name="m")
    route = route_of(loaded)
    with pytest.raises(TapError, match="is tapped in this thread already"), tap(model, RowRequest([[1]])):
        generate_rows(loaded, "苹果", max_new_tokens=2, route=route)


@pytest.mark.parametrize("inner_block", ["tap", "attached"])
def test_a_pass_is_served_by_the_tap_of_its_own_model_wherever_it_runs(inner_block):
    """A teacher beside a student: before, whichever model ran inside the innermost block filled its request."""
    student, tokenizer = tiny_bert()
    batch, queries = batch_of(student, tokenizer)
    teacher = transformers.BertModel(student.config).eval()
    expected = rows_of(student, batch, queries, edits=[EDIT])
    outer, inner = RowRequest(queries, edits=[EDIT]), RowRequest(queries)
    with torch.no_grad():
        plain = teacher(**batch)[0]
        with tap(student, outer), within(inner_block, teacher, inner):
            assert torch.equal(teacher(**batch)[0], plain), "the student's edit is not the teacher's"
            student(**batch)
    assert gap(outer.rows, expected) == 0.0
    assert len(inner.calls) == (3 if inner_block == "tap" else 0)


def test_a_request_by_keyword_goes_before_the_taps():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    outer, own = RowRequest(queries, edits=[EDIT]), RowRequest(queries)
    plain = rows_of(model, batch, queries)
    with torch.no_grad(), tap(model, outer):
        model(**batch, rows=own)
        model(**batch)
    assert gap(own.rows, plain) == 0.0 and gap(outer.rows, plain) > 1e-3
