"""Makes container images available: names, credentials, pulls, and records of who may use an image."""
