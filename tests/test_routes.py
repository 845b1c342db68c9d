"""The route is found once a model, and anew when what it depends on has changed."""

import time

import pytest
import transformers
from peft import LoraConfig, get_peft_model

from probe.errors import ModelError
from probe.models import model_from_parts
from probe.routes import find_route, route_of
from tests.tiny import tiny_bert, tiny_llama, wordpiece_tokenizer


def loaded_bert(**changes):
    return model_from_parts(*tiny_bert(**changes), name="bert")


@pytest.fixture
def passes(monkeypatch):
    """How often a model of the test was run."""
    seen = []
    inner = transformers.BertModel.forward

    def counted(self, *args, **kwargs):
        seen.append(self)
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(transformers.BertModel, "forward", counted)
    return seen


def test_a_second_call_runs_nothing_and_gives_the_same_route(passes):
    loaded = loaded_bert()
    first = route_of(loaded)
    ran = len(passes)
    assert ran > 0 and route_of(loaded) is first and len(passes) == ran
    assert first == find_route(loaded) and len(passes) == 2 * ran


def test_another_model_of_the_same_configuration_is_looked_at_for_itself(passes):
    one, other = loaded_bert(), loaded_bert()
    route_of(one)
    ran = len(passes)
    route_of(other)
    assert len(passes) == 2 * ran and passes[-1] is other.backbone


def test_an_adapter_a_changed_configuration_and_checkpointing_are_each_looked_at_anew(passes):
    loaded = loaded_bert()
    route_of(loaded)
    ran = len(passes)
    adapted = get_peft_model(loaded.model, LoraConfig(target_modules=["query"]))
    route_of(model_from_parts(adapted, loaded.tokenizer, name="adapted"))
    assert len(passes) == 2 * ran
    loaded.backbone.config.layer_norm_eps *= 2
    route_of(loaded)
    assert len(passes) == 3 * ran


def test_reentrant_checkpointing_switched_on_later_takes_the_eager_path():
    loaded = model_from_parts(*tiny_llama(), name="llama")
    assert route_of(loaded).path == "tap"
    loaded.model.gradient_checkpointing_enable({"use_reentrant": True})
    found = route_of(loaded)
    assert found.path == "eager" and "reentrant" in found.reason
    loaded.model.gradient_checkpointing_disable()
    assert route_of(loaded).path == "tap"


def test_a_model_that_becomes_one_without_token_maps_is_refused_although_it_was_known():
    config = transformers.BigBirdConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        attention_type="original_full", max_position_embeddings=64,
    )  # fmt: skip
    loaded = model_from_parts(transformers.BigBirdModel(config), wordpiece_tokenizer(), name="bird")
    assert route_of(loaded).path == "eager"
    loaded.backbone.set_attention_type("block_sparse")
    with pytest.raises(ModelError):
        route_of(loaded)


def test_a_known_route_costs_little_beside_finding_it():
    loaded = loaded_bert(num_hidden_layers=6)
    route_of(loaded)

    def seconds(ask):
        start = time.process_time()
        ask(loaded)
        return time.process_time() - start

    assert min(seconds(route_of) for _ in range(5)) < 0.5 * min(seconds(find_route) for _ in range(3))
