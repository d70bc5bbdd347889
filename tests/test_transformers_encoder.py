"""The first token's vector, beside sentence-transformers' own pooling and a plain forward pass."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast, RobertaConfig, RobertaModel

from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.errors import InvalidInput, ModelError
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.cached import CachedEncoder
from ltrag_plugins.llm.encoders import SentenceTransformerEncoder, TransformersEncoder

LETTERS = "abcdefghijklmnopqrstuvwxyz?"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
TEXTS = ["who wrote emma?", "x", "", "a much longer question than all of the others", "Who?"]
SIZES = {"vocab_size": len(VOCABULARY), "hidden_size": 16, "intermediate_size": 24}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT of random weights, as a folder."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    torch.manual_seed(0)
    BertModel(BertConfig(**SIZES)).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(folder):
    return TransformersEncoder.load(folder, device="cpu", label="tiny")


def test_it_is_an_encoder(encoder):
    assert isinstance(encoder, Encoder)
    assert encoder.encode(TEXTS).shape == (5, 16)
    assert encoder.encode(TEXTS).dtype == np.float32
    assert encoder.encode([]).shape == (0, 16)


def test_one_string_is_no_list_of_texts(encoder, folder, tmp_path):
    pooled = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(16, "cls")])
    kept = CachedEncoder(encoder, tmp_path / "vectors.sqlite")
    for one in (encoder, SentenceTransformerEncoder(pooled), kept):
        with pytest.raises(InvalidInput, match="put it in a list"):
            one.encode("who wrote emma?")


def test_in_a_copy_of_a_ranker_it_is_itself_and_in_another_process_it_encodes_alike(encoder):
    ranker = DURRanker.untrained(encoder)
    assert copy.deepcopy(ranker).encoder is encoder
    sent = pickle.loads(pickle.dumps(ranker)).encoder
    assert sent is not encoder
    assert sent.name == encoder.name
    assert np.array_equal(sent.encode(TEXTS), encoder.encode(TEXTS))


def test_its_vectors_are_those_of_a_plain_forward_pass(encoder):
    for text, row in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        pieces = ["[CLS]"]
        for word in text.lower().split():
            mark = word.endswith("?")
            word = word.removesuffix("?")
            pieces += [*(word[0], *(f"##{c}" for c in word[1:])), *("?" * mark)]
        ids = torch.tensor([[VOCABULARY.index(p) for p in (*pieces, "[SEP]")]])
        with torch.no_grad():
            plain = encoder.model(input_ids=ids).last_hidden_state[0, 0]
        assert row == pytest.approx(plain.numpy(), abs=1e-5)


def test_its_vectors_are_those_of_sentence_transformers_with_cls_pooling(encoder, folder):
    words = Transformer(str(folder), max_seq_length=50)
    theirs = SentenceTransformer(modules=[words, Pooling(16, "cls")], device="cpu")
    assert encoder.encode(TEXTS) == pytest.approx(theirs.encode(TEXTS), abs=1e-5)


def test_a_texts_vector_does_not_depend_on_its_company_and_is_kept(encoder, tmp_path):
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    together = encoder.encode(TEXTS * 9)[5:10]
    assert together == pytest.approx(alone, abs=1e-5)
    with CachedEncoder(encoder, tmp_path / "vectors") as cached:
        assert cached.encode(TEXTS).tobytes() == cached.encode(TEXTS).tobytes()
        assert cached.encode(TEXTS) == pytest.approx(together, abs=1e-5)


def test_texts_longer_than_the_model_reads_are_cut(encoder):
    long = "a b " * 500
    [row, same] = encoder.encode([long, long + "c"])
    assert row == pytest.approx(same, abs=1e-6)
    assert np.isfinite(row).all()


def test_a_model_whose_first_positions_are_taken_is_read_to_its_end(encoder):
    # RoBERTa counts positions from 2: of 50 there are 48 to use
    torch.manual_seed(0)
    roberta = RobertaModel(RobertaConfig(**SIZES, pad_token_id=1)).eval()
    tokenizer = encoder.tokenizer.__class__.from_pretrained(encoder.tokenizer.name_or_path)
    assert tokenizer.model_max_length > 50  # it names none
    [cut] = TransformersEncoder(roberta, tokenizer).encode(["a b " * 500])
    ids = torch.tensor([[*tokenizer("a b " * 500)["input_ids"][:47], VOCABULARY.index("[SEP]")]])
    with torch.no_grad():
        plain = roberta(input_ids=ids).last_hidden_state[0, 0]
    assert cut == pytest.approx(plain.numpy(), abs=1e-5)


def test_a_model_in_training_mode_is_refused(encoder):
    bert = BertModel(BertConfig(**SIZES)).train()
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        TransformersEncoder(bert, encoder.tokenizer).encode(TEXTS)
    assert bert.training


def test_its_name_follows_the_weights_and_the_pooling(encoder, folder):
    again = TransformersEncoder.load(folder, device="cpu", label="tiny")
    assert again.name == encoder.name
    assert encoder.name.startswith("tiny/cls@")
    assert repr(encoder) == "TransformersEncoder('tiny')"
    with torch.no_grad():
        next(again.model.parameters()).add_(1.0)
    fresh = TransformersEncoder(again.model, again.tokenizer, label="tiny")
    assert fresh.name != encoder.name
