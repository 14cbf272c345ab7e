"""The validating webhook's answers under the default configuration, for tests of what people are told."""

from __future__ import annotations

import copy
from typing import Any

from carpool_injector import config_file
from carpool_injector.core import injection, model
from carpool_injector.objects import review, validation
from tests.injector import reviews

CONFIG = config_file.parse(None)
RULES = validation.Rules(lambda pod, namespace: injection.inject(pod, CONFIG, namespace, model.Capabilities()), CONFIG)


def answer(thing: Any, old: Any = None, **members: Any) -> review.Answer:
    """The answer to a CREATE, or with `old` to an UPDATE."""
    return verdict(thing, old, **members).answer


def verdict(thing: Any, old: Any = None, **members: Any) -> review.Verdict:
    operation = members.pop("operation", "UPDATE" if old else "CREATE")
    before = copy.deepcopy((thing, old))
    found = validation.validate(reviews.request(thing, operation, old=old, **members), RULES)
    assert (thing, old) == before
    return found
