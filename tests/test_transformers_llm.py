"""The local model: the contract of every model, and plain transformers as the second route."""

import copy
import io
import json
import math
import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from finetune_parts import tiny
from transformers import LlamaTokenizer
from transformers.utils import logging as transformers_logging

from ltrag_plugins.errors import InvalidInput, PromptTooLong
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.engine import TreeEngine
from ltrag_plugins.llm.gradients import token_batches
from ltrag_plugins.llm.loading import fingerprint, load_model, quiet
from ltrag_plugins.llm.transformers import TransformersLLM, _next_tokens, _rng, _Text
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import ScoringContract, assert_well_formed

QUESTIONS = [
    "who has played Raoul in The Phantom of the Opera?",
    "when did the first Star Wars film come out?",
    "Name three rivers of Europe.",
]


def write(llm, prompts, **settings):
    return llm.generate(prompts, GenerationSettings(**settings))


def saved(llm, folder):
    for part in (llm.model, llm.tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(smollm2):
    return TransformersLLM(tiny(width=16), smollm2.tokenizer, label="tiny")


def test_a_copy_is_itself_and_another_process_has_to_load_it(small):
    assert copy.deepcopy([small])[0] is small
    with pytest.raises(InvalidInput, match=r"^tiny.* another process\. Make it there"):
        pickle.dumps(small)


class TestSmolLM2(ScoringContract):
    @pytest.fixture
    def llm(self, smollm2):
        return smollm2


class TestRandomWeights(ScoringContract):
    """Writes bytes of any kind, also unfinished characters."""

    @pytest.fixture
    def llm(self, small):
        return small


class TestRandomWeightsWithoutChat(ScoringContract):
    @pytest.fixture
    def llm(self, small):
        return TransformersLLM(small.model, small.tokenizer, chat=False)


def wrapped(llm, question):
    told = [{"role": "user", "content": question}]
    return llm.tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("chat", [True, False])
def test_greedy_text_is_that_of_plain_transformers(smollm2, chat):
    llm = TransformersLLM(smollm2.model, smollm2.tokenizer, chat=chat)
    for question, ours in zip(QUESTIONS, write(llm, QUESTIONS, max_tokens=12), strict=True):
        prompt = wrapped(llm, question) if chat else question
        ids = llm.tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        written = llm.model.generate(**ids, max_new_tokens=12, do_sample=False)
        new = written[0, ids["input_ids"].shape[1] :]
        assert ours.text == llm.tokenizer.decode(new, skip_special_tokens=True)
        assert ours.prompt_tokens == ids["input_ids"].shape[1]
        assert ours.completion_tokens == len(new)


def test_probabilities_are_the_softmax_of_the_models_own_logits(smollm2):
    [ours] = smollm2.score(QUESTIONS[:1], [" Michael Crawford."])
    ids = smollm2.tokenizer.encode(wrapped(smollm2, QUESTIONS[0]), add_special_tokens=False)
    new = smollm2.tokenizer.encode(" Michael Crawford.", add_special_tokens=False)
    with torch.inference_mode():
        logits = smollm2.model(input_ids=torch.tensor([ids + new])).logits[0].double()
    logprobs = logits.log_softmax(-1)[len(ids) - 1 : -1]
    for token, new_id, row in zip(ours.tokens, new, logprobs, strict=True):
        assert token.logprob == pytest.approx(float(row[new_id]), abs=1e-3)
        assert token.entropy == pytest.approx(float(-(row.exp() * row).sum()), abs=1e-3)
        best = row.topk(5)
        texts, chances = zip(*token.alternatives, strict=True)
        assert list(texts) == [smollm2.tokenizer.decode([i]) for i in best.indices]
        assert list(chances) == pytest.approx(best.values.tolist(), abs=1e-3)


def test_temperature_changes_the_choice_and_not_the_log_probabilities(small):
    [hot] = write(small, QUESTIONS[:1], max_tokens=1, temperature=3.0, seed=1)
    [cold] = write(small, QUESTIONS[:1], max_tokens=1)
    assert hot.tokens[0].alternatives == cold.tokens[0].alternatives
    assert hot.tokens[0].entropy == cold.tokens[0].entropy
    for generation in write(small, QUESTIONS, max_tokens=4):
        assert all(token.logprob == token.alternatives[0][1] for token in generation.tokens)


def test_samples_come_in_the_proportions_of_the_tempered_softmax():
    logits, temperature, throws = torch.tensor([[0.0, 1.0, 2.0, -30.0]]), 0.7, 4000
    rngs = [_rng(str(i), 5) for i in range(throws)]
    drawn = _next_tokens(logits.expand(throws, -1), [temperature] * throws, rngs)
    shares = torch.bincount(drawn, minlength=4) / throws
    wanted = torch.softmax(logits[0] / temperature, dim=-1)
    assert shares.tolist() == pytest.approx(wanted.tolist(), abs=4 * math.sqrt(0.25 / throws))


def test_a_prompt_is_read_once_for_its_answer_and_all_samples(small):
    read, brief = [], GenerationSettings(max_tokens=3)
    hook = small.model.base_model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].shape), with_kwargs=True
    )
    try:
        prompt = " ".join(QUESTIONS)
        hot = [GenerationSettings(3, temperature=1.0, seed=seed) for seed in range(5)]
        found = small.generate_each([prompt] * 6, [brief, *hot])
    finally:
        hook.remove()
    assert len({reply.text for reply in found}) > 1
    assert tuple(read[0]) == (1, found[0].prompt_tokens)
    assert all(rows <= 6 and tokens == 1 for rows, tokens in read[1:])


def test_a_sample_follows_from_the_prompt_and_the_seed_alone_and_is_new_without(small):
    together = write(small, QUESTIONS, max_tokens=6, temperature=1.0, seed=3)
    for question, sample in zip(QUESTIONS, together, strict=True):
        [alone] = write(small, [question], max_tokens=6, temperature=1.0, seed=3)
        assert alone.text == sample.text
    other = write(small, QUESTIONS, max_tokens=6, temperature=1.0, seed=4)
    assert [g.text for g in other] != [g.text for g in together]
    anew = write(small, QUESTIONS[:1] * 4, max_tokens=6, temperature=1.0)
    assert len({sample.text for sample in anew}) > 1


def test_the_end_of_text_token_is_counted_and_not_written(smollm2):
    [answer] = write(smollm2, ["What is the capital of France?"], max_tokens=40)
    assert answer.completion_tokens == len(answer.tokens) + 1 < 40
    assert "<|im_end|>" not in answer.text


@pytest.mark.parametrize(("most", "stop", "reason"), [
    (3, [], "length"), (3, ["capital"], "stop"), (8, [], "stop"), (40, ["Paris"], "stop")
])  # fmt: skip
def test_it_says_whether_the_text_ended_or_was_cut(smollm2, most, stop, reason):
    # of 8 tokens the last one ends the text
    question = ["What is the capital of France?"]
    [answer] = write(smollm2, question, max_tokens=most, stop=stop)
    assert answer.finish_reason == reason


def test_a_stop_string_inside_a_token_cuts_the_token(smollm2):
    question = ["What is the capital of France?"]
    [free], [cut] = (write(smollm2, question, max_tokens=9, stop=s) for s in ([], ["pital"]))
    assert free.text == "The capital of France is Paris."
    assert [token.text for token in cut.tokens] == ["The", " ca"]
    assert cut.tokens[1].logprob == pytest.approx(free.tokens[1].logprob, abs=1e-3)
    assert cut.completion_tokens == 2


def spelled(tokenizer, prompt: list[int], ids: list[int]) -> Generation:
    text = _Text(tokenizer, prompt, np.random.default_rng(0), GenerationSettings(max_tokens=99))
    for token_id in ids:
        text.add(token_id, Token("", 0.0), ())
    return text.generation()


@pytest.mark.parametrize(
    "text",
    ["", "plain words", "日本語で答えて 🙂🏳️‍🌈", "e\u0301 \ufffd naïve\n\n\ttabs  ", "👩‍👩‍👧‍👦"],
)
def test_pieces_join_to_the_text_with_characters_in_several_tokens(smollm2, text):
    ids, pieces = smollm2.prompting.pieces(text)
    assert "".join(pieces) == text
    assert ids == smollm2.tokenizer.encode(text, add_special_tokens=False)
    written = spelled(smollm2.tokenizer, smollm2.tokenizer.encode("Say: "), ids)
    assert written.text == text
    assert len(written.tokens) == len(ids)


@pytest.fixture(scope="module")
def byte_fallback():
    """A tokenizer as that of Llama 2, Mistral and TinyLlama: it writes in bytes what it has no
    token for, and decodes a run of bytes as a whole, or not at all."""
    size = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **size, "▁": 259, "a": 260, "▁a": 261}
    return LlamaTokenizer(vocab=vocabulary, merges=[("▁", "a")])


@pytest.mark.parametrize("kind", ["smollm2", "byte_fallback"])
@pytest.mark.parametrize("prompt", ["a", "日本語", "a日", "a 🙂é"])
@pytest.mark.parametrize(
    "text", ["a日本語で答えて a", "あ你日", "🙂🏳️‍🌈é a 👩‍👩‍👧‍👦", "é" * 30, "a a" * 9]
)
def test_a_text_goes_on_from_a_prompt_that_ends_in_characters_of_several_tokens(
    kind, prompt, text, request
):
    tokenizer = getattr(found := request.getfixturevalue(kind), "tokenizer", found)
    before, ids = (tokenizer.encode(one, add_special_tokens=False) for one in (prompt, text))
    written = spelled(tokenizer, before, ids)
    assert tokenizer.decode(before) + written.text == tokenizer.decode(before + ids)
    assert "".join(token.text for token in written.tokens) == written.text


@pytest.mark.parametrize("kind", ["smollm2", "byte_fallback"])
def test_a_token_costs_the_same_wherever_it_stands(kind, request, monkeypatch):
    tokenizer = getattr(found := request.getfixturevalue(kind), "tokenizer", found)
    settings, sizes = GenerationSettings(max_tokens=9999), []
    text = _Text(tokenizer, [], np.random.default_rng(0), settings)
    decode = tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids, **how: sizes.append(len(ids)) or decode(ids, **how)
    )
    for token_id in tokenizer.encode("a日本語で答えて a🙂" * 9, add_special_tokens=False):
        text.add(token_id, Token("", 0.0), ())
    assert max(sizes) <= 4 + 2 * 4


def test_an_unfinished_character_at_the_end_still_joins(smollm2):
    ids = smollm2.tokenizer.encode("a 🏳", add_special_tokens=False)[:-1]
    written = spelled(smollm2.tokenizer, [], ids)
    assert "".join(token.text for token in written.tokens) == written.text
    assert written.text == smollm2.tokenizer.decode(ids)
    assert written.text.endswith("\ufffd")


def test_an_empty_prompt_is_answered(small):
    text = TransformersLLM(small.model, small.tokenizer, chat=False)
    assert_well_formed(write(text, [""], max_tokens=3)[0])


def test_names_tell_weights_dtype_and_prompt_handling_apart(small):
    same = TransformersLLM(tiny(width=16), small.tokenizer, label="tiny")
    others = [
        TransformersLLM(tiny(1, width=16), small.tokenizer, label="tiny"),
        TransformersLLM(tiny(width=16), small.tokenizer, label="tiny", chat=False),
        TransformersLLM(tiny(width=16), small.tokenizer, label="tiny", system="Be brief."),
        TransformersLLM(tiny(width=16).to(torch.bfloat16), small.tokenizer, label="tiny"),
    ]
    assert same.name == small.name
    assert len({small.name, *(other.name for other in others)}) == 5


def test_a_training_step_changes_the_fingerprint():
    model = tiny(width=16)
    before = fingerprint(model)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    assert fingerprint(model) != before


def test_the_model_handed_in_is_not_changed(small):
    model = tiny(width=16)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = model.config.to_dict()
    llm = TransformersLLM(model, small.tokenizer)
    write(llm, QUESTIONS, max_tokens=3)
    llm.score(QUESTIONS, ["a", "b", "c"])
    llm.gradient_agreement(
        QUESTIONS, ["a"] * 3, along=llm.mean_gradient(QUESTIONS, ["a"] * 3, layers=1), layers=1
    )
    assert model.config.to_dict() == settings
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_threads_take_turns(small):
    prompts = [f"{question} ({i})" for i in range(4) for question in QUESTIONS]
    alone = [write(small, [prompt], max_tokens=5)[0].text for prompt in prompts]
    gate = threading.Barrier(len(prompts))

    def ask(prompt):
        gate.wait()
        return write(small, [prompt], max_tokens=5)[0].text

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_gradients_keep_the_order_whatever_the_batches(small):
    continuations = ["one", " two and three and four", "five six"]
    narrow = TransformersLLM(small.model, small.tokenizer, batch_tokens=1)
    along = small.mean_gradient(QUESTIONS, continuations, layers=1)
    apart = narrow.mean_gradient(QUESTIONS, continuations, layers=1)
    for name, gradient in along.items():
        np.testing.assert_allclose(apart[name], gradient, rtol=1e-3, atol=1e-6)
    together = small.gradient_agreement(QUESTIONS, continuations, along=along, layers=1)
    for i, agreement in enumerate(together):
        [alone] = small.gradient_agreement(
            QUESTIONS[i : i + 1], continuations[i : i + 1], along=along, layers=1
        )
        assert agreement.dot == pytest.approx(alone.dot, rel=1e-3)


def test_the_targets_of_a_gradient_batch_are_the_continuations(small):
    scored = small.prompting.scored(QUESTIONS, ["one", " two and three", "four"])
    members = []
    for indices, batch in token_batches(scored, 120):
        members += indices
        for row, i in enumerate(indices):
            targets = batch.input_ids[row, batch.targets[row]].tolist()
            assert targets == scored[i].continuation
            whole = batch.input_ids[row, batch.attention_mask[row].bool()].tolist()
            assert whole == scored[i].prompt + scored[i].continuation
    assert sorted(members) == [0, 1, 2]


def test_too_long_a_prompt_is_refused_by_its_count(smollm2):
    with pytest.raises(PromptTooLong, match=r"2\d,\d{3} tokens.*reads at most 8,192"):
        smollm2.generate(["word " * 20_000])
    with pytest.raises(PromptTooLong, match="with 8,192 more"):
        write(smollm2, ["short"], max_tokens=8192)
    with pytest.raises(PromptTooLong, match="Shorten the prompt"):
        smollm2.score(["short"], ["word " * 9000])


def test_what_cannot_be_done_is_refused_with_the_remedy(small, tmp_path):
    told = partial(TransformersLLM, small.model, small.tokenizer, chat=False, system="Be brief.")
    training = TransformersLLM(tiny(width=16).train(), small.tokenizer)
    for refused, why in (
        (lambda: small.score(["a", "b"], ["c"]), "one continuation for each prompt"),
        (lambda: small.mean_gradient(["a", "b"], ["c", ""], layers=1), "continuation 1 is empty"),
        (told, "write it into the prompts"),
        (lambda: training.generate(["Hello"]), r"call model.eval\(\) first"),
        (lambda: load_model(tmp_path / "absent.gguf"), "no GGUF file"),
        (lambda: load_model(tmp_path), r"no config.json"),
        (lambda: load_model(tmp_path / "absent"), "absent' is not there"),
        (lambda: load_model(Path(__file__)), "test_transformers_llm.py' is no folder; give"),
        (lambda: load_model("any/model", dtype="float33", device="cpu"), "dtype 'float33'"),
    ):
        with pytest.raises(InvalidInput, match=why):
            refused()


def test_loading_leaves_the_logging_of_transformers_as_it_was(small, tmp_path):
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    loaded = TransformersLLM.load(saved(small, tmp_path), device="cpu")
    after = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    assert after == before
    assert loaded.name.partition("@")[2] == small.name.partition("@")[2]
    told, wanted = (write(llm, QUESTIONS, max_tokens=3) for llm in (loaded, small))
    assert [g.text for g in told] == [g.text for g in wanted]
    with quiet():
        assert not transformers_logging.is_progress_bar_enabled()


def test_half_precision_shares_prefixes_and_stays_close(small, tmp_path):
    half = TransformersLLM.load(saved(small, tmp_path), device="cpu", dtype="bfloat16")
    scored = (llm.score(QUESTIONS, QUESTIONS) for llm in (small, half))
    for full, rough in zip(*scored, strict=True):
        pairs = zip(full.tokens, rough.tokens, strict=True)
        assert np.mean([a.logprob - b.logprob for a, b in pairs]) == pytest.approx(0, abs=0.1)
    assert isinstance(half._engine, TreeEngine)


def test_sentence_vectors_have_length_one_and_the_order_of_the_texts(minilm):
    assert isinstance(minilm, Encoder)
    texts = ["a cat sat", "ein Hund 🐕", "a cat was sitting", "stock prices fell"]
    rows = minilm.encode(texts)
    assert rows.shape == (4, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(minilm.encode(texts[::-1])[::-1], rows, atol=1e-5)
    assert rows[0] @ rows[2] > rows[0] @ rows[3]
    assert minilm.encode([]).shape == (0, 384)


def test_code_that_comes_with_weights_is_never_run(small, tmp_path, monkeypatch):
    folder, ran = saved(small, tmp_path / "model"), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "unheard-of", "auto_map": {"AutoConfig": "conf.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "conf.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(InvalidInput, match="code of its own, which is never run"):
        TransformersLLM.load(folder)
    assert not ran.exists()


OFFLINE = """
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.encoders import SentenceTransformerEncoder, TransformersEncoder
from ltrag_plugins.llm.transformers import TransformersLLM
print(TransformersLLM.load("org/here").name)
for kind in (TransformersEncoder, SentenceTransformerEncoder):
    print(kind.load("org/here").encode(["a word"]).shape)
for kind in (TransformersLLM, TransformersEncoder, SentenceTransformerEncoder):
    try:
        kind.load("org/gone")
    except InvalidInput as error:
        print(error)
"""


def test_a_hub_that_cannot_be_reached_is_asked_once_and_what_is_here_is_loaded(small, tmp_path):
    files = tmp_path / "hub" / "models--org--here"
    saved(small, files / "snapshots" / "abc")
    (files / "refs").mkdir()
    (files / "refs" / "main").write_text("abc")
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as hub:

        def hang_up():
            with suppress(OSError):  # closed
                while True:
                    asked.append(hub.accept()[0].close())

        threading.Thread(target=hang_up, daemon=True).start()
        at = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": str(tmp_path)}
        environment = {**os.environ, **at, "HF_HUB_OFFLINE": "0"}
        program = [sys.executable, "-c", OFFLINE]
        told = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    here, *shapes = told.stdout.splitlines()[:3]
    gone = told.stdout.splitlines()[3:]
    assert here.startswith("here@")
    assert all(shape.startswith("(1, ") for shape in shapes)
    assert len(gone) == 3
    for line in gone:
        assert line.startswith("the model 'org/gone' is not, or not whole, here, and the hub")
    assert len(asked) <= 7, "once for each, and once for what the hub's client wants itself"
