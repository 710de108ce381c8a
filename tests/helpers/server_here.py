"""A server over a tiny model, on a port of its own, in a thread of this process."""

import socket
import threading
from contextlib import contextmanager

from helpers.tiny import F32
from helpers.waiting import wait
from pyspec.batch import Batch, Settings
from pyspec.sampling.options import Sampling


class Running:
    """A server in a thread of this process."""

    def __init__(self, batch, serving, send_buffer, others, embedders=()):
        import uvicorn

        from pyspec.serve.app import make_app

        self.batch = batch
        self.listener = socket.create_server(("127.0.0.1", 0))
        if send_buffer:  # what it accepts has one as small
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = make_app(batch, serving, others, embedders)
        config = uvicorn.Config(self.app, log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        wait(lambda: self.server.started)

    @property
    def tasks(self):
        """Requests whose responses have not ended, in uvicorn's own set."""
        return self.server.server_state.tasks

    def wait_idle(self):
        """Until nothing runs, nothing waits, and the loop has heard of it."""
        service = self.app.state.fleet.default
        wait(lambda: self.batch.load == (0, 0) and not service._open)

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()
        self.batch.close()


@contextmanager
def opening(tiny_ascii):
    """Starts servers, which end together."""
    from pyspec.serve import ServerSettings

    running = []

    def serve_(
        path=None, *, key=None, queue=64, max_body=1 << 16, hosts=None, send_buffer=0, log=None, others=None,
        ping=15.0, embedders=(), **options,
    ):  # fmt: skip
        settings = Settings(Sampling(temperature=0.0, seed=1), max_tokens=24)
        options = {
            "settings": settings, "draft": "lookup", "companion": "none", "n_ctx": 1024, "parallel": 4, "n_threads": 1,
            "n_threads_batch": 1, **F32, **options,
        }  # fmt: skip
        batch = Batch(str(path or tiny_ascii), interactive=True, **options)
        how = {"queue": queue, "max_body": max_body, "hosts": hosts, "log": log, "ping": ping}
        serving = ServerSettings("tiny", api_key=key, **how)
        running.append(Running(batch, serving, send_buffer, others, embedders))
        return running[-1]

    yield serve_
    for each in running:
        each.close()
