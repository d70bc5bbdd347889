"""`ltrag calibrate ...`: how sure is the answer, can another look mend it, can a model learn to?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from ltrag_plugins import sgic, training
from ltrag_plugins.cli import io, options
from ltrag_plugins.cli.options import COMMANDS, Opt, argument, option
from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Question

_FEW = 100  # examples below which a tuning hardly learns the form of the prompts


@COMMANDS["calibrate"].command("fit")
def _fit(
    questions: Opt.Questions,
    *,
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    rounds: Opt.Rounds = None,
    cut_to: Annotated[
        str, option("Method", "Also try the M surest documents alone, and the M nearest ones.")
    ] = "1,2,3",
    samples: Annotated[int, option("Method", "Compare so many sampled answers.", min=0)] = 0,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    out: Opt.Out,
    as_data: Opt.Json = False,
) -> None:
    """Ask the model in all ways, keep the cheapest that pays (or none), save the calibration.

    [dim]ltrag calibrate fit questions.jsonl --cache answers.sqlite --out calibration/[/]
    """
    from ltrag_plugins.sgic.fitting import FitOptions

    settings, how = options.changed(words, sgic.SGICSettings(rounds=5), FitOptions(), rounds=rounds)
    counts = [*filter(None, map(str.strip, cut_to.split(",")))]
    if not all(count.isdecimal() and int(count) for count in counts):
        raise typer.BadParameter(f"{cut_to!r} is no list of whole numbers from 1 on, such as 1,2,3")
    options.checked_out(out, "sgic")
    found = _asked(questions, limit, pool)
    llm, vectors = options.load_llm(model, cache=cache), options.load_encoder(encoder)
    tried = {"cut_to": tuple(map(int, counts)), "samples": samples, **asdict(how)}
    parts: dict[str, Any] = {"llm": llm, "encoder": vectors, "settings": settings, "batch": batch}
    with io.resumable(cache), io.progress(Ask=None) as bar:
        calibrator = sgic.Calibrator.fit(found, observers=[bar], **parts, **tried)
    options.save(calibrator, "calibration", out, model, encoder)
    io.show(calibrator.report, as_data)


@COMMANDS["calibrate"].command("answer")
def _answer(
    file: Annotated[
        Path | None, argument("QUESTIONS.jsonl|PASSAGES.jsonl", "The latter for one --question.")
    ] = None,
    question: Annotated[str | None, option("Data", "One question.")] = None,
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    calibration: Annotated[Path | None, option("Model", "Folder of 'ltrag calibrate fit'.")] = None,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    rounds: Opt.Rounds = None,
    refuse_above: Annotated[float | None, option("Method", "Keep back larger scores.")] = None,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    as_data: Opt.Json = False,
) -> None:
    """Answer from passages, say how sure that is, and with rounds look again where it is not.

    [dim]ltrag calibrate answer passages.jsonl --question "who wrote Emma?"[/]
    [dim]ltrag calibrate answer questions.jsonl --calibration calibration/ --json > answers.jsonl[/]
    """
    if file is None and question is None:
        raise typer.BadParameter("give QUESTIONS.jsonl, or --question and PASSAGES.jsonl")
    if question is not None and (pool, limit) != (None, None):
        raise typer.BadParameter("--pool and --limit are not for --question")
    from ltrag_plugins.sgic.calibrator import Refusal

    told = {"rounds": rounds, "refuse_above": refuse_above}
    settings, refusal = options.changed(words, sgic.SGICSettings(), Refusal(), **told)
    if file is not None and question is None:
        asked = _asked(file, limit, pool, labelled=False)
    else:
        passages = () if file is None else tuple(read_passages(file))
        asked = [Question(question or "", passages=passages)]
    if calibration is not None:
        model, encoder = options.noted("sgic", calibration, model, encoder)
    llm, fitted = options.load_llm(model or "embedded", cache=cache), None
    if calibration is not None:
        fitted = sgic.Calibration.load(calibration, llm=llm)
        settings, refusal = options.changed(words, fitted.settings, Refusal(), **told)
    vectors = options.load_encoder(encoder or "none") if settings.source == "encoder" else None
    parts: dict[str, Any] = {"calibration": fitted, "settings": settings, "encoder": vectors}
    calibrator = sgic.Calibrator(llm, **parts, **asdict(refusal))
    if bare := sum(not one.passages for one in asked):
        io.say(f"note: {bare} of {len(asked)} questions have no passages: answered from memory")
    refused = 0
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        with io.resumable(cache), io.working(f"answering, {start} of {len(asked)} done"):
            found = calibrator.answer_many(part, batch=batch)
        for n, (one, answer) in enumerate(zip(part, found, strict=True), start):
            record = _record(one, answer, refusal.said(answer), refusal.refuses(answer))
            text = "\n" * bool(n) + "\n".join(_lines(answer, record))
            io.show(record if as_data else text, as_data, indent=None)
            refused += record["refused"]
    if refused:
        io.say(f"{refused} of {len(asked)} answers were kept back")


@COMMANDS["calibrate"].command("build")
def _build(
    questions: Opt.Questions,
    *,
    pool: Opt.Pool = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "none",
    form: Annotated[
        str | None, option("Method", "direct: the baseline; filter: for FILCO.")
    ] = None,
    rounds: Opt.Rounds = None,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    out: Annotated[Path, option("Output", "Folder for train.jsonl and manifest.json.")],
    as_data: Opt.Json = False,
) -> None:
    """Ask each question in all rounds, and write the prompts that a model can learn from.

    The prompt of a question's first right answer is learned. What was stopped goes on with the
    same command. With --form filter the examples are of a filter for 'ltrag evaluate --methods
    filco --set filter=MODEL': passages, and what to keep of each.

    [dim]ltrag calibrate build train.jsonl --model hf:ORG/NAME --out data/[/]
    [dim]ltrag calibrate build train.jsonl --form filter --out data/[/]
    """
    io.checked_folder(out)
    if form == "filter":
        made = _filter_data(_asked(questions, limit, pool), words, model, cache, rounds)
        examples = training.keep(made, out=out).examples
        none = sum(one.target == "none" for one in examples)
        io.say(f"the training data is in {out}")
        io.show({"examples": len(examples), "nothing to keep": none}, as_data)
        return
    if form not in (None, "sgic", "direct"):
        raise typer.BadParameter(f"form must be one of sgic, direct, filter, got {form!r}")
    both = sgic.SGICSettings(rounds=5), training.CorpusSettings()
    settings, corpus = options.changed(words, *both, rounds=rounds, form=form)
    found = _asked(questions, limit, pool)
    # a plain prompt needs no model
    llm = options.load_llm(model, cache=cache) if corpus.form == "sgic" else None
    how: dict[str, Any] = {"settings": settings, "corpus": corpus, "batch": batch}
    how["encoder"] = options.load_encoder(encoder)
    with io.resumable(cache or out), io.progress(Ask=None) as bar:
        dataset = training.build(found, llm, out=out, observers=[bar], **how)
    io.say(f"the training data is in {out}")
    manifest = dict(dataset.manifest)
    names = "examples kept pruned mended preserved wrong direct first_right_in_round"
    counts = {name: manifest[name] for name in names.split() if name in manifest}
    io.show(manifest if as_data else counts, as_data)
    looks = manifest["kept"] + manifest["wrong"]
    if corpus.form == "sgic" and looks < _FEW:
        all_kept = manifest["wrong"] == manifest["pruned"]
        more = "" if all_kept else ", or keep those that were never right (--set keep_wrong=1)"
        io.say(f"note: only {looks} examples of looking again; add questions{more}")


def _filter_data(
    questions: Sequence[Question],
    words: Sequence[str] | None,
    model: str,
    cache: Path | None,
    rounds: int | None,
) -> list[dict[str, Any]]:
    from ltrag_plugins.flow import World, run
    from ltrag_plugins.methods.filco import FilterDataSettings, filter_examples

    [settings] = options.changed(words, FilterDataSettings(), rounds=rounds)
    scores = settings.measure == "cxmi"
    world = World(options.load_llm(model, cache=cache) if scores else None)
    with io.resumable(cache), io.progress(Score=None) as bar:
        return run(filter_examples(questions, settings), world, observers=[bar])


@COMMANDS["calibrate"].command("finetune")
def _finetune(
    data: Annotated[
        Path, argument("DATA", "Folder of 'ltrag calibrate build', or chat JSON lines.")
    ],
    *,
    model: Opt.Model = "embedded",
    epochs: Annotated[int | None, option("Method", "Passes over the examples.")] = None,
    batch: Annotated[int | None, option("Method", "Examples in a step.")] = None,
    words: Opt.Set = None,
    steps: Annotated[int | None, option("Cost", "Most steps.")] = None,
    out: Annotated[Path, option("Output", "New or empty, or of a stopped run.")],
    as_data: Opt.Json = False,
) -> None:
    """Fine-tune a model of local weights on answers that were mended or kept.

    What was stopped goes on with the same command. Needs the extra [bold]train[/].

    [dim]ltrag calibrate finetune data/ --model hf:ORG/NAME --out adapter/[/]
    [dim]ltrag calibrate answer questions.jsonl --model hf:ORG/NAME+adapter:adapter/[/]
    """
    told = {"epochs": epochs, "batch": batch, "steps": steps}
    [settings] = options.changed(words, training.FinetuneSettings(), **told)
    io.checked_folder(out)
    dataset = training.load(data)
    with io.working("loading TRL and PEFT"):
        from ltrag_plugins.llm.transformers import TransformersLLM
        from ltrag_plugins.training import finetune
    llm = options.load_llm(model)
    if not isinstance(llm, TransformersLLM):
        others = "embedded, a folder, a .gguf file or hf:ORG/NAME"
        raise InvalidInput(f"{model} is a server, whose weights cannot be trained; name {others}")
    with io.resumable(out), io.bars("fine-tuning", "{task.fields[note]}") as bar:
        task = bar.add_task("", total=None, note="first step")

        def on_step(step: training.FinetuneStep) -> None:
            note = f"loss {step.loss:.3f}, {step.tokens / (step.seconds or 1):,.0f} tokens/s"
            bar.update(task, completed=step.step, total=step.steps, note=note)

        result = finetune(dataset, llm, out=out, settings=settings, on_step=on_step)
    last, adapter = result.history[-1], settings.method == "lora"
    use = f"{model}+adapter:{out}" if adapter else out
    io.say(f"the {'adapter' if adapter else 'model'} is in {out}; use it with --model {use}")
    record = {
        "out": str(result.folder),
        "examples": result.examples,
        "held_out": result.held_out,
        "left_out": [{"id": name, "tokens": tokens} for name, tokens in result.dropped],
        "steps": last.step,
        "loss": [result.history[0].loss, last.loss],
        "validation": [{"step": step, "loss": loss} for step, loss in result.validation],
        "tokens": sum(step.tokens for step in result.history),
        "seconds": round(sum(step.seconds for step in result.history), 1),
    }
    io.show(record, as_data)


def _asked(
    path: Path, limit: int | None, pool: Path | None, *, labelled: bool = True
) -> list[Question]:
    passages = () if pool is None else read_passages(pool)
    told: Any = {"require_answers": labelled, "require_passages": labelled, "require_pool": True}
    told |= {"pool": passages, "limit": limit}
    return read_questions(path, **told)


def _record(
    question: Question, found: "sgic.CalibratedAnswer", said: str, refused: bool
) -> dict[str, Any]:
    """An answer as plain values."""

    def some(value: object, *names: str) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names}

    top = ("text", "uncertainty", "score", "p_wrong", "estimator", "round", "stop", "calls")
    return {
        "id": question.id,
        "question": question.text,
        "answer": said,
        "refused": refused,
        **some(found, *top, "tokens"),
        "rounds": [some(one, "text", "uncertainty", "score") for one in found.trace],
        "documents": [
            some(one.passage, "id", "title") | some(one, "score", "uncertainty", "answer", "shown")
            for one in found.documents
        ],
        "notes": list(found.notes),
    }


def _lines(found: "sgic.CalibratedAnswer", told: Mapping[str, Any]) -> Iterator[str]:
    """An answer for a person, its documents with the surest first."""
    kept_back = f" (kept back: {found.text!r})" if told["refused"] else ""
    more = len(found.trace) - 1
    given = f"; the answer of round {found.round} is given" if more else ""
    yield f"question       {told['question']}"
    yield f"answer         {told['answer']}{kept_back}"
    yield f"uncertainty    {found.uncertainty:.3f}, score {found.score:.0f} of 100"
    yield f"P(wrong)       {'unknown' if found.p_wrong is None else f'{found.p_wrong:.2f}'}"
    early = "" if found.stop == "rounds" else f"; stopped: {found.stop}"
    yield f"rounds         {more or 'none'} after the first answer{given}{early}"
    yield f"calls, tokens  {found.calls}, {'unknown' if found.tokens is None else found.tokens}"
    yield from (f"note: {note}" for note in found.notes)
    scored = [(one.score, n) for n, one in enumerate(found.documents) if one.score is not None]
    if scored:
        yield "documents, the surest first:"
    for score, n in sorted(scored):
        one = found.documents[n]
        name = shorten(one.passage.title or one.passage.text, 30)
        answer = "" if one.answer is None else f" -> {shorten(one.answer, 32)!r}"
        left_out = "" if one.shown else " (not shown again)"
        yield f"{score:5.0f}  [{n + 1}] {name}{answer}{left_out}"
