"""What is wrong with a pod, field by field, before anything is started.

`problems(pod)` lists every fault as `field: what was expected`; one file for each part of the spec. The rules
are those of `ValidatePodCreate` (Kubernetes v1.36, `pkg/apis/core/validation`), which the kubelet itself
applies to static pods, plus: a pod that needs an API server is refused. They hold with defaults applied.
"""

from engine.api.validation.pod import check_pod, problems

__all__ = ["check_pod", "problems"]
