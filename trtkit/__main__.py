"""``python -m trtkit`` is the ``trtkit`` command."""

from trtkit.cli import main

main()
