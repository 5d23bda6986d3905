"""Messages between processes arrive whole and in order, and no wait is endless."""

import random
import time
from itertools import count
from threading import Thread

import pytest
from support.interrupts import interrupted

from fastmarl.core.processes import channel
from fastmarl.core.processes.channel import MOST_AT_ONCE, Channel


@pytest.fixture
def ends():
    one, other = Channel.pair()
    for end in (one, other):
        end.set_timeout(5)
    yield one, other
    one.close()
    other.close()


def test_messages_of_any_size_arrive_intact_and_in_order(ends):
    one, other = ends
    sizes = [0, 1, MOST_AT_ONCE - 1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 0, 2 * MOST_AT_ONCE, 3_000_000, 2]
    messages = [random.Random(size).randbytes(size) for size in sizes]
    sender = Thread(target=lambda: [one.send(number, message) for number, message in enumerate(messages, 1)])
    sender.start()
    assert [other.recv() for _ in messages] == list(enumerate(messages, 1))
    sender.join()


def test_both_sides_may_send_more_than_there_is_room_for(ends):
    got = {}

    def exchange(end, message):
        end.send(7, message)
        got[message[0]] = end.recv()[1]

    messages = [bytes([i]) * 3_000_000 for i in (1, 2)]
    threads = [Thread(target=exchange, args=pair) for pair in zip(ends, messages, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: messages[1], 2: messages[0]}


def test_messages_received_while_sending_a_long_one_are_kept(ends):
    one, other = ends
    other.send(1, b"early")
    assert not one.messages
    sender = Thread(target=one.send, args=(1, bytes(3_000_000)))
    sender.start()
    for _ in range(1000):  # until there is no more room, and it reads while it waits
        if not one.messages:
            time.sleep(0.01)
    assert one.messages
    assert other.recv() == (1, bytes(3_000_000))
    sender.join()
    assert one.recv() == (1, b"early")
    assert not one.messages


def test_waits_end(ends):
    one, other = ends
    one.set_timeout(0.05)
    with pytest.raises(TimeoutError):
        one.recv()
    with pytest.raises(TimeoutError):
        one.send(1, bytes(3_000_000))
    other.close()
    with pytest.raises(EOFError):
        one.send(2, b"anybody there?")
    with pytest.raises(EOFError):
        one.recv()


def test_messages_sent_before_the_other_side_closed_are_read(ends):
    one, other = ends
    for number, message in enumerate((b"first", b"second", b"never read"), 1):
        one.send(number, message)
    assert other.recv() == (1, b"first")
    other.send(1, b"answer")
    assert other.recv() == (2, b"second")
    other.close()
    assert one.recv() == (1, b"answer")
    with pytest.raises(EOFError):
        one.recv()


# Interrupts.


@pytest.mark.parametrize("long", [False, True])
def test_an_interrupt_at_any_line_of_reading_loses_nothing(long):
    """The messages are there however often reading them is interrupted, at whatever line."""
    messages = [(1, b"one"), (2, bytes(range(256)) * 400 if long else b"two"), (3, b"three")]
    for line in count():
        one, other = Channel.pair()
        other.set_timeout(5)
        for message in messages:
            one.send(*message)
        n_interrupts = 0
        while len(other.messages) < 3:
            n_interrupts += interrupted(other.read, file=channel.__file__, at=line)
            if len(other.messages) < 3:
                other.read()
        assert list(other.messages.items()) == messages
        one.close()
        other.close()
        if not n_interrupts:
            break
    assert line > 8


def test_a_message_that_was_sent_in_part_is_dropped(ends):
    """Whatever line of sending an interrupt comes at, the next message arrives, and the other is whole or not there."""
    one, other = ends
    long, numbers = bytes(MOST_AT_ONCE) * 2 + b"end", count(1)
    arrived = set()
    for line in count():
        number = next(numbers)
        was_interrupted = interrupted(lambda number=number: one.send(number, long), file=channel.__file__, at=line)
        last = next(numbers)
        one.send(last, b"last")
        messages = dict([other.recv()])
        if last not in messages:
            messages |= [other.recv()]
        assert messages in ({last: b"last"}, {number: long, last: b"last"})
        arrived.add(number in messages)
        if not was_interrupted:
            break
    assert arrived == {True, False}
