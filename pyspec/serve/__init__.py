"""The server: OpenAI's interface over HTTP, on the batch scheduler, and a page to chat in."""
