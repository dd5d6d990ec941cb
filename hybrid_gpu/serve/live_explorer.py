"""A server of the explorer alone, for the one who sits at the machine."""

from __future__ import annotations

from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.serve.app import create_app
from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
from hybrid_gpu.serve.running import bound, run
from hybrid_gpu.serve.settings import ServerSettings

_HOST = "127.0.0.1"


class LiveExplorer:
    """A server that listens on this machine only, and answers once it runs.

    Attributes
    ----------
    address : str
        Of the page.
    """

    def __init__(self, collection: Collection, port: int) -> None:
        self._settings = ServerSettings()
        pages = explorer_routes(collection)
        self._app = create_app(collection.index, self._settings, routes=pages, public=PUBLIC)
        self._listening = bound(_HOST, port)
        self.address = f"http://{_HOST}:{self._listening.getsockname()[1]}/explore/page/"

    def run(self) -> None:
        """Answer until a signal ends it."""
        run(self._app, self._listening, self._settings)
