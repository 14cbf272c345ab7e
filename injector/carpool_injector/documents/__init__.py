"""Manifests as people keep them: read, changed in as few characters as it takes, and written back.

`nodes` reads YAML and JSON as trees with the place of every value, `syntax` tells what they mean, `layout` tells where
things end and how they are indented, `edits` turns "this became that" into edits of the text, `pen` makes each of them,
`rendering` writes new values, and `files` finds, reads and writes files. What is not changed stays byte for byte.
"""
