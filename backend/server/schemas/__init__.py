"""What requests may hold: one pydantic model each, strict about unknown names and values; null is absent."""
