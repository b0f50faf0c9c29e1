"""SentencePiece's merges, which follow from the scores of its tokens."""

from __future__ import annotations

from collections.abc import Mapping


def merges_by_score(scores: Mapping[str, float]) -> list[list[str]]:
    """Return every pair of tokens that makes a token, the highest score of the result first.

    SentencePiece joins the neighbours whose union scores highest; of two ways to make the same token the one with
    the longer left part goes first, as in transformers' ``generate_merges``.
    """
    found = [
        (score, cut, token)
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in scores and token[cut:] in scores
    ]
    # Sorting is stable: among equal scores the order of the vocabulary stays.
    found.sort(key=lambda entry: (-entry[0], -entry[1]))
    return [[token[:cut], token[cut:]] for _, cut, token in found]
