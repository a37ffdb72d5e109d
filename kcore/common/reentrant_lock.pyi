"""ReentrantLock: threading.RLock for native callers, who take and release it in some 10 ns."""

class ReentrantLock:
    """Thread-safe.  `with lock:` from Python; enter() and leave() from Cython.

    The GIL is released while waiting, and only then; the wait cannot be interrupted, so hold it briefly.
    """

    def __enter__(self) -> ReentrantLock: ...
    def __exit__(self, *exc: object) -> None: ...
    def locked(self) -> bool: ...
