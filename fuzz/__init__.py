"""Feed hostile bytes to each reader of outside input; see README.md."""
