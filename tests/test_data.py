import gzip
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch

from ltrag_plugins.data import digest_of, read_candidates, read_passages, read_questions
from ltrag_plugins.errors import BadRecord, InvalidInput, MissingReferences
from ltrag_plugins.metrics.answer import normalized
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Passage, Question

EMMA = {"question": "who wrote Emma?", "answers": ["Jane Austen", "Austen"], "id": "q1"}


@pytest.fixture
def file(tmp_path):
    def write(*lines, name="questions.jsonl"):
        path = tmp_path / name
        raw = [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines]
        path.write_bytes(b"\n".join(raw))
        return path

    return write


def test_a_question_is_read_with_its_answers_and_id_from_gzip_too(tmp_path, file):
    [question] = read_questions(file(EMMA))
    assert question == Question("who wrote Emma?", ("Jane Austen", "Austen"), "q1")
    path = tmp_path / "q.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(EMMA).encode()))
    assert read_questions(path) == read_questions(str(file(EMMA))) == [question]


def test_answers_may_be_missing_until_they_are_required(file):
    path = file(EMMA, b"", {"question": "who knows?"}, {"question": "and now?", "answers": []})
    assert [q.answers for q in read_questions(path)] == [("Jane Austen", "Austen"), (), ()]
    with pytest.raises(MissingReferences, match=r"questions\.jsonl, line 3, field 'answers': no"):
        read_questions(path, require_answers=True)


def test_a_misspelled_field_of_answers_is_seen_by_the_names_that_are_there(file):
    with pytest.raises(MissingReferences, match=r"there is only 'question', 'answer s'$"):
        read_questions(file({"question": "q", "answer s": ["a"]}), require_answers=True)
    with pytest.raises(MissingReferences, match=r"leave the question out$"):
        read_questions(file({"question": "q", "answers": []}), require_answers=True)


def test_a_field_that_looks_like_one_that_is_read_is_named(file, caplog):
    odd = {"Contexts": "c", "choices": ["a"], "question_id": 3, "level": "easy", "answer": "a"}
    read_questions(file({"question": "q", **odd}, EMMA))
    told = sorted(record.getMessage().partition("field ")[2] for record in caplog.records)
    assert [line.partition(" Read")[0] for line in told] == [
        "'Contexts' is not read; did you mean 'context'?",
        "'choices' is not read; did you mean 'options'?",
    ]


def test_blank_lines_byte_order_marks_and_windows_line_ends_are_forgiven(file):
    path = file(b"\xef\xbb\xbf" + json.dumps(EMMA).encode() + b"\r", b"  ", b"", EMMA)
    assert len(read_questions(path)) == 2


def test_without_an_id_there_is_one_of_the_text_and_title_alone(file):
    passages = [{"title": "Emma", "text": "a novel"}, {"text": "a novel"}, {"text": "x", "id": 3}]
    one, two = read_questions(file({**EMMA, "passages": passages}, {**EMMA, "passages": passages}))
    assert one.passages == two.passages
    titled, bare, named = one.passages
    assert (titled.title, titled.text, bare.title, named.id) == ("Emma", "a novel", "", "3")
    # printf 'Emma\na novel' | sha1sum
    assert titled.id == "338ef08f16a0"
    assert titled.id != bare.id
    asked = [{"question": text} for text in ("who?", "who? ", "what?")]
    one, two, other = read_questions(file(*asked))
    assert one.id == two.id != other.id
    # printf 'who?' | sha1sum
    assert one.id == "8af81fa91d64"


def test_one_question_about_several_texts_has_an_id_with_each(file):
    stance = {"question": "What is the stance?", "options": ["for", "against"], "answer": "for"}
    lines = [{**stance, "context": f"tweet {i}"} for i in range(3)]
    path = file(*lines, {**stance, "options": ["for", "neither"]}, stance)
    assert len({question.id for question in read_candidates(path, solved=True)}) == 5
    assert len({question.id for question in read_questions(path)}) == 5
    with pytest.raises(InvalidInput, match=r"line 2 .* same id .*, or leave one of them out"):
        read_candidates(file(stance, stance), solved=True)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names")
@pytest.mark.parametrize("field", ["question", "text"])
def test_of_candidates_in_a_pipe_none_is_lost(field):
    lines = [json.dumps({field: f"{i:04}", "answer": "x" * 87}) + "\n" for i in range(1000)]
    reader, writer = os.pipe()

    def write():
        with os.fdopen(writer, "w") as file:
            file.writelines(lines)

    with ThreadPoolExecutor() as pool, os.fdopen(reader):
        pool.submit(write)
        found = read_candidates(f"/dev/fd/{reader}", solved=True)
    assert [one.text for one in found] == [f"{i:04}" for i in range(1000)]


def test_a_file_may_be_named_by_a_tilde(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file(EMMA, name="questions.jsonl")
    assert [question.id for question in read_questions("~/questions.jsonl")] == ["q1"]


def test_options_and_context_are_read_with_a_multiple_choice_question(file):
    line = {"question": "is it?", "answer": "no", "options": ["yes", "no"], "context": "It is."}
    choice, plain, empty = read_questions(
        file(line, EMMA, {**EMMA, "options": [], "context": None})
    )
    assert (choice.options, choice.context) == (("yes", "no"), "It is.")
    for question in (plain, empty):
        assert (question.options, question.context) == ((), "")
    [open_] = read_questions(file({"question": "is it?", "options": ["yes", "no"]}))
    assert (open_.answers, open_.options) == ((), ("yes", "no"))


# of MMLU as its authors publish it: the answer is a letter, some options are letters themselves,
# and a few come twice
INDEX = {"question": "the index of <p> in S_5?", "options": ["8", "2", "24", "120"]}
CURVE = {"question": "the slope of the line?", "options": ["L", "R", "1/C", "C"]}
WORK = {"question": "how much work?", "options": ["0.015 J", "0.15 J", "0.015 J", "1.15 J"]}


@pytest.mark.parametrize(
    ("line", "letters", "texts"),
    [
        (INDEX, "A", ["8"]),
        (INDEX, "D", ["120"]),
        (INDEX, ["B", "C"], ["2", "24"]),
        (INDEX, ["B", "twenty-four"], ["2", "twenty-four"]),
        (CURVE, "A", ["L"]),
        (CURVE, "D", ["C"]),
        (WORK, "B", ["0.15 J"]),  # the text of others comes twice
        (WORK, ["A", "C"], ["0.015 J"]),
        (WORK | {"options": [*"hgfedcb", "last"]}, "H", ["last"]),
    ],
)
def test_an_answer_may_be_the_letter_of_its_option(file, line, letters, texts):
    field = "answer" if isinstance(letters, str) else "answers"
    [question] = read_questions(file({**line, field: letters}))
    assert (question.answers, question.options) == (tuple(texts), tuple(line["options"]))


def test_an_answer_that_is_an_option_itself_is_no_letter_of_another(file):
    grades = {"question": "which grade?", "options": ["B", "A", "C"], "answers": ["A", "C"]}
    # "A" is another way to write "R" here, not the first option
    lines = {**CURVE, "answer": "C"}, grades, {**CURVE, "answers": ["R", "A"]}
    assert [q.answers for q in read_questions(file(*lines))] == [("C",), ("A", "C"), ("R", "A")]


def test_passage_ids_without_their_pool_ask_for_it_where_passages_are_needed(file):
    bare, named = {**EMMA, "passages": []}, {**EMMA, "passage_ids": ["b"]}
    with pytest.raises(BadRecord, match=r"line 2, field 'passage_ids': .* add --pool .* pool="):
        read_questions(file({**named, "passages": [{"text": "x"}]}, named), require_passages=True)
    with pytest.raises(BadRecord, match=r"line 2, field 'passage_ids'"):
        read_questions(file(bare, named), require_pool=True)
    assert len(read_questions(file(bare, named))) == 2  # left alone where none are needed
    pool = [Passage("a novel", id="b")]
    [one] = read_questions(file(named), require_pool=True, pool=pool)
    assert one.passages == (pool[0],)


def test_passage_ids_are_looked_up_in_a_pool(file):
    pool = [Passage("A", id="a"), Passage("B", id="b"), Passage("C", id="3")]
    path = file({**EMMA, "passage_ids": ["b", "a", 3]})
    assert read_questions(path, pool=pool)[0].passages == (pool[1], pool[0], pool[2])
    assert read_questions(path)[0].passages == ()
    with pytest.raises(BadRecord, match=r"line 1, field 'passage_ids\[1\]': 'a' is not in the"):
        read_questions(path, pool=pool[1:])
    with pytest.raises(BadRecord, match=r"passage_ids\[0\]"):
        read_questions(file({**EMMA, "passage_ids": [["3"]]}), pool=pool)


def test_passages_may_come_with_a_score_and_metadata_of_any_kind_and_are_told_by_the_rest():
    odd = {"on": date(2024, 1, 1), "tags": {"a"}, 1: object(), "client": threading.Lock()}
    bare, plain = (Passage("text", "p1", score=0.5, metadata=m) for m in ({}, odd))
    assert digest_of([Question("who?", passages=(plain,))]) == digest_of(
        [Question("who?", passages=(bare,))]
    )
    assert digest_of([plain], "passages") == digest_of([bare], "passages")
    scored = [replace(plain, score=score) for score in (0.5, np.float32(0.5), torch.tensor(0.5))]
    assert {json.dumps(passage.score) for passage in scored} == {"0.5"}
    with pytest.raises(InvalidInput, match="score is 'high'"):
        replace(plain, score="high")
    others = [None, 0.25, float("nan")]
    digests = {digest_of([replace(plain, score=score)]) for score in (0.5, *others)}
    assert len(digests) == 4


@pytest.mark.parametrize(
    "given", [{"text": None}, {"text": 7}, {"id": 1}, {"id": np.int64(1)}, {"title": None}]
)
def test_a_passage_of_what_is_no_text(given):
    with pytest.raises(InvalidInput, match=r"are texts, got .*(1|7|None).*; write a number as"):
        Passage(**{"text": "Emma is a novel."} | given)


def test_a_pool_of_passages_is_read_and_one_that_comes_twice_taken_once(file):
    lines = {"id": "a", "title": "T", "text": "x"}, {"text": "y"}, {"id": 3, "text": "z"}
    first, second, third = read_passages(file(*lines, {"text": "y"}, name="pool.jsonl"))
    assert (first, third) == (Passage("x", id="a", title="T"), Passage("z", id="3"))
    assert (second.text, len(second.id)) == ("y", 12)
    for number in (0, 1):
        twice = [{"id": number, "text": "x"}, {"id": number, "text": "y"}]
        with pytest.raises(BadRecord, match=f"line 2, field 'id': '{number}' was on an earlier"):
            read_passages(file(*twice))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"answers": []}, "field 'question': missing; there is only 'answers'"),
        ({}, "field 'question': missing"),
        ({"question": 7}, "field 'question': expected a string, got int"),
        ({"question": " "}, "field 'question': expected a string with words, got an empty one"),
        ({"question": "q", "answers": 7}, "field 'answers': expected a list of strings, got int"),
        ({"question": "q", "answers": "a"}, "field 'answers': expected a list of strings, got str"),
        ({"question": "q", "answers": ["a", None]}, "field 'answers[1]': expected a string, got"),
        ({"question": "q", "answer": ["a"]}, "field 'answer': expected a string, got list"),
        ({"question": "q", "id": True}, "field 'id': expected a string, got bool"),
        ({"question": "q", "passages": "p"}, "field 'passages': expected a list of objects, got"),
        ({"question": "q", "passages": ["p"]}, "field 'passages[0]': expected an object, got str"),
        ({"question": "q", "passages": [{"title": "t"}]}, "field 'passages[0].text': missing"),
        ({"question": "q", "passages": [{"text": "t", "title": 1}]}, "'passages[0].title': expec"),
        ({"question": "q", "options": "yes"}, "field 'options': expected a list of strings, got"),
        ({"question": "q", "options": ["yes", 3]}, "field 'options[1]': expected a string, got"),
        ({"question": "q", "options": ["a", " "]}, "field 'options[1]': expected a string with wo"),
        ({"question": "q", "options": ["a", "a"]}, "field 'options[1]': 'a' comes twice"),
        ({"question": "q", "answer": "No", "options": ["yes", "no"]}, "none of the accepted answe"),
        (
            {**INDEX, "answer": "E"},
            "none of the accepted answers ['E'] is among them, by its text or",
        ),
        ({**INDEX, "answer": "d"}, "by its text or as a letter from A to D"),
        ({**INDEX, "answer": "AB"}, "none of the accepted answers ['AB'] is among them"),
        ({**WORK, "answer": "0.15 J"}, "field 'options[2]': '0.015 J' comes twice"),
        (WORK, "field 'options[2]': '0.015 J' comes twice"),
        ({"question": "q", "context": ["c"]}, "field 'context': expected a string, got list"),
        ({"question": "q", "context": 0}, "field 'context': expected a string, got int"),
        (b'{"question": "\\ud800"}', "field 'question': half of a surrogate pair"),
        (b'{"question": "q",}', "column 18: not JSON, "),
        (b'{"question": "q"', "column 17: not JSON, "),  # cut off, at its own end
        (b"\xff\xfe", "not JSON in UTF-8 that can be read, 'utf-8'"),
        (gzip.compress(b"{}", mtime=0), "start byte; save it as UTF-8, or name a gzipped file .gz"),
        (b'["q"]', "expected an object, got list; each line is a JSON object of its own"),
        (b"[" * 200_000, "not JSON in UTF-8 that can be read"),
        (b'{"question": "q", "n": ' + b"1" * 5000 + b"}", "not JSON in UTF-8 that can be read"),
    ],
)
def test_a_bad_line_is_one_message_with_file_line_and_field(file, line, message):
    path = file(EMMA, b"", line, EMMA)
    with pytest.raises(BadRecord) as caught:
        read_questions(path)
    said = str(caught.value)
    assert said.startswith(f"{path}, line 3")
    assert message in said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 200


CUT = gzip.compress(json.dumps(EMMA).encode(), mtime=0)[:-12]


@pytest.mark.parametrize(
    ("read", "name", "content", "error", "why"),
    [
        *(
            (read, "a.jsonl", content, BadRecord, rf"a\.jsonl: no {what} in it")
            for read, what in ((read_questions, "questions"), (read_passages, "passages"))
            for content in (b"", b"\n ")
        ),
        (
            read_passages,
            "a.jsonl",
            b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}',
            BadRecord,
            "line 2, field 'id': 'a' was on an earlier line",
        ),
        (read_questions, "a.jsonl.gz", b"{}", BadRecord, "line 0 .*name a plain file without .gz"),
        (read_questions, "a.jsonl.gz", CUT, BadRecord, "not a whole gzip file"),
        (read_questions, "gone.jsonl", None, InvalidInput, r"cannot read .*gone\.jsonl: No such"),
        (read_questions, ".", None, InvalidInput, "cannot read .*: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, read, name, content, error, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=why):
        read(tmp_path / name)


SLICE = Path(__file__).parent.parent / "examples" / "data"


def test_the_carried_questions_find_their_passages_in_the_carried_pool():
    pool = read_passages(SLICE / "nq_passages.jsonl.gz")
    fitted = read_questions(SLICE / "nq_calibration.jsonl", require_answers=True, pool=pool)
    asked = read_questions(SLICE / "nq_questions.jsonl", require_answers=True, pool=pool)
    assert (len(fitted), len(asked), len(pool)) == (200, 120, 1305)
    assert not {normalized(q.text) for q in fitted} & {normalized(q.text) for q in asked}
    assert {len(q.passages) for q in fitted + asked} == {10}
    assert {p.id for q in fitted + asked for p in q.passages} == {p.id for p in pool}


@pytest.mark.parametrize("name", ["nq_calibration.jsonl", "nq_questions.jsonl"])
def test_of_a_carried_questions_passages_the_gold_one_holds_an_answer(name):
    pool = {p.id: p for p in read_passages(SLICE / "nq_passages.jsonl.gz")}
    for line in (SLICE / name).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert record["gold"] in record["passage_ids"]
        gold = words(pool[record["gold"]].text)
        answers = [words(answer) for answer in record["answers"]]
        assert any(f" {' '.join(a)} " in f" {' '.join(gold)} " for a in answers), record["id"]
