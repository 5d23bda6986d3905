"""Steps of all envs, taken and recorded by RLlib's rules. With small envs the loop itself takes much of the time.

Rare cases are left to `sampler.FastSampler` and `step_writer.StepWriter`.
"""

from fastmarl.core.errors.exits import as_error

cdef str ALL = "__all__"
cdef dict NOTHING = {}                      # replaces None where envs return that for a dict; never written to
cdef tuple NOT_STEPPED = ()


def step_envs(envs, list actions, list resets, set idle, on_failure):
    """Step every env, or reset it.

    Args:
        envs: the envs.
        actions: action dicts by env.
        resets: by env, True to reset it.
        idle: indices of envs to skip.
        on_failure: called with (env index, error) when an env raises or returns something else than it should;
            SystemExit comes as a UserExitError.

    Returns:
        (results, over): results of step() or reset(), None for a failure; True for each env that reports `__all__`.
    """
    cdef Py_ssize_t i
    cdef list results = [], over = []
    for i in range(len(actions)):
        if idle and i in idle:
            results.append(NOT_STEPPED)
            over.append(False)
            continue
        result, is_over = None, False
        try:
            if resets[i]:
                obs, infos = envs[i].reset()
                result = obs, infos
            else:
                obs, rewards, terminateds, truncateds, infos = envs[i].step(actions[i])
                is_over = bool(terminateds[ALL] or truncateds.get(ALL, False))
                result = obs, rewards, terminateds, truncateds, infos
        except (Exception, SystemExit) as raised:
            on_failure(i, as_error(raised))
            result, is_over = None, False
        results.append(result)
        over.append(is_over)
    return results, over


def record_steps(sampler, recording, scatter, list records, list actions, list results, list over, list resets,
                 double now):
    """Write the envs' results, env by env.

    Args:
        sampler: its `take_reset()` and `restart_episode()` record results that are not steps.
        recording: its `look()` and `note...()` record details that only some steps have.
        scatter: an RLlibScatter.
        records: the envs' episodes.
        actions, results, over, resets: as for and from `step_envs()`; `resets` become those of the next step.
        now: `time.perf_counter()` after the envs' steps.

    Returns:
        (envs whose episodes are over, number of steps, number of observations).
    """
    cdef Py_ssize_t i, n_steps = 0, n_observed = 0
    cdef list done = []
    cdef bint was_reset, looks
    cdef int all_done
    try:
        for i in range(len(results)):
            result = results[i]
            if result is None:
                sampler.restart_episode(i)
            if result is None or result is NOT_STEPPED:
                continue
            record = records[i]
            was_reset, resets[i] = resets[i], over[i]
            if was_reset or record.awaits_reset:
                result = sampler.take_reset(i, record, was_reset, result)
                if result is None:
                    continue
            obs, rewards, terminateds, truncateds, infos = result
            n_observed += len(obs)
            looks = not record.keys.same(obs, rewards, terminateds, truncateds)
            if looks:
                obs = recording.look(record, actions[i], obs, rewards, terminateds, truncateds, infos)
            rewards, infos = rewards or NOTHING, infos or NOTHING
            all_done = scatter.write_step(i, obs, rewards, terminateds, truncateds, infos)
            if infos and recording.keeps_common_infos:
                recording.keep_common_info(record, infos)
            if looks and record.joined:
                recording.note_joined(record)
            if record.unobserved_rewards and (looks or all_done or scatter.closed):
                recording.forget_early_pay(record, all_done, actions[i], result[0], rewards, terminateds, truncateds)
            _note_flags(recording, scatter, record, all_done, terminateds, truncateds)
            if all_done:
                record.last_step_at = now
                done.append(i)
            n_steps += 1
    except BaseException:
        sampler.parts.counts.env_steps += n_steps                 # those that were recorded before
        raise
    return done, n_steps, n_observed


cdef int _note_flags(recording, scatter, record, int all_done, terminateds, truncateds) except -1:
    """Record the episode's flags, from the first that is not False, and those of agents that have ended."""
    is_terminated, is_truncated = terminateds[ALL], truncateds.get(ALL, False)
    if is_terminated is not False or is_truncated is not False or record.has_flags:
        record.has_flags = True
        record.is_terminated, record.is_truncated = is_terminated, is_truncated
    if scatter.closed:
        recording.note_flags(record, all_done, terminateds, truncateds)
    return 0
