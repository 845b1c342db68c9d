"""Every family with its language-model head: logits stay bit for bit, and rows are those of the model without it."""

import pytest
import torch
import transformers

from probe.edits import HeadEdit
from probe.errors import TapError
from probe.models import model_from_parts
from probe.routes import forward_rows, route_of
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from tests.family_zoo import FAMILIES, build_with_head, exists, tokenizer_of, with_lora
from tests.test_families import DTYPES, batch_of, cut_of

GIVEN = [pytest.param(family, id=family.name) for family in FAMILIES if family.verdict != "refused"]


def logits_of(model, loaded, batch):
    cache = {} if loaded.kind == "encoder" else {"use_cache": False}
    with torch.no_grad():
        return model(**batch.inputs, **cache).logits


def without_head(model):
    """The headless class of the family, built anew around copies of the same weights."""
    config, prefix = model.config, f"{model.base_model_prefix}."
    headless = transformers.MODEL_MAPPING[type(config)](config).eval().to(model.dtype)
    weights = {name.removeprefix(prefix): tensor for name, tensor in model.state_dict().items()}
    own = headless.state_dict().keys()
    assert all("pooler" in name for name in own - weights.keys())
    headless.load_state_dict({name: tensor for name, tensor in weights.items() if name in own}, strict=False)
    return headless


@pytest.mark.parametrize("lora", ["plain", "lora"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", GIVEN)
def test_logits_stay_bit_for_bit_while_rows_are_read_and_come_back_after_edits(family, dtype, lora):
    if not exists(family):
        pytest.skip(f"this transformers has no {family.stem}Model")
    model = build_with_head(family)
    model = (with_lora(family, model) if lora == "lora" else model).to(DTYPES[dtype])
    loaded = model_from_parts(model, tokenizer_of(), name=f"tiny {family.name}")
    batch = batch_of(loaded, "right")
    plain = logits_of(model, loaded, batch)
    assert plain.dtype == DTYPES[dtype] and plain.shape[-1] >= len(tokenizer_of()) and torch.isfinite(plain).all()
    route = route_of(loaded)
    assert route.path == family.verdict and torch.equal(logits_of(model, loaded, batch), plain)
    if route.path == "eager":
        forward_rows(loaded, route, batch.inputs, RowRequest(batch.rows()), states=True)
        with pytest.raises(TapError, match="does not pass through"), tap(model, RowRequest(batch.rows())):
            pass
    else:
        request = RowRequest(batch.rows())
        with tap(model, request):
            assert torch.equal(logits_of(model, loaded, batch), plain)
        assert set(request.rows) == set(route.layers)
        for edit in (cut_of(route.layers[0], batch).edit, HeadEdit(heads=frozenset({1}), item=1)):
            with tap(model, RowRequest(batch.rows(), edits=[edit])):
                edited = logits_of(model, loaded, batch)
            assert torch.equal(edited[0, batch.real(0)], plain[0, batch.real(0)]), "the other text stays"
            assert (edited[1, batch.real(1)] != plain[1, batch.real(1)]).any()
    assert torch.equal(logits_of(model, loaded, batch), plain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", GIVEN)
def test_a_model_with_its_head_gives_the_rows_of_the_one_without_under_the_same_labels(family, dtype):
    if not exists(family):
        pytest.skip(f"this transformers has no {family.stem}Model")
    model = build_with_head(family).to(DTYPES[dtype])
    whole = model_from_parts(model, tokenizer_of(), name="with its head")
    alone = model_from_parts(without_head(model), tokenizer_of(), name="without")
    batch = batch_of(whole, "right")
    given = []
    for loaded in (whole, alone):
        forward = forward_rows(loaded, route_of(loaded), batch.inputs, RowRequest(batch.rows()), states=False)
        given.append(forward.rows)
    if family.verdict == "tap":
        request = RowRequest(batch.rows())
        with tap(model, request):
            logits_of(model, whole, batch)
        given.append(request.rows)
    for rows in given[1:]:
        assert rows.keys() == given[0].keys()
        assert all(torch.equal(rows[layer], given[0][layer]) for layer in rows)
