"""SGICCalibrator in both frameworks, beside the flow itself."""

import asyncio
import math
from dataclasses import replace

import pytest

from ltrag_plugins.calibration import Platt
from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    ModelFailed,
    UnreadableArtifact,
)
from ltrag_plugins.langchain import SGICCalibrator as InLangChain
from ltrag_plugins.llama_index import SGICCalibrator as InLlamaIndex
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import (
    Calibration,
    Calibrator,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
)
from ltrag_plugins.types import Passage
from tests.framework_parts import EACH, FRAMEWORKS, Letters, ladder, told_of
from tests.sgic_parts import LOOKING, THREE, answered, documents_in, rounds_in, said

WAYS = [(framework, way) for framework in FRAMEWORKS for way in framework.ways]
EVERY_WAY = pytest.mark.parametrize(("framework", "way"), WAYS)


def flat(chance: float) -> ScriptedLLM:
    return ScriptedLLM(lambda _: said("Fife", chance))


def calibration(**settings) -> Calibration:
    """P(wrong) is the logistic function of score / 100 - 0.5, which is 0.5 at a score of 50."""
    scale = ScoreScale("product", (0.5,))
    wrongness = WrongnessCalibration(Platt(1.0, -0.5), scale, 20, 0.5, 0.8, 0.1)
    return Calibration(SGICSettings(**({"rounds": 5} | settings)), scale, wrongness)


async def told(framework, way: str = "", llm=None, passages=THREE, **options) -> dict:
    options = options if "calibration" in options else {"settings": LOOKING} | options
    calibrator = framework.room.SGICCalibrator(llm or ladder(), **options)
    out = await framework.called(calibrator, way or framework.ways[0], passages=passages)
    return framework.told(out)


@EVERY_WAY
@pytest.mark.parametrize("mean", [0.5, 0.8])
async def test_every_way_of_calling_says_what_the_flow_says(framework, way, mean):
    llm, theirs, scale = ladder(), ladder(), ScoreScale("product", (mean,))
    found = await told(framework, way, llm, calibration=Calibration(LOOKING, scale))
    assert found == told_of(answered(theirs, scale=scale))
    assert llm.calls == theirs.calls  # the same prompts in the same requests
    assert (found["said"], found["uncertainty"]) == ("East Lothian", 0.05)
    assert found["documents"] == [("a", 0, 0.1), ("b", 50, 0.5), ("c", 100, 0.9)]


@EVERY_WAY
async def test_the_frameworks_own_models_say_the_same_and_no_loop_stands_still(framework, way):
    for llm in framework.models(lambda prompt: ladder().generate([prompt])[0]).values():
        assert await told(framework, way, llm) == told_of(answered(ladder()))
        assert getattr(llm, "blocked_the_loop", []) == []


@EVERY_WAY
async def test_without_documents_the_model_answers_from_what_it_knows_once(framework, way):
    found = await told(framework, way, flat(0.4), passages=[])
    assert (found["said"], found["stop"], found["calls"]) == ("Fife", "no documents", 1)
    assert (found["score"], found["documents"]) == (60, [])


@EVERY_WAY
@pytest.mark.parametrize("question", ["", " \n"])
async def test_an_empty_question_is_refused_before_anything_is_asked(framework, way, question):
    llm = ladder()
    with pytest.raises(EmptyQuestion):
        await framework.called(framework.room.SGICCalibrator(llm), way, question)
    assert llm.calls == []


@EACH
async def test_questions_side_by_side_do_not_mix(framework):
    def write(prompt):
        return said("odd", 0.9) if "number 1" in prompt else said("even", 0.2)

    calibrator = framework.room.SGICCalibrator(ScriptedLLM(write), settings=SGICSettings(rounds=1))
    asked = [f"Which is number {i % 2}?" for i in range(20)]
    together = await asyncio.gather(
        *(framework.called(calibrator, framework.ways[1], question) for question in asked)
    )
    assert [framework.told(one)["said"] for one in together] == ["even", "odd"] * 10


@pytest.mark.parametrize(("framework", "way"), [pair for pair in WAYS if pair[1][0] == "a"])
@pytest.mark.parametrize("at", [1, 5, 6])  # the first answer; the first round; the second
async def test_a_cancellation_stops_within_the_call_that_is_under_way(framework, way, at):
    begun, reached = [], asyncio.Event()

    async def halting(prompt: str):
        begun.append(prompt)
        if len(begun) == at:
            reached.set()
            await asyncio.sleep(60)
        return said(f"answer {len(begun)}", 0.3)

    *_, llm = framework.models(halting).values()
    task = asyncio.create_task(told(framework, way, llm))
    await asyncio.wait_for(reached.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    await asyncio.sleep(0.05)
    assert len(begun) == at


@EVERY_WAY
@pytest.mark.parametrize("failing", [0, 2])
async def test_a_model_error_is_raised_or_gives_the_best_answer_so_far(framework, way, failing):
    def write(prompt: str):
        if documents_in(prompt) == 3 and len(rounds_in(prompt)) == failing:
            raise ConnectionError("no route")
        return ladder().generate([prompt])[0]

    llm, *_ = framework.models(write).values()
    best = {"settings": SGICSettings(rounds=5, on_error="best")}
    for options in [{}] if failing else [{}, best]:
        with pytest.raises(ModelFailed, match="no route") as caught:
            await told(framework, way, llm, **options)
        assert isinstance(caught.value.__cause__, ConnectionError)
    if failing:
        found = await told(framework, way, llm, **best)
        assert (found["said"], found["stop"], found["round"]) == ("Lothian", "error", 1)
        assert found["error"].startswith("ModelFailed: the model raised ConnectionError: no route")


@EVERY_WAY
@pytest.mark.parametrize(("limit", "refused"), [(59.9, True), (60.1, False)])
async def test_an_answer_above_the_limit_is_refused_and_kept(framework, way, limit, refused):
    options = {"refuse_above": limit, "refusal": "Ask a person."}
    found = await told(framework, way, flat(0.4), **options)
    assert (found["said"], found["refused"]) == ("Ask a person." if refused else "Fife", refused)
    assert (found["text"], found["score"], found["trace"][0][1]) == ("Fife", 60, "Fife")
    assert len(found["documents"]) == 3


@EVERY_WAY
async def test_a_calibration_gives_p_wrong_and_a_limit_on_it(framework, way):
    p = 1 / (1 + math.exp(-0.1))
    for limit, refused in {p - 1e-6: True, p + 1e-6: False}.items():
        options = {"calibration": calibration(), "refuse_p_wrong_above": limit}
        found = await told(framework, way, flat(0.4), **options)
        assert (found["p_wrong"], found["refused"]) == (round(p, 9), refused)


@EACH
async def test_a_saved_calibration_is_used_and_another_model_is_refused(framework, tmp_path):
    kind, [language, *_] = framework.room.SGICCalibrator, framework.models(str).values()
    calibration(rounds=1).save(tmp_path, llm=ladder())
    for options, rounds in (({"refuse_above": 90}, 2), ({"settings": SGICSettings(rounds=0)}, 1)):
        loaded = kind.from_pretrained(tmp_path, llm=ladder(), **options)
        found = framework.told(await framework.called(loaded, framework.ways[0]))
        assert (len(found["trace"]), found["p_wrong"] is None) == (rounds, False)
    with pytest.raises(ArtifactMismatch, match=f"fitted with the model.*{type(language).__name__}"):
        kind.from_pretrained(tmp_path, llm=language)
    with pytest.raises(UnreadableArtifact):
        kind.from_pretrained(tmp_path / "none", llm=ladder())


AGAIN = SGICSettings(rounds=5, estimator="agreement")


@pytest.mark.parametrize("kind", [Calibrator, InLangChain, InLlamaIndex])
@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        *(
            ({name: value}, InvalidInput, rf"{name} .*from 0 to {top}\b")
            for name, top in (("refuse_above", 100), ("refuse_p_wrong_above", 1))
            for value in (-1, 101, float("nan"), "high")
        ),
        ({"refuse_p_wrong_above": 0.5}, InvalidInput, "refuse_above"),
        ({"llm": "gpt-4o"}, InvalidInput, "llm must be"),
        ({"calibration": "folder"}, InvalidInput, "from_pretrained"),
        ({"settings": {"rounds": 3}}, InvalidInput, "settings must be"),
        ({"calibration": calibration(), "settings": AGAIN}, ArtifactMismatch, "agreement"),
        (
            {"settings": SGICSettings(rounds=5, source="relevance")},
            InvalidInput,
            "needs relevance=",
        ),
        ({"settings": SGICSettings(source="encoder")}, InvalidInput, "needs encoder="),
        ({"settings": SGICSettings(source="oracle")}, InvalidInput, "needs truth="),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_work_is_refused_at_once(kind, wrong, error, match):
    with pytest.raises(error, match=match):
        kind(**{"llm": ladder()} | wrong)


@EACH
async def test_documents_are_scored_by_a_function_or_by_the_frameworks_embeddings(framework):
    seen: list[Passage] = []

    def nearest(question, passages):
        seen.extend(passages)
        return [float("Berwick" in passage.text) for passage in passages]

    settings = SGICSettings(rounds=5, source="relevance")
    scored = [replace(passage, score=i / 4) for i, passage in enumerate(THREE)]
    found = await told(framework, passages=scored, settings=settings, relevance=nearest)
    assert [(p.id, p.title, p.score) for p in seen] == [(p.id, p.title, p.score) for p in scored]
    assert [score for _, score, _ in found["documents"]] == [100, 100, 0]
    theirs, ours = [
        await told(framework, settings=SGICSettings(rounds=5, source="encoder"), encoder=encoder)
        for encoder in (framework.embeddings(), Letters())
    ]
    assert theirs == ours
    assert len({score for _, score, _ in theirs["documents"]}) == 3
