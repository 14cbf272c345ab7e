"""What came lately, kept so that it can be replayed under other settings: no payloads, no names."""
