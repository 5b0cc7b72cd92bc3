"""Answer TokenReview and SubjectAccessReview, which are not stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.testing.apiserver.store import Object

REVIEWED = ("tokenreviews", "subjectaccessreviews")


@dataclass(slots=True)
class ReviewEndpoint:
    """Answer reviews. `allowed` are pairs of a user and a subresource of nodes, `"*"` for any of them."""

    allowed: set[tuple[str, str]] = field(default_factory=set)

    def answer(self, resource: str, question: Object, tokens: Mapping[str, str]) -> Object:
        """Return the review with its `status`."""
        spec = question.get("spec") or {}
        status = self._token(spec, tokens) if resource == REVIEWED[0] else self._access(spec)
        return {**question, "status": status}

    def _token(self, spec: Object, tokens: Mapping[str, str]) -> Object:
        user = tokens.get(spec.get("token", ""))
        if user is None:
            return {"error": "[invalid bearer token]", "user": {}}
        return {"authenticated": True, "user": {"username": user, "uid": "1", "groups": ["people"]}}

    def _access(self, spec: Object) -> Object:
        asked = (spec.get("user", ""), (spec.get("resourceAttributes") or {}).get("subresource", ""))
        return {"allowed": asked in self.allowed or (asked[0], "*") in self.allowed}
