"""Locks where processes begin and end at the same moment, after a fork, and on file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfl.errors import UserError
from clusterfl.storage import locks
from clusterfl.storage.locks import TRIES, claimed, locked


def held(path: Path) -> bool:
    """Return whether the file now at a path is locked."""
    with open(path, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def sleeping(monkeypatch: pytest.MonkeyPatch, does: Callable[[float], Any]) -> None:
    monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=does, strftime=time.strftime))


def test_who_shares_a_claim_waits_while_the_last_holder_deletes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claim"
    with open(path, "w", encoding="utf-8") as last:
        fcntl.flock(last, fcntl.LOCK_EX)

        def ends(seconds: float) -> None:
            path.unlink()
            last.close()

        sleeping(monkeypatch, ends)
        with pytest.raises(UserError, match="another process has it"), claimed(path, "x", "{holder} has it"):
            pass  # a claim of one process alone is refused at once
        assert path.exists()
        with claimed(path, "x", "{holder} has it", shared=True):
            assert held(path)
    assert not path.exists()


def test_who_shares_a_claim_is_refused_by_a_holder_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pauses = tmp_path / "claim", list[float]()
    sleeping(monkeypatch, pauses.append)
    with claimed(path, "x", "{holder} has it"):
        with pytest.raises(UserError, match=f"process {os.getpid()} on .*: x has it"):
            claimed(path, "y", "{holder} has it", shared=True).__enter__()
        assert held(path)
    assert len(pauses) == TRIES - 1


def test_a_refusal_names_all_that_may_live_and_the_last_to_be_ended(tmp_path: Path) -> None:
    """Of another machine it isn't known who lives. The file of a killed process begins again with the next one."""
    path, child = tmp_path / "claim", os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    lines = [
        f"process {number} on {host} of a: x" for number, host in ((child, platform.node()), (1, "far"), (2, "far"))
    ]
    path.write_text("\n".join(lines) + "\n")
    with open(path, encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError) as caught, claimed(path, "y", "{holder}; kill {process} on {host}"):
            pass
    assert str(caught.value) == f"{lines[1]}; {lines[2]}; kill 2 on far"
    for shared, kept in ((True, lines), (False, [])):
        path.write_text("\n".join(lines) + "\n")
        with claimed(path, "y", "{holder}", shared):
            found = path.read_text().splitlines()
            assert found[:-1] == kept and found[-1].startswith(f"process {os.getpid()} on ") and found[-1][-3:] == ": y"


def test_a_file_deleted_while_it_is_opened_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last holder may delete it between opening and locking: others would lock a new file at the same time."""
    opened = locks._opened
    deleted: list[Path] = []

    def late(path: Path) -> Any:
        file = opened(path)
        if path not in deleted:
            deleted.append(path)
            path.unlink()
        return file

    monkeypatch.setattr(locks, "_opened", late)
    with claimed(tmp_path / "claim", "x", "{holder}"), locked(tmp_path / "folder", "x") as waited:
        assert held(tmp_path / "claim") and held(tmp_path / "folder/.lock") and not waited
    assert len(deleted) == 2


def test_a_forked_process_that_ends_leaves_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    claim = claimed(path, "x", "{holder}")
    claim.__enter__()
    child = os.fork()
    if not child:
        claim.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.exists() and held(path)
    claim.__exit__(None, None, None)
    assert not path.exists()


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*given: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with claimed(tmp_path / "claim", "x", "{holder}"), locked(tmp_path / "folder", "x") as waited:
        said = capsys.readouterr().err.splitlines()
    assert not waited and [line.split(" ")[0] for line in said] == [str(tmp_path / "claim"), str(tmp_path / "folder")]
    assert all("No locks available" in line and "make sure that no other process works there" in line for line in said)
