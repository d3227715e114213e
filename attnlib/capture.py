"""Read head output vectors, attention weights, queries, keys, values and layer inputs out of an unmodified model.

``capture`` owns its hooks around any forward pass; ``head_outputs`` goes from text to labelled tensors.  Hooks only
look: they return None, so the model computes what it computes without them.
"""

import hashlib
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from attnlib.corpus import Text, as_text
from attnlib.models import Model, submodule
from attnlib.similarity import is_finite

QUANTITIES = ("z", "attention", "q", "k", "v", "input")
SENTENCE_END = frozenset(".!?…。！？")
BLANK = "␣"  # how a token of nothing but white space is shown
CLOSING = frozenset("\"'”’)]»")


class Captured:
    """What one forward pass left behind, as attributes ``z``, ``attention``, ``q``, ``k``, ``v``, ``input``.

    z, q, k, v: (batch, layer, head, token, d_head); attention: (batch, layer, head, query, key), rows sum to 1;
    input: (batch, layer, token, d_model), what the heads of a layer read.  Reading one stacks the layers asked for.
    A second forward inside the same ``with`` replaces what the first left.
    """

    def __init__(self, what: Sequence[str], layers: Sequence[int], n_heads: int):
        self.what, self.layers = tuple(what), tuple(layers)
        self._n_heads = n_heads
        self._raw: dict[str, dict[int, Tensor]] = {quantity: {} for quantity in what}

    def keep(self, quantity: str, layer: int, raw: Tensor) -> None:
        self._raw[quantity][layer] = raw

    def _by_layer(self, quantity: str) -> list[Tensor]:
        if quantity not in QUANTITIES:
            raise AttributeError(f"Captured has no {quantity!r}, only {', '.join(QUANTITIES)}.")
        raw = self._raw.get(quantity, {})
        if len(raw) < len(set(self.layers)):
            raise AttributeError(
                f"No {quantity} was captured: name it in what=, and run the model's forward pass inside the 'with'."
            )
        tensors = [raw[layer] for layer in self.layers]
        if quantity not in (
            "attention",
            "input",
        ):  # (batch, token, head * d_head) is cut into heads
            tensors = [
                tensor.unflatten(-1, (self._n_heads, -1)).transpose(
                    1, 2
                )  # (batch, head, token, d_head)
                for tensor in tensors
            ]
        return tensors

    def __getattr__(self, quantity: str) -> Tensor:
        return torch.stack(self._by_layer(quantity), dim=1)

    def of_text(self, quantity: str, row: int, n_tokens: int) -> Tensor:
        """The part of one text of the batch, padding left out, as a copy: (layer, ...)."""
        tensors = [tensor[row, ..., :n_tokens, :] for tensor in self._by_layer(quantity)]
        return torch.stack(
            [tensor[..., :n_tokens] for tensor in tensors] if quantity == "attention" else tensors
        )


def _layer_numbers(model: Model, layers: Iterable[int] | None) -> list[int]:
    if layers is None:
        return list(range(model.n_layers))
    layers = [layers] if isinstance(layers, int | str) else list(layers)
    if not layers or any(
        not isinstance(layer, int) or not -model.n_layers <= layer < model.n_layers
        for layer in layers
    ):
        raise ValueError(
            f"layers={layers}: {model.name} has layers 0 to {model.n_layers - 1} (counted from 0 in code); "
            "give some of them, or None for all."
        )
    return [layer % model.n_layers for layer in layers]


@contextmanager
def capture(
    model: Model, *, layers: Iterable[int] | None = None, what: Sequence[str] = ("z",)
) -> Iterator[Captured]:
    """Capture head quantities of every forward pass of ``model.net`` inside the ``with``.

    Parameters
    ----------
    layers : counted from 0, negative from the last; None for all
    what : some of "z" (head output vectors, A V before the output projection), "attention" (A), "q", "k", "v",
        "input" (the vectors that the heads of a layer read; in the first layer no head has touched them yet)

    "attention" switches the model to eager attention inside the ``with``, since the fused kernels never form A; z
    then differs from the fused one by rounding only.  The hooks, and only these, are removed when the block ends,
    also by an exception.  Raises ValueError for an unknown quantity or layer.

    >>> from attnlib import load_model
    >>> model = load_model("minilm", device="cpu")
    >>> with capture(model, layers=[0]) as captured:
    ...     _ = model.net(**model.tokenizer("Hello", return_tensors="pt"))
    >>> captured.z.shape  # batch, layer, head, token, d_head
    torch.Size([1, 1, 12, 3, 32])
    """
    what = (what,) if isinstance(what, str) else tuple(what)
    unknown = set(what) - set(QUANTITIES)
    if unknown or not what:
        raise ValueError(f"what={what}: choose among {', '.join(QUANTITIES)}.")
    numbers = _layer_numbers(model, layers)
    captured = Captured(what, numbers, model.n_heads)
    handles = []
    previous = model.net.config._attn_implementation
    try:
        if "attention" in what and previous != "eager":
            model.net.set_attn_implementation("eager")
        for layer in numbers:
            for quantity in what:
                handles.append(_attach(model, captured, quantity, layer))
        yield captured
    finally:
        for handle in handles:
            handle.remove()
        if model.net.config._attn_implementation != previous:
            model.net.set_attn_implementation(previous)


def _attach(
    model: Model, captured: Captured, quantity: str, layer: int
) -> torch.utils.hooks.RemovableHandle:
    """One hook that hands one quantity of one layer to ``captured``."""
    family = model.family
    if quantity == "z":

        def before_projection(module, args) -> None:
            captured.keep("z", layer, args[0])

        return submodule(model.net, family.output, layer).register_forward_pre_hook(
            before_projection
        )
    if quantity == "attention":

        def after_attention(module, args, output) -> None:
            captured.keep("attention", layer, output[1] if isinstance(output, tuple) else output)

        return submodule(model.net, family.attention, layer).register_forward_hook(after_attention)
    if quantity == "input":

        def before_query(module, args) -> None:
            captured.keep("input", layer, args[0])

        return submodule(model.net, family.query, layer).register_forward_pre_hook(before_query)
    paths = {"q": family.query, "k": family.key, "v": family.value}
    part = "qkv".index(quantity) if family.query == family.value else None  # None: not fused

    def after_projection(module, args, output) -> None:
        captured.keep(quantity, layer, output if part is None else output.chunk(3, dim=-1)[part])

    return submodule(model.net, paths[quantity], layer).register_forward_hook(after_projection)


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """One text as a model reads it, token by token, and what its heads make of it.

    tokens : labels as a person reads them, cut from the source; special tokens by their name, such as [SEP]
    token_ids : (token,) vocabulary indices
    offsets : (start, end) of each token in the source; (0, 0) for a special token
    is_body : (token,) True for the tokens of the text itself, False for special tokens
    is_sep : (token,) True for the separator tokens that were added, such as [SEP]
    is_sentence_end : (token,) True for the punctuation that ends a sentence
    sentence : (token,) index of the sentence in ``text.sentences``, -1 for a special token
    n_cut : how many tokens of the text did not fit
    layers : the layers, counted from 0, along the layer axis
    z, q, k, v : (layer, head, token, d_head), None unless asked for
    attention : (layer, head, query, key), rows sum to 1; None unless asked for
    input : (layer, token, d_model), what the heads of each layer read; None unless asked for
    """

    text: Text
    tokens: list[str]
    token_ids: Int[Tensor, " token"]
    offsets: list[tuple[int, int]]
    is_body: Bool[Tensor, " token"]
    is_sep: Bool[Tensor, " token"]
    is_sentence_end: Bool[Tensor, " token"]
    sentence: Int[Tensor, " token"]
    n_cut: int
    layers: tuple[int, ...]
    z: Float[Tensor, "layer head token d_head"] | None = None
    attention: Float[Tensor, "layer head query key"] | None = None
    q: Float[Tensor, "layer head token d_head"] | None = None
    k: Float[Tensor, "layer head token d_head"] | None = None
    v: Float[Tensor, "layer head token d_head"] | None = None
    input: Float[Tensor, "layer token d_model"] | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def head_outputs(
    model: Model,
    text: str | Text | Sequence[str | Text],
    *,
    what: Sequence[str] = ("z",),
    layers: Iterable[int] | None = None,
    max_tokens: int | None = None,
    separators: str = "end",
    shuffle: int | None = None,
    batch_tokens: int = 4096,
) -> HeadOutputs | list[HeadOutputs]:
    """Run a model on one text or several and return what its heads computed, labelled token by token.

    Parameters
    ----------
    text : a string, a ``Text``, or a sequence of them (a ``Corpus`` is one): then a list comes back, in order
    what : some of "z", "attention", "q", "k", "v", "input"; see ``capture``
    layers : counted from 0; None for all
    max_tokens : cut each text to this many tokens, special ones included; None for as many as the model can take,
        and then a warning says how much did not fit
    separators : "end", the model's usual input; "between", one more separator token between any two sentences
    shuffle : a seed: the tokens of the text itself are put in random order, the same for the same text and seed, and
        sentences stay where they were: the control for word order; None for the text as it is
    batch_tokens : how many tokens, padding included, go through the model at a time

    A text gives the same vectors alone as in a batch, to rounding.  Raises ValueError for an empty text, an unknown
    layer or quantity, ``max_tokens`` beyond the model's maximum, or values that are not finite.

    >>> from attnlib import load_model
    >>> out = head_outputs(load_model("minilm", device="cpu"), "Rain fell. It fell all day.")
    >>> out.tokens[:4], out.z.shape  # layer, head, token, d_head
    (['[CLS]', 'Rain', 'fell', '.'], torch.Size([6, 12, 10, 32]))
    """
    options = dict(
        what=what,
        layers=layers,
        max_tokens=max_tokens,
        separators=separators,
        shuffle=shuffle,
        batch_tokens=batch_tokens,
    )
    if isinstance(text, str | Text):
        ((_, output),) = iter_head_outputs(model, [text], **options)
        return output
    outputs = dict(iter_head_outputs(model, text, **options))
    return [outputs[index] for index in range(len(outputs))]


def iter_head_outputs(
    model: Model,
    texts: Iterable[str | Text],
    *,
    what: Sequence[str] = ("z",),
    layers: Iterable[int] | None = None,
    max_tokens: int | None = None,
    separators: str = "end",
    shuffle: int | None = None,
    batch_tokens: int = 4096,
    progress: str | None = None,
) -> Iterator[tuple[int, HeadOutputs]]:
    """``head_outputs`` for a corpus that does not fit into memory: yields (index, HeadOutputs), one batch at a time.

    Texts of like length share a batch, so they come in another order than they were given; ``index`` says which.
    ``progress`` is the label of a progress bar, None for no bar.

    >>> from attnlib import load_corpus, load_model
    >>> model, corpus = load_model("minilm", device="cpu"), load_corpus("passages", limit=3)
    >>> sorted(index for index, out in iter_head_outputs(model, corpus))
    [0, 1, 2]
    """
    layers = _layer_numbers(model, layers)
    inputs = [_tokenize(model, as_text(text), max_tokens, separators) for text in texts]
    if shuffle is not None:
        inputs = [_shuffled(item, shuffle) for item in inputs]
    cut = [item.n_cut for item in inputs if item.n_cut]
    if cut and max_tokens is None:
        warnings.warn(
            f"{len(cut)} of {len(inputs)} texts exceed the {model.max_tokens} tokens that {model.name} can take: the "
            f"last {sum(cut)} tokens were cut; split long texts, or set max_tokens= to cut them knowingly.",
            stacklevel=2,
        )
    order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    with tqdm(
        total=len(inputs), desc=progress, unit="text", disable=progress is None, leave=False
    ) as bar:
        while order:
            size = max(1, batch_tokens // len(inputs[order[0]]))  # the longest text sets the width
            batch, order = order[:size], order[size:]
            yield from zip(
                batch, _run(model, [inputs[index] for index in batch], what, layers), strict=True
            )
            bar.update(len(batch))


@torch.inference_mode()
def _run(
    model: Model, inputs: list[HeadOutputs], what: Sequence[str], layers: list[int]
) -> list[HeadOutputs]:
    """One forward pass over a right-padded batch; each text gets its own part back, without the padding."""
    width = max(len(item) for item in inputs)
    # masked, so any vocabulary index will do where there is none for padding
    padding = model.tokenizer.pad_token_id or 0
    token_ids = torch.full((len(inputs), width), padding)  # (text, token)
    attended = torch.zeros_like(token_ids)
    for row, item in enumerate(inputs):
        token_ids[row, : len(item)], attended[row, : len(item)] = item.token_ids.cpu(), 1
    with capture(model, layers=layers, what=what) as captured:
        model.net(input_ids=token_ids.to(model.device), attention_mask=attended.to(model.device))
    outputs = []
    for row, item in enumerate(inputs):
        parts = {quantity: captured.of_text(quantity, row, len(item)) for quantity in captured.what}
        for quantity, tensor in parts.items():
            if not is_finite(tensor):
                broken = [
                    layer for layer, part in zip(layers, tensor, strict=True) if not is_finite(part)
                ]
                raise ValueError(
                    f"{quantity} of {model.name} holds NaN or infinite values from layer {broken[0]} on (counted from "
                    f"0), in the text ({item.text.source}): check the weights, or load with dtype='float32'."
                )
        outputs.append(HeadOutputs(**{**vars(item), **parts, "layers": tuple(layers)}))
    return outputs


def text_rng(text: Text, seed: int, purpose: str) -> np.random.Generator:
    """Random numbers that depend on text, seed and purpose alone, not on the texts read before."""
    digest = hashlib.sha256(f"{seed} {purpose} {text.text}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _shuffled(item: HeadOutputs, seed: int) -> HeadOutputs:
    """The same tokens with those of the text itself in random order; places, sentences and separators stay."""
    rng = text_rng(item.text, seed, "order")
    places = item.is_body.nonzero().squeeze(-1).tolist()
    order = list(range(len(item)))
    for place, source in zip(places, rng.permutation(places).tolist(), strict=True):
        order[place] = source
    return replace(
        item,
        tokens=[item.tokens[source] for source in order],
        token_ids=item.token_ids[order],
        offsets=[item.offsets[source] for source in order],
        is_sentence_end=item.is_sentence_end[order],
    )


def _tokenize(model: Model, text: Text, max_tokens: int | None, separators: str) -> HeadOutputs:
    """The tokens of a text with their labels, before the model has run."""
    tokenizer = model.tokenizer
    limit = model.max_tokens if max_tokens is None else max_tokens
    if separators not in ("end", "between"):
        raise ValueError(f"separators={separators!r} is unknown: choose 'end' or 'between'.")
    if separators == "between" and tokenizer.sep_token_id is None:
        raise ValueError(
            f"separators='between': {model.name} has no separator token; use separators='end'."
        )
    encoded = tokenizer(
        text.text,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        split_special_tokens=True,  # "[SEP]" written in the text is five characters, not a separator
        verbose=False,
    )
    special = encoded["special_tokens_mask"]
    if 0 not in special:
        raise ValueError(
            f"The text ({text.source}) has no token that {model.name} can read: give at least one word."
        )
    first, last = special.index(0), len(special) - 1 - special[::-1].index(0)
    prefix, suffix = encoded["input_ids"][:first], encoded["input_ids"][last + 1 :]
    if not len(prefix) + len(suffix) < limit <= model.max_tokens:
        raise ValueError(
            f"max_tokens={max_tokens}: {model.name} takes from {len(prefix) + len(suffix) + 1} to {model.max_tokens} "
            "tokens, special ones included."
        )
    starts = [start for start, _ in text.sentences]
    body = []  # (token id, offsets, sentence); sentence -1 marks an inserted separator
    for token_id, (start, end) in zip(
        encoded["input_ids"][first : last + 1],
        encoded["offset_mapping"][first : last + 1],
        strict=True,
    ):
        sentence = max(0, bisect_right(starts, max(start, end - 1)) - 1)
        if separators == "between" and body and sentence != body[-1][2]:
            body.append((tokenizer.sep_token_id, (0, 0), -1))
        body.append((token_id, (start, end), sentence))
    kept = body[: limit - len(prefix) - len(suffix)]
    if kept[-1][2] < 0:
        kept.pop()  # the sentence after this separator was cut
    n_cut = sum(sentence >= 0 for _, _, sentence in body[len(kept) :])

    token_ids = [*prefix, *(token_id for token_id, _, _ in kept), *suffix]
    offsets = [*[(0, 0)] * len(prefix), *(offset for _, offset, _ in kept), *[(0, 0)] * len(suffix)]
    sentence = [*[-1] * len(prefix), *(index for _, _, index in kept), *[-1] * len(suffix)]
    is_body = [index >= 0 for index in sentence]
    tokens = [
        text.text[start:end].strip() or BLANK if inside else tokenizer.decode([token_id])
        for token_id, (start, end), inside in zip(token_ids, offsets, is_body, strict=True)
    ]
    is_sep = [
        token_id == tokenizer.sep_token_id and not inside
        for token_id, inside in zip(token_ids, is_body, strict=True)
    ]
    device = model.device
    return HeadOutputs(
        text=text,
        tokens=tokens,
        token_ids=torch.tensor(token_ids, device=device),
        offsets=offsets,
        is_body=torch.tensor(is_body, device=device),
        is_sep=torch.tensor(is_sep, device=device),
        is_sentence_end=torch.tensor(_sentence_ends(tokens, sentence), device=device),
        sentence=torch.tensor(sentence, device=device),
        n_cut=n_cut,
        layers=(),
    )


def _sentence_ends(tokens: list[str], sentence: list[int]) -> list[bool]:
    """True for full stops, question and exclamation marks that only closing quotes or brackets follow."""
    ends = [False] * len(tokens)
    open_sentence = None  # the sentence whose last word has been seen, reading backwards
    for position in range(len(tokens) - 1, -1, -1):
        if sentence[position] < 0 or sentence[position] == open_sentence:
            continue
        characters = set(tokens[position]) - {BLANK}
        if characters <= SENTENCE_END | CLOSING:
            ends[position] = bool(characters & SENTENCE_END)
        else:
            open_sentence = sentence[position]
    return ends
