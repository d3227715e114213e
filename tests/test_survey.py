"""The survey against slow, obvious code; what it keeps on disk, refuses and leaves out."""

import importlib
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr

from attnlib import Corpus, Text, head_outputs, survey, versions
from attnlib.capture import text_rng
from attnlib.corpus import as_text
from attnlib.models import untrained_copy
from attnlib.similarity import METRICS
from attnlib.survey import COLLOCATION_NPMI, DISTANCES, SEPARATORS, STATISTICS

survey_module = importlib.import_module("attnlib.survey")  # attnlib.survey is the function
measure = partial(survey, max_tokens=24, share=(0.05, 0.2), progress=False)

SHARE = (0.01, 0.05, 0.2)
HEADS = (0, 5, 11)  # those that the slow code goes through
SEED, MAX_TOKENS, MIN_COUNT = 3, 40, 2
SIZES = {
    "text": 10,
    "layer": 6,
    "head": len(HEADS),
    "metric": len(METRICS),
    "share": len(SHARE),
    "separator": len(SEPARATORS),
    "distance": len(DISTANCES),
}
CONDITIONS = {"model": None, "shuffled": SEED}


@pytest.fixture(scope="module")
def ten(passages):
    return Corpus("ten", passages.texts[:10])


@pytest.fixture(scope="module")
def eight(passages):
    return Corpus("eight", passages.texts[:8])


@pytest.fixture(scope="module")
def full(minilm, ten):
    """The survey that the slow code repeats; twice together makes a collocation in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "COLLOCATION_COUNT", MIN_COUNT)
        return survey(
            minilm,
            ten,
            max_tokens=MAX_TOKENS,
            batch_tokens=1,
            share=SHARE,
            controls=("shuffled",),
            seed=SEED,
            progress=False,
        )


@pytest.fixture(scope="module")
def whole(tiny, eight):
    """A small survey in memory, which those on disk have to equal."""
    return measure(tiny("bert"), eight)


def same_values(first, second, *, names=None):
    """Assert that two datasets hold the same numbers, n/a in the same places."""
    assert set(first.data_vars) == set(second.data_vars)
    for name in names or first.data_vars:
        assert first[name].dims == second[name].dims
        assert first[name].dtype == second[name].dtype
        np.testing.assert_array_equal(first[name].values, second[name].values, err_msg=name)


# --- every statistic against slow, obvious code -------------------------------------------------


def at(places, values):
    """The values at these places, as a list."""
    return [values[place] for place in places]


def bins(distances):
    """How many of the distances fall into each bin."""
    return at(DISTANCES, Counter(max(edge for edge in DISTANCES if edge <= d) for d in distances))


def slow_collocations(all_ids):
    """Pairs of token types that stand together often enough, and more often than by chance."""
    single, double = Counter(), Counter()
    for ids in all_ids:
        single.update(ids)
        double.update(itertools.pairwise(ids))
    n = sum(single.values())

    def npmi(first, second):
        together = double[first, second] / n
        apart = single[first] / n * (single[second] / n)
        return math.log(together / apart) / -math.log(together)

    return {pair for pair in double if double[pair] >= MIN_COUNT and npmi(*pair) > COLLOCATION_NPMI}


def slow_frame(out, shuffled, collocations):
    """What all heads of a text share, from its labelled tokens."""
    body = out.is_body.nonzero().flatten().tolist()
    n = len(body)
    ids, sentence = out.token_ids[body].tolist(), out.sentence[body].tolist()
    spans = at(body, out.offsets)
    pairs = list(itertools.combinations(range(n), 2))
    inside = {(i, j): sentence[i] == sentence[j] for i, j in pairs}
    chance = sum(inside.values()) / len(pairs)
    at_distance = defaultdict(list)
    for (i, j), same in inside.items():
        at_distance[j - i].append(same)
    adjacent = [j - i == 1 for i, j in pairs]
    whole = {found.span() for found in re.finditer(r"[^\W_]+", out.text.text)}
    words = [  # with white space between
        near
        and not shuffled
        and {spans[i], spans[j]} <= whole
        and out.text.text[spans[i][1] : spans[j][0]].isspace()
        for near, (i, j) in zip(adjacent, pairs, strict=True)
    ]
    return SimpleNamespace(
        n=n,
        body=body,
        ids=ids,
        pairs=pairs,
        sizes=[max(1, int(share * len(pairs) + 0.5)) for share in SHARE],
        inside=inside,
        chance=chance if out.is_sentence_end.any() and 0 < chance < 1 else math.nan,
        inside_at={d: sum(same) / len(same) for d, same in at_distance.items()},
        same_type=np.array([ids[i] == ids[j] for i, j in pairs]),
        adjacent=np.array(adjacent),
        words=np.array(words),
        together=np.array([(ids[i], ids[j]) in collocations for i, j in pairs]),
        kinds={
            "sep_token": out.is_sep.nonzero().flatten().tolist(),
            "sentence_end": out.is_sentence_end.nonzero().flatten().tolist(),
            "special": [k for k in range(len(out)) if k not in body and not out.is_sep[k]],
        },
        separators=(out.is_sep | out.is_sentence_end).numpy(),
    )


def slow_similarities(rows, mean):
    """S under each metric, in float32 too, so that near equals are in the same order."""
    centred = rows - mean.unsqueeze(-2)
    unit, centred = (x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12) for x in (rows, centred))
    return [(x @ x.mT).numpy() for x in (rows, unit, centred)]


def slow_auroc(values, positive):
    """How often a positive pair has the higher value, against each other pair in turn."""
    yes, no = values[positive], values[~positive]
    if not len(yes) or not len(no):
        return math.nan
    return float(((yes[:, None] > no) + 0.5 * (yes[:, None] == no)).mean())


def slow_aurocs(frame, S):
    values = np.array(at(frame.pairs, S))
    return {
        "repetition_auroc": slow_auroc(values, frame.same_type),
        "adjacent_auroc": slow_auroc(values, frame.adjacent),
        "collocation_auroc": slow_auroc(values[frame.words], frame.together[frame.words]),
    }


def slow_anchors(pairs, ids):
    """The anchor, its share of pair ends, the corrected anchor, its ratio to chance."""
    ends, tokens = Counter(ids[place] for pair in pairs for place in pair), Counter(ids)
    anchor = min(ends, key=lambda token: (-ends[token], token))
    ratio = {token: Fraction(ends[token], tokens[token]) for token in ends}
    corrected = min(ratio, key=lambda token: (-ratio[token], token))
    n_ends = 2 * len(pairs)
    return anchor, ends[anchor] / n_ends, corrected, ratio[corrected] * len(ids) / n_ends


def slow_high_pairs(frame, high):
    """The statistics of some pairs."""
    distances = [j - i for i, j in high]
    anchor, share, corrected, lift = slow_anchors(high, frame.ids)
    return {
        "relative_distance": np.mean(distances) / ((frame.n + 1) / 3),
        "distance_histogram": bins(distances),
        "same_sentence_lift": np.mean(at(high, frame.inside)) / frame.chance,
        "same_sentence_expected": np.mean(at(distances, frame.inside_at)) / frame.chance,
        "anchor": anchor,
        "anchor_share": share,
        "corrected_anchor": corrected,
        "corrected_anchor_lift": lift,
    }


def slow_paths(A, V, i, j, is_separator):
    """S_ij as a sum over what i and j read: all, through separators, through the same one."""
    terms = np.outer(A[i], A[j]) * (V @ V.T)
    either = is_separator[:, None] | is_separator
    return terms.sum(), terms[either].sum(), terms.diagonal()[is_separator].sum()


def slow_through_separators(frame, A, V, high):
    """What part of the summed S comes through separators, and through the same one."""
    paths = [slow_paths(A, V, *at(pair, frame.body), frame.separators) for pair in high]
    for size in frame.sizes:
        total, through, same = np.sum(paths[:size], axis=0)
        yield (through / total, same / total) if total > 0 else (math.nan, math.nan)


def slow_attention(A, V, queries, keys):
    """Mean attention of the queries to the keys, and weighted by the length of what is read."""
    if not keys:
        return math.nan, math.nan
    lengths, A = np.sqrt((V * V).sum(-1)).tolist(), A.tolist()
    plain, weighted = [], []
    for i in queries:
        products = [weight * length for weight, length in zip(A[i], lengths, strict=True)]
        plain.append(sum(at(keys, A[i])))
        weighted.append(sum(at(keys, products)) / sum(products))
    return sum(plain) / len(plain), sum(weighted) / len(weighted)


def slow_reading(frame, A, V, between):
    """Where the tokens look; ``between``: A, V, queries and keys with more separators."""
    found = {kind: slow_attention(A, V, frame.body, keys) for kind, keys in frame.kinds.items()}
    found["between"] = slow_attention(*between)
    neighbours = list(itertools.pairwise(frame.body))
    return {
        "separator_attention": [found[kind][0] for kind in SEPARATORS],
        "separator_weighted": [found[kind][1] for kind in SEPARATORS],
        "special_attention": found["special"][0],
        "special_weighted": found["special"][1],
        "attention_entropy": np.mean([-sum(a * np.log(a) for a in A[i] if a) for i in frame.body]),
        "attention_previous": np.mean([A[j, i] for i, j in neighbours]),
        "attention_next": np.mean([A[i, j] for i, j in neighbours]),
        "attention_self": np.mean([A[i, i] for i in frame.body]),
    }


def slow_survey(model, corpus, mean, shuffle):
    """Every statistic of some heads, text by text, and the ends of high pairs by token type."""
    read = partial(head_outputs, model, max_tokens=MAX_TOKENS, shuffle=shuffle)
    in_order = read(corpus, shuffle=None)
    collocations = slow_collocations([out.token_ids[out.is_body].tolist() for out in in_order])
    slow = {
        name: np.full([SIZES[dim] for dim in dims[1:]], math.nan)
        for name, (dims, _, _) in STATISTICS.items()
    }
    pair_ends = defaultdict(Counter)  # (layer, head, metric, share): ends by token type

    def keep(found, *place):
        for name, value in found.items():
            slow[name][place] = value

    for t, text in enumerate(corpus):
        out = read(text, what=("z", "attention", "v", "input"))
        more = read(text, what=("attention", "v"), separators="between")
        inserted, others = (x.nonzero().flatten().tolist() for x in (more.is_sep, more.is_body))
        frame = slow_frame(out, shuffle is not None, collocations)
        all_distances = bins(j - i for i, j in frame.pairs)
        n_keys = [len(keys) / len(out) for keys in frame.kinds.values()]
        separator_keys = [n_keys[0], n_keys[1] or math.nan, len(inserted) / len(more)]
        keep({"all_distances": all_distances, "separator_keys": separator_keys}, t)

        rng, n_heads = text_rng(text, SEED, "pairs"), model.n_layers * model.n_heads
        random = rng.integers(len(frame.pairs), size=(n_heads, frame.sizes[-1]))
        token = rng.integers(frame.n, size=n_heads)

        for layer in range(model.n_layers):
            x = out.input[layer, frame.body]
            for m, S in enumerate(slow_similarities(x, x.mean(0))):
                aurocs = slow_aurocs(frame, S).items()
                keep({f"input_{name}": value for name, value in aurocs}, t, layer, m)
            all_S = slow_similarities(out.z[layer][:, frame.body], mean[layer])
            for h, head in enumerate(HEADS):
                place = t, layer, h
                A, V, A_more, V_more = (
                    part[layer, head].double().numpy()
                    for part in (out.attention, out.v, more.attention, more.v)
                )
                keep(slow_reading(frame, A, V, (A_more, V_more, others, inserted)), *place)
                number = layer * model.n_heads + head
                keep({"token_by_chance": frame.ids[token[number]]}, *place)
                for s, size in enumerate(frame.sizes):
                    drawn = slow_anchors(at(random[number, :size], frame.pairs), frame.ids)
                    chance = {"anchor_by_chance": drawn[0], "corrected_anchor_by_chance": drawn[2]}
                    keep(chance, *place, s)
                for m, metric in enumerate(METRICS):
                    S = all_S[m][head]
                    keep(slow_aurocs(frame, S), *place, m)
                    mean_S = np.mean(at(frame.pairs, S), dtype=float)
                    keep({"mean_similarity": mean_S}, *place, m)
                    high = sorted(frame.pairs, key=lambda pair: -S[pair])[: frame.sizes[-1]]
                    for s, size in enumerate(frame.sizes):
                        keep(slow_high_pairs(frame, high[:size]), *place, m, s)
                        ends = (frame.ids[end] for pair in high[:size] for end in pair)
                        pair_ends[layer, h, m, s].update(ends)
                    if metric == "dot":
                        for s, parts in enumerate(slow_through_separators(frame, A, V, high)):
                            names = ("through_separators", "same_separator")
                            keep(dict(zip(names, parts, strict=True)), *place, s)
    return slow, pair_ends


@pytest.fixture(scope="module")
def slow(full, minilm, ten):
    """What the slow code finds, by condition."""
    return {
        # the survey's own mean, tested by itself: near equals would fall differently with another
        name: slow_survey(minilm, ten, torch.tensor(full.mean_z.sel(condition=name).values), seed)
        for name, seed in CONDITIONS.items()
    }


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_is_what_slow_code_finds(full, slow, name, condition):
    found = full[name].sel(condition=condition)
    if "head" in found.dims:
        found = found.isel(head=list(HEADS))
    assert found.dims == STATISTICS[name][0][1:]
    expected = slow[condition][0][name]
    assert np.isfinite(expected).any() == ("collocation" not in name or condition == "model")
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_pair_ends_are_what_slow_code_counts(full, slow, condition):
    found = full.pair_ends.sel(condition=condition).isel(head=list(HEADS))
    for place, ends in slow[condition][1].items():
        assert found[place].values.tolist() == at(full.token_type.values.tolist(), ends)


def test_every_high_pair_has_two_ends(full):
    sizes = [max(1, int(share * 38 * 37 / 2 + 0.5)) for share in SHARE]
    assert (full.n_tokens == 38).all()
    ends = full.pair_ends.sum("token_type").transpose(..., "share")
    assert (ends == [10 * 2 * size for size in sizes]).all()


def test_tokens_are_counted_and_named(full, minilm, ten):
    outs = head_outputs(minilm, ten, max_tokens=MAX_TOKENS)
    counts = Counter(token_id for out in outs for token_id in out.token_ids[out.is_body].tolist())
    assert full.token_type.values.tolist() == sorted(counts)
    assert full.token_count.values.tolist() == [counts[token_id] for token_id in sorted(counts)]
    the = minilm.tokenizer.convert_tokens_to_ids("the")
    assert full.token.sel(token_type=the) == "the"
    assert full.attrs["tokens_read"] == counts.total() == full.n_tokens.sum()
    assert full.attrs["tokens_cut"] == sum(out.n_cut for out in outs) == full.n_cut.sum()
    assert full.attrs["n_collocations"] == len(
        slow_collocations([out.token_ids[out.is_body].tolist() for out in outs])
    )
    assert full.n_sentences.values.tolist() == [
        len(set(out.sentence[out.is_body].tolist())) for out in outs
    ]
    assert full.source.values.tolist() == [text.source for text in ten]
    assert (full.attrs["texts_given"], full.attrs["texts_dropped"]) == (10, [])


@pytest.mark.parametrize("condition", CONDITIONS)
def test_mean_z_is_the_mean_over_all_tokens(full, minilm, ten, condition):
    outs = head_outputs(minilm, ten, max_tokens=MAX_TOKENS, shuffle=CONDITIONS[condition])
    z = torch.cat([out.z[:, :, out.is_body] for out in outs], dim=2).double()
    np.testing.assert_allclose(
        full.mean_z.sel(condition=condition), z.mean(2).numpy(), rtol=0, atol=1e-6
    )


def test_axes_are_labelled_as_people_count(full):
    assert full.layer.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert full["head"].values.tolist() == list(range(1, 13))
    assert full.condition.values.tolist() == list(CONDITIONS)
    assert full.metric.values.tolist() == list(METRICS)
    assert full.share.values.tolist() == list(SHARE)
    assert full.distance.values.tolist() == list(DISTANCES)
    assert full.text.values.tolist() == list(range(10))


# --- controls -----------------------------------------------------------------------------------


def test_the_untrained_control_is_the_survey_of_an_untrained_copy(tiny, eight):
    both = measure(tiny("bert"), eight, controls=("untrained",), seed=5)
    alone = measure(untrained_copy(tiny("bert"), 5), eight, seed=5)
    assert both.condition.values.tolist() == ["model", "untrained"]
    same_values(both.sel(condition="untrained"), alone.sel(condition="model"))
    assert not np.allclose(both.mean_z[0], both.mean_z[1])


def test_controls_leave_the_model_itself_as_it_is(tiny, eight, whole):
    both = measure(tiny("bert"), eight, controls=("shuffled", "untrained"))
    assert both.condition.values.tolist() == ["model", "untrained", "shuffled"]
    same_values(both.sel(condition="model"), whole.sel(condition="model"))


def test_shuffled_texts_hold_the_same_tokens(tiny, eight):
    data = measure(tiny("bert"), eight, share=(0.05, 1.0), controls=("shuffled",))
    ends = data.pair_ends.transpose("condition", "share", ...).values
    assert (ends[0, 1] == ends[1, 1]).all()  # with every pair taken, order plays no part
    assert (ends[0, 0] != ends[1, 0]).any()
    shuffled = data.sel(condition="shuffled")
    assert shuffled.collocation_auroc.isnull().all()
    assert shuffled.input_collocation_auroc.isnull().all()
    assert not np.allclose(shuffled.adjacent_auroc, data.adjacent_auroc.sel(condition="model"))


def test_the_seed_changes_only_what_is_random(tiny, eight, whole):
    other = measure(tiny("bert"), eight, seed=1)
    random = {"anchor_by_chance", "corrected_anchor_by_chance", "token_by_chance"}
    same_values(whole, other, names=set(whole.data_vars) - random)
    for name in random:
        assert (whole[name] != other[name]).any()


# --- the same again -----------------------------------------------------------------------------


def test_the_same_survey_twice_is_identical(tiny, eight, whole):
    xr.testing.assert_identical(whole, measure(tiny("bert"), eight))


@pytest.mark.parametrize("family", ["bert", "mpnet", "roberta"])
def test_batches_and_the_order_of_texts_change_nothing(tiny, passages, family):
    texts = [as_text(p.text[: 60 + 8 * n], p.source) for n, p in enumerate(passages.texts[:6])]
    options = dict(max_tokens=64, share=(0.05,))
    data = measure(tiny(family), Corpus("there", tuple(texts)), **options)
    assert len(np.unique(data.n_tokens)) > 3  # so that there is padding
    small = measure(tiny(family), Corpus("there", tuple(texts)), batch_tokens=64, **options)
    back = measure(tiny(family), Corpus("back", tuple(reversed(texts))), **options)
    assert back.source.values.tolist() == data.source.values.tolist()[::-1]
    for other in (small, back.isel(text=slice(None, None, -1))):
        for name, variable in data.data_vars.items():
            found, expected = other[name].values, variable.values
            if np.issubdtype(expected.dtype, np.integer):
                assert (found == expected).all(), name
                continue
            # rounding can change the order of two near equals: one step of an AUROC
            atol = 1e-3 if name.endswith("auroc") else 1e-5
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)
            assert np.mean(abs(found - expected) > 1e-5) < 0.01, name


@pytest.fixture
def threads():
    """Sets the number of threads, and gives them back as they were."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_number_of_threads_changes_nothing_and_stays(tiny, eight, whole, threads, n_threads):
    threads(n_threads)
    again = measure(tiny("bert"), eight)
    assert torch.get_num_threads() == n_threads
    for name, variable in whole.data_vars.items():
        np.testing.assert_allclose(again[name], variable, rtol=0, atol=1e-5, err_msg=name)


def test_an_error_in_a_thread_comes_out_and_the_threads_stay(tiny, eight, threads, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("in the middle of a text")

    threads(2)
    monkeypatch.setattr(survey_module, "_measured", broken)
    with pytest.raises(RuntimeError, match="in the middle of a text"):
        measure(tiny("bert"), eight)
    assert torch.get_num_threads() == 2


# --- on disk ------------------------------------------------------------------------------------


def no_measuring(monkeypatch):
    """From here on surveys can only be read."""

    def refuse(*arguments):
        raise AssertionError("measured again")

    monkeypatch.setattr(survey_module, "_scan", refuse)
    monkeypatch.setattr(survey_module, "_shard", refuse)


@pytest.mark.filterwarnings("error")
def test_a_survey_on_disk_is_the_one_in_memory(tiny, eight, whole, tmp_path, monkeypatch):
    """Written in three pieces; the second call reads it, with a string for the path."""
    monkeypatch.setattr(survey_module, "SHARD_TEXTS", 3)
    out = tmp_path / "new" / "kept.zarr"
    written = measure(tiny("bert"), eight, out=out)
    no_measuring(monkeypatch)
    for data in (written, measure(tiny("bert"), eight, out=str(out))):
        same_values(whole, data)
        xr.testing.assert_allclose(whole, data)
        assert data.attrs == whole.attrs
        for name, variable in whole.variables.items():
            assert data[name].attrs == variable.attrs
    assert list(out.parent.iterdir()) == [out]


def test_a_folder_keeps_surveys_with_other_settings_apart(tiny, eight, tmp_path, monkeypatch):
    shares = ((0.05,), (0.2,))
    call = partial(measure, tiny("bert"), eight, metrics=["dot"], out=tmp_path / "new" / "folder")
    for share in shares:
        call(share=share)
    no_measuring(monkeypatch)
    for share in shares:
        assert call(share=share).share.values.tolist() == list(share)
    names = [path.name for path in (tmp_path / "new" / "folder").iterdir()]
    assert len(names) == 2 and all(re.fullmatch(r"survey-\w+\.zarr", name) for name in names)


def test_provenance_names_all_that_the_numbers_depend_on(tiny, eight, whole):
    provenance = json.loads(whole.attrs["provenance"])
    model = tiny("bert")
    assert re.fullmatch("[0-9a-f]{64}", provenance["model"]["sha256"])
    assert provenance["model"] == model.provenance | {"n_layers": 3, "n_heads": 4, "d_head": 6}
    assert provenance["corpus"] == eight.provenance
    assert provenance["versions"] == versions()
    assert provenance["settings"] == {
        "max_tokens": 24,
        "share": [0.05, 0.2],
        "metrics": list(METRICS),
        "controls": [],
        "seed": 0,
    }
    assert whole.attrs["complete"]


def test_a_store_of_something_else_is_refused(tiny, eight, passages, tmp_path):
    out = tmp_path / "kept.zarr"
    call = partial(measure, metrics=["dot"], out=out)
    call(tiny("bert"), eight)
    with pytest.raises(ValueError, match="holds a survey with another settings: give another out="):
        call(tiny("bert"), eight, seed=1)
    with pytest.raises(
        ValueError, match=re.escape(f"out='{out}' holds a survey with another corp")
    ):
        call(tiny("bert"), Corpus("nine", passages.texts[:9]))
    with pytest.raises(ValueError, match="another model, settings:"):
        call(tiny("electra"), eight, max_tokens=20)
    assert call(tiny("bert"), eight).attrs["complete"]


@pytest.mark.parametrize("place", ["file", "file/kept.zarr"])
def test_an_unwritable_place_is_refused_before_anything_is_measured(tiny, eight, tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot be written \(.+\): give a place where you may"):
        measure(tiny("bert"), eight, out=tmp_path / place)


@pytest.mark.parametrize("kind", ["file", "empty folder", "another dataset"])
def test_a_path_that_holds_no_survey_is_refused(tiny, eight, tmp_path, kind):
    out = tmp_path / "other.zarr"
    if kind == "file":
        out.write_text("notes")
    elif kind == "empty folder":
        out.mkdir()
    else:
        xr.Dataset({"x": ("y", [1.0])}).to_zarr(out, zarr_format=2)
    with pytest.raises(ValueError, match=re.escape(f"out='{out}'")):
        measure(tiny("bert"), eight, out=out)


# --- interruption -------------------------------------------------------------------------------


def interrupt(monkeypatch, after, by=KeyboardInterrupt):
    """Ctrl-C, or an error, once so many shards of three texts are done."""
    monkeypatch.setattr(survey_module, "SHARD_TEXTS", 3)
    real, calls = survey_module._shard, itertools.count()

    def shard(*arguments):
        if next(calls) == after:
            raise by
        return real(*arguments)

    monkeypatch.setattr(survey_module, "_shard", shard)
    return calls


def test_an_interrupted_survey_keeps_what_is_done_and_goes_on(
    tiny, eight, whole, tmp_path, monkeypatch
):
    """Interrupted twice, after one shard each, then finished."""
    out = tmp_path / "kept.zarr"
    for n_texts in (3, 6):
        with monkeypatch.context() as patch:
            interrupt(patch, after=1)
            message = f"{n_texts} of 8 texts are done and kept in {out}: the same call"
            with pytest.raises(KeyboardInterrupt, match=re.escape(message)):
                measure(tiny("bert"), eight, out=out)
        with xr.open_zarr(out, chunks=None) as kept:
            kept.load()
        done = whole.isel(text=slice(n_texts))
        assert kept.attrs == whole.attrs | {
            "complete": False,
            "tokens_read": int(done.n_tokens.sum()),
            "tokens_cut": int(done.n_cut.sum()),
            "note": "token_count and mean_z are those of the whole corpus",
        }
        assert kept.source.values.tolist() == whole.source.values.tolist()[:n_texts]
        same_values(whole.isel(text=slice(n_texts)), kept, names=STATISTICS)

    six = measure(tiny("bert"), Corpus("six", eight.texts[:6])).pair_ends
    uncentred = {"metric": ["dot", "cosine"]}  # the mean is over all eight texts
    ends = kept.pair_ends.sel(uncentred)
    assert (ends.sel(token_type=six.token_type) == six.sel(uncentred)).all()
    assert ends.sum() == six.sel(uncentred).sum()

    with pytest.raises(ValueError, match=r"another settings: .* delete that one \(and kept\.parts"):
        measure(tiny("bert"), eight, seed=1, out=out)

    calls = interrupt(monkeypatch, after=1)
    data = measure(tiny("bert"), eight, out=out)
    assert next(calls) == 1  # one shard was missing
    same_values(whole, data)
    assert data.attrs == whole.attrs
    assert list(tmp_path.iterdir()) == [out]


def test_a_survey_that_an_error_ended_goes_on_too(tiny, eight, tmp_path, monkeypatch):
    """As after a loss of power: nobody has put the pieces together."""
    call = partial(measure, tiny("bert"), Corpus("four", eight.texts[:4]), metrics=["dot"])
    expected = call()
    call = partial(call, out=tmp_path / "kept.zarr")
    with monkeypatch.context() as patch:
        interrupt(patch, after=1, by=MemoryError)
        with pytest.raises(MemoryError):
            call()
    with pytest.raises(ValueError, match="holds a survey with another settings"):
        call(seed=1)
    calls = interrupt(monkeypatch, after=1)
    same_values(expected, call())
    assert next(calls) == 1


def test_a_survey_interrupted_at_once_says_that_nothing_is_kept(
    tiny, eight, whole, tmp_path, monkeypatch
):
    out = tmp_path / "kept.zarr"
    with monkeypatch.context() as patch:
        interrupt(patch, after=0)
        with pytest.raises(KeyboardInterrupt, match="before 3 texts were done: nothing is kept"):
            measure(tiny("bert"), eight, out=out)
    assert not out.exists()
    same_values(whole, measure(tiny("bert"), eight, out=out))


def test_a_survey_interrupted_in_memory_says_how_to_keep_it(tiny, eight, monkeypatch):
    interrupt(monkeypatch, after=1)
    with pytest.raises(KeyboardInterrupt, match=r"nothing is kept: with out='NAME\.zarr'"):
        measure(tiny("bert"), eight)


# --- odd texts, models and settings -------------------------------------------------------------


def corpus_of(*texts):
    return Corpus("odd", tuple(as_text(text, f"text {n}") for n, text in enumerate(texts)))


def test_a_corpus_without_pairs_is_refused(tiny):
    with pytest.raises(
        ValueError, match="corpus='odd': none of its 2 texts has two tokens within max_tokens="
    ):
        measure(tiny("bert"), corpus_of("a", "b"))


@pytest.mark.parametrize("metrics", [METRICS, ("dot",)])
def test_a_text_of_one_token_is_dropped(tiny, metrics):
    texts = "Rain fell. It fell all day.", "Nobody came."
    with pytest.warns(UserWarning, match=r"1 of 3 texts .* fewer than two tokens .*: text 1\."):
        data = measure(tiny("bert"), corpus_of(texts[0], "a", texts[1]), metrics=metrics)
    assert data.attrs["texts_dropped"] == ["text 1"]
    assert data.attrs["texts_given"] == 3
    assert data.text.values.tolist() == [0, 2]
    assert data.source.values.tolist() == ["text 0", "text 2"]
    same_values(data, measure(tiny("bert"), corpus_of(*texts), metrics=metrics))


def test_two_tokens_are_enough(tiny):
    data = measure(tiny("bert"), corpus_of("ab"))
    assert data.n_tokens == 2
    assert (data.relative_distance == 1).all()
    assert (data.anchor_share == 0.5).all()
    assert data[["repetition_auroc", "adjacent_auroc", "collocation_auroc"]].isnull().all()
    assert data.all_distances.sum() == 1


def test_without_punctuation_sentences_are_not_available(tiny):
    lines = "rain fell on the hills and the river rose"
    text = Text(lines, ((0, 22), (23, 41)), "two lines without a full stop")
    data = measure(tiny("bert"), Corpus("odd", (text,)))
    assert data.n_sentences == 2
    assert data.same_sentence_lift.isnull().all()
    assert data.same_sentence_expected.isnull().all()
    ends = dict(separator="sentence_end")
    for name in ("separator_attention", "separator_weighted", "separator_keys"):
        assert data[name].sel(ends).isnull().all()
        assert data[name].sel(separator=["sep_token", "between"]).notnull().all()


def test_a_text_of_one_sentence_has_no_lift(tiny):
    data = measure(tiny("bert"), corpus_of("Rain fell on the hills."))
    assert data.same_sentence_lift.isnull().all()
    assert data.same_sentence_expected.isnull().all()
    assert data.separator_attention.notnull().all()


def test_one_word_again_and_again(minilm):
    data = measure(minilm, corpus_of("ho " * 12))
    assert data.n_tokens == 12 and data.sizes["token_type"] == 1
    ho = data.token_type.item()
    for name in ("anchor", "corrected_anchor", "anchor_by_chance", "token_by_chance"):
        assert (data[name] == ho).all()
    assert (data.anchor_share == 1).all() and (data.corrected_anchor_lift == 1).all()
    missing = {  # no other word, no words that belong together, no full stop
        *("repetition_auroc", "input_repetition_auroc"),
        *("collocation_auroc", "input_collocation_auroc"),
        *("same_sentence_lift", "same_sentence_expected"),
    }
    for name, variable in data.drop_sel(separator="sentence_end").data_vars.items():
        if name in missing:
            assert variable.isnull().all(), name
        elif name in ("through_separators", "same_separator"):
            # n/a only where the two tokens are unlike, and share nothing
            assert np.isfinite(variable).any() and not np.isinf(variable).any()
        else:
            assert np.isfinite(variable).all(), name


def test_a_model_without_a_separator_token(tiny, eight):
    data = measure(tiny("gpt2"), eight)
    for name in ("separator_attention", "separator_weighted", "separator_keys"):
        assert data[name].sel(separator=["sep_token", "between"]).isnull().all()
        assert data[name].sel(separator="sentence_end").notnull().any()
    assert data.special_attention.isnull().all() and data.special_weighted.isnull().all()
    assert (data.attention_next == 0).all()  # it reads backwards only
    assert data.through_separators.notnull().any()


def test_words_are_told_apart_by_any_tokenizer(tiny, monkeypatch):
    """Byte-level tokenizers count the space before a word as part of it."""
    monkeypatch.setattr(survey_module, "COLLOCATION_COUNT", 2)
    corpus = corpus_of("in the b a d b c in the c b d a c in the d c")
    data = measure(tiny("roberta"), corpus, max_tokens=64)
    assert data.attrs["n_collocations"] > 0
    assert data.collocation_auroc.notnull().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metrics": ["euclid"]},
            "metrics=['euclid']: choose among dot, cosine, centred, each at most once.",
        ),
        ({"metrics": []}, "metrics=[]: choose among dot, cosine, centred"),
        ({"metrics": ["dot", "dot"]}, "metrics=['dot', 'dot']: choose among"),
        (
            {"controls": ["random"]},
            "controls=['random']: choose among untrained, shuffled, each at most once.",
        ),
        ({"controls": ["shuffled"] * 2}, "controls=['shuffled', 'shuffled']: choose among"),
        ({"share": (0.0, 0.1)}, "share=0.0 must be above 0 and at most 1"),
        ({"share": (0.1, 1.5)}, "share=1.5 must be above 0 and at most 1"),
        ({"share": (math.nan,)}, "share=nan must be above 0 and at most 1"),
        ({"share": (0.2, 0.1)}, "share=[0.2, 0.1]: give at least one, in rising order, each once."),
        ({"share": (0.1, 0.1)}, "share=[0.1, 0.1]: give at least one, in rising order, each once."),
        ({"share": ()}, "share=[]: give at least one"),
        ({"max_tokens": 2}, "two tokens within max_tokens=2, so there are no pairs"),
    ],
)
def test_impossible_settings_are_refused(tiny, eight, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        measure(tiny("bert"), eight, **settings)


def test_a_refused_call_leaves_nothing_behind(tiny, eight, tmp_path):
    """So that the corrected call can use the same place."""
    out = tmp_path / "kept.zarr"
    with pytest.raises(ValueError, match="max_tokens=2"):
        measure(tiny("bert"), eight, max_tokens=2, out=out)
    assert measure(tiny("bert"), eight, metrics=["dot"], out=out).attrs["complete"]


def test_one_share_metric_or_control_can_be_given_alone(tiny, eight):
    alone = measure(tiny("bert"), eight, share=0.05, metrics="cosine", controls="shuffled")
    listed = measure(tiny("bert"), eight, share=[0.05], metrics=["cosine"], controls=["shuffled"])
    xr.testing.assert_identical(alone, listed)


def test_texts_are_cut_to_what_the_model_can_take(tiny, eight):
    data = measure(tiny("bert"), eight, max_tokens=10_000, metrics=["dot"])
    assert data.n_tokens.max() == 62
    xr.testing.assert_identical(data, measure(tiny("bert"), eight, max_tokens=64, metrics=["dot"]))


def test_progress_is_shown_if_asked_for(tiny, eight, capsys):
    measure(tiny("bert"), eight, metrics=["dot"])
    assert "survey" not in capsys.readouterr().err
    measure(tiny("bert"), eight, metrics=["dot"], progress=True)
    shown = capsys.readouterr().err
    assert "survey: first look, model" in shown and "survey: model" in shown and "text/s" in shown


# --- labels, and fewer metrics ------------------------------------------------------------------


def test_every_variable_has_a_unit_a_definition_and_labelled_axes(full):
    for name, variable in full.data_vars.items():
        assert variable.attrs["units"] and variable.attrs["long_name"], name
        assert set(variable.dims) - {"d_head"} <= set(full.coords), name
    assert set(full.data_vars) == {*STATISTICS, "pair_ends", "token_count", "mean_z"}


def test_one_metric_alone_is_that_part_of_all_three(tiny, eight, whole):
    data = measure(tiny("bert"), eight, metrics=("cosine",))
    assert set(whole.data_vars) - set(data.data_vars) == {"mean_z"}
    assert data.through_separators.isnull().all() and data.same_separator.isnull().all()
    part = whole.sel(metric=["cosine"]).drop_vars(["mean_z"])
    rest = set(data.data_vars) - {"through_separators", "same_separator"}
    same_values(part, data, names=rest)
    assert data.metric.values.tolist() == ["cosine"]
