"""A frozen list of 24 configs that are typical of public multi-agent projects on RLlib's new API stack.

Of 24 such projects that were read when callbacks still fell back, 13 had nothing that needed RLlib's loop, 8 had
callbacks of episodes (half of them at starts or steps, too), 2 flattened observations, and 1 had a mapping function
that reads the running episode. The list has the same shares.

Each config is written from scratch: it does what its source does, in envs, callbacks and modules of the same shape,
with small networks. `source` names a public repository and a file in it that was read. Where it begins with "after" or
"reconstructed", the shape is in part our own: from a description, an issue, an excerpt without its repository's name,
or a file of which something is left out. So these need not be the 24 projects of the shares above. Envs are smaller
ones of the same kind. Options of sampling (envs per runner, batch mode, unit of counting) are ours, spread so that each
occurs.

The list is frozen: it grows by reproductions of further projects alone, and no config is ever taken out or made easier.
"""
