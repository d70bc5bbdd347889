"""What pages would say in front matter, which a forge shows as a table.

Search puts guides before reference, and first the page that a user's own word means: such words are
the page's tags, which weigh more than titles. The start page has no list of pages beside it.
"""

from typing import Any

WORDS = {
    "how-to/gate.md": "skip latency slow cheaper unlabelled labels adaptive router",
    "how-to/learn.md": "drift online feedback production monitor",
    "how-to/rerank.md": "reorder relevance top_n irrelevant",
    "how-to/calibrate.md": "hallucination hallucinate sure confidence confident trust refuse",
    "how-to/all-three.md": "pipeline together",
    "how-to/api-model.md": "key vllm ollama azure",
    "how-to/local-model.md": "gpu cuda offline",
}
BOOSTS = {"how-to/": 4.0, "index.md": 2.0, "api/": 0.5, "results/": 0.2, "notebooks/": 0.5}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs."""
    place = page.file.src_uri
    boost = next((boost for start, boost in BOOSTS.items() if place.startswith(start)), 1.0)
    page.meta["search"] = {"boost": boost}
    if place == "index.md":
        page.meta["hide"] = ["navigation"]
    if place in WORDS:
        page.meta["tags"] = WORDS[place].split()
    return markdown
