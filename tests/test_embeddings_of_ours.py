"""Our encoders inside the frameworks' vector stores, beside cosine by hand."""

import numpy as np
import pytest
from contracts.methods import PASSAGES, Letters
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.langchain import LangChainEncoder, LtragEmbeddings
from ltrag_plugins.llama_index import LlamaIndexEncoder, LtragEmbedding
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Passage
from tests.router_parts import number

TEXTS = [passage.text for passage in PASSAGES]
ASKED = "Who wrote Middlemarch?"


def by_hand() -> list[str]:
    vectors = Letters().encode([ASKED, *TEXTS])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return [TEXTS[i] for i in np.argsort(-(unit[1:] @ unit[0]), kind="stable")]


async def test_a_store_of_either_framework_finds_what_is_nearest():
    store = InMemoryVectorStore.from_texts(TEXTS, LtragEmbeddings(Letters()))
    for found in store.similarity_search(ASKED, k=4), await store.asimilarity_search(ASKED, k=4):
        assert [document.page_content for document in found] == by_hand()
    nodes = [TextNode(text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=LtragEmbedding(Letters()))
    retriever = index.as_retriever(similarity_top_k=4)
    for found in retriever.retrieve(ASKED), await retriever.aretrieve(ASKED):
        assert [node.text for node in found] == by_hand()


@pytest.mark.parametrize("there_and_back", [
    lambda e: LangChainEncoder(LtragEmbeddings(e)), lambda e: LlamaIndexEncoder(LtragEmbedding(e)),
])  # fmt: skip
def test_there_and_back_the_vectors_are_the_same(there_and_back):
    encoder = there_and_back(Letters())
    assert np.array_equal(encoder.encode(TEXTS), Letters().encode(TEXTS))
    assert len(encoder.encode([])) == 0
    assert "letters" in encoder.name


def test_an_embedding_that_became_a_dictionary_is_the_same_again():
    embedding = LtragEmbedding(Letters(), embed_batch_size=3)
    again = LtragEmbedding.from_dict(embedding.to_dict(), encoder=Letters())
    assert again.to_dict() == embedding.to_dict()
    assert again.get_query_embedding(ASKED) == embedding.get_query_embedding(ASKED)


class Strict(Letters):
    """Refuses a blank text, as OpenAI's embeddings do."""

    def encode(self, texts):
        if any(not text.strip() for text in texts):
            raise ValueError("'$.input' is invalid")
        return super().encode(texts)


STRICT = pytest.mark.parametrize("encoder", [
    LangChainEncoder(LtragEmbeddings(Strict())), LlamaIndexEncoder(LtragEmbedding(Strict())),
])  # fmt: skip


@STRICT
async def test_a_blank_text_is_not_sent_and_has_a_row_of_zeros(encoder):
    texts = ["", ASKED, "  ", "\n", TEXTS[0], ""]
    for rows in encoder.encode(texts), await encoder.aencode(texts):
        assert rows.dtype == np.float32
        assert np.array_equal(rows[[1, 4]], Letters().encode([ASKED, TEXTS[0]]))
        assert not rows[[0, 2, 3, 5]].any()
        assert len(rows) == 6
    for rows in encoder.encode(["", " "]), await encoder.aencode(["", " "]):
        assert np.array_equal(rows, np.zeros((2, len(Letters().encode([ASKED])[0]))))


@STRICT
def test_an_empty_draft_costs_no_fit_and_retrieves(encoder):
    def model(prompt: str) -> str:
        i = number(prompt)
        return "" if i == 7 else f"City {i}" if i % 2 else f"Town {i}"

    texts = [f"Which city is number {i} of the list?" for i in range(40)]
    how = {"retrieved_answers": [f"City {i}" for i in range(40)], "encoder": encoder}
    gate = GECEGate.fit(texts, llm=ScriptedLLM(model), settings=GECESettings(folds=2), **how)
    assert gate.decide(texts[7]).reason.startswith("the model's own answer is empty")


@STRICT
def test_a_blank_document_is_ranked_beside_the_others(encoder):
    size = len(Letters().encode([ASKED])[0])
    head = Head(np.random.default_rng(0).normal(size=(5, size)), np.zeros(5))
    texts = [*TEXTS, " "]
    ranked = DURRanker(head, encoder, DURSettings()).rank(ASKED, [Passage(text) for text in texts])
    assert sorted(place.index for place in ranked) == [*range(len(texts))]


@pytest.mark.parametrize("kind", [LtragEmbeddings, LtragEmbedding])
def test_what_is_no_encoder_is_refused(kind):
    with pytest.raises(InvalidInput, match="Encoder"):
        kind("all-MiniLM-L6-v2")
