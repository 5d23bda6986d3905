# Header only: C types shared by the extensions. No .pyx, so no module at run time.
from libc.stdint cimport int32_t, int64_t, uint8_t

ctypedef int32_t lane_t      # index of one agent's stay in one env's episode
ctypedef int64_t row_t       # index of one observation in a module's block
ctypedef uint8_t flag_t      # numpy bool_ / uint8 as seen from C

cdef enum:
    TERMINATED = 1           # bits of done_L
    TRUNCATED = 2
    FAILED = 4               # of whole episodes: see core/store/lanes.py
