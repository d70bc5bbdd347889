"""Our encoders inside the frameworks' vector stores, beside cosine by hand."""

import numpy as np
import pytest
from contracts.methods import PASSAGES, Letters
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain import LangChainEncoder, LtragEmbeddings
from ltrag_plugins.llama_index import LlamaIndexEncoder, LtragEmbedding

TEXTS = [passage.text for passage in PASSAGES]
ASKED = "Who wrote Middlemarch?"


def by_hand() -> list[str]:
    vectors = Letters().encode([ASKED, *TEXTS])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return [TEXTS[i] for i in np.argsort(-(unit[1:] @ unit[0]), kind="stable")]


async def test_a_langchain_store_finds_what_is_nearest():
    store = InMemoryVectorStore.from_texts(TEXTS, LtragEmbeddings(Letters()))
    assert [d.page_content for d in store.similarity_search(ASKED, k=4)] == by_hand()
    assert [d.page_content for d in await store.asimilarity_search(ASKED, k=4)] == by_hand()


async def test_a_llama_index_finds_what_is_nearest():
    nodes = [TextNode(text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=LtragEmbedding(Letters()))
    retriever = index.as_retriever(similarity_top_k=4)
    assert [n.text for n in retriever.retrieve(ASKED)] == by_hand()
    assert [n.text for n in await retriever.aretrieve(ASKED)] == by_hand()


@pytest.mark.parametrize("there_and_back", [
    lambda e: LangChainEncoder(LtragEmbeddings(e)), lambda e: LlamaIndexEncoder(LtragEmbedding(e)),
])  # fmt: skip
def test_there_and_back_the_vectors_are_the_same(there_and_back):
    encoder = there_and_back(Letters())
    assert np.array_equal(encoder.encode(TEXTS), Letters().encode(TEXTS))
    assert len(encoder.encode([])) == 0
    assert "letters" in encoder.name


@pytest.mark.parametrize("kind", [LtragEmbeddings, LtragEmbedding])
def test_what_is_no_encoder_is_refused(kind):
    with pytest.raises(InvalidInput, match="Encoder"):
        kind("all-MiniLM-L6-v2")
