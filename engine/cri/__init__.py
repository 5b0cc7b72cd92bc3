"""The agent's side of the Container Runtime Interface.

`client` calls the runtime, `labels` are the words by which a kubelet finds its pods again there, `paths`
where it has their logs and volumes, `records` what the runtime holds for a pod, in small values of our own.
Imports `api`, `metrics`, `host` and `wire`; knows nothing of the embedded runtime. This file imports nothing.
"""
