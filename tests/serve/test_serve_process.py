"""Servers as processes of their own: how they start, who may ask, and how they end."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from serve_client import LiveApp, planted
from typer.testing import CliRunner

import hybrid_gpu as hg
from hybrid_gpu.cli import app
from hybrid_gpu.serve.running import Launch, bound
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, QUERIES = planted()
PATIENCE = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "index"
    hg.build_index(ITEMS, neighbors=6, backend="numpy").save(path)
    return path


@contextmanager
def served(folder, *options, **variables):
    """A server on a free port: its process and its port."""
    command = [sys.executable, "-m", "hybrid_gpu.cli", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stderr.readline()
            found = re.search(r"60 items at http://127\.0\.0\.1:(\d+); ", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1])
        finally:
            process.kill()


def ask(port, path, fields=None, **headers):
    """The status and the answer of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = None if fields is None else json.dumps(fields)
    headers = {"Content-Type": "application/json", **headers}
    try:
        connection.request("GET" if fields is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_server_starts_answers_some_and_ends_when_it_is_told(folder):
    with served(folder, HYBRID_GPU_TOKEN="s3cret") as (process, port):
        right = {"Authorization": "Bearer s3cret"}
        fields = {"queries": QUERIES[:1].tolist(), "k": 3}
        # The socket listens already: the first request waits until the app is up.
        assert ask(port, "/search", fields)[0] == 401
        status, text = ask(port, "/search", fields, **right)
        assert status == 200
        assert len(json.loads(text)["ids"][0]) == 3
        assert ask(port, "/healthz", Host="evil.example")[0] == 421
        assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()

        # A request whose body has come half: it is under way when the signal comes.
        whole = json.dumps(fields).encode()
        head = (
            f"POST /search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(whole)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as slow:
            slow.sendall(head.encode() + whole[:5])
            ask(port, "/healthz")  # behind it on the same loop: the head was read
            process.send_signal(signal.SIGTERM)
            wait_until_refused(port)
            assert process.poll() is None
            slow.sendall(whole[5:])
            answer = b""
            while part := slow.recv(65536):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


def test_replaced_folder_changes_no_server_that_runs(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "index")
    with LiveApp(hg.load_index(tmp_path / "index", backend="numpy")) as live:
        before = live.post("/search_items", {"ids": [7], "k": 5}).json()
        shutil.rmtree(tmp_path / "index")
        hg.build_index(ITEMS[::-1][:40], neighbors=4, backend="numpy").save(tmp_path / "index")
        assert live.post("/search_items", {"ids": [7], "k": 5}).json() == before
        assert live.get("/info").json()["items"] == 60


def wait_until_refused(port):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            ask(port, "/healthz")
        except OSError:
            return
    raise AssertionError("new connections are still answered")


@pytest.mark.slow
def test_several_processes_share_an_index_and_their_counters(folder, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    right = {"Authorization": "Bearer s3cret"}
    fields = {"ids": [3], "k": 3}
    with served(folder, "--processes", "2", "--token-file", str(token)) as (process, port):
        end = time.monotonic() + PATIENCE
        counted = ""
        while "hybrid_gpu_processes 2" not in counted and time.monotonic() < end:
            counted = ask(port, "/metrics", **right)[1]
        answers = {ask(port, "/search_items", fields, **right) for _ in range(20)}
        assert len(answers) == 1
        assert answers.pop()[0] == 200
        assert ask(port, "/search_items", fields)[0] == 401
        counted = ask(port, "/metrics", **right)[1]
        assert "hybrid_gpu_queries_total 20" in counted
        assert "hybrid_gpu_processes 2" in counted
        with half_sent(port, fields, **right) as (slow, rest):
            process.send_signal(signal.SIGTERM)
            wait_until_refused(port)
            slow.sendall(rest)
            assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


@contextmanager
def half_sent(port, fields, **headers):
    """A connection whose request has come half, and the other half."""
    whole = json.dumps(fields).encode()
    told = {"Host": "localhost", "Content-Type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    start = f"POST /search_items HTTP/1.1\r\n{head}Content-Length: {len(whole)}\r\n"
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as slow:
        # The answer to 'Expect' comes when the head was read: the request is under way.
        slow.sendall(f"{start}Expect: 100-continue\r\n\r\n".encode())
        assert slow.recv(65536).startswith(b"HTTP/1.1 100")
        slow.sendall(whole[:5])
        yield slow, whole[5:]


def failed(*words):
    result = CliRunner().invoke(app, ["serve", *map(str, words)])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    return result.output


def test_faults_of_a_start_are_told_in_a_line(folder, tmp_path):
    assert "no such" in failed(tmp_path / "nowhere", "--port", "0").lower()
    (tmp_path / "empty").write_text("\n")
    assert "no token" in failed(folder, "--token-file", tmp_path / "empty")
    assert "missing" in failed(folder, "--token-file", tmp_path / "missing")
    with bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in failed(folder, "--port", port)
    assert "203.0.113.1" in failed(folder, "--port", "0", "--host", "203.0.113.1")


def test_launch_is_told_by_the_environment_without_the_token():
    settings = ServerSettings(token="s3cret", allowed_hosts=("a", "b"), timeout=3.5, batch=7)
    launch = Launch("/some/where", "numpy", settings, counters="/else/where")
    text = launch.written()
    assert "s3cret" not in text
    environment = {"HYBRID_GPU_SERVE_LAUNCH": text, "HYBRID_GPU_TOKEN": "s3cret"}
    assert Launch.read(environment) == launch


def test_missing_packages_are_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "hybrid_gpu.serve.running")
    monkeypatch.delattr("hybrid_gpu.serve.running", raising=False)
    assert '".[serve]"' in failed(folder)
