"""``haproxy.cfg`` for several daemons (HAProxy 2.4 and newer; its configuration manual)."""

from __future__ import annotations

from umaserve.cli.router.nodes import Node

SESSION_HEADERS = (
    "x-uma-session", "x-claude-code-session-id", "x-session-affinity", "session-id",
)  # fmt: skip
KEY_HEADERS = ("x-api-key", "authorization")
HEAD = """\
# Written by `umaserve router`. docs/ROUTER.md says what each part is for.
global
    # A request is sent again only if all of it is in such a buffer: {kib} KiB.
    tune.bufsize {bufsize}
    maxconn {maxconn}

defaults
    mode http
    timeout connect 5s
    # The daemon's streams have a line at least every 10 s; an answer in one piece has none.
    timeout client 30m
    timeout server 30m
    timeout http-request 30s
    timeout http-keep-alive 60s
    # tokens are passed on as they come
    option http-no-delay
    # Sent again to another node, as long as the client has got no byte of an answer.
    # A node says 503 while it shuts down or has no model.
    # A node that has just died may be chosen again until it is known: so more than a few times.
    retries 10
    # what has not all come when it is passed on cannot be sent again
    option http-buffer-request
    option redispatch 1
    retry-on conn-failure empty-response 503

frontend uma
    bind {listen}
    default_backend uma_nodes

backend uma_nodes
    balance roundrobin
    # A session stays where its KV is: its name is in a header, else whose key it is.
{session}
    stick-table type string len 200 size 100k expire {expire}
    stick on var(txn.uma_session) if {{ var(txn.uma_session) -m found }}
    option httpchk
    http-check send meth GET uri /health
    # 401: it is there, and asks for an API key
    http-check expect status 200,401
"""


def config(nodes: list[Node], listen: str, kib: int, maxconn: int, expire: str) -> str:
    """The text of the file.  ``kib``: the largest request that can be sent again."""
    hashed = dict.fromkeys(SESSION_HEADERS, "") | dict.fromkeys(KEY_HEADERS, ",sha2(256),hex")
    session = "\n".join(
        f"    http-request set-var(txn.uma_session) req.hdr({name}){way} "
        f"if !{{ var(txn.uma_session) -m found }} {{ req.hdr({name}) -m found }}"
        for name, way in hashed.items()
    )
    head = HEAD.format(
        kib=kib, bufsize=kib * 1024, maxconn=maxconn, listen=listen,
        session=session, expire=expire,
    )  # fmt: skip
    return head + "".join(_server(node) + "\n" for node in nodes)


def _server(node: Node) -> str:
    place = f"unix@{node.path}" if node.path else _place(node.host, node.port)
    # a node that dies is out after two looks, and in again after one
    line = f"    server {node.name} {place} weight 100 check inter 2s fall 2 rise 1"
    # a refused connection says at once what the next look would
    line += " observe layer4 error-limit 1 on-error mark-down"
    if node.agent_port:
        line += (
            f" agent-check agent-addr {node.agent_host} agent-port {node.agent_port} "
            "agent-inter 1s"
        )
    return line


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
