"""The files of llm-d's router for several daemons, without Kubernetes (its file discovery)."""

from __future__ import annotations

from typing import Any

from umaserve.cli.router.nodes import Node

ENGINE = "umaserve"
ATTRIBUTES = {
    "uma.p95_headroom": "uma_p95_headroom",
    "uma.bandwidth_headroom": "uma_bandwidth_headroom",
}


def endpoints(nodes: list[Node]) -> dict[str, Any]:
    """``endpoints.yaml``.  Raises ``ValueError`` for a node that file discovery cannot name."""
    for node in nodes:
        if not node.is_ipv4:
            raise ValueError(f"{node.name}: llm-d's file discovery takes IPv4 addresses alone")
    labels = {"llm-d.ai/engine-type": ENGINE}
    return {
        "endpoints": [
            {"name": n.name, "address": n.host, "port": str(n.port), "labels": labels}
            for n in nodes
        ]
    }


def picker(path: str) -> dict[str, Any]:
    """``epp.yaml``, the endpoint picker's configuration; ``path``: of the endpoints."""
    scores = [_score(key) for key in ATTRIBUTES]
    weights = [("session", 4), ("queue", 1), *((each["name"], 1) for each in scores)]
    profile = [{"pluginRef": name, "weight": weight} for name, weight in weights]
    source = {"pluginRef": "metrics-source", "extractors": [{"pluginRef": "metrics-extractor"}]}
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            _plugin("file-discovery", "file-discovery", path=path, watchFile=True),
            # at /metrics whoever does not say what it accepts gets JSON
            _plugin(
                "metrics-data-source", "metrics-source", path="/metrics/prometheus", interval="1s"
            ),
            _plugin(
                "core-metrics-extractor", "metrics-extractor", defaultEngine=ENGINE,
                engineConfigs=[_engine()],
            ),
            _plugin(
                "session-affinity-scorer", "session", algorithm="session_id_header",
                headerName="x-uma-session",
            ),
            _plugin("queue-scorer", "queue"),
            *scores,
            _plugin("max-score-picker", "best"),
            _plugin("single-profile-handler", "one-profile"),
        ],
        "schedulingProfiles": [
            {"name": "default", "plugins": [*profile, {"pluginRef": "best"}]}
        ],
        "dataLayer": {
            "injectDefaults": False,
            "discovery": {"endpoints": {"pluginRef": "file-discovery"}},
            "sources": [source],
        },
    }  # fmt: skip


def _plugin(kind: str, name: str, **parameters: Any) -> dict[str, Any]:
    told = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": name, **told}


def _score(key: str) -> dict[str, Any]:
    """More of a gauge between 0 and 1 is better."""
    normal = {"fixedRange": {"min": 0.0, "max": 1.0}}
    algorithm = {"type": "linear_higher_is_better", "normalization": normal}
    name = key.partition(".")[2].replace("_", "-")
    return _plugin("endpoint-attribute-scorer", name, attributeKey=key, algorithm=algorithm)


def _engine() -> dict[str, Any]:
    """Map the picker's names of gauges to ours."""
    return {
        "name": ENGINE,
        "queuedRequestsSpec": "vllm:num_requests_waiting",
        "runningRequestsSpec": "vllm:num_requests_running",
        "kvUsageSpec": "vllm:kv_cache_usage_perc",
        # the bandwidth has no gauge where no budget is known
        "customMetrics": [
            {"attributeKey": key, "metricSpec": gauge, "optional": True}
            for key, gauge in ATTRIBUTES.items()
        ],
    }
