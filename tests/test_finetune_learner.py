"""What is taught: LoRA at queries and keys of every family, heads of a task, models that cannot be taught refused."""

from types import SimpleNamespace

import pytest
import torch

from finetune.config import LoraConfig, config_of
from finetune.errors import ConfigError
from finetune.heads import chosen_layers, every_head, named_heads, strongest_quarter
from finetune.learner import lora_targets, trains_keys
from finetune.reach import depths_of
from finetune.tasks import PairHead, SenseHead, TaskLoss, span_mean
from tests.family_zoo import FAMILIES, build, exists, found_of

READABLE = [family for family in FAMILIES if exists(family)]


@pytest.mark.parametrize("family", READABLE, ids=lambda family: family.name)
def test_lora_finds_queries_and_keys_of_every_family_and_nothing_of_the_feed_forward_network(family):
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    model = build(family)
    if found_of(family)[0] == "refused" and family.name == "Mamba":
        with pytest.raises(ConfigError, match="no query and key map"):
            lora_targets(model, LoraConfig())
        return
    targets = lora_targets(model, LoraConfig())
    assert trains_keys(targets)
    adapted = get_peft_model(model, PeftLora(r=2, target_modules=list(targets)))
    touched = {name for name, module in adapted.named_modules() if name.endswith(".lora_A.default")}
    assert touched
    for name in touched:
        assert not any(
            word in name for word in (".mlp.", ".feed_forward", ".intermediate", ".ffn", ".fc1", ".DenseRelu")
        )


def test_targets_that_train_no_key_are_told_from_those_that_do():
    assert trains_keys(("self_attn.q_proj", "self_attn.k_proj"))
    assert trains_keys(("attn.c_attn",))
    assert not trains_keys(("q_proj", "v_proj"))
    assert not trains_keys(("dense",))


def test_a_target_that_the_model_has_not_is_named_with_those_it_has():
    model = build(next(family for family in READABLE if family.name == "Llama"))
    with pytest.raises(ConfigError, match=r"lora.targets 'q_porj': this model has .*q_proj"):
        lora_targets(model, LoraConfig(targets=("q_porj",)))
    assert lora_targets(model, LoraConfig(targets=("q_proj", "mlp.up_proj"))) == ("q_proj", "mlp.up_proj")


def test_all_linear_leaves_heads_and_poolers_alone():
    model = build(next(family for family in READABLE if family.name == "BERT"))
    found = lora_targets(model, LoraConfig(targets="all-linear"))
    assert "intermediate.dense" in found and "output.dense" in found
    assert not any("pooler" in name for name in found)


def test_the_last_third_of_the_layers_is_the_default_and_named_ones_are_checked():
    assert chosen_layers("last_third", 12) == (8, 9, 10, 11)
    assert chosen_layers("last_third", 2) == (1,)
    assert chosen_layers("all", 3) == (0, 1, 2)
    assert chosen_layers((2, 0, 2), 3) == (0, 2)
    for wrong in ((3,), ()):
        with pytest.raises(ConfigError, match="layers 0 to 2"):
            chosen_layers(wrong, 3)


def test_heads_are_named_by_layer_and_head_or_chosen_by_mass():
    assert named_heads([(1, 3), (1, 0), (0, 2)], layers=2, heads=4) == {0: (2,), 1: (0, 3)}
    assert every_head((4, 5), 2) == {4: (0, 1), 5: (0, 1)}
    with pytest.raises(ConfigError, match="0 to 1 of 4 heads"):
        named_heads([(2, 0)], layers=2, heads=4)
    mass = torch.tensor([[0.1, 0.5, 0.2, 0.0], [0.4, 0.0, float("nan"), 0.3]]).double().numpy()
    assert strongest_quarter(mass, [6, 7]) == {6: (1,), 7: (0,)}


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, {0: 8}),
        ({"sliding_window": 8}, {0: 8, 1: 8}),
        ({"sliding_window": 8, "use_sliding_window": False}, {}),
        ({}, {}),
    ],
)
def test_windows_are_read_from_the_configuration(settings, windows):
    config = SimpleNamespace(
        model_type="x", num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, **settings
    )
    config.get_text_config = lambda: config
    depths = depths_of(config, causal=True)
    assert depths.windows == windows
    assert depths.reach((0,), cut_at=32).window == windows.get(0)
    assert depths.reach((0, 1), cut_at=None).longest == 64
    if len(windows) == 1:
        assert depths.reach((0, 1), cut_at=None).window is None  # one of the layers sees everything


def test_span_means_and_heads_read_the_marked_tokens_alone():
    states = torch.arange(12.0).reshape(1, 4, 3)
    mask = torch.tensor([[False, True, True, False]])
    assert span_mean(states, mask).tolist() == [[4.5, 5.5, 6.5]]
    torch.manual_seed(0)
    sense = SenseHead(3, 2)
    changed = states.clone()
    changed[:, 0] += 100
    assert torch.equal(sense(states, {"target_mask": mask}), sense(changed, {"target_mask": mask}))
    pair = PairHead(3)
    joint = pair(states, {"target_mask": mask, "second_mask": torch.tensor([[True, False, False, False]])})
    apart = pair(
        torch.cat([states, states]),
        {"target_mask": torch.stack([mask[0], torch.tensor([True, False, False, False])])},
    )
    assert torch.allclose(joint, apart)


def test_a_task_loss_is_its_share_of_the_whole_step():
    loss = TaskLoss(task="causal-lm")
    logits, labels = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    labels[0, 3:] = -100
    whole = loss._cross_entropy(logits, labels, None)
    count = int((labels[:, 1:] != -100).sum())
    parts = sum(loss._cross_entropy(logits[row : row + 1], labels[row : row + 1], count) for row in range(2))
    assert float(whole) == pytest.approx(float(parts), rel=1e-6)
    by_hand = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert float(whole) == pytest.approx(float(by_hand), rel=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora": {"rr": 2}}, "did you mean r?"),
        ({"atention": {}}, "did you mean attention?"),
        ({"training": {"learning_rat": 1}}, "did you mean learning_rate?"),
        ({"training": {"output_dir": "x"}}, "not set here"),
        ({"task": "translation"}, "task"),
        ({"attention": {"loss": "hinge"}}, "loss"),
        ({"attention": {"mode": "pairs"}}, "there are no pairs"),
        ({"attention": {"threshold": 0}, "pairs": {"file": "chips"}}, "threshold"),
        ({"data": {}}, "train"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_allowed(given, said):
    base = {"model": "m", "task": "causal-lm", "data": {"train": "a.txt"}}
    with pytest.raises(ConfigError) as caught:
        config_of({**base, **given})
    assert said in str(caught.value) and "\n" not in str(caught.value)
