"""A small two-way LSTM language model, as ELMo's (Peters et al. 2018) but of one layer, trained on given texts."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

EMBEDDING, HIDDEN = 48, 64
_BATCH, _RATE = 32, 4e-3
_PAD = 0


class BiLstm(nn.Module):
    """Forward and backward LSTM over given word vectors, which stay as they are; both predict through one output table.

    rows [word, dim]: the vectors, that of padding first.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        words, size = rows.shape
        self.table = nn.Embedding(words, size, padding_idx=_PAD, _weight=rows, _freeze=True)
        self.narrow = nn.Linear(size, EMBEDDING)
        self.ahead = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.back = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, words)

    def embed(self, ids: Tensor) -> Tensor:
        """The narrowed word vectors, [text, token, EMBEDDING]."""
        narrow: Tensor = self.narrow(self.table(ids))
        return narrow

    def states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What either direction knows once it has read a token, [text, token, hidden] each; padding on the right."""
        turned = _turned(ids)
        ahead, _ = self.ahead(self.embed(ids))
        back, _ = self.back(self.embed(turned))
        return ahead, _unturned(back, ids)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean cross-entropy of the next token from the left and of the one before from the right."""
        ahead, back = self.states(ids)
        words = self.out.out_features
        later, earlier = ids[:, 1:].reshape(-1), torch.where(ids[:, 1:] == _PAD, _PAD, ids[:, :-1]).reshape(-1)
        guess = self.out(ahead[:, :-1]).reshape(-1, words), self.out(back[:, 1:]).reshape(-1, words)
        entropy = nn.functional.cross_entropy
        return (entropy(guess[0], later, ignore_index=_PAD) + entropy(guess[1], earlier, ignore_index=_PAD)) / 2


def train_bilstm(
    texts: Sequence[Sequence[int]],
    rows: NDArray[np.floating],
    *,
    epochs: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[BiLstm, list[float]]:
    """Train on texts of numbers from 1 (0 pads); gives the model and the mean loss of each epoch, in nats a token.

    rows [word, dim] are the vectors of words 1, 2, …; they are centred, and scaled to a spread of 1.
    """
    table = torch.tensor((rows - rows.mean(0)) / (rows.std() + 1e-9), dtype=torch.float32)
    table = torch.cat([torch.zeros(1, table.shape[1]), table])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BiLstm(table)
        optimiser = torch.optim.Adam(model.parameters(), lr=_RATE)
        losses = []
        for epoch in range(epochs):
            seen = []
            for places in _batches(texts):
                loss = model.loss(padded([texts[place] for place in places]))
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                seen.append(float(loss.detach()))
            losses.append(float(np.mean(seen)))
            if progress:
                progress(epoch + 1, epochs)
    return model.eval(), losses


def bilstm_state(model: BiLstm, text: Sequence[int], places: Sequence[int]) -> NDArray[np.float64]:
    """Both directions' states at the places, side by side, their mean: [2 × hidden]."""
    with torch.inference_mode():
        ahead, back = model.states(padded([text]))
    both = torch.cat([ahead, back], dim=-1)[0, list(places)].mean(0)
    state: NDArray[np.float64] = both.double().numpy()
    return state


def numbered(texts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """The same texts with tokens numbered from 1 in order of first appearance, and the token of each number."""
    numbers: dict[int, int] = {}
    renamed = [[numbers.setdefault(token, len(numbers) + 1) for token in text] for text in texts]
    return renamed, list(numbers)


def padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """Texts as one tensor, padded on the right: [text, token]."""
    width = max(len(text) for text in texts)
    return torch.tensor([[*text, *[_PAD] * (width - len(text))] for text in texts])


def _batches(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Texts of like length together, ties and batches in random order."""
    order = sorted(torch.randperm(len(texts)).tolist(), key=lambda place: len(texts[place]))
    groups = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    return [groups[place] for place in torch.randperm(len(groups)).tolist()]


def _turned(ids: Tensor) -> Tensor:
    """Each text backwards, its padding still on the right."""
    return torch.gather(ids, 1, _backwards(ids))


def _unturned(states: Tensor, ids: Tensor) -> Tensor:
    return torch.gather(states, 1, _backwards(ids)[..., None].expand_as(states))


def _backwards(ids: Tensor) -> Tensor:
    """Where each place of a text that is read backwards comes from, [text, token]; padding stays in place."""
    lengths = (ids != _PAD).sum(1, keepdim=True)
    places = torch.arange(ids.shape[1])[None].expand_as(ids)
    return torch.where(places < lengths, lengths - 1 - places, places)
