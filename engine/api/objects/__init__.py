"""Types of further Kubernetes API objects: storage, leases, references, cluster objects."""
