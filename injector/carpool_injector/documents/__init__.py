"""Manifests as people keep them: read, changed in as few characters as it takes. What is not changed stays to the byte.

`reading` turns text into data and nodes with their places; `editing` turns "this became that" into edits of the text,
where new lines are in the file's own `style`.
"""
