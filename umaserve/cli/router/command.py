"""``umaserve router``: write a configuration of a load balancer for several daemons."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from umaserve.cli.parts.common import EXIT_OK, EXIT_USAGE, Parser, say
from umaserve.cli.router import haproxy, llmd
from umaserve.cli.router.nodes import FORM, Node, one_word, read_nodes
from umaserve.system.own_file import write_own

CHECK_S = 30.0


def router(arguments: list[str]) -> int:
    parser = Parser(
        prog="umaserve router",
        description="Write a checked haproxy.cfg for several daemons, or the files of llm-d's "
        "router.",
        epilog=f"A node is {FORM}; +AGENT is the port of its --agent-check. docs/ROUTER.md says "
        "when one machine is not enough.",
    )
    parser.add_argument("--nodes", required=True, metavar="LIST", help="nodes, commas between")
    parser.add_argument("--for", dest="kind", choices=("haproxy", "llm-d"), default="haproxy")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="ADDRESS",
                        help="of HAProxy (127.0.0.1:8000)")  # fmt: skip
    parser.add_argument("--out", default="", metavar="FILE",
                        help="write here instead of printing; of llm-d a folder")  # fmt: skip
    parser.add_argument("--buffer", type=int, default=1024, metavar="KIB",
                        help="the largest request that can be sent again (1024)")  # fmt: skip
    parser.add_argument("--maxconn", type=int, default=256, metavar="N",
                        help="connections at once; each may take two buffers (256)")  # fmt: skip
    parser.add_argument("--expire", default="1h", metavar="TIME",
                        help="how long a session that rests stays with its node (1h)")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        nodes = read_nodes(options.nodes)
        for name in ("listen", "expire"):
            one_word(f"--{name}", getattr(options, name))
        if options.kind == "llm-d":
            return _llmd(nodes, options.out)
    except ValueError as error:
        say(f"umaserve router: {error}")
        return EXIT_USAGE
    text = haproxy.config(
        nodes, options.listen, options.buffer, options.maxconn, options.expire
    )  # fmt: skip
    problem = check(text)
    if problem:
        say(f"umaserve router: haproxy refuses this configuration:\n{problem}")
        return EXIT_USAGE
    _write(text, options.out)
    for node in nodes:
        if not node.agent_port:
            say(f"{node.name} has no agent (+PORT): it gets as much as the others, however busy")
    return EXIT_OK


def check(text: str) -> str:
    """Return haproxy's objection to a configuration; empty for none, or without haproxy."""
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        say("haproxy is not installed here, so the configuration is not checked")
        return ""
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(text)
        file.flush()
        found = subprocess.run(
            [program, "-c", "-f", file.name], capture_output=True, text=True, timeout=CHECK_S
        )
    return "" if found.returncode == 0 else (found.stderr or found.stdout).strip()


def _llmd(nodes: list[Node], out: str) -> int:
    import yaml

    folder = Path(out or ".").absolute()
    texts = {
        "endpoints.yaml": llmd.endpoints(nodes),
        "epp.yaml": llmd.picker(str(folder / "endpoints.yaml")),
    }
    for name, content in texts.items():
        text = yaml.safe_dump(content, sort_keys=False)
        if out:
            folder.mkdir(parents=True, exist_ok=True)
            _write(text, str(folder / name))
        else:
            print(f"# {name}\n{text}{'---' if name == 'endpoints.yaml' else ''}")
    return EXIT_OK


def _write(text: str, out: str) -> None:
    """Print a text, or write it to a file."""
    if not out:
        sys.stdout.write(text)
        return
    write_own(out, text.encode())
    say(f"wrote {out}")
