"""A policy for each team of simple_tag, whose agents are called by it: "adversary_0", "agent_0"."""


def team_of(agent_id, episode):
    return agent_id.split("_")[0]


TEAMS = {"policies": ["adversary", "agent"], "policy_mapping_fn": team_of}
