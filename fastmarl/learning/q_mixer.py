"""QMIX's network, which mixes the values of agents to the value of their team."""

from torch import Tensor, nn

from fastmarl.core.objects.public import public


@public("fastmarl.learning")
class QMixer(nn.Module):
    """Combines the values of a team's agents, such that the team's value grows with each of them.

    Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning": two
    layers, whose weights are the absolute outputs of networks of the global state.

    Args:
        num_agents: Number of agents in the team.
        num_states: Size of the global state.
        embed_dim: Width of the layer between the agents' values and the team's.
        hypernet_dim: Width of the hidden layer of the networks that output the weights.
    """

    def __init__(self, num_agents: int, num_states: int, embed_dim: int = 32, hypernet_dim: int = 64):
        super().__init__()
        self.num_agents, self.embed_dim = num_agents, embed_dim
        # The first layers of four networks side by side: for weights, last weights, biases and the last bias.
        self._sizes = [hypernet_dim, hypernet_dim, embed_dim, embed_dim]
        self.state_layer = nn.Linear(num_states, sum(self._sizes))
        self.weights = nn.Linear(hypernet_dim, num_agents * embed_dim)
        self.last_weights = nn.Linear(hypernet_dim, embed_dim)
        self.last_bias = nn.Linear(embed_dim, 1)

    def forward(self, values: Tensor, states: Tensor) -> Tensor:
        """Return the team's values.

        Args:
            values: [..., A], 0 for agents that take no part.
            states: [..., num_states].

        Returns:
            [...].
        """
        of_weights, of_last_weights, biases, of_last_bias = self.state_layer(states).split(self._sizes, -1)
        weights = self.weights(of_weights.relu()).abs().unflatten(-1, (self.num_agents, self.embed_dim))
        hidden = nn.functional.elu((values[..., None, :] @ weights).squeeze(-2) + biases)
        last_weights, last_bias = self.last_weights(of_last_weights.relu()).abs(), self.last_bias(of_last_bias.relu())
        return (hidden * last_weights).sum(-1) + last_bias.squeeze(-1)
