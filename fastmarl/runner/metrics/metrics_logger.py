"""Values logged by callbacks and training loops, with the API of `MetricsLogger` in RLlib."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any, Self

from fastmarl.core.errors import did_you_mean, shown, similar
from fastmarl.core.objects.public import public
from fastmarl.runner.metrics.nested import Key, Path, leaves_of, listed, merged, nested, path_of
from fastmarl.runner.metrics.reductions import STATS, LifetimeSumStats
from fastmarl.runner.metrics.stats import plain

TAKEN = {  # reduction -> accepted options
    reduce: {"window", "ema_coeff", "percentiles", "with_throughput"}.intersection(kind.options)
    for reduce, kind in STATS.items()
}


@public("fastmarl")
class MetricsLogger:
    """Logs values under keys and reduces them for reports: `metrics_logger.log_value("hits", 3)`.

    Arguments have the same meaning as in the RLlib class of the same name. A key is a str, or a tuple of str for nested
    values. The first value logged under a key sets its options.

    Args:
        root: Keep lifetime sums across reports and measure throughputs, like the logger of a runner.
        stats_cls_lookup: Name -> reduction class; None for the reductions of RLlib. To add reductions, subclass the
            classes in `MetricsLogger().stats_cls_lookup`.

    Attributes:
        journal: None, or a list to which each logged value is appended as (key, value, options of the key).
        elsewhere: Name -> function that returns a value counted elsewhere (a number or a dict of numbers) for `peek()`.
        all_elsewhere: Function that returns all values counted elsewhere in a single dict.
    """

    def __init__(self, root: bool = False, stats_cls_lookup: Mapping[str, type[Any]] | None = None):
        self.stats_cls_lookup = STATS if stats_cls_lookup is None else stats_cls_lookup
        self.journal: list[tuple[Path, Any, dict[str, Any]]] | None = None
        self.elsewhere: Mapping[Any, Callable[[], Any]] = {}
        self.all_elsewhere: Callable[[], dict[Any, Any]] = dict
        self._is_root = root
        self._made_at = perf_counter()
        self._stats: dict[Path, Any] = {}
        self._options: dict[Path, dict[str, Any]] = {}

    @property
    def stats(self) -> dict[Hashable, Any]:
        """Nested dict of key -> Stats object."""
        return nested(self._stats.items())

    # Logging.

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: str | None = None,
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: Sequence[float] | bool | None = None,
        clear_on_reduce: bool | None = None,
        with_throughput: bool | None = None,
        reduce_per_index_on_aggregate: bool | None = None,
    ) -> None:
        """Log a value under a key.

        Args:
            key: A str, or a tuple of str for a nested value.
            value: A number, or an array or tensor with a single number; any object for "item" and "item_series".
            reduce: Reduction of the values for reports.
                "ema": exponential moving average, which continues across reports.
                "mean", "min", "max", "sum": computed over the values since the last report; NaN if there are none.
                "lifetime_sum": sum of all values.
                "percentiles": a dict of percentile -> value over the values since the last report.
                "item", "item_series": the last value, or a list of all values, since the last report.
                None: "mean" if `window` is given, otherwise "ema".
            window: Number of latest values to reduce; None or inf for all.
            ema_coeff: Weight of a new value in an "ema", 0.01 by default.
            percentiles: List of numbers from 0 to 100; None or True means 0, 50, 75, 90, 95, 99 and 100.
            clear_on_reduce: False turns a "sum" into a "lifetime_sum"; no effect otherwise.
            with_throughput: Also measure the rate per second of a "sum" or "lifetime_sum"; see `peek()`.
            reduce_per_index_on_aggregate: No effect.

        Raises:
            ValueError: If the value or an option is invalid for the reduction, or other keys are nested under this key.
        """
        path = (key,) if type(key) is str else path_of(key)
        stats = self._stats.get(path)
        if stats is None:
            stats = self._add(path, reduce, window, ema_coeff, percentiles, clear_on_reduce, with_throughput)
        self._push(path, stats, value)

    def log_dict(
        self,
        value_dict: Mapping[Any, Any],
        *,
        key: Key | None = None,
        reduce: str | None = "mean",
        **options: Any,
    ) -> None:
        """Log each value of a nested dict.

        Args:
            value_dict: Nested dict of key -> value.
            key: Key under which to nest the dict; None for the top level.
            reduce: Reduction of all values; see `log_value()`.
            options: Other options of `log_value()`.
        """
        for path, value in leaves_of(value_dict, () if key is None else path_of(key)):
            self.log_value(path, value, reduce=reduce, **options)

    def log_time(self, key: Key, *, reduce: str | None = None, **options: Any) -> "Timer":
        """Log the duration of a `with` block in seconds; `key`, `reduce` and options are as in `log_value()`."""
        path = path_of(key)
        if path not in self._stats:
            self._add(path, reduce, **options)
        return Timer(self, path)

    def aggregate(self, stats_dicts: Sequence[Mapping[Any, Any]], *, key: Key | None = None) -> None:
        """Merge the results of `reduce()` from other loggers.

        The mean or moving average of each logger has the same weight, regardless of its number of values. Sums are
        added, minima and maxima are taken over all loggers, and series and percentiles cover all values.

        Args:
            stats_dicts: Results of `reduce()`.
            key: Key under which to nest the results; None for the top level.

        Raises:
            ValueError: If a dict contains plain numbers, or values were logged here under the same key.
        """
        incoming: dict[Path, list[Any]] = {}
        for stats_dict in stats_dicts:
            for path, stats in leaves_of(stats_dict, () if key is None else path_of(key)):
                if not hasattr(stats, "merge"):
                    raise ValueError(f"aggregate() expects results of MetricsLogger.reduce(), with Stats objects, got "
                                     f"{shown(stats)} at {path}; log numbers with log_value()")  # fmt: skip
                incoming.setdefault(path, []).append(stats)
        for path, several in incoming.items():
            stats = self._stats.get(path)
            if stats is None:
                self._check_free(path)
                stats = several[0].clone(init_overrides={"is_root": self._is_root, "is_leaf": False})
                stats.initialize_throughput_reference_time(self._made_at)
                self._stats[path] = stats
            elif stats.is_leaf:
                raise ValueError(f"can't merge into {path}, where values were logged; pass another key to aggregate()")
            stats.merge(several)

    def merge_and_log_n_dicts(self, stats_dicts: Sequence[Mapping[Any, Any]], *, key: Key | None = None) -> None:
        """RLlib's deprecated name for `aggregate()`, with the same arguments `stats_dicts` and `key`."""
        self.aggregate(stats_dicts, key=key)

    def _add(
        self,
        path: Path,
        reduce: str | None,
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: Sequence[float] | bool | None = None,
        clear_on_reduce: bool | None = None,
        with_throughput: bool | None = None,
        reduce_per_index_on_aggregate: bool | None = None,
    ) -> Any:
        """Create and return the Stats object of a new key."""
        reduce = reduce or ("ema" if window is None else "mean")
        if reduce == "sum" and clear_on_reduce is False:
            reduce = "lifetime_sum"
        kind = self.stats_cls_lookup.get(reduce)
        if kind is None:
            known = list(self.stats_cls_lookup)
            raise ValueError(f"reduce must be one of {known}, got {reduce!r}{did_you_mean(similar(reduce, known)[:1])}")
        given: dict[str, Any] = {
            "window": window,
            "ema_coeff": ema_coeff,
            "percentiles": percentiles or None,
            "with_throughput": with_throughput or None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        if STATS.get(reduce) is kind and (wrong := options.keys() - TAKEN[reduce]):
            raise ValueError(f"{path}: reduce={reduce!r} does not accept {', '.join(sorted(wrong))}; "
                             f"it accepts {', '.join(sorted(TAKEN[reduce])) or 'no options'}")  # fmt: skip
        self._check_free(path)
        stats = self._stats[path] = kind(is_root=self._is_root, is_leaf=True, **options)
        self._options[path] = {"reduce": reduce, **options}
        return stats

    def _check_free(self, path: Path) -> None:
        """Raise ValueError if a key is empty or would have both a value and nested keys."""
        if not path:
            raise ValueError("a key must be a name or a non-empty tuple of names, got ()")
        for other in self._stats:
            if other[: len(path)] == path[: len(other)]:
                raise ValueError(f"can't log a value under {path}, as values were logged under {other}")

    def _push(self, path: Path, stats: Any, value: Any) -> None:
        try:
            stats.push(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}, reduce={stats.stats_cls_identifier!r}: {error}; reduce='item' and "
                             f"'item_series' accept any object") from error  # fmt: skip
        if self.journal is not None:
            self.journal.append((path, plain(value), self._options.get(path, {})))

    # Reading.

    def __contains__(self, key: Key) -> bool:
        path = path_of(key)
        found = self._found_elsewhere(path)
        return any(other[: len(path)] == path for other in self._stats) or (found is not None and found != {})

    def peek(
        self,
        key: Key | None = None,
        default: Any = None,
        compile: bool = True,
        throughput: bool = False,
        latest_merged_only: bool = False,
    ) -> Any:
        """Return the value as it would be reported now, without changing anything.

        Args:
            key: Key of a value or of a dict of values; None for all values.
            default: Value to return if the key is missing; None raises KeyError.
            compile: Return one value for each key, not a list.
            throughput: Return rates per second of the keys with `with_throughput`; only at the root. The rate of a
                "sum" is a float; a "lifetime_sum" has a dict of rates since the last report and since `set_state()`.
            latest_merged_only: Reduce only the values of the last `aggregate()`.

        Returns:
            A reduced value, usually a number, or a nested dict of reduced values.

        Raises:
            KeyError: If the key is missing and no default is given.
            ValueError: If the throughput is not measured.
        """
        path = () if key is None else path_of(key)
        if throughput:
            return self._throughputs(path, default)
        below = {
            other[len(path) :]: stats.peek(compile=compile, latest_merged_only=latest_merged_only)
            for other, stats in self._stats.items()
            if other[: len(path)] == path
        }
        if () in below:
            return below[()]
        found = self._found_elsewhere(path)
        if found is not None and not compile:
            found = listed(found)
        if isinstance(found, dict) and (found or below or key is None):
            return merged(found, nested(below.items()))
        if below:
            return nested(below.items())
        if found is not None and found != {}:
            return found
        if default is None:
            names = sorted({str(other[0]) for other in self._stats} | set(map(str, self.elsewhere)))
            raise KeyError(f"nothing was logged under {key!r}; the keys are {names}"
                           f"{did_you_mean(similar(str(path[0]), names)[:1])}; or pass a default")  # fmt: skip
        return default

    @staticmethod
    def peek_results(results: Any, compile: bool = True) -> Any:
        """Replace the Stats objects in a result of `reduce()` with their values.

        Args:
            results: Nested dict of Stats objects, or a single one.
            compile: Return one value for each key, not a list.
        """
        if isinstance(results, dict):
            return {name: MetricsLogger.peek_results(each, compile) for name, each in results.items()}
        return results.peek(compile=compile) if hasattr(results, "peek") else results

    def _found_elsewhere(self, path: Path) -> Any:
        """Return the number or dict counted elsewhere under `path`, or None if there is none."""
        if not path:
            return self.all_elsewhere()
        found = self.elsewhere[path[0]]() if path[0] in self.elsewhere else None
        for name in path[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _throughputs(self, path: Path, default: Any) -> Any:
        if not self._is_root:
            raise ValueError(
                "throughputs are measured only by root loggers: a runner's own logger, or MetricsLogger(root=True)"
            )
        if path in self._stats:
            return self._stats[path].throughputs
        if path and self._found_elsewhere(path) is not None:
            raise ValueError(f"no throughput is measured for {path}; get_metrics() contains the times")
        measured = {
            (*other[len(path) : -1], f"{other[-1]}_throughput"): stats.throughputs
            for other, stats in self._stats.items()
            if other[: len(path)] == path and stats.has_throughputs
        }
        return nested(measured.items()) if measured else default

    # Reporting.

    def reduce(self, compile: bool = False) -> dict[Any, Any]:
        """Return a nested dict of all reduced values and start a new report; called by `get_metrics()` of a runner.

        Args:
            compile: Return plain values rather than Stats objects, which `aggregate()` of another logger can merge.
        """
        return nested([(path, stats.reduce(compile=compile)) for path, stats in self._stats.items()])

    def compile(self) -> dict[Any, Any]:
        """Return a nested dict of all reduced values and throughputs ("<key>_throughput"), and start a new report."""
        throughputs = self._throughputs((), {}) if self._is_root else {}
        return merged(self.reduce(compile=True), throughputs)

    def reset(self) -> None:
        """Delete all values and keys."""
        self._stats, self._options = {}, {}

    def delete(self, *key: Hashable, key_error: bool = True) -> None:
        """Delete a key and all keys nested under it.

        Raises:
            KeyError: If the key is missing and `key_error` is set.
        """
        path = path_of(key)
        found = [other for other in self._stats if other[: len(path)] == path]
        if not found and key_error:
            raise KeyError(path)
        for other in found:
            del self._stats[other]
            self._options.pop(other, None)

    # State.

    def begin_journal(self) -> None:
        """Start the journal with the values already logged, for example by callbacks when envs are created."""
        self.journal = [
            (path, value, options) for path, options in self._options.items() for value in self._stats[path].pushed()
        ]

    def lifetime_sums(self) -> list[tuple[list[Hashable], float, bool]]:
        """Return (key, sum, whether its throughput is measured) for each "lifetime_sum"."""
        found = [(path, stats) for path, stats in self._stats.items() if isinstance(stats, LifetimeSumStats)]
        return [(list(path), stats.peek(), stats.with_throughput) for path, stats in found]

    def set_lifetime_sums(self, sums: Sequence[Sequence[Any]]) -> None:
        """Replace all lifetime sums with `sums`, a result of `lifetime_sums()`."""
        for path, *_ in self.lifetime_sums():
            self.delete(*path)
        for path, total, *measured in sums:
            self.delete(*path, key_error=False)
            stats = self._add(tuple(path), "lifetime_sum", with_throughput=any(measured))
            stats.push(total)
            stats.initialize_throughput_reference_time(perf_counter())

    def get_state(self) -> dict[str, Any]:
        """Return all values, as plain data if the logged values are plain data."""
        return {"stats": [[list(path), stats.get_state()] for path, stats in self._stats.items()]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Replace all values with `state`, a result of `get_state()`."""
        self.reset()
        for keys, of_stats in state["stats"]:
            kind = self.stats_cls_lookup[of_stats["stats_cls_identifier"]]
            stats = self._stats[tuple(keys)] = kind.from_state(of_stats)
            if stats.is_leaf:
                options = {name: of_stats[name] for name in kind.options if of_stats[name] is not None}
                self._options[tuple(keys)] = {"reduce": of_stats["stats_cls_identifier"], **options}


class Timer:
    """Logs the duration of a `with` block in seconds."""

    def __init__(self, logger: MetricsLogger, path: Path):
        self._logger, self._path = logger, path
        self._begun = math.nan

    def __enter__(self) -> Self:
        self._begun = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.log_value(self._path, perf_counter() - self._begun)
