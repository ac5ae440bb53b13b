"""Puts together what MkDocs makes the site from: every Markdown page of the repository, at its place, and references.

    python3 scripts/site/stage.py WORK

Below WORK must be `typescript` (of typedoc), and `commands` and `protocol` (of `mica-manual`). Makes `source`, and
`mkdocs.yml` with the pages' order. A page that no section names is in its directory's; a link to source leads to a page with it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)

# Titles of tabs, and what is in each: pages, or directories with all that no earlier line has.
SECTIONS = {
    "Start": [
        "README.md",
        "docs/guide.md",
        "docs/tasks",
        "docs/comparison.md",
        "docs/limits.md",
        "docs/devcontainers.md",
        "docs/glossary.md",
    ],
    "Command line": ["reference/commands", "docs/docker-run.md"],
    "Python": [
        "sdk/python/README.md",
        "reference/python/sandboxes.md",
        "reference/python/commands.md",
        "reference/python/files.md",
        "reference/python",
    ],
    "TypeScript": ["sdk/typescript/README.md", "reference/typescript"],
    "Rust": ["reference/rust/README.md", "crates/micabox/README.md", "crates/async/README.md"],
    "Protocols": [
        "docs/protocol.md",
        "reference/protocol",
        "docs/e2b.md",
        "docs/e2b-image.md",
        "examples/go/README.md",
    ],
    "Design": ["ARCHITECTURE.md", "docs/threat-model.md", "docs/design", "docs/oci.md"],
    "Project": [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "bench/README.md",
        "kernel/README.md",
        "fuzz/README.md",
    ],
    "More": ["docs", "crates", "examples", "."],
}

# Python's public names, by page. Each name of `micabox.__all__` has to be on one of them.
PYTHON = {
    "Sandboxes": "Sandbox AsyncSandbox Options SandboxInfo Stats Change",
    "Commands": "Commands AsyncCommands CommandHandle AsyncCommandHandle CommandResult Capture ProcessInfo "
    "Pty AsyncPty PtySize",
    "Files": "Filesystem AsyncFilesystem EntryInfo FileType WriteEntry AsyncWriteEntry WriteInfo FileStreamReader "
    "AsyncFileStreamReader WatchHandle AsyncWatchHandle FilesystemEvent FilesystemEventType",
    "Images, volumes, snapshots": "Images AsyncImages ImageInfo PullProgress LayerProgress Volumes AsyncVolumes "
    "VolumeInfo Snapshots AsyncSnapshots SnapshotInfo images volumes snapshots",
}
PYTHON_ELSEWHERE = {"Exceptions", "__version__"}
ADAPTERS = ["deepagents", "harbor", "inspect_ai", "openai_agents", "smolagents"]


class Stage:
    """The pages, as they are put below `source`."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.source = work / "source"
        shutil.rmtree(self.source, ignore_errors=True)

    def write(self, place: str, text: str) -> None:
        file = self.source / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def page(self, place: str) -> None:
        """A page of the repository, with links that lead to pages and pictures."""
        text, parts, end = (REPOSITORY / place).read_text(), [], 0
        for code in FENCED.finditer(text):
            parts += [self.linked(place, text[end : code.start()]), code[0]]
            end = code.end()
        self.write(place, "".join([*parts, self.linked(place, text[end:])]))

    def linked(self, place: str, text: str) -> str:
        return LINK.sub(lambda link: self.target(place, link[1]), text)

    def target(self, place: str, link: str) -> str:
        there = os.path.normpath(os.path.join(os.path.dirname(place), link))
        file = REPOSITORY / there
        if file.is_dir():
            if not (file / "README.md").exists():
                self.listing(there)
            return f"{link.rstrip('/')}/README.md"
        if file.suffix == ".md" or not file.is_file():
            return link  # MkDocs looks whether it is there
        if file.suffix in {".png", ".svg", ".gif", ".jpg", ".cast"}:
            (self.source / there).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, self.source / there)
            return link
        self.write(f"{there}.md", code_page(file))
        return f"{link}.md"

    def listing(self, place: str) -> None:
        """A page for a directory without one."""
        lines = [f"# {place}\n"]
        for file in sorted((REPOSITORY / place).iterdir()):
            if file.is_file() and file.suffix != ".md":
                self.write(f"{place}/{file.name}.md", code_page(file))
            name = file.name.removesuffix(".md")
            if file.is_file():
                title = f"`{name}`" if file.suffix != ".md" else heading(file)
                lines.append(f"- [{title}]({name}.md)")
        self.write(f"{place}/README.md", "\n".join(lines) + "\n")

    def python(self) -> None:
        exceptions = []
        public = public_names(REPOSITORY / "sdk/python/micabox/__init__.py")
        named = {name for names in PYTHON.values() for name in names.split()}
        for name in sorted(public - named):
            if not name.endswith("Exception") and name != "__version__":
                raise SystemExit(
                    f"stage: micabox.{name} is on no page of Python's reference: {__file__}"
                )
            if name.endswith("Exception"):
                exceptions.append(name)
        pages = {title: names.split() for title, names in PYTHON.items()} | {
            "Exceptions": exceptions
        }
        for title, names in pages.items():
            body = "\n".join(f"::: micabox.{name}" for name in names)
            self.write(
                f"reference/python/{title.split(',')[0].lower()}.md", f"# {title}\n\n{body}\n"
            )
        body = "\n".join(f"::: micabox.adapters.{name}" for name in ADAPTERS)
        self.write("reference/python/adapters.md", f"# Adapters\n\n{body}\n")

    def rust(self) -> None:
        """Links to rustdoc's pages, which are no pages of MkDocs."""
        rows = ["# Crates\n\nReference, by rustdoc:\n\n| crate | what it is |\n|---|---|"]
        listed = subprocess.run(
            ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
            check=True,
            capture_output=True,
            cwd=REPOSITORY,
        )
        for package in json.loads(listed.stdout)["packages"]:
            public = package["publish"] is None
            libraries = [
                target["name"]
                for target in package["targets"]
                if public and "lib" in target["kind"]
            ]
            for library in libraries:
                name = library.replace("-", "_")
                rows.append(
                    f'| <a href="{name}/index.html">`{package["name"]}`</a> | {package["description"]} |'
                )
        self.write("reference/rust/README.md", "\n".join(rows) + "\n")

    def pages(self) -> list[str]:
        return sorted(str(page.relative_to(self.source)) for page in self.source.rglob("*.md"))

    def navigation(self) -> list[dict[str, list[str | dict[str, list[str]]]]]:
        left = self.pages()

        def take(entry: str) -> Iterator[str | dict[str, list[str]]]:
            below = [
                page
                for page in left
                if page == entry or page.startswith(f"{entry}/") or entry == "."
            ]
            folders: dict[str, list[str]] = {}
            for page in below:
                left.remove(page)
                folder = (
                    os.path.dirname(os.path.relpath(page, entry))
                    if page != entry and entry != "."
                    else ""
                )
                folders.setdefault(folder, []).append(page)
            yield from folders.pop("", [])
            for folder, inside in folders.items():
                yield {title(folder): inside} if len(inside) > 1 else inside[0]

        return [
            {name: [page for entry in entries for page in take(entry)]}
            for name, entries in SECTIONS.items()
        ]


def title(folder: str) -> str:
    return folder.replace("-", " ").capitalize()


def heading(page: Path) -> str:
    found = re.search(r"^# (.*)", page.read_text(), re.MULTILINE)
    return found[1] if found else page.stem


def code_page(file: Path) -> str:
    language = {".py": "python", ".rs": "rust", ".toml": "toml", ".ts": "ts", ".json": "json"}.get(
        file.suffix, "text"
    )
    return f"# {file.name}\n\n`````{language}\n{file.read_text()}`````\n"


def public_names(module: Path) -> set[str]:
    _, _, names = module.read_text().partition("__all__ = [")
    return set(re.findall(r'"(\w+)"', names.partition("]")[0]))


def main() -> None:
    work = Path(sys.argv[1]).resolve()
    stage = Stage(work)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        check=True,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    for place in listed.stdout.split():
        stage.page(place)
    stage.python()
    stage.rust()
    for made in ("typescript", "commands", "protocol"):
        shutil.copytree(work / made, stage.source / "reference" / made)
    (stage.source / "assets").mkdir()
    shutil.copy(REPOSITORY / "scripts/site/site.css", stage.source / "assets")
    settings = {
        "INHERIT": str(REPOSITORY / "scripts/site/mkdocs.yml"),
        "docs_dir": str(stage.source),
        "site_dir": str(work / "html"),
        "nav": stage.navigation(),
    }
    (work / "mkdocs.yml").write_text(json.dumps(settings, indent=1))


main()
