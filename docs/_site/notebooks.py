"""The notebooks of `examples/` as pages, with the outputs that they were saved with."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
_DOCS, _ELSEWHERE = re.compile(r"\]\(\.\./\.\./docs/"), re.compile(r"\]\((?=\.\./(?!\.\./docs/))")
_OTHER = re.compile(r"\]\((\w+)\.ipynb(?=[)#])")


def page_of(notebook: dict[str, Any], source: str) -> str:
    """A notebook of format 4 as Markdown; links to what is no page go to `source`."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell, source)) + "\n"


def _cell(cell: dict[str, Any], source: str) -> Iterator[str]:
    text = _text(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        text = _OTHER.sub(r"](\1.md", text)
        yield _DOCS.sub("](../", _ELSEWHERE.sub(f"]({source}", text))
    elif cell["cell_type"] == "code":
        yield f"````python\n{text}\n````"
        for output in cell["outputs"]:
            yield _output(output)


def _output(output: dict[str, Any]) -> str:
    """The richest form that a page can show."""
    data = output.get("data", {"text/plain": output.get("text", output.get("traceback", ""))})
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            picture = "".join(_text(data[kind]).split())
            return f"![What the cell above draws](data:{kind};base64,{picture})"
    for kind in ("text/markdown", "text/html", "image/svg+xml"):
        if kind in data:
            return _text(data[kind])
    return f"````text\n{_text(data['text/plain']).rstrip()}\n````"


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _titled(path: Path) -> dict[str, str]:
    """Its place in the navigation."""
    [title] = re.findall(r"^# (.+)", page_of(json.loads(path.read_text("utf-8")), ""), re.M)[:1]
    return {title.partition(":")[0].partition("?")[0]: f"notebooks/{path.stem}.md"}


def on_config(config: Any) -> Any:
    """Called by MkDocs: fill the part "Notebooks" of the navigation."""
    for part in config.nav:
        if "Notebooks" in part:
            part["Notebooks"] = [_titled(path) for path in sorted(FOLDER.glob("*.ipynb"))]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Called by MkDocs."""
    source = f"{config.repo_url.rstrip('/')}/blob/main/examples/notebooks/"
    for path in sorted(FOLDER.glob("*.ipynb")):
        content = page_of(json.loads(path.read_text("utf-8")), source)
        page = File.generated(config, f"notebooks/{path.stem}.md", content=content)
        page.edit_uri = f"../examples/notebooks/{path.name}"  # pyright: ignore[reportAttributeAccessIssue]
        files.append(page)
    return files
