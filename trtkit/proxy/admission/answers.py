"""How long the answers of each class are."""

from __future__ import annotations

from collections import defaultdict

from trtkit.proxy.admission.fit import Window

_KEPT = 64


class Answers:
    """The median length of each class's last answers."""

    def __init__(self) -> None:
        self._windows: defaultdict[str, Window] = defaultdict(lambda: Window(_KEPT))

    def note(self, class_name: str, tokens: int) -> None:
        """Take in an answer."""
        if tokens:
            self._windows[class_name].add(tokens)

    def expected(self, class_name: str, max_tokens: int) -> float | None:
        """Return the tokens to expect of a request; None while its class has no answers."""
        window = self._windows.get(class_name)
        return None if window is None else min(window.quantile(0.5), max_tokens)
