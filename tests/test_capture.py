"""Capture on real and tiny models: z = A V, batches, hooks, tokens, and what goes wrong in words."""

import inspect

import pytest
import torch
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlib import Text, capture, head_outputs, iter_head_outputs, load_corpus, load_model
from attnlib.capture import Captured, _layer_numbers, _sentence_ends
from attnlib.corpus import as_text

LENGTHS = ("Rain.", "Rain fell on the only bank in Sorley, and it fell all day.", "Two words.")


def hooks_on(net) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())


# --- z = A V ------------------------------------------------------------------------------------


def test_z_is_attention_times_values_in_every_head_of_the_real_model(minilm, passages):
    for out in head_outputs(minilm, passages.texts, what=("z", "attention", "v")):
        assert out.z.shape == (6, 12, len(out), 32)
        assert (out.attention @ out.v - out.z).abs().max() <= 1e-6
        assert torch.allclose(out.attention.sum(-1), torch.ones(()))


@pytest.mark.parametrize("family", TINY)
def test_z_is_attention_times_values_in_each_family(tiny, family, passages):
    model = tiny(family)
    for out in head_outputs(
        model, passages.texts[:3], what=("z", "attention", "v", "q", "k"), max_tokens=60
    ):
        assert out.z.shape == out.q.shape == out.k.shape == (3, 4, 60, 6)
        assert (out.attention @ out.v - out.z).abs().max() <= 1e-6
        # heads and layers are in the right order only if mixing them up shows
        assert (out.attention.flip(1) @ out.v - out.z).abs().max() > 1e-2
        assert (out.attention.flip(0) @ out.v - out.z).abs().max() > 1e-2


@pytest.mark.parametrize("family", sorted(set(TINY) - {"mpnet"}))  # MPNet adds a bias for positions
def test_attention_is_what_queries_and_keys_say(tiny, family):
    model = tiny(family)
    out = head_outputs(model, LENGTHS[1], what=("attention", "q", "k"))
    scores = out.q @ out.k.mT / model.d_head**0.5
    if family == "gpt2":
        scores = scores.masked_fill(torch.ones(len(out), len(out)).triu(1).bool(), -torch.inf)
    assert torch.allclose(scores.softmax(-1), out.attention, atol=1e-6)


@pytest.mark.parametrize("family", TINY)
def test_z_is_what_enters_the_next_computation(tiny, family):
    """Zeroing the input of the output projection where we read z changes the model's output."""
    model = tiny(family)
    inputs = model.tokenizer(LENGTHS[1], return_tensors="pt")
    projection = model.net.get_submodule(model.family.output.format(i=1))
    with torch.inference_mode():
        plain = model.net(**inputs).last_hidden_state
        handle = projection.register_forward_pre_hook(
            lambda module, args: (torch.zeros_like(args[0]),)
        )
        zeroed = model.net(**inputs).last_hidden_state
        handle.remove()
        assert torch.equal(model.net(**inputs).last_hidden_state, plain)
    assert (zeroed - plain).abs().max() > 1e-3


@pytest.mark.parametrize("family", [*TINY, "minilm"])
def test_eager_and_fused_attention_agree(tiny, minilm, family, passages):
    model = minilm if family == "minilm" else tiny(family)
    for text in passages.texts[:3]:
        fused = head_outputs(model, text, max_tokens=60)
        eager = head_outputs(model, text, max_tokens=60, what=("z", "attention"))
        assert (fused.z - eager.z).abs().max() <= 1e-5


@pytest.mark.parametrize("family", TINY)
def test_a_family_takes_as_many_tokens_as_it_says(tiny, family):
    model = tiny(family)
    with pytest.warns(UserWarning, match="exceed the 64 tokens"):
        assert len(head_outputs(model, "word " * 100)) == model.max_tokens == 64


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*TINY, "minilm"])
@pytest.mark.parametrize("what", [("z",), ("z", "attention")])
def test_a_text_gives_the_same_alone_as_in_a_batch(tiny, minilm, family, what):
    model = minilm if family == "minilm" else tiny(family)
    together = head_outputs(model, LENGTHS, what=what)
    assert [out.text.text for out in together] == list(LENGTHS)
    for text, out in zip(LENGTHS, together, strict=True):
        alone = head_outputs(model, text, what=what)
        assert alone.tokens == out.tokens
        assert (alone.z - out.z).abs().max() <= 1e-5
        if "attention" in what:
            assert (alone.attention - out.attention).abs().max() <= 1e-5


def test_batch_size_and_order_of_texts_do_not_matter(minilm):
    corpus = load_corpus("lee", limit=6)
    one_by_one = head_outputs(minilm, corpus, max_tokens=64, batch_tokens=1)
    reversed_batch = head_outputs(minilm, corpus.texts[::-1], max_tokens=64, batch_tokens=10_000)[
        ::-1
    ]
    for a, b in zip(one_by_one, reversed_batch, strict=True):
        assert a.text is b.text
        assert (a.z - b.z).abs().max() <= 1e-5


def test_a_corpus_streams_with_a_progress_bar(minilm, passages, capsys):
    seen = [
        index
        for index, out in iter_head_outputs(minilm, passages, max_tokens=16, progress="reading")
    ]
    assert sorted(seen) == list(range(24))
    assert "reading" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_nearly_the_same(minilm, tiny_folder, dtype):
    half = head_outputs(
        load_model("minilm", device="cpu", dtype=dtype), LENGTHS[1], what=("z", "attention", "v")
    )
    full = head_outputs(minilm, LENGTHS[1])
    assert half.z.dtype == getattr(torch, dtype)
    cosine = torch.nn.functional.cosine_similarity(half.z.float(), full.z, dim=-1)
    assert cosine.mean() > 0.99
    assert ((half.attention.float() @ half.v.float()) - half.z.float()).abs().max() < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() or torch.backends.mps.is_available()),
    reason="no CUDA or MPS device here",
)
def test_a_gpu_gives_what_the_cpu_gives(minilm):
    on_gpu = load_model("minilm")
    assert on_gpu.device.type in ("cuda", "mps")
    for a, b in zip(head_outputs(on_gpu, LENGTHS), head_outputs(minilm, LENGTHS), strict=True):
        assert a.z.device.type == on_gpu.device.type
        assert (a.z.cpu() - b.z).abs().max() < 1e-3


# --- capture around any forward -----------------------------------------------------------------


def test_capture_leaves_the_output_and_other_hooks_alone(minilm):
    inputs = minilm.tokenizer(LENGTHS[1], return_tensors="pt")
    calls = []
    foreign = minilm.net.encoder.layer[0].attention.output.dense.register_forward_hook(
        lambda module, args, output: calls.append(1)
    )
    before = hooks_on(minilm.net)
    try:
        with torch.inference_mode():
            plain = minilm.net(**inputs).last_hidden_state
            with capture(minilm, layers=[-1, 0], what=("z", "q")) as captured:
                hooked = minilm.net(**inputs).last_hidden_state
        assert torch.equal(plain, hooked)
        assert captured.z.shape == captured.q.shape == (1, 2, 12, inputs["input_ids"].shape[1], 32)
        assert captured.layers == (5, 0)
        full = head_outputs(minilm, LENGTHS[1])
        assert torch.allclose(captured.z[0, 0], full.z[5], atol=1e-6)
        assert hooks_on(minilm.net) == before
        assert len(calls) == 3
    finally:
        foreign.remove()


@pytest.mark.parametrize("what", ["z", ("z", "attention")])
def test_hooks_and_attention_code_are_restored_after_an_exception(minilm, what):
    before, code = hooks_on(minilm.net), minilm.net.config._attn_implementation
    with pytest.raises(KeyboardInterrupt), capture(minilm, what=what):
        assert hooks_on(minilm.net) > before
        raise KeyboardInterrupt
    assert hooks_on(minilm.net) == before
    assert minilm.net.config._attn_implementation == code == "sdpa"


def test_hooks_are_gone_when_attaching_them_fails_half_way(tiny_folder):
    model = load_model(str(tiny_folder("bert")), device="cpu")
    del model.net.encoder.layer[2].attention.output.dense
    with (
        pytest.raises(ValueError, match=r"no module 'encoder.layer.2.attention.output.dense'"),
        capture(model),
    ):
        pass
    assert hooks_on(model.net) == 0


def test_a_second_forward_replaces_the_first(minilm):
    with torch.inference_mode(), capture(minilm, layers=[0]) as captured:
        for text in LENGTHS[:2]:
            minilm.net(**minilm.tokenizer(text, return_tensors="pt"))
    assert torch.allclose(captured.z[0], head_outputs(minilm, LENGTHS[1], layers=[0]).z, atol=1e-6)


def test_asking_for_what_was_not_captured_says_so():
    empty = Captured(("z",), [0], 1)
    with pytest.raises(AttributeError, match="No z was captured: name it in what="):
        empty.z  # noqa: B018
    with pytest.raises(AttributeError, match="Captured has no 'zz', only z, attention, q, k, v"):
        empty.zz  # noqa: B018


# --- tokens -------------------------------------------------------------------------------------


def test_tokens_are_labelled_as_in_the_source(minilm):
    text = "Naïve CAFÉ 😀 [SEP] don't."
    out = head_outputs(minilm, text)
    assert out.tokens == [
        "[CLS]",
        "Naïve",
        "CAFÉ",
        "😀",
        "[",
        "SEP",
        "]",
        "don",
        "'",
        "t",
        ".",
        "[SEP]",
    ]
    assert [text[a:b] for a, b in out.offsets[1:-1]] == out.tokens[1:-1]
    assert out.is_body.tolist() == [False, *[True] * 10, False]
    assert out.is_sep.tolist() == [False] * 11 + [True]  # the [SEP] in the text is not one
    assert len(out) == 12 and out.layers == tuple(range(6))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_byte_level_tokens_show_the_source_too(tiny, family):
    out = head_outputs(tiny(family), "Only the bank, 😀.", max_tokens=40)
    assert not any("Ġ" in token for token in out.tokens)
    assert "😀" in out.tokens


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_offsets_lie_in_the_text_and_labels_match_them(minilm, text):
    try:
        out = head_outputs(minilm, text, layers=[0])
    except ValueError as error:
        assert "empty" in str(error) or "no token" in str(error)
        return
    inside = [place for place, body in enumerate(out.is_body.tolist()) if body]
    assert all(0 <= a < b <= len(text) for a, b in (out.offsets[place] for place in inside))
    assert [out.tokens[p] for p in inside] == [
        text[slice(*out.offsets[p])].strip() or "␣" for p in inside
    ]
    assert all((out.sentence[place] >= 0) == out.is_body[place] for place in range(len(out)))


def test_sentences_and_their_ends(minilm):
    out = head_outputs(minilm, 'Dr. Ode ran. "Why?" she asked... Then nothing')
    assert out.sentence[out.is_body].tolist() == [0] * 5 + [1] * 9 + [2] * 2
    ends = [place for place, end in enumerate(out.is_sentence_end.tolist()) if end]
    assert [out.tokens[place] for place in ends] == [".", ".", ".", "."]
    assert (
        ends[0] == 5
    )  # the full stop of "Dr." ends no sentence, nor does the question mark inside the second


def test_a_sentence_ends_where_only_closing_marks_follow():
    tokens = ["Why", "?", "he", "said", '."', "␣", "No", ".", ")", "a", "."]
    sentence = [0] * 6 + [1] * 3 + [-1, 2]
    assert _sentence_ends(tokens, sentence) == [place in (4, 7, 10) for place in range(11)]


def test_a_separator_between_all_sentences(minilm):
    text = "One. Two three. Four."
    out = head_outputs(minilm, text, separators="between")
    assert out.tokens == [
        "[CLS]",
        "One",
        ".",
        "[SEP]",
        "Two",
        "three",
        ".",
        "[SEP]",
        "Four",
        ".",
        "[SEP]",
    ]
    assert int(out.is_sep.sum()) == 3
    assert out.sentence.tolist() == [-1, 0, 0, -1, 1, 1, 1, -1, 2, 2, -1]
    # cut where only the separator would have been left of the last sentence: it goes too
    short = head_outputs(minilm, text, separators="between", max_tokens=5)
    assert short.tokens == ["[CLS]", "One", ".", "[SEP]"] and short.n_cut == 5


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, 7, b"Rain"])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(ValueError, match="must be a string or a Text, not"):
        inspect.unwrap(as_text)(text)  # without the type check that only tests have


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_is_refused(minilm, text):
    with pytest.raises(ValueError, match="empty or only white space"):
        head_outputs(minilm, text)


def test_a_text_without_a_readable_token_is_refused(minilm):
    with pytest.raises(ValueError, match=r"\(note 3\) has no token that minilm can read"):
        head_outputs(minilm, Text("\u200b\x07", ((0, 2),), "note 3"))


def test_one_token_is_enough(minilm):
    out = head_outputs(minilm, "Rain")
    assert out.tokens == ["[CLS]", "Rain", "[SEP]"] and out.z.shape == (6, 12, 3, 32)


def test_a_text_longer_than_the_model_can_take_is_cut_and_counted(minilm):
    text = "word " * 600
    with pytest.warns(
        UserWarning, match="1 of 2 texts exceed the 512 tokens .* last 90 tokens were cut"
    ):
        out = head_outputs(minilm, [text, "short"])[0]
    assert len(out) == 512 and out.n_cut == 90 and out.tokens[-1] == "[SEP]"


def test_a_text_cut_on_purpose_is_counted_without_a_warning(minilm, recwarn):
    out = head_outputs(minilm, "one two three four five", max_tokens=4)
    assert out.tokens == ["[CLS]", "one", "two", "[SEP]"] and out.n_cut == 3
    assert not recwarn.list


@pytest.mark.parametrize("max_tokens", [2, 513, -1, 0])
def test_an_impossible_number_of_tokens_is_refused(minilm, max_tokens):
    with pytest.raises(
        ValueError, match=rf"max_tokens={max_tokens}: minilm takes from 3 to 512 tokens"
    ):
        head_outputs(minilm, "Rain fell.", max_tokens=max_tokens)


@pytest.mark.parametrize("layers", [[99], [-7], [], 6, "0", ["0"], [0.5]])
def test_a_layer_that_is_not_there_is_refused(minilm, layers):
    with pytest.raises(ValueError, match=r"layers=.* minilm has layers 0 to 5"):
        inspect.unwrap(_layer_numbers)(minilm, layers)


@pytest.mark.parametrize("what", ["zz", (), ("z", "heads")])
def test_an_unknown_quantity_is_refused(minilm, what):
    with pytest.raises(ValueError, match="choose among z, attention, q, k, v"):
        head_outputs(minilm, "Rain", what=what)


def test_separators_that_cannot_be_are_refused(minilm, tiny):
    with pytest.raises(ValueError, match="choose 'end' or 'between'"):
        head_outputs(minilm, "Rain", separators="start")
    with pytest.raises(ValueError, match="gpt2 has no separator token"):
        head_outputs(tiny("gpt2"), "Rain", separators="between")


def test_broken_weights_are_named_and_the_hooks_are_gone(tiny_folder):
    model = load_model(str(tiny_folder("bert")), device="cpu")
    with torch.no_grad():
        model.net.encoder.layer[1].attention.self.value.weight[0, 0] = torch.nan
    with pytest.raises(
        ValueError, match=r"z of bert holds NaN .* layer 1 on .*given by the caller"
    ):
        head_outputs(model, "Rain fell.")
    assert hooks_on(model.net) == 0


# --- layer inputs and shuffled text ---------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "mpnet", "distilbert"])
def test_the_input_of_a_layer_is_the_output_of_the_one_below(tiny, passages, family):
    model = tiny(family)
    out = head_outputs(model, passages[0], what="input", max_tokens=40)
    with torch.inference_mode():
        states = model.net(input_ids=out.token_ids[None], output_hidden_states=True).hidden_states
    assert out.input.shape == (3, 40, 24)
    for layer in range(3):
        assert (out.input[layer] - states[layer][0]).abs().max() <= 1e-5


def test_shuffling_moves_the_tokens_and_nothing_else(minilm, passages):
    plain, mixed = (head_outputs(minilm, passages[0], shuffle=shuffle) for shuffle in (None, 4))
    body = plain.is_body
    assert not torch.equal(plain.token_ids, mixed.token_ids)
    assert torch.equal(plain.token_ids[~body], mixed.token_ids[~body])
    assert torch.equal(plain.token_ids.sort().values, mixed.token_ids.sort().values)
    assert torch.equal(plain.sentence, mixed.sentence) and torch.equal(body, mixed.is_body)
    assert int(plain.is_sentence_end.sum()) == int(mixed.is_sentence_end.sum())
    assert all(token in ".?!" for token, end in zip(mixed.tokens, mixed.is_sentence_end) if end)
    for token, (start, end), inside in zip(mixed.tokens, mixed.offsets, body):
        assert not inside or mixed.text.text[start:end].strip() == token
    again, other = (
        head_outputs(minilm, [passages[1], passages[0]], shuffle=shuffle)[1] for shuffle in (4, 5)
    )
    assert torch.equal(again.token_ids, mixed.token_ids)  # whatever is read before it
    assert not torch.equal(other.token_ids, mixed.token_ids)


def test_separators_stay_in_their_places_in_shuffled_text(minilm, passages):
    plain, mixed = (
        head_outputs(minilm, passages[0], shuffle=shuffle, separators="between")
        for shuffle in (None, 4)
    )
    assert torch.equal(plain.is_sep, mixed.is_sep) and int(mixed.is_sep.sum()) > 2
