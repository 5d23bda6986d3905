"""Draw a map with four sprites of 10 x 10 pixels."""

import numpy as np

SCALE = 3  # screen pixels per pixel of a sprite
COLOURS = {
    "g": (126, 176, 86), "G": (116, 166, 78), "r": (128, 128, 134), "R": (96, 96, 104), "c": (58, 128, 52),
    "p": (226, 120, 170), "h": (240, 232, 220), "H": (178, 146, 116), "k": (40, 34, 34), "o": (222, 112, 36),
    "w": (250, 246, 240),
}  # fmt: skip
ROCK = """
..........
...rrrr...
..rrrrrrR.
.rrrrrrrR.
.rrrrrrrRR
rrrrrrrRRR
rrrrrrrRRR
rrrrRRRRRR
.RRRRRRRR.
.........."""
CLOVER = """
..........
...pp.....
..pppp....
...pp.cc..
...c.cccc.
.ccc..cc..
cccccc....
.ccc.c....
.....c....
.........."""
HARE = """
...hH.hH..
...hH.hH..
...hH.hH..
...hhhhh..
..hkhhkhh.
..hhhphhh.
...hhhhh..
..hhhhhhh.
..hhHhHhh.
.........."""
FOX = """
.o......o.
.oo....oo.
.oooooooo.
.okooooko.
.oowoowoo.
..wwwwww..
...wkkw...
....ww....
..oooooo..
.........."""
SPRITES = [np.array([list(row) for row in sprite.split()]) for sprite in (ROCK, CLOVER, HARE, FOX)]


def draw(layers: np.ndarray) -> np.ndarray:
    """Draw layers [sprite, height, width], later ones on top of earlier ones; returns uint8 [height, width, 3]."""
    _, height, width = layers.shape
    letters = np.empty((height, 10, width, 10), "U1")
    checks = (np.indices((height, width)).sum(0) % 2)[:, None, :, None]
    letters[:] = np.where(checks, "g", "G")
    for layer, sprite in zip(layers, SPRITES, strict=True):
        for y, x in np.argwhere(layer):
            cell = letters[y, :, x]
            cell[sprite != "."] = sprite[sprite != "."]
    picture = np.zeros((*letters.shape, 3), np.uint8)
    for letter, colour in COLOURS.items():
        picture[letters == letter] = colour
    picture = picture.reshape(height * 10, width * 10, 3)
    return picture.repeat(SCALE, 0).repeat(SCALE, 1)
