from pathlib import Path

import pytest

from trtkit.plan.docs import PAGES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_plan_goes_by_today(page):
    assert (DOCS / page).read_text() == PAGES[page](), "run: python -m trtkit.plan.docs docs"
