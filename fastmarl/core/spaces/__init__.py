"""Spaces: the leaves of their values, nested values, and masks of actions."""

from fastmarl.core.spaces.layout import Leaf as Leaf
from fastmarl.core.spaces.layout import RowLayout as RowLayout
from fastmarl.core.spaces.layout import leaf_spaces as leaf_spaces
from fastmarl.core.spaces.layout import with_leaf_spaces as with_leaf_spaces
from fastmarl.core.spaces.plain import plain_space as plain_space
from fastmarl.core.spaces.plain import space_from_plain as space_from_plain
from fastmarl.core.spaces.structs import Index as Index
from fastmarl.core.spaces.structs import flatten_struct as flatten_struct
from fastmarl.core.spaces.structs import map_struct as map_struct
from fastmarl.core.spaces.values import can_hold as can_hold
from fastmarl.core.spaces.values import described as described
from fastmarl.core.spaces.values import first_unheld as first_unheld
from fastmarl.core.spaces.values import narrowest as narrowest
