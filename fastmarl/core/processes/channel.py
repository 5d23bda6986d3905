"""Messages between two processes. A wait blocks without using the processor, and ends after a while."""

from __future__ import annotations

import contextlib
import select
import socket
import struct

HEADER = struct.Struct(
    "<QII?"
)  # of a packet: its message's number, its index in the message, bytes, whether it is the last
MOST_AT_ONCE = 1 << 16  # bytes of a packet; the system takes no larger ones than its socket buffers, some 200 KB


class Channel:
    """One end. A socket: who waits learns at once when the other process ends.

    Packets rather than a stream: the system keeps them apart, and a message there and back takes 12 µs instead of 18.

    An interrupt (KeyboardInterrupt) at any line leaves it whole. What has come is lost at no time: it stays in the
    buffer until it is filed, and filing it twice does no harm. A half-sent message is dropped on the other
    side when the next one comes. So numbers must ascend, and nobody may count messages instead of looking at these.

    Args:
        sock: one of a pair of SOCK_SEQPACKET sockets.

    Attributes:
        messages: those that have come and were not taken, by number, in the order in which they came.
    """

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.messages: dict[int, bytes] = {}
        self._timeout_s: float | None = None
        self._buffer = bytearray(HEADER.size + MOST_AT_ONCE)  # number 0: empty
        self._packets: tuple[int, dict[int, bytes]] = 0, {}  # of the message of this number, by index

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """The two ends of a new one."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def set_timeout(self, seconds: float) -> None:
        """How long to wait for the other side. Until then: for ever."""
        self._timeout_s = seconds
        timeout = struct.pack("ll", *divmod(int(1e6 * seconds), 1_000_000))
        # Of the system: Python's own timeout would take one more call for each message.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def send(self, number: int, message: bytes) -> None:
        """Raises EOFError if the other side is gone, TimeoutError if it takes nothing.

        Args:
            number: above 0, and above those of all messages before.
            message: of any length.
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
        """Reads, too: the other side may be sending, and take nothing until it is rid of that."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLOUT)
        events = poll.poll(None if self._timeout_s is None else 1e3 * self._timeout_s)
        if not events:
            raise TimeoutError
        if events[0][1] & select.POLLIN:
            self.read()

    def recv(self) -> tuple[int, bytes]:
        """The next message and its number. Raises EOFError if the other side is gone, TimeoutError if nothing comes."""
        while not self.messages:
            self.read()
        number = next(iter(self.messages))
        return number, self.messages.pop(number)

    def read(self) -> None:
        """Wait for a packet; with the last one of a message, that is in `messages`. Raises as `recv()` does."""
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
        """Take the packet out of the buffer; False if there is none."""
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
        """Its size, as it is in the buffer; 0 if the other side is gone."""
        try:
            return self.sock.recv_into(self._buffer)
        except ConnectionResetError:  # comes first if the other side has not read all, and what it sent after that
            return self.sock.recv_into(self._buffer)

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
