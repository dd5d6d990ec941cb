"""Make docs/figures/explorer.png: the explorer of the demo in Chromium.

    python -m pip install -e ".[dev,test-browser]"    # and a Chromium of the system
    python tools/explorer_picture.py

The same page gives the same picture, as far as the fonts of the machine are the same.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "explorer.png"
WIDTH, HEIGHT = 1400, 880
# Colors of the picture: half of the bytes, and nobody sees a difference.
COLORS = 128
CHROMIUM = os.environ.get("HYBRID_GPU_BROWSER") or shutil.which("chromium")


def screenshot(page: Path) -> bytes:
    """What the page shows first."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        view.goto(page.resolve().as_uri())
        view.wait_for_selector("#drawing svg")
        view.wait_for_load_state("networkidle")
        taken = view.screenshot()
        browser.close()
    return taken


def main() -> None:
    """Write the page, look at it, keep the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page"
        command = [sys.executable, "-m", "hybrid_gpu.cli", "explore", "digits", "-o", str(page)]
        subprocess.run(command, check=True)
        taken = screenshot(page / "index.html")
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLORS)
    image.save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
