"""Tools for tests of this package and of those who embed it.

`images` writes container image archives from the host's static busybox, `containerd` runs a private
containerd and leaves nothing behind, `apiserver` is a small API server with faults on demand,
`pytest_plugin` offers the first two as fixtures. May import anything in
`engine`; nothing outside tests, benches and commands imports it. Modules are imported by name, so that
a test that needs one does not pay for all.
"""
