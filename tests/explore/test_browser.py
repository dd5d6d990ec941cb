"""The page in a real browser: from a folder and from a server, wide and on a phone, by keys alone.

Run with ``-m browser``. Needs Playwright for Python (the extra ``test-browser``) and a Chromium of
the system; ``HYBRID_GPU_BROWSER`` names another one.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hostile import HOSTILE, hostile_index, texts

from hybrid_gpu.explore.answers import PageQuestion
from hybrid_gpu.explore.collection import Collection, digits_collection
from hybrid_gpu.explore.export import sample_of, write_page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = os.environ.get("HYBRID_GPU_BROWSER") or shutil.which("chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
# What of the page has the focus, and whether the filter is at work.
FOCUSED = (
    "(document.activeElement.closest('ul, ol, input, a, button') || {}).id"
    " || document.activeElement.className"
)
ALL_CONTAIN = (
    "[...document.querySelectorAll('#diffused .text')]"
    ".every(one => one.textContent.includes('text 1'))"
)
DIGITS = sample_of(1597, 12)
SIZES = [(1400, 900), (390, 844)]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as opened:
        browser = opened.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}px")
def page(browser, request):
    """A new page that allows no complaint of the browser, and no request that leaves."""
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda fault: complaints.append(str(fault)))
    page.on("request", lambda sent: requests.append(sent.url))
    page.complaints = complaints
    yield page
    context.close()
    outside = [
        url for url in requests if not url.startswith(("file:", "blob:", "http://127.0.0.1"))
    ]
    assert outside == []
    assert complaints == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page of files, with hostile keys and texts."""
    place = tmp_path_factory.mktemp("page") / "made"
    index, _ = hostile_index()
    collection = Collection(index, title=HOSTILE[0], texts=texts())
    write_page(collection, place, [PageQuestion(item=item, k=12) for item in range(60)])
    return place


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    place = tmp_path_factory.mktemp("digits") / "made"
    collection = digits_collection()
    write_page(collection, place, [PageQuestion(item=item) for item in DIGITS])
    return place


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a live page, by the command that users type."""
    pytest.importorskip("starlette", reason="Starlette is not installed")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    place = tmp_path_factory.mktemp("live")
    index, vectors = hostile_index()
    index.save(place / "index")
    lines = [re.sub("[\r\n]", " ", text) for text in texts()]
    (place / "texts.txt").write_text("\n".join(lines), encoding="utf-8", newline="\n")
    np.save(place / "queries.npy", vectors[:3].astype(np.float32))
    np.save(place / "wrong.npy", np.ones(5, np.float32))
    command = ["explore", place / "index", "--live", "--texts", place / "texts.txt", "--port", "0"]
    with told_by(command) as line:
        yield re.search(r"http://\S+/explore/page/", line).group(), place


@contextmanager
def told_by(command, **variables):
    """The first line of a command of ours that runs on, until it is not needed any more."""
    words = [sys.executable, "-m", "hybrid_gpu.cli", *map(str, command)]
    environment = {**os.environ, **variables}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            yield running.stderr.readline()
        finally:
            running.terminate()


def opened(page, address):
    page.goto(address)
    page.wait_for_selector("#diffused li")


def until(page, condition):
    """Wait for a condition; Playwright's own way needs ``eval``, which the page forbids."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise AssertionError(f"in vain: {condition}")


def rows(page, which):
    return [
        int(one)
        for one in page.eval_on_selector_all(
            f"#{which} li", "all => all.map(one => one.dataset.item)"
        )
    ]


def focused(page):
    return page.evaluate("document.activeElement.dataset.item || document.activeElement.id")


def test_a_folder_shows_both_rankings_the_path_and_the_drawing(page, digits):
    opened(page, (digits / "index.html").as_uri())
    assert page.title() == "Handwritten digits"
    assert len(rows(page, "plain")) == len(rows(page, "diffused")) == 20
    assert page.locator(".chain li").count() >= 1
    assert page.locator("#drawing svg .node").count() > 10
    assert page.locator("#drawing .node.on").count() == page.locator(".chain .thumb").count()
    assert "CC BY 4.0" in page.locator("#attribution").inner_text()
    shown = "all => all.every(one => one.complete && one.naturalWidth > 0)"
    until(page, f"({shown})([...document.querySelectorAll('#results img')])")


def test_nothing_is_wider_than_the_screen(page, digits, folder, server):
    for address in ((digits / "index.html").as_uri(), (folder / "index.html").as_uri(), server[0]):
        opened(page, address)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, address


def test_choosing_a_result_explains_it(page, digits):
    opened(page, (digits / "index.html").as_uri())
    last = page.locator("#diffused li").nth(15)
    last.click()
    assert last.get_attribute("aria-selected") == "true"
    label = last.locator(".label").inner_text()
    assert page.locator(".subject .label").inner_text() == label
    said = page.locator(".places").inner_text()
    assert "after diffusion place 16" in said
    before = int(re.search(r"By similarity place ([\d,]+)", said).group(1).replace(",", ""))
    badge = last.locator(".badge").inner_text()
    arrow = "▲" if before > 16 else "▼"
    assert badge == (f"{arrow} {abs(before - 16)}" if before != 16 else "=")
    assert page.locator("#drawing .ring").count() <= 1
    # By the drawing, too.
    page.locator("#drawing .node.open").first.click()
    assert page.locator(".subject .label").inner_text() != ""


def test_path_on_the_page_is_that_of_explain(page, digits):
    import hybrid_gpu as hg

    collection = digits_collection()
    opened(page, (digits / "index.html").as_uri())
    query = DIGITS[int(page.evaluate("location.hash").lstrip("#"))]
    for place in (0, 7, 19):
        page.locator("#diffused li").nth(place).click()
        item = rows(page, "diffused")[place]
        titles = page.eval_on_selector_all(
            ".chain:first-of-type li:not(.step)", "all => all.map(one => one.title)"
        )
        expected = hg.explain(collection.index, query, item).paths[0].ids
        assert [int(title.rpartition("#")[2]) for title in titles] == list(expected)


def test_filter_keeps_what_contains_a_text_and_says_when_nothing_does(page, folder):
    opened(page, (folder / "index.html").as_uri())
    before = rows(page, "diffused")
    page.fill("#filter", f"text {before[3]}")
    until(page, "document.querySelectorAll('#diffused li').length < 12")
    assert before[3] in rows(page, "diffused")
    page.fill("#filter", "nothing has this")
    page.wait_for_selector("#diffused-empty:not([hidden])")
    assert rows(page, "diffused") == []
    assert page.locator("#diffused-empty").inner_text() == "No result contains that."
    page.fill("#filter", "")
    until(page, "document.querySelectorAll('#diffused li').length === 12")


def test_queries_are_found_by_their_text(page, folder):
    opened(page, (folder / "index.html").as_uri())
    page.fill("#find", "text 33")
    until(page, "document.querySelectorAll('#picker li').length === 1")
    page.locator("#picker li").click()
    until(page, "location.hash === '#33'")
    page.fill("#find", "no such thing")
    until(page, "document.querySelectorAll('#picker li').length === 0")
    assert page.locator("#found").inner_text() == "Nothing contains that."


def test_keys_alone_lead_everywhere(page, folder):
    opened(page, (folder / "index.html").as_uri())
    until(page, "document.body.classList.contains('busy') === false")
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert order[0] == "skip"
    wanted = ["find", "picker", "filter", "plain", "diffused"]
    assert [one for one in order if one in wanted] == wanted
    while page.evaluate("!document.activeElement.closest('#diffused')"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    items = rows(page, "diffused")
    assert focused(page) == str(items[0])
    for step in (1, 2, 3):
        page.keyboard.press("ArrowDown")
        assert focused(page) == str(items[step])
        assert page.locator("#diffused li[aria-selected=true]").get_attribute("data-item") == str(
            items[step]
        )
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("ArrowLeft")
    assert focused(page) == str(rows(page, "plain")[3])
    page.keyboard.press("End")
    assert focused(page) == str(rows(page, "plain")[-1])
    # Another query.
    while page.evaluate("!document.activeElement.closest('#picker')"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    until(page, "location.hash === '#1'")


def test_hostile_keys_and_texts_are_only_shown(page, folder, server):
    for address in ((folder / "index.html").as_uri(), server[0]):
        opened(page, address)
        for number in range(len(HOSTILE)):
            if page.locator("#picker li").count() > number:
                page.locator("#picker li").nth(number).click()
                until(page, f"location.hash === '#{number}'")
                until(page, "!document.body.classList.contains('busy')")
        assert page.evaluate("window.broken") is None
        assert page.locator("main script, main img, main iframe, svg svg").count() == 0
    assert page.evaluate("({}).broken") is None
    opened(page, (folder / "index.html").as_uri() + "#0")
    assert page.title() == HOSTILE[0]
    assert page.locator("#asked-title").inner_text() == HOSTILE[0]


def test_an_item_that_diffusion_does_not_reach_is_told(page, folder):
    index, _ = hostile_index()
    query = int(np.flatnonzero(np.bincount(index.graph.components)[index.graph.components] == 1)[0])
    opened(page, (folder / "index.html").as_uri() + f"#{query}")
    page.locator("#diffused li").first.click()
    assert "Diffusion does not reach this item" in page.locator("#reason").inner_text()
    assert page.locator(".chain").count() == 0


def test_a_missing_file_is_told(page, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    Path(tmp_path / "copy" / "data" / "5.js").unlink()
    opened(page, (tmp_path / "copy" / "index.html").as_uri())
    page.locator("#picker li").nth(5).click()
    page.wait_for_selector("#alert:not([hidden])")
    assert "data/5.js" in page.locator("#alert").inner_text()
    page.locator("#picker li").nth(6).click()
    page.wait_for_selector("#alert", state="hidden")
    page.complaints.clear()  # the browser's own word of the missing file


def test_slider_and_method_ask_again(page, server):
    opened(page, server[0])
    before = page.locator("#status").inner_text()
    page.locator("#alpha").focus()
    page.keyboard.press("Home")
    until(page, "document.getElementById('status').textContent.includes('alpha 0.05')")
    assert page.locator("#alpha-value").inner_text() == "0.05"
    page.locator("#k").focus()
    page.keyboard.press("Home")
    until(page, "document.querySelectorAll('#diffused li').length === 5")
    page.select_option("#method", "temporal")
    until(page, "document.getElementById('status').textContent.includes('temporal')")
    assert page.locator("#status").inner_text() != before


def test_live_filter_still_gives_as_many_results(page, server):
    opened(page, server[0])
    page.fill("#filter", "text 1")
    until(page, ALL_CONTAIN)
    assert len(rows(page, "diffused")) > 5
    page.fill("#filter", "nothing has this")
    page.wait_for_selector("#diffused-empty:not([hidden])")
    assert page.locator("#why .empty").inner_text() == "There is no result to explain."


def test_live_queries_are_found_among_all_items(page, server):
    opened(page, server[0])
    page.fill("#find", "key 42")
    until(page, "document.querySelectorAll('#picker li').length === 1")
    page.locator("#picker li").click()
    until(page, "location.hash === '#42'")


def test_a_dropped_vector_is_a_query_and_a_wrong_one_is_told(page, server):
    address, place = server
    opened(page, address)
    page.set_input_files("#file", place / "queries.npy")
    until(page, "document.getElementById('asked-title').textContent === 'row 0 of queries.npy'")
    until(page, "document.querySelectorAll('.shares li').length === 5")
    page.fill("#row", "2")
    until(page, "document.getElementById('asked-title').textContent === 'row 2 of queries.npy'")
    page.set_input_files("#file", place / "wrong.npy")
    page.wait_for_selector("#alert:not([hidden])")
    assert "12 dimensions; got 5" in page.locator("#alert").inner_text()
    page.set_input_files("#file", place / "texts.txt")
    until(page, "document.getElementById('alert').textContent.startsWith('Not a .npy file')")
    page.complaints.clear()  # the browser's own word of a refused request


@pytest.fixture(scope="module")
def encoding():
    """The address of a live page that knows how texts become vectors."""
    serving = pytest.importorskip("hybrid_gpu.serve.app", reason="Starlette is not installed")
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
    from hybrid_gpu.serve.running import bound

    index, vectors = hostile_index()
    pages = explorer_routes(Collection(index, encode=lambda words: vectors[len(words)]))
    app = serving.create_app(index, routes=pages, public=PUBLIC)
    with bound("127.0.0.1", 0) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/explore/page/"
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address
        running.should_exit = True
        thread.join(60)


def test_a_text_is_a_query_by_enter_and_by_its_button(page, encoding):
    opened(page, encoding)
    for words, send in (("four", "Enter"), (HOSTILE[2], "button")):
        page.fill("#words", words)
        if send == "Enter":
            page.press("#words", "Enter")
        else:
            page.locator("#own-text button").click()
        until(page, f"document.getElementById('asked-title').textContent === {words!r}")
        nearest = page.locator("#plain li").first
        assert nearest.get_attribute("data-item") == str(len(words))
    assert page.evaluate("window.broken") is None


def test_a_result_becomes_the_next_query(page, server):
    opened(page, server[0])
    page.locator("#diffused li").nth(2).click()
    item = rows(page, "diffused")[2]
    page.get_by_role("button", name="Search from here").click()
    until(page, f"location.hash === '#{item}'")


def test_a_server_with_a_token_asks_for_it(page, server):
    command = ["serve", server[1] / "index", "--port", "0"]
    with told_by(command, HYBRID_GPU_TOKEN="open") as line:
        page.goto(re.search(r"http://[\w.:]+", line).group() + "/explore")
        page.wait_for_selector("#token:not([hidden])")
        assert page.locator("#diffused li").count() == 0
        page.fill("#token-text", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token:not([hidden])")
        page.fill("#token-text", "open")
        page.keyboard.press("Enter")
        page.wait_for_selector("#diffused li")
        page.complaints.clear()  # the browser's own word of what was refused
