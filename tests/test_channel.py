"""Messages between processes arrive whole and in order, and no wait is endless."""

import random
import time
from threading import Thread

import pytest

from fastmarl.vector.channel import MOST_AT_ONCE, Channel


@pytest.fixture
def ends():
    one, other = Channel.pair()
    for end in (one, other):
        end.set_timeout(5)
    yield one, other
    one.close()
    other.close()


def test_messages_of_any_size_arrive_whole_and_in_order(ends):
    one, other = ends
    sizes = [0, 1, MOST_AT_ONCE - 1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 0, 2 * MOST_AT_ONCE, 3_000_000, 2]
    messages = [random.Random(size).randbytes(size) for size in sizes]
    sender = Thread(target=lambda: [one.send(message) for message in messages])
    sender.start()
    assert [other.recv() for _ in messages] == messages
    sender.join()


def test_both_sides_may_send_more_than_there_is_room_for(ends):
    got = {}

    def exchange(end, message):
        end.send(message)
        got[message[0]] = end.recv()

    messages = [bytes([i]) * 3_000_000 for i in (1, 2)]
    threads = [Thread(target=exchange, args=pair) for pair in zip(ends, messages, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: messages[1], 2: messages[0]}


def test_what_comes_during_a_long_message_is_kept(ends):
    one, other = ends
    other.send(b"early")
    assert not one.has_message
    sender = Thread(target=one.send, args=(bytes(3_000_000),))
    sender.start()
    for _ in range(1000):  # until there is no more room, and it reads while it waits
        if not one.has_message:
            time.sleep(0.01)
    assert one.has_message
    assert other.recv() == bytes(3_000_000)
    sender.join()
    assert one.recv() == b"early"
    assert not one.has_message


def test_waits_end(ends):
    one, other = ends
    one.set_timeout(0.05)
    with pytest.raises(TimeoutError):
        one.recv()
    with pytest.raises(TimeoutError):
        one.send(bytes(3_000_000))
    other.close()
    with pytest.raises(EOFError):
        one.send(b"anybody there?")
    with pytest.raises(EOFError):
        one.recv()


def test_what_was_sent_before_the_other_side_ended_is_read(ends):
    one, other = ends
    for message in (b"first", b"second", b"never read"):
        one.send(message)
    assert other.recv() == b"first"
    other.send(b"answer")
    assert other.recv() == b"second"
    other.close()
    assert one.recv() == b"answer"
    with pytest.raises(EOFError):
        one.recv()
