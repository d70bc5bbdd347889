"""The papers' tables as run files: that they can be run, and what stands beside the paper's."""

import json
import re
import tomllib
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

import pytest

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import METRICS, Cell, Record
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.score import score_questions
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.settings import with_values
from ltrag_plugins.sgic.attention import attention_shares
from ltrag_plugins.types import Passage, Question
from tests import gece_parts
from tests.finetune_parts import tiny_llm
from tests.gece_letters import Local
from tests.sgic_parts import QUESTION, THREE, rights, said

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in (BENCHMARKS / "papers").glob("*.toml"))
COUNT = 6


@pytest.fixture
def papers(load):
    return load("papers")


@pytest.fixture
def root(tmp_path):
    """Question files: `train` and `dev_test` of hotpotqa, each question with three passages."""
    passages = [{"title": p.title or "Town", "text": p.text} for p in THREE]
    known = {"answers": ["right"], "passages": passages, "supporting_titles": ["Bay", "Town"]}
    (tmp_path / "data" / "hotpotqa").mkdir(parents=True)
    for split, numbers in (("dev_test", range(COUNT)), ("train", range(20, 60))):
        rows = [{"id": i, "question": f"{QUESTION} {i}", **known} for i in numbers]
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / "data" / "hotpotqa" / f"{split}.jsonl").write_text(text)
    return tmp_path / "data"


def small(paper, papers, **more):
    """The same table over the files of `root`."""
    runs = {
        name: replace(
            data,
            questions="hotpotqa/dev_test.jsonl",
            labelled=data.labelled and "hotpotqa/train.jsonl",
        )
        for name, data in paper.runs.items()
    }
    return replace(paper, runs=runs, **more)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_names_what_there_is(papers, name):
    paper = papers.RunFile.read(name)
    told = tomllib.loads((BENCHMARKS / "papers" / f"{name}.toml").read_text("utf-8"))
    assert told.keys() <= {field.name for field in fields(papers.RunFile)}
    assert {*paper.metrics} <= METRICS.keys()
    assert paper.analysis in {"", *papers.ANALYSES}
    measures = {*paper.metrics, *papers.MEASURES, "R@2", "R@5", "speed-up"}
    for row in paper.rows:
        assert len(row) in (2, 2 + len(paper.columns))
        for column in paper.columns:
            run, measure, words = paper.place(row, column)
            assert run in paper.runs
            assert measure in measures
            assert {word.partition("+")[2] for word in words} <= {"", *paper.gates}
            for word in words:
                assert "{" not in word
                # the name of a cell is short enough to say all that is set
                cell = paper.cell(word)
                assert cell.label in {"", word.partition("+")[0].partition(":")[2], *paper.cells}
                assert cell.method.name in {*METHODS, *papers.OURS}
    for spec in paper.gates.values():
        word, *given = spec.split(":")
        assert word == "fit" or (word == "paper" and with_values(GECESettings.paper(), given))
    assert {*paper.cells} <= {
        word.partition("+")[0] for run in paper.runs for word in paper.words(run)
    }


def test_of_a_table_a_part_is_made_alone(papers):
    paper = papers.RunFile.read("gece-4")
    part = paper.part(4, ["accuracy 10", "speed-up"])
    *first, fourth = paper.rows[:4]
    assert part.rows == (*(row[:3] + row[-1:] for row in first), fourth)
    words = ["direct", "single:k=10", "single:k=10+eq2", "single:k=10+gate"]
    assert paper.part(4, ["accuracy 10"]).words("mmlu") == words
    # a speed-up is the mean over all k
    assert {*part.words("mmlu")} == {w.replace("10", k) for w in words for k in ("10", "15", "20")}
    assert paper.part(None, []) == paper
    assert [*paper.part(3, []).gates] == ["eq2"]
    places = papers.RunFile.read("sgic-fig-7").part(None, ["last em", "random em"])
    assert [*places.runs] == ["last", "random"]
    with pytest.raises(
        InvalidInput, match="no column 'recall'; there are accuracy 10, accuracy 15"
    ):
        paper.part(1, ["recall"])
    for count in (0, -1, 99):
        with pytest.raises(InvalidInput, match=f"no {count} rows; there are 19"):
            paper.part(count, [])


def parts_of(papers, llm, root, limit=None):
    return papers.Parts(lambda _: llm, None, root, root.parent / f"{limit}" / "x", limit=limit)


def test_a_table_is_run_and_read_again_without_a_call(papers, root, capsys):
    paper = small(papers.RunFile.read("sgic-5"), papers)
    # even questions are right at once, the others after a look, and then the model is sure
    llm = rights(lambda i, n: i % 2 == 0 or n, lambda i, n: 0.8 if i % 2 == 0 or n else 0.4)
    found = papers.answered(paper, "hotpotqa", parts_of(papers, llm, root))
    head, *lines = papers.compared(paper, {"hotpotqa": found})
    assert head.split() == ["ours", "|", "the", "paper's", "em", "f1"]
    assert lines[0].split()[1:] == ["50.0", "|", "69.1", "50.0", "|", "73.5"]
    assert lines[3].split()[-6:] == ["100.0", "|", "77.2", "100.0", "|", "80.5"]
    assert all(line.split()[-6] == "100.0" for line in lines[1:])
    assert "sgic:ours" in capsys.readouterr().out

    def gone(prompt):
        raise AssertionError(prompt)

    again = papers.answered(paper, "hotpotqa", parts_of(papers, ScriptedLLM(gone), root))
    assert papers.compared(paper, {"hotpotqa": again}) == [head, *lines]


def test_samples_are_of_the_prompt_that_sgic_asks_first(papers, root):
    paper, sent = small(papers.RunFile.read("sgic-5"), papers), {}
    for word in ("baseline", "ours"):
        cells, llm = {word: paper.cells[word]}, rights(lambda i, n: True)
        alone = replace(paper, rows=(("x", word),), cells=cells, columns=("em",))
        parts = parts_of(papers, llm, root)
        papers.answered(alone, "hotpotqa", replace(parts, out=parts.out.parent / word / "x"))
        sent[word] = llm.prompts
    first = {p for p in sent["ours"] if "Round 1:" not in p and p.count("Document [") == len(THREE)}
    # three seeds of five samples of six questions, and none of them is drawn twice
    assert {*sent["baseline"]} < first
    assert len(sent["baseline"]) == 3 * 5 * COUNT
    assert len({*sent["baseline"]}) == COUNT


def test_eq_2_has_the_mean_of_the_first_answers_to_other_questions(papers, root):
    paper = small(papers.RunFile.read("sgic-fig-4"), papers)
    # of train half and half; a second look makes sure
    llm = rights(lambda i, n: n > 0, lambda i, n: 0.9 if n else 0.8 if i < 40 else 0.6)
    found = papers.answered(paper, "hotpotqa", parts_of(papers, llm, root))
    [means] = {cell.set.scale.means for cell in found.cells.values()}
    assert means == pytest.approx((0.3,))
    # all six are mended, by the first look
    [line] = papers.compared(paper, {"hotpotqa": found})[1:]
    assert line.split()[1:] == ["100.0", "|", "19.5", "0.0", "|", "14.6", "100.0", "|", "75"]
    assert {one.relevant for one in found.rounds("ours")} == {(False, True, True)}


def test_a_true_score_and_a_tag_reach_the_prompt(papers, root):
    for name, word, shown in (
        ("sgic-6", "oracle", "(Uncertainty Score: "),
        ("sgic-fig-7", "tags", "<<<KEY>>> Bay"),
    ):
        paper, llm = small(papers.RunFile.read(name), papers), rights(lambda i, n: True)
        run = next(iter(paper.runs))
        cells = {word: paper.cells[word]}
        paper = replace(paper, rows=(("x", word),), cells=cells, columns=(f"{run} em",))
        papers.answered(paper, run, parts_of(papers, llm, root / ".." / "data"))
        assert any(shown in prompt for prompt in llm.prompts), name


def record(i: int, rouge: float, ms: float) -> Record:
    return Record(f"q{i}", "?", ("a",), "p", {"rouge1": rouge}, ms=ms)


def test_each_figure_stands_beside_the_papers(papers):
    paper = papers.RunFile(
        *("t", "s", "m", "d"),
        metrics=("rouge1",),
        columns=("rouge1 1", "rouge1 2", "rouge1", "speed-up"),
        rows=(
            ("Plain", "single:k={}", 41.2, 42.25, 41.7, 1.0),
            ("  w GECE", "single:k={}+eq2", 43.1, "-", 43.1, 2.1),
            ("  fitted", "single:k={}+gate"),
        ),
        runs={"nq": papers.Data("nq.jsonl")},
        gates={"gate": "fit", "eq2": "paper"},
    )
    scores = {"single:k=1": (0.2, 0.4), "single:k=2": (0.5, 0.5), "single:k=1+gate": (0.4, 0.4),
              "single:k=2+gate": (0.6, 0.2)}  # fmt: skip
    records = {
        word: [record(i, x, 10 if "+" in word else 30 + 20 * i) for i, x in enumerate(some)]
        for word, some in scores.items()
    }
    run = papers.Answered({}, records, {}, ScriptedLLM(str))
    head, plain, left_out, fitted = (
        " ".join(line.split()) for line in papers.compared(paper, {"nq": run})
    )
    assert head == "ours | the paper's rouge1 1 rouge1 2 rouge1 speed-up"
    assert plain == "Plain 30.0 | 41.2 50.00 | 42.25 40.0 | 41.7 1.0 | 1.0"
    assert left_out == "w GECE - | 43.1 - | - - | 43.1 - | 2.1"
    # (30 + 50) / 2 = 40 ms become 10
    assert fitted == "fitted 40.0 | 43.1 40.0 | - 40.0 | 43.1 4.0 | 2.1"


def test_self_rag_and_sgic_read_as_much_of_a_passage(papers):
    paper, read = papers.RunFile.read("sgic-9"), dict[str, int]()
    long = [Passage(f"w{i} " * 1000, metadata={"gold": not i}) for i in range(3)]
    question = Question("Where?", ("there",), "q", tuple(long))
    for word in paper.words("hotpotqa"):
        llm, cell = ScriptedLLM(lambda prompt: said("yes")), paper.cell(word)
        run(
            cell.method.flow(question, cell.set),
            World(llm=llm, retriever=papers.OwnPassages([question])),
        )
        read[word] = max(prompt.split().count("w1") for prompt in llm.prompts)
    assert [*read] == ["self-rag:k=10", "ours"]
    assert read["self-rag:k=10"] == read["ours"] > 100


def test_a_column_shows_the_same_alone_as_in_the_whole_table(papers):
    whole = papers.RunFile.read("gece-1").part(3, [])
    found = {
        word: [replace(record(i, k / 100 + i / 10, ms + i), scores={"rouge1": k / 100 + i / 10,
               "bleu4": k / 50}) for i in range(3)]
        for k in (10, 15, 20)
        for word, ms in (("direct", 5), (f"single:k={k}", 10 * k), (f"single:k={k}+eq2", k))
    }  # fmt: skip
    run = {"nq": papers.Answered({}, found, {}, ScriptedLLM(str))}

    def cells(paper) -> list[list[str]]:
        """Ours of each row, of all blocks of the table."""
        found = [re.findall(r"([\d.]+) \| [\d.-]+", line) for line in papers.compared(paper, run)]
        rows = [row for row in found if row]
        return [[*chain(*rows[i :: len(paper.rows)])] for i in range(len(paper.rows))]

    every = cells(whole)
    assert every[2][whole.columns.index("rouge1")] == "25.0"  # (20 + 25 + 30) / 3
    assert every[2][whole.columns.index("speed-up")] == "9.4"  # (100 + 150 + 200 + 3) / 48
    for some in (["rouge1"], ["rouge1 10", "rouge1"], ["speed-up"], ["bleu4 15", "speed-up"]):
        places = [i for i, column in enumerate(whole.columns) if column in some]
        part = whole.part(None, some)
        assert cells(part) == [[row[i] for i in places] for row in every]
        assert {*part.words("nq")} == {*found}


def test_rows_behind_the_gate_are_fitted_on_labelled_questions(papers, root):
    paper = papers.RunFile(
        *("t", "s", "m", "d"),
        metrics=("em",),
        columns=("em",),
        rows=(("alone", "single:k=1", 50), ("gated", "single:k=1+gate", 50)),
        runs={"nq": papers.Data("hotpotqa/dev_test.jsonl", labelled="hotpotqa/train.jsonl")},
        gates={"gate": "fit"},
    )

    def known(prompt):  # even questions by heart, surely; all from a passage
        even = int(prompt.partition("Question: ")[2].split("\n")[0].split()[-1]) % 2 == 0
        return said("right" if even or "Dirleton Castle is" in prompt else "no", 0.5 + 0.4 * even)

    found = papers.answered(paper, "nq", parts_of(papers, ScriptedLLM(known), root))
    assert found.cells["single:k=1+gate"].gate is not None
    kinds = [bool(r.decision and r.decision["retrieve"]) for r in found.records["single:k=1+gate"]]
    assert len(kinds) == COUNT
    assert not all(kinds)
    # twenty questions are the least that a gate is fitted on
    few = papers.answered(paper, "nq", parts_of(papers, ScriptedLLM(known), root, limit=2))
    assert {*few.records} == {"single:k=1"}


def test_gold_passages_stand_where_they_are_asked_for(papers, root):
    def kinds(gold):
        data = papers.Data("x", gold=gold)
        return [
            "".join("gx"[p.metadata["gold"] is False] for p in question.passages)
            for question in papers.read(root / "hotpotqa" / "train.jsonl", data, None)
        ]

    assert {*kinds("as found")} == {"xgg"}
    assert {*kinds("first")} == {"ggx"}
    assert {*kinds("middle")} == {"ggx"}  # one other: its middle is before it
    assert {*kinds("last")} == {"xgg"}
    assert {*kinds("random")} == {"xgg", "gxg", "ggx"}


@pytest.mark.parametrize(("text", "number"), [
    ("3 x 4 = 12\n#### 12", "12"), ("#### 1,250", "1250"), ("it is -3.5.", "-3.5"),
    (" none ", "none"),
])  # fmt: skip
def test_the_last_number_of_a_chain_of_reasoning_is_its_answer(papers, text, number):
    assert papers.last_number(text) == number


def test_a_problems_steps_are_scored_and_the_answer_is_given_again(papers):
    reasoning = "Tom buys 6 apples.\nHe has 9 apples.\n#### 8"

    def write(prompt):
        if prompt.endswith("Solution:\n"):
            return said(reasoning)
        return said("9 apples", 0.95) if "Round 1" in prompt else said("8")

    paper, llm = papers.RunFile.read("sgic-7"), ScriptedLLM(write)
    question, found = Question("How many?", ("9",), "q"), {}
    for word in paper.cells:
        cell: Cell = paper.cell(word)
        work = cell.method.ready(World(llm=llm), settings=cell.set)
        found[word] = run(work(question.text), World(llm=llm)).text
    assert found == {"reasoning": "8", "ours": "9"}
    last = next(prompt for prompt in llm.prompts if "Round 1" in prompt)
    assert "Reasoning Steps:\n1. Tom buys 6 apples. (Uncertainty Score: 50)" in last


def test_long_tail_are_the_largest_values_of_the_whole_formula(papers, tmp_path):
    questions = gece_parts.questions(4)
    run = papers.Answered({q.id: q for q in questions}, {}, {}, Local())
    paper = papers.RunFile.read("gece-fig-2")
    told, picture = papers.gece_told(paper, {"nq": run}, tmp_path)
    largest = max(
        zip(questions, score_questions(questions, llm=Local()), strict=True),
        key=lambda pair: pair[1].value,
    )[0]
    tails = [line for line in told.splitlines() if "long-tail" in line]
    assert len(tails) == 1  # of four
    assert f"{largest.text} " in told.splitlines()[1]
    assert Path(picture.removeprefix("picture: ")).stat().st_size > 1000


def test_attention_is_of_the_last_prompt_over_its_documents(papers, root, smollm2):
    llm = tiny_llm(smollm2.tokenizer)
    paper = small(papers.RunFile.read("sgic-10"), papers)
    found = papers.answered(paper, "hotpotqa", parts_of(papers, llm, root, limit=2))
    for word, number in (("first", 0), ("calibrated", 1)):
        top = []
        for record in found.records[word]:
            assert record.rounds is not None
            prompt = record.rounds["answer"]["trace"][number]["prompt"]
            texts = [p.text for p in THREE]
            shares = attention_shares(llm, prompt, texts).documents
            best = sorted(range(3), key=shares.__getitem__)[-2:]
            top.append(len({1, 2} & {*best}) / 2)
        assert papers.figure(found, "R@2", [word], []) == pytest.approx(100 * sum(top) / len(top))
