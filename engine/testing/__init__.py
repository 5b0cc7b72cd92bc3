"""Tools for tests of this package and of those who embed it.

`images` writes container image archives from the host's static busybox, `containerd` runs a private
containerd and leaves nothing behind, `pytest_plugin` offers both as fixtures. May import anything in
`engine`; nothing outside tests, benches and commands imports it. Modules are imported by name, so that
a test that needs one does not pay for all.
"""
