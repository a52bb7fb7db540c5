"""What a test run says and bounds: processes that were started, time limits, and a stuck run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.stuck import InARow

SLOW_S = 300  # of a test that is marked; `timeout` in pyproject.toml is for the quick ones
SIMULATED_S = 180  # of a test of the policy: the first in a worker compiles the simulator
KEY = "processes_started"


class RunReport:
    """A pytest plugin, of the controller and of each worker."""

    def __init__(self) -> None:
        self.started = 0
        self.in_a_row = InARow()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _: Any) -> None:
        if event in ("subprocess.Popen", "uma.forked"):
            self.started += 1

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give tests that are no quick ones more time, unless they say how much they need."""
        for item in items:
            if item.get_closest_marker("timeout"):
                continue
            if any(map(item.get_closest_marker, ("slow", "clients", "real"))):
                item.add_marker(pytest.mark.timeout(SLOW_S))
            elif item.path.parent.name == "policy":
                item.add_marker(pytest.mark.timeout(SIMULATED_S))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Stop the run where no engine starts any more."""
        outcome = yield
        report = outcome.get_result()
        if report.when == "call" or report.failed:
            why = self.in_a_row.why_to_stop(report.outcome, str(report.longrepr or ""))
            if why:
                item.session.shouldstop = why

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the controller how many processes a worker has started."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[KEY] = self.started

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's processes."""
        self.started += getattr(node, "workeroutput", {}).get(KEY, 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the number of processes behind the slowest tests."""
        terminalreporter.write_line(f"{self.started} processes were started by the tests")
