"""The parts of `TransformersLLM`.

::

    loading                          a folder, a hub name or a GGUF file -> model and tokenizer
    prompting  spelling  tokens      text -> token ids, token ids -> pieces of text
    prefix                           what the prompts of a call share, planned as token trees
    engine  engines                  what computes; which one a model can use
    trees  masks  tree_writing       one pass over a token tree, exact; rows that go on from it
    head                             hidden states -> logits, where they are read
    memory                           what was read before, for calls that begin alike
    plain                            ordinary batches, for architectures that a tree does not fit
    writing  choosing  lookup        the loop that writes; greedy, sampled, with probabilities;
                                     tokens copied from the prompt, checked some at once
    gradients  tail                  the gradient term, in forward mode over the last layers
"""
