"""What a server is told: its limits, who may ask, and how requests are batched."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybrid_gpu.validation import check_alpha, check_count, check_flag, check_positive

# Names of the machine itself; a web page of somebody else has another one.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MEBIBYTE = 1 << 20
# The token of a server that is started without --token-file.
TOKEN_VARIABLE = "HYBRID_GPU_TOKEN"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server; those that are left out are good for one machine.

    Attributes
    ----------
    max_body : int
        Bytes of a request's body, and of the arrays in it.
    max_bodies : int
        Bytes of all bodies that are held at the same time.
    max_queries, max_k, max_list : int
        Queries of a request, results of a query, and items that a query may name: the results of
        another engine, or a set of items.
    max_steps : int
        Solver steps of a request that names an accuracy, a residual or steps.
    max_alpha : float
        The largest ``alpha`` of a request; that of the index is taken too. The closer to 1, the
        longer a search takes.
    max_waiting : int
        Requests that are held at the same time; one more is refused at once.
    timeout : float
        Seconds from a request's first byte to its answer.
    batching : bool
        Whether requests that arrive together are solved together.
    batch : int
        The most queries that are solved together.
    threads : int
        Batches at work at the same time.
    token : str or None
        What clients must send as ``Authorization: Bearer``; None: anybody may ask.
    allowed_hosts : tuple of str
        Names by which clients may call the server; ``"*"`` for any.
    cors_origins : tuple of str
        Web pages that may read answers: ``"https://example.org"``.
    """

    max_body: int = 16 * MEBIBYTE
    max_bodies: int = 256 * MEBIBYTE
    max_queries: int = 1024
    max_k: int = 1000
    max_list: int = 10_000
    max_steps: int = 200
    max_alpha: float = 0.995
    max_waiting: int = 256
    timeout: float = 30.0
    batching: bool = True
    batch: int = 64
    threads: int = 1
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = LOOPBACK
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            *("max_body", "max_bodies", "max_queries", "max_k", "max_list", "max_steps"),
            *("max_waiting", "batch", "threads"),
        ):
            check_count(getattr(self, name), name)
        check_alpha(self.max_alpha)
        check_positive(self.timeout, "timeout")
        check_flag(self.batching, "batching")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ValueError("the token must be printable ASCII: it goes into a header.")
        if self.token is not None and (not self.token or " " in self.token):
            raise ValueError("the token must be one word, and not empty.")
