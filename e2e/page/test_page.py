"""The live page in a real Chromium: its numbers, its reconnecting, its settings, and whom it leaves out."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from e2e.page import browser

pytestmark = pytest.mark.timeout(120)

SIZES = {"desktop": (1280, 900), "tablet": (800, 1000), "phone": (360, 740)}
MINUTES = float(os.environ.get("CARPOOL_PAGE_MINUTES", "0.5"))
"""How long the page is watched under load by the test of its memory. 10 is what a release asks for."""
_MOST_GROWTH = 1.5  # MB of the script's memory, after a garbage collection, however long it takes


async def counts(page, list_id):
    """The reasons and counts of a list of the page."""
    items = page.locator(f"#{list_id} li[data-reason]")
    return {
        await item.get_attribute("data-reason"): int(await item.get_attribute("data-count"))
        for item in await items.all()
    }


async def counted(session, url, metric):
    """The counts of a metric of /metrics by its reason, but those of 0."""
    async with session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    start = metric + '_total{reason="'
    found = {
        line[len(start) :].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(start)
    }
    return {name: count for name, count in found.items() if count}


async def wait_until(page, expression, argument=None):
    """Until an expression of JavaScript is true. Polled from here: the page's policy forbids strings that are code."""
    async with asyncio.timeout(20):
        while not await page.evaluate(expression, argument):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


async def test_the_numbers_are_those_of_the_metrics_page(chromium, start):
    running = await start("--retry-statuses=400")
    shown = await browser.open_page(chromium, running.url)
    await asyncio.gather(*(running.post(rows=1 + n % 3, request_id=f"n{n}") for n in range(60)))
    await running.post(body='{"instances":["bad"]}')
    await running.post(body="nonsense")
    await running.post(body='{"inputs":{"a":[1],"b":[2]}}')
    await running.session.get(f"http://127.0.0.1:{running.port}/v1/models")
    answers = await running.metric("carpool_requests_total{")
    await wait_until(shown.page, "wanted => document.getElementById('totals').dataset.answers == wanted", answers)
    for list_id, metric in {
        "reasons": "carpool_batches", "refused": "carpool_refused", "failed": "carpool_predictor_errors",
        "unbatched": "carpool_unbatched",
    }.items():  # fmt: skip
        on_page = await counts(shown.page, list_id)
        assert on_page == await counted(running.session, running.url, metric), list_id
        assert on_page, list_id
    batches = sum((await counts(shown.page, "reasons")).values())
    assert await shown.page.locator("#reasons-note").inner_text() == f"{batches:,} batches"
    assert (shown.complaints, shown.strangers) == ([], [])


async def test_figures_move_and_queues_fill_under_load(chromium, start, loaded):
    running = await start()
    loaded(running, 300)
    shown = await browser.open_page(chromium, running.url)
    for tile in ("arrivals", "answers", "size", "wait", "predictor"):
        await wait_until(
            shown.page, f"() => parseFloat(document.querySelector('#tile-{tile} .value span').innerText) > 0"
        )
    await wait_until(shown.page, "() => document.querySelector('#queues .of')?.innerText.includes(' of 32')")
    await wait_until(shown.page, "() => document.querySelector('#out .detail')?.innerText.includes(' ms')")
    sentences = await shown.page.locator("#sentences").inner_text()
    assert "A call takes" in sentences
    assert await shown.page.locator("#curve path.edge").get_attribute("d")
    assert "from where on larger ones hardly save" in await shown.page.locator("#curve figcaption").inner_text()
    assert shown.complaints == []


async def test_a_batch_can_be_chosen_with_the_keyboard_and_tells_who_was_in_it(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    await running.post(rows=3, request_id="the-one")
    await wait_until(shown.page, "() => document.querySelectorAll('#legend li').length > 0")
    strip = shown.page.locator("#strip")
    await strip.focus()
    await shown.page.keyboard.press("ArrowLeft")
    told = await strip.get_attribute("aria-valuetext")
    assert told.startswith("idle, 3 of 32 instances of 1 request, waited ")
    members = await shown.page.locator("#members tr").all_inner_texts()
    assert len(members) == 1
    assert members[0].split("\t")[0] == "the-one"
    assert members[0].split("\t")[2] == "3"
    await shown.page.keyboard.press("Escape")
    assert not await shown.page.locator("#chosen").is_visible()


async def test_a_batch_can_be_chosen_with_a_pointer_and_the_picture_stands_still_meanwhile(chromium, start, loaded):
    running = await start()
    loaded(running, 200)
    shown = await browser.open_page(chromium, running.url)
    await wait_until(shown.page, "() => document.querySelectorAll('#legend li').length > 0")
    await asyncio.sleep(3)
    box = await shown.page.locator("#strip").bounding_box()
    await shown.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.6)
    assert await shown.page.locator("#held").is_visible()
    await shown.page.mouse.click(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.6)
    assert await shown.page.locator("#chosen").is_visible()
    first = await shown.page.locator("#chosen-id").inner_text()
    await asyncio.sleep(1)
    assert await shown.page.locator("#chosen-id").inner_text() == first
    await shown.page.mouse.move(5, 5)
    assert not await shown.page.locator("#held").is_visible()


async def test_the_page_comes_back_by_itself_after_a_restart(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    await asyncio.gather(*(running.post() for _ in range(5)))
    await wait_until(shown.page, "() => document.getElementById('totals').dataset.answers == 5")
    await running.stop()
    await shown.page.locator("#state[data-state=lost]").wait_for(timeout=10_000)
    assert await shown.page.locator("#state").inner_text() == "Connection lost, trying again"
    await running.start()
    await shown.page.locator("#state[data-state=live]").wait_for(timeout=15_000)
    await running.post()
    await wait_until(shown.page, "() => document.getElementById('totals').dataset.answers == 1")


async def test_live_settings_can_be_changed_and_mistakes_are_explained(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    await shown.page.locator("#set-max_batch_size").fill("0")
    await shown.page.locator("#apply").click()
    await shown.page.locator("#applied[data-bad]").wait_for()
    assert "--max-batch-size" in await shown.page.locator("#applied").inner_text()
    await shown.page.locator("#set-max_batch_size").fill("7")
    await shown.page.keyboard.press("Enter")
    await wait_until(shown.page, "() => document.getElementById('applied').innerText == 'In force: max_batch_size 7'")
    async with running.session.get(running.url + "/config") as answer:
        assert (await answer.json())["max_batch_size"] == 7


async def test_changes_by_others_are_shown(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    async with running.session.patch(running.url + "/config", data=json.dumps({"slo": 123})) as answer:
        assert answer.status == 200
    await wait_until(shown.page, "() => document.getElementById('set-slo').value == '123'")


async def test_the_ninth_page_says_why_it_shows_nothing(chromium, start):
    running = await start()
    streams = [await running.session.get(running.url + "/events") for _ in range(8)]
    page = await chromium.new_page()
    await page.goto(running.url + "/", wait_until="domcontentloaded")
    await page.locator("#trouble").wait_for()
    assert "8 viewers look at this sidecar already" in await page.locator("#trouble").inner_text()
    streams[0].close()
    await page.locator("#state[data-state=live]").wait_for(timeout=15_000)
    assert not await page.locator("#trouble").is_visible()
    for stream in streams:
        stream.close()


async def test_what_callers_send_never_becomes_markup(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    evil = "<img/src=x/onerror=alert(1)>"
    await running.post(f"/v1/models/{evil}:predict", request_id=f"<script>{evil}</script>")
    await wait_until(shown.page, "() => document.querySelectorAll('#legend li').length > 0")
    await shown.page.locator("#strip").focus()
    await shown.page.keyboard.press("ArrowLeft")
    assert "<script>" in await shown.page.locator("#members").inner_text()
    assert await shown.page.locator("main img, main script").count() == 0
    assert shown.complaints == []


async def test_the_policy_lets_nothing_else_run(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url)
    ran = await shown.page.evaluate(
        """() => { const s = document.createElement('script');
        try { s.textContent = 'window.ran = 1'; document.body.append(s); } catch { /* Trusted Types */ }
        return window.ran === 1; }"""
    )
    assert ran is False
    assert shown.complaints != []


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", SIZES)
async def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(chromium, start, loaded, scheme, size):
    from axe_playwright_python import async_playwright as axe

    running = await start()
    loaded(running, 150)
    await running.post(body="nonsense")
    await running.post(body='{"inputs":{"a":[1],"b":[2]}}')
    width, height = SIZES[size]
    shown = await browser.open_page(chromium, running.url, width, height, color_scheme=scheme)
    await asyncio.sleep(2)
    await shown.page.locator("#strip").focus()
    await shown.page.keyboard.press("ArrowLeft")
    await shown.page.locator("#all summary").click()
    await shown.page.locator("#all-settings tr").first.wait_for()
    found = await axe.Axe().run(shown.page)
    assert found.violations_count == 0, found.generate_report()
    assert await shown.page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.complaints == []


async def test_the_theme_can_be_chosen_and_is_remembered(chromium, start):
    running = await start()
    shown = await browser.open_page(chromium, running.url, color_scheme="light")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await shown.page.evaluate(ground)
    await shown.page.locator("#theme").click()
    dark = await shown.page.evaluate(ground)
    assert light != dark
    await shown.page.reload(wait_until="domcontentloaded")
    assert await shown.page.evaluate(ground) == dark


async def test_memory_is_flat_on_both_sides(chromium, start, loaded):
    running = await start()
    loaded(running, 400)
    shown = await browser.open_page(chromium, running.url)
    inspector = await shown.page.context.new_cdp_session(shown.page)

    async def used():
        await inspector.send("HeapProfiler.collectGarbage")
        heap = await inspector.send("Runtime.getHeapUsage")
        nodes = await inspector.send("Memory.getDOMCounters")
        return heap["usedSize"] / 2**20, nodes["nodes"], await running.metric("process_resident_memory_bytes") / 2**20

    await asyncio.sleep(15)
    heap, nodes, resident = await used()
    await asyncio.sleep(MINUTES * 60)
    heap_after, nodes_after, resident_after = await used()
    print(
        f"\n{MINUTES:g} minutes: heap {heap:.1f} to {heap_after:.1f} MB, {nodes} to {nodes_after} nodes, "
        f"sidecar {resident:.0f} to {resident_after:.0f} MB"
    )
    assert heap_after - heap < _MOST_GROWTH
    assert nodes_after - nodes < 500
    assert resident_after - resident < 8


test_memory_is_flat_on_both_sides = pytest.mark.timeout(120 + MINUTES * 90)(test_memory_is_flat_on_both_sides)
