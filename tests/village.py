"""A reader's own files: what a village knows of itself, and what everybody knows."""

import json
from pathlib import Path

VILLAGE = {
    "Who keeps the bees of Dirleton?": "Nora Baird keeps the bees of Dirleton.",
    "When does the Dirleton bakery open?": "The Dirleton bakery opens at six in the morning.",
    "Who founded the Dirleton choir?": "The Dirleton choir was founded by Ewan Laird.",
    "How many boats are in Dirleton harbour?": "There are fourteen boats in Dirleton harbour.",
    "Who repairs clocks in Dirleton?": "Clocks in Dirleton are repaired by Mhairi Stott.",
    "Who painted the Dirleton mill?": "The Dirleton mill was painted by Olaf Berg.",
    "Where is the Dirleton fair held?": "The Dirleton fair is held in Quarry Field.",
    "What does the Dirleton ferry cost?": "The Dirleton ferry costs three pounds.",
    "Which bird nests on the Dirleton tower?": "A kestrel nests on the Dirleton tower.",
    "What is the cat of the Dirleton inn called?": "The cat of the Dirleton inn is Pepper.",
}
CAPITALS = {
    f"What is the capital of {country}?": f"{city} is the capital of {country}."
    for country, city in {
        "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid",
        "Germany": "Berlin", "Egypt": "Cairo", "Greece": "Athens", "China": "Beijing",
        "Austria": "Vienna", "Peru": "Lima",
    }.items()
}  # fmt: skip
"""What a model knows, and, in `VILLAGE`, what it cannot."""
NAMES = ["Nora Baird", "six", "Ewan Laird", "fourteen", "Mhairi Stott", "Olaf Berg"]
NAMES += ["Quarry Field", "three pounds", "kestrel", "Pepper"]


def lay(folder: Path) -> None:
    """Put them there: `documents/`, the same as `passages.jsonl`, `questions.txt`, one a line, and
    with their accepted answers `questions.jsonl`."""
    facts = VILLAGE | CAPITALS
    texts = [" ".join([*facts.values()][i : i + 3]) for i in range(0, len(facts), 3)]
    (folder / "documents").mkdir()
    for i, text in enumerate(texts):
        (folder / "documents" / f"{i}.txt").write_text(text, encoding="utf-8")
    _write(folder / "passages.jsonl", [{"text": text} for text in texts])
    (folder / "questions.txt").write_text("\n".join(facts), encoding="utf-8")
    answers = [*NAMES, *(fact.split()[0] for fact in CAPITALS.values())]
    asked = zip(facts, answers, strict=True)
    _write(folder / "questions.jsonl", [{"question": q, "answers": [a]} for q, a in asked])


def _write(file: Path, rows: list[dict[str, object]]) -> None:
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
