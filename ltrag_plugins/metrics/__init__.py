"""How good, how certain and how dear answers are. Import the family you use:

* `metrics.answer`: short answers against accepted ones (exact match, F1, containment, options)
* `metrics.text`: longer answers (METEOR, ROUGE, BLEU, chrF, TER)
* `metrics.calibration`: probabilities against outcomes (ECE, Brier, AUROC), bootstrap intervals
* `metrics.cost`: calls, tokens, retrievals, seconds

Metrics of answers and texts take `(prediction, references)` and return the best value over the
references; an empty prediction is an answer like any other, no references is an error.
"""
