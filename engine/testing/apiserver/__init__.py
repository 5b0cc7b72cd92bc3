"""A small API server for tests: the real wire, objects in memory, faults on demand.

`ApiServer` speaks TLS with a throw-away authority and HTTP/2, keeps any resource under `/api/v1/…` and
`/apis/…`, and answers create, get, list, update, patch, delete and watch as kube-apiserver v1.36 does, as far
as a node agent sees it. It authenticates (client certificates and bearer tokens), authorizes nothing, and
writes down what it was asked. It needs the `openssl` command.
"""

from engine.testing.apiserver.certificates import Authority, CertificatePair
from engine.testing.apiserver.faults import ApiServerFault
from engine.testing.apiserver.server import ApiServer, SeenRequest

__all__ = ["ApiServer", "ApiServerFault", "Authority", "CertificatePair", "SeenRequest"]
