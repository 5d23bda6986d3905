"""Observations and actions of agents on RLlib's old API stack, in lists with one entry per step.

RLlib's rules are in rllib/old_stack; rare cases are left to the classes there.
"""

import numpy as np

cdef str ALL = "__all__"


cdef class Steps:
    """The steps of one agent.

    All lists have `before` entries for the time before the first step, and then one for each step; those of
    observations, infos and times begin with the env's reset. Instead of actions, there is a list of the rows that hold
    them. RLlib repeats the first value where there is none yet.

    Args:
        agent_id, env_id: the agent and its env.
        before: number of earlier steps that the policy's views need, at least 1.
        first_reward: reward before the first one; None: the first one is repeated.

    Attributes:
        n_initial: number of entries from the time before the agent's first step.
        pending: row of the last chosen action; -1: none.
        is_built: True if a batch was made of these steps since the last one came.
        unroll_id: number of the unroll that the next step belongs to.
        has_other_dtypes: True if observations have had different dtypes.
    """
    cdef readonly object agent_id, env_id
    cdef readonly list obs, infos, times, rewards, terminateds, truncateds, rows, unrolls
    cdef readonly Py_ssize_t before, n_initial
    cdef object first_reward, dtype
    cdef public Py_ssize_t pending
    cdef public bint is_built
    cdef public object unroll_id
    cdef readonly bint has_other_dtypes

    def __init__(self, agent_id, env_id, Py_ssize_t before, first_reward):
        self.agent_id, self.env_id = agent_id, env_id
        self.obs, self.infos, self.times, self.rewards = [], [], [], []
        self.terminateds, self.truncateds, self.rows, self.unrolls = [], [], [], []
        self.before, self.n_initial, self.first_reward = before, before, first_reward
        self.pending, self.is_built, self.has_other_dtypes = -1, False, False

    def begin(self, obs, info, t):
        """Store the results of the env's reset."""
        if isinstance(obs, list):
            obs = np.array(obs)
        self.dtype = getattr(obs, "dtype", None)
        for _ in range(self.before):
            self.obs.append(obs)
            self.infos.append(info)
            self.times.append(t)
            self.unrolls.append(self.unroll_id)

    def begin_unroll(self):
        """Begin again with the first step after a batch was made."""
        raise NotImplementedError

    def drop_built(self):
        """Keep only what later batches need of the steps of a batch that was made."""
        cdef Py_ssize_t n = len(self.times) - self.before
        for steps in (self.obs, self.infos, self.times, self.rewards, self.terminateds, self.truncateds, self.rows,
                      self.unrolls):
            del steps[:n]
        self.n_initial = max(0, self.n_initial - n)

    @property
    def n_initial_in_window(self):
        """Number of entries from the time before the first step among the last `before` entries."""
        return max(0, self.n_initial - (len(self.times) - self.before))

    cdef int add(self, obs, reward, terminated, truncated, info, t) except -1:
        if self.is_built:
            self.begin_unroll()
        if not self.rows:   # RLlib has the first step twice, which can show in the dtype
            for _ in range(self.before):
                self.add_outcome(reward if self.first_reward is None else self.first_reward, terminated, truncated)
        if isinstance(obs, list):
            obs = np.array(obs)
        if getattr(obs, "dtype", None) is not self.dtype:
            self.has_other_dtypes = True
        self.obs.append(obs)
        self.infos.append(info)
        self.times.append(t)
        self.unrolls.append(self.unroll_id)
        self.add_outcome(reward, terminated, truncated)
        return 0

    cdef int add_outcome(self, reward, terminated, truncated) except -1:
        self.rewards.append(reward)
        self.terminateds.append(terminated)
        self.truncateds.append(truncated)
        self.rows.append(self.pending)
        return 0


def seen_by_policy(episode, known_policies, obs, rewards, terminateds, truncateds, infos):
    """Group an env's results by policy, in the order of the policies' first agents.

    Agents that are done before they have acted are left out.

    Args:
        episode: an EpisodeV2.
        known_policies: dict of the policies that are in memory.
        obs, rewards, terminateds, truncateds, infos: as BaseEnv.poll() returns them for the env.

    Returns:
        (seen, done): policy id -> list of (agent id, observation, reward, terminated, truncated, info); agent id ->
        True if it is done.
    """
    cdef dict policy_of = episode._agent_to_policy, index_of = episode._agent_to_index
    cdef dict has_begun = episode._has_init_obs, seen = {}, done = {}
    cdef dict known = known_policies
    all_terminated, all_truncated = terminateds[ALL], truncateds[ALL]
    cdef bint is_over = all_terminated or all_truncated
    cdef bint any_terminated = len(terminateds) > 1, any_truncated = len(truncateds) > 1
    cdef bint terminated, truncated
    cdef list of_policy
    last_policy, of_policy = None, None
    for agent_id, observation in obs.items():
        assert agent_id != ALL
        policy_id = policy_of.get(agent_id)
        if policy_id is None or policy_id not in known:
            policy_id = episode.policy_for(agent_id)
        terminated = all_terminated or (any_terminated and terminateds.get(agent_id))
        truncated = all_truncated or (any_truncated and truncateds.get(agent_id, False))
        if terminated or truncated or is_over:
            done[agent_id] = terminated or truncated
            if agent_id not in has_begun:
                continue
        if agent_id not in index_of:
            episode.agent_index(agent_id)
        if of_policy is None or policy_id is not last_policy:
            of_policy = seen.get(policy_id)
            if of_policy is None:
                of_policy = seen[policy_id] = []
            last_policy = policy_id
        info = infos[agent_id] if agent_id in infos else {}
        of_policy.append((agent_id, observation, rewards.get(agent_id, 0.0), terminated, truncated, info))
    return seen, done


def take_steps(episode, list seen, list observations, t, bint is_over, clip, first):
    """Add the observations of one policy's agents to their steps, and to the sums that the episode keeps.

    Args:
        episode: an EpisodeV2.
        seen: agents of one policy, from `seen_by_policy`.
        observations: of the same agents, as the policy gets them.
        t: the env step.
        is_over: True if the episode is over.
        clip: converts a reward to the recorded one; None: unchanged.
        first: called with (agent id, observation, info) for agents without steps; returns their Steps.

    Returns:
        The Steps of the agents that act next.
    """
    cdef dict collectors = episode._agent_collectors, policy_of = episode._agent_to_policy
    cdef dict last_terminateds = episode._last_terminateds, last_truncateds = episode._last_truncateds
    cdef dict last_infos = episode._last_infos
    agent_rewards, history = episode.agent_rewards, episode._agent_reward_history   # defaultdicts
    cdef list acting = []
    cdef Py_ssize_t i, n_steps = 0
    cdef Steps steps
    cdef tuple one
    total = episode.total_reward
    for i in range(len(seen)):
        one = seen[i]
        agent_id, _, reward, terminated, truncated, info = one
        obs = observations[i]
        found = collectors.get(agent_id)
        if found is None:
            steps = first(agent_id, obs, info)
        else:
            steps = found
            if clip is not None:
                reward = clip(reward)
            steps.add(obs, reward, terminated, truncated, info, t)
            n_steps += 1
            total += reward
            agent_rewards[agent_id, policy_of[agent_id]] += reward
            history[agent_id].append(reward)
            last_terminateds[agent_id] = terminated
            last_truncateds[agent_id] = truncated
            last_infos[agent_id] = info
        if not (is_over or terminated or truncated):
            acting.append(steps)
    episode.active_agent_steps += n_steps
    episode.total_agent_steps += n_steps
    episode.total_reward = total
    return acting


def put_actions(list acting, list actions, by_env):
    """Write each agent's action to its env's dict, which must not have one for it yet."""
    cdef Py_ssize_t i
    cdef Steps steps
    for i in range(len(acting)):
        steps = acting[i]
        of_env = by_env[steps.env_id]
        assert steps.agent_id not in of_env
        of_env[steps.agent_id] = actions[i]


def last_observations(list acting):
    """Return the last observations of these agents."""
    cdef Py_ssize_t i
    cdef Steps steps
    cdef list observations = []
    for i in range(len(acting)):
        steps = acting[i]
        observations.append(steps.obs[len(steps.obs) - 1])
    return observations


def choose_rows(list acting, Py_ssize_t first):
    """Set the rows of these agents' actions, from `first` on."""
    cdef Py_ssize_t i
    cdef Steps steps
    for i in range(len(acting)):
        steps = acting[i]
        steps.pending = first + i


def rows_before(list acting, Py_ssize_t before, Py_ssize_t[:, ::1] rows):
    """Write the rows of the last `before` steps of these agents, [n, before]; -1: the agent had not begun yet.

    Returns:
        True if there is a -1.
    """
    cdef Py_ssize_t i, j, n, n_initial
    cdef bint has_initial = False
    cdef Steps steps
    for i in range(len(acting)):
        steps = acting[i]
        n = len(steps.rows) - before
        n_initial = before if n < 0 else max(0, steps.n_initial - n)
        for j in range(before):
            rows[i, j] = -1 if j < n_initial else steps.rows[n + j]
            has_initial |= rows[i, j] < 0
    return has_initial
