"""Make the README's pictures: ``python -m tests.lab.screenshot`` from the checkout's root.

Opens the quickstart notebook's widget in JupyterLab and Chromium, light and dark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import browsers
from lab.conftest import Lab, Notebook

IMAGES = Path(__file__).parents[2] / "notebooks" / "images"
WIDGET = "import trainmem\nwidget = trainmem.TrainingMemoryWidget()\nwidget"


def main() -> None:
    """Write ``widget-light.png`` (fits) and ``widget-dark.png`` (out of memory, with fixes)."""
    IMAGES.mkdir(exist_ok=True)
    path = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, browsers.chromium(path) as browser:
        lab = Lab(Path(folder))
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
                notebook.until(
                    "(frame) => document.querySelector('.trainmem img').dataset.frame === frame",
                    notebook.evaluate("print(widget._frame_id)"),
                )
                notebook.widget.screenshot(path=IMAGES / f"widget-{theme.lower()}.png")
                context.close()
                lab.shut_down_kernels()
        finally:
            lab.close()


if __name__ == "__main__":
    main()
