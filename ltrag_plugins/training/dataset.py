"""Training data that teaches a model to mend its answers without spoiling right ones.

Every question is calibrated through all rounds; the first right round gives the example:

* Wrong first, right in round n: the prompt of round n, the accepted answer. ("mended")
* Right at once: the prompt of round 1, which shows that answer with its score; the target is the
  answer itself ("preserved"), or where it was not certain, or is another number to which EM is
  blind, the accepted answer ("mended" where that says more).
* Never right: dropped, or the prompt of the last round with the accepted answer. ("wrong")

Source: Chen et al. (SGIC), section 3.3 (pruning and substitution).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any, Literal, get_args

from ltrag_plugins import errors
from ltrag_plugins.artifacts import check_same, identity_of, reading, replace_file, writing
from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import CalibrationError, InvalidInput, UnreadableArtifact, listed, path_of
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.prompts.replies import option_named
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.sgic.answer import Round, answer_key, number
from ltrag_plugins.sgic.documents import Relevance, check_source, prepared
from ltrag_plugins.sgic.loop import checked_question, record
from ltrag_plugins.sgic.prompts import Shown, one_line
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.training.settings import CorpusSettings
from ltrag_plugins.types import Question
from ltrag_plugins.version import __version__

_FORMAT, _LINES, _MANIFEST = 1, "train.jsonl", "manifest.json"
_UNFINISHED = "unfinished.sqlite"  # the model's answers so far
# what two builds must share to give the same data
_SAME = ("llm", "questions_sha256", "settings", "corpus", "judge")
_Kind = Literal["mended", "preserved", "direct", "wrong"]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what the model should have said."""

    prompt: str
    target: str
    id: str = ""
    """Of the question; this and the next two are empty or None where a file does not say them."""
    kind: _Kind | None = None
    """What it teaches: a better answer than those shown ("mended"), to keep the one shown
    ("preserved"), to answer from plain documents ("direct"), what was never said ("wrong")."""
    round: int | None = None
    """Whose prompt it is, from 0."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Examples to tune a model on."""

    examples: tuple[Example, ...]
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Where they come from; empty for a bare file."""


def build(
    questions: Iterable[Question],
    llm: LLM | None,
    *,
    out: str | PathLike[str],
    settings: SGICSettings | None = None,
    corpus: CorpusSettings | None = None,
    relevance: Relevance | None = None,
    encoder: Encoder | None = None,
    observers: Iterable[Observer] = (),
    batch: int = 64,
) -> Dataset:
    """Calibrate labelled questions, and write `train.jsonl` (chat JSON lines) and `manifest.json`.
    Until then the folder keeps the model's answers: neither the same call after a kill nor one with
    other `corpus` settings asks for one again. Where it holds this very data, nothing is asked.

    Args:
        questions: with accepted answers and passages. Tune and judge on different ones.
        llm: the model that is to be tuned; a `CachedLLM` keeps its answers in a file of yours
            instead. None will do for `form="direct"`.
        settings: how rounds ask and score; its `rounds` is k. None: 5 rounds, and the defaults.
            Stop rules count for nothing: rounds run to their end, as the means of eq. 2 are of all.
        relevance, encoder: for the settings' `source`.
        batch: most prompts of one model call, and so the most that a kill loses.

    Raises:
        CalibrationError: no questions; one has no passages; nothing is left to learn from.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than questions; settings that make no rounds to learn from.
        ArtifactMismatch: the folder holds other data.
        UnreadableArtifact, UnwritableArtifact: the folder is damaged, or cannot be written to.
        NoTokenProbabilities, ModelError, PromptTooLong: as `calibrate`.
    """
    folder, corpus = path_of(out), corpus or CorpusSettings()
    to_the_end = {"certain_below": 0.0, "least_gain": None, "choose": "last"}
    settings = replace(settings or SGICSettings(rounds=5), **to_the_end, keep_prompts=True)
    if corpus.form == "sgic" and (llm is None or not settings.rounds):
        given = f"got llm={llm}, rounds={settings.rounds}"
        raise InvalidInput(f"give a model and rounds, or form='direct'; {given}")
    if corpus.form == "sgic":
        check_source(settings.source, relevance=relevance, encoder=encoder)
    model = llm if corpus.form == "sgic" else None
    questions = listed(questions, "questions")
    check_labelled(questions, passages=True)
    checked = [_checked(question, i, settings) for i, question in enumerate(questions, 1)]
    if not checked:
        raise CalibrationError("no questions to learn from; give some with answers and passages")
    asked, direct = zip(*checked, strict=True)
    texts = [render_question(question) for question in asked]
    rows = [
        [text, q.answers, q.id, [[p.title, p.text] for p in q.passages]]
        for text, q in zip(texts, asked, strict=True)
    ]
    judge = {
        "encoder": getattr(encoder, "name", None),
        "relevance": relevance and identity_of(relevance),
    }
    rules = {"right": identity_of(corpus.right), "keep_wrong": float(corpus.keep_wrong)}
    known = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    origin: Any = {"version": __version__, "llm": getattr(model, "name", None)}
    origin |= {"questions": len(asked), "questions_sha256": known, "settings": asdict(settings)}
    origin |= {"corpus": asdict(replace(corpus, right="em")) | rules}
    origin |= {"judge": judge.get(settings.source)}
    origin = json.loads(json.dumps(origin))
    if (done := _built(folder, origin, _SAME)) is not None:
        _forget(folder)
        return done
    with writing(folder), TemporaryFile(dir=folder):  # found out before anything is paid for
        pass
    if model is None:
        return _write(folder, direct, origin | _counts(direct, [], len(asked), 0))
    own = isinstance(model, CachedLLM)
    with nullcontext(model) if own else CachedLLM(model, folder / _UNFINISHED) as remembering:
        world = World(llm=remembering, encoder=encoder)
        drive = partial(run_many, world=world, observers=tuple(observers), batch=batch)
        [line] = record(asked, drive, settings, relevance=relevance)
    rounds = zip(asked, direct, (session.trace for session in line), strict=True)
    found = [_learned(q, plain.id, trace, corpus) for q, plain, trace in rounds]
    examples = _composed(found, direct, corpus)
    if all(example.kind == "direct" for example in examples):
        if any(first is not None for first, _ in found) or not any(one for _, one in found):
            raise CalibrationError(
                f"a limit or an error left no round to learn from to {len(asked)} questions. Raise "
                f"max_calls={settings.max_calls}, or max_tokens={settings.max_tokens}; the answers "
                "so far are kept."
            )
        raise CalibrationError(
            f"none of {len(asked)} questions was answered right in any of {settings.rounds + 1} "
            "rounds. Keep them (keep_wrong=1.0), call more right (right='f1'), or take a better "
            "model; the answers so far are kept."
        )
    origin |= _counts(examples, [first for first, _ in found], len(asked), settings.rounds)
    of = {"estimator": line[0].scale.estimator, "means": list(line[0].scale.means)}
    dataset = _write(folder, examples, origin | {"scale": of})
    _forget(folder)
    return dataset


def keep(lines: Iterable[object], *, out: str | PathLike[str]) -> Dataset:
    """Write examples that were made elsewhere, lines of chat JSON as `load` reads them, to a folder
    as `build` does. What a folder may hold before, and what is raised, are as there;
    `CalibrationError` also of no lines, `InvalidInput` of one that is no example."""
    folder, examples = path_of(out), []
    for place, line in enumerate(lines, start=1):
        try:
            examples.append(_example(line))
            _content(examples[-1:])  # not of half a surrogate pair
        except ValueError as error:
            raise InvalidInput(f"example {place}: {error}") from error
    if not examples:
        raise CalibrationError("no examples to learn from; give some")
    counts = {"version": __version__, "examples": len(examples)}
    made = counts | {"sha256": hashlib.sha256(_content(examples)).hexdigest()}
    return _built(folder, made, ("examples", "sha256")) or _write(folder, examples, counts)


def load(path: str | PathLike[str]) -> Dataset:
    """The examples of a folder that `build` wrote, or of a bare file of chat JSON lines. A line is
    {"messages": [a user's, then an assistant's]}; `id`, `kind` and `round` may be there.
    `UnreadableArtifact` is raised of what is missing, empty, or changed since it was built, and
    names a bad line."""
    path = path_of(path)
    lines = path / _LINES if path.is_dir() else path
    with reading(f"cannot read {lines}", "Name a folder that build wrote, or a .jsonl file."):
        content = lines.read_bytes()
    examples = []
    for place, line in enumerate(content.split(b"\n"), start=1):
        try:
            examples += [_example(json.loads(line.decode("utf-8-sig")))] if line.strip() else []
        except (ValueError, RecursionError) as error:  # it says more than the hash
            why = getattr(error, "msg", error)  # JSON's own names a line 1
            raise UnreadableArtifact(f"{lines}, line {place}: {why}") from error
    if not examples:
        raise UnreadableArtifact(f"{lines} has no examples; expected one JSON object a line")
    if lines is path:
        return Dataset(tuple(examples))
    with reading(f"{path / _MANIFEST} is no manifest", "Build the data again."):
        manifest = json.loads((path / _MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT:
            raise ValueError(f"not format {_FORMAT}, which this version reads")
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256"):
        both = f"{path / _MANIFEST} is of another {_LINES}"
        raise UnreadableArtifact(f"{both}. Build again, or name that file itself.")
    return Dataset(tuple(examples), manifest)


def _checked(question: Question, place: int, settings: SGICSettings) -> tuple[Question, Example]:
    """The question with its answers on one line each, and its plain example."""
    name = question.id or f"question {place}"
    answers = tuple(said for answer in question.answers if (said := one_line(answer)))
    texts = [Shown(text) for text in prepared(question.passages, settings)[0]]
    prompt = settings.templates.render(checked_question(render_question(question)), texts)
    try:
        f"{prompt}{answers[0]}".encode()
    except UnicodeEncodeError as error:
        why = "half of a surrogate pair in its texts; repair it where it was read"
        raise InvalidInput(f"question {name!r} has {why}") from error
    return replace(question, answers=answers), Example(prompt, answers[0], name, "direct", 0)


def _learned(
    question: Question, name: str, trace: Sequence[Round], corpus: CorpusSettings
) -> tuple[int | None, Example | None]:
    """The first right round (None: none was) and its example, if a limit left a prompt for it."""
    named = ((one, option_named(one.text, question.options)) for one in trace)
    rights = ((one, text) for one, text in named if corpus.is_right(text, question.answers))
    right, text = next(rights, (None, ""))
    target, kind, shown = question.answers[0], "wrong", trace[-1]
    if right is not None:
        key = answer_key(text)
        target = next((a for a in question.answers if answer_key(a) == key), target)
        kind, shown = "mended", right
        if not right.number:
            said, wanted = number(text), number(target)
            blind = not callable(corpus.right) and None not in (said, wanted) and said != wanted
            if right.score < corpus.certain_below and not blind:
                target = text
            kind = "preserved" if answer_key(target) == key else "mended"
            shown = trace[1] if trace[1:] else right
    first = None if right is None else right.number
    if not shown.number or shown.prompt is None:
        return first, None
    return first, Example(shown.prompt, target, name, kind, shown.number)


def _composed(
    found: Sequence[tuple[Any, Example | None]], direct: Sequence[Example], corpus: CorpusSettings
) -> list[Example]:
    """The examples that the settings keep, question by question."""
    wrong = {i: one for i, (_, one) in enumerate(found) if one and one.kind == "wrong"}
    # seeded by what it is drawn for, so that a question more leaves the order of the others
    order = sorted(wrong, key=lambda i: Random(f"{corpus.seed}|{wrong[i].prompt}").random())
    dropped = order[round(corpus.keep_wrong * len(wrong)) :]
    examples: list[Example] = []
    for i, ((_, example), first) in enumerate(zip(found, direct, strict=True)):
        kept = [] if example is None or i in dropped else [example]
        plain = {"all": [first], "kept": [first] * len(kept), "none": []}
        examples += [*kept, *plain[corpus.include_direct]]
    return examples


def _counts(
    examples: Sequence[Example], right_in: Sequence[int | None], questions: int, rounds: int
) -> dict[str, Any]:
    """What came of the questions; of `pruned` ones, `wrong` stayed with the accepted answer."""
    kinds, first = Counter(example.kind for example in examples), Counter(right_in)
    kept = kinds["mended"] + kinds["preserved"]
    told = {"examples": len(examples), "kept": kept, "pruned": questions - kept if right_in else 0}
    told |= {kind: kinds[kind] for kind in ("mended", "preserved", "wrong", "direct")}
    turns = [first[n] for n in range(rounds + 1)] if right_in else []
    return {**told, "first_right_in_round": turns}


def _built(folder: Path, origin: Mapping[str, Any], names: Sequence[str]) -> Dataset | None:
    """The data that the folder holds, if any; what of it must be the same is checked."""
    if (folder / _MANIFEST).exists() and (folder / _LINES).exists():
        done = load(folder)
        before, now = ({name: one.get(name) for name in names} for one in (done.manifest, origin))
        remedy = f"Name another folder, or move its {_LINES} and {_MANIFEST} away."
        check_same(f"{folder} holds other training data", before, now, remedy)
        return done
    if (folder / _LINES).exists() and not (folder / _UNFINISHED).exists():
        lost = f"{folder} holds a {_LINES} and no {_MANIFEST}"
        raise errors.ArtifactMismatch(f"{lost}. Move it away.")
    return None


def _content(examples: Sequence[Example]) -> bytes:
    """Lines of chat JSON."""
    lines = ""
    for one in examples:
        said = {"user": one.prompt, "assistant": one.target}
        messages = [{"role": role, "content": text} for role, text in said.items()]
        line = {"messages": messages, "id": one.id, "kind": one.kind, "round": one.round}
        lines += f"{json.dumps(line, ensure_ascii=False)}\n"
    return lines.encode()


def _write(folder: Path, examples: Sequence[Example], manifest: Mapping[str, Any]) -> Dataset:
    """Write the manifest, then the lines, which say that the data are whole; each in one step."""
    content = _content(examples)
    told = {"format": _FORMAT, **manifest, "sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False)
    with writing(folder):
        replace_file(folder / _MANIFEST, f"{text}\n".encode())
        replace_file(folder / _LINES, content)
    return Dataset(tuple(examples), told)


def _forget(folder: Path) -> None:
    with writing(folder):
        for path in folder.glob(f"{_UNFINISHED}*"):  # SQLite's log stands beside it
            path.unlink()


def _example(told: object) -> Example:
    row = told if isinstance(told, dict) else {}
    match row.get("messages"):
        case [
            {"role": "user", "content": str(prompt)},
            {"role": "assistant", "content": str(target)},
        ] if prompt.strip() and target.strip():
            name, kind, place = row.get("id"), row.get("kind"), row.get("round")
        case _:
            raise ValueError(
                "expected {'messages': [a user's, then an assistant's]}, each with a text (put a "
                f"system's into the user's), got {told!r:.200}"
            )
    if kind not in (None, *get_args(_Kind)):
        raise ValueError(f"'kind' is {kind!r}; there are {', '.join(get_args(_Kind))}")
    if place is not None and (type(place) is not int or place < 0):
        raise ValueError(f"'round' is {place!r}; expected a whole number from 0 on")
    return Example(prompt, target, "" if name is None else str(name), kind, place)
