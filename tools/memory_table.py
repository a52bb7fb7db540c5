"""What docs/MEMORY.md says, computed: bytes of weights, KV cells, tables, and of a running daemon.

    python tools/memory_table.py                   # the bundled model and the benchmark shapes
    python tools/memory_table.py --n-ctx 32768 ~/models/your-model.gguf
    python tools/memory_table.py --auto            # KV cells where --n-ctx is auto
    python tools/memory_table.py --tables          # session table and piece table
    python tools/memory_table.py --processes       # a running daemon's processes (Linux)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import gguf_shapes  # noqa: E402
import make_model  # noqa: E402

from umaserve.assets import demo_model_path  # noqa: E402
from umaserve.engine.model.capacity import auto_cells, find_fits  # noqa: E402
from umaserve.llama.memory import kv_bytes_per_cell  # noqa: E402
from umaserve.models.gguf.faults import check_gguf  # noqa: E402
from umaserve.models.gguf.header import GGUFError, GGUFInfo  # noqa: E402
from umaserve.models.kv_shape import KvKind  # noqa: E402
from umaserve.wire import messages as m  # noqa: E402

# --kv-type, and what llama.cpp calls it
KV_TYPES = {"f16": "f16", "q8": "q8_0", "q6": "q5_1", "q5": "q5_0", "q4": "q4_0"}
SHAPES = ("qwen2.5-0.5b", "llama3.2-1b", "qwen3-30b-a3b")
MIB, GIB = 2**20, 2**30
LLAMA_8B = {
    "llama.block_count": 32, "llama.embedding_length": 4096, "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}  # fmt: skip
# name, model, positions it was trained for, GiB available in main memory, GiB of an accelerator
MACHINES = (
    ("8 GB, little free", "qwen2.5-0.5b q8_0", 32768, 2, 0),
    ("8 GB", "qwen2.5-0.5b q8_0", 32768, 5, 0),
    ("8 GB", "8B q4", 131072, 6, 0),
    ("16 GB", "8B q4", 131072, 12, 0),
    ("64 GB", "8B q4", 131072, 58, 0),
    ("64 GB", "qwen3-30b-a3b q8_0", 40960, 58, 0),
    ("H100, 80 GB", "qwen2.5-0.5b q8_0", 32768, 120, 79),
    ("H100, 80 GB", "qwen3-30b-a3b q8_0", 40960, 120, 79),
)


def shape_info(name: str, quant: str) -> GGUFInfo:
    """The header that `make_model.py` would write, without a file."""
    shape = gguf_shapes.SHAPES[name]
    keys: dict[str, object] = dict(gguf_shapes.metadata(shape))
    quantizer = make_model.QUANTS[quant]
    size = sum(make_model.n_bytes(tensor, quantizer) for tensor in gguf_shapes.tensors(shape))
    return GGUFInfo(Path(name), shape.arch, keys, {}, size, size, 0)


def models(paths: list[str]) -> Iterator[tuple[str, GGUFInfo]]:
    """Names and headers of the files; of the bundled model and the shapes where there are none."""
    if paths:
        for path in paths:
            yield Path(path).name, check_gguf(path)
        return
    yield "uma-demo", check_gguf(demo_model_path())
    for name in SHAPES:
        yield f"{name} q8_0", shape_info(name, "q8_0")


def auto_table() -> None:
    """KV cells that the engine would choose on machines of some sizes, with default settings."""
    print(f"{'':<39}{'GiB':>5}\n{'machine':<19}{'model':<20}{'free':>5}", end="")
    print(f"{'weights':>9}{'KV':>6}{'cells':>9}  of one session")
    for machine, model, trained, available, device in MACHINES:
        name, _, quant = model.partition(" ")
        if name in gguf_shapes.SHAPES:
            info = shape_info(name, quant)
        else:
            size = int(4.6 * GIB)
            info = GGUFInfo(Path(name), "llama", dict(LLAMA_8B), {}, size, size, 0)
        gpu = {"type": "gpu", "memory_free": device * GIB, "memory_total": 80 * GIB}
        start = m.Start(name, n_slots=32, n_ctx=0, n_seq=8, n_positions=trained)
        fits = find_fits(start, info, [gpu] if device else [], available * GIB)
        cells = auto_cells(start, fits)
        kv = cells * kv_bytes_per_cell(info) / GIB
        print(
            f"{machine:<19}{model:<20}{device or available:>5}{info.tensor_bytes / GIB:>9.1f}"
            f"{kv:>6.1f}{cells:>9}{min(cells, trained):>16}"
        )


def kv_table(paths: list[str], n_ctx: int) -> None:
    """Weights, bytes of one KV cell for each ``--kv-type``, and the whole cache at f16 and q8."""
    kinds = "".join(f"{kind:>8}" for kind in KV_TYPES)
    print(f"{'':<20}{'weights':>11}   bytes of a KV cell{'':<20}  {n_ctx} cells")
    print(f"{'':<20}{'MiB':>11} {kinds}{'f16, MiB':>11}{'q8, MiB':>9}")
    for name, info in models(paths):
        cell = {kind: kv_bytes_per_cell(info, KvKind(t, t)) for kind, t in KV_TYPES.items()}
        row = "".join(f"{size:>8}" for size in cell.values())
        whole = f"{cell['f16'] * n_ctx / MIB:>11.1f}{cell['q8'] * n_ctx / MIB:>9.1f}"
        print(f"{name:<20}{info.tensor_bytes / MIB:>11.1f} {row}{whole}")


def tables(n_ctx: int) -> None:
    """Sizes of the shared mappings at the default limits; bytes of a token in each."""
    from umaserve.wire.table import PIECE_BYTES, TableSpec

    spec = TableSpec(n_slots=32, n_ctx=n_ctx + 1)
    columns, size = spec.layout()
    position = sum(
        dtype.itemsize * (shape[2] if len(shape) > 2 else 1)
        for _, dtype, shape in columns.values()
        if len(shape) > 1
    )
    plain = sum(columns[name][1].itemsize for name in ("tokens", "token_ns"))
    print(f"session table: 32 rows of {n_ctx} positions, {size / MIB:.1f} MiB of addresses")
    print(f"  touched per generated token: {plain} bytes, with all logprobs {position} bytes")
    print(f"piece table: {PIECE_BYTES / MIB:.0f} MiB of addresses")


def chat_child(front: int) -> int | None:
    """The process that renders conversations, if it has been started."""
    for task in Path(f"/proc/{front}/task").iterdir():
        for pid in task.joinpath("children").read_text().split():
            if b"uma-chat" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def processes(socket: str | None) -> None:
    """Proportional set size (``/proc/PID/smaps_rollup``) of the daemon's processes, in MiB."""
    from umaserve.client import Client

    with Client(socket) as client:
        info = client.info()
        front, engine = info["pid"], (info["model"] or {}).get("engine_pid")
        rows = {"front": front, "engine": engine, "chat": chat_child(front)}
        print(f"{'':<8}{'PSS':>8}{'anonymous':>11}{'files':>8}{'shared':>8}  MiB")
        for name, pid in rows.items():
            if pid is None:
                continue
            fields = {}
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                key, value = line.split(":")
                fields[key] = int(value.split()[0]) / 1024
            parts = [fields[k] for k in ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")]
            print(f"{name:<8}{parts[0]:>8.1f}{parts[1]:>11.1f}{parts[2]:>8.1f}{parts[3]:>8.1f}")


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", metavar="MODEL", nargs="*", help="GGUF files")
    parser.add_argument("--n-ctx", type=int, default=4096, metavar="N", help="KV cells (4096)")
    parser.add_argument("--auto", action="store_true", help="what --n-ctx auto gives instead")
    parser.add_argument("--tables", action="store_true", help="the shared tables instead")
    parser.add_argument("--processes", action="store_true", help="a running daemon instead")
    parser.add_argument("--socket", metavar="PATH", help="that daemon's socket")
    options = parser.parse_args(argv)
    try:
        if options.auto:
            auto_table()
        elif options.tables:
            tables(options.n_ctx)
        elif options.processes:
            processes(options.socket)
        else:
            kv_table(options.models, options.n_ctx)
    except (GGUFError, OSError) as error:
        print(f"memory_table: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
