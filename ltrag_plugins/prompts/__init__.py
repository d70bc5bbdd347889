"""What is asked, and how a reply is read: below the products, which stand on it.

::

    templates  the direct answer, the answer from passages, and all that a question asks
    replies    the answer in a reply: without lead-in, as an option, behind a chain of thought
"""
