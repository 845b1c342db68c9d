"""Claims that follow from arithmetic: the worked example, its entropy, head sizes, token counts, counts of products."""

from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from probe.claims.bench import Bench
from probe.claims.records import Finding, Grid, Part, Range, Rule, exact, less_than, more_than
from probe.models import LoadedModel
from probe.spans import tokenize
from probe.switching import eagerly
from probe.worked import AttentionStep, attention_step, entropy_share, softmax, worked_example

Floats = NDArray[np.float64]

# The row of 苹果 and its output in 我喜欢苹果, as the article prints them.
PRINTED_WEIGHTS = np.array([0.275, 0.344, 0.381])
PRINTED_OUTPUT = np.array([0.3338, 0.4826, 0.5768, 0.3206])
PHRASE = "我喜欢苹果"
ARTICLE_LENGTH = 2048
_HEADS, _HEAD_SIZE, _MODEL_SIZE = 4, 4, 4  # "four heads of four dimensions each" in a model of four


def article_step() -> AttentionStep:
    """The article's example, computed: what 苹果 makes of 我, 喜欢 and itself."""
    given = worked_example()
    return attention_step(given.query, given.keys, given.values)


def example(bench: Bench) -> Finding:
    """The printed weights and output of the worked example, against the same computed here."""
    rule = less_than(1e-3, refuted_above=1e-3)
    step, values = article_step(), worked_example().values
    unscaled = softmax(step.scores)
    part = Part(
        key="rounding",
        rule=rule,
        unit="deviation",
        number=exact(_largest_gap(step.weights, step.output), n=7),
        planted=exact(_largest_gap(PRINTED_WEIGHTS, PRINTED_OUTPUT), n=7),
        nothing=exact(_largest_gap(unscaled, unscaled @ values), n=7),
    )
    rows = [(word, float(w)) for word, w in zip(worked_example().tokens, step.weights, strict=True)]
    return Finding(
        key="example", parts=(part,), grids=(Grid(caption="weights", columns=("word", "weight"), rows=(*rows,)),)
    )


def _largest_gap(weights: Floats, output: Floats) -> float:
    return float(max(np.abs(weights - PRINTED_WEIGHTS).max(), np.abs(output - PRINTED_OUTPUT).max()))


def entropy_of_example(bench: Bench) -> Finding:
    """How peaked the example's row is: its entropy as a share of a uniform row's, 1 is uniform."""
    rule = less_than(0.90, refuted_above=0.95)
    step = article_step()
    part = Part(
        key="peaked",
        rule=rule,
        unit="share",
        number=exact(step.entropy),
        planted=exact(float(entropy_share([0.05, 0.05, 0.9]))),
        nothing=exact(float(entropy_share(np.full(3, 1 / 3)))),
    )
    top = np.sort(step.weights)
    grid = Grid(
        caption="far_above",
        columns=("largest", "second", "times", "uniform"),
        rows=((float(top[-1]), float(top[-2]), float(top[-1] / top[-2]), 1 / 3),),
    )
    return Finding(key="entropy", parts=(part,), grids=(grid,))


def head_sizes(bench: Bench) -> Finding:
    """Whether W_O takes a wider vector to a narrower one: heads × head size over model size, from the weights."""
    rule = more_than(1.05)
    parts = []
    rows = []
    for loaded in (bench.encoder, bench.decoder):
        heads, size, width = sizes_of(loaded)
        rows.append((loaded.name, heads, size, heads * size, width))
        parts.append(
            Part(
                key="reduces",
                model=loaded.name,
                rule=rule,
                unit="ratio",
                number=exact(heads * size / width),
                planted=exact(_HEADS * _HEAD_SIZE / _MODEL_SIZE),
                nothing=exact(_HEADS * (_MODEL_SIZE // _HEADS) / _MODEL_SIZE),
            )
        )
    grid = Grid(caption="sizes", columns=("model", "heads", "head_size", "joined", "width"), rows=tuple(rows))
    return Finding(key="sizes", parts=tuple(parts), grids=(grid,))


def sizes_of(loaded: LoadedModel) -> tuple[int, int, int]:
    """Number of heads, size of a head, width of the model, as the configuration of the loaded weights has them."""
    config = loaded.backbone.config.get_text_config()
    width, heads = int(config.hidden_size), int(config.num_attention_heads)
    return heads, int(getattr(config, "head_dim", None) or width // heads), width


def tokens_of_phrase(bench: Bench) -> Finding:
    """How many tokens 我喜欢苹果 has, without special ones, in the tokenizers at hand."""
    rule = Rule(confirmed=Range(above=2.5, below=3.5), refuted=Range(above=3.5), between="refuted")
    planted, whole = (exact(_tokens(tokenizer_of(*words))) for words in (("我", "喜欢", "苹果"), (PHRASE,)))
    named = [(loaded.name, loaded.tokenizer) for loaded in (bench.encoder, bench.decoder)]
    named.append(("BertTokenizer, 1 character = 1 token", character_tokenizer()))
    parts = [
        Part(
            key="three",
            model=name,
            rule=rule,
            unit="tokens",
            number=exact(_tokens(tokenizer)),
            planted=planted,
            nothing=whole,
        )
        for name, tokenizer in named
    ]
    rows = [(name, _tokens(tokenizer), " | ".join(_labels(tokenizer))) for name, tokenizer in named]
    grid = Grid(caption="tokens", columns=("tokenizer", "tokens", "cut"), rows=tuple(rows))
    return Finding(key="tokens", parts=tuple(parts), grids=(grid,))


def _labels(tokenizer: Any) -> list[str]:
    tokens = tokenize(tokenizer, PHRASE)
    return [label for label, special in zip(tokens.labels, tokens.special, strict=True) if not special]


def _tokens(tokenizer: Any) -> int:
    return len(_labels(tokenizer))


def character_tokenizer() -> Any:
    """A BERT tokenizer whose vocabulary holds single characters, as bert-base-chinese cuts Chinese."""
    from transformers import BertTokenizerFast

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(PHRASE)]
    return BertTokenizerFast(vocab={piece: place for place, piece in enumerate(pieces)})


def tokenizer_of(*words: str) -> Any:
    """A tokenizer that knows these words and nothing else."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), *((word, -1.0) for word in words)]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram(pieces, unk_id=0)), unk_token="<unk>")


# --- products ---------------------------------------------------------------------------------------------------


def products(bench: Bench) -> Finding:
    """Query–key products of a whole forward pass over those the article counts, T²; counted while the model runs."""
    rule = Rule(confirmed=Range(above=0.9, below=1.1), refuted=Range(above=1.5))
    planted, nothing = (exact(_tiny_products(layers, heads, 32) / 32**2) for layers, heads in ((1, 1), (2, 2)))
    parts, rows = [], []
    for loaded in (bench.encoder, bench.decoder):
        lengths = (64, 128)
        counted = [products_of(loaded.backbone, length, head_size=sizes_of(loaded)[1]) for length in lengths]
        shares = [count / length**2 for count, length in zip(counted, lengths, strict=True)]
        rows += [(loaded.name, t, c, s) for t, c, s in zip(lengths, counted, shares, strict=True)]
        rows.append((loaded.name, ARTICLE_LENGTH, int(shares[-1] * ARTICLE_LENGTH**2), shares[-1]))
        parts.append(
            Part(
                key="whole",
                model=loaded.name,
                rule=rule,
                unit="ratio",
                number=exact(shares[-1], n=len(lengths)),
                planted=planted,
                nothing=nothing,
            )
        )
    one = Part(
        key="one_head",
        rule=rule,
        unit="ratio",
        number=exact(_tiny_products(1, 1, 128) / 128**2),
        planted=planted,
        nothing=nothing,
    )
    grid = Grid(caption="products", columns=("model", "length", "products", "times"), rows=tuple(rows))
    return Finding(key="products", parts=(*parts, one), grids=(grid,))


def products_of(backbone: Any, length: int, *, head_size: int) -> int:
    """How many query–key products one forward pass over `length` tokens makes, eager, from PyTorch's own counter.

    The batched matrix products of eager attention are scores and weighted sum, each T² × head size × 2 operations a
    head; linear maps are counted under other names.
    """
    ids = torch.arange(5, 5 + length)[None] % int(backbone.get_input_embeddings().weight.shape[0])
    with torch.inference_mode(), eagerly(backbone), FlopCounterMode(display=False) as counter:
        backbone(input_ids=ids.to(backbone.device))
    counts: Counter[str] = Counter()
    for operation, flops in counter.get_flop_counts()["Global"].items():
        counts[str(operation)] += int(flops)
    batched = sum(flops for name, flops in counts.items() if "bmm" in name)
    return batched // (4 * head_size)


def _tiny_products(layers: int, heads: int, length: int) -> int:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=8 * heads, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=16,
        max_position_embeddings=256,
    )  # fmt: skip
    return products_of(BertModel(config, add_pooling_layer=False).eval(), length, head_size=8)
