"""Computes cgroup values from pods and configuration; pure, without any access to cgroupfs."""
