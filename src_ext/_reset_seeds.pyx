"""Seeds of resets, computed from a SeedSequence without making its children, which would dominate the time when
thousands of short episodes begin."""
from libc.stdint cimport uint32_t

cdef uint32_t WORD = 0xFFFFFFFF


cdef class Children:
    """The first words of a SeedSequence's children. NumPy promises that they never change.

    Args:
        parent: the SeedSequence; its children's numbers are at most 2**32 - 1.
    """
    cdef uint32_t _pool, _xor, _factor

    def __init__(self, parent):
        words = max(parent.pool_size, len(_words(parent.entropy))) + sum([len(_words(k)) for k in parent.spawn_key])
        mixed = parent.pool_size**2 + parent.pool_size * (words - parent.pool_size)  # words that were hashed before
        self._pool = int(parent.pool[0])
        self._xor = 0x43B0D7E5 * pow(0x931E8875, mixed, 2**32) & WORD
        self._factor = self._xor * <uint32_t>0x931E8875

    cpdef uint32_t first_word(self, uint32_t number) noexcept:
        """Return `SeedSequence(..., spawn_key=(*parent.spawn_key, number)).generate_state(1)[0]`."""
        cdef uint32_t hashed = (number ^ self._xor) * self._factor, mixed, word
        hashed ^= hashed >> 16
        mixed = <uint32_t>0xCA01F9DD * self._pool - <uint32_t>0x4973F715 * hashed
        mixed ^= mixed >> 16
        word = (mixed ^ <uint32_t>0x8B51F9DD) * (<uint32_t>0x8B51F9DD * <uint32_t>0x58F38DED)
        return word ^ word >> 16


def take_seeds(
    list children,          # by env
    list numbers,           # number of each env's next reset
    list last,              # seed of each env's last reset
    list env_indices,       # IN
):
    """Take the seeds of these envs' next resets, in order; they are below 2**31."""
    cdef Py_ssize_t env_index
    cdef uint32_t number
    cdef list seeds = []
    for env_index in env_indices:
        number = numbers[env_index]
        seed = (<Children?>children[env_index]).first_word(number) >> 1
        numbers[env_index], last[env_index] = <object>number + 1, seed
        seeds.append(seed)
    return seeds


cdef list _words(number):
    """Split a number into words of 32 bits, at least one."""
    cdef list words = [number & WORD]
    number >>= 32
    while number:
        words.append(number & WORD)
        number >>= 32
    return words
