"""The vector store example and the notebooks run to their ends, without a network, and are right.

Each is run in a copy of `examples/`. What it shows is held against another way to it: cosines by
numpy, tables computed again from the answers on disk.
"""

import contextlib
import io
import json
import logging
import re
import shutil
import socket
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell
from qdrant_client import QdrantClient

EXAMPLES = Path(__file__).parents[1] / "examples"
WATCHED = """
import json
import socket

connect = socket.socket.connect


def near(self, address):
    assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1"), address
    return connect(self, address)


socket.socket.connect = near
"""
"""Before a notebook's own cells: nothing far away is reached."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """`examples/` as a reader has it, with nothing computed yet."""
    folder = tmp_path_factory.mktemp("reader") / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.syspath_prepend(folder / "notebooks")
        yield folder
        for name in ("vector_store", "prompts", "execute"):
            sys.modules.pop(name, None)
        # the example keeps the calibrator quiet; the tests that come after it listen
        logging.getLogger("ltrag_plugins.sgic.calibrator").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def script(copied):
    """The example's module, and what it printed."""

    def refuse(_, address):
        raise AssertionError(f"the example connects to {address}")

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(copied.parent)
        patch.setattr(sys, "argv", ["vector_store.py"])
        patch.setattr(socket.socket, "connect", refuse)
        import vector_store

        vector_store.main()
    return vector_store, printed.getvalue()


@pytest.fixture
def client(copied, script):
    """The store as the example left it."""
    opened = QdrantClient(path=str(copied.parent / "runs/vector_store/qdrant"))
    yield opened
    opened.close()


def executed(path, shown):
    """The outputs of a notebook's cells, and its names in `shown`, from a run in its own folder."""
    from execute import executed

    notebook = nbformat.read(path, as_version=4)
    named = ", ".join(f"{name!r}: {value}" for name, value in shown.items())
    last = f"open('seen.json', 'w').write(json.dumps({{{named}}}))"
    notebook.cells = [new_code_cell(WATCHED), *notebook.cells, new_code_cell(last)]
    nbformat.write(notebook, path)
    done = executed(path).cells[1:-1]
    assert not [o for cell in done for o in cell.get("outputs", ()) if o.get("name") == "stderr"]
    return done, json.loads((path.parent / "seen.json").read_text())


def rows(cell):
    """A table that a cell showed."""
    [shown] = [o["data"]["text/markdown"] for o in cell.outputs if "data" in o]
    lines = [[c.strip() for c in line.strip("|").split(" | ")] for line in shown.split("\n")]
    return lines[:1] + lines[2:]


def place(cells, code):
    [found] = [i for i, cell in enumerate(cells) if code in cell.source]
    return found


def test_the_example_fills_the_store_and_says_the_same_in_both_frameworks(script):
    module, printed = script
    size = len(module.read().passages)
    assert f"LangChain: {size} were new" in printed
    assert f"LlamaIndex: {size} were new" in printed
    _, one, other = re.split(r"\n +(?:LangChain|LlamaIndex) *\n", printed)
    assert "retrieves" in one
    assert one.strip() == other.strip()


def test_the_store_finds_what_numpy_finds_among_all_its_vectors(script, client, minilm):
    module, _ = script
    store, index = module.langchain_store(client, minilm), module.llama_index_store(client, minilm)
    retriever = store.as_retriever(search_kwargs={"k": module.FOUND})
    searching = index.as_retriever(similarity_top_k=module.FOUND)
    data = module.read()
    for collection in (module.LANGCHAIN, module.LLAMA_INDEX):
        points, _ = client.scroll(collection, limit=1000, with_vectors=True)
        assert {point.id for point in points} == set(map(module.id_of, data.passages))
        vectors = np.array([point.vector for point in points])
        for question in data.asked:
            cosines = vectors @ minilm.encode([question.text])[0]  # all of length 1
            order = np.argsort(-cosines)[: module.FOUND]
            best = [points[i].id for i in order]
            if collection == module.LANGCHAIN:
                documents = retriever.invoke(question.text)
                assert [document.metadata["_id"] for document in documents] == best
            else:
                nodes = searching.retrieve(question.text)
                assert [node.node_id for node in nodes] == best
                assert [node.score for node in nodes] == pytest.approx(cosines[order], abs=1e-5)


def test_a_vector_is_that_of_its_passage_and_has_length_1(script, client, minilm):
    module, _ = script
    for passage in module.read().passages[::40]:
        [expected] = minilm.encode([f"{passage.title}\n{passage.text}"])
        for collection in (module.LANGCHAIN, module.LLAMA_INDEX):
            [point] = client.retrieve(collection, [module.id_of(passage)], with_vectors=True)
            assert point.vector == pytest.approx(expected, abs=1e-5)
            assert np.linalg.norm(point.vector) == pytest.approx(1, abs=1e-5)


def test_a_store_that_is_opened_again_takes_nothing_twice(script, client, minilm):
    module, _ = script
    passages = module.read().passages
    assert module.add_documents(module.langchain_store(client, minilm), passages) == 0
    index = module.llama_index_store(client, minilm)
    assert module.add_nodes(index, client, passages) == 0


def test_the_walk_ends_with_right_answers_and_refuses_what_no_document_tells(copied):
    path = copied / "notebooks" / "your_documents.ipynb"
    cells, _ = executed(path, {})
    documents = (copied.parent / "runs/your_documents/documents/village.txt").read_text()
    *_, (header, *table) = [rows(cell) for cell in cells if is_table(cell)]
    assert header == ["question", "passage", "answer", "P(wrong)", "accepted"]
    assert len({row[0] for row in table}) == 6
    kinds = []
    for question, passage, answer, p_wrong, accepted in table:
        refused = answer == "I am not sure enough to answer."
        direct, told = passage == "(none: direct answer)", accepted in documents
        kinds.append((direct, told, refused))
        assert refused == (float(p_wrong) > 0.5), question
        assert (plain(accepted) in plain(answer)) is not refused, question
    # what everybody knows, what the documents tell, and what nobody tells; two of each
    assert (
        sorted(kinds)
        == [(False, False, True)] * 2 + [(False, True, False)] * 2 + [(True, False, False)] * 2
    )
    shown = [o.data for cell in cells for o in cell.get("outputs", ()) if "data" in o]
    assert sum("image/png" in data for data in shown) == 2


def test_the_walk_reads_the_readers_own_documents(copied, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.md").write_text("The mill is red.\n\nThe inn is shut.")
    (tmp_path / "mine" / "two.txt").write_text("The well is deep.")
    asked = [{"question": f"Is number {i} red?", "answers": ["no"]} for i in range(26)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    monkeypatch.setenv("DOCUMENTS", str(tmp_path / "mine"))
    monkeypatch.setenv("QUESTIONS", str(tmp_path / "asked.jsonl"))
    monkeypatch.setenv("MODEL", "mine")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.chdir(copied / "notebooks")
    names = {}
    notebook = nbformat.read(EXAMPLES / "notebooks" / "your_documents.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for source in code[: next(i for i, one in enumerate(code) if "LongTailRAG.fit(" in one)]:
        exec(source, names)
    assert [passage.text for passage in names["passages"]] == [
        "The mill is red.",
        "The inn is shut.",
        "The well is deep.",
    ]
    assert (len(names["questions"]), len(names["asked"])) == (20, 6)
    assert "mine" in names["llm"].name
    assert len([*(tmp_path / "mine").iterdir()]) == 2, "the village stays out of it"


def test_the_village_is_written_over_no_file_of_the_readers(copied, tmp_path, monkeypatch):
    mine = tmp_path / "asked.jsonl"
    mine.write_text('{"question": "Is the mill red?", "answers": ["yes"]}')
    monkeypatch.setenv("QUESTIONS", str(mine))
    monkeypatch.setenv("DOCUMENTS", str(tmp_path / "mistyped"))
    monkeypatch.chdir(copied / "notebooks")
    notebook = nbformat.read(EXAMPLES / "notebooks" / "your_documents.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    names = {}
    for source in code[:2]:
        exec(source, names)
    assert "VILLAGE" in names
    assert mine.read_text() == '{"question": "Is the mill red?", "answers": ["yes"]}'
    assert [*tmp_path.iterdir()] == [mine]


def is_table(cell):
    return any("text/markdown" in o.get("data", {}) for o in cell.get("outputs", ()))


def test_the_comparison_shows_what_the_records_say_and_a_gate_only_chooses(copied):
    path = copied / "notebooks" / "compare_methods.ipynb"
    cells, _ = executed(path, {})
    run = copied.parent / "runs" / "compare_methods"
    records = {
        file.stem: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (run / "records").glob("*.jsonl")
    }
    header, *table = rows(cells[place(cells, "summarize(records)")])
    assert {row[0] for row in table} == set(records)
    for name, *figures in table:
        answers = records[name]
        told = dict(zip(header[1:], figures, strict=True))
        right = [any(plain(a) in plain(r["prediction"]) for a in r["answers"]) for r in answers]
        assert told["contains"] == f"{np.mean(right):.2f}"
        assert told["calls"] == f"{np.mean([r['calls'] for r in answers]):.2f}"
        assert told["searches"] == f"{np.mean([bool(r['passages']) for r in answers]):.2f}"

    decisions = [record["decision"]["retrieve"] for record in records["single+gate"]]
    assert len(set(decisions)) == 2, "the gate tells no questions apart"
    chosen = [
        records["single" if retrieve else "direct"][i]["prediction"]
        for i, retrieve in enumerate(decisions)
    ]
    assert [record["prediction"] for record in records["single+gate"]] == chosen
    page = (run / "report.html").read_text()
    assert all(record["question"] in page for record in records["direct"])


def plain(text):
    """Lower case, without articles and punctuation, a blank on either side."""
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return f" {' '.join(word for word in words if word not in ('a', 'an', 'the'))} "
