"""What a run of SGIC did: rounds, turns, spreads, R@k, mending, attention; in numbers and pictures.

::

    judged  records          an answer beside what is true of it; a run on disk
    rounds  spread           figures of each round; distributions and reliability
    ranking  mending         where the gold documents are; what was mended, failed, spoiled
    attention                where the model looked (local weights)
    analyse                  all of it, as one printable value
    drawing  pictures        the paper's figures of it (extra `plots`)
"""
