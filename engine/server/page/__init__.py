"""Serves the node's web page: one document without external resources, kept current by server-sent events.

`document` is the page (`page.html`, `page.css` and `page.js` in one), `rows` computes what it shows of each
part of the node, `watch` reads the node while somebody looks at the page, and `live` sends each reader the
changes.
"""
