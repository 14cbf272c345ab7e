"""Takes the docs' pictures: the live page dark and light and on a phone, and `top` in a terminal.

    make pictures            # all of them, into docs/
    make pictures ARGS="--folder /tmp --seconds 30"

Each is of a running sidecar under the load of `rig`, so no two are alike.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import pathlib
import sys

from rich import console

from carpool_sidecar.live import top_view
from e2e.cluster import binaries
from e2e.page import browser, rig

_DOCS = pathlib.Path(__file__).parents[2] / "docs"
_RATE = 420
# A predictor that is worth batching for, and an objective, so that all of the page has something to show.
_FLAGS = ("--slo=400",)


async def _take(folder: pathlib.Path, seconds: float) -> None:
    async with rig.running(*_FLAGS) as running, browser.launched() as chromium:
        load = asyncio.create_task(running.load(_RATE))
        await _others(running)
        shown = [
            await browser.open_page(
                chromium, running.url, width, height, color_scheme=scheme, device_scale_factor=scale
            )
            for width, height, scheme, scale in (
                (1280, 800, "dark", 1),
                (1280, 800, "light", 1),
                (360, 780, "light", 1.5),
            )
        ]
        dark, light, phone = [each.page for each in shown]
        await asyncio.sleep(seconds)
        await dark.screenshot(path=folder / "live-dark.png", full_page=True)
        await light.locator("#strip").focus()
        for _ in range(3):
            await light.keyboard.press("ArrowLeft")
        await light.screenshot(path=folder / "live-batch.png", clip={"x": 0, "y": 0, "width": 1280, "height": 760})
        await light.keyboard.press("Escape")
        await phone.screenshot(path=folder / "live-phone.png")
        await _top(running, folder / "live-top.svg")
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)


async def _others(running: rig.Rig) -> None:
    """What is not batched, refused or rejected."""
    await running.post(body='{"instances":[1]')
    for _ in range(3):
        await running.post(body='{"inputs":{"a":[1],"b":[2]}}')


async def _top(running: rig.Rig, path: pathlib.Path) -> None:
    program = (sys.executable, "-m", "carpool_sidecar", "top", "--json", f"--admin-port={running.admin_port}")
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    snapshot = json.loads(text)
    screen = console.Console(record=True, width=112, file=io.StringIO(), force_terminal=True)
    screen.print(top_view.render(snapshot, snapshot.pop("latest"), height=40))
    # Without the fonts from outside that the template names.
    template = console.CONSOLE_SVG_FORMAT
    start, end = template.index("    @font-face"), template.rindex("    .{unique_id}-matrix")
    screen.save_svg(str(path), title="carpool-sidecar top", code_format=template[:start] + template[end:])


def _shrink(path: pathlib.Path) -> None:
    """Fewer colours: a third of the bytes, and the eye does not see it."""
    from PIL import Image

    with Image.open(path) as picture:
        smaller = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    smaller.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=_DOCS, help="where to (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=65, help="of load before (%(default)s): sparklines take a minute"
    )
    chosen = parser.parse_args()
    try:
        asyncio.run(_take(chosen.folder, chosen.seconds))
        for path in sorted(chosen.folder.glob("live-*.png")):
            _shrink(path)
    except binaries.Unavailable as missing:
        sys.exit(f"error: {missing}")


if __name__ == "__main__":
    main()
