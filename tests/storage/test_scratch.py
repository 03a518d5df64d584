"""A process's own folder: deleted at its end, and that of a killed process by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MAKES = (
    "from clusterfl.storage.scratch import scratch; "
    "(scratch() / 'large').write_bytes(bytes(9)); print(scratch(), flush=True); "
)


def start(parent: Path, more: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a process with a folder in `parent`; return both when the folder is there."""
    given = os.environ | {"TMPDIR": str(parent)}
    process = subprocess.Popen([sys.executable, "-c", MAKES + more], env=given, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_deleted_at_the_end(tmp_path: Path) -> None:
    process, folder = start(tmp_path, "")
    end(process)
    assert folder.parent == tmp_path and not folder.exists()


def test_a_killed_processs_folder_goes_with_the_next_and_a_living_ones_stays(tmp_path: Path) -> None:
    killed, left = start(tmp_path, "import time; time.sleep(60)")
    living, kept = start(tmp_path, "import time; time.sleep(60)")
    killed.send_signal(signal.SIGKILL)
    end(killed)
    assert left.exists()
    end(start(tmp_path, "")[0])
    assert not left.exists() and (kept / "large").exists()
    living.terminate()
    end(living)


def test_a_forked_child_deletes_nothing(tmp_path: Path) -> None:
    process, folder = start(tmp_path, "import os, sys; os.fork() or sys.exit(); os.wait(); "
                            "assert (scratch() / 'large').exists(); print('there')")  # fmt: skip
    assert process.communicate()[0].strip() == "there"
    assert not folder.exists()


@pytest.mark.parametrize("name", ["clusterfl-other", "unlike"])
def test_what_has_no_lock_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    end(start(tmp_path, "")[0])
    assert (tmp_path / name).exists()
