"""load_model: one result for every kind of source, device and dtype by name, and no silent surprise."""

import json
import subprocess
import sys

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from probe.errors import ModelError
from probe.models import known_models, load_model, model_from_parts
from tests.tiny import FAMILIES, tiny_bert, tiny_gpt2, tiny_llama, tiny_t5

HEADS = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}


def states(loaded, text="我喜欢苹果"):
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    more = {"decoder_input_ids": ids} if loaded.kind == "encoder-decoder" else {}
    with torch.no_grad():
        output = loaded.backbone(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, **more)
    return output.last_hidden_state


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_a_live_model_and_a_headed_model_give_the_same_states(tmp_path, family):
    model, tokenizer = FAMILIES[family](tmp_path, head=True)
    live = model_from_parts(model, tokenizer, name="live")
    folder = load_model(tmp_path / family)
    headed = load_model(str(tmp_path / family), head="lm")
    assert torch.equal(states(live), states(folder)) and torch.equal(states(live), states(headed))
    assert type(headed.model).__name__ == HEADS.get(family, type(model).__name__)
    assert headed.model.get_output_embeddings() is not None and folder.model.get_output_embeddings() is None
    assert type(folder.backbone) is type(headed.backbone) is type(live.backbone)
    assert headed.fingerprint == live.fingerprint != folder.fingerprint
    assert (folder.notes, headed.notes) == ((), ()) and folder.origin["source"] == "folder"
    assert not folder.model.training and folder.dtype == torch.float32 and folder.device.type == "cpu"


def test_load_model_takes_a_live_model_and_puts_it_into_eval_mode():
    model, tokenizer = tiny_gpt2()
    loaded = load_model(model.train(), tokenizer=tokenizer)
    assert not model.training and loaded.origin["source"] == "live" and loaded.name == "GPT2LMHeadModel"


def test_a_live_model_without_tokenizer_or_with_a_device_is_refused():
    model, tokenizer = tiny_gpt2()
    with pytest.raises(ModelError, match="needs its tokenizer as well"):
        load_model(model)
    with pytest.raises(ModelError, match="a live model stays as it is"):
        load_model(model, tokenizer=tokenizer, dtype="bfloat16")
    with pytest.raises(ModelError, match="is a Linear, not a Hugging Face"):
        load_model(torch.nn.Linear(2, 2), tokenizer=tokenizer)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_the_one_asked_for_and_float32_by_itself_on_the_cpu(tmp_path, name):
    tiny_llama(tmp_path)[0].to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    loaded = load_model(tmp_path / "llama", dtype=name)
    assert loaded.dtype == getattr(torch, name) == next(loaded.backbone.parameters()).dtype
    assert load_model(tmp_path / "llama").dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, r"device 'gpu' is unknown; allowed are auto, cpu, cuda, cuda:N, mps"),
        ({"device": "xla"}, r"device 'xla' is unknown"),
        ({"device": "cuda:99"}, r"device 'cuda:99': (torch .* finds no CUDA here; use auto or cpu|there are)"),
        ({"dtype": "int8"}, r"dtype 'int8' is unknown; allowed are auto, float32, bfloat16, float16"),
        ({"head": "cls"}, r"head 'cls' is unknown; allowed are none, lm, classes"),
    ],
)
def test_unknown_settings_are_refused_with_those_allowed(tmp_path, settings, message):
    tiny_bert(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "bert", **settings)


def test_a_head_that_was_never_trained_is_a_note_and_the_same_every_time(tmp_path):
    tiny_bert(tmp_path, head=False)
    first, second = (load_model(tmp_path / "bert", head="lm") for _ in range(2))
    assert any(
        note.startswith("newly initialised, not trained: ") and "cls.predictions" in note for note in first.notes
    )
    assert first.fingerprint == second.fingerprint


def test_a_pooler_without_weights_is_taken_off(tmp_path):
    model, _ = tiny_bert(tmp_path, head=True)  # a masked language model has no pooler
    loaded = load_model(tmp_path / "bert")
    assert loaded.backbone.pooler is None and loaded.notes == ()
    assert torch.equal(states(loaded), states(model_from_parts(model, loaded.tokenizer, name="live")))


def test_weights_missing_inside_the_backbone_are_an_error(tmp_path):
    tiny_gpt2(tmp_path)
    path = tmp_path / "gpt2" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("h.1.attn.c_attn.weight"))
    del tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})
    for head in ("none", "lm"):
        with pytest.raises(
            ModelError, match=r"1 weights are missing from its files, first .*h\.1\.attn\.c_attn\.weight"
        ):
            load_model(tmp_path / "gpt2", head=head)


def test_layers_that_the_config_does_not_mention_are_a_note(tmp_path):
    tiny_gpt2(tmp_path)
    config = tmp_path / "gpt2" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_layer": 2}))
    (note,) = load_model(tmp_path / "gpt2").notes
    assert "weights in the files are not used" in note and "h.2." in note


def test_weights_of_another_shape_are_one_line(tmp_path):
    tiny_gpt2(tmp_path)
    config = tmp_path / "gpt2" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_embd": 64}))
    with pytest.raises(ModelError, match=r"gpt2 cannot be loaded: ") as caught:
        load_model(tmp_path / "gpt2")
    assert "\n" not in str(caught.value)


def test_an_unknown_family_and_one_without_a_head_are_one_line(tmp_path):
    tiny_bert(tmp_path)
    config = tmp_path / "bert" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "tiny-unheard-of"}))
    with pytest.raises(ModelError, match=r"cannot be loaded: .*tiny-unheard-of") as caught:
        load_model(tmp_path / "bert")
    assert "\n" not in str(caught.value)


def test_a_folder_without_tokenizer_says_so_and_takes_one_by_path_or_object(tmp_path):
    _, tokenizer = tiny_t5(tmp_path)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    expected = load_model(tmp_path / "t5").fingerprint
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "t5" / name).unlink()
    with pytest.raises(ModelError, match="t5 has no tokenizer files"):
        load_model(tmp_path / "t5")
    assert load_model(tmp_path / "t5", tokenizer=tokenizer).fingerprint == expected
    assert load_model(tmp_path / "t5", tokenizer=tmp_path / "tokenizer").fingerprint == expected


def test_a_model_without_attention_is_refused(tmp_path):
    _, tokenizer = tiny_gpt2()
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=300)
    transformers.MambaModel(config).save_pretrained(tmp_path / "mamba")
    tokenizer.save_pretrained(tmp_path / "mamba")
    with pytest.raises(ModelError, match=r"mamba.*has no attention to look at"):
        load_model(tmp_path / "mamba")


def test_code_in_a_folder_runs_only_when_asked_for(tmp_path):
    tiny_bert(tmp_path)
    folder = tmp_path / "bert"
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(ModelError, match=r"bert needs its own Python code \(own.py\).* trust_remote_code"):
        load_model(folder)
    assert type(load_model(folder, trust_remote_code=True).model).__name__ == "OwnModel"


def write_gguf(path, model, tokenizer):
    """A tiny unquantised Llama as llama.cpp lays it out."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    pieces = [tokenizer.convert_ids_to_tokens(number) for number in range(len(tokenizer))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(number) for number in range(len(pieces))])
    writer.add_token_types(
        [6 if piece.startswith("<0x") else 3 if number < 4 else 1 for number, piece in enumerate(pieces)]
    )
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.float()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if part in name:  # llama.cpp interleaves the two halves of a head for its rotary code
                values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_the_states_of_the_model_it_was_made_from(tmp_path):
    model, tokenizer = tiny_llama(head_dim=8)
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    expected = states(model_from_parts(model, tokenizer, name="live"))
    for head in ("none", "lm"):
        loaded = load_model(tmp_path / "tiny.gguf", tokenizer=tokenizer, head=head)
        assert torch.allclose(states(loaded), expected, atol=1e-5)
        assert loaded.name == "tiny.gguf" and any("GGUF" in note for note in loaded.notes)
    assert load_model(tmp_path).tokenizer("苹果")["input_ids"]


def test_a_head_over_classes_is_loaded_with_its_pooler_and_what_it_lacks_is_told(tmp_path):
    config = tiny_bert(tmp_path)[0].config
    config.num_labels = 1
    torch.manual_seed(0)
    whole = transformers.BertForSequenceClassification(config).eval()
    whole.save_pretrained(tmp_path / "bert")
    loaded = load_model(tmp_path / "bert", head="classes")
    ids = torch.tensor([[2, 60, 61, 3]])
    assert torch.equal(loaded.model(ids).logits, whole(ids).logits) and loaded.untrained == ()
    tensors = load_file(tmp_path / "bert" / "model.safetensors")
    for lost in ("classifier.", "pooler."):
        kept = {name: one for name, one in tensors.items() if lost not in name}
        save_file(kept, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
        untrained = load_model(tmp_path / "bert", head="classes").untrained
        assert len(untrained) == 2 and all(lost in name for name in untrained)


def test_a_gguf_file_has_no_head_over_classes(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", *tiny_llama(head_dim=8))
    with pytest.raises(ModelError, match=r"tiny\.gguf: a GGUF file has no head over classes"):
        load_model(tmp_path / "tiny.gguf", head="classes")


def test_loading_a_model_and_an_adapter_prints_nothing(tmp_path):
    model, _ = tiny_llama(tmp_path)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "llama")
    adapted.save_pretrained(tmp_path / "adapter")
    script = "import sys; from probe.models import load_model; [load_model(name) for name in sys.argv[1:]]"
    command = [sys.executable, "-c", script, str(tmp_path / "llama"), str(tmp_path / "adapter")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_known_models_say_what_may_be_done_with_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    e5, gemma = known_models()
    assert (e5.name, e5.licence, e5.built) == ("builtin:e5-small", "MIT", False)
    assert (gemma.name, gemma.licence, gemma.built) == ("builtin:gemma3-270m", "Gemma Terms of Use", False)
    assert gemma.size > e5.size > 400_000_000
