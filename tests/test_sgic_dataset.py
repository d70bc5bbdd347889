"""Training data: which prompt, which target, and that nothing is asked twice."""

import hashlib
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    InvalidInput,
    MissingReferences,
    UnreadableArtifact,
    UnwritableArtifact,
)
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.sgic import ScoreScale, SGICSettings, calibrate
from ltrag_plugins.training import CorpusSettings, Example, build, load
from ltrag_plugins.types import GenerationSettings, Passage, Question
from tests.sgic_parts import THREE, fickle, scripted
from tests.sgic_parts import asked as all_asked

TWO = SGICSettings(rounds=2)
PAPER = CorpusSettings.paper()


def asked(count=4, answers=("Right", "other")):
    return all_asked(count, answers=answers)


def world() -> ScriptedLLM:
    """Question i is right from round i on, but for question 3, which never is (there are two).

    Uncertainties of round 0: 0.2, 0.4, 0.6, 0.8 (mean 0.5), after it: 0.1 less (mean 0.4).
    """
    return scripted(
        lambda i, n: "right." if n >= i else f"wrong {n}",
        lambda i, n: 0.8 - 0.2 * i + 0.1 * min(n, 1),
    )


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
    # a line is the chat that trainers read
    messages = [("user", found[0].prompt), ("assistant", "right.")]
    assert lines(tmp_path)[0] == {
        "messages": [{"role": role, "content": content} for role, content in messages],
        "id": "q0",
        "kind": "preserved",
        "round": 1,
    }
    # one that was never right stays with its last prompt if told to
    corpus = replace(PAPER, keep_wrong=1.0)
    *_, last = build(asked(), world(), out=tmp_path / "b", settings=TWO, corpus=corpus).examples
    said = "Round 1: wrong 0 (Uncertainty Score: 80)\nRound 2: wrong 1 (Uncertainty Score: 75)"
    assert last == Example(HEAD.format(3, said), "Right", "q3", "wrong", 2)


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
    told = {"settings": settings, "corpus": PAPER, "batch": 9}
    again = build(questions, llm, out=tmp_path / "b", **told)
    assert again.examples == found.examples
    assert max(map(len, llm.calls)) == 9


@pytest.mark.parametrize("keep_wrong", [0, 0.4, 1])
@pytest.mark.parametrize("include_direct", ["all", "kept", "none"])
def test_the_manifest_counts_what_a_recount_of_the_file_counts(
    keep_wrong, include_direct, tmp_path
):
    corpus = CorpusSettings(keep_wrong=keep_wrong, include_direct=include_direct)
    llm = fickle()
    built = build(asked(30), llm, out=tmp_path, settings=TWO, corpus=corpus)
    assert {example.prompt for example in built.examples} <= set(llm.prompts)
    told, found = built.manifest, lines(tmp_path)
    kinds = Counter(line["kind"] for line in found)
    for kind in ("mended", "preserved", "wrong", "direct"):
        assert told[kind] == kinds[kind]
    assert told["examples"] == len(found)
    assert told["kept"] == kinds["mended"] + kinds["preserved"] == sum(told["first_right_in_round"])
    assert told["questions"] == told["kept"] + told["pruned"] == 30
    assert told["wrong"] == round(keep_wrong * told["pruned"])
    mended_in = Counter(line["round"] for line in found if line["kind"] == "mended")
    assert told["first_right_in_round"] == [kinds["preserved"], mended_in[1], mended_in[2]]
    looked_again = told["kept"] + told["wrong"]
    assert told["direct"] == {"all": 30, "kept": looked_again, "none": 0}[include_direct]
    assert told["sha256"] == hashlib.sha256((tmp_path / "train.jsonl").read_bytes()).hexdigest()


def test_a_larger_share_keeps_those_of_a_smaller_one(tmp_path):
    kept = {}
    for share in (0.2, 0.5, 0.8):
        corpus = CorpusSettings(keep_wrong=share, include_direct="none")
        found = build(asked(30), fickle(), out=tmp_path / f"{share}", settings=TWO, corpus=corpus)
        kept[share] = {e.id for e in found.examples if e.kind == "wrong"}
    assert kept[0.2] < kept[0.5] < kept[0.8]


def test_the_plain_prompts_are_line_for_line_the_data_of_the_baseline(tmp_path):
    build(asked(), world(), out=tmp_path / "sgic", settings=TWO)
    direct = {"settings": TWO, "corpus": CorpusSettings(form="direct")}
    baseline = build(asked(), None, out=tmp_path / "direct", **direct)
    plain = [line for line in lines(tmp_path / "sgic") if line["kind"] == "direct"]
    assert lines(tmp_path / "direct") == plain
    assert [(e.target, e.round) for e in baseline.examples] == [("Right", 0)] * 4
    llm = world()
    run(calibrate(asked()[0].text, THREE), World(llm=llm))
    assert llm.prompts[0] == baseline.examples[0].prompt
    told = baseline.manifest
    assert (told["llm"], told["kept"], told["pruned"], told["direct"]) == (None, 0, 0, 4)


def test_a_question_is_learned_whole_and_a_letter_is_the_option_that_it_names(tmp_path):
    rest = "\nText: A castle by the sea.\nOptions: Right; other"
    own = {"context": "A castle by the sea.", "options": ("Right", "other")}
    whole = [replace(one, **own) for one in asked(answers=("Right",))]
    letters = scripted(lambda i, n: "(A)" if n >= i else "B", lambda i, n: 0.8 - 0.2 * i)
    words = scripted(lambda i, n: "Right" if n >= i else "other", lambda i, n: 0.8 - 0.2 * i)
    folder = tmp_path / "words"
    bare = build(asked(answers=("Right",)), words, out=folder, settings=TWO).examples
    found = build(whole, letters, out=tmp_path / "letters", settings=TWO).examples
    assert all(one.prompt.count(rest) == 1 for one in found)
    said = {"(A)": "Right", "B": "other"}
    shown = [re.sub(r"(?<=: )(\(A\)|B)(?= \()", lambda m: said[m[0]], e.prompt) for e in found]
    pairs = zip(found, shown, strict=True)
    assert [replace(one, prompt=text.replace(rest, "")) for one, text in pairs] == [*bare]
    other = [replace(one, context="Another castle.") for one in whole]
    with pytest.raises(ArtifactMismatch, match="questions_sha256"):
        build(other, letters, out=tmp_path / "letters", settings=TWO)


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

    def broken(answer, references):
        raise KeyError("oops")

    def judged_by(right):
        corpus = replace(PAPER, right=right)
        return build(asked(), world(), out=tmp_path, settings=TWO, corpus=corpus)

    for wrong, why in ((broken, "raised KeyError"), (lambda a, r: float("nan"), "gave nan")):
        with pytest.raises(InvalidInput, match=f"'right' {why}"):
            judged_by(wrong)
    found = judged_by(long_enough)
    assert [e.id for e in found.examples] == ["q1", "q2", "q3"]
    assert found.manifest["corpus"]["right"].endswith("long_enough")


def test_stop_rules_of_the_settings_change_nothing(tmp_path):
    early = SGICSettings(rounds=2, certain_below=99, least_gain=50, choose="repeated")
    first = build(asked(20), fickle(), out=tmp_path, settings=early)
    assert build(asked(20), fickle(), out=tmp_path, settings=TWO) == first
    late = build(asked(20), fickle(), out=tmp_path / "b", settings=TWO)
    assert late.examples == first.examples


def test_another_judge_of_documents_makes_other_data(tmp_path):
    def longest(question, passages):
        return [len(p.text) for p in passages]

    def shortest(question, passages):
        return [-len(p.text) for p in passages]

    told = {"settings": SGICSettings(rounds=1, source="relevance"), "corpus": PAPER}
    found = build(asked(), world(), out=tmp_path, relevance=longest, **told)
    # of 46, 30 and 32 characters
    scores = re.findall(r"Document .* \(Uncertainty Score: (\d+)\)", found.examples[0].prompt)
    assert scores == ["0", "100", "88"]
    llm = world()
    with pytest.raises(ArtifactMismatch, match=r"judge was '.*longest' and is now '.*shortest'"):
        build(asked(), llm, out=tmp_path, relevance=shortest, **told)
    assert build(asked(), llm, out=tmp_path, relevance=longest, **told) == found == load(tmp_path)
    assert llm.prompts == []  # the same one's data is there


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
    whole, part = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()}
                   for name in ("whole", "part"))  # fmt: skip
    assert whole == part
    assert {*part} == {"manifest.json", "train.jsonl"}  # no answers left


def test_answers_are_kept_where_all_were_pruned(tmp_path):
    llm = scripted(lambda i, n: "wrong", lambda i, n: 0.5)
    with pytest.raises(CalibrationError, match=r"none of 4 questions .* 3 rounds.*keep_wrong=1.0"):
        build(asked(), llm, out=tmp_path, settings=TWO)
    paid = len(llm.prompts)
    corpus = CorpusSettings(keep_wrong=1.0, include_direct="kept")
    found = build(asked(), llm, out=tmp_path, settings=TWO, corpus=corpus)
    assert [e.kind for e in found.examples] == ["wrong", "direct"] * 4
    assert len(llm.prompts) == paid


@pytest.mark.parametrize("wrong", [[], [0, 1, 2, 3]])
def test_where_a_limit_left_no_round_it_is_named(wrong, tmp_path):
    llm = scripted(lambda i, n: "wrong" if i in wrong else "right", lambda i, n: 0.5)
    with pytest.raises(CalibrationError, match=r"no round .* max_calls=1, or max_tokens=None"):
        build(asked(), llm, out=tmp_path, settings=replace(TWO, max_calls=1))
    assert len(llm.prompts) == 4


def test_a_cache_of_the_user_keeps_the_answers_instead(tmp_path):
    inner = world()
    with CachedLLM(inner, tmp_path / "mine.sqlite") as llm:
        build(asked(), llm, out=tmp_path / "a", settings=TWO)
        paid = len(inner.prompts)
        build(asked(), llm, out=tmp_path / "b", settings=TWO, corpus=PAPER)
    assert len(inner.prompts) == paid
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["manifest.json", "train.jsonl"]


@pytest.mark.parametrize("missing", ["manifest.json", "train.jsonl"])
def test_a_build_that_ended_between_its_two_files_is_completed_by_the_same_call(
    missing, tmp_path, monkeypatch
):
    replacing = Path.replace

    def ended(new, target):
        if Path(target).name == missing:
            raise KeyboardInterrupt
        return replacing(new, target)

    whole, part = tmp_path / "whole", tmp_path / "part"
    with CachedLLM(world(), tmp_path / "mine.sqlite") as llm:
        build(asked(), llm, out=whole, settings=TWO)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", ended)
            with pytest.raises(KeyboardInterrupt):
                build(asked(), llm, out=part, settings=TWO)
        with pytest.raises(UnreadableArtifact):
            load(part)
        build(asked(), llm, out=part, settings=TWO)
    for name in ("manifest.json", "train.jsonl"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()


def test_another_rule_is_other_data_whatever_it_is_called(tmp_path):
    class Judge:
        def __init__(self):
            self.lock = threading.Lock()  # as the clients of APIs hold some

        def right(self, answer, references):
            return bool(self.lock) and len(answer) > 3

    rules = [lambda a, r: "wrong" not in a, lambda a, r: len(a) > 3]
    rules += [partial(f1_of, most=1), partial(f1_of, most=9), Judge().right]

    def built(rule, folder):
        corpus = replace(PAPER, right=rule)
        return build(asked(), world(), out=tmp_path / folder, settings=TWO, corpus=corpus)

    for i, rule in enumerate(rules[::2]):
        first = built(rule, f"{i}")
        assert built(rule, f"{i}").examples == first.examples
        for other in rules:
            if other is not rule:
                with pytest.raises(ArtifactMismatch, match=r"corpus\.right was"):
                    built(other, f"{i}")


def f1_of(answer, references, most=1):
    return min(most, "wrong" not in answer)


@pytest.mark.parametrize(("changed", "says"), [
    ({"llm": ScriptedLLM(str, name="other")}, "llm was 'scripted' and is now 'other'"),
    ({"settings": SGICSettings(rounds=3)}, "settings.rounds was 2 and is now 3"),
    ({"corpus": CorpusSettings(keep_wrong=0.5)}, "corpus.keep_wrong was 0.0 and is now 0.5"),
    ({"questions": asked(5)}, "questions_sha256"),
    ({"questions": [replace(q, passages=THREE[::-1]) for q in asked()]}, "questions_sha256"),
])  # fmt: skip
def test_a_folder_with_other_data_is_refused_with_the_difference(changed, says, tmp_path):
    told = {"questions": asked(), "llm": world(), "settings": TWO, "out": tmp_path}
    build(**told)
    before = (tmp_path / "train.jsonl").read_bytes()
    with pytest.raises(ArtifactMismatch, match=says):
        build(**told | changed)
    assert (tmp_path / "train.jsonl").read_bytes() == before


# --- wrong input


@pytest.mark.parametrize(("told", "error", "says"), [
    ([], CalibrationError, "no questions"),
    (["who?"], InvalidInput, "Question"),
    ([Question("who?", ("a",), "odd")], CalibrationError, "'odd' has no passages"),
    ([Question("who?", (), "odd", THREE)], MissingReferences, "'odd' has no accepted answers"),
    ([Question("who?", (" ",), "", THREE)], MissingReferences, "'who?' has no accepted"),
    ([Question("who?", "a", "odd", THREE)], InvalidInput, "'odd' are one string"),
    ([Question(" ", ("a",), "odd", THREE)], InvalidInput, "is empty"),
    ([Question("who?", ("a",), "odd", (Passage("\ud800"),))], InvalidInput, "'odd' has half"),
    ([Question("who?", ("a",), "odd", ("text",))], InvalidInput, "passage 1 is a str"),
    ({"settings": SGICSettings(rounds=0)}, InvalidInput, "rounds=0"),
    ({"settings": SGICSettings(rounds=5, source="oracle")}, InvalidInput, "oracle"),
    ({"settings": SGICSettings(rounds=5, source="relevance")}, InvalidInput, "relevance"),
    ({"settings": SGICSettings(rounds=1, source="encoder")}, InvalidInput, "needs encoder="),
    ({"llm": None}, InvalidInput, "llm=None"),
    ({"batch": 0}, InvalidInput, "batch must be at least 1"),
])  # fmt: skip
def test_what_teaches_nothing_is_refused_before_a_call(told, error, says, tmp_path):
    llm = world()
    more = {"questions": told} if isinstance(told, list) else told
    with pytest.raises(error, match=re.escape(says)):
        build(**{"questions": asked(), "llm": llm, "out": tmp_path / "data"} | more)
    assert llm.prompts == []
    assert isinstance(told, dict) or not list(tmp_path.glob("data/*"))


@pytest.mark.parametrize(("name", "value"), [
    ("form", "chat"), ("include_direct", True), ("keep_wrong", 1.5), ("keep_wrong", "all"),
    ("right", "bleu"), ("right_from", 0), ("certain_below", 101),
])  # fmt: skip
def test_corpus_settings_out_of_range_name_themselves(name, value):
    with pytest.raises(InvalidInput, match=name):
        CorpusSettings(**{name: value})


def test_a_place_that_cannot_be_written_to_is_found_before_a_call(tmp_path):
    llm, mine = world(), tmp_path / "train.jsonl"
    mine.write_text("mine")
    with pytest.raises(UnwritableArtifact, match=r"train\.jsonl"):
        build(asked(), llm, out=mine / "data")
    with pytest.raises(ArtifactMismatch, match="and no manifest"):
        build(asked(), llm, out=tmp_path)
    assert (mine.read_text(), llm.prompts) == ("mine", [])


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


@pytest.mark.parametrize(("line", "says"), [
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
])  # fmt: skip
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
