"""Message channel between two processes. Waiting uses no CPU time and is limited by a timeout."""

from __future__ import annotations

import contextlib
import select
import socket
import struct

HEADER = struct.Struct(
    "<QII?"
)  # packet header: message number, index in the message, size in bytes, True for the last packet
MOST_AT_ONCE = 1 << 16  # bytes per packet; the system rejects packets larger than the socket buffers, about 200 KB


class Channel:
    """One end of a channel over a socket; detects immediately when the other process exits.

    It sends packets rather than a stream: the system keeps them separate, and a round trip takes 12 instead of 18 µs.

    A KeyboardInterrupt at any line leaves the channel intact. Received data stays in the buffer until it is filed, and
    filing it twice is harmless. The other side drops a half-sent message when the next one arrives. Therefore, message
    numbers must increase, and callers must compare numbers instead of counting messages.

    Args:
        sock: One of a pair of SOCK_SEQPACKET sockets.

    Attributes:
        messages: Number -> message, for received messages not yet returned, in order of arrival.
    """

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.messages: dict[int, bytes] = {}
        self._timeout_s: float | None = None
        self._buffer = bytearray(HEADER.size + MOST_AT_ONCE)  # empty while its message number is 0
        self._packets: tuple[int, dict[int, bytes]] = 0, {}  # (message number, index -> packet)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Create a channel and return both ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def set_timeout(self, seconds: float) -> None:
        """Set how long to wait for the other side; initially, there is no limit."""
        self._timeout_s = seconds
        timeout = struct.pack("ll", *divmod(int(1e6 * seconds), 1_000_000))
        # Set on the socket itself, since Python's own timeout would add a system call to each message.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def send(self, number: int, message: bytes) -> None:
        """Send a message.

        Args:
            number: Number of the message, positive and greater than all earlier numbers.
            message: Bytes of any length.

        Raises:
            EOFError: If the other side is gone.
            TimeoutError: If the other side does not receive.
        """
        index, rest = 0, memoryview(message)
        while len(rest) > MOST_AT_ONCE:
            self._send_packet(HEADER.pack(number, index, MOST_AT_ONCE, False) + rest[:MOST_AT_ONCE])
            index, rest = index + 1, rest[MOST_AT_ONCE:]
        self._send_packet(HEADER.pack(number, index, len(rest), True) + rest)

    def _send_packet(self, packet: bytes) -> None:
        while True:
            try:
                self.sock.send(packet, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                self._wait_for_room()
            except OSError:
                raise EOFError from None

    def _wait_for_room(self) -> None:
        """Wait until the socket accepts more data; read meanwhile, as the other side may be blocked in sending."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLOUT)
        events = poll.poll(None if self._timeout_s is None else 1e3 * self._timeout_s)
        if not events:
            raise TimeoutError
        if events[0][1] & select.POLLIN:
            self.read()

    def recv(self) -> tuple[int, bytes]:
        """Return the next (number, message).

        Raises:
            EOFError: If the other side is gone.
            TimeoutError: If no message arrives in time.
        """
        while not self.messages:
            self.read()
        number = next(iter(self.messages))
        return number, self.messages.pop(number)

    def read(self) -> None:
        """Wait for a packet; add the message to `messages` if it was the last one. Raises the errors of `recv()`."""
        if not self.file():
            try:
                size = self._recv_packet()
            except BlockingIOError:
                raise TimeoutError from None
            except OSError:
                raise EOFError from None
            if not size:
                raise EOFError
            self.file()

    def file(self) -> bool:
        """Add the packet in the buffer to its message and clear the buffer; return False if the buffer was empty."""
        number, index, size, is_last = HEADER.unpack_from(self._buffer)
        if not number:
            return False
        content = bytes(memoryview(self._buffer)[HEADER.size : HEADER.size + size])
        if is_last and not index:
            self.messages[number] = content
        else:
            if self._packets[0] != number:
                self._packets = number, {}
            self._packets[1][index] = content
            if is_last:
                self.messages[number] = b"".join(self._packets[1].values())
        HEADER.pack_into(self._buffer, 0, 0, 0, 0, False)
        return True

    def _recv_packet(self) -> int:
        """Receive a packet into the buffer; return its size, or 0 if the other side is gone."""
        try:
            return self.sock.recv_into(self._buffer)
        except ConnectionResetError:  # raised once if the other side exited with unread data; its last packets follow
            return self.sock.recv_into(self._buffer)

    def send_file(self, fd: int) -> None:
        """Pass an open file to the other side."""
        socket.send_fds(self.sock, [b"f"], [fd])

    def recv_file(self) -> int:
        """Receive an open file; raises EOFError if the other side is gone."""
        _, fds, _, _ = socket.recv_fds(self.sock, 1, 1)
        if not fds:
            raise EOFError
        return fds[0]

    def close(self) -> None:
        """Close the channel for both sides, even if a forked process still holds this end."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
