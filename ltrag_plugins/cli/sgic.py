"""`ltrag sgic ...`: how sure is the answer, can another look mend it, and can a model learn to?"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ltrag_plugins.cli import io
from ltrag_plugins.cli.models import load_llm, noted, write_notes
from ltrag_plugins.cli.options import Opt, changed, option, utf8
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Question

if TYPE_CHECKING:  # numpy and torch behind them would slow --help down
    from ltrag_plugins.sgic import CalibratedAnswer, SGICSettings
    from ltrag_plugins.training import FinetuneResult

sgic_app = typer.Typer(
    help="How sure is the answer, and can another look mend it?",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_STOPS = {
    "certain": "it is certain enough",
    "settled": "it came again without gain",
    "rounds": "all rounds were made",
    "no documents": "there are no documents to look at again",
    "max_calls": "a further prompt could pass max_calls",
    "max_tokens": "a further prompt could pass max_tokens",
    "error": "the model failed",
}
_FEW = 100
"""Examples below which a tuning hardly learns the form of the prompts."""


def _checked_counts(value: str) -> str:
    if all(count.strip().isdecimal() and int(count) for count in value.split(",") if value.strip()):
        return value
    raise typer.BadParameter(f"{value!r} is no list of whole numbers from 1 on, such as 1,2,3")


@sgic_app.command("fit")
def _fit(
    questions: Opt.Questions,
    out: Opt.Out,
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    rounds: Opt.Rounds = None,
    cut_to: Annotated[
        str,
        option("Method", "Also try the M surest documents alone.", callback=_checked_counts),
    ] = "1,2,3",
    samples: Annotated[int, option("Method", "Compare so many sampled answers.", min=0)] = 0,
    metric: Annotated[str, option("Method", "What has to rise: em or f1.")] = "em",
    level: Annotated[float, option("Method", "Of the intervals, 0 to 1.")] = 0.9,
    method: Annotated[str, option("Method", "Of P(wrong): platt or isotonic.")] = "platt",
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model in all ways, keep the cheapest that pays (or none), save the calibration.

    [dim]ltrag sgic fit questions.jsonl --cache answers.sqlite --out calibration/[/]
    """
    from ltrag_plugins.sgic import Calibrator, SGICSettings

    settings = changed(SGICSettings(), words, rounds=rounds, seed=seed)
    how: dict[str, Any] = {"metric": metric, "level": level, "method": method}
    io.checked_folder(out)
    found = _labelled(questions, pool, limit)
    llm = load_llm(model, cache=cache)
    cuts = tuple(map(int, filter(None, cut_to.split(","))))
    longest = max(len(question.passages) for question in found)
    looks = settings.rounds + sum(cut < longest for cut in cuts)
    with io.stages(*_stages(found, settings, looks, samples)) as observer:
        calibrator = Calibrator.fit(
            found,
            llm=llm,
            settings=settings,
            cut_to=cuts,
            samples=samples,
            observers=[observer],
            batch=batch,
            **how,
        )
    calibrator.save(out)
    write_notes(out, model, "none")
    io.say(f"the calibration is in {out}")
    assert calibrator.report is not None  # `fit` makes one
    io.show(calibrator.report.as_dict() if as_data else str(calibrator.report))


@sgic_app.command("answer")
def _answer(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="QUESTIONS.jsonl|PASSAGES.jsonl",
            help="Questions with their 'passages'; with --question the passages for it.",
            show_default=False,
        ),
    ] = None,
    question: Annotated[str | None, option("Data", "One question.", callback=utf8)] = None,
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    calibration: Annotated[Path | None, option("Model", "Folder of 'ltrag sgic fit'.")] = None,
    model: Opt.NotedModel = None,
    rounds: Opt.Rounds = None,
    refuse_above: Annotated[
        float | None,
        option("Method", "Keep back answers with a score above this.", min=0, max=100),
    ] = None,
    refuse_p_wrong_above: Annotated[
        float | None,
        option("Method", "The same by P(wrong), of a --calibration.", min=0, max=1),
    ] = None,
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    records: Annotated[
        Path | None,
        option("Output", "Also write all rounds and documents, judged by 'answers', to this file."),
    ] = None,
    as_data: Opt.Json = False,
) -> None:
    """Answer from passages, say how sure that is, and look again where it is not.

    [dim]ltrag sgic answer passages.jsonl --question "who wrote Emma?"[/]
    [dim]ltrag sgic answer questions.jsonl --calibration calibration/ --json > answers.jsonl[/]
    """
    if file is None and question is None:
        raise typer.BadParameter("give QUESTIONS.jsonl, or --question and PASSAGES.jsonl")
    if question is not None and (pool, limit, records) != (None, None, None):
        raise typer.BadParameter("--pool, --limit and --records are not for --question")
    from ltrag_plugins.sgic import Calibration, Calibrator, SGICSettings, Truth
    from ltrag_plugins.sgic.records import labelled, write_run

    settings = changed(SGICSettings(), words, rounds=rounds, seed=seed)
    if records is not None:
        io.checked_folder(records.parent)
    if question is not None:
        passages = () if file is None else tuple(read_passages(file))
        asked = [Question(question, passages=passages)]
    else:
        assert file is not None  # or the command is refused above
        asked = _askable(file, pool, limit, require_answers=records is not None)
    fitted = None
    if calibration is not None:
        model, _ = noted(calibration, "sgic.json", "sgic fit", model)
    llm = load_llm(model or "embedded", cache=cache)
    if calibration is not None:
        fitted = Calibration.load(calibration, llm=llm)
        settings = changed(fitted.settings, words, rounds=rounds, seed=seed)
    calibrator = Calibrator(
        llm,
        calibration=fitted,
        settings=settings,
        refuse_above=refuse_above,
        refuse_p_wrong_above=refuse_p_wrong_above,
    )
    answers: list[CalibratedAnswer] = []
    refused = 0
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        with io.working(f"answering, {start} of {len(asked)} done"):
            found = calibrator.answer_many(part, batch=batch)
        for one, answer in zip(part, found, strict=True):
            kept_back = calibrator.refusal.refuses(answer)
            said = calibrator.refusal.said(answer)
            if as_data:
                io.show(_record(one, answer, said, kept_back), indent=None)
            else:
                text = "\n".join(_lines(one, answer, said, kept_back))
                io.show(text if not answers else f"\n{text}")
            refused += kept_back
            answers.append(answer)
    if refused:
        io.say(f"{refused} of {len(asked)} answers were kept back")
    if records is not None:
        truths = [Truth((), one.answers) for one in asked]
        write_run(labelled(answers, truths, questions=[one.text for one in asked]), records)
        io.say(f"the records are in {records}")


@sgic_app.command("build")
def _build(
    questions: Opt.Questions,
    out: Annotated[Path, option("Output", "Folder for train.jsonl and manifest.json.")],
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    form: Annotated[str | None, option("Method", "sgic, or direct for the baseline.")] = None,
    keep_wrong: Annotated[
        float | None,
        option("Method", "Share of never right ones to keep."),
    ] = None,
    rounds: Opt.Rounds = None,
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    as_data: Opt.Json = False,
) -> None:
    """Ask each question in all rounds, and write the prompts that a model can learn from.

    The prompt of a question's first right answer is learned. What was stopped goes on with the
    same command.

    [dim]ltrag sgic build train.jsonl --model hf:ORG/NAME --out data/[/]
    """
    from ltrag_plugins.sgic import SGICSettings
    from ltrag_plugins.training import CorpusSettings, build

    about_corpus = [word for word in words or () if word.startswith("corpus.")]
    others = [word for word in words or () if word not in about_corpus]
    settings = changed(SGICSettings.paper(), others, rounds=rounds, seed=seed)
    corpus = changed(
        CorpusSettings(),
        [word.removeprefix("corpus.") for word in about_corpus],
        form=form,
        keep_wrong=keep_wrong,
        seed=seed,
    )
    io.checked_folder(out)
    found = _labelled(questions, pool, limit)
    llm = None
    if corpus.form == "sgic":  # a plain prompt needs no model
        llm = load_llm(model, cache=cache)
    try:
        with io.stages(*_stages(found, settings, settings.rounds, 0)) as observer:
            dataset = build(
                found,
                llm,
                out=out,
                settings=settings,
                corpus=corpus,
                observers=[observer],
                batch=batch,
            )
    except KeyboardInterrupt:
        io.say(f"the answers so far are in {cache or out}; run the same command to go on")
        raise
    io.say(f"the training data is in {out}")
    io.show(dict(dataset.manifest) if as_data else "\n".join(_dataset_lines(dataset.manifest)))


@sgic_app.command("finetune")
def _finetune(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="The folder that 'ltrag sgic build' wrote, or a file of chat JSON lines.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, option("Output", "New or empty, or of a stopped run.")],
    model: Opt.Model = "embedded",
    method: Annotated[str | None, option("Method", "lora: an adapter; full: all weights.")] = None,
    epochs: Annotated[int | None, option("Method", "Passes over the examples.")] = None,
    learning_rate: Annotated[float | None, option("Method", "At its highest.")] = None,
    batch: Annotated[int | None, option("Method", "Examples in a step.")] = None,
    words: Opt.Set = None,
    seed: Opt.Seed = None,
    steps: Annotated[int | None, option("Cost", "Most steps.")] = None,
    as_data: Opt.Json = False,
) -> None:
    """Fine-tune a model of local weights on answers that were mended or kept.

    What was stopped goes on with the same command. Needs the extra [bold]train[/].

    [dim]ltrag sgic finetune data/ --model hf:ORG/NAME --out adapter/[/]
    [dim]ltrag sgic answer questions.jsonl --model hf:ORG/NAME+adapter:adapter/[/]
    """
    from ltrag_plugins.training import FinetuneSettings, load

    settings = changed(
        FinetuneSettings(),
        words,
        method=method,
        epochs=epochs,
        learning_rate=learning_rate,
        batch=batch,
        steps=steps,
        seed=seed,
    )
    io.checked_folder(out)
    dataset = load(data)
    with io.working("loading TRL and PEFT"):
        from ltrag_plugins.llm.transformers import TransformersLLM
        from ltrag_plugins.training import finetune
    llm = load_llm(model)
    if not isinstance(llm, TransformersLLM):
        raise InvalidInput(
            f"{model} is a server, whose weights cannot be trained here; name embedded, a folder, "
            "a .gguf file or hf:ORG/NAME"
        )
    try:
        with io.bars("fine-tuning", "{task.fields[note]}") as bar:
            task = bar.add_task("", total=None, note="first step")
            result = finetune(
                dataset,
                llm,
                out=out,
                settings=settings,
                on_step=lambda step: bar.update(
                    task,
                    completed=step.step,
                    total=step.steps,
                    note=f"loss {step.loss:.3f}, {step.tokens_per_second:,.0f} tokens/s",
                ),
            )
    except KeyboardInterrupt:
        io.say(f"the steps up to the last checkpoint are in {out}; the same command goes on")
        raise
    if settings.method == "lora":
        io.say(f"the adapter is in {out}; use it with --model {model}+adapter:{out}")
    else:
        io.say(f"the model is in {out}; use it with --model {out}")
    record = _tuning_record(result)
    io.show(record if as_data else "\n".join(_tuning_lines(record)))


def _askable(
    path: Path, pool: Path | None, limit: int | None, *, require_answers: bool
) -> list[Question]:
    from ltrag_plugins.sgic.loop import checked_question

    passages = () if pool is None else read_passages(pool)
    found = read_questions(path, require_answers=require_answers, pool=passages)[:limit]
    io.check_records(path, found, lambda question: checked_question(question.text))
    return found


def _labelled(path: Path, pool: Path | None, limit: int | None) -> list[Question]:
    found = _askable(path, pool, limit, require_answers=True)
    io.check_records(path, found, io.check_passages)
    return found


def _stages(
    questions: Sequence[Question], settings: "SGICSettings", looks: int, samples: int
) -> list[tuple[str, type, int]]:
    from ltrag_plugins.flow import Ask
    from ltrag_plugins.sgic.loop import scores_documents
    from ltrag_plugins.uncertainty import calls_for

    each, count = calls_for(1, settings.estimator, settings.samples), len(questions)
    # passages that a prompt each goes to: the same ones once, a single one not again
    different = [len({(p.title, p.text) for p in q.passages}) for q in questions]
    alone = sum(n for n, q in zip(different, questions, strict=True) if len(q.passages) > 1)
    scored = scores_documents(settings) or looks > settings.rounds
    return [
        ("first answers", Ask, count * each),
        ("documents", Ask, alone * each * scored),
        ("looking again", Ask, count * looks * each),
        ("samples", Ask, count * samples),
    ]


def _record(
    question: Question, found: "CalibratedAnswer", said: str, refused: bool
) -> dict[str, Any]:
    """An answer as plain values."""
    names = ("text", "uncertainty", "score", "p_wrong", "estimator", "round", "stop", "calls")
    return {
        "id": question.id,
        "question": question.text,
        "answer": said,
        "refused": refused,
        **_some(found, *names, "tokens"),
        "rounds": [_some(one, "text", "uncertainty", "score") for one in found.trace],
        "documents": [
            {"id": one.passage.id, "title": one.passage.title}
            | _some(one, "score", "uncertainty", "answer", "shown")
            for one in found.documents
        ],
        "notes": list(found.notes),
    }


def _some(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _lines(
    question: Question, found: "CalibratedAnswer", said: str, refused: bool
) -> Iterator[str]:
    """An answer for a person, its documents with the surest first."""
    why = _STOPS[found.stop]
    if more := len(found.trace) - 1:
        given = f"the answer of round {found.round} is given; stopped: {why}"
        rounds = f"{more} after the first answer; {given}"
    else:
        none = "by the settings" if found.stop == "rounds" else why
        rounds = f"none after the first answer: {none}"
    yield f"question       {question.text}"
    yield f"answer         {said}{f' (kept back: {found.text!r})' if refused else ''}"
    yield f"uncertainty    {found.uncertainty:.3f}, score {found.score:.0f} of 100"
    yield f"P(wrong)       {'unknown' if found.p_wrong is None else f'{found.p_wrong:.2f}'}"
    yield f"rounds         {rounds}"
    tokens = "unknown" if found.tokens is None else found.tokens
    yield f"calls, tokens  {found.calls}, {tokens}"
    yield from (f"note: {note}" for note in found.notes)
    scored = [
        (one.score, number, one)
        for number, one in enumerate(found.documents, 1)
        if one.score is not None
    ]
    if scored:
        yield "documents, the surest first:"
    for score, number, one in sorted(scored, key=lambda parts: parts[:2]):
        name = " ".join((one.passage.title or one.passage.text).split())
        name = name if len(name) <= 60 else f"{name[:57]}..."
        answer = "" if one.answer is None else f" -> {one.answer[:60]!r}"
        left_out = "" if one.shown else " (not shown again)"
        yield f"{score:5.0f}  [{number}] {name}{answer}{left_out}"


def _dataset_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """What training data was made of."""
    yield f"questions                   {told['questions']}"
    yield f"examples                    {told['examples']}"
    if told["corpus"]["form"] == "direct":
        return
    yield f"right in round 0, 1, ...    {', '.join(map(str, told['first_right_in_round']))}"
    yield f"mended, preserved           {told['mended']}, {told['preserved']}"
    stay = f"of which {told['wrong']} stay with their answers"
    yield f"pruned                      {told['pruned']}, {stay}"
    yield f"plain prompts               {told['direct']}"
    means = ", ".join(f"{mean:.3f}" for mean in told["scale"]["means"])
    yield f"mean uncertainty of rounds  {means}"
    if (looks := told["kept"] + told["wrong"]) < _FEW:
        wrong = told["wrong"] < told["pruned"]
        more = ", or keep those that were never right (--keep-wrong 1)" if wrong else ""
        yield f"note: only {looks} examples of looking again; add questions{more}"


def _tuning_record(result: "FinetuneResult") -> dict[str, Any]:
    """The outcome of a tuning as plain values."""
    last = result.history[-1]
    return {
        "out": str(result.folder),
        "examples": result.examples,
        "held_out": result.held_out,
        "left_out": [{"id": one.id, "tokens": one.tokens} for one in result.dropped],
        "steps": last.step,
        "loss": [result.history[0].loss, last.loss],
        "validation": [{"step": step, "loss": loss} for step, loss in result.validation],
        "tokens": sum(step.tokens for step in result.history),
        "seconds": round(sum(step.seconds for step in result.history), 1),
    }


def _tuning_lines(told: Mapping[str, Any]) -> Iterator[str]:
    first, last = told["loss"]
    speed = told["tokens"] / max(told["seconds"], 0.1)
    yield (
        f"{told['steps']} steps over {told['examples']} examples, "
        f"{told['tokens']:,} tokens at {speed:,.0f} a second"
    )
    yield f"loss a token: {first:.3f} in the first step, {last:.3f} in the last"
    if told["validation"]:
        losses = " -> ".join(f"{one['loss']:.3f}" for one in told["validation"])
        yield f"of the {told['held_out']} held out, before and after each epoch: {losses}"
    if left := told["left_out"]:
        names = ", ".join(f"{one['id']} ({one['tokens']:,} tokens)" for one in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        yield f"left out as too long: {names}{more}"
