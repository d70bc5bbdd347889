"""`ltrag fit` and `ltrag answer`: gate, reranker and calibrator at once, each where it pays."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ltrag_plugins.cli import io, options
from ltrag_plugins.cli.options import COMMANDS, Opt, argument, option
from ltrag_plugins.data import read_questions

_Passages = Annotated[Path | None, option("Data", "Passages to search; else the questions' own.")]
_Target = Annotated[str, option("Method", "Share of right answers, 0 to 1, or 'always'.")]


@COMMANDS[""].command("fit")
def _fit(
    questions: Opt.Questions,
    *,
    passages: _Passages = None,
    limit: Opt.Limit = None,
    model: Opt.Model = "embedded",
    encoder: Opt.Encoder = "embedded",
    target_accuracy: _Target = "always",
    budget: Annotated[
        float | None, option("Method", "Most that a question may cost, always retrieving being 1.")
    ] = None,
    k: Annotated[int | None, option("Method", "Passages shown for an answer.", "--k")] = None,
    words: Opt.Set = None,
    cache: Opt.Cache = None,
    batch: Opt.Batch = 16,
    out: Opt.Out,
    as_data: Opt.Json = False,
) -> None:
    """Fit gate, reranker and calibrator, keep each only where it pays, save one folder.

    [dim]ltrag fit questions.jsonl --passages pool.jsonl.gz --cache answers.sqlite --out rag/[/]
    """
    from ltrag_plugins.evaluate import Goal, LongTailRAG, LongTailSettings
    from ltrag_plugins.gece.labels import check_scorer
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    aim = None if budget is not None and target_accuracy == "always" else target_accuracy
    told = {"target_accuracy": _share(aim), "budget": budget}
    [settings] = options.changed(words, LongTailSettings(), k=k)
    options.changed(None, Goal(), **told)  # refused before anything is read
    check_scorer(settings.gate)
    options.checked_out(out, "longtail")
    found = read_questions(questions, limit=limit)
    pool = options.pool_of(passages, found)
    if not pool:
        raise typer.BadParameter("there is nothing to search; give --passages")
    llm, vectors = options.load_llm(model, cache=cache), options.load_encoder(encoder)
    parts: dict[str, Any] = {"llm": llm, "encoder": vectors, "settings": settings, "batch": batch}
    parts["retriever"] = BM25Retriever(pool, engine="auto")
    with io.resumable(cache), io.progress(Ask=None, Score=None, Embed=None) as bar:
        rag = LongTailRAG.fit(found, observers=[bar], on_stage=io.say, **parts, **told)
    options.save(rag, "pipeline", out, model, encoder)
    io.show(rag.report, as_data)


@COMMANDS[""].command("answer")
def _answer(
    folder: Annotated[Path, argument("RAG/", "Folder that 'ltrag fit' wrote.")],
    question: Annotated[str, option("Data", "One question.")],
    passages: Annotated[Path | None, option("Data", "Passages to search.")] = None,
    model: Opt.NotedModel = None,
    encoder: Opt.NotedEncoder = None,
    refuse_p_wrong_above: Annotated[
        float | None, option("Method", "Keep back answers likelier to be wrong, 0 to 1.")
    ] = None,
    cache: Opt.Cache = None,
    as_data: Opt.Json = False,
) -> None:
    """Answer one question with the parts that were kept, and say how likely it is wrong.

    [dim]ltrag answer rag/ --passages pool.jsonl.gz --question "who wrote Emma?"[/]
    """
    from ltrag_plugins.artifacts import json_object
    from ltrag_plugins.evaluate import LongTailRAG
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    model, encoder = options.noted("longtail", folder, model, encoder)
    pool = options.pool_of(passages, ())
    if not pool and json_object(folder / "longtail.json").get("retrieves") != "never":
        raise typer.BadParameter("this pipeline searches; give --passages")
    parts: dict[str, Any] = {"retriever": BM25Retriever(pool, engine="auto") if pool else None}
    llm, vectors = options.load_llm(model, cache=cache), options.load_encoder(encoder)
    rag = LongTailRAG.load(folder, llm=llm, encoder=vectors, **parts)
    if refuse_p_wrong_above is not None:
        rag = rag.refusing(refuse_p_wrong_above)
    answer = rag.answer(question)
    ids = [passage.id for passage in answer.passages]
    told = {"answer": answer.text, "p_wrong": answer.p_wrong, "refused": answer.refused}
    io.show({"question": answer.question, **told, "passages": ids}, as_data)


def _share(target: str | None) -> float | str | None:
    """A number where it is one; what is neither is refused with the other values."""
    try:
        return target if target is None else float(target)
    except ValueError:
        return target
