"""Training data: which prompt, which target, and that nothing is asked twice."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    InvalidInput,
    MissingReferences,
    NoTokenProbabilities,
    UnreadableArtifact,
    UnwritableArtifact,
)
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic import ScoreScale, SGICSettings, calibrate
from ltrag_plugins.training import CorpusSettings, Example, build, load
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token
from tests.sgic_parts import QUESTION, THREE, documents_in, rounds_in, said

TWO = SGICSettings(rounds=2)
PAPER = CorpusSettings.paper()
ALONE = {"fortress": 0.9, "coastal": 0.5, "seaside": 0.1}
"""Probability of the answer from each document: uncertainties 0.1, 0.5, 0.9, scores 0, 50, 100."""


def asked(count=4, answers=("Right", "other")):
    return [Question(f"{QUESTION} {i}", answers, f"q{i}", THREE) for i in range(count)]


def number(prompt: str) -> int:
    return int(re.findall(r"^Question: .*\? (\d+)$", prompt, re.MULTILINE)[0])


def scripted(text, probability) -> ScriptedLLM:
    """Question i says `text(i, n)` in round n with `probability(i, n)`."""

    def write(prompt):
        if documents_in(prompt) == 1 and not rounds_in(prompt):
            return said("x", next(p for word, p in ALONE.items() if word in prompt))
        i, n = number(prompt), len(rounds_in(prompt))
        return said(text(i, n), probability(i, n))

    return ScriptedLLM(write)


def world() -> ScriptedLLM:
    """Question i is right from round i on, but for question 3, which never is (there are two).

    Uncertainties of round 0: 0.2, 0.4, 0.6, 0.8 (mean 0.5), after it: 0.1 less (mean 0.4).
    """
    return scripted(
        lambda i, n: "right." if n >= i else f"wrong {n}",
        lambda i, n: 0.8 - 0.2 * i + 0.1 * min(n, 1),
    )


def drawn(text: str) -> float:
    """A number in (0, 1) that depends on every letter."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) + 1) / (2**32 + 1)


def fickle() -> ScriptedLLM:
    """Right or wrong, sure or not, by what stands in the prompt, scores included."""

    def write(prompt):
        text = "right" if drawn(f"{prompt}!") < 0.3 else f"{drawn(prompt):.2f}"
        return Generation(text, (Token(text, -2 * drawn(f"{prompt}?")),))

    return ScriptedLLM(write)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


HEAD = """\
Use the documents to answer the question in a few words, no explanation. The number behind a text, \
0 to 100, is how uncertain it is: trust low ones most.

Document [1]: Castle: Dirleton Castle is a fortress in East Lothian. (Uncertainty Score: 0)
Document [2]: Bay: Yellowcraig is a coastal area. (Uncertainty Score: 50)
Document [3]: North Berwick is a seaside town. (Uncertainty Score: 100)

Question: Where is Dirleton Castle? {}
Keep an earlier answer if the documents bear it out; otherwise give a better one.
Previous Generated Answer:
{}
Answer:"""


def test_four_questions_become_the_examples_that_a_hand_writes(tmp_path):
    found = build(asked(), world(), out=tmp_path, settings=TWO, corpus=PAPER).examples
    # 0.2 of 0.5 is 20, 0.4 is 40, 0.6 is 60; in round 1 0.5 is 50 + 50 * 0.1 / 0.6
    assert found == (
        Example(HEAD.format(0, "Round 1: right. (Uncertainty Score: 20)"),
                "right.", "q0", "preserved", 1),
        Example(HEAD.format(1, "Round 1: wrong 0 (Uncertainty Score: 40)"),
                "Right", "q1", "mended", 1),
        Example(HEAD.format(2, "Round 1: wrong 0 (Uncertainty Score: 60)\n"
                               "Round 2: wrong 1 (Uncertainty Score: 58)"),
                "Right", "q2", "mended", 2),
    )  # fmt: skip


def test_a_line_is_the_chat_that_trainers_read(tmp_path):
    [example, *_] = build(asked(), world(), out=tmp_path, settings=TWO, corpus=PAPER).examples
    assert lines(tmp_path)[0] == {
        "messages": [
            {"role": "user", "content": example.prompt},
            {"role": "assistant", "content": "right."},
        ],
        "id": "q0",
        "kind": "preserved",
        "round": 1,
    }


def chosen_by_hand(question, trace):
    """The example of section 3.3, from the rounds of `calibrate`."""
    for n, one in enumerate(trace):
        if normalized_exact_match(one.text, question.answers):
            return (trace[max(n, 1)].prompt, "preserved" if n == 0 else "mended", max(n, 1))
    return None


def test_the_examples_are_those_of_the_loop_that_answers(tmp_path):
    questions = asked(40)
    settings = SGICSettings(rounds=3, certain_below=0, least_gain=None, keep_prompts=True)
    found = build(questions, fickle(), out=tmp_path / "a", settings=settings, corpus=PAPER)
    scale = ScoreScale("product", tuple(found.manifest["scale"]["means"]))
    expected = []
    for question in questions:
        flow = calibrate(question.text, question.passages, settings, scale)
        if one := chosen_by_hand(question, run(flow, World(llm=fickle())).trace):
            expected.append((question.id, *one))
    assert [(e.id, e.prompt, e.kind, e.round) for e in found.examples] == expected
    assert {e.kind for e in found.examples} == {"mended", "preserved"}
    llm = fickle()
    told = {"settings": settings, "corpus": PAPER, "scale": scale, "batch": 9}
    again = build(questions, llm, out=tmp_path / "b", **told)
    assert again.examples == found.examples  # the scale that is fitted is the one handed in
    assert max(map(len, llm.calls)) == 9


def test_every_prompt_is_one_that_the_model_was_asked(tmp_path):
    llm = fickle()
    found = build(asked(20), llm, out=tmp_path, corpus=CorpusSettings(keep_wrong=1.0))
    assert {example.prompt for example in found.examples} <= set(llm.prompts)


@pytest.mark.parametrize("keep_wrong", [0, 0.4, 1])
@pytest.mark.parametrize("include_direct", ["all", "kept", "none"])
def test_the_manifest_counts_what_a_recount_of_the_file_counts(
    keep_wrong, include_direct, tmp_path
):
    corpus = CorpusSettings(keep_wrong=keep_wrong, include_direct=include_direct)
    told = build(asked(30), fickle(), out=tmp_path, settings=TWO, corpus=corpus).manifest
    found = lines(tmp_path)
    kinds = Counter(line["kind"] for line in found)
    assert {kind: told[kind] for kind in ("mended", "preserved", "wrong", "direct")} == {
        kind: kinds[kind] for kind in ("mended", "preserved", "wrong", "direct")
    }
    assert told["examples"] == len(found)
    assert told["kept"] == kinds["mended"] + kinds["preserved"] == sum(told["first_right_in_round"])
    assert told["questions"] == told["kept"] + told["pruned"] == 30
    assert told["wrong"] == round(keep_wrong * told["pruned"])
    mended_in = Counter(line["round"] for line in found if line["kind"] == "mended")
    assert told["first_right_in_round"] == [kinds["preserved"], mended_in[1], mended_in[2]]
    looked_again = told["kept"] + told["wrong"]
    assert told["direct"] == {"all": 30, "kept": looked_again, "none": 0}[include_direct]
    assert told["sha256"] == hashlib.sha256((tmp_path / "train.jsonl").read_bytes()).hexdigest()


def test_a_question_that_was_never_right_stays_with_its_last_prompt_if_told_to(tmp_path):
    corpus = replace(PAPER, keep_wrong=1.0)
    *_, last = build(asked(), world(), out=tmp_path, settings=TWO, corpus=corpus).examples
    said = "Round 1: wrong 0 (Uncertainty Score: 80)\nRound 2: wrong 1 (Uncertainty Score: 75)"
    assert last == Example(HEAD.format(3, said), "Right", "q3", "wrong", 2)


def test_a_larger_share_keeps_those_of_a_smaller_one(tmp_path):
    kept = {}
    for share in (0.2, 0.5, 0.8):
        corpus = CorpusSettings(keep_wrong=share, include_direct="none")
        found = build(asked(30), fickle(), out=tmp_path / f"{share}", settings=TWO, corpus=corpus)
        kept[share] = {e.id for e in found.examples if e.kind == "wrong"}
    assert kept[0.2] < kept[0.5] < kept[0.8]


def test_the_plain_prompts_are_line_for_line_the_data_of_the_baseline(tmp_path):
    build(asked(), world(), out=tmp_path / "sgic", settings=TWO)
    baseline = build(
        asked(), None, out=tmp_path / "direct", settings=TWO, corpus=CorpusSettings(form="direct")
    )
    assert lines(tmp_path / "direct") == [
        line for line in lines(tmp_path / "sgic") if line["kind"] == "direct"
    ]
    assert [(e.target, e.round) for e in baseline.examples] == [("Right", 0)] * 4
    llm = world()
    run(calibrate(asked()[0].text, THREE), World(llm=llm))
    assert llm.prompts[0] == baseline.examples[0].prompt
    told = baseline.manifest
    assert (told["llm"], told["kept"], told["pruned"], told["direct"]) == (None, 0, 0, 4)


def test_of_several_accepted_answers_the_target_is_the_one_that_was_said(tmp_path):
    questions = asked(2, answers=(" ", "Fife", "The\n right"))
    *_, mended = build(questions, world(), out=tmp_path, settings=TWO, corpus=PAPER).examples
    assert (mended.kind, mended.target) == ("mended", "The right")


def test_an_unsure_right_first_answer_gives_way_to_the_accepted_one(tmp_path):
    # three quarters of the words are right; question 1 says so less surely than the mean
    llm = scripted(lambda i, n: "the far far right", lambda i, n: 0.8 - 0.4 * i)
    questions = asked(2, answers=("far right",))
    corpus = replace(PAPER, right="f1", right_from=f1("far far right", ["far right"]))
    sure, unsure = build(questions, llm, out=tmp_path, settings=TWO, corpus=corpus).examples
    assert (sure.kind, sure.target) == ("preserved", "the far far right")
    assert (unsure.kind, unsure.target) == ("mended", "far right")
    with pytest.raises(CalibrationError):  # by exact match neither is right
        build(questions, llm, out=tmp_path / "em", settings=TWO, corpus=PAPER)


def test_a_function_of_the_user_may_judge(tmp_path):
    def long_enough(answer, references):
        return len(answer) >= len("wrong 0")

    corpus = replace(PAPER, right=long_enough)
    found = build(asked(), world(), out=tmp_path, settings=TWO, corpus=corpus)
    assert [e.id for e in found.examples] == ["q1", "q2", "q3"]
    assert found.manifest["corpus"]["right"].endswith("long_enough")

    def broken(answer, references):
        raise KeyError("oops")

    with pytest.raises(InvalidInput, match="'right' raised KeyError"):
        build(asked(), world(), out=tmp_path / "b", corpus=replace(PAPER, right=broken))
    nan = replace(PAPER, right=lambda a, r: float("nan"))
    with pytest.raises(InvalidInput, match="'right' gave nan"):
        build(asked(), world(), out=tmp_path / "b", corpus=nan)


def test_stop_rules_of_the_settings_change_nothing(tmp_path):
    early = SGICSettings(rounds=2, certain_below=99, least_gain=50, choose="repeated")
    first = build(asked(20), fickle(), out=tmp_path, settings=early)
    assert build(asked(20), fickle(), out=tmp_path, settings=TWO) == first
    late = build(asked(20), fickle(), out=tmp_path / "b", settings=TWO)
    assert late.examples == first.examples


def test_other_judges_of_documents_and_other_estimators_serve(tmp_path):
    def nearness(question, passages):
        return [len(p.text) for p in passages]

    settings = SGICSettings(rounds=2, source="relevance")
    found = build(asked(), world(), out=tmp_path / "a", settings=settings, relevance=nearness)
    assert "fortress in East Lothian. (Uncertainty Score: 0)" in found.examples[0].prompt
    assert found.manifest["judge"].endswith("nearness")

    text_only = ScriptedLLM(lambda prompt: "right")
    settings = SGICSettings(rounds=1, estimator="agreement", samples=2)
    found = build(asked(2), text_only, out=tmp_path / "b", settings=settings, corpus=PAPER)
    assert [e.kind for e in found.examples] == ["preserved"] * 2
    with pytest.raises(NoTokenProbabilities):
        build(asked(2), text_only, out=tmp_path / "c", settings=TWO)


# --- what was stopped goes on


class Stopping:
    """Answers so many calls, then stops the process; counts what it answered."""

    name = "scripted"

    def __init__(self, calls):
        self.left, self.inner = calls, fickle()

    def generate(self, prompts, settings=GenerationSettings()):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return self.inner.generate(prompts, settings)


CALLS = 8 + 24 + 8 + 8
"""Prompts of 8 questions with 3 documents and 2 rounds."""


@pytest.mark.parametrize("after", range(0, CALLS // 4, 3))
def test_a_build_that_was_stopped_goes_on_and_asks_nothing_twice(after, tmp_path):
    whole = fickle()
    build(asked(8), whole, out=tmp_path / "whole", settings=TWO, batch=4)
    assert len(whole.prompts) == CALLS
    assert max(map(len, whole.calls)) == 4
    stopping = Stopping(after)
    with pytest.raises(KeyboardInterrupt):
        build(asked(8), stopping, out=tmp_path / "part", settings=TWO, batch=4)
    with pytest.raises(UnreadableArtifact):
        load(tmp_path / "part")
    rest = fickle()
    build(asked(8), rest, out=tmp_path / "part", settings=TWO, batch=4)
    answered = [*stopping.inner.prompts, *rest.prompts]
    assert len(answered) == len(set(answered))
    assert set(answered) == set(whole.prompts)
    files = [
        sorted((p.name, p.read_bytes()) for p in (tmp_path / name).iterdir())
        for name in ("whole", "part")
    ]
    assert files[0] == files[1]
    assert [name for name, _ in files[1]] == ["manifest.json", "train.jsonl"]  # no answers left


def test_data_that_is_there_is_read_and_not_made_again(tmp_path):
    first = build(asked(), world(), out=tmp_path, settings=TWO)
    llm = world()
    assert build(asked(), llm, out=tmp_path, settings=TWO) == first == load(tmp_path)
    assert llm.prompts == []


def test_answers_are_kept_where_all_were_pruned(tmp_path):
    llm = scripted(lambda i, n: "wrong", lambda i, n: 0.5)
    with pytest.raises(CalibrationError, match=r"none of 4 questions .* 3 rounds.*keep_wrong=1.0"):
        build(asked(), llm, out=tmp_path, settings=TWO)
    paid = len(llm.prompts)
    corpus = CorpusSettings(keep_wrong=1.0, include_direct="kept")
    found = build(asked(), llm, out=tmp_path, settings=TWO, corpus=corpus)
    assert [e.kind for e in found.examples] == ["wrong", "direct"] * 4
    assert len(llm.prompts) == paid


def test_a_cache_of_the_user_keeps_the_answers_instead(tmp_path):
    inner = world()
    with CachedLLM(inner, tmp_path / "mine.sqlite") as llm:
        build(asked(), llm, out=tmp_path / "a", settings=TWO)
        paid = len(inner.prompts)
        build(asked(), llm, out=tmp_path / "b", settings=TWO, corpus=PAPER)
    assert len(inner.prompts) == paid
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["manifest.json", "train.jsonl"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"llm": ScriptedLLM(str, name="other")}, "llm was 'scripted' and is now 'other'"),
        ({"settings": SGICSettings(rounds=3)}, "settings.rounds was 2 and is now 3"),
        ({"corpus": CorpusSettings(keep_wrong=0.5)}, "corpus.keep_wrong was 0.0 and is now 0.5"),
        ({"questions": asked(5)}, "questions_sha256"),
        ({"questions": [replace(q, passages=THREE[::-1]) for q in asked()]}, "questions_sha256"),
        ({"scale": ScoreScale("product")}, r"given_scale was None and is now \[0.5\]"),
    ],
)
def test_a_folder_with_other_data_is_refused_with_the_difference(changed, says, tmp_path):
    told = {"questions": asked(), "llm": world(), "settings": TWO}
    build(told.pop("questions"), told.pop("llm"), out=tmp_path, **told)
    before = (tmp_path / "train.jsonl").read_bytes()
    now = {"questions": asked(), "llm": world(), "settings": TWO} | changed
    with pytest.raises(ArtifactMismatch, match=says):
        build(now.pop("questions"), now.pop("llm"), out=tmp_path, **now)
    assert (tmp_path / "train.jsonl").read_bytes() == before


def test_another_judge_of_the_documents_makes_other_data(tmp_path):
    def longest(question, passages):
        return [len(p.text) for p in passages]

    def shortest(question, passages):
        return [-len(p.text) for p in passages]

    told = {"settings": SGICSettings(rounds=1, source="relevance"), "corpus": PAPER}
    build(asked(), world(), out=tmp_path / "a", relevance=longest, **told)
    before, llm = (tmp_path / "a" / "train.jsonl").read_bytes(), world()
    with pytest.raises(ArtifactMismatch, match=r"judge was '.*longest' and is now '.*shortest'"):
        build(asked(), llm, out=tmp_path / "a", relevance=shortest, **told)
    assert llm.prompts == []
    assert (tmp_path / "a" / "train.jsonl").read_bytes() == before
    build(asked(), llm, out=tmp_path / "a", relevance=longest, **told)
    assert llm.prompts == []  # the same one's data is there
    build(asked(), llm, out=tmp_path / "b", relevance=shortest, **told)
    scores = [
        re.findall(r"Document .* \(Uncertainty Score: (\d+)\)", example.prompt)
        for folder in ("a", "b")
        for example in load(tmp_path / folder).examples[:1]
    ]
    # of 46, 30 and 32 characters
    assert scores == [["0", "100", "88"], ["100", "0", "12"]]


# --- wrong input


@pytest.mark.parametrize(
    ("questions", "error", "says"),
    [
        ([], CalibrationError, "no questions"),
        (["who?"], InvalidInput, "Question"),
        ([Question("who?", ("a",), "odd")], CalibrationError, "'odd' has no passages"),
        ([Question("who?", (), "odd", THREE)], MissingReferences, "'odd' has no accepted answers"),
        ([Question("who?", (" ",), "", THREE)], MissingReferences, "'who?' has no accepted"),
        ([Question("who?", "a", "odd", THREE)], InvalidInput, "'odd' are one string"),
        ([Question("?", ("a",), "odd", THREE)], InvalidInput, "no words"),
        ([Question("who?", ("a",), "odd", (Passage("\ud800"),))], InvalidInput, "'odd' has half"),
        ([Question("who?", ("a",), "odd", ("text",))], InvalidInput, "passage 1 is a str"),
    ],
)
def test_questions_that_teach_nothing_are_refused_before_a_call(questions, error, says, tmp_path):
    llm = world()
    with pytest.raises(error, match=re.escape(says)):
        build(questions, llm, out=tmp_path / "data")
    assert llm.prompts == []
    assert not list(tmp_path.glob("data/*"))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"settings": SGICSettings(rounds=0)}, "rounds=0"),
        ({"settings": SGICSettings(source="oracle")}, "oracle"),
        ({"settings": SGICSettings(source="relevance")}, "relevance"),
        ({"llm": None}, "llm=None"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_settings_that_teach_nothing_are_refused(told, says, tmp_path):
    with pytest.raises(InvalidInput, match=says):
        build(asked(), **({"llm": world(), "out": tmp_path} | told))


@pytest.mark.parametrize(
    "told",
    [
        {"form": "chat"},
        {"include_direct": True},
        {"keep_wrong": 1.5},
        {"keep_wrong": "all"},
        {"right": "bleu"},
        {"right_from": 0},
        {"certain_below": 101},
    ],
)
def test_corpus_settings_out_of_range_name_themselves(told):
    with pytest.raises(InvalidInput, match=next(iter(told))):
        CorpusSettings(**told)


def test_a_folder_that_cannot_be_made_is_found_before_a_call(tmp_path):
    (tmp_path / "file").write_text("")
    llm = world()
    with pytest.raises(UnwritableArtifact, match="file"):
        build(asked(), llm, out=tmp_path / "file" / "data")
    assert llm.prompts == []


def test_a_file_of_somebody_else_is_not_written_over(tmp_path):
    (tmp_path / "train.jsonl").write_text("mine")
    with pytest.raises(ArtifactMismatch, match="and no manifest"):
        build(asked(), world(), out=tmp_path)
    assert (tmp_path / "train.jsonl").read_text() == "mine"


# --- reading it again


GOOD = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


def test_bare_chat_lines_need_no_manifest(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD | {'id': 3, 'more': 1})}\n")
    found = load(path)
    assert found.examples == (Example("q", "a"), Example("q", "a", "3"))
    assert found.manifest == {}


def messages(*pairs):
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{oops", "Expecting property name"),
        ("[1]", "got [1]"),
        ("{}", "got {}"),
        (json.dumps({"messages": ["q", "a"]}), "got {'messages': ['q', 'a']}"),
        (json.dumps(messages(("user", "q"))), "expected {'messages': [a user's, then"),
        (json.dumps(messages(("system", "s"), ("user", "q"))), "put a system's into the user's"),
        (json.dumps(messages(("user", "q"), ("assistant", " "))), "each with a text"),
        (json.dumps(messages(("user", 3), ("assistant", "a"))), "each with a text"),
        (json.dumps(GOOD | {"kind": "odd"}), "'kind' is 'odd'; there are mended"),
        (json.dumps(GOOD | {"round": -1}), "'round' is -1"),
        ("\udcff", "byte 0xff"),
    ],
)
def test_a_broken_line_is_named_with_the_reason(line, says, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(f"{json.dumps(GOOD)}\n{line}\n".encode(errors="surrogateescape"))
    for place in (path, tmp_path):
        with pytest.raises(UnreadableArtifact) as found:
            load(place)
        assert str(found.value).startswith(f"{path}, line 2: ")
        assert says in str(found.value)


def test_data_that_was_changed_or_is_not_there_is_refused(tmp_path):
    with pytest.raises(UnreadableArtifact, match=r"train.jsonl \(.*No such file"):
        load(tmp_path)
    build(asked(), world(), out=tmp_path, settings=TWO)
    whole = (tmp_path / "train.jsonl").read_bytes()
    (tmp_path / "train.jsonl").write_bytes(b"".join(whole.splitlines(True)[:-1]))
    with pytest.raises(UnreadableArtifact, match="is of another"):
        load(tmp_path)
    assert len(load(tmp_path / "train.jsonl").examples) == len(whole.splitlines()) - 1
    with pytest.raises(UnreadableArtifact, match="is of another"):
        build(asked(), world(), out=tmp_path, settings=TWO)  # nor is it written over
    (tmp_path / "train.jsonl").write_bytes(b"\n")
    with pytest.raises(UnreadableArtifact, match="no examples"):
        load(tmp_path)


@pytest.mark.parametrize("manifest", ["{oops", "[]", '{"format": 99}'])
def test_a_manifest_that_cannot_be_read_is_named(manifest, tmp_path):
    build(asked(), world(), out=tmp_path, settings=TWO)
    (tmp_path / "manifest.json").write_text(manifest)
    for read in (load, lambda folder: build(asked(), world(), out=folder)):
        with pytest.raises(UnreadableArtifact, match=r"manifest.json is"):
            read(tmp_path)
