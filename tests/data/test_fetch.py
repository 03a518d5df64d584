"""Fetching: from a folder, a mirror or a bad server; verified, resumed, once, and reported where it can't be done."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import lzma
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clusterfl.data import catalogue
from clusterfl.data import fetch as module
from clusterfl.data.addresses import is_private
from clusterfl.data.catalogue import DatasetRow
from clusterfl.data.fetch import Patience, fetch, fetch_row
from clusterfl.errors import UserError

BODY = bytes(range(256)) * 4000  # 1 MB
QUICK = Patience(timeout=0.3, tries=3, pause=0.01)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def row(*sources, **more) -> DatasetRow:
    """A row of the table with these alternatives."""
    facts = {"title": "T", "about": "A", "shape": [1], "classes": 2, "licence": "L", "citation": "C"}
    return DatasetRow(**facts, samples={"train": 1, "test": 0}, sources=sources, **more)


class Server(ThreadingHTTPServer):
    """Serves `files`, and answers the next requests for a path as `plan` says."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.plan: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str]] = []  # path and range
        self.passwords: set[bytes] = set()  # as they came, decoded
        self.tags = False  # whether an ETag names the edition of a file
        self.later: dict[str, bytes] = {}  # files that replace others once those were cut
        self.over = threading.Event()

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.path[1:]
        wanted = self.headers.get("Range") or "bytes=0-"
        server.asked.append((path, wanted))
        if "Authorization" in self.headers:
            server.passwords.add(base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")))
        plan = server.plan.get(path, [])
        act = plan.pop(0) if plan else "ok"
        if act.isdigit() or path not in server.files:
            self.send_error(int(act) if act.isdigit() else 404)
            return
        if act.startswith("to "):
            self.send_response(302)
            self.send_header("Location", act.removeprefix("to "))
            self.end_headers()
            return
        body = server.files[path]
        start, end = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()
        tag = f'"{sha256(body)}"'
        if act == "ignores ranges" or self.headers.get("If-Range", tag) != tag:
            start = 0
            self.send_response(200)
        elif "Range" not in self.headers:
            self.send_response(200)
        elif int(start) >= len(body):
            self.send_error(416)
            return
        else:
            self.send_response(206)
        if server.tags:
            self.send_header("ETag", tag)
        body = body[int(start) : int(end) + 1 if end else None]
        if act != "says no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if act == "wrong bytes":
            body = body[::-1]
        half = len(body) // 2
        if act == "cuts":
            server.files |= {path: server.later[path]} if path in server.later else {}
        self.wfile.write(body[:half])
        if act == "stalls":
            self.server.over.wait(5)
        elif act == "slow":
            self.server.over.wait(0.4)
        if act not in ("cuts", "stalls"):
            self.wfile.write(body[half:])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("CLUSTERFL_MIRROR", raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def published(server) -> DatasetRow:
    """A row of one file that a publisher serves."""
    server.files["there/x.bin"] = BODY
    return row([{"path": "raw/x.bin", "url": server.url("there/x.bin"), "sha256": sha256(BODY)}])


def got(published: DatasetRow, folder: Path, mirror: str | None = None) -> bytes:
    """Fetch a row whose file is raw/x.bin, and return what came."""
    fetch_row("t", published, folder, mirror, patience=QUICK)
    assert not list(folder.rglob("*.part")) and not list(folder.rglob("*.tmp"))
    return (folder / "raw/x.bin").read_bytes()


def test_what_is_there_is_not_fetched_again(server, published, tmp_path):
    assert got(published, tmp_path) == BODY
    assert got(published, tmp_path) == BODY
    assert len(server.asked) == 1


def test_what_is_there_but_wrong_is_fetched_again(server, published, tmp_path, capsys):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.bin").write_bytes(b"no")
    assert got(published, tmp_path) == BODY
    said = capsys.readouterr().err
    assert sha256(b"no") in said and sha256(BODY) in said and "is replaced" in said


@pytest.mark.parametrize("failures", [["cuts"], ["cuts", "cuts"], ["stalls"], ["503", "cuts"], ["429"]])
def test_broken_connections_are_resumed(server, published, tmp_path, failures, capsys):
    server.plan["there/x.bin"] = list(failures)
    assert got(published, tmp_path) == BODY
    assert len(server.asked) == len(failures) + 1
    halves = [f for f in failures if f in ("cuts", "stalls")]
    begun = len(BODY) - len(BODY) // 2 ** len(halves)
    assert server.asked[-1][1] == f"bytes={begun}-"
    assert f"try {len(failures) + 1} of 3" in capsys.readouterr().err


def test_a_server_that_ignores_ranges_starts_again(server, published, tmp_path):
    server.plan["there/x.bin"] = ["cuts", "ignores ranges"]
    assert got(published, tmp_path) == BODY
    assert len(server.asked) == 2


@pytest.mark.parametrize("left", [b"of another file", BODY, BODY + b"longer"])
def test_what_an_earlier_process_left_is_not_trusted(server, published, tmp_path, left):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.bin.part").write_bytes(left)
    assert got(published, tmp_path) == BODY


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("tags", [False, True])
def test_two_editions_without_a_checksum_are_not_put_together(server, tmp_path, tags, changes):
    server.tags, server.files["x.bin"], server.plan["x.bin"] = tags, BODY, ["cuts"]
    server.later = {"x.bin": BODY[::-1]} if changes else {}
    unknown = row([{"path": "raw/x.bin", "url": server.url("x.bin")}])
    assert got(unknown, tmp_path) == (BODY[::-1] if changes else BODY)
    begun = len(BODY) // 2 if tags else 0
    assert [wanted for _, wanted in server.asked] == ["bytes=0-", f"bytes={begun}-"]


@pytest.mark.parametrize("tags", [False, True])
def test_what_an_earlier_process_left_is_not_continued_without_a_checksum(server, tmp_path, tags):
    server.tags, server.files["x.bin"] = tags, BODY
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.bin.part").write_bytes(b"of another edition")
    assert got(row([{"path": "raw/x.bin", "url": server.url("x.bin")}]), tmp_path) == BODY


def test_an_empty_file_is_a_file(server, tmp_path):
    server.files["x.bin"] = b""
    assert got(row([{"path": "raw/x.bin", "url": server.url("x.bin"), "sha256": sha256(b"")}]), tmp_path) == b""


def test_wrong_bytes_are_refused(server, published, tmp_path):
    server.plan["there/x.bin"] = ["wrong bytes"]
    with pytest.raises(UserError, match=f"x.bin.*{sha256(BODY[::-1])} found, {sha256(BODY)} expected"):
        got(published, tmp_path)
    assert not list((tmp_path / "raw").iterdir())


def test_a_missing_file_is_reported_at_once(server, published, tmp_path):
    del server.files["there/x.bin"]
    published = published.model_copy(update={"get": "get images too"})  # the sentence is about what failed
    with pytest.raises(
        UserError, match=r"404.*download http.*elsewhere; put the result into .* as raw/x.bin.*--mirror"
    ):
        got(published, tmp_path)
    assert len(server.asked) == 1


def test_a_server_that_stays_broken_is_reported(server, published, tmp_path):
    server.plan["there/x.bin"] = ["stalls"] * 9
    with pytest.raises(UserError, match=r"timed out, 3 tries.*put the result into"):
        got(published, tmp_path)
    assert len(server.asked) == 3
    server.plan.clear()
    assert got(published, tmp_path) == BODY  # the next call goes on where the last one ended
    assert server.asked[-1][1] != "bytes=0-"


def test_no_server_is_reported(published, tmp_path):
    """Nobody listens at this port: it was bound and closed."""
    with Server() as gone:
        nobody = gone.url("x.bin")
    lonely = row([{"path": "raw/x.bin", "url": nobody, "sha256": sha256(BODY), "bytes": 10**6}])
    with pytest.raises(UserError, match=r"refused.*3 tries.*\(1.0 MB\)"):
        got(lonely, tmp_path)


@pytest.mark.parametrize("size", [len(BODY), 1000])  # which a buffer would hold until the file is closed
def test_a_full_disk_is_reported_and_not_taken_for_the_network(server, published, tmp_path, size):
    server.files["there/x.bin"] = BODY[:size]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.bin.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left on the disk"):
        got(published, tmp_path)
    assert len(server.asked) == 1


def test_a_folder_that_cannot_be_made_is_reported(published, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        got(published, tmp_path / "file/folder")


def test_the_publishers_packed_file_is_unpacked(server, tmp_path):
    server.files["x.gz"] = packed = gzip.compress(BODY)
    facts = {"path": "raw/x.bin", "url": server.url("x.gz"), "sha256": sha256(BODY)}
    md5 = hashlib.md5(packed).hexdigest()
    assert got(row([facts | {"packed_md5": md5}]), tmp_path / "a") == BODY
    with pytest.raises(UserError, match=f"md5 {md5} found, {'0' * 32} expected"):
        got(row([facts | {"packed_md5": "0" * 32}]), tmp_path / "b")
    server.files["x.gz"] = packed[:-9]
    with pytest.raises(UserError, match="can't be unpacked"):
        got(row([facts]), tmp_path / "c")


# Mirrors.


def mirrored(**more) -> DatasetRow:
    """Two alternatives that nobody serves: two files, or one that a mirror may have packed."""
    two = [
        {"path": "raw/a", "mirror": ["a"], "sha256": sha256(b"a")},
        {"path": "raw/b", "mirror": ["b"], "md5": "0" * 32},
    ]
    one = [{"path": "raw/x.bin", "mirror": ["x/x.bin", "x/x.bin.gz", "x/x.bin.xz"], "sha256": sha256(BODY)}]
    return row(two, one, get="ask the publisher", **more)


PACKED = {"x.bin": bytes, "x.bin.gz": gzip.compress, "x.bin.xz": lzma.compress}


@pytest.mark.parametrize("name", PACKED)
def test_a_mirror_folder(tmp_path, name, monkeypatch):
    (tmp_path / "mirror/x").mkdir(parents=True)
    (tmp_path / "mirror/a").write_bytes(b"a")  # the first alternative isn't whole
    (tmp_path / "mirror/x" / name).write_bytes(PACKED[name](BODY))
    monkeypatch.setenv("CLUSTERFL_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setattr(module, "rows", lambda: {"t": mirrored()})
    fetch("t", tmp_path / "data", patience=QUICK)
    assert (tmp_path / "data/raw/x.bin").read_bytes() == BODY
    assert not (tmp_path / "data/raw/a").exists()


@pytest.mark.parametrize("name", PACKED)
def test_a_mirror_on_the_web(server, tmp_path, name):
    server.files |= {"m/a": b"a", f"m/x/{name}": PACKED[name](BODY)}
    server.plan[f"m/x/{name}"] = ["ok", "cuts"]
    assert got(mirrored(), tmp_path, server.url("m/")) == BODY


def test_an_unknown_name_is_reported(tmp_path):
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        fetch("mnsit", tmp_path)


def test_a_mirror_comes_before_the_publisher(server, published, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x.bin").write_bytes(BODY)
    file = published.sources[0][0].model_dump() | {"mirror": ["raw/x.bin"]}
    assert got(row([file]), tmp_path / "data", str(tmp_path)) == BODY
    assert not server.asked


def test_a_mirror_without_the_dataset_leads_to_the_publisher(server, published, tmp_path):
    (tmp_path / "mirror").mkdir()
    assert got(published, tmp_path / "data", str(tmp_path / "mirror")) == BODY


def test_damaged_mirrors_are_reported(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/x.bin.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(
        UserError, match=f"x.bin.gz isn't the right file for raw/x.bin: sha256 {sha256(b'other')} found"
    ):
        got(mirrored(), tmp_path / "data", str(tmp_path))
    (tmp_path / "x/x.bin.gz").write_bytes(gzip.compress(BODY)[:999])
    with pytest.raises(UserError, match=r"x.bin.gz can't be unpacked"):
        got(mirrored(), tmp_path / "data", str(tmp_path))
    with pytest.raises(UserError, match="'nowhere' isn't a folder"):
        got(mirrored(), tmp_path / "data", "nowhere")


def test_what_nobody_serves_is_reported(tmp_path):
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/x.bin").write_bytes(b"no")
    with pytest.raises(UserError, match=f"raw/x.bin is there, but sha256 {sha256(b'no')}.*ask the publisher; put the"):
        got(mirrored(), tmp_path / "data")


# What has no published checksum.


def test_the_first_download_is_pinned(server, tmp_path):
    server.files["x.bin"] = BODY
    unknown = row([{"path": "raw/x.bin", "url": server.url("x.bin")}])
    assert got(unknown, tmp_path) == BODY
    assert sha256(BODY) in (tmp_path / "pinned.json").read_text()
    (tmp_path / "raw/x.bin").write_bytes(b"damaged")
    assert got(unknown, tmp_path) == BODY
    (tmp_path / "raw/x.bin").unlink()
    server.files["x.bin"] = b"a new edition"
    with pytest.raises(UserError, match=f"{sha256(b'a new edition')} found, {sha256(BODY)} when it was first fetched"):
        got(unknown, tmp_path)
    (tmp_path / "pinned.json").unlink()
    assert got(unknown, tmp_path) == b"a new edition"


def test_files_of_a_program_are_taken_as_they_are_and_pinned(tmp_path, capsys):
    made = row([{"path": "train/*.json", "mirror": ["leaf/train/*.json"]}], get="run the program")
    (tmp_path / "leaf/train").mkdir(parents=True)
    for number in range(3):
        (tmp_path / f"leaf/train/{number}.json").write_text(str(number))
    data = tmp_path / "data"
    with pytest.raises(UserError, match="run the program"):
        fetch_row("t", made, data, None)
    fetch_row("t", made, data, str(tmp_path))
    assert [path.read_text() for path in sorted((data / "train").iterdir())] == ["0", "1", "2"]
    fetch_row("t", made, data, None)
    (data / "train/1.json").unlink()
    with pytest.raises(UserError, match="not all files"):
        fetch_row("t", made, data, None)
    fetch_row("t", made, data, str(tmp_path))
    assert len(list((data / "train").iterdir())) == 3
    assert "replaced" not in capsys.readouterr().err


# Two at once.

PROGRAM = """
import sys
from pathlib import Path
from clusterfl.data.catalogue import DatasetRow
from clusterfl.data.fetch import fetch_row
fetch_row("t", DatasetRow.model_validate_json(sys.argv[1]), Path(sys.argv[2]), None)
"""


def test_two_processes_fetch_a_file_once(server, published, tmp_path, capsys):
    server.plan["there/x.bin"] = ["slow"]
    command = [sys.executable, "-c", PROGRAM, published.model_dump_json(), str(tmp_path)]
    with subprocess.Popen(command) as first:
        while not server.asked and first.poll() is None:
            time.sleep(0.01)
        fetch_row("t", published, tmp_path, None, patience=QUICK)
        assert first.wait(20) == 0
    assert len(server.asked) == 1
    assert (tmp_path / "raw/x.bin").read_bytes() == BODY
    assert f"waiting for process {first.pid} on" in capsys.readouterr().err


# What an address may be, and what of it is shown.


def given(*sources) -> DatasetRow:
    """A row of files that a person may have put there."""
    return row(*sources, get="make them")


def test_the_tables_addresses_are_https():
    files = [file for row in catalogue.rows().values() for files in row.sources for file in files]
    assert all(is_private(file.url) for file in files if file.url)
    assert all(".." not in Path(file.path).parts and not Path(file.path).is_absolute() for file in files)


def test_a_password_is_sent_and_never_reported(server, published, tmp_path, capsys):
    mirror = server.url().replace("http://", "http://me:pass%20geheim@").rstrip("/") + "?token=hush"
    mirrored = given([{"path": "raw/x.bin", "sha256": sha256(BODY), "mirror": ["there/x.bin"]}])
    server.plan["there/x.bin?token=hush"] = ["ok", "503"]
    server.files["there/x.bin?token=hush"] = BODY
    assert got(mirrored, tmp_path / "a", mirror) == BODY
    assert server.passwords == {b"me:pass geheim"}
    server.files["there/x.bin?token=hush"] = BODY[:-1]
    with pytest.raises(UserError) as wrong:
        got(mirrored, tmp_path / "b", mirror)
    del server.files["there/x.bin?token=hush"]
    with pytest.raises(UserError) as absent:
        got(mirrored, tmp_path / "b", mirror)
    with pytest.raises(UserError) as unable:
        got(mirrored, tmp_path / "b", mirror.replace(":pass%20", ":pass "))
    said = capsys.readouterr().err + "".join(str(e.value) for e in (wrong, absent, unable))
    assert "try 2 of 3" in said and "***@127.0.0.1" in said and "token" not in said
    for word in ("geheim", "hush", "me:"):
        assert word not in said
    kept = [p.read_text() for p in tmp_path.rglob("*") if p.name in (module.PINS, ".lock")]
    assert not any("hush" in text or "geheim" in text for text in kept)


@pytest.mark.parametrize(
    "mirror",
    ["https://me:hush@[::1", "https://me:hush@", "https://me:hush@h:x/", "HTTPS://hush@ho st/", "http://h/?sig=hush",
     "http://me:hush@example.org", "ftp://me:hush@example.org"],
)  # fmt: skip
def test_an_address_that_cannot_be_asked_is_reported_without_its_secrets(tmp_path, mirror):
    with pytest.raises(UserError, match=r"address|folder") as said:
        fetch_row("t", given([{"path": "x", "mirror": ["x"]}]), tmp_path, mirror, patience=QUICK)
    assert "hush" not in str(said.value)


def test_a_password_stays_behind_where_the_server_sends_us_elsewhere(server, tmp_path):
    with Server() as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        other.files["x"] = BODY
        server.files["x"] = b""
        server.plan["x"] = [f"to {other.url('x')}"] * 2
        mirror = server.url().replace("http://", "http://me:word@")
        fetch_row("t", given([{"path": "raw/x.bin", "sha256": sha256(BODY), "mirror": ["x"]}]), tmp_path, mirror)
        other.shutdown()
    assert server.passwords == {b"me:word"} and not other.passwords
    assert (tmp_path / "raw/x.bin").read_bytes() == BODY


def test_no_server_leads_from_a_safe_address_to_an_unsafe_one(server, published, tmp_path):
    server.plan["there/x.bin"] = ["to http://192.0.2.1/x.bin"]  # which nobody has (RFC 5737)
    with pytest.raises(UserError, match=r"leads on to http://192.0.2.1/x.bin, which isn't https"):
        got(published, tmp_path)


def test_without_a_checksum_plain_http_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no.* published a checksum of x, and http://"):
        fetch_row("t", given([{"path": "x", "url": "http://192.0.2.1/x"}]), tmp_path, None, patience=QUICK)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_what_unpacks_to_more_than_it_may_is_refused(server, tmp_path, packing, monkeypatch):
    bomb = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packing](bytes(4_000_000))
    (tmp_path / "mirror").mkdir()
    (tmp_path / f"mirror/x{packing}").write_bytes(bomb)
    known = given([{"path": "x", "sha256": sha256(b""), "unpacked": 1000, "mirror": [f"x{packing}"]}])
    with pytest.raises(UserError, match="longer than the 1,000 bytes"):
        fetch_row("t", known, tmp_path / "data", str(tmp_path / "mirror"))
    monkeypatch.setattr(module, "LARGEST", 2000)
    unknown = given([{"path": "x", "mirror": [f"x{packing}"]}])
    with pytest.raises(UserError, match="longer than the 2,000 bytes"):
        fetch_row("t", unknown, tmp_path / "data", str(tmp_path / "mirror"))
    assert not [p for p in (tmp_path / "data").iterdir() if p.name != ".lock"]


@pytest.mark.parametrize("act", ["ok", "says no length"])
def test_a_download_that_is_longer_than_stated_is_cut(server, published, tmp_path, act):
    server.plan["there/x.bin"] = [act]
    (file,) = published.sources[0]
    short = published.model_copy(update={"sources": ((file.model_copy(update={"bytes": 1000}),),)})
    said: list[int] = []

    @contextlib.contextmanager
    def progress(title, total):
        yield lambda megabytes, text: said.append(megabytes)

    with pytest.raises(UserError, match=r"x.bin is longer than the 1,000 bytes"):
        fetch_row("t", short, tmp_path, None, progress, QUICK)
    assert not said  # not even the first block was kept
    assert not list((tmp_path / "raw").glob("*"))


@pytest.mark.parametrize("content", ["[]", '{"x": 1}', "null"])
def test_pins_that_are_none_are_reported(tmp_path, content):
    (tmp_path / module.PINS).write_text(content)
    with pytest.raises(UserError, match=r"pinned.json isn't a list of files.*; delete it"):
        fetch_row("t", given([{"path": "x"}]), tmp_path, None)
