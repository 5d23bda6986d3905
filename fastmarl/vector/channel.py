"""Messages between two processes. A wait blocks without using the processor, and ends after a while."""

import contextlib
import math
import select
import socket
import struct

HEADER = struct.Struct("<Q")  # bytes that follow
READ_AT_ONCE = 65536
MOST_AT_ONCE = 1 << 20


class Channel:
    """One end. A socket: it takes 11 us there and back, and who waits learns at once when the other process ends.

    Args:
        sock: one of a pair of stream sockets.
    """

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._timeout_s: float | None = None
        self._read = bytearray()  # what has come and was not taken yet

    def set_timeout(self, seconds: float) -> None:
        """How long to wait for the other side. Until then: for ever."""
        self._timeout_s = seconds
        fraction, whole = math.modf(seconds)
        timeout = struct.pack("ll", int(whole), int(fraction * 1e6))
        # Of the system: Python's own timeout would take one more call for each message.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def send(self, message: bytes) -> None:
        """Raises EOFError if the other side is gone, TimeoutError if it takes nothing."""
        data = HEADER.pack(len(message)) + message
        n_sent = self._send_now(data)
        if n_sent < len(data):
            self._send_rest(memoryview(data)[n_sent:])

    def _send_now(self, data: bytes | memoryview) -> int:
        """How many bytes there was room for."""
        try:
            return self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            raise EOFError from None

    def _send_rest(self, data: memoryview) -> None:
        """Reads, too: the other side may be sending, and take nothing until it is rid of that."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLOUT)
        while data:
            events = poll.poll(None if self._timeout_s is None else 1e3 * self._timeout_s)
            if not events:
                raise TimeoutError
            if events[0][1] & select.POLLIN:
                self._read_more(READ_AT_ONCE)
            data = data[self._send_now(data) :]

    def recv(self) -> bytes:
        """Raises EOFError if the other side is gone, TimeoutError if nothing comes."""
        while (missing := self._missing()) > 0:
            self._read_more(min(max(missing, READ_AT_ONCE), MOST_AT_ONCE))
        end = len(self._read) + missing
        message = bytes(memoryview(self._read)[HEADER.size : end])
        del self._read[:end]
        return message

    @property
    def has_message(self) -> bool:
        """Whether a whole message has been read that was not taken yet."""
        return self._missing() <= 0

    def _missing(self) -> int:
        """Bytes to be read until there is a whole message; below 0: bytes of later ones."""
        missing = HEADER.size - len(self._read)
        return missing if missing > 0 else missing + HEADER.unpack_from(self._read)[0]

    def send_file(self, fd: int) -> None:
        """Hand an open file over."""
        socket.send_fds(self.sock, [b"f"], [fd])

    def recv_file(self) -> int:
        """Raises EOFError if the other side is gone."""
        _, fds, _, _ = socket.recv_fds(self.sock, 1, 1)
        if not fds:
            raise EOFError
        return fds[0]

    def close(self) -> None:
        """End it for both sides, also if a fork of this process still has this end."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _read_more(self, n: int) -> None:
        try:
            data = self.sock.recv(n)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        self._read += data
