"""Makes the README's pictures from runs of the real model: python tests/browser/make_images.py [docs/img [dark]]

Player and Compare, in Chinese and in English, as pages written by to_html and photographed in headless Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from conftest import FLAGS, ROOT, chromium_path, sync_api

sys.path.insert(0, str(ROOT))

import minirt
import widgets

QUESTIONS = [
    ("What is the capital of France?", 16),
    ("Explain in three sentences why the sky is blue.", 72),
    ("Name three fruits.", 20),
    ("Write a short poem about a bus that never stops.", 80),
    ("What is 7 times 6?", 14),
    ("Why do cats sleep so much? Answer in two sentences.", 52),
    ("Give one tip for learning Python.", 40),
    ("Translate 'good morning' into Spanish.", 16),
    ("Describe the sea in four sentences.", 64),
    ("Who wrote Hamlet?", 14),
]


def need_chinese() -> None:
    """Stop where Chinese would come out as empty boxes; a system without fontconfig is taken at its word."""
    lister = shutil.which("fc-list")
    if lister and not subprocess.run([lister, ":lang=zh"], capture_output=True, check=True).stdout.strip():
        raise SystemExit("no font with Chinese is installed, as fonts-noto-cjk: the pictures would show empty boxes.")


def main(folder: Path, theme: Literal["light", "dark"] = "light") -> None:
    """Write player-zh.png, player-en.png, compare-zh.png and compare-en.png."""
    need_chinese()
    folder.mkdir(parents=True, exist_ok=True)
    lm = minirt.load_model()
    requests = [minirt.Request(q, max_new_tokens=n, arrival=3.0 * i) for i, (q, n) in enumerate(QUESTIONS)]
    setting = {"max_batch_size": 4, "block_size": 8}
    vllm = minirt.ContinuousEngine(lm, policy="vllm", num_blocks=72, **setting).run(requests)
    static = minirt.StaticEngine(lm, num_blocks=72, **setting).run(requests)
    with sync_api.sync_playwright() as p, tempfile.TemporaryDirectory() as tmp:
        browser = p.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        for lang in ("zh", "en"):
            pages = {
                "player": (widgets.Player(vllm, lang=lang, mode="run"), "v.transport.seek(47)"),
                "compare": (widgets.Compare(static, vllm, lang=lang), "v.transport.seek(62)"),
            }
            for name, (widget, js) in pages.items():
                size = {"width": 1200, "height": 1100}
                page = browser.new_page(viewport=size, device_scale_factor=1.5, color_scheme=theme)
                page.goto(widget.to_html(Path(tmp) / f"{name}.html").as_uri())
                page.wait_for_selector(".mrt-slot")
                page.evaluate(f"() => {{ const v = document.querySelector('.mrt').mrtView; {js} }}")
                page.wait_for_timeout(1500)
                page.locator(".mrt").screenshot(path=folder / f"{name}-{lang}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "img"
    main(where, "dark" if sys.argv[2:] == ["dark"] else "light")
