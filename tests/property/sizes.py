"""How many examples a property gets: some in every run, all of them in `make test-long`."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def sized(usual: int, *, full: int) -> Callable[[Any], Any]:
    """A property of `usual` examples, and of `full` ones where CTXSNAP_FULL_SIZE is set."""
    amount = full if os.environ.get("CTXSNAP_FULL_SIZE") else usual

    def decorate(test: Any) -> Any:
        return pytest.mark.full_size(settings(max_examples=amount)(test))

    return decorate
