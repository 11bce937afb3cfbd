"""Run: pytest tests/serving/test_web_page.py

The page, as a person uses it, in Chromium: pointer, keyboard, phone, dark, errors. What it shows is compared with what
the API answers.
"""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Playwright, Route, expect, sync_playwright

from serve_app.api import make_api
from serve_app.edition import Edition
from serve_app.fan_out import FanOut
from serve_app.members import Members
from serve_app.service import Service
from serve_app.settings import ServingSettings

TEXT = "key3 noise1 key0 noise7"
KEY = "correct-horse"
FAINT = 0.04
CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.processes, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Of a module: while it runs, this thread has an event loop, and other tests start their own.
    with sync_playwright() as playwright:
        browser = start(playwright)
        yield browser
        browser.close()


def start(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens the page of a server. In the end nothing may have gone wrong in it, nor have left for another host."""
    wrong: list[str] = []
    contexts = []

    def said(kind: str, what: str) -> None:
        # A refused request is the server's word, which the page shows; anything else is a mistake of the page.
        if kind == "error" and not what.startswith("Failed to load resource"):
            wrong.append(what)

    def open_page(base: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (one) => console.error('policy', one.violatedDirective))"
        )
        page.on("console", lambda message: said(message.type, message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        host = urlsplit(base).netloc
        page.on("request", lambda request: urlsplit(request.url).netloc == host or wrong.append(request.url))
        page.goto(base)
        return page

    expect.set_options(timeout=30_000)
    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def page(server: str, opened: Opened) -> Page:
    return opened(server)


class Near:
    """Members in this process in the place of a deployment's handle."""

    deployment_name = "near"

    def __init__(self) -> None:
        self.members = Members(None, 1)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=getattr(self.members, method))


@pytest.fixture(scope="module")
def locked(serving_bundle: Path) -> Iterator[str]:
    """A server without Ray that requires the key."""
    serving, ready = ServingSettings(), threading.Event()
    service = Service(serving, FanOut([Near()], serving.time_limit_s))  # type: ignore[list-item]
    server = uvicorn.Server(uvicorn.Config(make_api(service, [KEY]), port=0, log_level="error"))

    async def run() -> None:
        await service.use(Edition.checked(serving_bundle))
        task = asyncio.create_task(server.serve())
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        ready.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(60) and server.started
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def asked(server: str, path: str, **body: Any) -> Any:
    """What the API answers."""
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(server + path, data, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


def why(server: str, text: str, label: str) -> dict[str, Any]:
    answer = asked(server, "/v1/tag", text=text, top_k=1_000, explain=True)
    return next(dict(one["explanation"]) for one in answer["results"][0]["labels"] if one["label"] == label)


def options(page: Page) -> Any:
    return page.get_by_role("listbox", name="Labels", exact=True).get_by_role("option")


def tag(page: Page, text: str = TEXT) -> None:
    page.get_by_role("textbox", name="Text to tag").fill(text)
    page.get_by_role("button", name="Tag").click()
    expect(options(page).first).to_be_visible()
    expect(page.locator("#sheet")).to_have_attribute("aria-busy", "false")


def choose(page: Page, place: int) -> None:
    options(page).nth(place).click()
    expect(options(page).nth(place)).to_have_attribute("aria-selected", "true")


def lit(page: Page) -> list[tuple[str, float]]:
    """The lit words under the text, in their order, and how much colour is behind each."""
    marks = page.locator("#mirror mark")
    colours = marks.evaluate_all("all => all.map(one => [one.textContent, getComputedStyle(one).backgroundColor])")
    return [(word, channels(colour)[3]) for word, colour in colours]


def channels(colour: str) -> list[float]:
    """Red, green, blue and alpha of a computed colour."""
    found = [float(number) for number in re.findall(r"[\d.]+", colour)]
    return found if len(found) == 4 else [*found, 1.0]


def contrast(ink: list[float], *layers: list[float]) -> float:
    """Of WCAG, between an ink and layers of colour, the lowest first."""

    def luminance(colour: list[float]) -> float:
        shares = [one / 255 for one in colour[:3]]
        red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    ground = layers[0]
    for layer in layers[1:]:
        ground = [below + (above - below) * layer[3] for below, above in zip(ground[:3], layer[:3], strict=True)]
    dark, light = sorted((luminance(ink), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def style(page: Page, selector: str, name: str) -> str:
    return str(page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{name}"))


def names(words: list[str], weights: list[float]) -> list[str]:
    """The words whose weight is at least a small part of the largest."""
    return [word for word, weight in zip(words, weights, strict=True) if weight / max(weights) >= FAINT]


def test_labels_are_those_of_the_api(server, page):
    tag(page)
    answer = asked(server, "/v1/tag", text=TEXT, top_k=5)
    [result] = answer["results"]
    assert [shown.split("\n")[0] for shown in options(page).all_inner_texts()] == [
        one["name"] for one in result["labels"]
    ]
    for shown, one in zip(options(page).all_inner_texts(), result["labels"], strict=True):
        assert f"score {one['score']:.2f}" in shown and "%" in shown
    bars = page.locator(".bar").evaluate_all("all => all.map(one => getComputedStyle(one, '::after').transform)")
    assert [float(bar[7:].split(",")[0]) for bar in bars] == pytest.approx(
        [one["probability"] for one in result["labels"]], abs=1e-4
    )
    status = page.locator("#status").inner_text()
    assert re.search(rf"5 labels · {result['words']} words read · \d+ ms on the server, \d+ ms round trip$", status)
    model = asked(server, "/v1/model")
    assert page.locator("#model").inner_text() == (
        f"{model['name']} — {model['labels']} labels, {model['trees']} trees, {model['words']} words known"
    )
    page.locator("#top-k").select_option("10")
    expect(options(page)).to_have_count(10)


def test_a_label_lights_the_words_that_it_attended_to(server, page):
    tag(page)
    choose(page, 0)
    explanation = why(server, TEXT, asked(server, "/v1/tag", text=TEXT)["results"][0]["labels"][0]["label"])
    words, weights = zip(*((one["word"], one["weight"]) for one in explanation["words"]), strict=True)
    expect(page.locator("#mirror mark")).to_have_text(names(words, weights))
    assert max(lit(page), key=lambda one: one[1])[0] == words[weights.index(max(weights))]
    expect(page.locator("#words li").first).to_contain_text(words[weights.index(max(weights))])
    # the light lies under the letters
    boxes = [page.locator(one).bounding_box() for one in ("#mirror", "#text")]
    assert boxes[0] == boxes[1]
    parts = page.locator("#contributions li")
    expect(parts).to_have_count(len(explanation["contributions"]))
    for shown, part in zip(parts.all_inner_texts(), explanation["contributions"], strict=True):
        assert part["member"] in shown and f"{part['share']:.2f}" in shown
    paths = [one["path"] for one in explanation["paths"]]
    for number, path in enumerate(paths):
        nodes = page.locator("#trees section").nth(number).get_by_role("button")
        expect(nodes).to_have_count(len(path))
        for shown, node in zip(nodes.all_inner_texts(), path, strict=True):
            assert f"Level {node['level']}" in shown and node["name"] in shown and "%" in shown
    # a node of the path, and back
    node = page.locator("#trees section").last.get_by_role("button").first
    node.click()
    expect(node).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#mirror mark")).to_have_text(names(words, paths[-1][0]["weights"]))
    page.get_by_role("button", name="Attention of the label").click()
    expect(node).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#mirror mark")).to_have_text(names(words, weights))


def test_a_labels_figures_stay_when_it_is_chosen(page, tagger, texts):
    """A member that does not rank a label adds nothing to its score in the list, though it could score it."""

    def most_different(text: str) -> int | None:
        [ranked] = tagger.tag([text], top_k=20)
        [scored] = tagger.tag([text], labels=[one.label for one in ranked])
        scores = {one.label: one.score for one in scored}
        gaps = [scores[one.label] - one.score for one in ranked]
        return gaps.index(max(gaps)) if max(gaps) > 0.02 else None

    about_much = (" ".join(texts[first : first + 4]) for first in range(len(texts)))
    text, most = next((text, place) for text in about_much if (place := most_different(text)) is not None)
    page.locator("#top-k").select_option("20")
    tag(page, text)
    for place in {0, most}:
        figures = [options(page).nth(place).locator(one).inner_text() for one in (".percent", ".score")]
        choose(page, place)
        expect(page.locator("#why-figures")).to_have_text(" · ".join(figures))
    box = page.get_by_role("combobox", name="Ask about a label")
    box.fill(options(page).nth(most).locator(".name").inner_text())
    found = page.get_by_role("listbox", name="Labels found").get_by_role("option")
    expect(found.first).to_be_visible()
    box.press("Enter")
    expect(found).to_have_count(0)
    expect(page.locator("#why-figures")).to_have_text(" · ".join(figures))


def test_characters_beyond_the_basic_plane_count_once(server, page):
    text = "🦊🦊 key3 𝕏𝕐 noise1 🎉\n\nkey0 👩‍👩‍👧 noise7"
    tag(page, text)
    choose(page, 0)
    explanation = why(server, text, asked(server, "/v1/tag", text=text)["results"][0]["labels"][0]["label"])
    words, weights = zip(*((one["word"], one["weight"]) for one in explanation["words"]), strict=True)
    assert {"key3", "𝕏𝕐", "noise1", "key0", "noise7"} == set(words)
    expect(page.locator("#mirror mark")).to_have_text(names(words, weights))
    assert (page.locator("#mirror").text_content() or "").rstrip("\u200b") == text


def test_an_edit_makes_the_labels_old_until_it_is_taken_back(page):
    tag(page)
    choose(page, 0)
    page.get_by_role("textbox", name="Text to tag").press_sequentially("s")
    expect(page.locator("#status")).to_contain_text("changed")
    expect(page.locator("#mirror mark")).to_have_count(0)
    expect(page.locator("#labels")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Backspace")
    expect(page.locator("#status")).to_contain_text("words read")
    expect(page.locator("#mirror mark")).not_to_have_count(0)


def test_examples_are_offered(server, page):
    example = asked(server, "/v1/examples")[1]
    page.locator("#examples").select_option(label=example)
    expect(page.get_by_role("textbox", name="Text to tag")).to_have_value(example)
    expect(options(page)).to_have_count(5)


def test_the_keyboard_is_enough(server, page):
    page.get_by_role("textbox", name="Text to tag").focus()
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    expect(options(page)).to_have_count(5)

    def walk_to(selector: str) -> None:
        for _ in range(20):
            if page.locator(selector).count():
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{selector} can't be reached")

    walk_to("#labels [role=option]:focus")
    expect(options(page).first).to_be_focused()
    page.keyboard.press("End")
    expect(options(page).last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(options(page).nth(1)).to_be_focused()
    assert style(page, "#labels :focus", "outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(options(page).nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator("#mirror mark")).not_to_have_count(0)
    expect(page.locator("#why-status")).to_contain_text("most attention to")
    walk_to("#trees button:focus")
    page.keyboard.press("Space")
    expect(page.locator("#trees button").first).to_have_attribute("aria-pressed", "true")


def test_a_label_can_be_asked_about_by_name(server, page):
    page.get_by_role("textbox", name="Text to tag").fill(TEXT)
    box = page.get_by_role("combobox", name="Ask about a label")
    box.press_sequentially("LABEL-1")
    found = page.get_by_role("listbox", name="Labels found").get_by_role("option")
    hits = asked(server, "/v1/labels?query=label-1&limit=8")
    expect(found).to_have_count(len(hits))
    expect(box).to_have_attribute("aria-expanded", "true")
    box.press("ArrowDown")
    box.press("ArrowDown")
    expect(found.nth(1)).to_have_attribute("aria-selected", "true")
    box.dispatch_event("keydown", {"key": "Enter", "isComposing": True})  # that of an input method
    expect(found.nth(1)).to_have_attribute("aria-selected", "true")
    box.press("Enter")
    expect(page.locator("#why-title")).to_have_text(hits[1]["name"])
    expect(page.locator("#trees section")).to_have_count(asked(server, "/v1/model")["trees"])
    expect(found).to_have_count(0)
    box.press_sequentially("nothing at all")
    expect(page.locator("#found")).to_have_text("No label has these words.")
    box.press("Escape")
    expect(page.locator("#found")).to_be_hidden()


def test_enter_takes_no_label_that_former_words_found(server, page):
    page.get_by_role("textbox", name="Text to tag").fill(TEXT)
    box = page.get_by_role("combobox", name="Ask about a label")
    box.press_sequentially("label-1")
    expect(page.locator("#found [role=option]").first).to_be_visible()
    held: list[Route] = []
    page.route("**/v1/labels?*", lambda route: held.append(route))
    box.press_sequentially("2")
    box.press("Enter")  # before the answer, while the former list is still shown
    expect(page.locator("#why-content")).to_be_hidden()
    assert box.input_value() == "label-12"
    page.wait_for_timeout(300)
    held[-1].continue_()
    page.unroute("**/v1/labels?*")
    [hit, *_] = asked(server, "/v1/labels?query=label-12&limit=8")
    expect(page.locator("#found [role=option]").first).to_contain_text(hit["name"])
    box.press("Enter")
    expect(page.locator("#why-title")).to_have_text(hit["name"])


def test_a_search_that_is_answered_takes_back_that_one_was_not(page):
    alert = page.get_by_role("alert")
    box = page.get_by_role("combobox", name="Ask about a label")
    page.route("**/v1/labels?*", lambda route: route.abort("connectionrefused"))
    box.press_sequentially("label")
    expect(alert).to_contain_text("can’t be reached")
    page.unroute("**/v1/labels?*")
    box.press_sequentially("-1")
    expect(page.locator("#found [role=option]").first).to_be_visible()
    expect(alert).to_be_hidden()


def test_only_nothing_and_all_are_shown_as_such(page):
    shares = [0, 0.0004, 0.05, 0.5, 0.994, 0.995, 0.998, 0.9995, 1]
    shown = page.evaluate("async (some) => some.map((await import('/page/parts.js')).percent)", shares)
    assert shown == ["0 %", "<0.1 %", "5.0 %", "50 %", "99 %", "99.5 %", "99.8 %", ">99.9 %", "100 %"]


def test_markup_is_text(page):
    name = "<img src=x onerror=alert(1)>"

    def renamed(route: Route) -> None:
        answer = route.fetch().json()
        for one in answer["results"][0]["labels"]:
            one["name"] = name
            for path in one.get("explanation", {}).get("paths", []):
                for node in path["path"]:
                    node["name"] = f"{name}, {name}"
        route.fulfill(json=answer)

    page.route("**/v1/tag", renamed)
    text = "<b onclick=x>key3</b> <script>key0</script>"
    tag(page, text)
    choose(page, 0)
    expect(page.locator("#why-title")).to_have_text(name)
    expect(page.locator("#labels .name").first).to_have_text(name)
    expect(page.locator("#labels .id").first).to_contain_text("label-")
    expect(page.locator("#trees .name").first).to_have_text(f"{name}, {name}")
    assert (page.locator("#mirror").text_content() or "").startswith(text)
    assert page.locator("main img, main script, main [onclick], main [onerror]").count() == 0


def test_what_the_server_refuses_is_said(server, page):
    alert = page.get_by_role("alert")
    page.get_by_role("button", name="Tag").click()
    expect(alert).to_contain_text("Write or paste a text first.")
    most = asked(server, "/v1/model")["limits"]["characters"]
    page.get_by_role("textbox", name="Text to tag").fill("a" * (most + 1))
    page.get_by_role("button", name="Tag").click()
    expect(alert).to_contain_text(f"text: String should have at most {most} characters")

    def busy(route: Route) -> None:
        problem = {"title": "Service Unavailable", "status": 503, "detail": "too many texts wait"}
        content = {"content_type": "application/problem+json", "body": json.dumps(problem)}
        route.fulfill(status=503, headers={"Retry-After": "3"}, **content)

    page.route("**/v1/tag", busy)
    page.get_by_role("textbox", name="Text to tag").fill(TEXT)
    page.get_by_role("button", name="Tag").click()
    expect(alert).to_contain_text("too many texts wait. Try again in 3 seconds.")
    page.unroute("**/v1/tag")
    page.route("**/v1/tag", lambda route: route.abort("connectionrefused"))
    page.get_by_role("button", name="Try again").click()
    expect(alert).to_contain_text("can’t be reached")
    page.unroute("**/v1/tag")
    page.get_by_role("button", name="Try again").click()
    expect(options(page)).to_have_count(5)
    expect(alert).to_be_hidden()


def test_cut_texts_and_missing_members_are_said(server, page):
    model = asked(server, "/v1/model")
    longest = model["max_tokens"]
    tag(page, "key3 " * (longest + 10))
    expect(page.locator("#status")).to_contain_text(f"the first {longest} words were read")

    def with_one_member(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "members_used": 1})

    page.route("**/v1/tag", with_one_member)
    tag(page)
    expect(page.locator("#status")).to_contain_text(f"1 of {len(model['members'])} members answered")


def test_an_old_answer_never_replaces_a_newer_one(page):
    held: list[Route] = []
    cancelled: list[str] = []

    def first_waits(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/v1/tag", first_waits)
    page.on("requestfailed", lambda request: cancelled.append(request.post_data or ""))
    page.get_by_role("textbox", name="Text to tag").fill("key5 key7")
    with page.expect_request("**/v1/tag"):
        page.get_by_role("button", name="Tag").click()
    tag(page)
    before = options(page).all_inner_texts()
    held[0].abort()
    expect(page.locator("#sheet")).to_have_attribute("aria-busy", "false")
    assert options(page).all_inner_texts() == before
    assert [json.loads(body)["text"] for body in cancelled] == ["key5 key7"]
    expect(page.get_by_role("alert")).to_be_hidden()


def test_words_are_never_those_of_another_label(server, page):
    tag(page)
    choose(page, 0)
    held: list[Route] = []
    page.route("**/v1/tag", lambda route: held.append(route))
    with page.expect_request("**/v1/tag"):
        options(page).nth(1).click()
    page.get_by_role("textbox", name="Text to tag").press_sequentially("s")
    held[0].continue_()
    label = asked(server, "/v1/tag", text=TEXT)["results"][0]["labels"][1]
    expect(page.locator("#why-title")).to_have_text(label["name"])
    strongest = max(why(server, TEXT, label["label"])["words"], key=lambda word: word["weight"])["word"]
    expect(page.locator("#words li").first).to_contain_text(strongest)
    expect(page.locator("#why-status")).to_contain_text(f"{label['name']}: most attention to {strongest}")
    expect(page.locator("#mirror mark")).to_have_count(0)


def test_a_key_is_asked_for_and_kept_in_the_tab(locked, opened):
    page = opened(locked)
    field = page.get_by_label("Key of this server")
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("doesn’t know this key")
    field.fill(KEY)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#model")).to_contain_text("tiny — 14 labels")
    expect(field).to_be_hidden()
    expect(page.locator("#examples")).to_be_hidden()  # this server has none
    tag(page)
    choose(page, 0)
    page.reload()
    expect(page.locator("#model")).to_contain_text("tiny — 14 labels")
    assert KEY not in page.url and KEY not in page.content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read(server, opened, scheme):
    page = opened(server, color_scheme=scheme, reduced_motion="reduce")
    tag(page)
    choose(page, 0)
    expect(page.locator("#mirror mark")).not_to_have_count(0)
    paper = channels(style(page, "body", "backgroundColor"))
    assert (max(paper[:3]) < 60) == (scheme == "dark")
    sheet = channels(style(page, "#sheet", "backgroundColor"))
    ink = channels(style(page, "#text", "color"))
    marks = page.locator("#mirror mark").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert min(contrast(ink, sheet, channels(mark)) for mark in marks) >= 4.5
    for soft in ("#status", "#model", "#labels .score", "#why-figures", "#trees .level"):
        chosen = channels(style(page, "#labels [aria-selected=true]", "backgroundColor"))
        ground = chosen if soft == "#labels .score" else paper
        assert contrast(channels(style(page, soft, "color")), ground) >= 4.5, soft
    button = [channels(style(page, "#tag", name)) for name in ("color", "backgroundColor")]
    assert contrast(button[0], button[1]) >= 4.5
    assert style(page, "#mirror mark", "animationName") == "none"


def test_a_phone_shows_everything_without_scrolling_sideways(server, opened):
    page = opened(server, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    tag(page, TEXT + " " + "unbroken" * 40)
    choose(page, 0)
    expect(page.locator("#trees button")).not_to_have_count(0)
    page.get_by_role("combobox", name="Ask about a label").fill("label")
    expect(page.locator("#found li").first).to_be_visible()
    assert page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]") == [360, 360]
    parts = [page.locator(one).bounding_box() for one in ("#text", "#tag", "#labels", "#found", "#why")]
    assert all(part and part["x"] >= 0 and part["x"] + part["width"] <= 360 for part in parts)
