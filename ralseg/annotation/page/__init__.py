"""The page that people label in: what it shows and takes, and the server that brings it to browsers.

The desk knows the request and the run, the server knows HTTP, and `static/` is what runs in the browser. Nothing here
waits for anybody: that is the oracle's part.
"""
