"""Speculative decoding in rounds: a small model guesses some tokens, the large one checks them in one step."""


def rounds(prompt, limit, guesses, *, guess, check, ends):
    """Yield the tokens of each round until there are ``limit`` of them, or the large model has ended.

    ``guess(tokens, count)`` returns up to ``count`` tokens that may follow. ``check(tokens, guessed)`` returns those of
    them that the large model would have written, and the one that it writes after them; without that one it has ended.
    ``ends(written)`` tells whether the text is over.
    """
    written = []
    while len(written) < limit:
        left = limit - len(written)
        # The last token is always the large model's own.
        guessed = guess(prompt + written, min(guesses, left - 1)) if left > 1 else []
        new = check(prompt + written, guessed)[:left]
        if new:
            written += new
            yield new
        if new == guessed[: len(new)] or ends(written):
            return


def stop_sequences(table):
    """Return the sequences of a row of ``stop_words_list``: all tokens in a line, and where each sequence ends."""
    tokens, stops = table
    starts = [0, *stops]
    return [list(tokens[start:stop]) for start, stop in zip(starts, stops, strict=False) if start < stop]
