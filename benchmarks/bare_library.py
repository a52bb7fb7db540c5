"""libllama by itself, in a process of its own: one line of JSON in, one out.

``python -m benchmarks.bare_library MODEL THREADS``; then each line ``{"prompt": …, "n": …}`` is
tokenised, decoded and sampled greedily by llama.cpp's own sampler, and answered with the seconds to
each token (from before tokenising) and the tokens.
"""

from __future__ import annotations

import json
import sys
import time

from umaserve import llama


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    library = llama.load("auto")
    lib, ffi = library.lib, library.ffi
    model = llama.Model.open(library, path, n_gpu_layers=-1)
    context = llama.Context.open(
        model, n_ctx=4096, n_batch=2048, n_ubatch=512, n_seq_max=1, n_threads=threads,
        n_threads_batch=threads,
    )  # fmt: skip
    sampler = lib.llama_sampler_init_greedy()
    print("ready", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        context.seq_rm(-1, -1, -1)
        began = time.perf_counter()
        feed, seconds, tokens = model.tokenize(ask["prompt"]), [], []
        while len(tokens) < ask["n"]:
            array = ffi.new("llama_token[]", feed)
            status = lib.llama_decode(context.pointer, lib.llama_batch_get_one(array, len(feed)))
            if status != 0:
                raise RuntimeError(f"llama_decode: {status}")
            token = lib.llama_sampler_sample(sampler, context.pointer, -1)
            seconds.append(time.perf_counter() - began)
            tokens.append(token)
            feed = [token]
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
