"""The server beside other servers, beside the engine alone, and under attack."""
