"""The figures of `benchmarks.drafts` as lines of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.names import OURS, THEIRS

Result = dict[str, Any]
Around = Callable[[dict[str, float] | None], str]
Table = tuple[list[str], list[list[str]]]
COPIES, PIECES, PLAIN = "copies", "pieces", "plain"
USUAL = f"{COPIES},{PIECES},{PLAIN}"
HEAD = ["texts", "streams", "tokens/s", "without drafts", "ratio", "tokens a tick",
        "drafts right", "p95 between ticks, ms", "without", "longest, ms", "without", THEIRS,
        "its best drafts", "ratio", "ours over its best"]  # fmt: skip


def plain_way(way: str) -> str:
    """The name of a way without its drafts."""
    return f"{OURS}, no drafts" if way.startswith(OURS) else THEIRS


def spec_way(spec: str) -> str:
    """llama-server's name with that kind of drafts."""
    return f"{THEIRS}, {spec}"


def command(name: str, result: Result) -> str:
    """The command line that makes the result of that name."""
    streams = ",".join(dict.fromkeys(str(row["streams"]) for row in result["rows"]))
    texts = ",".join(dict.fromkeys(row["texts"] for row in result["rows"]))
    sizes = f"--streams {streams} --words {result['words']} --answer {result['answer']}"
    more = "" if texts == USUAL else f" --texts {texts}"
    more += "" if result["forced"] == "literal" else f" --forced {result['forced']}"
    if "draft_model" in result:
        more += f" --draft-model {result['draft_model']} --draft-wrong {result['draft_wrong']}"
    more += "" if result["lane"] == "interactive" else f" --lane {result['lane']}"
    if result["specs"]:
        more += f" --specs {','.join(result['specs'])}"
        more += f" --peer-streams {','.join(map(str, result['peer_streams']))}"
    else:
        more += " --without-peer"
    more += f" --threads {result['threads']}" if isinstance(result["threads"], int) else ""
    more += f' --flags "{result["flags"]}"' if result["flags"] else ""
    words = f"{sizes} --rounds {result['rounds']}{more} --name {name}"
    return f"python -m benchmarks.drafts --model {result['model'].split()[0]} {words}"


def whole(result: Result, around: Around) -> Table:
    """A line for each kind of texts and number of streams."""
    return HEAD, [_line(row, around) for row in result["rows"]]


def _line(row: Result, around: Around) -> list[str]:
    figures, over = row["figures"], row["with_over_without"]["tokens_per_s"]
    rates = figures["tokens_per_s"]

    def both(figure: str) -> list[str]:
        return [around(figures[figure].get(way)) for way in (OURS, plain_way(OURS))]

    theirs = sorted(row["ours_over"], key=lambda way: -rates[way]["median"])
    best = next(iter(theirs), "")
    drafting = next((way for way in theirs if way != THEIRS), "")
    name = drafting.replace(f"{THEIRS}, ", " (") + ")" * bool(drafting)
    return [
        row["texts"], str(row["streams"]), *both("tokens_per_s"), around(over.get(OURS)),
        around(figures["tokens_per_tick"].get(OURS)),
        around(figures.get("accepted", {}).get(OURS)), *both("pause_p95_ms"),
        *both("longest_ms"), around(rates.get(THEIRS)), around(rates.get(drafting)) + name,
        around(over.get(drafting)), around(row["ours_over"].get(best)),
    ]  # fmt: skip
