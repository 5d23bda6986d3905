CHECKED: bool
"""True if the extensions check bounds, None and initialisation (FASTMARL_CHECKED=1)."""
SANITIZED: bool
"""True if the extensions are built with AddressSanitizer and UndefinedBehaviorSanitizer (FASTMARL_SANITIZE=1)."""
