"""Rows of one module as lists: slow, obvious, the oracle for `_scatter` and `_store`."""


class ListRows:
    """Every lane's observations with env step and reward, in order of arrival."""

    def __init__(self):
        self.rows = []  # (lane, env_t, observation, reward as a one-item list)
        self.finals = {}  # lane -> observation

    def append(self, lane, env_t, obs):
        self.rows.append((lane, env_t, obs, [0.0]))

    def pay(self, lane, reward):
        self.of(lane)[-1][3][0] += reward

    def of(self, lane):
        return [row for row in self.rows if row[0] == lane]

    def indices(self, lane):
        return [i for i, row in enumerate(self.rows) if row[0] == lane]
