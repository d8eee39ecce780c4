"""The check of an answer's calls against the schemas of their functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import orjson

from validation.issues import Issue
from validation.verdict import AnswerCheck


class CallCheck:
    """Checks the arguments of a call with the check of its function; others have none.

    Any thread may call it.
    """

    def __init__(self, checks: Mapping[str, AnswerCheck]) -> None:
        self._checks = checks

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return the issues of a call, which is JSON with `name` and `arguments`."""
        try:
            call = orjson.loads(text)
        except orjson.JSONDecodeError:
            return (Issue("schema_not_json", "The arguments of a call are not JSON."),)
        check = self._checks.get(call["name"])
        if check is None:
            return ()
        issues = check.find_issues(orjson.dumps(call["arguments"]).decode())
        return tuple(
            replace(issue, message=f"In the call of {call['name']}: {issue.message}")
            for issue in issues
        )
