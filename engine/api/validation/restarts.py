"""When a container is restarted: its own policy and rules, and what a resize asks for."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Container, Pod
from engine.api.resources import CPU, MEMORY
from engine.api.validation.names import one_of

_MOST_RULES, _MOST_EXIT_CODES = 20, 255
_RESTART, _KEEP = "RestartContainer", "NotRequired"


def restart_problems(container: Container, where: str) -> Iterator[str]:
    yield from one_of(container.restart_policy, ("Always", "OnFailure", "Never"), f"{where}.restartPolicy")
    rules = container.restart_policy_rules or []
    if container.restart_policy is None and rules:
        yield f"{where}.restartPolicy: must specify restartPolicy when restart rules are used"
    if len(rules) > _MOST_RULES:
        yield f"{where}.restartPolicyRules: expected at most {_MOST_RULES}, got {len(rules)}"
    for index, rule in enumerate(rules):
        field = f"{where}.restartPolicyRules[{index}]"
        yield from one_of(rule.action, ("Restart", "RestartAllContainers"), f"{field}.action")
        if rule.exit_codes is None:
            yield f"{field}.exitCodes: must be specified"
            continue
        yield from one_of(rule.exit_codes.operator, ("In", "NotIn"), f"{field}.exitCodes.operator")
        if len(rule.exit_codes.values or []) > _MOST_EXIT_CODES:
            yield f"{field}.exitCodes.values: expected at most {_MOST_EXIT_CODES}"


def resize_policy_problems(pod: Pod, container: Container, where: str, *, init: bool) -> Iterator[str]:
    seen: set[str] = set()
    for index, policy in enumerate(container.resize_policy or []):
        field = f"{where}.resizePolicy[{index}]"
        yield from one_of(policy.resource_name, (CPU, MEMORY), f"{field}.resourceName")
        if policy.resource_name in seen:
            yield f"{field}.resourceName: {policy.resource_name[:64]!r} has a policy already"
        seen.add(policy.resource_name)
        yield from one_of(policy.restart_policy, (_KEEP, _RESTART), f"{field}.restartPolicy")
        if pod.spec.restart_policy == "Never" and policy.restart_policy != _KEEP:
            yield f"{field}.restartPolicy: expected {_KEEP} in a pod with restartPolicy Never"
        if init and not container.is_sidecar and policy.restart_policy == _RESTART:
            yield f"{field}.restartPolicy: expected {_KEEP} for an init container that ends"
