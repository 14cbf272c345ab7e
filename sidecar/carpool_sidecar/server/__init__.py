"""Serves callers: batches predict requests, passes everything else through, answers probes, has the admin port."""
