"""Checks the site's links: each that stays on the site leads to a file and, with a fragment, to something in it.
Those in rustdoc's own pages are rustdoc's to check: there are some in what dependencies say of their traits.

    python3 scripts/site/check.py HTML

And no page has anything loaded from elsewhere: pictures, programs, styles.
"""

import html.parser
import re
import sys
import urllib.parse
from pathlib import Path

# Elements whose address is loaded with the page, and the attribute with it.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
# Names that a browser does not load.
QUIET = {"canonical", "prev", "next", "alternate"}


class Page(html.parser.HTMLParser):
    """What a page has that can be linked to, and what it links to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.names |= {value for name in ("id", "name") if (value := attributes.get(name))}
        if tag == "a" and (link := attributes.get("href")):
            self.links.append(link)
        if tag in LOADED and (link := attributes.get(LOADED[tag])):
            quiet = tag == "link" and attributes.get("rel") in QUIET
            (self.links if quiet else self.loaded).append(link)


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    pages = {file: Page(file) for file in root.rglob("*.html")}
    found: set[str] = set()
    for file, page in pages.items():
        where = file.relative_to(root)
        if where.is_relative_to("reference/rust"):
            continue
        found |= {
            f"{where}: loads {link}" for link in page.loaded if re.match(r"(?:https?:)?//", link)
        }
        own = {link for link in page.links + page.loaded if not re.match(r"[a-z+]+:|//", link)}
        for link in own:
            path, _, fragment = link.partition("#")
            place = urllib.parse.unquote(path.split("?")[0])
            there = (
                (
                    root / place.lstrip("/") if place.startswith("/") else file.parent / place
                ).resolve()
                if place
                else file
            )
            if there.is_dir():
                there /= "index.html"
            if not there.is_file():
                found.add(f"{where}: {link} leads to no file")
            elif fragment and there in pages:
                names = pages[there].names
                if fragment not in names and urllib.parse.unquote(fragment) not in names:
                    found.add(f"{where}: {link} leads to nothing in that page")
    for line in sorted(found):
        print(f"docs: {line}", file=sys.stderr)
    return bool(found)


sys.exit(main())
