"""The node at a glance: one page that needs nothing from elsewhere, and what keeps it current.

`document` is the page (`page.html`, `page.css`, `page.js` in one), `rows` says of each part of the node what
the page shows, `watch` looks while somebody is there, `live` tells each reader what has changed.
"""
