"""Make the bundled demonstration model, ``umaserve/assets/uma-demo.gguf``, from scratch.

The stages are ``corpus``, ``train``, ``export`` and ``check``; README.md describes them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import sys
from pathlib import Path

from demo_model import corpus, snippets

ASSETS = Path(__file__).resolve().parent.parent / "umaserve" / "assets"
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
)  # fmt: skip
PART_BYTES = 12_000_000


def fill_in_the_middle(texts: list[str], rng: random.Random) -> list[str]:
    """Pieces of source rearranged as prefix, suffix, middle, so that the model can fill a gap."""
    out = []
    for text in texts:
        for at in range(0, len(text) - 400, 2500):
            piece = text[at : at + rng.randint(400, 2500)]
            a, b = sorted(rng.sample(range(len(piece)), 2))
            b = min(b, a + 400)
            out.append(
                f"<|fim_prefix|>{piece[:a]}<|fim_suffix|>{piece[b:]}<|fim_middle|>{piece[a:b]}"
            )
    return out


def make_corpus(args: argparse.Namespace) -> None:
    """Gather the text, train the tokenizer, write the token streams and ``corpus.json``.

    Long: one list of all sources of text.
    """
    import numpy as np
    import tokenizers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    work: Path = args.work
    work.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    files = corpus.source_files()
    code, digest = corpus.read_sources(files)
    print(f"{len(files)} source files, {sum(map(len, code)):,} characters", flush=True)
    chats, names = corpus.conversations(rng)
    print(f"{len(chats):,} conversations about {names:,} documented names", flush=True)
    modules = list(snippets.modules(rng, 24000))
    fim = fill_in_the_middle(code + modules[:600], rng)

    prose = corpus.prose()

    tokenizer = Tokenizer(models.BPE())
    # The two steps of llama.cpp's pre-tokenizer "starcoder": single digits, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    print("training the tokenizer", flush=True)
    tokenizer.train_from_iterator(code + prose + chats[::6] + modules[::32], trainer)
    tokenizer.save(str(work / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    counts = {}
    rng.shuffle(code)
    for name, texts in {
        "code": code,
        "snippets": modules,
        "chat": chats,
        "fim": fim,
        "prose": prose,
    }.items():
        ids: list[int] = []
        for encoded in tokenizer.encode_batch_fast(texts):
            ids.extend(encoded.ids)
            ids.append(end)
        np.asarray(ids, dtype=np.uint16).tofile(work / f"{name}.bin")
        counts[name] = {
            "characters": sum(map(len, texts)),
            "tokens": len(ids),
            "documents": len(texts),
        }
        print(f"{name}: {len(ids):,} tokens", flush=True)
    record = {
        "source": f"CPython {platform.python_version()} standard library",
        "source_files": len(files),
        "source_sha256": digest,
        "documented_names": names,
        "text": counts,
        "seed": args.seed,
        "vocabulary": tokenizer.get_vocab_size(),
        "special_tokens": {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS},
        "tokenizers": tokenizers.__version__,
    }
    (work / "corpus.json").write_text(json.dumps(record, indent=2) + "\n")


def save_parts(tensors: dict, folder: Path) -> int:
    """Write float16 arrays into ``weights-N.npz``, none much over PART_BYTES; returns how many."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("weights-*.npz"):
        old.unlink()
    parts: list[dict] = [{}]
    size = 0
    for name, array in tensors.items():
        if parts[-1] and size + array.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = array
        size += array.nbytes
    for index, part in enumerate(parts):
        np.savez(folder / f"weights-{index}.npz", **part)
    return len(parts)


def run_train(args: argparse.Namespace) -> None:
    """Train; write the weights and ``train.json`` to ``--out``."""
    from dataclasses import replace

    import numpy as np
    import torch

    from demo_model import net

    made = json.loads((args.work / "corpus.json").read_text())
    shape = replace(net.SHAPES[args.shape], n_vocab=made["vocabulary"])
    plan = replace(
        net.Plan(),
        steps=args.steps,
        batch_tokens=args.batch_tokens,
        learning_rate=args.learning_rate,
        optimizer=args.optimizer,
        seed=args.seed,
        warmup=min(net.Plan.warmup, max(1, args.steps // 10)),
    )
    if args.phases:
        phases = tuple(
            (int(n), float(p)) for n, p in (item.split(":") for item in args.phases.split(","))
        )
        plan = replace(plan, phases=phases)
    elif args.shape == "tiny":
        plan = replace(plan, phases=((256, 0.8), (512, 0.2)))
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    trained, record = net.train(
        args.work, shape, plan, max_minutes=args.max_minutes, device_name=device
    )
    named = trained.named_parameters()
    tensors = {name: p.detach().numpy().astype(np.float16) for name, p in named}
    parts = save_parts(tensors, args.out)
    (args.out / "train.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {parts} parts and train.json to {args.out}", flush=True)


def run_export(args: argparse.Namespace) -> None:
    """Write the GGUF and its record."""
    from demo_model.export import export

    export(args.work, args.weights, args.out)
    record = args.out.with_suffix(".json")
    print(f"wrote {args.out} ({args.out.stat().st_size:,} bytes) and {record.name}")


def run_check(args: argparse.Namespace) -> None:
    """Compare a GGUF with its record."""
    record_path = args.model.with_suffix(".json")
    if not args.model.is_file() or not record_path.is_file():
        raise SystemExit(
            f"{args.model} and {record_path.name} must both be there; run the export stage"
        )
    record = json.loads(record_path.read_text())
    digest = hashlib.sha256(args.model.read_bytes()).hexdigest()
    if digest != record["sha256"]:
        raise SystemExit(f"{args.model} has SHA-256 {digest}; its record says {record['sha256']}")
    print(f"{args.model.name}: SHA-256 and record agree ({record['bytes']:,} bytes)")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")

    corpus = stages.add_parser("corpus", help="gather the text and train the tokenizer")
    corpus.add_argument("--work", type=Path, required=True, help="work folder (some 40 MB)")
    corpus.add_argument(
        "--vocab", type=int, default=5120, help="vocabulary size (default %(default)s)"
    )
    corpus.add_argument("--seed", type=int, default=20)
    corpus.set_defaults(run=make_corpus)

    train = stages.add_parser(
        "train", help="train the network (CUDA where there is one, else the CPU)"
    )
    train.add_argument("--work", type=Path, required=True, help="work folder with the corpus")
    train.add_argument("--out", type=Path, required=True, help="folder for the weights")
    train.add_argument("--shape", choices=("demo", "tiny"), default="demo")
    train.add_argument("--steps", type=int, default=6000)
    train.add_argument("--batch-tokens", type=int, default=131072)
    train.add_argument(
        "--phases", help="row lengths and shares of the steps, such as 1024:0.8,4096:0.2"
    )
    train.add_argument("--learning-rate", type=float, default=3e-3)
    train.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    train.add_argument("--seed", type=int, default=20)
    train.add_argument("--device", help="torch device (default: cuda, else cpu)")
    train.add_argument(
        "--max-minutes", type=float, default=0.0, help="stop early after this long (0: never)"
    )
    train.set_defaults(run=run_train)

    export = stages.add_parser("export", help="write the GGUF and its record")
    export.add_argument("--work", type=Path, required=True, help="work folder with the corpus")
    export.add_argument("--weights", type=Path, required=True, help="folder the train stage wrote")
    export.add_argument("--out", type=Path, default=ASSETS / "uma-demo.gguf")
    export.set_defaults(run=run_export)

    check = stages.add_parser("check", help="compare a GGUF with its record")
    check.add_argument("--model", type=Path, default=ASSETS / "uma-demo.gguf")
    check.set_defaults(run=run_check)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Entry point; user errors end with one line."""
    args = build_parser().parse_args(argv)
    try:
        args.run(args)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{args.stage}: the package {error.name!r} is missing; "
            "pip install torch tokenizers gguf numpy"
        ) from error
    except FileNotFoundError as error:
        raise SystemExit(
            f"{args.stage}: {error.filename} is not there; run the stage before this one"
        ) from error


if __name__ == "__main__":
    main()
