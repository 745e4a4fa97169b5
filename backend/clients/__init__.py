"""Other people's servers: what `OpenAI`, `Anthropic`, `Remote` and `RuntimeEndpoint` are made of."""
