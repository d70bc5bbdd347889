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
    """Put them there: `documents/`, `questions.txt`, one a line, and with their accepted answers
    `questions.jsonl`."""
    facts = VILLAGE | CAPITALS
    (folder / "documents").mkdir()
    for i in range(0, len(facts), 3):
        text = " ".join([*facts.values()][i : i + 3])
        (folder / "documents" / f"{i}.txt").write_text(text, encoding="utf-8")
    (folder / "questions.txt").write_text("\n".join(facts), encoding="utf-8")
    answers = [*NAMES, *(fact.split()[0] for fact in CAPITALS.values())]
    lines = [
        json.dumps({"question": question, "answers": [answer]})
        for question, answer in zip(facts, answers, strict=True)
    ]
    (folder / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
