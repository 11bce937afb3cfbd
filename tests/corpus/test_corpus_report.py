"""The corpus page."""

from html.parser import HTMLParser

from corpus.preparing import Prepare, many

from axml_ray.settings import SPLITS


class Page(HTMLParser):
    """Tags that are open, what they refer to, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.shapes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.shapes += tag in ("rect", "path")
        self.outside += [
            str(value) for key, value in attrs if key in ("src", "href", "xlink:href", "data") and value[:1] != "#"
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_the_corpus(run: Prepare) -> None:
    train = [("<script>alert(1)</script> & more", ["<b>bold</b>"]), *many(40)]
    corpus = run(train=train, test=many(4, "test"), valid=many(2, "valid"))
    source = (corpus.directory / "report" / "corpus.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(source)
    assert page.open == []
    assert page.outside == []
    assert "http" not in source
    assert "url(" not in source.replace("url(#", "")
    assert "prefers-color-scheme: dark" in source
    assert page.shapes > 5
    assert "<script>alert(1)</script> & more" in page.text
    assert "<b>bold</b>" in page.text
    assert "47 documents, 6 labels" in page.text
    for split in SPLITS:
        assert f"{corpus.documents(split)}" in page.text
