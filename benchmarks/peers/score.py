"""What one neighbouring package says of the answers that `peers.py ask` recorded.

It runs in an environment of the package's own (`requirements-PEER.txt` beside this file) and needs
nothing of ours: it reads FOLDER/asked.jsonl and writes FOLDER/PEER.jsonl, a line for each measure.
Scores are larger where the answer is likelier to be wrong, or retrieval likelier to help. Usage:

    PEER_ENVIRONMENT/bin/python benchmarks/peers/score.py uqlm FOLDER --encoder MINILM_FOLDER
"""

import argparse
import asyncio
import hashlib
import importlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NOTHING = ["", -20.0, 5.0, [["", -20.0], ["", -20.0]]]
"""Stands for the tokens of an empty answer, about which a model says nothing."""


def tokens(reply: list[Any]) -> list[list[Any]]:
    """Text, log-probability, entropy and alternatives of each token of a recorded reply."""
    return reply[1] or [NOTHING]


def logprobs(reply: list[Any]) -> list[float]:
    return [token[1] for token in tokens(reply)]


def timed(call: Callable[[list[Row]], Any], rows: list[Row]) -> tuple[Any, float]:
    """What it gives for all rows, and the processor's milliseconds; a first call warms it up."""
    call(rows[:2])
    start = time.process_time()
    found = call(rows)
    return found, 1000 * (time.process_time() - start) / len(rows)


def measure(rows: list[Row], name: str, scores: Sequence[float], ms: float, **more: Any) -> Row:
    """One line of the result."""
    values = {row["id"]: float(score) for row, score in zip(rows, scores, strict=True)}
    return {"name": name, "scores": values, "ms": ms, **more}


def both(rows: list[Row], name: str, of: Callable[[list[list[Any]]], Sequence[float]]) -> list[Row]:
    """A measure of single replies, on the closed-book answers and on those from passages."""
    lines = []
    for part in ("direct", "reading"):
        if part not in rows[0]:
            continue
        scores, ms = timed(lambda some, part=part: of([row[part] for row in some]), rows)
        lines.append(measure(rows, name, scores, ms, part=part))
    return lines


def uqlm(rows: list[Row], encoder: str) -> list[Row]:
    """White-box scorers of the tokens, black-box scorers of the samples."""
    module: Any = importlib.import_module("uqlm")

    def results(reply: list[Any]) -> list[Row]:
        return [
            {
                "token": text,
                "logprob": logprob,
                "top_logprobs": [{"token": t, "logprob": p} for t, p in others],
            }
            for text, logprob, _, others in tokens(reply)
        ]

    every = [row[part] for row in rows for part in ("direct", "reading") if part in row]
    most = max(len(token[3]) for reply in every for token in tokens(reply))

    def white(name: str) -> Callable[[list[list[Any]]], Sequence[float]]:
        scorer = module.WhiteBoxUQ(scorers=[name], top_k_logprobs=most)

        def scores(replies: list[list[Any]]) -> Sequence[float]:
            given = [results(reply) for reply in replies]
            found = asyncio.run(scorer.score(logprobs_results=given, show_progress_bars=False))
            return [-value for value in found.data[name]]

        return scores

    lines = []
    for name in (
        "sequence_probability",
        "min_probability",
        "mean_token_negentropy",
        "min_token_negentropy",
        "probability_margin",
    ):
        lines += both(rows, name, white(name))
    lines.append(ensemble(rows, [line for line in lines if line["part"] == "direct"]))
    if not rows[0]["samples"]:
        return lines
    for name in ("monte_carlo_probability", "consistency_and_confidence"):
        scorer = module.WhiteBoxUQ(scorers=[name], sentence_transformer=encoder)

        def sampled(some: list[Row], scorer: Any = scorer, name: str = name) -> Sequence[float]:
            found = scorer.score(
                logprobs_results=[results(row["direct"]) for row in some],
                responses=[row["direct"][0] for row in some],
                sampled_responses=[[one[0] for one in row["samples"]] for row in some],
                sampled_logprobs_results=[[results(s) for s in row["samples"]] for row in some],
                show_progress_bars=False,
            )
            return [-value for value in asyncio.run(found).data[name]]

        lines.append(measure(rows, name, *timed(sampled, rows), part="direct", samples=True))
    for name in ("exact_match", "cosine_sim"):
        scorer = module.BlackBoxUQ(scorers=[name], sentence_transformer=encoder)

        def agreeing(some: list[Row], scorer: Any = scorer, name: str = name) -> Sequence[float]:
            said = [row["direct"][0] for row in some], [[s[0] for s in r["samples"]] for r in some]
            return [-x for x in scorer.score(*said, show_progress_bars=False).data[name]]

        lines.append(measure(rows, name, *timed(agreeing, rows), part="direct", samples=True))
    return lines


def ensemble(rows: list[Row], lines: list[Row]) -> Row:
    """The weights of `UQEnsemble` for these measures, tuned for AUROC in the other folds."""
    tuner = importlib.import_module("uqlm.utils.tuner").Tuner()

    def judge(known: list[Row], new: list[Row]) -> list[float]:
        one, two = (
            [[-line["scores"][row["id"]] for row in some] for line in lines]
            for some in (known, new)
        )
        found = tuner.tune_params(one, [not row["wrong"] for row in known])
        weights = importlib.import_module("numpy").array(found["weights"])
        return [-score for score in tuner._compute_ensemble_scores(weights, two)]

    ms = sum(line["ms"] for line in lines)
    return measure(rows, "UQEnsemble, tuned by labels", by_fold(rows, judge), ms, part="direct")


def lm_polygraph(rows: list[Row], _: str) -> list[Row]:
    """Estimators over recorded tokens and samples; those that need a model of their own are out."""
    module: Any = importlib.import_module("lm_polygraph.estimators")
    lines = []
    for name in ("MaximumSequenceProbability", "Perplexity", "MeanTokenEntropy"):
        estimator = getattr(module, name)()

        def single(replies: list[list[Any]], estimator: Any = estimator) -> Sequence[float]:
            stats = {
                "greedy_log_likelihoods": [logprobs(reply) for reply in replies],
                "entropy": [[token[2] for token in tokens(reply)] for reply in replies],
            }
            return estimator(stats)

        lines += both(rows, name, single)
    if not rows[0]["samples"]:
        return lines
    for estimator in (
        module.MonteCarloSequenceEntropy(),
        module.MonteCarloNormalizedSequenceEntropy(),
        module.LexicalSimilarity("rougeL"),
        module.DegMat("Jaccard_score"),
        module.EigValLaplacian("Jaccard_score"),
        module.Eccentricity("Jaccard_score"),
    ):

        def sampled(some: list[Row], estimator: Any = estimator) -> Sequence[float]:
            stats = {
                "sample_texts": [[s[0] for s in row["samples"]] for row in some],
                "sample_tokens": [[tokens(s) for s in row["samples"]] for row in some],
                "sample_log_probs": [[math.fsum(logprobs(s)) for s in r["samples"]] for r in some],
            }
            return estimator(stats)

        more: Row = {"part": "direct", "samples": True}
        lines.append(measure(rows, str(estimator), *timed(sampled, rows), **more))
    return lines


def by_fold(rows: list[Row], judge: Callable[[list[Row], list[Row]], list[float]]) -> list[float]:
    """The score of each row by what `judge` learned from the rows of the other folds."""
    found: dict[str, float] = {}
    for fold in {row["fold"] for row in rows}:
        inside = [row for row in rows if row["fold"] == fold]
        scores = judge([row for row in rows if row["fold"] != fold], inside)
        found |= {row["id"]: score for row, score in zip(inside, scores, strict=True)}
    return [found[row["id"]] for row in rows]


def semantic_router(rows: list[Row], encoder: str) -> list[Row]:
    """Two routes, whose utterances are questions that retrieval helped and others; how many
    neighbours and how they count is what does best in the other folds."""
    module: Any = importlib.import_module("semantic_router")
    encoders: Any = importlib.import_module("semantic_router.encoders")
    routers: Any = importlib.import_module("semantic_router.routers")
    auroc = importlib.import_module("sklearn.metrics").roc_auc_score
    np: Any = importlib.import_module("numpy")
    encode, spent = encoders.LocalEncoder(name=encoder), [0.0]
    texts = [row["question"] for row in rows]
    vectors = dict(zip(texts, encode(texts), strict=True))

    class Known(encoders.LocalEncoder):
        def __call__(self, docs: list[str]) -> Any:
            return [vectors[text] for text in docs]

    recalled, names = Known(name=encoder), {True: "retrieve", False: "answer directly"}
    settings = [(k, how) for k in (5, 20, 50, 100) for how in ("mean", "sum")]

    def as_routed(known: list[Row], new: list[Row], label: str, k: int, how: str) -> list[float]:
        """What the router says, as it counts its nearest neighbours, of all at once."""
        one, two = (np.array([vectors[row["question"]] for row in some]) for some in (known, new))
        near = two @ one.T
        order = np.argsort(-near, axis=1)[:, :k]
        near, of = np.take_along_axis(near, order, 1), np.array([bool(r[label]) for r in known])
        sums = [np.where(of[order] == value, near, 0).sum(1) for value in names]
        counts = [np.maximum((of[order] == value).sum(1), 1) for value in names]
        yes, no = sums if how == "sum" else (s / c for s, c in zip(sums, counts, strict=True))
        return (yes - no).tolist()

    def judge(known: list[Row], new: list[Row], label: str) -> list[float]:
        found = [
            auroc(
                [row[label] for row in known],
                by_fold(known, lambda a, b, s=s: as_routed(a, b, label, *s)),
            )
            for s in settings
        ]
        k, how = settings[found.index(max(found))]
        routes = [
            module.Route(name=n, utterances=[r["question"] for r in known if r[label] == value])
            for value, n in names.items()
        ]
        router, scores = routers.IndexedRouter(recalled, routes, top_k=k, aggregation=how), []
        router.encoder = encode
        start = time.process_time()
        for row in new:
            said = {
                choice.name: choice.confidence for choice in router(row["question"], limit=None)
            }
            scores.append(said.get(names[True], 0.0) - said.get(names[False], 0.0))
        spent[0] += time.process_time() - start
        off = np.abs(np.subtract(scores, as_routed(known, new, label, k, how))).max()
        print(f"{label}: {k} neighbours, {how}; as foretold but for {off:.1g}", flush=True)
        return scores

    lines = []
    for label, name in (("wrong", "by labels"), ("differs", "by agreement")):
        spent[0] = 0.0
        scores = by_fold(rows, lambda known, new, label=label: judge(known, new, label))
        ms = 1000 * spent[0] / len(rows)
        lines.append(measure(rows, f"two routes, {name}", scores, ms, part="gate", decides=True))
    return lines


def flashrag(rows: list[Row], encoder: str) -> list[Row]:
    """SKR's judge. Its own encoding asks for CUDA, so MiniLM's vectors come from outside."""
    judger: Any = importlib.import_module("flashrag.judger.judger")
    sentences: Any = importlib.import_module("sentence_transformers")
    model, spent = sentences.SentenceTransformer(encoder, device="cpu"), [0.0]
    judger.load_model = lambda **_: (None, None)

    class Judge(judger.SKRJudger):
        def encode(self, contents: list[str]) -> Any:
            return model.encode(contents, normalize_embeddings=True)

    class Asked:
        def __init__(self, some: list[Row]) -> None:
            self.question = [row["question"] for row in some]

    def judge(known: list[Row], new: list[Row]) -> list[float]:
        told = {"retrieval": "ir_better", "model": "ir_worse"}
        data = [
            {
                "question": row["question"],
                "judgement": told["retrieval" if row["wrong"] else "model"],
            }
            for row in known
            if not (row["reading_wrong"] and row["wrong"])
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(data, file)
            file.flush()
            about = {"model_path": encoder, "training_data_path": file.name}
            skr = Judge({"judger_name": "skr", "judger_config": about, "device": "cpu"})
        start = time.process_time()
        found = [float(skr.judge(Asked([row]))[0]) for row in new]
        spent[0] += time.process_time() - start
        return found

    scores = by_fold(rows, judge)
    ms = 1000 * spent[0] / len(rows)
    return [measure(rows, "SKR", scores, ms, part="gate", decides=True)]


PEERS: dict[str, tuple[Callable[..., list[Row]], str]] = {
    "uqlm": (uqlm, "Apache-2.0"),
    "lm-polygraph": (lm_polygraph, "MIT"),
    "semantic-router": (semantic_router, "MIT"),
    "flashrag-dev": (flashrag, "MIT"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", required=True, help="a folder with MiniLM's weights")
    options = parser.parse_args()
    content = (options.folder / "asked.jsonl").read_bytes()
    _, *rows = map(json.loads, content.splitlines())
    score, licence = PEERS[options.peer]
    about = {"by": options.peer, "version": version(options.peer), "licence": licence}
    # by which `join` of peers.py knows the answers that were scored
    about["asked"] = hashlib.sha256(content.partition(b"\n")[2]).hexdigest()[:16]
    lines = [about | line for line in score(rows, options.encoder)]
    path = options.folder / f"{options.peer}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    print(f"{path}: {len(lines)} measures of {len(rows)} questions")


if __name__ == "__main__":
    main()
