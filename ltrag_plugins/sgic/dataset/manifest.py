"""What training data was made from, and what came of it; no word of the questions themselves."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.sgic.dataset.choosing import Learned
from ltrag_plugins.sgic.dataset.corpus import LINES, MANIFEST, Example, read_manifest
from ltrag_plugins.sgic.dataset.settings import CorpusSettings
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question

SAME = ("llm", "questions_sha256", "settings", "corpus", "given_scale", "judge")
"""What two builds must share to give the same data."""


def origin(
    questions: Sequence[Question],
    llm: str | None,
    settings: SGICSettings,
    corpus: CorpusSettings,
    scale: ScoreScale | None,
    judge: str | None,
) -> dict[str, Any]:
    """All that the examples depend on, save the model's answers; plain values for JSON.

    Args:
        llm: the model's name; None for examples that no model was asked for.
        scale: the one that was handed in.
        judge: what scores the documents in the place of the model.
    """
    told = {
        "version": _version(),
        "llm": llm,
        "questions": len(questions),
        "questions_sha256": _digest(questions),
        "settings": asdict(settings),
        "corpus": corpus.as_dict(),
        "given_scale": None if scale is None else list(scale.means),
        "judge": judge,
    }
    return json.loads(json.dumps(told))


def counts(
    examples: Sequence[Example], found: Sequence[Learned], questions: int, rounds: int
) -> dict[str, Any]:
    """What came of the questions; of `pruned` ones, `wrong` stayed with the accepted answer."""
    kinds = Counter(example.kind for example in examples)
    first = Counter(one.right_in for one in found)
    kept = kinds["mended"] + kinds["preserved"]
    return {
        "examples": len(examples),
        "kept": kept,
        "pruned": questions - kept if found else 0,
        **{kind: kinds[kind] for kind in ("mended", "preserved", "wrong", "direct")},
        "first_right_in_round": [first[n] for n in range(rounds + 1)] if found else [],
    }


def check_same(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder holds the data that this build would make; False where it holds none.

    Raises:
        ArtifactMismatch: it holds other data; the message says in what they differ.
        UnreadableArtifact: there is a manifest that cannot be read.
    """
    if not (folder / MANIFEST).exists():
        return False
    found = read_manifest(folder)
    differing = [told for name in SAME for told in _differences(name, found, wanted)]
    if differing:
        raise ArtifactMismatch(
            f"{folder} holds other training data: {'; '.join(differing[:5])}. Name another folder, "
            f"or move its {LINES} and {MANIFEST} away."
        )
    return True


def _differences(
    name: str, found: Mapping[str, Any], wanted: Mapping[str, Any], above: str = ""
) -> Iterator[str]:
    before, now = found.get(name), wanted.get(name)
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for inner in now:
            yield from _differences(inner, before, now, f"{above}{name}.")
    elif name == "questions_sha256":
        yield "it was made of other questions"
    else:
        yield f"{above}{name} was {before!r} and is now {now!r}"


def _digest(questions: Sequence[Question]) -> str:
    lines = [[q.text, q.answers, q.id, [[p.title, p.text] for p in q.passages]] for q in questions]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _version() -> str:
    try:
        return version("ltrag-plugins")
    except PackageNotFoundError:
        return "unknown"
