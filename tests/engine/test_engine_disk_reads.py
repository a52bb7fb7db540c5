"""What an engine has read again from disk is what the system says it read."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.churn import read_mb, take
from tests.support.engine_driver import DrivenEngine
from tests.support.waiting import until
from umaserve.assets import demo_model_path
from umaserve.engine.native import disk_reads
from umaserve.wire import messages as m

GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)
MB = 1 << 20

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/self/io").exists(),
    reason="only Linux says what a process had read from disk",
)


def forget(path: Path) -> None:
    """Have the system drop a file's pages that nobody maps."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def test_what_is_read_ahead_counts_and_by_thread(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(8 * MB))
    forget(path)
    if not _is_on_disk(path):
        pytest.skip("the temporary folder is in memory: nothing is read from a disk")
    forget(path)
    before, by_thread, said = disk_reads.by_process(), disk_reads.by_thread(), read_mb(os.getpid())
    path.read_bytes()
    read = disk_reads.by_process() - before
    assert read >= 8 * MB
    assert read == pytest.approx(1e6 * (read_mb(os.getpid()) - said), abs=MB)
    assert disk_reads.by_thread() - by_thread == pytest.approx(read, abs=MB)


def _is_on_disk(path: Path) -> bool:
    before = read_mb(os.getpid())
    path.read_bytes()
    return read_mb(os.getpid()) > before


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="the system takes memory from another process for root alone",
)
def test_weights_that_were_lost_are_counted_when_they_are_read_again(tmp_path: Path) -> None:
    path = Path(shutil.copy(demo_model_path(), tmp_path / "model.gguf"))
    forget(path)
    if not _is_on_disk(path):
        pytest.skip("the temporary folder is in memory: nothing is read from a disk")
    with DrivenEngine(model=str(path), n_ctx=512, probe=False, fresh=True) as engine:
        header, pid = engine.table.header, engine.process.pid
        engine.run("def f(", max_tokens=4, sampling=GREEDY)
        until(lambda: header.busy == 0)
        before, said = header.reread_bytes, read_mb(pid)
        assert before < MB, "loading the weights is not counted"
        taken = take(pid, path)
        forget(path)
        assert taken > path.stat().st_size // 2
        engine.run("def g(", max_tokens=4, sampling=GREEDY)
        engine.ids("one more round of the loop")
        read = header.reread_bytes - before
        assert read > taken // 2
        assert read == pytest.approx(1e6 * (read_mb(pid) - said), abs=MB)
