cdef extern from *:
    """
    #if defined(__GNUC__)
    #define fastmarl_prefetch(address) __builtin_prefetch(address)
    #else
    #define fastmarl_prefetch(address)
    #endif
    """
    void fastmarl_prefetch(const void* address) noexcept
