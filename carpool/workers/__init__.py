"""Worker processes: the frames between a server and its workers, and how soon a dead one starts again."""
