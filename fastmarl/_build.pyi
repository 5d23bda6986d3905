CHECKED: bool
"""Whether the extensions check bounds, None and initialisation (FASTMARL_CHECKED=1)."""
