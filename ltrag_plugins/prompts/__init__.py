"""What is asked, and how a reply is read: below the products, which stand on it.

::

    question   all that a question asks, where a method knows texts alone
    templates  the direct answer, and the answer from passages
    replies    the answer in a reply: without lead-in, as an option, behind a chain of thought
"""
