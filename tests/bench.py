"""What capturing costs: the ratio to the plain forward pass of the same batch, in one run (``make bench``)."""

import argparse
import resource
import statistics
import sys
import time

import torch

from attnlib import capture, load_corpus, load_model

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
    if model.device.type == "cuda":
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    unit = (
        2**20 if sys.platform == "darwin" else 2**10
    )  # ru_maxrss is in bytes there, in KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(f"peak memory of the process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
