"""What tests of the command line share: a way to call it, files to read, a server that answers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from ltrag_plugins.cli import app

KNOWN = {f"who wrote book {i}?": f"Author {i}" for i in range(0, 40, 2)}
"""What `write` knows by heart; every other answer it gets wrong, and is unsure of."""


def ltrag(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)


def program(*arguments: object) -> subprocess.Popen[str]:
    """The command line as a program of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ltrag_plugins", *map(str, arguments)],
        env={**os.environ, "OPENAI_API_KEY": "not-a-secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a background shell starts its children with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def one_line(result: Result) -> str:
    """The only line on stderr; nothing may be on stdout."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line.removeprefix("ltrag: error: ")


def wrong_usage(result: Result) -> str:
    """What stands in the box on stderr, as one line."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", "").split())


def lines_file(path: Path, *records: object) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def book(i: int, **more: object) -> dict[str, object]:
    return {"id": f"q{i}", "question": f"who wrote book {i}?", "answers": [f"Author {i}"], **more}


def page(i: int) -> dict[str, str]:
    return {"text": f"book {i} was written by Author {i}"}


def write(prompt: str) -> tuple[str, float]:
    """An author's name, and the probability of its tokens; right where a passage is shown."""
    question = prompt.partition("Question: ")[2].partition("\n")[0]
    number = question.removeprefix("who wrote book ").rstrip("?")
    if "text above" in prompt:
        return f"Author {number}", 0.9
    return (KNOWN[question], 0.95) if question in KNOWN else ("some other person", 0.4)


def word_encoder(folder: Path, words: list[str]) -> Path:
    """A folder of sentence-transformers: a vector for each word, and a text is their mean."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {word: i for i, word in enumerate(["?", *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).normal(size=(len(known), 16)).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)]).save(str(folder))
    return folder
