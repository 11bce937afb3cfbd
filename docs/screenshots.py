"""Take the screenshots of the web page in docs/images: light, dark and narrow. Needs Chromium; does not start Ray.

python docs/screenshots.py bundles/quickstart
"""

import asyncio
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import uvicorn
from playwright.sync_api import Page, expect, sync_playwright

from serve_app.api import make_api
from serve_app.edition import Edition
from serve_app.fan_out import FanOut
from serve_app.members import Members
from serve_app.service import Service
from serve_app.settings import ServingSettings

IMAGES = Path(__file__).parent / "images"
TEXT = (
    "Fit a regression forest to the training data. Each tree sees a bootstrap sample of the rows and a random subset "
    "of the features at every split; predictions are the mean over all trees.\n\nParameters\n----------\n"
    "X : array of shape (n_samples, n_features)\n    Training input.\n"
    "y : array of shape (n_samples,)\n    Target values."
)
SHOTS: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1200, "height": 860}, "color_scheme": "light"},
    "page-dark": {"viewport": {"width": 1200, "height": 860}, "color_scheme": "dark"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


class LocalHandle:
    """Stands in for the handle of a Ray Serve deployment of members, with the members in this process."""

    deployment_name = "members"

    def __init__(self) -> None:
        self.members = Members(None, 1)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=getattr(self.members, method))


def start_server(bundle: Path) -> tuple[uvicorn.Server, threading.Thread]:
    """Start the application in a thread of this process, on a free port."""
    settings, answers = ServingSettings(), threading.Event()
    handles: list[Any] = [LocalHandle()]
    service = Service(settings, FanOut(handles, settings.time_limit_s))
    server = uvicorn.Server(uvicorn.Config(make_api(service, []), port=0, log_level="error"))

    async def run() -> None:
        await service.use(Edition.checked(bundle))
        task = asyncio.create_task(server.serve())
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        answers.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    if not answers.wait(120) or not server.started:
        raise RuntimeError(f"{bundle}: the server did not start")
    return server, thread


def tag_text(page: Page) -> None:
    """Enter the text, tag it, and wait until the explanation of a label is shown."""
    page.get_by_role("textbox", name="Text to tag").fill(TEXT)
    page.get_by_role("button", name="Tag").click()
    options = page.get_by_role("listbox", name="Labels", exact=True).get_by_role("option")
    expect(options.first).to_be_visible(timeout=60_000)
    options.nth(3).click()  # the best labels of the demo's model attend to variable names alone
    expect(page.locator("#sheet")).to_have_attribute("aria-busy", "false", timeout=60_000)
    expect(page.locator("#mirror mark").first).to_be_visible(timeout=60_000)
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


def main() -> None:
    """Start the server, photograph its page, stop it."""
    bundle = Path(sys.argv[1]).resolve()
    IMAGES.mkdir(exist_ok=True)
    server, thread = start_server(bundle)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, options in SHOTS.items():
                page = browser.new_context(**options).new_page()
                page.goto(address)
                tag_text(page)
                page.screenshot(path=IMAGES / f"{name}.png")
            browser.close()
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
