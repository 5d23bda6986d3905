CHECKED: bool
"""Whether the extensions check bounds, None and initialisation (FASTMARL_CHECKED=1)."""
SANITIZED: bool
"""Whether AddressSanitizer and UndefinedBehaviorSanitizer look at the extensions (FASTMARL_SANITIZE=1)."""
