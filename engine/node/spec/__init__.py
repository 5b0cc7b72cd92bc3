"""Turns a pod spec into what the runtime needs: CRI configuration, environment, DNS, security, identity."""
