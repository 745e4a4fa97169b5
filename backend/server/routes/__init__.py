"""One module a family of routes; each has `routes(served) -> list[Endpoint]`."""
