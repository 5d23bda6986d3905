"""Groups whose runners are all in this process, in actors that a test can kill and hang."""

import pickle
import time

from fastmarl.distributed import EnvRunnerGroup
from fastmarl.distributed.actors import ActorLost
from fastmarl.distributed.host import RunnerHost
from fastmarl.distributed.in_process import InProcess


class FakeActor:
    """An actor in this process.

    Attributes:
        is_alive: whether it answers.
        hangs: whether its calls are never executed.
        fails_next: whether it ends with its next call.
    """

    def __init__(self):
        self.host = RunnerHost()
        self.is_alive = True
        self.hangs = self.fails_next = False

    def call(self, method, *args):
        if self.fails_next:
            self.is_alive = False
        return self.host.call(method, *args) if self.is_alive else None

    def stop(self):
        """It is killed: nothing is closed."""
        self.is_alive = False


class FakeActors(InProcess):
    """Executes the oldest call of the actors that are alive and don't hang, one call per wait.

    Attributes:
        started: all actors.
        born_dead: number of future actors that end at once.
        batches_are_late: number of waits that report no batch as ready.
    """

    most_in_flight = float("inf")
    lends_arrays = True

    def __init__(self):
        self.started = []
        self.born_dead = 0
        self.batches_are_late = 0

    def start(self):
        actor = FakeActor()
        if self.born_dead:
            self.born_dead -= 1
            actor.is_alive = False
        self.started.append(actor)
        return actor

    def wait(self, references, num_returns, timeout_s):
        are_late = self.batches_are_late > 0
        self.batches_are_late -= are_late
        known = [each for each in references if not (are_late and each.method == "sample")]
        ready = [each for each in known if each.is_made or not each.host.is_alive][:num_returns]
        if ready or timeout_s == 0:
            return ready
        for each in references:
            if not each.host.hangs and not each.is_made:
                each.make()
                return [each] if each in known else []
        time.sleep(min(timeout_s, 0.01))
        return []

    def get(self, reference):
        if not reference.host.is_alive:
            raise ActorLost("has ended: it was killed")
        return as_sent(super().get(reference))


def as_sent(value):
    """A copy whose arrays can't be written to, as those that lie in the memory of Ray's store."""
    buffers = []
    sent = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(sent, buffers=[bytes(buffer.raw()) for buffer in buffers])


class FakeGroup(EnvRunnerGroup):
    """As if they were elsewhere."""

    def _make_actors(self, num_env_runners, placement_strategy, options):
        return FakeActors() if num_env_runners else InProcess()

    @property
    def actors(self):
        return self._fleet.actors

    def actor(self, index):
        """That of a runner."""
        return self._fleet.runners[index].handle
