"""The mixing network of QMIX, which combines agent values into the value of their team."""

from torch import Tensor, nn

from fastmarl.core.objects.public import public


@public("fastmarl.learning")
class QMixer(nn.Module):
    """Combines agent values into a team value that increases monotonically with each of them.

    The network has two layers, whose weights are the absolute outputs of hypernetworks of the global state (Rashid et
    al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning").

    Args:
        num_agents: Number of agents in the team.
        num_states: Size of the global state.
        embed_dim: Width of the hidden layer between agent values and the team value.
        hypernet_dim: Width of the hidden layer of the hypernetworks.
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
        """Compute team values.

        Args:
            values: Agent values [..., A], 0 for agents that do not take part.
            states: Global states [..., num_states].

        Returns:
            Team values [...].
        """
        of_weights, of_last_weights, biases, of_last_bias = self.state_layer(states).split(self._sizes, -1)
        weights = self.weights(of_weights.relu()).abs().unflatten(-1, (self.num_agents, self.embed_dim))
        hidden = nn.functional.elu((values[..., None, :] @ weights).squeeze(-2) + biases)
        last_weights, last_bias = self.last_weights(of_last_weights.relu()).abs(), self.last_bias(of_last_bias.relu())
        return (hidden * last_weights).sum(-1) + last_bias.squeeze(-1)
