"""What capturing and surveying cost, as ratios in one run (``make bench``).

Capturing is held against the plain forward pass of the same batch; a survey against the forward pass of the same texts,
and against the loop that a person would write.
"""

import argparse
import resource
import statistics
import sys
import time
from collections import Counter

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from attnlib import capture, load_corpus, load_model, survey
from attnlib.models import submodule
from attnlib.survey import DISTANCES

BATCH, TOKENS = 16, 256
REPEATS, WARM_UP, CALLS = 5, 1, 6


def seconds(function, device: torch.device) -> float:
    """Wall-clock time of one call, the device's queue emptied before and after."""
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type)
    if wait:
        wait()
    start = time.perf_counter()
    function()
    if wait:
        wait()
    return time.perf_counter() - start


def side_by_side(variants: dict, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each variant, the mean of a few calls taken in turn: a slow moment of the machine hits all."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(WARM_UP + REPEATS):
        sums = dict.fromkeys(variants, 0.0)
        for call in range(CALLS):
            first = call % len(variants)  # each has each place in the row
            for name in [*variants][first:] + [*variants][:first]:
                sums[name] += seconds(variants[name], device)
        if repeat >= WARM_UP:
            for name, total in sums.items():
                times[name].append(total / CALLS)
    return times


def by_hand(model, texts, shares=(0.001, 0.01, 0.05)) -> list[dict]:
    """The loop a person would write: text by text, ``output_attentions``, numpy, one head after the other.

    Everything that ``survey`` measures in one condition, but for the pass with separators between sentences.
    """
    net, tokenizer = model.net, model.tokenizer
    kept = {}
    handles = [
        submodule(net, model.family.output, layer).register_forward_pre_hook(
            lambda module, args, layer=layer: kept.__setitem__(layer, args[0])
        )
        for layer in range(model.n_layers)
    ]
    net.set_attn_implementation("eager")

    def run(text: str):
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=TOKENS)
        with torch.inference_mode():
            output = net(
                **encoded.to(net.device), output_attentions=True, output_hidden_states=True
            )
            projected = [
                submodule(net, model.family.value, layer)(output.hidden_states[layer])[0]
                for layer in range(model.n_layers)
            ]
        split = [
            kept[layer][0].unflatten(-1, (model.n_heads, -1)) for layer in range(model.n_layers)
        ]
        z = np.stack([each.transpose(0, 1).float().cpu().numpy() for each in split])
        attention = np.stack([each[0].float().cpu().numpy() for each in output.attentions])
        inputs = [each[0].float().cpu().numpy() for each in output.hidden_states[:-1]]
        values = np.stack(
            [
                each.unflatten(-1, (model.n_heads, -1))
                .transpose(0, 1)
                .detach()
                .float()
                .cpu()
                .numpy()
                for each in projected
            ]
        )
        return encoded["input_ids"][0].cpu().numpy(), z, attention, inputs, values

    mean = np.mean([run(text.text)[1][:, :, 1:-1].mean(2) for text in texts], axis=0)

    def measure(text) -> list[dict]:
        found = []
        ids, z, attention, inputs, values = run(text.text)
        body, z = ids[1:-1], z[:, :, 1:-1]
        n = len(body)
        spans = tokenizer(text.text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        spans = spans[1 : n + 1]
        ends = np.array([end for _, end in text.sentences])
        sentence = np.searchsorted(ends, [end for _, end in spans])
        stops = np.isin(ids, tokenizer.convert_tokens_to_ids([".", "!", "?"]))
        i, j = np.triu_indices(n, 1)
        repeated, adjacent, inside = body[i] == body[j], j - i == 1, sentence[i] == sentence[j]
        expected = np.array([inside[j - i == d].mean() if d else 1 for d in range(n)])

        def of_matrix(S, spread: bool) -> dict:
            values = S[i, j]
            row = {
                "repetition": roc_auc_score(repeated, values),
                "adjacent": roc_auc_score(adjacent, values),
            }
            order = np.argsort(-values, kind="stable")
            for share in shares if spread else ():
                top = order[: max(1, round(share * len(values)))]
                distance = j[top] - i[top]
                ends_of_pairs = Counter(body[i[top]].tolist() + body[j[top]].tolist())
                row[share] = (
                    distance.mean() / ((n + 1) / 3),
                    np.histogram(distance, bins=[*DISTANCES, 10**6])[0],
                    inside[top].mean() / inside.mean(),
                    expected[distance].mean() / inside.mean(),
                    ends_of_pairs.most_common(1)[0],
                    max(ends_of_pairs, key=lambda t, e=ends_of_pairs: e[t] / (body == t).sum()),
                )
            return row

        def three(vectors, centre) -> list:
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            moved = vectors - centre
            moved = moved / np.linalg.norm(moved, axis=1, keepdims=True)
            return [vectors @ vectors.T, unit @ unit.T, moved @ moved.T]

        for layer in range(model.n_layers):
            x = inputs[layer][1:-1]
            found.append([of_matrix(S, False) for S in three(x, x.mean(0))])
            for head in range(model.n_heads):
                A = attention[layer, head, 1:-1]
                V = values[layer, head]
                weighted = A * np.linalg.norm(V, axis=1)
                other = np.where(stops, 0, A) @ V
                found.append(
                    {
                        "pairs": [
                            of_matrix(S, True) for S in three(z[layer, head], mean[layer, head])
                        ],
                        "stops": (
                            A[:, stops].sum(1).mean(),
                            weighted[:, stops].sum() / weighted.sum(),
                        ),
                        "end": (A[:, -1].mean(), A[:, 0].mean()),
                        "entropy": -(A * np.log(np.clip(A, 1e-30, None))).sum(1).mean(),
                        "near": [A[:, 1:-1].diagonal(k).mean() for k in (-1, 0, 1)],
                        "through": 1
                        - (other @ other.T)[i, j].sum()
                        / (z[layer, head] @ z[layer, head].T)[i, j].sum(),
                    }
                )
        return found

    found = [row for text in texts for row in measure(text)]
    for handle in handles:
        handle.remove()
    net.set_attn_implementation("sdpa" if net._supports_sdpa else "eager")
    return found


def surveyed(model, n_texts: int = 8, repeats: int = 3) -> None:
    """The full survey of one condition, the plain forward of the same texts, and the loop by hand, taken in turn."""
    corpus = load_corpus("lee", limit=n_texts)
    encoded = [
        model.tokenizer(text.text, return_tensors="pt", truncation=True, max_length=TOKENS).to(
            model.device
        )
        for text in corpus
    ]

    def plain():
        with torch.inference_mode():
            for each in encoded:
                model.net(**each)

    variants = {
        "plain forward": plain,
        "survey": lambda: survey(model, corpus, max_tokens=TOKENS, progress=False),
        "loop by hand": lambda: by_hand(model, corpus),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(1 + repeats):  # the first round warms up
        for name, run in variants.items():
            times[name].append(seconds(run, model.device))
    medians = {name: statistics.median(measured[1:]) for name, measured in times.items()}
    print(
        f"\nsurvey of {n_texts} texts, {TOKENS} tokens, 3 metrics, 3 shares, attention; median of {repeats}"
    )
    for name, median in medians.items():
        print(
            f"{name:28} {median:7.2f} s   {median / medians['plain forward']:6.2f} x plain forward   "
            f"{median / medians['survey']:6.2f} x survey"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    model = load_model(options.model, device=options.device, dtype=options.dtype)
    words = " ".join(text.text for text in load_corpus("lee", limit=100))
    token_ids = torch.tensor(
        model.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
    )
    inputs = {"input_ids": token_ids[: BATCH * TOKENS].reshape(BATCH, TOKENS).to(model.device)}

    def plain():
        with torch.inference_mode():
            model.net(**inputs)

    def captured(*what, stacked=False):
        def run():
            with torch.inference_mode(), capture(model, what=what) as found:
                model.net(**inputs)
            return [getattr(found, quantity) for quantity in what] if stacked else found

        return run

    print(
        f"{model.name} on {model.device.type}, {model.net.dtype}, {BATCH} x {TOKENS} tokens, median of {REPEATS}"
    )
    light = {"z captured": captured("z"), "z captured and stacked": captured("z", stacked=True)}
    heavy = {"z, attention and v captured": captured("z", "attention", "v")}
    for variants in (
        light,
        heavy,
    ):  # apart, as the second leaves the machine's memory in another state
        times = side_by_side({"plain forward": plain, **variants}, model.device)
        for name, measured in times.items():
            median = statistics.median(measured)
            ratio = statistics.median(
                own / base for own, base in zip(measured, times["plain forward"])
            )
            print(
                f"{name:28} {median * 1000:7.0f} ms {BATCH * TOKENS / median:8.0f} tokens/s   ratio {ratio:.3f}"
            )
    surveyed(model)
    if model.device.type == "cuda":
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    unit = (
        2**20 if sys.platform == "darwin" else 2**10
    )  # ru_maxrss is in bytes there, in KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(f"peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
