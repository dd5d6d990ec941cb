"""docs/serving.md is run, its Python and its curl, by a server with the index that it makes."""

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import uvicorn

import hybrid_gpu as hg
from hybrid_gpu.cli.serving import serve
from hybrid_gpu.serve.app import create_app
from hybrid_gpu.serve.counters import Counters
from hybrid_gpu.serve.questions import MOST_EXPANSION
from hybrid_gpu.serve.running import bound
from hybrid_gpu.serve.service import _LARGE_BODY
from hybrid_gpu.serve.settings import ServerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "127.0.0.1:8000"


@pytest.fixture
def served(tmp_path, monkeypatch):
    """What the page's first block made, and the port of a server with its index, on a thread."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(BLOCKS[0][1], names)
    with bound("127.0.0.1", 0) as listening:
        app = create_app(hg.load_index("my-index", backend="numpy"))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield names, listening.getsockname()[1]
        server.should_exit = True
        thread.join(60)


def test_blocks_of_the_page_run(served, capsys):
    names, port = served
    answers = []
    assert [kind for kind, _ in BLOCKS].count("python") >= 4
    for kind, block in BLOCKS[1:]:
        code = block.replace(ADDRESS, f"127.0.0.1:{port}")
        if kind == "python":
            exec(code, names)
        elif shutil.which("curl"):
            done = subprocess.run(code, shell=True, capture_output=True, text=True, check=True)
            answers.append(json.loads(done.stdout))
    assert "digit-" in capsys.readouterr().out
    assert names["found"]["keys"][0][0].startswith("digit-")
    assert names["arrays"]["ids"].shape == (100, 10)
    if answers:
        assert "digit-3" not in answers[0]["keys"][0]
        assert set(answers[1]) == {"error", "hint"}


def test_limits_are_those_of_the_page():
    settings = ServerSettings()
    told = dict(re.findall(r"\| `--([a-z-]+)` \| ([\d,]+)", PAGE))
    for option, value in told.items():
        number = int(value.replace(",", ""))
        unit = 1 << 20 if option == "max-body" else 1
        assert getattr(settings, option.replace("-", "_")) == number * unit
    assert settings.max_bodies == 256 << 20
    assert "take 256 MiB together" in PROSE
    assert f"over {_LARGE_BODY >> 10} KiB are read one at a time" in PROSE
    assert f"at most {settings.max_list:,} items" in PROSE
    assert f"expanded by at most {MOST_EXPANSION}," in PROSE
    assert f"at most {settings.max_steps} solver steps" in PROSE
    assert f"at most {settings.max_alpha} or" in PROSE


def test_command_takes_the_defaults_of_the_settings():
    defaults, settings = serve.__kwdefaults__, ServerSettings()
    assert defaults["max_body"] == settings.max_body / (1 << 20)
    for name in ("max_queries", "max_k", "max_waiting", "timeout", "batch", "batching", "threads"):
        assert defaults[name] == getattr(settings, name), name
    assert defaults["host"] == "127.0.0.1"


def test_counters_of_the_page_exist():
    text = Counters().text()
    named = set(re.findall(r"`(hybrid_gpu_\w+)`", PAGE))
    assert len(named) >= 8
    assert [name for name in named if f"# TYPE {name} " not in text] == []


def test_options_of_the_page_are_those_of_the_command():
    command = set(serve.__kwdefaults__)
    for option in re.findall(r"`--([a-z-]+)", PAGE):
        name = option.removeprefix("no-").replace("-", "_")
        assert name in command, option
