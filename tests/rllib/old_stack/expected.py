"""Which cases the subject samples by itself, and which it leaves to RLlib's sampler.

A worker reports this by `is_accelerated` and `slow_path_reasons`; RLlib's own has neither.
"""

from collections.abc import Iterator

from rllib.old_stack.runs import Run

SLOW = {
    name: reason
    for reason, names in {
        "no RLlib sampler": ("no env",),
        "not arrays": ("policy: nested", "policy: overriding", "policy: misnaming"),
        "action connectors are": (
            "changed: an action connector less",
            "changed: an action connector more",
        ),
        "agent connectors are": ("changed: an agent connector more",),
        "state buffer": ("changed: connectors reset", "state set"),
        "it was added": ("callbacks: raising at ends",),
        "the base env is": ("overruled",),
    }.items()
    for name in names
}
"""Name of a case -> words of the reason for which it goes RLlib's way. All others are accelerated."""


def wrong_path(name: str, run: Run) -> Iterator[str]:
    """A line if a case took another way than the table says."""
    if run.is_accelerated is None:
        return
    reason = SLOW.get(name)
    reported = " ".join(map(str, run.slow_path_reasons))
    if run.is_accelerated != (reason is None) or (reason is not None and reason not in reported):
        expected = "accelerated" if reason is None else f"RLlib's way as of {reason!r}"
        yield f"path of {name!r}: {expected} / accelerated: {run.is_accelerated}, as {reported or 'nothing'}"
