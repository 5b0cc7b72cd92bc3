"""The kernel that chooses exclusive CPUs, with its plain twin."""
