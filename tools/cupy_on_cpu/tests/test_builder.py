from __future__ import annotations

import pytest

from builder import layout, steps, stubs


class Builder:
    def __init__(self, folder):
        self.folder, self.calls, self.leftovers = folder, 0, []

    def __call__(self, log):
        self.calls += 1
        self.leftovers.append(sorted(path.name for path in self.folder.iterdir()))
        (self.folder / "product").touch()


def test_a_finished_folder_is_not_built_again(tmp_path):
    build = Builder(tmp_path / "layer")
    assert steps.ensure(build.folder, build)
    assert not steps.ensure(build.folder, build)
    assert build.calls == 1
    assert steps.ensure(build.folder, build, rebuild=True)
    assert build.calls == 2


def test_an_interrupted_build_starts_from_an_empty_folder(tmp_path):
    build = Builder(tmp_path / "layer")

    def interrupted(log):
        build(log)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps.ensure(build.folder, interrupted)
    assert steps.ensure(build.folder, build)
    assert build.leftovers == [[], []]


def test_a_failed_command_shows_what_it_printed(tmp_path):
    with pytest.raises(steps.BuildError, match=r"code 3(.|\n)*the reason"):
        steps.run(["sh", "-c", "echo the reason; exit 3"], tmp_path / "log")


def test_an_absent_command_is_named(tmp_path):
    with pytest.raises(steps.BuildError, match="no-such-compiler is not installed"):
        steps.run(["no-such-compiler"], tmp_path / "log")


def test_the_key_has_the_versions_in_it(tmp_path):
    where = layout.layout(tmp_path)
    assert layout.CUPY_VERSION in where.cupy.name
    assert f"numpy{layout.pinned('numpy')}" in where.cupy.name


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.delenv(layout.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert layout.cache_folder() == tmp_path / "hybrid-gpu" / "cupy-on-cpu"
    monkeypatch.setenv(layout.CACHE_VARIABLE, str(tmp_path / "variable"))
    assert layout.cache_folder() == tmp_path / "variable"
    assert layout.cache_folder(str(tmp_path / "argument")) == tmp_path / "argument"


def test_every_missing_function_gets_a_stub_with_its_name():
    source = stubs.stub_source(["cublasSrotg_v2", "_Z9some_callv"])
    assert 'standin_missing_status("cublasSrotg_v2", 15)' in source
    assert 'standin_missing_throw("some_call()")' in source


def test_system_symbols_are_not_missing():
    assert stubs.missing_functions(["printf", "PyList_New", "_ZSt9terminatev"], []) == []
