"""Write a GGUF with random weights in a published model's shape, for benchmarks and tests.

    python tools/make_model.py --shape micro-151k --out build/micro.gguf
    python tools/make_model.py --shape qwen3-30b-a3b --out build/30b.gguf --quant q4_0
    python tools/make_model.py --shape qwen3-30b-a3b --dry-run
    python tools/make_model.py --shape micro-151k --pre gpt-4o --out build/pre.gguf
    python tools/make_model.py --shape micro-151k --chain --out build/chain.gguf

The time a model takes depends on its shape, its quantization and its vocabulary, not on what its
weights say: this gives all three without a download. The tokenizer is a real one, from the
vocabularies vendored with llama.cpp (those kept by ``build_llama.py``, or ``--vocab-from`` a folder
of ``ggml-vocab-*.gguf`` files, or one GGUF). What the model generates is noise, finite and long.

Weights are drawn once, as a pool of quantized blocks, and repeated: writing is as fast as the disk.
The pool's length is prime, so that no two rows of a vocabulary's matrix are equal. Every matrix has
the file's quantization (norms, biases and routers are float32); llama.cpp's own quantizer gives the
output matrix more bits in q4_0. With ``--chain`` the model writes the tokens in the order of their
ids: layers add nothing to what goes through them, and take as long as ever. Beside published shapes
there are micro ones of other families: recurrent, hybrid, sliding-window, encoder-only and encoder-
decoder. The same shape, quantization, seed and vocabulary give the same bytes.
"""

# Long: writing a file in the order of the file.

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import gguf_container as container  # noqa: E402
import gguf_families  # noqa: E402
import gguf_shapes  # noqa: E402
from gguf_shapes import Shape, Tensor  # noqa: E402


class Quant(NamedTuple):
    """A storage type: ggml's type number, ``general.file_type``, elements and bytes of a block."""

    ggml_type: int
    file_type: int
    block: int
    block_bytes: int


QUANTS = {
    "q8_0": Quant(8, 7, 32, 34),
    "q4_0": Quant(2, 2, 32, 18),
    "f16": Quant(1, 1, 32, 64),
}
_F32 = Quant(0, 0, 32, 128)
# Blocks in the pool: a prime above every vocabulary size, so that rows come back in no matrix.
_POOL_BLOCKS = 262147
# The sum of four bytes: near enough to a normal distribution, and the same on every machine.
_SUM_MEAN, _SUM_STD = 510, 147.8


# What a layer adds to what goes through it comes out of these.
_ADDING = (
    "attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ssm_out.weight",
    "ffn_down_shexp.weight", "shortconv.out_proj.weight", "attn_output.bias", "ffn_down_exps.bias",
)  # fmt: skip
# Families beside plain decoders of which all that a layer adds is listed there.
_CHAINS = (
    "lfm2", "qwen35", "qwen35moe", "qwen3next", "glm4moe", "granitehybrid", "gpt-oss",
    "nemotron_h",
)  # fmt: skip


class UserError(Exception):
    """A mistake of the caller's, said in one sentence."""


def make_pool(quant: Quant, std: float, seed: int) -> memoryview:
    """``_POOL_BLOCKS`` random blocks of *quant*, their values of mean 0 and deviation *std*."""
    fours = np.random.PCG64(seed).random_raw(_POOL_BLOCKS * 16).view("<u8").view(np.uint32)
    pairs = (fours & 0x00FF00FF) + (fours >> 8 & 0x00FF00FF)  # two sums of two bytes each
    sums = ((pairs & 0xFFFF) + (pairs >> 16)).view(np.int32).reshape(_POOL_BLOCKS, 32)
    sums -= _SUM_MEAN
    if quant.ggml_type == _F32.ggml_type:
        return memoryview((sums * np.float32(std / _SUM_STD)).astype("<f4").tobytes())
    if quant.ggml_type == QUANTS["f16"].ggml_type:
        return memoryview((sums * np.float32(std / _SUM_STD)).astype("<f2").tobytes())
    out = np.empty((_POOL_BLOCKS, quant.block_bytes), dtype=np.uint8)
    if quant.ggml_type == QUANTS["q8_0"].ggml_type:
        step = std / (_SUM_STD * 127 / _SUM_MEAN)
        out[:, 2:] = (sums * 127 // _SUM_MEAN).astype(np.int8).view(np.uint8)
    else:  # q4_0: two values a byte, stored with 8 added
        step = std / (_SUM_STD * 8 / _SUM_MEAN)
        fours = np.clip((sums * 8 + _SUM_MEAN // 2) // _SUM_MEAN + 8, 0, 15).astype(np.uint8)
        out[:, 2:] = fours[:, :16] | (fours[:, 16:] << 4)
    out[:, :2] = np.frombuffer(np.array([step], dtype="<f2").tobytes(), dtype=np.uint8)
    return memoryview(out.tobytes())


def quant_of(tensor: Tensor, quant: Quant) -> Quant:
    """The storage type of *tensor* in a file of *quant*."""
    return _F32 if tensor.f32 else quant


def n_bytes(tensor: Tensor, quant: Quant) -> int:
    """The bytes of *tensor*'s data in a file of *quant*."""
    kind = quant_of(tensor, quant)
    return tensor.n_elements * kind.block_bytes // kind.block


def tensor_chunks(
    tensor: Tensor, index: int, quant: Quant, pools: dict[tuple[int, float], memoryview], seed: int
) -> Iterator[bytes | memoryview]:
    """The bytes of *tensor*, the *index*-th of its file, in pieces of some MB."""
    size = n_bytes(tensor, quant)
    if tensor.values is not None:
        yield tensor.values.astype("<f4").tobytes()
        return
    if tensor.std == 0.0:
        yield np.ones(tensor.n_elements, dtype="<f4").tobytes()
        return
    kind = quant_of(tensor, quant)
    key = (kind.ggml_type, tensor.std)
    if key not in pools:
        pools[key] = make_pool(kind, tensor.std, seed)
    pool = pools[key]
    # Another place in the pool for every tensor, or all layers would be the same.
    at = (index * 7919 % _POOL_BLOCKS) * kind.block_bytes
    while size:
        piece = pool[at : at + size]
        yield piece
        size -= len(piece)
        at = 0


def chain_chunks(
    tensor: Tensor, index: int, quant: Quant, pools: dict[tuple[int, float], memoryview], seed: int,
    *, wrong: int = 0, heads_wrong: int = 0, from_state: bool = False,
) -> Iterator[bytes | memoryview]:  # fmt: skip
    """As `tensor_chunks`, of a model in which token t + 1 follows token t.

    ``wrong``: behind two of so many tokens it is another one; 0 = behind none.  Heads for several
    tokens say what follows the token that they read.  ``from_state``: the state that they read,
    which is of the token before, and they are right once.  With an output matrix of their own they
    are wrong behind two of ``heads_wrong`` tokens.
    """
    if tensor.name.endswith("nextn.eh_proj.weight"):
        yield one_half(tensor, quant_of(tensor, quant), second=from_state)
        return
    if tensor.name.endswith(_ADDING):
        left = n_bytes(tensor, quant)
        while left:
            yield bytes(min(left, 1 << 24))
            left -= min(left, 1 << 24)
        return
    of_heads = tensor.name.endswith("shared_head_head.weight")
    if tensor.name != "output.weight" and not of_heads:
        yield from tensor_chunks(tensor, index, quant, pools, seed)
        return
    # its row t + 1 is the embedding of token t, the file's first tensor
    rows = b"".join(tensor_chunks(tensor, 0, quant, pools, seed))
    row = len(rows) // tensor.dims[1]
    if of_heads:
        wrong, row = heads_wrong, row * (1 + from_state)
    if not wrong:
        yield rows[-row:]
        yield memoryview(rows)[:-row]
        return
    shifted = bytearray(rows[-row:] + rows[:-row])
    for at in range(0, len(shifted) - 2 * row, wrong * row):
        first, second = shifted[at : at + row], shifted[at + row : at + 2 * row]
        shifted[at : at + 2 * row] = second + first
    yield shifted


def one_half(tensor: Tensor, kind: Quant, *, second: bool) -> bytes:
    """Data of a matrix that lets one half of what it is given through, the first or the second."""
    columns, rows = tensor.dims
    blocks = np.zeros((rows, columns // kind.block, kind.block_bytes), np.uint8)
    for i in range(rows):
        block, at = divmod(i + second * (columns - rows), kind.block)
        if kind.ggml_type == QUANTS["q8_0"].ggml_type:
            blocks[i, block, :2] = np.frombuffer(np.float16(1 / 127).tobytes(), np.uint8)
            blocks[i, block, 2 + at] = 127
        elif kind.ggml_type == QUANTS["q4_0"].ggml_type:
            blocks[i, block, :2] = np.frombuffer(np.float16(1 / 7).tobytes(), np.uint8)
            blocks[i, block, 2:] = 0x88
            blocks[i, block, 2 + at % 16] += 7 << 4 * (at // 16)
        else:
            one = np.float16(1) if kind.block_bytes == 64 else np.float32(1)
            blocks[i, block].view(one.dtype)[at] = one
    return blocks.tobytes()


def find_vocab(shape: Shape, given: Path | None) -> Path:
    """The GGUF with *shape*'s vocabulary."""
    name = f"ggml-vocab-{shape.vocab}.gguf"
    if given is not None:
        path = given / name if given.is_dir() else given
        if not path.is_file():
            raise UserError(f"--vocab-from: {path} is not there")
        return path
    from umaserve.llama import builds

    for build in builds.installed():
        if (build.vocab_dir / name).is_file():
            return build.vocab_dir / name
    raise UserError(
        f"no {name} found: run python build_llama.py, which keeps llama.cpp's vocabularies, "
        "or name a folder that has it with --vocab-from"
    )


def tokenizer_keys(shape: Shape, path: Path) -> dict[str, container.Value]:
    """The tokenizer's keys from *path*, padded to the shape's vocabulary, with a chat template."""
    try:
        found = container.read_metadata(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    keys = {key: value for key, value in found.items() if key.startswith("tokenizer.")}
    if "tokenizer.ggml.tokens" not in keys:
        raise UserError(f"{path} holds no vocabulary (tokenizer.ggml.tokens)")
    tokens = keys["tokenizer.ggml.tokens"].strings()
    missing = shape.n_vocab - len(tokens)
    if missing < 0:
        raise UserError(
            f"{path} has {len(tokens)} tokens; {shape.name} has room for {shape.n_vocab}"
        )
    if missing:
        unused = 5  # LLAMA_TOKEN_TYPE_UNUSED
        for key, data in {
            "tokens": b"".join(
                container.pack_string(f"[PAD{i}]") for i in range(len(tokens), shape.n_vocab)
            ),
            "token_type": np.full(missing, unused, dtype="<i4").tobytes(),
            "scores": np.full(missing, -1000.0, dtype="<f4").tobytes(),
        }.items():
            key = f"tokenizer.ggml.{key}"
            if key in keys:
                keys[key] = keys[key].extended(missing, data)
    turn = shape.end_of_turn.encode()
    if turn and turn in tokens:
        end = container.Value.of(tokens.index(turn))
        keys["tokenizer.ggml.eos_token_id"] = end
        keys["tokenizer.ggml.eot_token_id"] = end
        keys["tokenizer.chat_template"] = container.Value.of(shape.template)
    return keys


class Plan(NamedTuple):
    """What is to be written: the tensors, their table in the file, and sizes in all."""

    tensors: list[Tensor]
    infos: list[tuple[str, tuple[int, ...], int, int]]
    data_bytes: int
    parameters: int


def plan_file(shape: Shape, quant: Quant) -> Plan:
    """The tensors of *shape* in *quant*, without touching a disk."""
    found = list(gguf_shapes.tensors(shape))
    infos = [(t.name, t.dims, quant_of(t, quant).ggml_type, n_bytes(t, quant)) for t in found]
    data = sum(container.padded(size) for *_, size in infos)
    return Plan(found, infos, data, sum(t.n_elements for t in found))


@contextlib.contextmanager
def progress(total: int, title: str) -> Iterator[Callable[[int], None]]:
    """Shows how much of *total* bytes is done: a bar on a terminal, else lines."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total)
            yield lambda count: bar.update(task, advance=count)
        return
    done = 0
    said = time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, said
        done += count
        if time.monotonic() - said > 3:
            said = time.monotonic()
            print(f"{title}: {done / 1e9:.1f} of {total / 1e9:.1f} GB", file=sys.stderr, flush=True)

    yield advance


def check_destination(out: Path, size: int) -> None:
    """Refuses, before a byte is written, what cannot work."""
    folder = out.parent
    if out.is_dir():
        raise UserError(f"--out: {out} is a directory; name a file")
    if not folder.is_dir():
        raise UserError(f"--out: the directory {folder} is not there; create it first")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out: no permission to write in {folder}")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise UserError(
            f"--out: {size / 1e9:.1f} GB are needed and {folder} has {free / 1e9:.1f} GB free; "
            "make room, or choose another disk, a smaller shape or --quant q4_0"
        )


def write_model(
    shape: Shape, quant_name: str, out: Path, seed: int, vocab: Path, pre: str | None = None,
    *, chain: bool = False, **chained: int,
) -> int:  # fmt: skip
    """Write *out*; returns its size in bytes. The file appears whole or not at all.

    *pre* replaces the name of the pre-tokenizer, known to llama.cpp or not. *chain*: the model
    writes the tokens in the order of their ids; its output matrix is its own. *chained*: for
    `chain_chunks`.
    """
    chunks = functools.partial(chain_chunks, **chained) if chain else tensor_chunks
    quant = QUANTS[quant_name]
    plan = plan_file(shape, quant)
    keys = {key: container.Value.of(value) for key, value in gguf_shapes.metadata(shape).items()}
    keys["general.file_type"] = container.Value.of(quant.file_type)
    keys["general.quantization_version"] = container.Value.of(2)
    keys.update(tokenizer_keys(shape, vocab))
    if pre is not None:
        keys["tokenizer.ggml.pre"] = container.Value.of(pre)
    head = container.header(keys, plan.infos)
    total = len(head) + plan.data_bytes
    check_destination(out, total)
    aside = out.with_name(f".{out.name}.{os.getpid()}.part")
    pools: dict[tuple[int, float], memoryview] = {}
    try:
        with open(aside, "xb", buffering=0) as file, progress(total, shape.name) as advance:
            file_write_all(file, head)
            advance(len(head))
            for index, tensor in enumerate(plan.tensors):
                written = 0
                for chunk in chunks(tensor, index, quant, pools, seed):
                    file_write_all(file, chunk)
                    written += len(chunk)
                    advance(len(chunk))
                file_write_all(file, bytes(container.padded(written) - written))
        os.replace(aside, out)
    except OSError as error:
        raise UserError(f"--out: {out} could not be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
    return total


def file_write_all(file, data: bytes | memoryview) -> None:
    """Write all of *data* to an unbuffered file, which may take it in parts."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _shape_list() -> str:
    return ", ".join(gguf_shapes.SHAPES)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make_model.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--shape", required=True, help=f"one of: {_shape_list()}")
    parser.add_argument("--out", type=Path, help="the GGUF to write")
    parser.add_argument("--quant", choices=tuple(QUANTS), default="q8_0")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (default %(default)s)")
    parser.add_argument("--vocab-from", type=Path, metavar="DIR_OR_GGUF")
    parser.add_argument("--pre", metavar="NAME", help="write this name of a pre-tokenizer")
    parser.add_argument("--chain", action="store_true", help="token t + 1 follows token t")
    parser.add_argument(
        "--chain-wrong", type=int, default=0, metavar="N",
        help="but for two of N tokens: a draft model for one with --chain",
    )  # fmt: skip
    parser.add_argument(
        "--heads-wrong", type=int, default=0, metavar="N",
        help="with --chain, the model's own heads are wrong behind two of N tokens",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the sizes and write nothing")
    return parser


def run(args: argparse.Namespace) -> None:
    """Do what the command line says; raises :class:`UserError`."""
    shape = gguf_shapes.SHAPES.get(args.shape)
    if shape is None:
        raise UserError(f"--shape: {args.shape!r} is not known; the shapes are {_shape_list()}")
    if args.seed < 0:
        raise UserError("--seed must not be negative")
    if args.chain_wrong and (args.chain_wrong < 2 or not args.chain):
        raise UserError("--chain-wrong goes with --chain, and is 2 at least")
    if args.heads_wrong and (args.heads_wrong < 2 or not args.chain or not shape.draft_layers):
        raise UserError("--heads-wrong goes with --chain and a shape with heads, and is 2 at least")
    if args.chain:
        unknown = gguf_families.is_one(shape) and shape.arch not in _CHAINS
        if unknown or shape.arch.startswith("gemma"):
            raise UserError(f"--chain: no chain is known for {shape.arch}, of {shape.name}")
        own = bool(shape.draft_layers and args.heads_wrong) or shape.draft_output
        shape = dataclasses.replace(shape, tied=False, draft_output=own)
    plan = plan_file(shape, QUANTS[args.quant])
    summary = (
        f"{shape.name} {args.quant}: {len(plan.tensors)} tensors, "
        f"{plan.parameters:,} parameters, {plan.data_bytes:,} bytes of weights"
    )
    if args.dry_run:
        print(summary)
        return
    if args.out is None:
        raise UserError("--out is missing: the GGUF to write (or --dry-run for the sizes alone)")
    check_destination(args.out, plan.data_bytes)
    vocab = find_vocab(shape, args.vocab_from)
    began = time.monotonic()
    total = write_model(
        shape, args.quant, args.out, args.seed, vocab, args.pre,
        chain=args.chain, wrong=args.chain_wrong, heads_wrong=args.heads_wrong,
    )  # fmt: skip
    print(f"{summary}\nwrote {args.out}: {total:,} bytes in {time.monotonic() - began:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    try:
        run(build_parser().parse_args(argv))
    except UserError as error:
        print(f"make_model.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("make_model.py: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # A kill is an interruption too: a 30 GB file half written should not stay.
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
