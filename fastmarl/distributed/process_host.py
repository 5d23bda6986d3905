"""A process with a `RunnerHost`, which executes calls that arrive through a channel."""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fastmarl.core.errors.exits import as_error
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.child import pickled
from fastmarl.core.processes.protocol import DONE, FAILED, FIRST, end_with
from fastmarl.distributed.host import HostFailure, HostReady, HostReport, RunnerHost, RunnerPlan
from fastmarl.distributed.parcels import pack
from fastmarl.distributed.shared_weights import SharedWeights, form_of

WAY_OUT = "define their classes at the top level of a module, or install cloudpickle"


def run_host(plan: RunnerPlan | bytes, channel: Channel, files: Channel, parent: int) -> None:
    """Run a host; the main function of the process.

    Args:
        plan: Plan of the runner; pickled if the process was not forked.
        channel: For calls and their results; the file of the weights arrives before the first call.
        files: For batches.
        parent: Process id of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with(parent)
    torch.set_num_threads(1)  # the other cores are for other processes
    host = RunnerHost()
    try:
        with contextlib.suppress(EOFError):  # the parent has ended or has closed the channel
            ready = _answer(lambda: pickled(_start(host, plan), "the modules", WAY_OUT))
            channel.send(FIRST, ready)
            if ready.startswith(DONE):
                _serve(host, channel, files)
    finally:
        with contextlib.suppress(Exception):  # no process is left that could report it
            host.stop()


def _start(host: RunnerHost, plan: RunnerPlan | bytes) -> HostReady:
    if isinstance(plan, bytes):
        plan = pickle.loads(plan)
    assert isinstance(plan, RunnerPlan)
    ready = host.start(plan)
    return replace(ready, form=form_of(host.runner.module.get_state()))


def _answer(pickled_result: Callable[[], bytes]) -> bytes:
    try:
        return DONE + pickled_result()
    except (Exception, SystemExit) as raised:
        return FAILED + pickle.dumps(HostFailure.of(as_error(raised)))


def _serve(host: RunnerHost, channel: Channel, files: Channel) -> None:
    """Answer each call under its number until `stop`.

    Raises:
        EOFError: If the parent has ended.
    """
    weights = SharedWeights(form_of(host.runner.module.get_state()), channel.recv_file())
    method = ""
    while method != "stop":
        number, message = channel.recv()
        method, args = pickle.loads(message)
        channel.send(number, _answer(lambda: pickle.dumps(_call(host, weights, files, method, args))))  # noqa: B023


def _call(host: RunnerHost, weights: SharedWeights, files: Channel, method: str, args: tuple) -> Any:
    """Execute a call with the newest weights. The file of a batch is sent before its report."""
    seq_no, newest = weights.read(newer_than=host.weights_seq_no) or (host.weights_seq_no, None)
    result = host.call(method, seq_no, newest, *args)
    if isinstance(result, HostReport):
        fd, places = pack(result.batch)
        try:
            files.send_file(fd)
        finally:
            os.close(fd)
        result = replace(result, batch=places)
    return result
