"""Make the README's pictures: ``python -m tests.lab.screenshot`` from the checkout's root.

Opens the quickstart notebook's widget in JupyterLab and Chromium, light and dark.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from tests.conftest import CHROMIUM_ARGS
from tests.lab.conftest import Lab, Notebook

IMAGES = Path(__file__).parents[2] / "notebooks" / "images"
WIDGET = "import trainmem\nwidget = trainmem.TrainingMemoryWidget()\nwidget"


def main() -> None:
    """Write ``widget-light.png`` (fits) and ``widget-dark.png`` (out of memory, with fixes)."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=CHROMIUM_ARGS
        )
        try:
            for theme, length in (("Light", 4096), ("Dark", 65_536)):
                context = browser.new_context(
                    viewport={"width": 1400, "height": 900}, device_scale_factor=1.5
                )
                notebook = Notebook(context.new_page(), lab, lab.notebook("shot.ipynb", WIDGET))
                notebook.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
                notebook.run()
                notebook.evaluate(f"widget.seq_length = {length}")
                notebook.wait_box("Sequence", str(length))
                notebook.page.wait_for_timeout(1500)
                notebook.widget.screenshot(path=IMAGES / f"widget-{theme.lower()}.png")
                context.close()
                lab.shut_down_kernels()
        finally:
            browser.close()
            lab.close()


if __name__ == "__main__":
    main()
