"""``metrics``, ``load``, ``unload`` and ``priority``: short talks with a running daemon."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from umaserve.cli.parts.common import EXIT_OK, EXIT_USAGE, Parser, add_socket, say, show
from umaserve.client import Client
from umaserve.texts import path_of, sendable_path
from umaserve.visible import visible

# what a person asks first: which model, how busy, how fast, whether the promise holds, how much
FIRST = (
    "model", "active_sessions", "queued_interactive", "queued_background", "tokens_per_s",
    "p95_ms", "p95_over_baseline", "latency_cap", "ttft_ms_p95", "kv_cells_used", "kv_cells_total",
    "rss_gb", "errors_total",
)  # fmt: skip


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, dict):
            out.update(_flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value
    return out


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(item) for item in value)
    return str(value)


def table(metrics: dict[str, Any]) -> str:
    """Metrics as aligned lines; what is not known yet is shown as "-"."""
    flat = _flat(metrics)
    width = max((len(key) for key in flat), default=0)
    return "\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in flat.items())


def metrics(arguments: list[str]) -> int:
    """Print the metrics once, or every ``--interval`` seconds until interrupted."""
    parser = Parser(prog="umaserve metrics", description="Print a running daemon's metrics.")
    parser.add_argument(
        "--all", action="store_true", help="every metric; else those that matter most"
    )
    parser.add_argument("--json", action="store_true", help="all, as one JSON object per line")
    parser.add_argument(
        "--interval", type=float, metavar="S", help="again every S seconds, until interrupted"
    )
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        if options.interval is None:
            samples = iter([client.metrics()])
        else:
            samples = client.watch_metrics(options.interval * 1e3)
        for number, sample in enumerate(samples):
            if options.json:
                show(json.dumps(sample, ensure_ascii=False))
            else:
                first = {name: sample[name] for name in FIRST if name in sample}
                chosen = sample if options.all else first
                show(("\n" if number else "") + table(chosen))
    return EXIT_OK


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal; one line a stage elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("loading"),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda fraction, stage: bar.update(
                task, completed=fraction, description=visible(stage)
            )
        return
    said = ""

    def line(fraction: float, stage: str) -> None:
        nonlocal said
        if stage != said:
            said = stage
            say(f"loading: {stage}")

    yield line


def load(arguments: list[str]) -> int:
    """Serve another model; waits until it serves or is refused."""
    parser = Parser(
        prog="umaserve load",
        description="Load a model of the daemon's configuration, or serve a file in place of the "
        "default model.  If it cannot be loaded, the present one goes on.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name that `umaserve ps` shows, the path of a GGUF file, or a name that `umaserve "
        "models` shows",
    )
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        known = client.info().get("models", ())
        if any(options.model in (each["id"], *each["aliases"]) for each in known):
            with _progress() as progress:
                client.load(options.model, progress)
            show(f"serving {options.model}")
            return EXIT_OK
    from umaserve.assets import demo_model_path
    from umaserve.models.finding.places import places
    from umaserve.models.finding.reference import BadReference, NotHere, locate

    try:
        found = locate(options.model, places(model_dir=os.environ.get("UMA_MODEL_DIR", "")))
    except (NotHere, BadReference) as error:
        say(f"umaserve: {error}")
        return EXIT_USAGE
    found = found or str(demo_model_path())
    # the daemon may run in another directory
    path = os.path.abspath(os.path.expanduser(path_of(found)))
    with Client(options.socket) as client, _progress() as progress:
        answer = client.load(sendable_path(path), progress)
    model = answer.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    show(f"serving {name or path}")
    return EXIT_OK


def unload(arguments: list[str]) -> int:
    """Free a model."""
    parser = Parser(
        prog="umaserve unload",
        description="Free a model's memory.  Requests for it are refused (E_MODEL_001) until "
        "`load`.",
    )
    parser.add_argument(
        "model", metavar="NAME", nargs="?", help="a name that `umaserve ps` shows; the default's"
    )
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        client.unload(options.model)
    print(f"unloaded; `umaserve load {options.model or 'MODEL'}` serves one again")
    return EXIT_OK


def priority(arguments: list[str]) -> int:
    """Move a request to another lane."""
    parser = Parser(prog="umaserve priority", description="Move a running request to a lane.")
    parser.add_argument("id", metavar="ID", help="the request's id, as `umaserve top` lists it")
    parser.add_argument("lane", metavar="LANE", choices=("interactive", "background"))
    add_socket(parser)
    options = parser.parse_args(arguments)
    with Client(options.socket) as client:
        rows = [row for row in client.info()["sessions"] if row["id"] == options.id]
        # another program's request has to be named by the daemon's own number of it
        request = rows[0]["serial"] if len(rows) == 1 else options.id
        client.priority(request, options.lane)
    show(f"{options.id} is {options.lane} now")
    return EXIT_OK
