"""Compute which part of a device's capacity a request consumes, by the policy of each capacity.

Source: Kubernetes v1.36, `dynamic-resource-allocation/structured`, consumable capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.api.quantity import BINARY_SI, Quantity
from engine.plan.claims.objects import CapacityPolicy, DeviceCapacity, OfferedDevice

Amounts = Mapping[str, Quantity]
ZERO: Final = Quantity.from_value(0)


def consumed_amounts(device: OfferedDevice, requests: Amounts | None) -> dict[str, Quantity]:
    """Return what a request consumes of every capacity of a device."""
    wanted = requests or {}
    return {name: _consumed(wanted.get(name), each) for name, each in (device.capacity or {}).items()}


def has_capacity(device: OfferedDevice, requests: Amounts | None, used: Amounts) -> bool:
    """Tell whether a device can give a request the amounts that it asks for, beside those in use.

    A request that names a capacity which the device lacks, or breaks a policy, never fits.
    """
    capacity = device.capacity or {}
    if any(name not in capacity for name in requests or ()):
        return False
    for name, amount in consumed_amounts(device, requests).items():
        if _breaks(amount, capacity[name].request_policy):
            return False
        if capacity[name].value < amount + used.get(name, ZERO):
            return False
    return True


def _consumed(wanted: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    """Return a requested amount rounded up to the policy's; without a request the default, or everything."""
    policy = capacity.request_policy
    if wanted is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    bounds = policy.valid_range
    if bounds is not None and bounds.min is not None:
        if wanted < bounds.min:
            return bounds.min
        if bounds.step is None or not bounds.step.value:
            return wanted
        steps = -(-(wanted.value - bounds.min.value) // bounds.step.value)
        return Quantity.from_value(bounds.min.value + steps * bounds.step.value, BINARY_SI)
    return next((valid for valid in policy.valid_values or () if wanted <= valid), wanted)


def _breaks(amount: Quantity, policy: CapacityPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount == policy.default):
        return False
    if policy.valid_range is not None:
        bounds = policy.valid_range
        if bounds.max is not None and bounds.max < amount:
            return True
        least = bounds.min.value if bounds.min is not None else 0
        return bool(
            bounds.step is not None and bounds.step.value and (amount.value - least) % bounds.step.value
        )
    return bool(policy.valid_values) and amount not in (policy.valid_values or ())
