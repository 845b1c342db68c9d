"""What a request and its edits are given: what a user would naturally give works, all else is one clear line."""

import numpy as np
import pytest
import torch
import transformers

from probe.edits import EdgeEdit, HeadEdit
from probe.errors import TapError
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap
from tests.test_rowtap import batch_of
from tests.tiny import FAMILIES, tiny_bert, tiny_llama

CUT = EdgeEdit(query=(3,), key=(2,))
WRONG_REQUESTS = [
    *((given, {}) for given in (3, "3", [3], [{3}], [["3"]], [[3.0]], [[True]], [[float("nan")]], [[-1]], [[]], [])),
    ([[10**30]], {}),
    (torch.tensor(3), {}),
    *(([[1]], {"layers": given}) for given in (3, "1", [None], [-1], [1.5])),
    *(([[1]], {"heads": given}) for given in (3, [], [-1], "0")),
    *(([[1]], {"stacks": given}) for given in ("foo", ["foo"], [], 3)),
    *(([[1]], {"edits": given}) for given in (None, CUT, ["x"], 3)),
    *(([[1]], {name: 3}) for name in ("inspect", "on_layer")),
]
WRONG_EDGES = [
    *({"query": given} for given in (3, (), (3.0,), "3", (True,), (-1,), None)),
    *({"key": given} for given in (3, (-2, 3))),
    *({"factor": given} for given in ("0", None, True, -1.0, float("nan"), float("inf"))),
    *({"item": given} for given in (-1, "0", None, 0.5)),
    *({"heads": given} for given in (3, (), (-1,), "3")),
    *({"layers": given} for given in (frozenset(), {-1}, 3)),
    *({"stacks": given} for given in (frozenset(), {"foo"}, 3)),
]


def read(model, batch, request):
    with torch.no_grad(), tap(model, request):
        model(**batch)
    return request.rows


def is_one_line(error):
    said = str(error.value)
    return said and "\n" not in said and len(said) < 300


@pytest.mark.parametrize(("queries", "settings"), WRONG_REQUESTS, ids=str)
def test_a_wrong_request_is_refused_in_one_line_that_says_what_is_allowed(queries, settings):
    with pytest.raises(TapError) as refused:
        RowRequest(queries, **settings)
    assert is_one_line(refused)


@pytest.mark.parametrize("changes", WRONG_EDGES, ids=str)
def test_a_wrong_edge_is_refused_in_one_line(changes):
    with pytest.raises(TapError) as refused:
        EdgeEdit(**{"query": (3,), "key": (2,), **changes})
    assert is_one_line(refused)


@pytest.mark.parametrize(
    "changes", [{"heads": None}, {"heads": ()}, {"heads": 3}, {"heads": {-1}}, {"item": -1}], ids=str
)
def test_a_wrong_head_edit_is_refused_in_one_line(changes):
    with pytest.raises(TapError) as refused:
        HeadEdit(**{"heads": {0}, **changes})
    assert is_one_line(refused)


@pytest.mark.parametrize("model", [None, "model", 3, torch.nn.Linear(2, 2)], ids=lambda given: type(given).__name__)
def test_what_is_no_model_is_refused_in_one_line(model):
    for block in (lambda: attached(model), lambda: tap(model, RowRequest([[1]]))):
        with pytest.raises(TapError) as refused, block():
            pass
        assert is_one_line(refused)


@pytest.mark.parametrize("request_", [None, [[3]], "x", {}], ids=str)
def test_what_is_no_request_is_refused_before_anything_runs(request_):
    model, tokenizer = tiny_bert()
    batch, _ = batch_of(model, tokenizer)
    with pytest.raises(TapError, match="RowRequest"), tap(model, request_):
        pass
    if request_ is not None:  # None is no request at all
        with attached(model), pytest.raises(TapError, match="RowRequest"):
            model(**batch, rows=request_)
    assert model.config._attn_implementation == "sdpa"


def test_lists_ranges_arrays_and_tensors_say_the_same():
    model, tokenizer = tiny_bert()
    batch, _ = batch_of(model, tokenizer)
    found = []
    for queries in (
        [[1, 2], [1, 2]],
        [range(1, 3)] * 2,
        np.array([[1, 2]] * 2),
        torch.tensor([[1, 2]] * 2),
        ((1, 2),) * 2,
    ):
        for layers in ([1], {1}, np.array([1]), (one for one in (1,))):
            (rows,) = read(model, batch, RowRequest(queries, layers=layers, edits=(e for e in (CUT,)))).values()
            found.append(rows)
    assert all(torch.equal(rows, found[0]) for rows in found)
    same = EdgeEdit(query=[3], key=np.array([2]), layers=[0, 1], heads=range(2), stacks="encoder")
    assert same == EdgeEdit(query=(3,), key=(2,), layers=frozenset({0, 1}), heads=frozenset({0, 1}), stacks={"encoder"})


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("asked", ["layers", "edge", "head"])
def test_a_layer_that_a_model_does_not_have_is_refused_and_not_silently_nothing(family, asked):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer)
    settings = {
        "layers": {"layers": [99]},
        "edge": {"edits": [EdgeEdit(query=(1,), key=(1,), factor=0.5, layers={99})]},
        "head": {"edits": [HeadEdit(heads={0}, layers={99})]},
    }[asked]
    with pytest.raises(TapError, match="layer 99: this model has attention layers 0, 1"):
        read(model, batch, RowRequest(queries, **settings))
    with attached(model), pytest.raises(TapError, match="layer 99"), torch.no_grad():
        model(**batch, rows=RowRequest(queries, **settings))


def test_no_layers_read_nothing_while_the_edits_act():
    model, tokenizer = tiny_bert()
    batch, queries = batch_of(model, tokenizer)
    with torch.no_grad():
        plain = model(**batch)[0]
        with tap(model, RowRequest(queries, layers=(), edits=[HeadEdit(heads={0})])) as request:
            edited = model(**batch)[0]
    assert request.rows == {} and not torch.equal(plain, edited)


def test_a_stack_that_a_model_does_not_have_is_refused():
    model, tokenizer = tiny_bert()
    batch, queries = batch_of(model, tokenizer)
    for settings in ({"stacks": ["cross"]}, {"edits": [HeadEdit(heads={0}, stacks={"decoder"})]}):
        with pytest.raises(TapError, match="this model has encoder"):
            read(model, batch, RowRequest(queries, **settings))


def test_rows_of_a_request_that_nothing_came_through_are_refused_and_not_empty():
    model, tokenizer = tiny_bert()
    batch, queries = batch_of(model, tokenizer)
    request = RowRequest(queries)
    model(**batch, rows=request)  # outside attached(model) transformers drops the keyword without a word
    with pytest.raises(TapError, match="within attached"):
        _ = request.rows


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, float("-inf")])
def test_a_cut_of_every_key_that_an_additive_mask_leaves_open_is_refused(lowest):
    model, _ = tiny_llama()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    mask = torch.full((5, 5), lowest).triu(1)[None, None]
    whole = EdgeEdit(query=(2,), key=(0, 1, 2))
    batch = {"input_ids": ids, "attention_mask": mask}
    with pytest.raises(TapError, match="cut every key"):
        read(model, batch, RowRequest([[2]], edits=[whole]))
    for rows in read(model, batch, RowRequest([[2]], edits=[EdgeEdit(query=(2,), key=(0, 1))])).values():
        assert torch.equal(rows[0, :, 0], torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand_as(rows[0, :, 0]))


def test_a_hybrid_models_linear_layer_has_no_rows_and_says_so():
    config = transformers.Qwen3NextConfig(
        vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, linear_key_head_dim=8,
        shared_expert_intermediate_size=16, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3NextModel(config).eval()
    with pytest.raises(TapError, match="layer 0: this model has attention layers 3"):
        read(model, {"input_ids": torch.tensor([[5, 6, 7]])}, RowRequest([[1]], layers=[0]))
