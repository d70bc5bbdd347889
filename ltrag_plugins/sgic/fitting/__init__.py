"""Do the rounds pay with this model, on these questions?

::

    recording            every round of every question, to the end
    costs                calls, tokens and seconds of what was recorded
    variants             the ways to answer, played from what was recorded
    selecting            the cheapest that pays
    report  reporting    what the fit says of itself
    fit                  all of it
"""
