"""Provide a small API server for tests: the real wire protocol, objects in memory, faults on demand.

`ApiServer` uses TLS with a throw-away authority and HTTP/2, stores any resource under `/api/v1/…` and
`/apis/…`, and implements create, get, list, update, patch, delete and watch as kube-apiserver v1.36 does, as
far as a node agent can observe. It authenticates (client certificates and bearer tokens), allows every
authenticated request, and records the requests. It needs the `openssl` command.
"""

from engine.testing.apiserver.certificates import Authority, CertificatePair
from engine.testing.apiserver.faults import ApiServerFault
from engine.testing.apiserver.server import ApiServer, SeenRequest

__all__ = ["ApiServer", "ApiServerFault", "Authority", "CertificatePair", "SeenRequest"]
