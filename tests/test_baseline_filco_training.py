import json
import math
from dataclasses import replace

import pytest
from method_parts import Shelf, answer

from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    InvalidInput,
    InvalidLogProbability,
    MissingReferences,
    NoTokenProbabilities,
)
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.filco import (
    FILCOSettings,
    FilterDataSettings,
    _cross_mutual_information,
    _sentences,
    filter_examples,
)
from ltrag_plugins.prompts.templates import direct_prompt, filled, passages_block, reading_prompt
from ltrag_plugins.training import keep, load
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token


def shown(example: dict) -> str:
    return example["messages"][0]["content"]


def taught(example: dict) -> str:
    return example["messages"][1]["content"]


def target(text: str, *answers: str, **settings: object) -> str:
    """What the filter is taught to write for a passage of this text."""
    asked = Question("Who?", answers, passages=(Passage(text),))
    [example] = run(filter_examples([asked], FilterDataSettings(**settings)), World())
    if taught(example) != "none":
        assert all(sentence in shown(example) for sentence in _sentences(taught(example)))
    return taught(example)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "No." She left.', ['He said "No."', "She left."]),
        ("J. K. Rowling wrote it. Dr. Who did not.",
         ["J. K. Rowling wrote it.", "Dr. Who did not."]),
        ("It grew by 3.5 percent. In 1990, e.g. in the U.S. army, it fell.",
         ["It grew by 3.5 percent.", "In 1990, e.g. in the U.S. army, it fell."]),
        ("a line\nanother line", ["a line", "another line"]),
        ("昨日は雨。今日は晴れ！", ["昨日は雨。", "今日は晴れ！"]),
        ("Wait... what? Yes.", ["Wait... what?", "Yes."]),
        ("...", ["..."]),
        ("", []),
        (" \n ", []),
    ],
)  # fmt: skip
def test_texts_are_split_into_sentences(text, found):
    assert _sentences(text) == found


@pytest.mark.parametrize("text", ["A b. C d! (E f.) “G h?” i.\n\nJ. 3.5 k… L", "x" * 500, ". . ."])
def test_no_word_is_lost_in_the_splitting(text):
    assert " ".join(_sentences(text)).split() == text.split()


FILLER = " ".join(["Filler words go on."] * 49)  # 196 words of the 200 that a prompt shows
# F1 with "Jane Austen": 1 of 4 and 1 of 2, so 1/3; 2 of 3 and 2 of 2, so 0.8; 0; 1
FOUR = "Austen wrote it there. Jane Austen wrote. It rains. Jane Austen."
OVERLAP = {"measure": "overlap"}


@pytest.mark.parametrize(
    ("text", "answers", "settings", "reply"),
    [
        # inclusion: of whole normalized words, and of equally good sentences the first
        ("It is by Jane Austenova. It is by JANE Austen!", ("Eliot", "Jane Austen"), {},
         "It is by JANE Austen!"),
        ("It is Austen. By Austen.", ("Austen",), {}, "It is Austen."),
        # 2 shared words; 4 said, 3 wanted after articles go: 2 * 2 / (4 + 3)
        ("The novel by Jane Austen", ("Jane Austen herself",), OVERLAP | {"threshold": 0.57},
         "The novel by Jane Austen"),
        ("The novel by Jane Austen", ("Jane Austen herself",), OVERLAP | {"threshold": 0.58},
         "none"),
        ("Bread is baked. Bread is good.", ("good bread",), OVERLAP, "Bread is good."),
        # the best sentences come in the order of the text
        (FOUR, ("Jane Austen",), OVERLAP | {"threshold": 0.0, "most": 2},
         "Jane Austen wrote. Jane Austen."),
        (FOUR, ("Jane Austen",), OVERLAP | {"threshold": 0.0, "most": 9},
         "Austen wrote it there. Jane Austen wrote. Jane Austen."),
        (FOUR, ("Jane Austen",), OVERLAP | {"threshold": 1.0, "most": 9}, "none"),
        (FOUR, ("Jane Austen",), OVERLAP | {"threshold": 0.0, "most": 1}, "Jane Austen."),
        # only what the prompt shows
        (f"{FILLER} Some more words here. Emma was written by Jane Austen.", ("Jane Austen",), {},
         "none"),
        (f"{FILLER} It is by Jane Austen.", ("Jane Austen",), {}, "none"),
        (f"{FILLER} By Jane Austen in 1815.", ("Jane Austen",), {}, "By Jane Austen in"),
        ("Emma was  written\tby Jane Austen.", ("Jane Austen",), {},
         "Emma was written by Jane Austen."),
    ],
)  # fmt: skip
def test_what_the_filter_is_taught_to_keep(text, answers, settings, reply):
    assert target(text, *answers, **settings) == reply


class Likely:
    """A continuation's log-probability by whether the prompt holds a word."""

    name = "likely"

    def __init__(self, **logprobs: float) -> None:
        self.logprobs, self.scored = logprobs, []

    def generate(self, prompts, settings=GenerationSettings()):
        raise AssertionError("nothing is asked")

    def score(self, prompts, continuations):
        self.scored.append(tuple(zip(prompts, continuations, strict=True)))
        return [self._one(p, c) for p, c in self.scored[-1]]

    def _one(self, prompt: str, text: str) -> Generation:
        value = next((v for word, v in self.logprobs.items() if word in prompt), -4.0)
        return Generation(text, (Token(text[:2], value / 4), Token(text[2:], value * 3 / 4)))


def test_cross_mutual_information_is_the_difference_of_two_scores():
    llm = Likely(Austen=-0.5, sea=-6.0)
    found = ["It is by Austen.", "The sea is wide.", "It rains."]
    values = run(_cross_mutual_information("Who?", "Jane", found), World(llm=llm))
    assert values == pytest.approx([3.5, -2.0, 0.0])
    # the same from single scores, each alone
    for sentence, value in zip(found, values, strict=True):
        [with_it] = llm.score([reading_prompt("Who?", [Passage(sentence)])], [" Jane"])
        [without] = llm.score([direct_prompt("Who?")], [" Jane"])
        total = [math.fsum(t.logprob for t in one.tokens) for one in (with_it, without)]
        assert value == pytest.approx(total[0] - total[1])
    assert len(llm.scored[0]) == 4  # one request: the question alone, and with each sentence


def test_a_model_that_only_writes_and_bad_numbers_are_named():
    flow = _cross_mutual_information("Who?", "Jane", ["x"])
    with pytest.raises(NoTokenProbabilities, match=r"cannot tell how likely.*measure='overlap'"):
        run(flow, World(llm=ScriptedLLM(lambda _: "x")))
    with pytest.raises(InvalidLogProbability):
        run(_cross_mutual_information("Who?", "Jane", ["x"]), World(llm=Likely(Who=2.0)))
    with pytest.raises(InvalidInput, match="blank answer"):
        run(_cross_mutual_information("Who?", " ", ["x"]), World())


EMMA = Passage("Emma is a novel. It was written by Jane Austen.", title="Emma")
BREAD = Passage("Bread is baked. Bread is good.")
WHO = Question("Who wrote Emma?", ("Jane Austen",), passages=(EMMA, BREAD))


def test_training_examples_by_string_inclusion_worked_by_hand():
    first, second = run(filter_examples([WHO]), World())
    template, block = FILCOSettings().filter_template, passages_block([EMMA])
    assert shown(first) == filled(template, passage=block, question="Who wrote Emma?")
    assert taught(first) == "It was written by Jane Austen."
    assert taught(second) == "none"
    assert json.loads(json.dumps(first)) == {
        "messages": [
            {"role": "user", "content": shown(first)},
            {"role": "assistant", "content": "It was written by Jane Austen."},
        ],
        "id": "",
    }


def test_its_chat_lines_are_what_the_fine_tuning_reads(tmp_path):
    examples = run(filter_examples([replace(WHO, id="w")]), World())
    lines = [json.dumps(example, ensure_ascii=False) for example in examples]
    (tmp_path / "filter.jsonl").write_text("\n".join(lines), encoding="utf-8")
    read = load(tmp_path / "filter.jsonl").examples
    assert [(one.prompt, one.target) for one in read] == [(shown(e), taught(e)) for e in examples]
    assert {one.id for one in read} == {"w"}  # held out together
    kept = keep(examples, out=tmp_path / "folder")
    assert kept.examples == load(tmp_path / "folder").examples == read
    assert keep(examples, out=tmp_path / "folder") == kept
    with pytest.raises(ArtifactMismatch, match="other training data"):
        keep(examples[:1], out=tmp_path / "folder")
    with pytest.raises(CalibrationError, match="no examples"):
        keep([], out=tmp_path / "none")
    with pytest.raises(InvalidInput, match="example 2: expected"):
        keep([examples[0], {"messages": []}], out=tmp_path / "none")
    half = {"messages": [{"role": "user", "content": "\ud800"}, examples[0]["messages"][1]]}
    with pytest.raises(InvalidInput, match=r"example 1: .*surrogates not allowed"):
        keep([half], out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_the_filter_is_taught_to_write_is_what_is_parsed():
    examples = run(filter_examples([WHO]), World())
    replies = iter([*(taught(example) for example in examples), "Jane Austen"])
    found = answer("filco", WHO.text, ScriptedLLM(lambda _: next(replies)), Shelf(EMMA, BREAD))
    assert [passage.text for passage in found.passages] == [taught(examples[0])]
    assert taught(examples[1]) == "none"  # so the second passage is left out


def test_no_sentence_that_the_prompt_does_not_show_is_scored():
    llm = Likely(Austen=-0.5)
    hidden = Passage(f"{FILLER} Some more words here. Emma was written by Jane Austen.")
    asked = Question("Who wrote Emma?", ("Jane Austen",), passages=(hidden,))
    run(filter_examples([asked], FilterDataSettings(measure="cxmi")), World(llm=llm))
    assert len(llm.scored[0]) == 1 + 49 + 1  # the question alone, and with each sentence shown


def test_examples_by_cxmi_take_one_request_for_all_questions():
    llm = Likely(Austen=-0.5, good=-1.0)
    others = [Question("Good?", ("yes",), "", (BREAD,)), Question("Baked?", ("no",), "", (BREAD,))]
    settings = FilterDataSettings(measure="cxmi", threshold=1.0)
    made = run(filter_examples([WHO, *others], settings), World(llm=llm))
    assert [taught(e) for e in made] == ["It was written by Jane Austen.", *["Bread is good."] * 3]
    assert len(llm.scored) == 1


def test_a_question_without_any_passage_makes_no_example():
    for measure in ("inclusion", "overlap", "cxmi"):
        flow = filter_examples([Question("Why?", ("so",))], FilterDataSettings(measure=measure))
        assert run(flow, World()) == []


def test_unlabelled_questions_and_settings_out_of_range_are_named():
    with pytest.raises(CalibrationError, match="filco"):
        run(filter_examples([]), World())
    with pytest.raises(MissingReferences, match="has no accepted"):
        run(filter_examples([Question("Why?")]), World())
    for wrong in ({"measure": "luck"}, {"most": 0}, {"template": "{passage}"}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            FilterDataSettings(**wrong)
